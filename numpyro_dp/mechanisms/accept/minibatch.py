"""TunaMH mini-batches: an exact Metropolis step from a Poisson number of records.

Draws with replacement are thinned by each record's own term; the kept counts of all records are
then independent Poisson variables, and the sum of their weights obeys detailed balance with any
rule for which a(l) = e^l a(−l). Everything that decides is an integer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32, Key, UInt32
from scipy.stats import poisson

from numpyro_dp._shards import Shards, rows_held
from numpyro_dp.mechanisms import alias
from numpyro_dp.mechanisms.accept.fixed_point import Fixed, FixedPointGrid
from numpyro_dp.mechanisms.accept.log_ratio import Limit, LogRatio, RecordTerm, as_integers
from numpyro_dp.mechanisms.accept.once import once
from numpyro_dp.mechanisms.blocks import block
from numpyro_dp.mechanisms.random import word_pairs
from numpyro_dp.mechanisms.subsample import nearest_weights
from numpyro_dp.mechanisms.uint64 import Word64, scaled

_BITS = 192
_THINNING_BITS = 20
_MOST_MEAN = 1e6
_MOST_RECORDS = 1 << 30
# λ ≥ N·b: fewer records than twice N·b would save little and cost much.
_LARGEST_SHARE = 0.5
_FLOAT_MARGIN = 1e-5


class _Counts(NamedTuple):
    """A table of the number of draws, the least of them, and its total variation."""

    table: alias.AliasTable
    least: int
    tv: float


@lru_cache(maxsize=16)
def _counts(mean: float, room: int, overflow: float) -> _Counts:
    """Table of min(Poisson(mean), room) from integers only."""
    low = int(poisson.ppf(overflow, mean)) if mean > 50 else 0
    while low > 0 and poisson.cdf(low - 1, mean) * (1 + 1e-6) > overflow:
        low -= 1
    columns = 1 << max(1, (room - low).bit_length())
    rate, mode = Fraction(mean), min(max(int(mean), low), room)
    law = [0] * columns
    weight = law[mode - low] = 1 << _BITS
    for count in range(mode, room):
        weight = weight * rate.numerator // (rate.denominator * (count + 1))
        law[count + 1 - low] = weight
    weight = 1 << _BITS
    for count in range(mode, low, -1):
        weight = weight * rate.denominator * count // rate.numerator
        law[count - 1 - low] = weight
    weights, tv = nearest_weights(law)
    return _Counts(alias.build(weights), low, tv + 2 * overflow)


@dataclass(frozen=True)
class PoissonBatch(LogRatio):
    """Poisson draws with replacement, thinned by each record's term.

    Made by :meth:`create`.

    :param num_records: N, public.
    :param mean: expected number of draws, λ + N·b; a constant, so λ takes what b leaves.
    :param room: places of the padded batch.
    :param overflow: bound on the chance that a batch does not fit.
    :param grid: units of the estimated log ratio.
    :param most: largest weight of a kept draw, in units of ``grid``.
    :param shards: devices among which the records are divided; ``None`` for one.

    **Privacy.** With records' terms within b, the kept count of a record with term u is Poisson(λ/N
    + (b − u)/2), independent of all others. Draws, their number and the kept set never leave; the
    padded batch has one size whatever is drawn. One batch is within ``tv`` in total variation of
    this law.

    **References.** Zhang, Cooper and De Sa, *Asymptotically Optimal Exact Minibatch
    Metropolis-Hastings* (2020); *Events* (docs/reference/events.md), mini-batches.
    """

    num_records: int
    mean: float
    room: int
    overflow: float
    grid: FixedPointGrid
    most: int
    shards: Shards | None = None

    @classmethod
    def create(
        cls,
        num_records: int,
        mean: float,
        overflow: float,
        grid: FixedPointGrid,
        most: int,
        shards: Shards | None = None,
    ) -> PoissonBatch:
        """A sampler whose room overflows with chance at most ``overflow`` a draw."""
        if num_records > _MOST_RECORDS or mean > _MOST_MEAN:
            raise ValueError(
                f"batch_size={mean:g} of {num_records} records is past what one exact table "
                f"draws ({_MOST_MEAN:g} of 2^30): use smaller batches, or full ones"
            )
        room = int(poisson.isf(overflow, mean))
        while poisson.sf(room, mean) * (1 + 1e-6) > overflow:
            room += 1
        return cls(num_records, mean, max(room, 1), overflow, grid, most, shards)

    @property
    def unit(self) -> float:
        """Nats of one unit of a record's term, in which the mean draws of a record are 2^20."""
        return self.mean / self.num_records / (1 << _THINNING_BITS)

    def limit(self, bound: float) -> int:
        """The largest integer of a record whose term is at most ``bound`` nats.

        :raises ValueError: when the batch is too small for the bound.
        """
        moved = self.num_records * bound
        if moved > _LARGEST_SHARE * self.mean:
            raise ValueError(
                f"batch_size={self.mean:g} is below twice the number of records times the record "
                f"bound: give at least {2 * moved:.4g}, better {5 * moved:.4g}, or shorten the "
                "moves"
            )
        limit = math.floor(bound / self.unit)
        if limit < 1 << 6:
            raise ValueError(
                f"a record bound of {bound:g} nats is too small for batch_size={self.mean:g}: use "
                f"smaller batches, {10 * moved:.4g} for instance"
            )
        return limit

    @property
    def largest(self) -> int:
        """Bound on every :meth:`limit`."""
        return int(_LARGEST_SHARE * (1 << _THINNING_BITS))

    @property
    def tv(self) -> float:
        """Total variation of one batch to the ideal one.

        A record's rate is right up to 2^-64 of a draw: of a Poisson number of draws, every row's
        count is an independent Poisson variable, whatever the rows' chances.
        """
        return _counts(self.mean, self.room, self.overflow).tv + self.mean * 2.0**-64

    def total(
        self, key: Key[Array, ""], term: RecordTerm, records: Sequence[Array], limit: Limit
    ) -> Fixed:
        """The estimated log ratio of one fresh batch; ``limit`` is in :attr:`unit`."""
        first, second = word_pairs(key, 2 * self.room + 1)
        table, least, _ = _counts(self.mean, self.room, self.overflow)
        drawn = alias.draw(table, first[-1:], second[-1:])[0] + least
        # Found anew at every place that is read, they would keep the reads from running ahead.
        rows = once(_rows(self.num_records, first[: self.room], second[: self.room]), first[0])
        mask = jnp.arange(self.room, dtype=jnp.int32) < drawn

        def weights(leaves: list[Array], rows: Array, mask: Array) -> Int32[Array, " groups"]:
            drawn, _, mask = block(leaves, (rows, mask), 0, self.room, self.num_records)
            integers = as_integers(jax.vmap(term)(drawn), self.unit, limit)
            return self._kept(integers, mask, first[self.room : -1], limit)

        shards = self.shards
        if shards is None:
            return self.grid.total(weights(list(records), rows, mask))

        def part(leaves: list[Array], number: Int32[Array, ""]) -> Int32[Array, " groups"]:
            start, held = rows_held(shards, number, self.num_records)
            own = (rows >= start) & (rows - start < held)
            return weights(leaves, jnp.where(own, rows - start, 0), mask & own)

        return self.grid.total(shards.sum(part, records))

    def _kept(
        self,
        integers: Int32[Array, " room"],
        mask: Bool[Array, " room"],
        words: UInt32[Array, " room"],
        limit: Limit,
    ) -> Int32[Array, " groups"]:
        """Weights of the kept draws, in units of the grid, summed in groups that cannot wrap."""
        places = 2 << _THINNING_BITS
        # Thinning and weighing must see the same rounding.
        integers = once(integers, words[0])
        coin = (words >> (31 - _THINNING_BITS)).astype(jnp.int32)
        kept = mask & (coin < places - limit - integers)
        ratio = integers.astype(jnp.float32) / (places - jnp.asarray(limit)).astype(jnp.float32)
        weights = as_integers(2 * jnp.arctanh(ratio), self.grid.unit, self.most)
        group = max(1, min(weights.shape[0], ((1 << 31) - 1) // self.most))
        padded = jnp.pad(jnp.where(kept, weights, 0), (0, -weights.shape[0] % group))
        return jnp.sum(padded.reshape(-1, group), axis=1)


def weight_bound(share: float) -> float:
    """Largest weight of a kept draw, in nats, where N·b is ``share`` of the mean batch."""
    return -math.log1p(-share) * (1 + _FLOAT_MARGIN)


def _rows(
    num_records: int, high: UInt32[Array, " n"], low: UInt32[Array, " n"]
) -> Int32[Array, " n"]:
    """Uniform rows, each of chance 1/N up to 2^-64."""
    total = Word64(jnp.uint32(0), jnp.uint32(num_records))
    return scaled(Word64(high, low), total).low.astype(jnp.int32)
