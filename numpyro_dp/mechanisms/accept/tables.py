"""Exact noise for accept decisions: logistic and exponential draws on a fine grid of integers.

An accept rule compares a log ratio with a random threshold. Drawn as an integer from an exact
table, the threshold's law is known to the last bit, whatever the accuracy of a machine's ``exp``
or the number of values of its uniforms; the float comparison it replaces has a smallest chance of
rejection, below which a record decides alone.
"""

from __future__ import annotations

from decimal import Context, Decimal
from functools import lru_cache

import jax.numpy as jnp
from jaxtyping import Array, Int32, Key

from numpyro_dp.mechanisms import alias
from numpyro_dp.mechanisms.accept.fixed_point import Fixed, FixedPointGrid
from numpyro_dp.mechanisms.random import word_pairs
from numpyro_dp.mechanisms.subsample import nearest_weights

_CELLS = 1 << 16
_BITS = 192
# The weights are nearest to their law, half a unit of 2^-63 off each; what lies past the last cell
# (63 nats) is far less.
TABLE_TV = 2.0**-46


@lru_cache(maxsize=16)
def threshold_table(cell: float, law: str) -> alias.AliasTable:
    """The table of the cell in which a magnitude lies.

    :param cell: width of a cell in nats, about 2^-10 to 2^-9; its exact value as a float64 is used.
    :param law: ``"logistic"`` for |L|, L standard logistic, or ``"exponential"``.

    **Privacy.** Total variation to the true law of cells at most ``TABLE_TV`` a draw.
    """

    def past(power: int) -> int:
        return power if law == "exponential" else (2 * power << _BITS) // ((1 << _BITS) + power)

    ratio = int(Context(prec=80).exp(-Decimal(cell)) * (1 << _BITS))
    power = left = 1 << _BITS
    chances = []
    for _ in range(_CELLS - 1):
        power = power * ratio >> _BITS
        following = past(power)
        chances.append(left - following)
        left = following
    weights, tv = nearest_weights([*chances, left])
    if tv + past(power) / (1 << _BITS) > TABLE_TV:
        raise ValueError(f"cells of {cell:g} nats do not reach far enough: make them wider")
    return alias.build(weights)


def _magnitude(
    grid: FixedPointGrid, key: Key[Array, ""], law: str
) -> tuple[Fixed, Int32[Array, ""]]:
    """A draw, floored to the grid, and all ones or all zeros by a free fair bit."""
    first, second = word_pairs(key, 2)
    high = alias.draw(threshold_table(grid.cell, law), first[:1], second[:1])[0]
    # Within a cell the place is uniform: the law's distribution function is interpolated linearly
    # between exact values.
    low = ((first[1] >> 1) >> (31 - grid.low_bits)).astype(jnp.int32)
    return Fixed(high, low), -(first[0] >> 31).astype(jnp.int32)


def exponential(grid: FixedPointGrid, key: Key[Array, ""]) -> Fixed:
    """``floor(E)`` on the grid, E exponential with mean one nat, as −log of a uniform is."""
    return _magnitude(grid, key, "exponential")[0]


def logistic(grid: FixedPointGrid, key: Key[Array, ""]) -> Fixed:
    """``floor(L)`` on the grid, L standard logistic.

    **Privacy.** With w the width of a cell, the log odds of ``x + L ≥ 0`` change by at most e^w for
    each nat of x, whatever x: within a cell the density is constant and no more than e^w times F(1
    − F) anywhere in it.
    """
    drawn, sign = _magnitude(grid, key, "logistic")
    return Fixed(drawn.high ^ sign, drawn.low ^ (sign & grid.mask))
