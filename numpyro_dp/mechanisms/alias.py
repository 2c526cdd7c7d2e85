"""Exact draws from a finite law with 63-bit integer weights (Walker's alias method).

Two uint32 words make one draw: the first holds a free sign bit, the column index and the low
bits of a fraction, the second the fraction's high 32 bits. The stored words realise the integer
weights without any rounding, so the only error of a table is that of its weights; with 32-bit
thresholds it would be 2^-33 a draw, which looks perfect in every test and costs δ.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int32, UInt32

TOTAL_BITS = 63
_INDEX_AND_LOW_BITS = 31


class AliasTable(NamedTuple):
    """The stored words of a table of ``2**bits`` columns.

    ``limit[i]`` holds the high 32 bits of column i's threshold, ``packed[i]`` the index of its
    other value and the threshold's low ``31 - bits`` bits.
    """

    bits: int
    limit: np.ndarray
    packed: np.ndarray


def build(weights: list[int]) -> AliasTable:
    """A table that draws i with probability exactly ``weights[i] / 2**63``.

    :param weights: non-negative Python integers that sum to ``2**63``; a power of two of them.
    :raises ValueError: when the weights are not such a list.
    """
    columns = len(weights)
    bits = columns.bit_length() - 1
    if columns != 1 << bits or min(weights) < 0 or sum(weights) != 1 << TOTAL_BITS:
        raise ValueError("an alias table needs 2**b non-negative weights that sum to 2**63")
    low_bits = _INDEX_AND_LOW_BITS - bits
    keep, other = _columns(weights, 1 << (TOTAL_BITS - bits))
    low_mask = (1 << low_bits) - 1
    limit = np.array([k >> low_bits for k in keep], np.uint32)
    packed = np.array(
        [o << low_bits | k & low_mask for k, o in zip(keep, other, strict=True)], np.uint32
    )
    # Tables are shared by every caller through a cache.
    limit.flags.writeable = packed.flags.writeable = False
    return AliasTable(bits, limit, packed)


def _columns(weights: list[int], capacity: int) -> tuple[list[int], list[int]]:
    """Thresholds and other values of the columns, every column filled to ``capacity``."""
    left = list(weights)
    # A full column keeps every fraction; capacity itself would not fit in its words.
    keep = [capacity - 1] * len(left)
    other = list(range(len(left)))
    small = [i for i, weight in enumerate(left) if weight < capacity]
    large = [i for i, weight in enumerate(left) if weight > capacity]
    while small:
        poor, rich = small.pop(), large[-1]
        keep[poor], other[poor] = left[poor], rich
        left[rich] -= capacity - left[poor]
        if left[rich] <= capacity:
            large.pop()
            if left[rich] < capacity:
                small.append(rich)
    return keep, other


def draw(
    table: AliasTable, first: UInt32[Array, " n"], second: UInt32[Array, " n"]
) -> Int32[Array, " n"]:
    """One value for each pair of words; the top bit of ``first`` is left to the caller.

    No rejection: the run time does not depend on what is drawn, cache effects apart.
    """
    low_bits = _INDEX_AND_LOW_BITS - table.bits
    low_mask = jnp.uint32((1 << low_bits) - 1)
    index = (first >> low_bits) & jnp.uint32((1 << table.bits) - 1)
    # Unsigned and in bounds by its bits: JAX's fix-up of negative indices is skipped.
    limit = jnp.asarray(table.limit).at[index].get(mode="promise_in_bounds")
    packed = jnp.asarray(table.packed).at[index].get(mode="promise_in_bounds")
    below = (second < limit) | ((second == limit) & ((first & low_mask) < (packed & low_mask)))
    return jnp.where(below, index, packed >> low_bits).astype(jnp.int32)
