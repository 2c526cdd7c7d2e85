"""The records of one block of a batch, fetched by row number or in order."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Int32

from numpyro_dp._sources import StoredRows, rows_of

# Bytes: of a line of cache, and of data past which rows are mostly not in it.
_CACHE_LINE = 64
_OUT_OF_CACHE = 1 << 24
# The rest of a longer row is fetched ahead by the processor itself.
_LINES = 4


def block(
    records: list[Array],
    batch: tuple[Int32[Array, " places"], Bool[Array, " places"]] | None,
    number: int | Int32[Array, ""],
    size: int,
    num_records: int,
) -> tuple[list[Array], Int32[Array, " rows"], Bool[Array, " rows"]]:
    """Records of block ``number`` (each with leading axis 1), their row numbers and mask."""
    if batch is not None:
        rows = lax.dynamic_slice_in_dim(batch[0], number * size, size)
        mask = lax.dynamic_slice_in_dim(batch[1], number * size, size)
        rows = _fetched(records, rows)
        leaves = rows_of(records, rows, lambda leaf: leaf[rows])
        return [leaf[:, None] for leaf in leaves], rows, mask
    # The last block reaches back over rows already summed, which are masked: padding would copy
    # the data.
    start = jnp.minimum(number * size, num_records - size)
    rows = start + jnp.arange(size, dtype=jnp.int32)
    leaves = rows_of(records, rows, lambda leaf: lax.dynamic_slice_in_dim(leaf, start, size))
    return [leaf[:, None] for leaf in leaves], rows, rows >= number * size


def _fetched(records: list[Array], rows: Int32[Array, " rows"]) -> Int32[Array, " rows"]:
    """``rows``, unchanged, once a load for each cache line of those rows is under way.

    In data far larger than the cache a gather waits for memory at every row. These loads depend on
    nothing, so the processor has many of them in flight at a time. They end in one number for all
    rows: a number for each would be found row by row inside the gather, and fetch nothing ahead.
    """
    if jax.default_backend() != "cpu":
        # A device that runs many threads waits for none of its rows.
        return rows
    loaded = jnp.zeros((), jnp.uint32)
    for leaf in records:
        if isinstance(leaf, StoredRows) or leaf.nbytes < _OUT_OF_CACHE or leaf.dtype.itemsize != 4:
            continue
        flat = leaf.reshape(leaf.shape[0], -1)
        width = min(flat.shape[1], _LINES * _CACHE_LINE // 4)
        places = np.arange(0, width, _CACHE_LINE // 4, dtype=np.int32)
        if width - 1 - places[-1] >= _CACHE_LINE // 8:
            # A row need not begin with a line: its end likely lies in one more.
            places = np.append(places, np.int32(width - 1))
        loaded |= lax.bitcast_convert_type(flat[rows[:, None], places], jnp.uint32).max()
    # The complement of 31 bits is negative and every row number is not: the maximum is the row,
    # whatever was loaded, and the compiler cannot drop the loads.
    return jnp.maximum(rows, ~(loaded >> 1).astype(jnp.int32))


def blockwise_sum(
    vector: Callable[[list[Array]], Any],
    block_sum: Callable[..., Array],
    records: list[Array],
    batch: tuple[Int32[Array, " room"], Bool[Array, " room"]] | None,
    blocks: int,
    size: int,
    num_records: int,
) -> Array:
    """The sum over a batch, one block after another.

    :param vector: maps the leaves of one record (each with leading axis 1) to what it adds.
    :param block_sum: maps those of all rows of a block, their row numbers and their mask to a sum.
    :param records: leaves with leading axis ``num_records``.
    :param batch: row numbers and mask of a batch; ``None`` for all records.
    :param blocks: number of blocks.
    :param size: rows of each; together at least as many as the batch has places.
    :param num_records: records in the data.
    """
    if batch is not None and blocks > 1:
        padding = (0, blocks * size - batch[0].shape[0])
        batch = jnp.pad(batch[0], padding), jnp.pad(batch[1], padding)

    def one_block(number: int | Int32[Array, ""]) -> Array:
        leaves, rows, mask = block(records, batch, number, size, num_records)
        return block_sum(jax.vmap(vector)(leaves), rows, mask)

    if blocks == 1:
        return one_block(0)

    def add(total: Array, number: Int32[Array, ""]) -> tuple[Array, None]:
        return total + one_block(number), None

    like = jax.eval_shape(one_block, 0)
    numbers = jnp.arange(blocks, dtype=jnp.int32)
    return lax.scan(add, jnp.zeros(like.shape, like.dtype), numbers)[0]
