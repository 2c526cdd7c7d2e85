"""Privacy profiles ε ↦ δ of single steps, and their discretisation by dp-accounting.

A profile is the worst hockey-stick divergence of one step at every ε. Points of it,
rounded up, are joined by dp-accounting's pessimistic connect-the-dots construction (Doroshenko,
Ghazi, Kamath, Kumar and Manurangsi, *Connect the Dots*, 2022); what it returns composes with every
other privacy loss distribution on the same grid.
"""

import math
from abc import ABC, abstractmethod

import numpy as np
from dp_accounting.pld.pld_pmf import PLDPmf, create_pmf_pessimistic_connect_dots
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from numpy.typing import NDArray

from numpyro_dp.accounting.pld.renyi import Array

# ε beyond this is not resolved: what is left of δ there counts as infinite loss. e^ε is a number.
FARTHEST = 600.0
# Mass beyond the last point counts as infinite loss.
_NEGLIGIBLE = 1e-19
_ROUNDING = 1e-16
# Further points of a wide profile are spread out: between them a chord bounds the profile.
_DENSE = 1 << 13


class Profile(ABC):
    """One step's privacy loss, for both orders of neighbours."""

    @property
    @abstractmethod
    def variance(self) -> float:
        """Roughly the variance of the loss; only the choice of a grid rests on it."""

    @property
    @abstractmethod
    def largest(self) -> float:
        """A loss beyond which δ is negligible, or as far as anyone looks."""

    @abstractmethod
    def deltas(self, epsilons: Array) -> tuple[Array, ...]:
        """Return δ, rounded up, at increasing ``epsilons`` ≥ 0.

        One row bounds both orders of neighbours; two are one for each.
        """


def convex_minorant(epsilons: Array, deltas: Array) -> Array:
    """Return the largest function below ``deltas`` that is convex in e^ε, at ``epsilons``."""
    falling = np.minimum.accumulate(deltas)
    slopes = np.diff(falling) / np.diff(np.expm1(epsilons))
    if (np.diff(slopes) >= 0).all():
        return falling
    hull: list[int] = []
    x = np.expm1(epsilons).tolist()
    y = falling.tolist()
    for place in range(len(x)):
        while len(hull) > 1:
            first, second = hull[-2], hull[-1]
            rise = (y[second] - y[first]) * (x[place] - x[first])
            if rise < (y[place] - y[first]) * (x[second] - x[first]):
                break
            hull.pop()
        hull.append(place)
    return np.interp(x, [x[place] for place in hull], [y[place] for place in hull])


def _joined_at_zero(epsilons: Array, deltas: Array) -> Array:
    """Return a profile that is also convex where it meets its reflection, never larger.

    (ε, δ) with both orders alike bounds δ(0) by δ + (1 − δ)·tanh(ε/2); the chord from there to
    (ε, δ) bounds what lies between.
    """
    at_zero = deltas + (1 - deltas) * np.tanh(epsilons / 2)
    best = int(np.argmin(at_zero))
    if best == 0:
        return deltas
    share = np.expm1(epsilons[:best]) / math.expm1(epsilons[best])
    chord = at_zero[best] + share * (deltas[best] - at_zero[best])
    return np.concatenate([np.minimum(chord, deltas[:best]), deltas[best:]])


def discretise(profile: Profile, spacing: float) -> PrivacyLossDistribution:
    """Return the privacy loss distribution of one step on the grid of ``spacing``.

    Points at ε ≥ 0 say everything: the reverse order at −ε has δ = 1 − e^{−ε}(1 − δ(ε)).
    """
    places = _places(min(max(math.ceil(profile.largest / spacing), 1), int(FARTHEST / spacing)))
    epsilons = spacing * places
    rows = [convex_minorant(epsilons, row) for row in profile.deltas(epsilons)]
    if len(rows) == 1:
        rows = [_joined_at_zero(epsilons, rows[0])]
    return PrivacyLossDistribution(
        *(_joined(places, row, back, spacing) for row, back in zip(rows, rows[::-1], strict=True))
    )


def _places(last: int) -> NDArray[np.int64]:
    """Return grid places from 0 to ``last``: all of the near ones, fewer far away."""
    if last <= _DENSE:
        return np.arange(last + 1)
    far = np.geomspace(_DENSE, last, 1 + int(_DENSE * math.log(last / _DENSE)))
    return np.unique(np.concatenate([np.arange(_DENSE), np.round(far)]).astype(int))


def _joined(places: NDArray[np.int64], row: Array, back: Array, spacing: float) -> PLDPmf:
    """Return the mass function of one order from δ of this order and of the reverse, ε ≥ 0."""
    stop = min(int(np.searchsorted(-row, -_NEGLIGIBLE)) + 1, len(row))
    # Masses below are smaller than the rounding of 1 − e^{−ε}; they move up to the first place.
    start = min(int(np.searchsorted(-back, -_ROUNDING)) + 1, len(back))
    falls = -spacing * places[start - 1 : 0 : -1]
    below = -np.expm1(falls) + np.exp(falls) * back[start - 1 : 0 : -1]
    deltas = np.minimum.accumulate(np.concatenate([np.minimum(below, 1.0), row[:stop]]))
    joined = np.concatenate([-places[start - 1 : 0 : -1], places[:stop]])
    return create_pmf_pessimistic_connect_dots(spacing, joined, deltas)
