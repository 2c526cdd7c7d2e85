"""One of several candidates, with probability proportional to an exponential: in integers.

The exponential mechanism on a public set. Weights are computed from integer tables and compared
with a 64-bit uniform, so that a candidate's probability is right to a relative 2^-27 on every
machine; a float Gumbel draw would have a largest value, past which a candidate cannot win.
"""

from __future__ import annotations

from decimal import Context, Decimal
from functools import lru_cache
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int32, Key, UInt32

from numpyro_dp.mechanisms.accept.fixed_point import Fixed, FixedPointGrid
from numpyro_dp.mechanisms.random import word_pairs
from numpyro_dp.mechanisms.uint64 import Word64, add, high_product, scaled

MOST_CANDIDATES = 63
# Nats: a weight is a product of five factors, each within 2^-31, and a ratio of probabilities
# under two data sets holds four of them.
PICK_MARGIN = 2.0**-25
# Weights are cut at 2^-64 of what all of them could be together.
PICK_TV = 2.0**-50
_DIGIT = 8
_MOST_CELLS = 1 << 24
_HALF = 1 << 31


class _Digits(NamedTuple):
    """e^-x for one digit of x: mantissas in [2^31, 2^32), and how far to shift them right."""

    mantissa: np.ndarray
    shift: np.ndarray


@lru_cache(maxsize=64)
def _digits(step: float) -> _Digits:
    context = Context(prec=50)
    mantissas, shifts = [], []
    for digit in range(1 << _DIGIT):
        value, shift = context.exp(-Decimal(step) * digit), 0
        while value <= Decimal("0.5") and shift < 64:
            value, shift = value * 2, shift + 1
        mantissas.append(min(int(value * (1 << 32)), (1 << 32) - 1))
        shifts.append(shift)
    return _Digits(np.array(mantissas, np.uint32), np.array(shifts, np.int32))


def _times(
    mantissa: UInt32[Array, " n"],
    shift: Int32[Array, " n"],
    factor: UInt32[Array, " n"],
    more: Int32[Array, " n"] | int,
) -> tuple[UInt32[Array, " n"], Int32[Array, " n"]]:
    product = high_product(mantissa, factor)
    small = product < jnp.uint32(_HALF)
    return jnp.where(small, product << 1, product), shift + more + small


def _weights(grid: FixedPointGrid, below: Fixed, spare: int) -> Word64:
    """e^-x in units of 2^(spare - 64), x ≥ 0 the distance below the best candidate."""
    rest = max(grid.low_bits - _DIGIT, 0)
    digits = [
        (below.low >> rest, grid.unit * (1 << rest)),
        (below.high & 255, grid.cell),
        (below.high >> 8 & 255, grid.cell * 256),
        (below.high >> 16 & 255, grid.cell * 65_536),
    ]
    nats = (below.low & ((1 << rest) - 1)).astype(jnp.float32) * jnp.float32(grid.unit)
    # Below 2^-16 nats, 1 - x is e^-x to 2^-33.
    mantissa = jnp.uint32(0xFFFFFFFF) - (nats * 2.0**32).astype(jnp.uint32)
    shift = jnp.full(mantissa.shape, spare, jnp.int32)
    for digit, step in digits:
        table = _digits(step)
        factor, more = jnp.asarray(table.mantissa)[digit], jnp.asarray(table.shift)[digit]
        mantissa, shift = _times(mantissa, shift, factor, more)
    shift = jnp.where(below.high >= _MOST_CELLS, 64, jnp.minimum(shift, 64))
    return _shifted(mantissa, shift)


def _shifted(mantissa: UInt32[Array, " n"], shift: Int32[Array, " n"]) -> Word64:
    """``mantissa · 2^32`` shifted right by 0 to 64 places."""
    by = shift.astype(jnp.uint32)

    def right(places: UInt32[Array, " n"]) -> UInt32[Array, " n"]:
        return jnp.where(places < 32, mantissa >> jnp.minimum(places, 31), 0)

    left = jnp.where(by == 0, 0, mantissa << jnp.minimum(32 - by, 31))
    return Word64(right(by), jnp.where(by < 32, left, right(by - 32)))


def pick(
    key: Key[Array, ""],
    grid: FixedPointGrid,
    totals: Fixed,
    public: Float[Array, " candidates"],
) -> Int32[Array, ""]:
    """The number of a candidate, drawn with probability ∝ exp(total + public).

    :param key: one typed key, used up.
    :param grid: units of the totals.
    :param totals: exact sums over the records, one for each candidate, up to a common shift.
    :param public: log prior densities; −∞ or NaN is never picked, unless all are.

    **Privacy.** With a record's range over the candidates at most η nats, the exponential mechanism
    of bounded range η + ``PICK_MARGIN``, up to ``PICK_TV`` in total variation.
    """
    shared = grid.public(public - jnp.max(jnp.where(jnp.isnan(public), -jnp.inf, public)))
    low = totals.low + shared.low
    scores = Fixed(totals.high + shared.high + (low >> grid.low_bits), low & grid.mask)
    possible = public > -jnp.inf
    best = jnp.max(jnp.where(possible, scores.high, jnp.iinfo(jnp.int32).min))
    top = jnp.max(jnp.where(possible & (scores.high == best), scores.low, 0))
    low = top - scores.low
    below = Fixed(best - scores.high + (low >> grid.low_bits), low & grid.mask)
    below = Fixed(jnp.where(possible, below.high, _MOST_CELLS), below.low)
    count = public.shape[0]
    weights = _weights(grid, below, (count - 1).bit_length())
    sums = [Word64(weights.high[0], weights.low[0])]
    for place in range(1, count):
        sums.append(add(sums[-1], Word64(weights.high[place], weights.low[place])))
    first, second = word_pairs(key, 1)
    threshold = scaled(Word64(first[0], second[0]), sums[-1])
    passed = [
        (each.high < threshold.high) | ((each.high == threshold.high) & (each.low <= threshold.low))
        for each in sums
    ]
    return jnp.minimum(jnp.sum(jnp.stack(passed).astype(jnp.int32)), count - 1)
