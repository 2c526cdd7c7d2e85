"""The caller's arrays as JAX arrays: those of a mapped file where they lie, others copied once."""

from __future__ import annotations

import os
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jax.core import Tracer
from jax.sharding import SingleDeviceSharding

CHANGED = (
    "a file that records were mapped from was changed, replaced or removed while the run was under "
    "way: its result would be of no one set of records and is withheld. Run it again on a file "
    "that nobody writes to"
)
"""Said of every change alike: what a file tells beside that may be private."""

# Bytes: from where on pages matter (NumPy asks for large ones from 2^22), and what a buffer must
# begin at a multiple of for JAX to take it without a copy.
LARGE = 1 << 24
_ALIGNED = 64
_DEEPEST = 8
_OFFERED = ("shape", "dtype", "__getitem__", "columns", "to_numpy", "iloc")


def as_jax(array: Any, dtype: Any) -> jax.Array:
    """A JAX array of a dtype; on the CPU no copy of a mapped file, and others in large pages.

    Random rows of many records are mostly waited for while their pages are looked up.
    """
    if not isinstance(array, np.ndarray) or jax.default_backend() != "cpu":
        return jnp.asarray(unplaced(array), dtype)
    if mapped_path(array) is not None:
        if why_copied(array, dtype) is None:
            return _aliased(array)
    elif array.nbytes < LARGE:
        return jnp.asarray(array, dtype)
    size = array.size * np.dtype(dtype).itemsize
    room = np.empty(size + _ALIGNED, np.uint8)
    first = -room.ctypes.data % _ALIGNED
    own = room[first : first + size].view(dtype).reshape(array.shape)
    own[...] = array
    # Taken as it is, since it begins where JAX wants it to; nobody else can write to it.
    return jax.device_put(own, may_alias=True)


def unplaced(values: Any) -> Any:
    """Values that lie on several devices, or on a mesh of one, as if they came from none.

    They then go where the records of a run are. Others are left as they are.

    :param values: a pytree, such as what an earlier run with divided records gave.
    """

    def free(leaf: Any) -> Any:
        placed = isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer)
        if not placed or isinstance(leaf.sharding, SingleDeviceSharding):
            return leaf
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            words = free(random.key_data(leaf))
            return random.wrap_key_data(words, impl=random.key_impl(leaf))
        return jnp.asarray(np.asarray(leaf))

    return jax.tree.map(free, values)


def _aliased(array: np.ndarray) -> jax.Array:
    own = jax.device_put(array, may_alias=True)
    # Within a trace, as plain numpyro.infer.MCMC makes one, it has no place yet.
    if not isinstance(own, Tracer) and own.unsafe_buffer_pointer() != array.ctypes.data:
        warnings.warn("JAX copied an array of a mapped file into memory", stacklevel=2)
    return own


def host_device() -> jax.Device | None:
    """A CPU, for small problems in float64; ``None``, the default device, where JAX has none."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return None


def mapped_path(array: Any) -> str | None:
    """The file that an array lies in, if it does: a :class:`numpy.memmap` or a view of one."""
    while isinstance(array, np.ndarray):
        # What was computed from a mapped array has its class, and no file.
        if isinstance(array, np.memmap) and array.filename is not None:
            return os.fspath(array.filename)
        array = array.base
    return None


def why_copied(array: np.ndarray, dtype: Any) -> str | None:
    """Why JAX cannot take an array where it lies, in words; ``None`` where it can."""
    if array.dtype != np.dtype(dtype):
        return f"its dtype is {array.dtype} and not {np.dtype(dtype)}"
    if not array.flags.c_contiguous:
        return "its rows do not follow each other (a column, or Fortran order)"
    if array.ctypes.data % _ALIGNED:
        return f"its first byte is not at a multiple of {_ALIGNED}"
    return None


def how_to_convert(name: str, value: Any) -> str:
    """How to make an array of something that holds arrays, by what it offers; empty of others."""
    # Of the class: a store that was closed may answer with an error of its own.
    offered = {each for each in _OFFERED if hasattr(type(value), each)}
    if {"to_numpy", "columns"} <= offered:
        # Of pandas' own, without a dtype, numbers beside bool become objects.
        dtype = '"float32"' if "iloc" in offered else ""
        return (
            f": `{name}.to_numpy({dtype})`, whose columns a model takes by number "
            f"(`{name}[:, 0]`), or `{{c: {name}[c].to_numpy() for c in {name}.columns}}`, by name"
        )
    if "to_numpy" in offered:
        return f": `{name}.to_numpy()`"
    if "columns" in offered:
        return ": its columns' `.to_numpy()`"
    if not offered >= {"shape", "dtype", "__getitem__"}:
        return ""
    return (
        ". A mini-batch would read a piece of the store for each of its rows: copy it once, piece "
        "by piece, to a file that is read where it lies, by `out = np.lib.format.open_memmap("
        f"'records.npy', 'w+', 'float32', {name}.shape)` and, for every `some = slice(i, i + "
        f"100_000)` of its rows, `out[some] = {name}[some]`; then pass "
        "`np.load('records.npy', mmap_mode='r')`"
    )


def how_to_unite(array: Any) -> str:
    """How to make numbers of a table's columns that became objects; empty of other arrays."""
    if array.dtype != object or array.ndim < 2:
        return ""
    return (
        ". Where the columns of a table are all numbers, some of them Boolean such as one-hot "
        'ones, `.to_numpy("float32")` makes them one kind'
    )


def is_numeric(array: Any) -> bool:
    """Whether an array holds numbers, Booleans among them."""
    dtype = array.dtype
    return not jnp.issubdtype(dtype, jax.dtypes.extended) and (
        jnp.issubdtype(dtype, jnp.number) or jnp.issubdtype(dtype, jnp.bool_)
    )


def listed_numbers(value: Any) -> str:
    """What a list of array scalars is, such as "list of 8,000 numbers"; empty of all else.

    That is what ``list(array)`` makes. Rows that are lists themselves count likewise, and so do
    Python numbers and ``None`` among them.
    """
    if not isinstance(value, (list, tuple)) or hasattr(value, "_fields") or len(value) < 2:
        return ""
    inside, rows = list(value), ""
    # So deep and no deeper: a list may hold itself.
    for _ in range(_DEEPEST):
        if not all(isinstance(each, (list, tuple)) for each in inside):
            break
        inside, rows = [each for row in inside for each in row], "rows of "
    scalars = [each for each in inside if _is_array_scalar(each)]
    beside = (bool, int, float, complex, type(None))
    if not scalars or not all(type(each) in beside or _is_array_scalar(each) for each in inside):
        return ""
    what = "numbers" if all(map(is_numeric, scalars)) else "array scalars"
    return f"{type(value).__name__} of {len(value):,} {rows}{what}"


def _is_array_scalar(value: Any) -> bool:
    return isinstance(value, np.generic) or (
        isinstance(value, (np.ndarray, jax.Array)) and value.ndim == 0
    )


class MappedFile(NamedTuple):
    """What tells whether a file is the same as before."""

    path: str
    device: int
    inode: int
    size: int
    changed: int


def mapped_files(inputs: Any) -> tuple[MappedFile, ...]:
    """The files that arrays of some inputs lie in, as they are now.

    :param inputs: a pytree.
    :raises ValueError: one of the files is gone.
    """
    found = [mapped_path(leaf) for leaf in jax.tree.leaves(inputs)]
    try:
        return tuple(_looked_up(path) for path in dict.fromkeys(found) if path is not None)
    except OSError:
        pass
    # Raised out here: what the system says of a file is not chained.
    raise ValueError(
        "a file that records are mapped from is gone, so that nobody can tell whether it changes: "
        "leave it where it was until the run has ended"
    )


def require_unchanged(files: tuple[MappedFile, ...]) -> None:
    """Refuse to go on where a file is no longer what it was.

    :param files: of :func:`mapped_files`.
    :raises RuntimeError: :data:`CHANGED`.
    """
    try:
        same = all(_looked_up(each.path) == each for each in files)
    except OSError:
        same = False
    if not same:
        raise RuntimeError(CHANGED)


def warn_of_copies(inputs: Any) -> None:
    """Warn of every mapped array that records cannot be read from where they lie.

    Whatever its size: where the number of records is private, no warning follows it.
    """
    if jax.default_backend() != "cpu":
        return  # Every array is copied to the device.
    for leaf in jax.tree.leaves(inputs):
        if mapped_path(leaf) is None:
            continue
        reason = why_copied(leaf, jax.dtypes.canonicalize_dtype(leaf.dtype.newbyteorder("=")))
        if reason is not None:
            warnings.warn(
                f"an array of a mapped file is copied into memory, since {reason}. It would be "
                "read from the file where np.lib.format.open_memmap made it for these rows alone, "
                "in C order and in that dtype",
                stacklevel=5,
            )


def _looked_up(path: str) -> MappedFile:
    stat = os.stat(path)
    return MappedFile(path, stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)


def x64() -> bool:
    """Whether JAX has 64-bit numbers: every traced program is of one precision."""
    return bool(jax.config.read("jax_enable_x64"))
