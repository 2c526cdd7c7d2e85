"""One privacy loss distribution for a composition of steps, by dp-accounting.

Every step is discretised pessimistically on one grid and composed by the library's convolution.
What we choose here is the grid: fine against the loss of one step, or small sampling rates would
be rounded up to several times their cost, and coarse enough to stay quick.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import NamedTuple

from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent
from dp_accounting.gaussian_mechanism import get_epsilon_gaussian
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from dp_accounting.rdp import RdpAccountant
from scipy.special import log_ndtr, ndtr

from numpyro_dp.accounting.relation import Relation, sensitivity

__all__ = ["Composition", "Step", "Steps", "gaussian_delta", "loss_variance"]

_NEIGHBOURS: Mapping[Relation, NeighboringRelation] = {
    "zero_out": NeighboringRelation.REPLACE_SPECIAL,
    "replace_one": NeighboringRelation.REPLACE_ONE,
    "add_remove": NeighboringRelation.ADD_OR_REMOVE_ONE,
}
# Grid spacing over the standard deviation of one step's loss: the excess of ε is about its
# square over twelve.
_FINENESS = 1 / 32
_GROUPED_FINENESS = 1 / 4
_COARSEST = 2.0**-10
_MAX_POINTS = 1 << 21
# The library builds one step's grid point by point in Python.
_MAX_STEP_POINTS = 1 << 16
# Rounding that the library's Fourier convolution leaves in δ, for each step: about 2^-53 a step
# when errors add up, ten times what is seen against exact values.
_ROUNDING = 2.0**-53
_MAX_MULTIPLIERS = 64
# Closed forms are right to about twelve digits; rounding must not point downwards.
_UP = 1 + 1e-9


class Step(NamedTuple):
    """One Poisson-subsampled Gaussian release: sampling rate and noise over clip norm."""

    rate: float
    multiplier: float


Steps = tuple[tuple[Step, int], ...]


@dataclass(frozen=True)
class Composition:
    """All Gaussian and Poisson-subsampled Gaussian steps of a run, as one curve.

    Args:
        relation: neighbouring relation.
        square: Σ μ² over the Gaussian releases without sampling, μ the sensitivity over the noise;
            they compose in closed form.
        steps: Poisson-subsampled steps with their counts, sorted.
        coarse: use fewer points for the widest losses: quicker, and ε a little larger still.
    """

    relation: Relation
    square: float
    steps: Steps
    coarse: bool = False

    def epsilon(self, delta: float) -> float:
        """Return an upper bound on ε at ``delta``."""
        if not self.steps:
            if self.square == 0:
                return 0.0
            return get_epsilon_gaussian(self.square**-0.5, delta) * _UP
        room = delta - self._rounding()
        if room < delta / 2:
            return _renyi_epsilon(self, delta)
        return float(_composed(self).get_epsilon_for_delta(room)) * _UP

    def delta(self, epsilon: float) -> float:
        """Return an upper bound on δ at ``epsilon`` ≥ 0."""
        if not self.steps:
            return gaussian_delta(epsilon, math.sqrt(self.square)) if self.square else 0.0
        found = float(_composed(self).get_delta_for_epsilon(epsilon))
        return min(found + self._rounding(), 1.0)

    def _rounding(self) -> float:
        return _ROUNDING * (1024 + sum(count for _, count in self.steps))


def gaussian_delta(epsilon: float, shift: float) -> float:
    """Return δ(ε) of N(shift, 1) against N(0, 1) (Balle and Wang 2018, Theorem 8)."""
    first = float(ndtr(shift / 2 - epsilon / shift))
    second = math.exp(epsilon + float(log_ndtr(-shift / 2 - epsilon / shift)))
    return min(max(first - second, 0.0) * _UP, 1.0)


def _renyi_epsilon(composition: Composition, delta: float) -> float:
    """Return ε at a δ too small for Fourier rounding, from Rényi divergences: looser, but exact.

    The library's Rényi accountant ignores replace-one (privacy.md section 0), so nothing finite is
    said under that relation.
    """
    if composition.relation == "replace_one":
        return math.inf
    accountant = RdpAccountant(neighboring_relation=_NEIGHBOURS[composition.relation])
    for step, count in composition.steps:
        event = PoissonSampledDpEvent(step.rate, GaussianDpEvent(step.multiplier))
        accountant.compose(event, count)
    if composition.square:
        accountant.compose(GaussianDpEvent(composition.square**-0.5))
    return float(accountant.get_epsilon(delta)) * _UP


@lru_cache(maxsize=64)
def _composed(composition: Composition) -> PrivacyLossDistribution:
    steps = _grouped(composition.steps)
    fineness = _FINENESS if steps == composition.steps else _GROUPED_FINENESS
    spacing = _spacing(composition, steps, fineness)
    relation = composition.relation
    parts = [_one_step(relation, step, spacing).self_compose(count) for step, count in steps]
    if composition.square:
        merged = Step(1.0, sensitivity(relation) / math.sqrt(composition.square))
        parts.append(_one_step(relation, merged, spacing))
    return reduce(lambda one, other: one.compose(other), parts)


@lru_cache(maxsize=128)
def _one_step(relation: Relation, step: Step, spacing: float) -> PrivacyLossDistribution:
    return privacy_loss_distribution.from_gaussian_mechanism(
        step.multiplier,
        sampling_prob=step.rate,
        value_discretization_interval=spacing,
        neighboring_relation=_NEIGHBOURS[relation],
    )


def _spacing(composition: Composition, steps: Steps, fineness: float) -> float:
    """Return the grid spacing, a power of two so that runs share their discretised steps."""
    shift = sensitivity(composition.relation)
    count = sum(n for _, n in steps)
    variance = sum(n * loss_variance(step, shift) for step, n in steps)
    spread = math.sqrt(variance + composition.square)
    reach = 12 * spread + spread**2
    widest = max(_largest_loss(step, shift) for step, _ in steps)
    points = _MAX_STEP_POINTS // 8 if composition.coarse else _MAX_STEP_POINTS
    wanted = max(fineness * math.sqrt(variance / count), reach / _MAX_POINTS, widest / points)
    spacing = min(wanted, max(_COARSEST, reach / 4096, widest / points))
    return 2.0 ** math.floor(math.log2(spacing))


def _largest_loss(step: Step, shift: float) -> float:
    """Return about the largest loss of one step that has any mass: log(1 + q(e^x − 1))."""
    mu = shift / step.multiplier
    exponent = mu**2 / 2 + 9 * mu
    if exponent > 700:
        return max(exponent + math.log(step.rate), 1.0)
    return math.log1p(step.rate * math.expm1(exponent))


def loss_variance(step: Step, shift: float, cap: float = 2.0) -> float:
    """Return roughly the variance of one step's loss, q²(e^{μ²} − 1).

    At ``cap`` on μ² the rare large losses are left out.
    """
    square = (shift / step.multiplier) ** 2
    return min(step.rate**2 * math.expm1(min(square, cap)), square)


def _grouped(steps: Steps) -> Steps:
    """Return some hundred multipliers at most, each rounded down: an upper bound on the loss.

    Neighbouring multipliers share the least of them until the cost added by that reaches its share
    of 1 % of the whole, so that the many quiet steps of a long schedule share most.
    """
    if len(steps) <= _MAX_MULTIPLIERS:
        return steps
    share = 0.009 / _MAX_MULTIPLIERS * sum(n * _cost(step) for step, n in steps)
    groups: list[list] = []
    excess = 0.0
    for step, count in steps:
        if groups and groups[-1][0].rate == step.rate:
            excess += count * (_cost(groups[-1][0]) - _cost(step))
            if excess <= share:
                groups[-1][1] += count
                continue
        groups.append([step, count])
        excess = 0.0
    return tuple((step, count) for step, count in groups)


def _cost(step: Step) -> float:
    return loss_variance(step, 1.0, cap=700.0)
