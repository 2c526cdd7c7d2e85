"""A private sum of long vectors of which every record touches few coordinates.

A document of a hundred words moves a hundred rows of a table of thousands. What is rounded,
checked and added is those rows; noise goes to all.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32

from numpyro_dp.mechanisms.clip import contributions
from numpyro_dp.mechanisms.private_sum import PrivateSum


class Touched(NamedTuple):
    """One record's vector: the rows it touches of a table, and what it adds to them.

    :param slots: row numbers, strictly increasing, shape (touched,); from the number of rows on,
        padding.
    :param values: one row of the table each, shape (touched, width); what stands beside padding is
        ignored.

    **Privacy.** A function of one record, which never leaves unclipped.
    """

    slots: Int32[Array, " touched"]
    values: Float[Array, "touched width"]


@dataclass(frozen=True)
class SparsePrivateSum(PrivateSum):
    """A :class:`PrivateSum` whose record function returns a :class:`Touched`.

    Made by :meth:`create` with ``dim`` the size of the table, row by row, and ``entries`` the
    numbers that a record may touch (``touched * width``). Coordinates are not scaled.

    **Privacy.** That of :class:`PrivateSum`, whose clip, rounding and check it shares. A record's
    slots must be strictly increasing, so they are distinct and the norm of what it adds to the
    table is the norm of its own entries, the integers that are checked; a record whose slots are
    not (a duplicate, a disorder, a negative number) contributes exactly zero. Untouched coordinates
    of a record are exactly zero in the dense form too, since rounding keeps a zero, dithered
    (floor(0 + u), u < 1) or not: the released law is that of the dense sum. Entries are added as
    int32; should a sum of them wrap around, so would sum and noise together, which is
    post-processing.

    **Example**::

        >>> import jax, jax.numpy as jnp
        >>> counts = SparsePrivateSum.create(num_records=50, dim=1000, entries=2, sampling_rate=1.0,
        ...                                  clip_norm=1.0, noise_multiplier=2.0, num_steps=1,
        ...                                  delta=1e-5)
        >>> words = jnp.tile(jnp.array([[3, 700]]), (50, 1))
        >>> counts.release(jax.random.key(0), lambda r: Touched(r[0][0], jnp.ones((2, 1))),
        ...                [words]).shape
        (1000,)
    """

    def __post_init__(self) -> None:
        if self.entries is None:
            raise ValueError("give entries=, the numbers of the table that one record may touch")
        if self.scale is not None:
            raise ValueError("a sparse sum takes no scale=: scale the values, and undo it after")

    def _in_float32(self, record_vector: Callable[[list[Array]], Any]) -> Any:
        def single(record: list[Array]) -> Touched:
            slots, values = self._checked(record_vector(record))
            return Touched(slots, values.astype(jnp.float32))

        return single

    def _checked(self, vector: Touched) -> Touched:
        slots, values = vector
        if slots.shape != values.shape[:1] or values.ndim != 2 or values.size != self.entries:
            raise ValueError(
                f"a record touches {self.entries} numbers: got slots of shape {slots.shape} and "
                f"values of shape {values.shape}"
            )
        if self.dim % values.shape[1]:
            raise ValueError(f"rows of {values.shape[1]} numbers do not make a table of {self.dim}")
        return vector

    def _integer_sum(self, *of_block: Any) -> Int32[Array, " dim"]:
        lattice, vectors, rows, mask, words, *rest = of_block
        slots, values, valid = self._in_place(vectors)
        if lattice.dither:
            table = words.reshape(-1, values.shape[-1])
            words = table.at[slots].get(mode="clip").reshape(len(slots), -1)
        flat = values.reshape(len(slots), -1)
        each = contributions(lattice, flat, rows, mask & valid, words, *rest)
        whole = jnp.where(each.good[:, None], each.integers, 0).astype(jnp.int32)
        return self._scattered(slots, whole.reshape(values.shape))

    def _float_sum(
        self, vectors: Touched, _: Int32[Array, " rows"], mask: Bool[Array, " rows"]
    ) -> Float[Array, " dim"]:
        slots, values, valid = self._in_place(vectors)
        return self._scattered(slots, jnp.where((mask & valid)[:, None, None], values, 0))

    def _in_place(self, vectors: Touched) -> tuple[Array, Array, Bool[Array, " rows"]]:
        """Slots and values with nothing beside padding, and whether the slots are distinct."""
        slots, values = vectors.slots.astype(jnp.int32), vectors.values
        end = self.dim // values.shape[-1]
        padding = slots >= end
        rising = (slots[:, 1:] > slots[:, :-1]) | (padding[:, 1:] & padding[:, :-1])
        valid = jnp.all(rising, axis=1) & jnp.all(slots >= 0, axis=1)
        slots = jnp.minimum(slots, end)
        return slots, jnp.where(padding[..., None], 0, values), valid

    def _scattered(self, slots: Int32[Array, "rows touched"], values: Array) -> Array:
        """Rows of a table where the slots say, the same slot of several records added."""
        width = values.shape[-1]
        table = jnp.zeros((self.dim // width, width), values.dtype)
        flat = table.at[slots.reshape(-1)].add(values.reshape(-1, width), mode="drop")
        return flat.reshape(-1)
