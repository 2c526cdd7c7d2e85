"""From a privacy profile to a privacy loss distribution on a grid, rounded against ourselves.

The construction is the pessimistic *connect the dots*: the grid distribution has the profile's own
δ at every grid point and the chord above it in between, so that it dominates the mechanism, alone
and in every composition.

References:
    Doroshenko, Ghazi, Kamath, Kumar and Manurangsi, *Connect the dots: tighter discrete
    approximations of privacy loss distributions* (2022), Algorithm 1.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from numpyro_dp.accounting.profiles import Profile

__all__ = ["CoarseStep", "Pmf", "coarse_magnitudes", "coarse_pmf", "grid_pmf"]

_Floats = NDArray[np.float64]


class Pmf(NamedTuple):
    """A privacy loss distribution on points ``losses`` with an atom at infinity."""

    losses: _Floats
    probabilities: _Floats
    infinite: float


class CoarseStep(NamedTuple):
    """What planning needs to know of one step, in one direction."""

    probabilities: _Floats
    upper_delta: _Floats
    lower_delta: _Floats


def _deltas(profile: Profile, magnitudes: _Floats, swap: bool) -> tuple[_Floats, _Floats]:
    forward = np.minimum.accumulate(profile.forward(magnitudes))
    if profile.symmetric:
        return forward, forward
    backward = np.minimum.accumulate(profile.backward(magnitudes))
    return (backward, forward) if swap else (forward, backward)


def _masses(upper: _Floats, lower: _Floats, above: _Floats, below: _Floats) -> _Floats:
    """Return the masses at −below[::-1], 0, above for profiles at 0, above and 0, below."""
    # On the left the profile is 1 − e^ε plus a small rest, and the first part carries no mass:
    # using the rest alone keeps relative accuracy in both tails.
    rest = np.concatenate([(lower[1:] * np.exp(-below))[::-1], upper[:1]])
    rest = np.append(rest, upper[1] + np.expm1(above[0]))
    left_points = np.concatenate([-below[::-1], [0.0], above[:1]])
    right_points = np.concatenate([[0.0], above])
    with np.errstate(over="ignore"):
        gaps = np.diff(left_points)
        slopes = np.diff(rest)
        left = slopes[1:] / np.expm1(gaps[1:]) + slopes[:-1] / np.expm1(-gaps[:-1])
        first = slopes[0] / np.expm1(gaps[0]) - rest[0]
        gaps = np.diff(right_points)
        falls = -np.diff(upper)
        last = falls / -np.expm1(-gaps)
        right = last[:-1] - falls[1:] / np.expm1(gaps[1:])
    return np.maximum(np.concatenate([[first], left, right, last[-1:]]), 0.0)


def coarse_magnitudes(profiles: Iterable[Profile]) -> _Floats:
    """Return 0 and magnitudes of privacy loss 4 % apart, from far below one step's upwards.

    The smallest gap stays well above the rounding error of δ over the density of the loss.
    """
    zero = np.zeros(1)
    least = min(float(profile.forward(zero)[0]) for profile in profiles)
    lowest = math.log(max(1e-4 * least, 1e-100))
    return np.concatenate([zero, np.exp(np.arange(lowest, math.log(1e6), 0.04))])


def coarse_pmf(profile: Profile, swap: bool, magnitudes: _Floats) -> CoarseStep:
    """Return one step at ± ``magnitudes``, to plan the fine grid with."""
    upper, lower = _deltas(profile, magnitudes, swap)
    masses = _masses(upper, lower, magnitudes[1:], magnitudes[1:])
    return CoarseStep(masses / masses.sum(), upper, lower)


def _grid(first: int, last: int, spacing: float) -> _Floats:
    return np.multiply(np.arange(first, last + 1, dtype=np.float64), spacing, dtype=np.float64)


def grid_pmf(profile: Profile, swap: bool, spacing: float, below: int, above: int) -> Pmf:
    """Return one step on the multiples −below … above of ``spacing``.

    Args:
        profile: the step.
        swap: whether Q comes first.
        spacing: distance of two grid points, in units of privacy loss.
        below: number of points left of 0, at least 1; mass further left moves up to the first.
        above: number of points right of 0, at least 1; δ there becomes mass at infinity.

    Returns:
        A distribution that dominates the step.
    """
    magnitudes = _grid(0, max(below, above), spacing)
    upper, lower = _deltas(profile, magnitudes, swap)
    upper, lower = upper[: above + 1], lower[: below + 1]
    masses = _masses(upper, lower, magnitudes[1 : above + 1], magnitudes[1 : below + 1])
    return Pmf(_grid(-below, above, spacing), masses, float(upper[-1]))
