"""Certificates that a Gaussian is no better than a release, up to a small δ.

``least_shift`` proves δ_e(ε) ≤ H_m(ε) + slack for every ε ≥ 0, where H_m is the hockey stick of
N(m, 1) against N(0, 1) and δ_e the release's. δ_e is the larger of both orders of neighbours, so
the Gaussian dominates in both: at e^−x either order has 1 − e^−x + e^−x · (the other at e^x).

What is drawn from tables lies within a total variation τ of its ideal law, under either data set,
so that its own δ at ε is below (1 + e^x)τ more than the ideal one's at any x ≤ ε: δ falls with ε.
That holds with anything released beside it, and the slack of the entry pays for it.

What is true between points that were looked at follows from convexity in e^ε: δ_e lies below the
chord of two points, H_m above its tangents. Every rounding goes to the safe side: δ_e and the
shift up, H_m and the slack down.
"""

import math
from functools import lru_cache

import numpy as np
from scipy.special import log_ndtr, ndtr

from numpyro_dp.accounting.pld.composition import Composition
from numpyro_dp.accounting.pld.renyi import Array

_DOWN, _UP = 1 - 1e-9, 1 + 1e-9
# ε's at which both curves are computed, closer together near 0.
_POINTS = 600
_CROWDING = 1.5
# Where δ falls to the slack only beyond, nothing is certified.
_FARTHEST = 300.0
_LARGEST_SHIFT = 64.0
_LEAST_SHIFT = 1e-6
_PRECISION = 1e-6
# Rounding of chords and tangents, with room to spare.
_MARGIN = 1 + 1e-11


def least_shift(release: Composition, slack: float, distance: float = 0.0) -> float:
    """Return a shift m for which N(m, 1) against N(0, 1) dominates ``release`` up to ``slack``.

    :param release: what was released.
    :param slack: δ by which the Gaussian may be exceeded, at every ε.
    :param distance: total variation between what was drawn and ``release``.
    :returns: The least certified m, rounded up; infinite when none up to 64 is.
    """
    if not release.steps and not release.bounds and not distance:
        return math.sqrt(release.square) * _UP
    return _searched(release, slack, distance)


@lru_cache(maxsize=512)
def _searched(release: Composition, slack: float, distance: float) -> float:
    points = _points(release, slack, distance)
    if points is None:
        return math.inf
    if (points[1] <= slack * _DOWN).all():
        return 0.0
    low, high = _LEAST_SHIFT, _LARGEST_SHIFT
    if not _below(*points, high, slack):
        return math.inf
    while high > low * (1 + _PRECISION):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if _below(*points, middle, slack) else (middle, high)
    return high


@lru_cache(maxsize=64)
def _points(release: Composition, slack: float, distance: float) -> tuple[Array, Array] | None:
    """Return ε's and upper bounds on δ there, down to ``slack``; None where it is not reached."""
    end = _reach(release, slack, distance)
    if end is None:
        return None
    epsilons = end * np.linspace(0.0, 1.0, _POINTS) ** _CROWDING
    deltas = np.minimum.accumulate(_deltas(release, slack, distance, epsilons))
    return (epsilons, deltas) if deltas[-1] <= slack * _DOWN else None


def _deltas(release: Composition, slack: float, distance: float, epsilons: Array) -> Array:
    """Return upper bounds on δ at ``epsilons`` of what is drawn; not yet the least of them."""
    return release.deltas(epsilons, slack) + (1 + np.exp(epsilons)) * (distance * _UP)


def _reach(release: Composition, slack: float, distance: float) -> float | None:
    """Return about the least ε at which δ is down to ``slack``; None where it never is."""
    places = np.concatenate([[0.0], np.geomspace(1e-9, _FARTHEST, 240)])
    end = 0.0
    for _ in range(2):
        deltas = _deltas(release, slack, distance, places)
        reached = np.flatnonzero(deltas <= slack * _DOWN)
        if not len(reached):
            return None
        first = int(reached[0])
        end = float(places[first])
        places = np.linspace(places[max(first - 1, 0)], end, 30)
    return max(end, 1e-9)


def _below(epsilons: Array, deltas: Array, shift: float, slack: float) -> bool:
    """Return whether the release's profile is certified to lie below the Gaussian's plus slack."""
    bound = _hockey_stick(shift, epsilons) + slack * _DOWN
    if not (deltas * _MARGIN <= bound).all():
        return False
    # In x = e^ε − e^(left end), within each cell: chord of the profile, two tangents of the bound.
    places = np.expm1(epsilons)
    width = np.diff(places)
    slopes = ndtr(-shift / 2 - epsilons / shift)
    left, right = slopes[:-1] * _UP, slopes[1:] * _DOWN
    steeper = left - right
    meeting = np.divide(
        bound[:-1] - bound[1:] - right * width,
        steeper,
        out=np.zeros_like(width),
        where=steeper > 0,
    )
    meeting = np.clip(meeting, 0.0, width)
    tangents = np.maximum(bound[:-1] - left * meeting, bound[1:] + right * (width - meeting))
    share = np.divide(meeting, width, out=np.zeros_like(width), where=width > 0)
    chord = deltas[:-1] + (deltas[1:] - deltas[:-1]) * share
    # Both ends were looked at, and chord minus the larger tangent is largest there or where they
    # meet.
    return bool((chord * _MARGIN <= tangents).all())


def _hockey_stick(shift: float, epsilons: Array) -> Array:
    """Return δ of N(shift, 1) against N(0, 1) at ``epsilons``, rounded down."""
    high = shift / 2 - epsilons / shift
    low = -shift / 2 - epsilons / shift
    first, second = ndtr(high), np.exp(epsilons + log_ndtr(low))
    # Far out two close numbers are subtracted; their own rounding grows like the squared distance.
    rounding = 2.0**-49 * first * (4 + epsilons + low**2)
    return np.maximum((first - second) * _DOWN - rounding, 0.0)
