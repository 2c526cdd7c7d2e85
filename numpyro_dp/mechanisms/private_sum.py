"""The one object through which gradients leave the data: a noisy clipped sum of record vectors.

Sampler, clip, sensitivity, noise and accounting event are one frozen value, so that they cannot
disagree.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import jax
import jax.numpy as jnp
from jax import random
from jaxtyping import Array, Bool, Float, Float32, Int32, Key, UInt32

from numpyro_dp import _validate
from numpyro_dp._shards import Shards, require_everywhere
from numpyro_dp._sources import Storage
from numpyro_dp.accounting import events
from numpyro_dp.mechanisms._checks import checked_shape
from numpyro_dp.mechanisms.blocks import blockwise_sum
from numpyro_dp.mechanisms.clip import integer_sum
from numpyro_dp.mechanisms.lattice import Lattice, RecordLimit, floor_noise
from numpyro_dp.mechanisms.noise_schedule import bound_at, level_at, planned_lattice, taken
from numpyro_dp.mechanisms.random import word_pairs
from numpyro_dp.mechanisms.sharded import (
    draws,
    places,
    require_rows,
    sampler_of,
    sum_over_devices,
)
from numpyro_dp.mechanisms.subsample import PoissonSampler

# Of a vector of shape (dim,), or of what a derived class adds in its place.
RecordVector = Callable[[list[Array]], Any]
Words = tuple[UInt32[Array, " _"], UInt32[Array, " _"]]

# In a ledger of a large ε each such distance weighs e^ε times as much: a little room is cheaper.
_OVERFLOW = 1e-15
# Gradients of one block stay in a core's cache (192 KiB of float32); an accelerator has many cores,
# which a block should keep busy (64 MiB).
_BLOCK_ELEMENTS, _ACCELERATOR_ELEMENTS = 3 << 14, 1 << 24
_LEAST_BLOCK_ROWS = 16
# Without privacy all vectors are added at once, as long as they are no more than this (128 MiB).
_FLOAT_ELEMENTS = 1 << 25


@dataclass(frozen=True)
class PrivateSum:
    """A noisy clipped sum over a Poisson batch, released on the integer lattice.

    Made by :meth:`create`; every field is a Python scalar or a frozen value of scalars, fixed
    before any data is seen.

    :param num_records: records in the data.
    :param dim: coordinates of a record's vector.
    :param sampling_rate: chance of each record to be in a batch, in (0, 1]; 1 for full batches.
    :param clip_norm: L2 bound on a record's (scaled) vector.
    :param noise_multiplier: standard deviation of the noise over ``clip_norm``.
    :param microbatch_size: most record vectors held in memory at once.
    :param max_records: public bound on ``num_records`` where that is private (``add_remove``).
    :param scale: public positive weights of the coordinates (blocks, or the root of a
        preconditioner): ``scale * vector`` is clipped, and undone after the release.
    :param sampler: how batches are drawn; ``None`` for full batches.
    :param lattice: how the sum is rounded and noised; ``None`` when privacy is switched off.
    :param schedule: noise multiplier of every step of a chain, the last one kept for later steps;
        ``noise_multiplier`` is then the least of them. ``None`` for constant noise.
    :param bounds: what limits a record at each distinct multiplier of the schedule, ascending.
    :param entries: most coordinates of a record's vector that are not zero, which rounding and
        blocks are planned for; ``dim`` by default. No guarantee rests on it.
    :param shards: devices among which the records are divided; ``None`` for one device.
    :param storage: where records are fetched from by row number; ``None`` where they are at hand.

    **Privacy.** One release is the Gaussian mechanism at ``noise_multiplier``, Poisson-subsampled
    at ``sampling_rate``, up to ``tv_per_step`` in total variation. A record's contribution is an
    integer vector of norm at most Q = lattice.radius, checked exactly; one that is not finite
    contributes zero. The sensitivity of the integer sum is Q under ``zero_out`` and ``add_remove``
    and 2Q under ``replace_one``, and the noise is floor(Z), Z of standard deviation at least
    noise_multiplier·Q, so that f + floor(Z) = floor(f + Z) is post-processing of the Gaussian
    mechanism. Batch, batch size and failed checks are never released. Under ``add_remove``
    (``max_records`` given) a missing record moves later ones to other places of the batch, where
    vector instructions may round them differently; records are then computed one at a time. What
    remains to be taken for granted is that the compiler treats one record alike in the programs for
    N and N + 1 records.

    Where records are divided among devices, each adds the integers of its own rows, of which the
    sum, exact in any order, is the only thing that travels; noise is added to it once. A batch is
    drawn for all rows and looked at by each device, or, where it is large, drawn by each device for
    its own rows with a key of its own: independent coins on disjoint rows are coins on all of them.
    Rows that fill up the last part are no records: they are masked. A storage that is not trusted
    is told who is in a batch: a release then counts as one of all records, its noise the same.

    **Example**::

        >>> import jax, jax.numpy as jnp
        >>> mean = PrivateSum.create(num_records=100, dim=2, sampling_rate=0.5, clip_norm=1.0,
        ...                          noise_multiplier=2.0, num_steps=10, delta=1e-5)
        >>> mean.release(jax.random.key(0), lambda record: record[0][0], [jnp.ones((100, 2))]).shape
        (2,)
    """

    num_records: int
    dim: int
    sampling_rate: float
    clip_norm: float
    noise_multiplier: float
    microbatch_size: int | None
    max_records: int | None
    scale: tuple[float, ...] | None
    sampler: PoissonSampler | None
    lattice: Lattice | None
    schedule: tuple[float, ...] | None = None
    bounds: tuple[RecordLimit, ...] = ()
    entries: int | None = None
    shards: Shards | None = None
    storage: Storage | None = None

    @classmethod
    def create(
        cls,
        *,
        num_records: int,
        dim: int,
        sampling_rate: float,
        clip_norm: float,
        noise_multiplier: float | tuple[float, ...],
        num_steps: int,
        delta: float,
        microbatch_size: int | None = None,
        max_records: int | None = None,
        scale: tuple[float, ...] | None = None,
        entries: int | None = None,
        shards: Shards | None = None,
        storage: Storage | None = None,
    ) -> Self:
        """Fix batches, lattice and noise for a run.

        :param num_steps: all steps that will touch the data, chains and warm-up included; rooms and
            tables are sized for it.
        :param delta: the run's δ, which what the arithmetic adds must stay well below.

        The others are the fields above. ``noise_multiplier=0`` together with ``clip_norm=inf``
        switches privacy off; a tuple of multipliers is a schedule, one for each step of a chain.

        :raises ValueError: naming the argument that is out of range, or when the noise is too large
            or too small for the lattice.
        """
        # Before anything is multiplied: NumPy's narrow integers wrap around.
        sizes, amounts = (dim, microbatch_size, max_records, entries), (noise_multiplier, scale)
        dim, microbatch_size, max_records, entries = _validate.python_number(sizes)
        noise_multiplier, scale = _validate.python_number(amounts)
        clip_norm = _validate.python_number(clip_norm)
        shape = checked_shape(num_records, dim, sampling_rate, microbatch_size, max_records, scale)
        num_records, sampling_rate, sized_for = shape
        num_steps = _validate.positive_int("num_steps", num_steps)
        if _validate.probability("delta", delta) == 0:
            raise ValueError("delta must be positive: Gaussian noise has no guarantee at delta 0")
        if isinstance(noise_multiplier, tuple):
            schedule, levels = noise_multiplier, sorted(set(noise_multiplier))
        else:
            schedule, levels = None, [noise_multiplier]
        touched = dim if entries is None else min(_validate.positive_int("entries", entries), dim)
        sampler, most_rows = None, sized_for
        if shards is not None and max_records is not None:
            raise ValueError(
                "records of a private number cannot be divided among devices, whose shares would "
                "tell it: give arrays that lie on one device"
            )
        if sampling_rate < 1:
            overflow = min(_OVERFLOW, 1e-3 * delta / num_steps)
            sampler = sampler_of(num_records, sampling_rate, overflow, max_records, shards)
            most_rows = sampler.room * draws(sampler, num_records, shards)
        lattice, bounds = planned_lattice(
            levels,
            schedule is not None,
            dim=touched,
            clip_norm=clip_norm,
            expected_batch=sampling_rate * sized_for,
            max_rows=most_rows,
            fixed_rows=max_records is None,
            precise=num_steps * dim * 2.0**-49 > 1e-3 * delta,
        )
        return cls(
            num_records=num_records,
            dim=int(dim),
            sampling_rate=sampling_rate,
            clip_norm=float(clip_norm),
            noise_multiplier=float(levels[0]),
            microbatch_size=microbatch_size,
            max_records=max_records,
            scale=scale,
            sampler=sampler,
            lattice=lattice,
            schedule=schedule,
            bounds=bounds,
            entries=entries,
            shards=shards,
            storage=storage,
        )

    @property
    def is_private(self) -> bool:
        """False on the float path, which has no guarantee."""
        return self.lattice is not None

    @property
    def amplified(self) -> bool:
        """Whether nobody who is not trusted sees who is in a batch."""
        return self.sampler is not None and (self.storage is None or self.storage.trusted)

    @property
    def expected_batch(self) -> float:
        """Expected number of records in a batch, from the public bound where N is private."""
        return self.sampling_rate * (self.max_records or self.num_records)

    @property
    def room(self) -> int:
        """Places of a batch on each device, padding included."""
        return places(self.sampler, self.num_records, self.shards)

    @property
    def _draws(self) -> int:
        return draws(self.sampler, self.num_records, self.shards)

    @property
    def tv_per_step(self) -> float:
        """Total variation of one release to the ideal mechanism: tables and overflowing rooms."""
        noise = 0.0 if self.lattice is None else self.dim * self.lattice.tv
        if self.sampler is None or not self.amplified:
            return noise  # Where others know the batch, nothing rests on how it was drawn.
        return noise + self._draws * self.sampler.tv

    @property
    def unshrunk(self) -> float:
        """Largest norm of a vector that is rounded without being shrunk first; a little below
        ``clip_norm``, so that no rounding leads past it."""
        return self.clip_norm if self.lattice is None else self.lattice.cap * self.lattice.scale

    def event(self, num_steps: int, *, start: int = 0, num_chains: int = 1) -> events.DpEvent:
        """What ``num_steps`` releases cost, each with fresh batch and noise.

        :param num_steps: releases, over all chains and warm-up.
        :param start: steps that each chain has behind it; matters for a schedule only.
        :param num_chains: chains that share ``num_steps`` equally; likewise.
        :returns: Composed Poisson-subsampled Gaussian events and one ``TotalVariation``;
            ``NonPrivateDpEvent`` on the float path.
        :raises ValueError: when ``num_steps`` is not a positive multiple of ``num_chains``.
        """
        num_steps = _validate.positive_int("num_steps", num_steps)
        if self.lattice is None:
            return events.NonPrivateDpEvent()
        distance = events.TotalVariation(min(1.0, num_steps * self.tv_per_step))
        counts = {self.noise_multiplier: num_steps}
        if self.schedule is not None:
            counts = taken(self.schedule, num_steps, start=start, num_chains=num_chains)
        releases = []
        for level, count in counts.items():
            one: events.DpEvent = events.GaussianDpEvent(level)
            if self.amplified:
                one = events.PoissonSampledDpEvent(self.sampling_rate, one)
            releases.append(events.SelfComposedDpEvent(one, count))
        return events.ComposedDpEvent([*releases, distance])

    def noise_sd(self, step: int | Int32[Array, ""] = 0) -> float | Float32[Array, ""]:
        """Standard deviation of the noise of a step, in units of the clipped (scaled) sum."""
        if self.lattice is None:
            return 0.0
        if self.schedule is None:
            return self.noise_multiplier * self.clip_norm
        return level_at(self.schedule, step) * self.clip_norm

    def _bound(self, lattice: Lattice, step: int | Int32[Array, ""]) -> RecordLimit:
        if self.schedule is None:
            return lattice.bound
        return bound_at(self.schedule, self.bounds, step)

    def release(
        self,
        key: Key[Array, ""],
        record_vector: RecordVector,
        records: list[Array],
        step: int | Int32[Array, ""] = 0,
    ) -> Float[Array, " dim"]:
        """One noisy sum over a fresh batch, divided by the sampling rate.

        :param key: one typed key, used for this release and never again.
        :param record_vector: maps the leaves of one record (each with leading axis 1) to its
            vector.
        :param records: leaves with leading axis ``num_records``.
        :param step: how many steps this chain has behind it; matters for a schedule only.
        :returns: float32 estimate of the sum over all records of their clipped vectors; on the
            float path the un-noised sum in the vectors' own type.
        :raises ValueError: when ``records`` does not hold ``num_records`` records.
        :raises RuntimeError: in one of several processes of ``jax.distributed``, where the records
            are not divided among all of them.
        """
        require_everywhere("PrivateSum.release", self.shards)
        require_rows(records, self.num_records, self.shards, self.storage)
        own_key = None
        if self._draws > 1:
            # Some generators use the words of a key for what is folded into it too.
            key, own_key = random.split(key)
        batch_words, dither_words, noise_words = self._words(key)
        if self.lattice is None:
            source = record_vector, self._float_sum, records, batch_words, own_key
            return self._over_records(*source) / self.sampling_rate
        lattice, bound = self.lattice, self._bound(self.lattice, step)

        def block_sum(
            vectors: Any, rows: Int32[Array, " rows"], mask: Bool[Array, " rows"]
        ) -> Int32[Array, " dim"]:
            words = dither_words[0], noise_words[0][0]
            return self._integer_sum(lattice, vectors, rows, mask, *words, bound)

        single = self._in_float32(record_vector)
        total = self._over_records(single, block_sum, records, batch_words, own_key)
        noisy = (total + floor_noise(lattice, *noise_words)).astype(jnp.float32)
        released = (noisy - lattice.mean) * (bound.scale / self.sampling_rate)
        return released if self.scale is None else released / jnp.array(self.scale, jnp.float32)

    def _over_records(
        self,
        vector: RecordVector,
        block_sum: Callable[..., Array],
        records: list[Array],
        batch_words: Words,
        own_key: Key[Array, ""] | None,
    ) -> Array:
        """The sum over a fresh batch, of the rows of all devices.

        :param batch_words: of the draw for all rows; empty where there is none.
        :param own_key: from which each device has its own words for a draw; ``None`` otherwise.
        """
        sampler, shards, blocks = self.sampler, self.shards, self._blocks()
        batch = None if sampler is None or own_key is not None else sampler.draw(*batch_words)
        if shards is None:
            return blockwise_sum(vector, block_sum, records, batch, *blocks, self.num_records)
        size = shards.rows(self.num_records)

        def part(leaves: list[Array], share: Any, first: Array, held: Array) -> Array:
            def of_device(vectors: Any, rows: Array, mask: Array) -> Array:
                return block_sum(vectors, first + rows, mask & (rows < held))

            return blockwise_sum(vector, of_device, leaves, share, *blocks, size)

        return sum_over_devices(shards, self.num_records, part, records, sampler, batch, own_key)

    def _in_float32(self, record_vector: RecordVector) -> RecordVector:
        """``record_vector`` as it is rounded: scaled, in single precision."""
        scale = None if self.scale is None else jnp.array(self.scale, jnp.float32)

        def scaled(record: list[Array]) -> Float32[Array, " dim"]:
            vector = record_vector(record).astype(jnp.float32)
            return vector if scale is None else vector * scale

        return scaled

    # Both take all vectors of a block; sparse sums add otherwise.
    def _integer_sum(self, *of_block: Any) -> Int32[Array, " dim"]:
        return integer_sum(*of_block)

    def _float_sum(
        self, vectors: Any, _: Int32[Array, " rows"], mask: Bool[Array, " rows"]
    ) -> Float[Array, " dim"]:
        return jnp.where(mask[:, None], vectors, 0).sum(0)

    def _words(self, key: Key[Array, ""]) -> tuple[Words, Words, Words]:
        """Words for batch, dither and noise, from one pass of the generator."""
        batch = 0 if self.sampler is None or self._draws > 1 else self.sampler.words
        dither = self.dim if self.lattice is not None and self.lattice.dither else 0
        noise = 0 if self.lattice is None else self.dim * self.lattice.draws
        if batch + dither + noise == 0:
            empty = jnp.zeros(0, jnp.uint32)
            return (empty, empty), (empty, empty), (empty, empty)
        first, second = word_pairs(key, batch + dither + noise)

        def part(start: int, size: int) -> Words:
            return first[start : start + size], second[start : start + size]

        return part(0, batch), part(batch, dither), part(batch + dither, noise)

    def _blocks(self) -> tuple[int, int]:
        """Number of blocks and rows of each: for the platform, memory, and float32's exact sums."""
        most = self.microbatch_size or self.room
        if self.max_records is not None:
            # A record's floats must not depend on its place, which moves when one is absent.
            most = 1
        entries = self.entries or self.dim
        if self.lattice is None:
            most = min(most, max(_FLOAT_ELEMENTS // entries, 1))
        else:
            # A block should do more work than adding its (dense) sum to the others'.
            on_cpu = jax.default_backend() == "cpu"
            elements = _BLOCK_ELEMENTS if on_cpu else _ACCELERATOR_ELEMENTS
            at_once = max(elements // entries, 2 * self.dim // entries, _LEAST_BLOCK_ROWS)
            most = min(most, at_once, self.lattice.exact_rows)
        blocks = -(-self.room // most)
        return blocks, -(-self.room // blocks)
