"""Mechanisms that are no worse than one bit: divergence, profile and composition of many bits.

A *family* is a finite set of pairs of bits. Pair i has log likelihood ratios +a_i and −b_i, so
P(1) = (1 − e^{−b}) / (1 − e^{−a−b}) and Q(1) = e^{−a}·P(1). Every mechanism whose likelihood ratio
stays within [e^{−b_i}, e^{a_i}] for some i, whatever it is made of, is no worse than that pair
(Kairouz, Oh and Viswanath, *The Composition Theorem for Differential Privacy*, 2015: for every
convex function, two-point ratios at the ends are the extreme ones). Both orders of a pair count.

Several steps: an adversary who picks the pair of each step after seeing the steps before achieves
at most V_k(ε), where V_0(ε) = max(0, 1 − e^ε) and

    V_k(ε) = max over pairs and orders of P(1)·V_{k−1}(ε − a) + P(0)·V_{k−1}(ε + b),

which is the adaptive composition itself, not a bound on it. (The pair of a step is the adversary's
choice because everything but one record is: l, and the record's term within the bound Δ of that
step. How many steps there are of which Δ is fixed beforehand; under replace-one Δ is 2Δ.)

A block of k steps enters a composition as one release whose profile is V_k, though other releases,
and steps of other blocks, may come between its steps and depend on them and they on these. That
this is no smaller is the theorem on concurrent composition of interactive mechanisms in terms of
trade-off functions (Vadhan and Zhang, *Concurrent Composition Theorems for Differential Privacy*,
2023): the block is an interactive mechanism whose worst profile against any adversary is V_k, hence
it can be simulated, step by step, from one draw of the pair of distributions with that profile. For
a release of fixed law between steps it is Jensen's inequality: with C_i the (linear) step of pair i
and G that of the release, max_i C_i G f = max_i G C_i f ≤ G max_i C_i f.

V is convex and falling in e^ε, so
values between the points of a grid are read off chords, from above; beyond the grid the value at
its end, or 1, bounds it. Composing blocks of k steps instead of single steps removes most of what
a worst case chosen afresh for every step and every ε would add (15 % of ε for single Barker bits).
"""

import math
from dataclasses import dataclass

import numpy as np

from numpyro_dp.accounting.pld.bound import UP
from numpyro_dp.accounting.pld.profiles import FARTHEST
from numpyro_dp.accounting.pld.renyi import ORDERS, Array

# Steps to a block: one block costs about a third of a step more than its share of the truth.
BLOCK = 16
_POINTS_A_DEVIATION = 8
_FEWEST = 64
_REACH = 12.0
_ORDER_STRIDE = 3


@dataclass(frozen=True)
class PairFamily:
    """Pairs of bits by their log likelihood ratios.

    :param up: a ≥ 0, the loss of outcome 1, one for each pair.
    :param down: b ≥ 0, minus the loss of outcome 0; may be infinite.
    :param closed: whether the reverse of every pair is among the pairs already.
    """

    up: Array
    down: Array
    closed: bool = False

    @property
    def chance(self) -> Array:
        """P(1) of each pair."""
        total = self.up + self.down
        with np.errstate(invalid="ignore"):
            ratio = np.expm1(-self.down) / np.expm1(-total)
        return np.where(total > 0, ratio, 0.5)

    def mirrored(self) -> "PairFamily":
        """Return the pairs in both orders: reversing a pair exchanges a and b."""
        if self.closed:
            return self
        up, down = np.concatenate([self.up, self.down]), np.concatenate([self.down, self.up])
        return PairFamily(up, down, closed=True)

    @property
    def deviation(self) -> float:
        """The largest standard deviation of one loss, pairs of infinite loss left out."""
        total = self.up + self.down
        total = np.where(np.isfinite(total), total, 0.0)
        chance = self.chance
        return float(np.sqrt((chance * (1 - chance) * total**2).max()))


def ranged_family(width: float, pieces: int) -> PairFamily:
    """Return pairs no better than every pair whose two losses differ by at most ``width``.

    A pair with losses a and a − ``width`` has a within one of ``pieces`` equal intervals, and is no
    worse than the pair whose losses are the ends of that interval on both sides.
    """
    ends = np.linspace(0.0, width, pieces + 1)
    return PairFamily(ends[1:], ends[:0:-1], closed=True)


def family_renyi(family: PairFamily) -> Array:
    """Return at every order the largest Rényi divergence over the pairs in both orders.

    (α − 1)·D_α is convex in α, so between the orders that are computed it lies below the chord.
    """
    both = family.mirrored()
    places = np.unique([*range(0, len(ORDERS), _ORDER_STRIDE), len(ORDERS) - 1])
    slopes = ORDERS[places] - 1
    chance, largest = both.chance, float(both.up.max())
    # Rounding of the difference of a gain and a loss, to the safe side.
    moments = [
        _log_moment(both, chance, slope) + 1e-15 * min(slope * largest, 1.0) for slope in slopes
    ]
    return np.interp(ORDERS - 1, slopes, moments) / (ORDERS - 1) * UP


def _log_moment(family: PairFamily, chance: Array, slope: float) -> float:
    """Return the largest log E exp(slope · loss), ``slope`` = α − 1."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        rises, falls = slope * family.up, slope * family.down
        if rises.max() < 30:
            # expm1 keeps small losses exact.
            gain = chance * np.expm1(rises) + (1 - chance) * np.expm1(-falls)
            return math.log1p(max(float(gain.max()), 0.0))
        return float(np.logaddexp(np.log(chance) + rises, np.log1p(-chance) - falls).max())


def family_delta(family: PairFamily, epsilon: float) -> float:
    """Return δ of one step at ``epsilon`` ≥ 0: the largest over the pairs in both orders."""
    both = family.mirrored()
    gain = both.chance * -np.expm1(np.minimum(epsilon - both.up, 0.0))
    return min(float(gain.max()) * UP, 1.0)


def block_deltas(family: PairFamily, count: int) -> tuple[float, Array]:
    """Return the spacing of a grid from 0 upwards, and V_1 … V_count on it, one row each.

    The last point of the grid also bounds everything beyond.
    """
    both = family.mirrored()
    deviation = both.deviation
    finite = both.up[np.isfinite(both.up)]
    farthest = count * float(finite.max())
    reach = min(farthest, _REACH * np.sqrt(count) * deviation, FARTHEST)
    spacing = min(deviation / _POINTS_A_DEVIATION, FARTHEST / _FEWEST)
    points = int(np.ceil(reach / spacing)) + 1
    grid = spacing * np.arange(-points, points + 1)
    value = np.maximum(-np.expm1(grid), 0.0)
    terms = [*_terms(both.up, both.chance, spacing, points)]
    terms += _terms(-both.down, 1 - both.chance, spacing, points)
    pairs = len(both.up)
    rows = np.empty((count, points + 1))
    for row in range(count):
        best = value.copy()
        # 1 below the grid, the last value above it.
        ends = np.ones(3 * points), np.full(3 * points, value[-1])
        padded = np.concatenate([ends[0], value, ends[1]])
        rise = np.diff(padded)
        for pair in range(pairs):
            moved = _read(padded, rise, terms[pair]) + _read(padded, rise, terms[pairs + pair])
            np.maximum(best, moved, out=best)
        value = np.minimum(best * UP, 1.0)
        rows[row] = value[points:]
    return spacing, rows


_Term = tuple[slice, float, float]


def _terms(losses: Array, weights: Array, spacing: float, points: int) -> list[_Term]:
    """Return, for each loss, where V(ε − loss) lies and the weights of its two neighbours."""
    steps = np.clip(losses / spacing, -2 * points - 1, 2 * points + 1)
    whole = np.ceil(steps)
    # ε − loss lies this share of a step above the lower of two points; the chord is in e^ε.
    chord = np.expm1((whole - steps) * spacing) / np.expm1(spacing)
    size = 2 * points + 1
    starts = 3 * points - whole.astype(int)
    return [
        (slice(start, start + size), weight, weight * share)
        for start, weight, share in zip(
            starts.tolist(), weights.tolist(), chord.tolist(), strict=True
        )
    ]


def _read(padded: Array, rise: Array, term: _Term) -> Array:
    place, weight, share = term
    moved = padded[place] * weight
    if share:
        moved += rise[place] * share
    return moved
