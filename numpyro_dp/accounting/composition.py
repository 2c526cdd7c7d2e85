"""Composition of privacy loss distributions by a tilted Fourier transform.

Steps are put on one grid (``discretise``), multiplied by e^{λℓ} and normalised before the
transform, so that rounding errors are small *relative to the tail that δ is read from*; the factor
is divided out afterwards. What remains (rounding, the tail outside the window) is bounded and
added to δ, so every figure is an upper bound. λ, window and spacing are chosen for a range of δ of
one decade.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft
from scipy.signal import lfilter

from numpyro_dp.accounting.discretise import (
    CoarseStep,
    Pmf,
    coarse_magnitudes,
    coarse_pmf,
    grid_pmf,
)
from numpyro_dp.accounting.profiles import Profile

__all__ = ["DECADES", "Steps", "Table", "tables"]

_Floats = NDArray[np.float64]
Steps = tuple[tuple[Profile, int], ...]

# Table k serves δ between 10^(−k−1) and 10^(−k), in units of DECADES.
DECADES = 1
_MAX_POINTS = 1 << 20
_MIN_POINTS = 1 << 12
# Kinds of steps looked at when tilt, window and spacing are chosen.
_PLANNED = 24
_ROUNDING = 2.0**-52
# Tail mass given up at infinity and below, relative to the smallest δ served and absolute.
_UPPER_SHARE = 1e-4
_LOWER_MASS = 1e-13
_WRAPPED_MASS = 1e-10


class Table(NamedTuple):
    """δ on a grid of ε: an upper bound there and, by chords in e^ε, in between."""

    start: float
    spacing: float
    deltas: _Floats

    def delta(self, epsilon: float) -> float:
        """Return an upper bound on δ at ε ≥ 0."""
        place = (epsilon - self.start) / self.spacing
        if place < 0:
            return 1.0
        index = min(int(place), len(self.deltas) - 1)
        if index == len(self.deltas) - 1:
            return float(self.deltas[-1])
        weight = math.expm1(epsilon - self.start - index * self.spacing) / math.expm1(self.spacing)
        high, low = self.deltas[index], self.deltas[index + 1]
        return float(high - min(max(weight, 0.0), 1.0) * (high - low))

    def epsilon(self, delta: float) -> float:
        """Return the least ε ≥ 0 of the table at which the bound is at most ``delta``."""
        if self.deltas[-1] > delta:
            return math.inf
        index = int(np.searchsorted(-self.deltas, -delta))
        if index == 0:
            return max(self.start, 0.0)
        high, low = self.deltas[index - 1], self.deltas[index]
        weight = (high - delta) / (high - low)
        offset = math.log1p(weight * math.expm1(self.spacing))
        return max(self.start + (index - 1) * self.spacing + offset, 0.0)


class _Plan(NamedTuple):
    """Tilt, grid and window of one composition."""

    tilt: float
    tail_tilt: float
    spacing: float
    first: int
    points: int


@lru_cache(maxsize=64)
def tables(steps: Steps, bucket: int, fineness: float) -> tuple[Table, ...]:
    """Return one table for each direction of the composition of ``steps``.

    Args:
        steps: profiles with their counts.
        bucket: k for δ between 10^(−k−1) and 10^(−k).
        fineness: grid spacing in standard deviations of the composed loss over √steps; the
            relative excess of ε is about fineness²/12.

    Returns:
        One table if every profile is symmetric, else two; δ is bounded by their maximum.
    """
    swaps = (False,) if all(profile.symmetric for profile, _ in steps) else (False, True)
    return tuple(_table(steps, swap, bucket, fineness) for swap in swaps)


def _table(steps: Steps, swap: bool, bucket: int, fineness: float) -> Table:
    smallest = 10.0 ** (-DECADES * (bucket + 1))
    counts = np.array([count for _, count in steps], dtype=float)
    share = _UPPER_SHARE * smallest / counts.sum()
    magnitudes = coarse_magnitudes(profile for profile, _ in steps)
    coarse = [coarse_pmf(profile, swap, magnitudes) for profile, _ in steps]
    chosen, weights = _representatives(coarse, counts)
    plan = _plan(_truncated(chosen, magnitudes, weights, share), bucket, fineness)
    pmfs = []
    for (profile, _), step in zip(steps, coarse, strict=True):
        above = _reach(magnitudes, step.upper_delta <= share, plan)
        lost = step.lower_delta * np.exp(-magnitudes) <= _LOWER_MASS / counts.sum()
        below = _reach(magnitudes, lost, plan)
        pmfs.append(grid_pmf(profile, swap, plan.spacing, below, above))
    return _compose(pmfs, counts, plan, smallest)


def _representatives(steps: list[CoarseStep], counts: _Floats) -> tuple[list[CoarseStep], _Floats]:
    """Return few steps that stand for all in planning; of similar steps the least private one."""
    if len(steps) <= _PLANNED:
        return steps, counts
    order = sorted(range(len(steps)), key=lambda index: -steps[index].upper_delta[0])
    chunks = np.array_split(np.array(order), _PLANNED)
    return [steps[chunk[0]] for chunk in chunks], np.array(
        [counts[chunk].sum() for chunk in chunks]
    )


def _truncated(
    steps: list[CoarseStep], magnitudes: _Floats, counts: _Floats, share: float
) -> "_Coarse":
    """Return the coarse steps without the losses that the fine grid counts as infinite.

    Rarer ones would rule every exponential moment, and with it the tilt and the window.
    """
    rows = np.stack([step.probabilities for step in steps])
    for row, step in zip(rows, steps, strict=True):
        beyond = np.flatnonzero(step.upper_delta <= share)
        if beyond.size:
            last = max(int(beyond[0]), 1)
            fall = step.upper_delta[last - 1] - step.upper_delta[last]
            row[magnitudes.size - 1 + last] = fall / -np.expm1(
                magnitudes[last - 1 : last + 1] @ [1, -1]
            )
            row[magnitudes.size + last :] = 0.0
    with np.errstate(divide="ignore"):
        logs = np.log(rows)
    return _Coarse(np.concatenate([-magnitudes[:0:-1], magnitudes]), logs, counts)


class _Coarse(NamedTuple):
    """Logarithms of all steps' masses at common losses, and the steps' counts."""

    losses: _Floats
    logs: _Floats
    counts: _Floats

    def cumulants(self, tilt: float) -> tuple[float, float, float]:
        """Return the composed cumulant generating function and two derivatives at ``tilt``."""
        exponents = self.logs + tilt * self.losses
        peaks = exponents.max(axis=1, keepdims=True)
        weights = np.exp(exponents - peaks)
        totals = weights.sum(axis=1)
        means = (weights @ self.losses) / totals
        squares = (weights * (self.losses - means[:, None]) ** 2).sum(axis=1) / totals
        value = self.counts @ (np.log(totals) + peaks[:, 0])
        return float(value), float(self.counts @ means), float(self.counts @ squares)


def _reach(magnitudes: _Floats, negligible: NDArray[np.bool_], plan: _Plan) -> int:
    """Return how many grid points from 0 reach the first ``negligible`` magnitude."""
    beyond = np.flatnonzero(negligible)
    magnitude = magnitudes[beyond[0]] if beyond.size else magnitudes[-1]
    return int(min(max(math.ceil(magnitude / plan.spacing), 1), plan.points))


def _saddle(coarse: _Coarse, log_delta: float) -> float:
    """Return the tilt at which the saddle-point value of δ is about e^``log_delta``."""
    low, high = math.log(1e-6), math.log(1e12)
    for _ in range(36):
        middle = (low + high) / 2
        tilt = math.exp(middle)
        value, mean, spread = coarse.cumulants(tilt)
        estimate = value - tilt * mean - middle - math.log1p(tilt)
        estimate -= 0.5 * math.log(2 * math.pi * spread + 1 / tilt**2)
        low, high = (middle, high) if estimate > log_delta else (low, middle)
    return math.exp((low + high) / 2)


def _plan(coarse: _Coarse, bucket: int, fineness: float) -> _Plan:
    log_delta = -DECADES * (bucket + 0.5) * math.log(10)
    # Half the saddle point loses little accuracy and keeps rare large losses out of the window.
    tilt = 0.5 * _saddle(coarse, log_delta)
    value, _, spread = coarse.cumulants(tilt)
    log_tail = math.log(_UPPER_SHARE) - DECADES * (bucket + 1) * math.log(10)
    uppers = []
    for factor in (1.0, 1.4, 2.0, 2.5, 3.0, 4.0, 6.0, 10.0, 20.0):
        bound = coarse.cumulants(factor * tilt)[0]
        uppers.append(((bound - log_tail) / (factor * tilt), factor * tilt))
    upper, tail_tilt = min(uppers)
    # What the tilted loss has outside the window comes back at its other end.
    lowers, tilted_uppers = [], []
    slopes = [deviations / math.sqrt(spread) for deviations in (0.5, 1.0, 2.0, 4.0, 6.0, 8.0, 12.0)]
    for slope in slopes + [factor * tilt for factor in (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)]:
        up, down = coarse.cumulants(tilt + slope)[0], coarse.cumulants(tilt - slope)[0]
        tilted_uppers.append((up - value - math.log(_WRAPPED_MASS)) / slope)
        lowers.append((math.log(_WRAPPED_MASS) + value - down) / slope)
    upper = max(upper, min(tilted_uppers))
    lower = min(max(lowers), upper - math.sqrt(spread))
    # Under a heavy tail the tilted loss is wider than the loss itself; the narrower one counts.
    narrow = min(spread, coarse.cumulants(0.0)[2])
    spacing = min(fineness * math.sqrt(narrow / coarse.counts.sum()), (upper - lower) / _MIN_POINTS)
    spacing = max(spacing, (upper - lower) / _MAX_POINTS)
    points = int(next_fast_len(math.ceil((upper - lower) / spacing) + 2, True))
    return _Plan(tilt, tail_tilt, spacing, math.floor(lower / spacing), points)


def _compose(pmfs: list[Pmf], counts: _Floats, plan: _Plan, smallest: float) -> Table:
    spectrum = np.ones(plan.points // 2 + 1, dtype=complex)
    noise = np.zeros(spectrum.shape)
    transform_error = _ROUNDING * math.log2(plan.points)
    log_scale, log_tail, base = 0.0, 0.0, 0
    infinite = 0.0
    for pmf, count in zip(pmfs, counts, strict=True):
        tilted, log_mass = _tilted(pmf, plan.tilt)
        log_scale += count * log_mass
        log_tail += count * _tilted(pmf, plan.tail_tilt)[1]
        infinite += count * pmf.infinite
        indices = np.rint(pmf.losses / plan.spacing).astype(np.int64)
        # Centring keeps the phases small, and with them the rounding of the power.
        centre = int(np.rint(tilted @ indices))
        base += int(count) * centre
        folded = np.bincount((indices - centre) % plan.points, tilted, plan.points)
        factor = rfft(folded)
        spectrum *= factor ** int(count)
        noise += count * transform_error / np.maximum(np.abs(factor), 1e-300)
    size = np.abs(spectrum)
    floor = 2.0 / plan.points * float(size @ (noise + transform_error))
    window = np.roll(irfft(spectrum, plan.points), -((plan.first - base) % plan.points))
    losses = (plan.first + np.arange(plan.points)) * plan.spacing
    exponents = np.minimum(log_scale - plan.tilt * losses, 700.0)
    masses = np.minimum((np.maximum(window, 0.0) + floor) * np.exp(exponents), 1.0)
    infinite += math.exp(min(log_tail - plan.tail_tilt * losses[-1], 0.0))
    return _read(masses, plan, infinite, smallest)


def _tilted(pmf: Pmf, tilt: float) -> tuple[_Floats, float]:
    """Return the normalised tilted masses and the logarithm of their sum."""
    exponents = tilt * pmf.losses
    with np.errstate(divide="ignore"):
        exponents = exponents + np.log(pmf.probabilities)
    peak = float(exponents.max())
    weights = np.exp(exponents - peak)
    total = float(weights.sum())
    return weights / total, peak + math.log(total)


def _read(masses: _Floats, plan: _Plan, infinite: float, smallest: float) -> Table:
    """Return δ at every grid point ≥ 0: δ_j = e^{−h}·δ_{j+1} + (1 − e^{−h})·P(loss > ℓ_j)."""
    above = np.cumsum(masses[::-1])
    decay = math.exp(-plan.spacing)
    deltas = lfilter([-math.expm1(-plan.spacing)], [1.0, -decay], above)[::-1]
    deltas = np.append(deltas[1:], 0.0) + infinite
    start = max(-plan.first, 0)
    deltas = np.minimum(deltas[min(start, len(deltas) - 1) :], 1.0)
    # Smaller values belong to the next table; dropping them keeps the cache small.
    end = int(np.searchsorted(-deltas, -smallest / 10)) + 2
    first = plan.first + min(start, plan.points - 1)
    return Table(first * plan.spacing, plan.spacing, deltas[:end].copy())
