"""Devices among which records are divided, each holding an equal part of consecutive rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
from jaxtyping import Array, Int32

_AXIS = "records"
_KINDS = jnp.number, jnp.bool_
_REMEDY = (
    "give all records one sharding, `jax.device_put(array, jax.NamedSharding(mesh, "
    "jax.P('people')))` on a mesh with one axis for the rows"
)


def several_processes() -> bool:
    """Whether this is one of several processes of ``jax.distributed``."""
    return jax.process_count() > 1


@dataclass(frozen=True)
class Shards:
    """How records lie on several devices; a plain value, so that it can be hashed and pickled.

    :param devices: numbers of the devices, in the order of the rows that they hold.
    """

    devices: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.devices)

    @property
    def here(self) -> bool:
        """Whether all of the devices are of this process."""
        return set(self.devices) <= {device.id for device in jax.local_devices()}

    @property
    def everywhere(self) -> bool:
        """Whether every process has some of the devices."""
        known = {device.id: device.process_index for device in jax.devices()}
        return len({known.get(each) for each in self.devices}) == jax.process_count()

    @property
    def sharding(self) -> NamedSharding:
        """Rows over the devices, everything else whole."""
        return NamedSharding(_mesh(self.devices), PartitionSpec(_AXIS))

    def rows(self, num_records: int) -> int:
        """Rows on each device."""
        return -(-num_records // len(self))

    def place(self, array: Any, dtype: Any) -> jax.Array:
        """An array on the devices, filled up; nothing moves where it lies so already.

        On a CPU the memory of NumPy's arrays may be taken as it is.
        """
        if isinstance(array, PaddedRecords):
            array = array.padded
        if not self.here and not is_of_all(array):
            return self._placed_here(array, dtype)
        missing = -len(array) % len(self)
        if missing:
            array = np.pad(np.asarray(array), [(0, missing)] + [(0, 0)] * (array.ndim - 1))
        if array.dtype != dtype:
            array = array.astype(dtype)
        return jax.device_put(array, self.sharding)

    def _placed_here(self, array: Any, dtype: Any) -> jax.Array:
        """The part for the devices of this process, of an array that every process has."""
        array = np.asarray(array)
        shape = (len(self) * self.rows(len(array)), *array.shape[1:])

        def part(index: tuple[slice, ...] | None) -> np.ndarray:
            wanted = slice(None) if index is None else index[0]
            rows, others = np.asarray(array[wanted], dtype), [(0, 0)] * (array.ndim - 1)
            first, last, _ = wanted.indices(shape[0])
            return np.pad(rows, [(0, last - first - len(rows)), *others])

        return jax.make_array_from_callback(shape, self.sharding, part)

    def parts(self, part: Callable[[Any, Int32[Array, ""]], Any], rows: Any) -> Any:
        """What each device makes of its own rows, along a first axis that is divided among them.

        :param part: from a shard's rows of each leaf, and its number, to arrays.
        :param rows: leaves with one row for each record, and padding.
        """

        def divided(leaf: Array) -> Array:
            own = leaf.reshape(len(self), -1, *leaf.shape[1:])
            return lax.with_sharding_constraint(own, self.sharding)

        # One program for all devices: rows of a first axis that is divided are computed where they
        # lie, and what is computed does not depend on where.
        numbers = jnp.arange(len(self), dtype=jnp.int32)
        found = jax.vmap(part)(jax.tree.map(divided, rows), numbers)
        return jax.tree.map(lambda x: lax.with_sharding_constraint(x, self.sharding), found)

    def sum(
        self, part: Callable[[list[Array], Int32[Array, ""]], Any], records: Sequence[Array]
    ) -> Array:
        """The sum of what each device makes of its rows, on all devices.

        Of all that is computed from records, only these sums travel between devices.

        :param part: from the leaves of a shard and its number to one array.
        :param records: leaves with one row for each record.
        """

        return jnp.sum(self.parts(part, list(records)), axis=0)


@dataclass(frozen=True, eq=False)
class PaddedRecords:
    """Records on several devices whose number is no multiple of that of the devices.

    Made by :func:`shard`; stands where an array of records would stand.

    :param padded: the records, and rows of zeros behind them.
    :param num_records: how many rows are records.
    """

    padded: jax.Array
    num_records: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the records alone."""
        return (self.num_records, *self.padded.shape[1:])

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self.padded.ndim

    @property
    def dtype(self) -> np.dtype:
        """Type of the entries."""
        return self.padded.dtype

    def __len__(self) -> int:
        return self.num_records

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.padded, dtype)[: self.num_records]

    def __repr__(self) -> str:
        return f"PaddedRecords({self.padded.dtype}{list(self.shape)})"


@lru_cache(maxsize=16)
def _mesh(devices: tuple[int, ...]) -> Mesh:
    known = {device.id: device for device in jax.devices()}
    if not set(devices) <= set(known):
        raise RuntimeError(
            f"records were divided among {len(devices)} devices that this process does not have: "
            "give them again as they lie now"
        )
    chosen = np.array([known[each] for each in devices])
    # What is not divided is on every device; types of arrays say nothing of it.
    return Mesh(chosen, (_AXIS,), axis_types=(AxisType.Auto,))


def is_of_all(array: Any) -> bool:
    """Whether an array lies on devices of several processes."""
    return isinstance(array, jax.Array) and not array.is_fully_addressable


def shard(*arrays: Any, devices: Sequence[jax.Device] | None = None) -> Any:
    """Divide records among the devices of this machine, each taking equal consecutive rows.

    The arrays returned stand where the records would: in ``MCMC.run``, ``DPSVI.run`` and all other
    methods that sum over records. Any number of records will do: what is missing to a multiple of
    the number of devices is filled up with rows that are no records. Where the number is such a
    multiple, arrays that are sharded over their rows with :func:`jax.device_put` do as well.

    In several processes of ``jax.distributed`` each calls it with the same whole arrays, such as
    mapped files, of which it reads only the rows of its own devices. Where each has other rows,
    :func:`jax.make_array_from_process_local_data` makes arrays of all of them.

    :param arrays: arrays of records, each of shape ``(num_records, ...)``.
    :param devices: where to put them; by default all, those of other processes too.
    :returns: The same records in the same order, a tuple where several arrays are given.
    :raises ValueError: the arrays differ in their number of rows, or have none; one is no NumPy or
        JAX array of numbers; ``devices`` names none, one twice, or what is no device.

    **Privacy.** Records move to the devices and nowhere else; nothing is released or charged.

    **References.** *Several devices* (docs/howto/several-devices.md) and *Several machines*
    (docs/howto/several-machines.md); how their sums stay exact: *How a step is released*
    (docs/explanation/how-a-step-is-released.md).

    **Example**::

        >>> import jax, numpy as np
        >>> import numpyro_dp as ndp
        >>> x = ndp.shard(np.ones((7, 3), np.float32))
        >>> x.shape
        (7, 3)
    """
    shards = Shards(_numbers(jax.devices() if devices is None else devices))
    for array in arrays:
        _require_numbers(array)
    sizes = {array.shape[:1] for array in arrays}
    if len(sizes) != 1 or sizes <= {(), (0,)}:
        raise ValueError(
            "shard takes arrays of records, one row for each record and the same number in all: "
            f"got shapes {[array.shape for array in arrays]}"
        )
    made = tuple(_shard(shards, array) for array in arrays)
    return made if len(made) > 1 else made[0]


def _numbers(devices: Any) -> tuple[int, ...]:
    listed = list(devices) if isinstance(devices, Sequence | np.ndarray) else []
    alike = all(isinstance(each, jax.Device) for each in listed)
    numbers = tuple(each.id for each in listed) if alike else ()
    if not numbers or len(set(numbers)) != len(numbers):
        raise ValueError(
            "devices must be a list of different JAX devices, such as jax.devices()[:2], got "
            f"{devices!r}"
        )
    return numbers


def _require_numbers(array: Any) -> None:
    known = isinstance(array, (np.ndarray, jax.Array, PaddedRecords))
    masked = isinstance(array, np.ma.MaskedArray)  # JAX would drop the mask.
    if known and not masked and any(jnp.issubdtype(array.dtype, kind) for kind in _KINDS):
        return
    given = f" of dtype {array.dtype}" if known else ""
    raise ValueError(
        "shard takes NumPy or JAX arrays of numbers (a Boolean mask beside values where some are "
        f"missing), got a {type(array).__name__}{given}"
    )


def _shard(shards: Shards, array: Any) -> Any:
    if isinstance(array, PaddedRecords):
        array = np.asarray(array)
    # Not a word on a number that does not fit: it would be one on somebody's record.
    with np.errstate(all="ignore"), jax.debug_nans(False), jax.debug_infs(False):
        dtype = jax.dtypes.canonicalize_dtype(array.dtype.newbyteorder("="))
        # A copy, lest a later edit change it; nobody looks whether a file behind it changes. In
        # several processes each copies the rows of its own devices.
        copied = isinstance(array, np.ndarray) and shards.here
        own = np.array(array, dtype) if copied else array
        placed = shards.place(own, dtype)
    return placed if len(placed) == len(array) else PaddedRecords(placed, len(array))


def shards_of(arrays: Sequence[Any]) -> Shards | None:
    """How some arrays of records are divided among devices; ``None`` if they are not.

    Of several, those that are on one device, or on none, may be divided like the others.

    :raises ValueError: they are divided in another way than by rows, or in several ways; or a mesh
        is set, within which no other can be used.
    :raises RuntimeError: in one of several processes, where they are not divided among all of them.
    """
    found = {each for each in map(_shards, arrays) if each is not None}
    if len(found) > 1:
        raise ValueError(
            "arrays of records are divided among devices in several ways, so that a row of one is "
            f"elsewhere than the same row of another: {_REMEDY}"
        )
    if found and not jax.sharding.get_abstract_mesh().empty:
        raise ValueError(
            "records that are divided among devices lie on a mesh of their own: call this outside "
            "of jax.set_mesh"
        )
    shards = found.pop() if found else None
    if any(isinstance(array, (np.ndarray, jax.Array, PaddedRecords)) for array in arrays):
        require_everywhere("A run", shards)
    return shards


def require_everywhere(called: str, shards: Shards | None) -> None:
    """Refuse records of one of several processes alone.

    Each process would draw noise of its own and release about its own records.

    :param called: what was called, for the message.
    :param shards: devices among which the records are divided.
    :raises RuntimeError: there are several processes, and some have no part.
    """
    if several_processes() and (shards is None or not shards.everywhere):
        raise RuntimeError(
            f"{called} was called in one of {jax.process_count()} processes of jax.distributed, on "
            "records that are not divided among all of them. Nothing was charged. Make arrays of "
            "all processes, with `jax.make_array_from_process_local_data` where each has rows of "
            "its own or `numpyro_dp.shard` where each can read all, and call it in every process; "
            "or run one process, without jax.distributed.initialize()"
        )


def _shards(array: Any) -> Shards | None:
    if isinstance(array, PaddedRecords):
        array = array.padded
    # Within a trace, as plain numpyro.infer.MCMC makes one, nothing is known.
    if not isinstance(array, jax.Array) or isinstance(array, Tracer):
        return None
    sharding = array.sharding
    if isinstance(sharding, SingleDeviceSharding) or sharding.is_fully_replicated:
        return None
    parts: dict[int, list[int]] = {}
    for device, index in sharding.devices_indices_map(array.shape).items():
        rows, *others = (part.indices(size) for part, size in zip(index, array.shape, strict=True))
        if any(part != (0, size, 1) for part, size in zip(others, array.shape[1:], strict=True)):
            raise ValueError(f"records are divided along another axis than their rows: {_REMEDY}")
        parts.setdefault(rows[0], []).append(device.id)
    if any(len(each) > 1 for each in parts.values()):
        raise ValueError(f"several devices hold the same rows of the records: {_REMEDY}")
    return Shards(tuple(parts[first][0] for first in sorted(parts)))


def row_numbers(num_records: int, shards: Shards | None) -> jax.Array:
    """One more array of records: the number of each row."""
    if shards is None:
        return jnp.arange(num_records, dtype=jnp.int32)
    return shards.place(np.arange(num_records, dtype=np.int32), np.dtype(np.int32))


def rows_held(
    shards: Shards, number: Int32[Array, ""], num_records: int
) -> tuple[Int32[Array, ""], Int32[Array, ""]]:
    """First row of a shard, and how many of its rows are records; the others are padding."""
    size = shards.rows(num_records)
    firsts = np.arange(len(shards), dtype=np.int64) * size
    held = np.clip(num_records - firsts, 0, size)
    # Past 2^31 a first row wraps: it is used for the offsets of rounding alone.
    return jnp.asarray(firsts.astype(np.int32))[number], jnp.asarray(held.astype(np.int32))[number]
