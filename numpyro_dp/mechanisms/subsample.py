"""Poisson subsampling inside ``jit``: every record joins a batch by its own independent coin.

The gaps between chosen rows are geometric; each padded place draws one gap from an exact integer
table, so a batch costs O(batch) however many records there are.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int32, UInt32
from scipy.stats import binom

from numpyro_dp.mechanisms import alias

_BITS = 192
_TABLE_BITS = 14
_SKIP_ODDS = 9
# Of the chance that a batch does not fit, what is added for rooms of single devices: so little
# that it shows in no printed figure, and costs a room a few places.
_PARTS_SHARE = 2.0**-10
# Two saturated running sums must still add up below 2^31.
_MOST_RECORDS = (1 << 30) - 2
_LEAST_RATE = 2.0**-60


class GapTables(NamedTuple):
    """A gap's digits: one table, or a high digit (geometric) and a low one (truncated geometric).

    ``skip`` is the number of rows passed when the high digit draws its last value, after which the
    gap starts afresh (the geometric law has no memory). ``skip_probability`` is the chance of it,
    ``tv`` the total variation of one gap to its ideal law.
    """

    high: alias.AliasTable
    low: alias.AliasTable | None
    skip: int
    skip_probability: float
    tv: float


def _geometric(ratio: int, columns: int) -> list[int]:
    """``ratio^g (1 - ratio)`` for g < columns - 1, then what is left, in 192-bit fixed point."""
    one = 1 << _BITS
    left, law = one, []
    for _ in range(columns - 1):
        following = left * ratio >> _BITS
        law.append(left - following)
        left = following
    return [*law, left]


def nearest_weights(law: list[int]) -> tuple[list[int], float]:
    """Weights out of 2^63 nearest to a law, and their total variation to it.

    :param law: non-negative integers, the law times their sum.
    """
    total = sum(law)
    weights = [(2 * (p << alias.TOTAL_BITS) + total) // (2 * total) for p in law]
    # The largest weight can bear the correction; the last one may be zero.
    weights[weights.index(max(weights))] += (1 << alias.TOTAL_BITS) - sum(weights)
    off = sum(abs(w * total - (p << alias.TOTAL_BITS)) for w, p in zip(weights, law, strict=True))
    # 2^-120 covers the truncation of the fixed point itself, columns · 2^-192 at worst.
    return weights, float(Fraction(off, 2 * total << alias.TOTAL_BITS)) * (1 + 1e-9) + 2.0**-120


@lru_cache(maxsize=32)
def gap_tables(sampling_rate: float) -> GapTables:
    """Tables of the number of rows passed over before the next chosen one.

    :param sampling_rate: chance of each row, in (0, 1); its exact value as a float64 is used.
    """
    one = 1 << _BITS
    ratio = int((1 - Fraction(sampling_rate)) * one)
    bits = max(2, math.ceil(math.log2(_SKIP_ODDS / sampling_rate)))
    if bits <= _TABLE_BITS:
        law = _geometric(ratio, 1 << bits)
        weights, tv = nearest_weights(law)
        return GapTables(alias.build(weights), None, (1 << bits) - 1, law[-1] / one, tv)
    bits = min(-(-bits // 2), _TABLE_BITS)
    *low_law, rest = _geometric(ratio, (1 << bits) + 1)
    high_law = _geometric(rest, 1 << bits)
    low_weights, low_tv = nearest_weights(low_law)
    high_weights, high_tv = nearest_weights(high_law)
    return GapTables(
        alias.build(high_weights),
        alias.build(low_weights),
        ((1 << bits) - 1) << bits,
        high_law[-1] / one,
        low_tv + high_tv,
    )


def _least_places(trials: int, probability: float, overflow: float) -> int:
    """The least s with P(Binomial(trials, probability) > s) <= overflow."""
    places = max(int(binom.isf(overflow, trials, probability)), 0)
    # The inverse is a float computation: the tail it stands for decides.
    while binom.sf(places, trials, probability) * (1 + 1e-6) > overflow:
        places += 1
    return min(places, trials)


@dataclass(frozen=True)
class PoissonSampler:
    """Poisson draws of rows 0..num_records-1, padded to ``room`` places.

    :param num_records: rows to draw from.
    :param sampling_rate: chance of each row, in (0, 1).
    :param room: places of the padded batch.
    :param overflow: bound on the chance that a batch does not fit; its last rows are then dropped.
    :param parts: consecutive equal parts of the rows that look at their own share of a batch.
    :param part_room: places of such a share; 0 where there are no parts.

    **Privacy.** One draw is within ``tv`` in total variation of independent coins of rate
    ``sampling_rate``, whatever the data; charge it as a ``TotalVariation`` event. What happens on
    overflow is free because its chance is part of ``tv``.
    """

    num_records: int
    sampling_rate: float
    room: int
    overflow: float
    parts: int = 1
    part_room: int = 0

    @classmethod
    def create(
        cls,
        num_records: int,
        sampling_rate: float,
        overflow: float,
        max_records: int | None = None,
        parts: int = 1,
    ) -> "PoissonSampler":
        """A sampler whose room overflows with probability at most ``overflow`` a draw.

        :param num_records: rows to draw from.
        :param sampling_rate: chance of each row, in (0, 1).
        :param overflow: allowed chance that a batch outgrows the room.
        :param max_records: public bound that sizes the room where ``num_records`` is private.
        :param parts: into how many parts a batch is divided by :meth:`part`.
        :raises ValueError: for more than 2^30 records or a rate below 2^-60.
        """
        sized_for = num_records if max_records is None else max_records
        if sized_for > _MOST_RECORDS:
            raise ValueError(
                f"num_records={sized_for} is above 2^30 - 2, past 32-bit row numbers: split the "
                "data into shards that are sampled on their own"
            )
        if sampling_rate < _LEAST_RATE:
            raise ValueError(
                f"sampling_rate={sampling_rate:g} is below 2^-60: give a rate at which some record "
                "is ever drawn"
            )
        tables = gap_tables(sampling_rate)
        # One place beyond the batch steps past the last row.
        chosen = _least_places(sized_for, sampling_rate, overflow / 2) + 1
        skips = sized_for // tables.skip
        room = chosen + skips
        for extra in range(skips):
            tail = binom.sf(extra, chosen + extra, tables.skip_probability)
            if tail * (1 + 1e-6) <= overflow / 2:
                room = chosen + extra
                break
        part_room = 0
        if parts > 1:
            share = overflow * _PARTS_SHARE / parts
            rows = -(-num_records // parts)

            def fits(places: int) -> bool:
                return binom.sf(places, rows, sampling_rate) * (1 + 1e-6) <= share

            # The inverse does not reach so far into the tail.
            part_room = bisect_left(range(1, room), True, key=fits) + 1
        return cls(num_records, sampling_rate, room, overflow, parts, part_room)

    @property
    def words(self) -> int:
        """Pairs of random words that one draw takes."""
        return self.room * (1 if gap_tables(self.sampling_rate).low is None else 2)

    @property
    def tv(self) -> float:
        """Total variation of one draw to independent coins."""
        dropped = self.overflow * (1 + _PARTS_SHARE if self.parts > 1 else 1)
        return self.room * gap_tables(self.sampling_rate).tv + dropped

    def draw(
        self, first: UInt32[Array, " words"], second: UInt32[Array, " words"]
    ) -> tuple[Int32[Array, " room"], Bool[Array, " room"]]:
        """Chosen rows in increasing order, and which places hold one.

        :param first, second: independent uniform words, ``words`` of each.
        :returns: Row numbers in [0, num_records) (arbitrary where the mask is false), and the mask.
        """
        tables = gap_tables(self.sampling_rate)
        last = (1 << tables.high.bits) - 1
        high = alias.draw(tables.high, first[: self.room], second[: self.room])
        skipped = high == last
        gap = high
        if tables.low is not None:
            low = alias.draw(tables.low, first[self.room :], second[self.room :])
            gap = (high << tables.low.bits) + low
        step = jnp.where(skipped, tables.skip, gap + 1)
        position = self._running_sum(step, tables.skip) - 1
        chosen = (position < self.num_records) & ~skipped
        return jnp.where(chosen, position, 0), chosen

    def part(
        self,
        rows: Int32[Array, " room"],
        chosen: Bool[Array, " room"],
        first: Int32[Array, ""],
        held: Int32[Array, ""],
    ) -> tuple[Int32[Array, " part_room"], Bool[Array, " part_room"]]:
        """The share of a batch that lies in one part of the rows.

        :param rows, chosen: of :meth:`draw`.
        :param first: the part's first row.
        :param held: how many rows it has.
        :returns: Row numbers counted from ``first``, and the mask.
        """
        own = chosen & (rows >= first) & (rows - first < held)
        place = jnp.where(own, jnp.cumsum(own) - 1, self.part_room)
        empty = jnp.zeros(self.part_room, jnp.int32)
        mask = jnp.arange(self.part_room, dtype=jnp.int32) < jnp.sum(own)
        return empty.at[place].set(rows - first, mode="drop"), mask

    def _running_sum(self, step: Int32[Array, " room"], largest: int) -> Int32[Array, " room"]:
        if self.room * largest < 1 << 31:
            return jnp.cumsum(step)
        end = self.num_records + 1
        # Stopping past the last row keeps int32 from wrapping; it is associative.
        return lax.associative_scan(lambda a, b: jnp.minimum(a + b, end), jnp.minimum(step, end))
