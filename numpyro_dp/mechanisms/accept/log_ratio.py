"""The log ratio of all records: each one's term clipped and rounded to an integer, summed exactly.

A record's term is a function of that record alone; one that is not a number contributes zero.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int32, Key

from numpyro_dp._shards import Shards, rows_held
from numpyro_dp.mechanisms.accept.fixed_point import Fixed, FixedPointGrid
from numpyro_dp.mechanisms.blocks import block

# Bound on one record's integer in a step.
Limit = int | Int32[Array, ""]
RecordTerm = Callable[[list[Array]], Float[Array, "..."]]
Values = Float[Array, " records"]
# From one record and its log likelihood here to its term and its log likelihood there.
RecordChange = Callable[
    [list[Array], Float[Array, "..."]], tuple[Float[Array, "..."], Float[Array, "..."]]
]

# Rows of one block: enough to keep vector units busy, few enough to stay in cache.
_MOST_ROWS = 1 << 13
# Bytes of records that are looked at all at once: their copies in blocks would cost a fifth.
_AT_ONCE = 1 << 26
_INT32 = 1 << 31


def as_integers(terms: Float[Array, "..."], unit: float, largest: Limit) -> Int32[Array, "..."]:
    """Terms in units, nearest, cut to ±``largest``; what is not a number becomes zero."""
    units = terms / jnp.asarray(unit, terms.dtype)
    # inf is as little a likelihood as NaN is: such a record has no say.
    whole = jnp.rint(jnp.where(jnp.isfinite(units), units, 0))
    limit = jnp.asarray(largest, jnp.int32)
    safe = jnp.clip(whole, -limit.astype(whole.dtype), limit.astype(whole.dtype))
    # Cut again as integers: whatever the compiler evaluates twice, no record exceeds its bound.
    return jnp.clip(safe.astype(jnp.int32), -limit, limit)


def rows_in_block(
    num_records: int, largest: int, low_bits: int, devices: int = 1
) -> tuple[int, int]:
    """Number of blocks and rows of each, so that no 32-bit sum can wrap.

    :param num_records: rows of each device.
    :raises ValueError: when there are too many records for the grid.
    """
    rows = min(_MOST_ROWS, (_INT32 - 1) // max(largest, 1))
    # Two at least: a loop of one turn is unrolled, and the sum of a block must be formed once.
    blocks = max(2, -(-num_records // max(rows, 1)))
    all_blocks = blocks * devices
    if rows < 1 or all_blocks << low_bits >= _INT32 or all_blocks >= 1 << 19:
        raise ValueError(
            f"{num_records} records are too many for an exact sum of their log ratios: use "
            "mini-batches (batch_size=)"
        )
    return blocks, -(-num_records // blocks)


class LogRatio(ABC):
    """How records enter a decision; frozen, fixed before any data is seen."""

    @property
    @abstractmethod
    def tv(self) -> float:
        """Total variation of one sum to the ideal one."""

    @abstractmethod
    def total(
        self, key: Key[Array, ""], term: RecordTerm, records: Sequence[Array], limit: Limit
    ) -> Fixed:
        """The sum of the records' terms, or an estimate of it.

        :param key: one typed key, used up.
        :param term: from the leaves of one record (leading axis 1) to its term in nats.
        :param records: leaves with one row for each record.
        :param limit: bound on one record's integer in this step.
        """


@dataclass(frozen=True)
class FullBatch(LogRatio):
    """The exact sum over all records of their clipped, rounded terms.

    :param grid: units of the sum.
    :param largest: static bound on every step's limit.
    :param one_by_one: compute records one at a time, so that a record's floats do not depend on its
        place; needed where the number of records is private.
    :param num_records: rows that are records, where others fill up the last device's part.
    :param shards: devices among which the records are divided; ``None`` for one.

    **Privacy.** A record that becomes null changes the sum by at most the step's limit, one that
    changes value by at most twice that, exactly.
    """

    tv: ClassVar[float] = 0.0

    grid: FixedPointGrid
    largest: int
    one_by_one: bool = False
    num_records: int | None = None
    shards: Shards | None = None

    def total(
        self, key: Key[Array, ""], term: RecordTerm, records: Sequence[Array], limit: Limit
    ) -> Fixed:
        return self._sum(self.values(term, records), limit)

    def values(self, value: Callable[[Any], Any], rows: Any) -> Any:
        """What a function of one record gives for each, records last.

        :param value: from one row of each leaf (leading axis 1) to arrays.
        :param rows: leaves with one row for each record.
        """
        if self.shards is None:
            return self._values(value, rows)
        parts = self.shards.parts(lambda leaves, _: self._values(value, leaves), rows)
        return jax.tree.map(_side_by_side, parts)

    def _values(self, value: Callable[[Any], Any], rows: Any) -> Any:
        """The same of rows that lie on one device."""
        leaves = jax.tree.leaves(rows)
        if self.one_by_one:
            found = lax.map(value, jax.tree.map(lambda leaf: leaf[:, None], rows))
            return jax.tree.map(lambda each: jnp.moveaxis(each, 0, -1), found)
        if sum(leaf.nbytes for leaf in leaves) <= _AT_ONCE:
            return _vectorized(value)(rows)
        return _in_blocks(_vectorized(value), rows, leaves[0].shape[0])

    def change(
        self, change: RecordChange, here: Values, records: Sequence[Array], limit: Limit
    ) -> tuple[Fixed, Values]:
        """:meth:`total` of what changes between two positions, of which one was looked at before.

        :param change: from one record and its value here to its term in nats and its value there.
        :param here: :meth:`values` at the first position.
        :param records: leaves with one row for each record.
        :param limit: bound on one record's integer in this step.
        :returns: The sum, and every record's value at the second position.

        **Privacy.** The sum is as :meth:`total`'s, whatever ``here`` holds, as long as each entry
        is about its own record. The values are the records' own and must not leave.
        """

        terms, there = self.values(lambda row: change(row[0], row[1][0]), (list(records), here))
        return self._sum(terms, limit), there

    def _sum(self, terms: Values, limit: Limit) -> Fixed:
        """The exact sum of the terms' integers."""

        def integers(rows: list[Array]) -> Int32[Array, " rows"]:
            return as_integers(rows[0][:, 0], self.grid.unit, limit)

        return self.grid.total(_block_sums(self, integers, [terms]))

    def candidate_totals(self, term: RecordTerm, records: Sequence[Array], limit: Limit) -> Fixed:
        """Exact sums for several candidates at once, each record's range over them bounded.

        :param term: from the leaves of one record to its log likelihoods at the candidates, in
            nats.
        :param records: leaves with one row for each record.
        :param limit: bound on the range (largest minus least) of one record's integers.
        :returns: One number for each candidate, up to a common shift.

        **Privacy.** A record's integers lie in [−limit, 0], so its range is at most ``limit``.
        """

        def integers(rows: list[Array]) -> Int32[Array, "candidates rows"]:
            # Every candidate needs the best one: without a barrier, each computes all of them.
            terms = lax.optimization_barrier(self._values(term, [leaf[:, 0] for leaf in rows]))
            usable = jnp.all(jnp.isfinite(terms), axis=0)
            terms = jnp.where(usable, terms, 0)
            highest = jnp.max(terms, axis=0)
            return jnp.minimum(as_integers(terms - highest, self.grid.unit, limit), 0)

        return self.grid.total(_block_sums(self, integers, list(records)))


@dataclass(frozen=True)
class UnclippedBatch(LogRatio):
    """The float sum of all records' terms as they are: no bound, hence no privacy."""

    tv: ClassVar[float] = 0.0

    grid: FixedPointGrid
    num_records: int | None = None

    def total(
        self, key: Key[Array, ""], term: RecordTerm, records: Sequence[Array], limit: Limit
    ) -> Fixed:
        terms = jax.vmap(term)([leaf[:, None] for leaf in records])
        return self.grid.public(jnp.sum(terms[: self.num_records]))


def _vectorized(value: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function of one record for all rows, which come last: vector units expect them so."""

    def values(rows: Any) -> Any:
        return jax.vmap(value, out_axes=-1)(jax.tree.map(lambda leaf: leaf[:, None], rows))

    return values


def _in_blocks(values: Callable[[Any], Any], rows: Any, num_records: int) -> Any:
    """``values`` of a block of rows at a time, whose intermediate results stay in cache."""
    size = min(_MOST_ROWS, num_records)

    def some(start: Int32[Array, ""] | int) -> Any:
        return values(jax.tree.map(lambda leaf: lax.dynamic_slice_in_dim(leaf, start, size), rows))

    def one_block(number: Int32[Array, ""], found: Any) -> Any:
        # The last block reaches back over rows already seen.
        start = jnp.minimum(number * size, num_records - size)
        return jax.tree.map(
            lambda all_, block: lax.dynamic_update_slice_in_dim(all_, block, start, -1),
            found,
            some(start),
        )

    shapes = jax.eval_shape(some, 0)
    empty = jax.tree.map(
        lambda like: jnp.zeros((*like.shape[:-1], num_records), like.dtype), shapes
    )
    return lax.fori_loop(0, -(-num_records // size), one_block, empty)


def _block_sums(
    batch: FullBatch,
    integers: Callable[[list[Array]], Int32[Array, "... rows"]],
    records: Sequence[Array],
) -> Int32[Array, "blocks ..."]:
    """Sums of blocks of integers, of which none can wrap."""
    shards, num_records = batch.shards, batch.num_records or records[0].shape[0]
    devices = 1 if shards is None else len(shards)
    held_at_most = -(-num_records // devices)
    blocks, size = rows_in_block(held_at_most, batch.largest, batch.grid.low_bits, devices)

    def sums(leaves: list[Array], held: int | Int32[Array, ""]) -> Int32[Array, "blocks ..."]:
        def one_block(_: None, number: Int32[Array, ""]) -> tuple[None, Int32[Array, "..."]]:
            rows, numbers, mask = block(leaves, None, number, size, held_at_most)
            # One use of the integers: split into limbs here, each limb might be rounded on its own.
            seen = mask & (numbers < held)
            return None, jnp.sum(jnp.where(seen, integers(rows), 0), axis=-1)

        return lax.scan(one_block, None, jnp.arange(blocks, dtype=jnp.int32))[1]

    if shards is None:
        return sums(list(records), held_at_most)

    def part(leaves: list[Array], number: Int32[Array, ""]) -> Int32[Array, "blocks ..."]:
        return sums(leaves, rows_held(shards, number, num_records)[1])

    parts = shards.parts(part, list(records))
    return parts.reshape(-1, *parts.shape[2:])


def _side_by_side(parts: Float[Array, "devices ... rows"]) -> Float[Array, "... records"]:
    """What each device has of its rows as one array, records last."""
    last = jnp.moveaxis(parts, 0, -2)
    return last.reshape(*last.shape[:-2], -1)
