"""A sum over the records of a batch, by blocks of rows when it is too large for one."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int32

from numpyro_dp.mechanisms.blocks import block

__all__ = ["blockwise_sum"]


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

    Args:
        vector: maps the leaves of one record (each with leading axis 1) to what it adds.
        block_sum: maps those of all rows of a block, their row numbers and their mask to a sum.
        records: leaves with leading axis ``num_records``.
        batch: row numbers and mask of a batch; ``None`` for all records.
        blocks: number of blocks.
        size: rows of each; together at least as many as the batch has places.
        num_records: records in the data.
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
