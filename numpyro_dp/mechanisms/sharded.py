"""Batches of records that are divided among devices: each looks at the rows that it holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax import random
from jaxtyping import Array, Bool, Int32, Key

from numpyro_dp._shards import Shards, rows_held
from numpyro_dp._sources import Storage, StoredRows
from numpyro_dp.mechanisms.random import word_pairs
from numpyro_dp.mechanisms.subsample import PoissonSampler

Batch = tuple[Int32[Array, " places"], Bool[Array, " places"]]

# Expected batches, and numbers of rows, past which one draw for all devices is dear or impossible.
_OWN_DRAWS, _OWN_ROWS = 1e5, (1 << 30) - 2


def sampler_of(
    num_records: int,
    sampling_rate: float,
    overflow: float,
    max_records: int | None,
    shards: Shards | None,
) -> PoissonSampler:
    """How batches are drawn: for all rows, or by each device for its own where they are many.

    :param num_records: rows to draw from.
    :param sampling_rate: chance of each row, in (0, 1).
    :param overflow: allowed chance that a batch outgrows its rooms.
    :param max_records: public bound that sizes the room where ``num_records`` is private.
    :param shards: devices among which the rows are divided; ``None`` for one.
    :raises ValueError: the rows are more than one draw can number, or the rate is too small.

    **Privacy.** Independent coins on disjoint rows are coins on all of them; the total variation of
    one release is that of the sampler, :func:`draws` times.
    """
    if shards is None:
        return PoissonSampler.create(num_records, sampling_rate, overflow, max_records)
    parts = len(shards)
    if num_records > _OWN_ROWS or sampling_rate * num_records > _OWN_DRAWS:
        return PoissonSampler.create(shards.rows(num_records), sampling_rate, overflow / parts)
    return PoissonSampler.create(num_records, sampling_rate, overflow, parts=parts)


def draws(sampler: PoissonSampler | None, num_records: int, shards: Shards | None) -> int:
    """How many draws of :func:`sampler_of` make one batch."""
    if sampler is None or shards is None or sampler.num_records == num_records:
        return 1
    return len(shards)


def sum_over_devices(
    shards: Shards,
    num_records: int,
    part: Callable[[list[Array], Batch | None, Array, Array], Array],
    records: list[Array],
    sampler: PoissonSampler | None,
    batch: Batch | None,
    own_key: Key[Array, ""] | None,
) -> Array:
    """The sum of what each device makes of its share of a batch.

    :param part: from the leaves of a shard, its share (row numbers counted from its first row, and
        mask; ``None`` for all rows), its first row and how many of its rows are records.
    :param records: leaves with one row for each record, and padding.
    :param sampler: how batches are drawn; ``None`` for all records.
    :param batch: a draw for all rows; ``None`` where there is none.
    :param own_key: from which each device has the words of its own draw; ``None`` where the draw is
        for all.
    """

    def on_one(leaves: list[Array], number: Int32[Array, ""]) -> Array:
        first, held = rows_held(shards, number, num_records)
        share: Batch | None = None
        if sampler is not None and own_key is not None:
            words = word_pairs(random.fold_in(own_key, number), sampler.words)
            share = sampler.draw(*words)
        elif sampler is not None and batch is not None:
            share = sampler.part(*batch, first, held)
        return part(leaves, share, first, held)

    return shards.sum(on_one, records)


def places(sampler: PoissonSampler | None, num_records: int, shards: Shards | None) -> int:
    """Places of what one device looks at, padding included."""
    if sampler is not None:
        return sampler.part_room or sampler.room
    return num_records if shards is None else shards.rows(num_records)


def require_rows(
    records: Any, num_records: int, shards: Shards | None, storage: Storage | None
) -> None:
    """Refuse records that are not those that a sum was made for.

    :raises ValueError: naming the shapes, or the store that the sum's event does not count with.
    """
    if storage is None and any(isinstance(leaf, StoredRows) for leaf in records):
        raise ValueError(
            "rows would be fetched from a store that may tell who is in a batch, and the sum was "
            "made for records at hand: give storage="
        )
    held = num_records if shards is None else len(shards) * shards.rows(num_records)
    if any(leaf.shape[:1] != (held,) for leaf in records):
        raise ValueError(
            f"every record array must have leading axis num_records={held}, got shapes "
            f"{[leaf.shape for leaf in records]}: pass the arrays the sum was made for"
        )
