"""Clipped integer contributions of records and their exact sum.

A record's contribution is an integer vector whose norm is bounded by an exact check on the very
integers that are added, so rounding, float factors and summation order need no argument.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float32, Int32, UInt32

from numpyro_dp.mechanisms.lattice import EXACT_FLOAT32, Lattice, RecordLimit

# 2^32 over the golden ratio: consecutive rows get well-spread offsets.
_GOLDEN = 2_654_435_769
_UNDERFLOW = 1e-30


def integer_sum(
    lattice: Lattice,
    vectors: Float32[Array, "rows dim"],
    rows: Int32[Array, " rows"],
    mask: Bool[Array, " rows"],
    dither_words: UInt32[Array, " words"],
    opaque: UInt32[Array, ""],
    bound: RecordLimit | None = None,
) -> Int32[Array, " dim"]:
    """Sum of the clipped, rounded vectors of a block of records, in lattice units.

    :param lattice: the plan.
    :param vectors: one record's vector a row.
    :param rows: row *numbers* in the data; the dither must not depend on the place in the batch.
    :param mask: False for padding.
    :param dither_words: one random word a coordinate when ``lattice.dither``, else ignored.
    :param opaque: any word that the compiler cannot know; the result does not depend on it.
    :param bound: what limits a record at this step of a schedule, at most what ``lattice`` allows;
        by default the lattice's own.
    :returns: int32 sums, exact; a masked, non-finite or overflowing record adds exactly zero.

    **Privacy.** Every row's contribution is a function of that record and its row number alone and
    has integer norm at most ``sqrt(lattice.squared_bound)``, checked on the integers that are
    added.

    :raises ValueError: for more than ``lattice.exact_rows`` rows, which float32 may not add
        exactly.
    """
    if vectors.shape[0] > lattice.exact_rows:
        raise ValueError(
            f"{vectors.shape[0]} rows are more than float32 adds exactly on this lattice "
            f"({lattice.exact_rows}): sum them in blocks"
        )
    each = contributions(lattice, vectors, rows, mask, dither_words, opaque, bound)
    good = each.good.astype(jnp.float32)
    return jnp.matmul(good, each.integers, precision=lax.Precision.HIGHEST).astype(jnp.int32)


class Contributions(NamedTuple):
    """Records' vectors as integers, and which of them may be added.

    :param integers: in lattice units; a buffer, not an expression that may be evaluated twice.
    :param good: False for a record that is masked, not finite or over its bound.
    """

    integers: Float32[Array, "rows dim"]
    good: Bool[Array, " rows"]


def contributions(
    lattice: Lattice,
    vectors: Float32[Array, "rows dim"],
    rows: Int32[Array, " rows"],
    mask: Bool[Array, " rows"],
    dither_words: UInt32[Array, "*rows words"],
    opaque: UInt32[Array, ""],
    bound: RecordLimit | None = None,
) -> Contributions:
    """The clipped, rounded vectors of a block of records, each checked.

    :param lattice, vectors, rows, mask, opaque, bound: as for :func:`integer_sum`.
    :param dither_words: one random word a coordinate when ``lattice.dither``, else ignored; a row
        for each record where these hold different coordinates.

    **Privacy.** Every row is a function of that record and its row number alone; where it is good,
    its integer norm is at most ``sqrt(lattice.squared_bound)``. A zero stays zero, dither or not.
    """
    bound = lattice.bound if bound is None else bound
    squared = jnp.sum(vectors * vectors, axis=1)
    usable = jnp.isfinite(squared) & mask
    per_unit = jnp.asarray(1 / bound.scale, jnp.float32)
    shrink = jnp.asarray(bound.cap, jnp.float32) * lax.rsqrt(jnp.maximum(squared, _UNDERFLOW))
    factor = jnp.minimum(per_unit, shrink)

    def rounded(_: Array, vectors: Float32[Array, "rows dim"]) -> Float32[Array, "rows dim"]:
        # The selection comes before rounding: 0 * NaN is NaN, and NaN has no integer.
        shrunk = jnp.where(usable[:, None], vectors * factor[:, None], 0)
        if lattice.dither:
            whole = jnp.floor(shrunk + _offsets(rows, dither_words))
        else:
            whole = jnp.rint(shrunk)
        # No entry may be inf or NaN, whatever the compiler evaluates twice: 0 * inf would be
        # everyone's NaN in the product that adds them.
        return jnp.where(jnp.abs(whole) <= lattice.radius + 1, whole, 0)

    # The integers that are checked must be the integers that are added. XLA would fuse the
    # rounding into both uses and evaluate it twice, perhaps a unit apart; it cannot do so with the
    # result of a loop, nor unroll a loop whose trip count (always 1) it does not know.
    once = jnp.minimum(opaque | 1, 1).astype(jnp.int32)
    integers = lax.fori_loop(0, once, rounded, vectors)
    return Contributions(integers, usable & _within(lattice.squared_bound, bound.squared, integers))


def _offsets(
    rows: Int32[Array, " rows"], words: UInt32[Array, "*rows dim"]
) -> Float32[Array, "rows dim"]:
    """Offsets in [0, 1), uniform in every place and evenly spread over the rows."""
    mixed = (rows.astype(jnp.uint32) * jnp.uint32(_GOLDEN))[:, None] + words
    return (mixed >> 8).astype(jnp.float32) * jnp.float32(2.0**-24)


def _within(
    largest: int, bound: int | UInt32[Array, ""], integers: Float32[Array, "rows dim"]
) -> Bool[Array, " rows"]:
    """Whether each row's squared norm is at most ``bound`` ≤ ``largest``, without rounding."""
    squares = jnp.sum(integers * integers, axis=1)
    if largest < EXACT_FLOAT32:
        # Below 2^24 float32 sums of squares are exact in any order, and they only grow.
        return squares <= jnp.asarray(bound, jnp.float32)
    # Far enough from 2^32 for the float sum to vouch that the exact one did not wrap.
    words = integers.astype(jnp.int32).astype(jnp.uint32)
    exact = jnp.sum(words * words, axis=1, dtype=jnp.uint32)
    return (squares <= 2.0**31) & (exact <= jnp.asarray(bound, jnp.uint32))
