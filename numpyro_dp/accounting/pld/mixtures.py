"""Mixtures of shifted Gaussians: sampled sums, and mini-batch log ratios with noise."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import ndtr, ndtri

from numpyro_dp.accounting.pld.profiles import Profile
from numpyro_dp.accounting.pld.renyi import Array

# Outcomes rarer than this stay out of reach and are added to every δ.
_RAREST = 1e-23
# Tails and their differences are right to about this share of themselves.
_ERROR = 4e-15
_TABLE = 2048
_HALVINGS = 14


@dataclass(frozen=True)
class GaussianMixture(Profile):
    """Σ w_k N(k·v, s²) against N(0, s²), or against Σ w_k N(−k·v, s²).

    :param weights: w_0, w_1, …, summing to one.
    :param shift: v / s > 0.
    :param two_sided: whether the second distribution is the mirror image instead of N(0, s²).

    The loss rises in the outcome (an increasing function over a decreasing one), so δ(ε) is a
    difference of two tails beyond the point where the loss is ε.
    """

    weights: tuple[float, ...]
    shift: float
    two_sided: bool

    @cached_property
    def _means(self) -> Array:
        return self.shift * np.arange(len(self.weights))

    @cached_property
    def _table(self) -> tuple[Array, Array]:
        """Outcomes that either distribution exceeds with chance ``_RAREST``, and their losses."""
        side = -float(ndtri(_RAREST))
        top = np.linspace(0.0, float(self._means[-1]) + side, _TABLE)
        upper = top[int(np.argmax(self._tails(top, 1.0).sum(axis=-1) <= _RAREST))]
        outcomes = np.linspace(-upper if self.two_sided else -side, upper, _TABLE)
        return outcomes, self._loss(outcomes)

    @property
    def variance(self) -> float:
        """Roughly the variance of the loss, rare large losses left out."""
        spread = np.sqrt(np.expm1(np.minimum(self._means**2, 2.0)))
        return (4.0 if self.two_sided else 1.0) * float(spread @ np.array(self.weights)) ** 2

    @property
    def largest(self) -> float:
        """The loss of the largest outcome within reach."""
        return float(self._table[1][-1])

    def deltas(self, epsilons: Array) -> tuple[Array, ...]:
        """Return δ with the mixture first, and unless it is two-sided with the mixture second."""
        first = self._divergence(epsilons, self._outcome(epsilons), 1.0)
        if self.two_sided:
            return (first,)
        return first, self._divergence(epsilons, self._outcome(-epsilons), -1.0)

    def _tails(self, outcomes: Array, direction: float) -> Array:
        """Return w_k·P(component k lies beyond each outcome), beyond upwards or downwards."""
        distance = np.subtract.outer(outcomes, self._means)
        return ndtr(-direction * distance) * np.array(self.weights)

    def _loss(self, outcomes: Array) -> Array:
        means = self._means
        constant = np.log(np.array(self.weights)) - means**2 / 2
        products = np.multiply.outer(outcomes, means)
        loss = np.logaddexp.reduce(products + constant, axis=-1)
        if self.two_sided:
            loss -= np.logaddexp.reduce(constant - products, axis=-1)
        return loss

    def _outcome(self, losses: Array) -> Array:
        """Return where the loss takes the given values, at the ends of reach if it does not."""
        outcomes, table = self._table
        place = np.clip(np.searchsorted(table, losses), 1, len(table) - 1)
        low, high = outcomes[place - 1], outcomes[place]
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            below = self._loss(middle) < losses
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return (low + high) / 2

    def _divergence(self, epsilons: Array, outcomes: Array, direction: float) -> Array:
        """Return P(beyond) − e^ε·Q(beyond) where P is the mixture upwards, the other downwards."""
        mixture = self._tails(outcomes, direction)
        if self.two_sided:
            other = self._tails(-outcomes, -direction)
        else:
            other = np.multiply.outer(ndtr(-direction * outcomes), np.array(self.weights))
        first, second = (mixture, other) if direction > 0 else (other, mixture)
        # Component by component, so that a small sampling rate loses no digits.
        gain = (first - second).sum(axis=-1)
        price = np.expm1(epsilons) * second.sum(axis=-1)
        scale = np.abs(first - second).sum(axis=-1) + price
        return np.maximum(gain - price, 0.0) + _ERROR * scale + _RAREST
