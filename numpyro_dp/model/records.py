"""What of a model's arguments is a record, what is public, and what is neither.

An array whose leading axis is the private plate is data: one row belongs to one person. Python
numbers, strings, ``None``, functions and whatever the user wraps in :func:`public` are taken as
known to everybody. Anything else is refused, because guessing wrong would publish somebody's row.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from numpyro_dp._arrays import as_jax, how_to_convert, how_to_unite, is_numeric, listed_numbers
from numpyro_dp._public import (
    STATIC_TYPES,
    Public,
    Token,
    is_public,
    public as public,
    public_token,
    static_token,
)
from numpyro_dp._shards import PaddedRecords, Shards, shards_of
from numpyro_dp._sources import NOT_FETCHED, Reading, RecordSource, Storage, storage_of
from numpyro_dp.errors import UnsupportedModelError, refuse
from numpyro_dp.model.names import parameter_names, path_name, quoted

# So many arrays in a list are rows of one; so many entries may be records of a private number.
MANY = 10
# Rows in the place of a private number of records: a prime, hardly the length of another axis. What
# is traced on them must be the same on few, too.
_PUBLIC_ROWS, _FEW_ROWS = 1_009, 3
# Rows that a series has more than terms which read so many rows before theirs.
_LAGS = 12


@dataclass(frozen=True)
class ArrayLeaf:
    """An array argument: only its name, shape and dtype are kept, never a value."""

    name: str = field(compare=False)
    shape: tuple[int, ...]
    dtype: np.dtype

    def struct(self, rows: int | None = None) -> jax.ShapeDtypeStruct:
        """Return the abstract array, with ``rows`` rows in place of its own where given."""
        shape = self.shape if rows is None else (rows, *self.shape[1:])
        return jax.ShapeDtypeStruct(shape, self.dtype)


@dataclass(frozen=True)
class FixedLeaf:
    """A public argument: compared through ``token``, which stands for its type and its value."""

    name: str = field(compare=False)
    token: Token
    value: Any = field(compare=False, repr=False)
    declared: bool


@dataclass(frozen=True)
class Layout:
    """The arguments of a model with the arrays taken out; hashable and comparable by value.

    ``shards`` are the devices among which the arrays are divided, ``None`` for one device;
    ``storage`` is where rows of them are fetched from, ``None`` where all are at hand.
    """

    tree: Any
    leaves: tuple[ArrayLeaf | FixedLeaf, ...]
    shards: Shards | None = None
    storage: Storage | None = None

    @functools.cached_property
    def arrays(self) -> tuple[ArrayLeaf, ...]:
        """The array arguments in their flat order."""
        return tuple(leaf for leaf in self.leaves if isinstance(leaf, ArrayLeaf))

    @functools.cached_property
    def declared(self) -> tuple[FixedLeaf, ...]:
        """The arguments that were wrapped in :func:`public`."""
        return tuple(leaf for leaf in self.leaves if isinstance(leaf, FixedLeaf) and leaf.declared)

    @property
    def rows(self) -> int:
        """Rows of the first array: the number of records, or the public one in its place."""
        return self.arrays[0].shape[0]

    def structs(self, rows: int | None = None) -> list[jax.ShapeDtypeStruct]:
        """Return the abstract arrays, with ``rows`` rows in place of their own where given."""
        return [leaf.struct(rows) for leaf in self.arrays]

    @property
    def public_names(self) -> tuple[str, ...]:
        """Names of the arguments that were wrapped in :func:`public`."""
        return tuple(leaf.name for leaf in self.declared)

    def public_arrays(self) -> Iterator[np.ndarray]:
        """Yield every array inside a public argument."""
        for part in jax.tree.leaves([leaf.value for leaf in self.declared]):
            if isinstance(part, (np.ndarray, jax.Array)) and is_numeric(part):
                yield np.asarray(part)

    def is_public(self, value: Any) -> bool:
        """Tell whether an array or object was declared public too: itself, or equal values."""
        declared = [leaf.value for leaf in self.declared]
        if any(part is value for part in (*declared, *jax.tree.leaves(declared))):
            return True
        alike = [a for a in self.public_arrays() if a.shape == getattr(value, "shape", None)]
        return any(np.array_equal(a.astype(value.dtype), np.asarray(value)) for a in alike)

    def tells_length(self, num_records: int) -> bool:
        """Tell whether the number of records is public, and stands in the arrays' shapes."""
        return self.rows == num_records != _PUBLIC_ROWS

    def is_of_all(self, length: int, num_records: int) -> bool:
        """Tell whether a list or axis has an entry for each record.

        Where their number is private, no verdict may follow it: many entries are taken for all.
        """
        return length == num_records if self.tells_length(num_records) else length >= MANY

    def is_longer(self, shape: tuple[int, ...]) -> bool:
        """Tell whether an array has an axis longer than the records, as no argument's other axis.

        It may be the records before some were left out.
        """
        others = {length for leaf in self.arrays for length in leaf.shape[1:]}
        return any(n > self.rows and n not in others for n in shape)

    def fill(self, arrays: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Rebuild ``(model_args, model_kwargs)`` around the given arrays."""
        rest = iter(arrays)
        values = [next(rest) if isinstance(x, ArrayLeaf) else x.value for x in self.leaves]
        return jax.tree.unflatten(self.tree, values)

    def difference(self, got: "Layout") -> str:
        """What tells other arguments from these, in words."""
        if self.tree != got.tree:
            return "another number or nesting of arguments"
        if self.shards != got.shards:
            return "the devices among which the records are divided"
        if self.storage != got.storage:
            return "where the records are stored"
        names = [b.name for a, b in zip(self.leaves, got.leaves, strict=True) if a != b]
        return f"argument(s) {quoted(names)}: shape, dtype or public value"

    def other_rows(self) -> tuple[int, ...]:
        """Other numbers of rows, at which a program that tells of no number must be the same."""
        return self.rows + 1, _FEW_ROWS

    def redacted(self) -> "Layout":
        """The same with a public number of rows: what is traced from it tells of no other.

        :raises UnsupportedModelError: for arrays of unequal numbers of rows.
        """
        rows = {leaf.shape[0] for leaf in self.arrays}
        if len(rows) > 1:
            raise UnsupportedModelError(
                "arrays of the model's arguments differ in their number of rows: each must hold "
                "one row for each record, or be declared `numpyro_dp.public`"
            )
        leaves = (
            replace(leaf, shape=leaf.struct(_PUBLIC_ROWS).shape)
            if isinstance(leaf, ArrayLeaf)
            else leaf
            for leaf in self.leaves
        )
        return replace(self, leaves=tuple(leaves))

    def require_no_listed_data(self, num_records: int) -> None:
        """Refuse a Python list, tuple or dictionary with one plain value for each record."""
        args, kwargs = jax.tree.unflatten(self.tree, self.leaves)
        for part in (p for value in (*args, *kwargs.values()) for p in _listings(value)):
            leaves = jax.tree.leaves(part)
            plain = all(isinstance(x, FixedLeaf) and not x.declared for x in leaves)
            if leaves and plain and self.is_of_all(len(part), num_records):
                name = leaves[0].name.partition("[")[0]
                raise UnsupportedModelError(
                    f"argument `{name}` holds a Python {type(part).__name__} with {len(part)} "
                    "entries, perhaps one for each record: pass a NumPy or JAX array, or "
                    f"`numpyro_dp.public({name})` if it holds nothing private"
                )

    def require_records(self, num_records: int, plate: str, outcomes: Sequence[str] = ()) -> None:
        """Refuse every array argument that has no leading axis of ``num_records`` rows, or none.

        ``outcomes`` are names of those that the model observes, which hold somebody's data.
        """
        if not self.arrays:
            raise UnsupportedModelError(
                f"no argument holds records (plate `{plate}`): pass the data as arguments of the "
                "model, not by a closure"
            )
        refused = []
        for leaf in self.arrays:
            if leaf.shape[0] == num_records:
                continue
            turn = ""
            if num_records in leaf.shape[1:]:
                axis = leaf.shape.index(num_records, 1)
                turn = f"; its axis {axis} has that length: if it holds the records, transpose it"
            remedy = f"; declare it `numpyro_dp.public({leaf.name})` if it holds nothing private"
            if leaf.name in outcomes:
                remedy = (
                    "; it is observed, so its records are somebody's: name the plate of the "
                    "persons with `data_plate=`, and give that plate the leading axis"
                )
                if 0 < leaf.shape[0] - num_records <= _LAGS:
                    remedy += (
                        ". Where a term reads the rows before it, as of a time series, that plate "
                        "is one of persons, each with a whole series in its row"
                    )
            refused.append(
                f"argument `{leaf.name}` {leaf.shape} has no record axis (plate `{plate}` has "
                f"size {num_records}, and the leading axis must be the record){turn}{remedy}"
            )
        refuse(refused, "arguments")


def read_arguments(
    model: Callable[..., Any], model_args: Sequence[Any], model_kwargs: Mapping[str, Any] | None
) -> tuple[Layout, list[Any]]:
    """Split the arguments of a model into a layout without values and its flat list of arrays.

    :param model: the model, whose signature gives the names used in messages.
    :param model_args: its positional arguments.
    :param model_kwargs: its keyword arguments.
    :returns: The layout, and the arrays in its order (unconverted, so that nothing is copied).
    :raises UnsupportedModelError: for an argument that is neither an array, a plain Python value
        nor wrapped in :func:`public`, for array scalars and for arrays without rows.
    """
    pair = (tuple(model_args), dict(model_kwargs or {}))

    def is_one(value: Any) -> bool:
        # Of a list of numbers one sentence is said, and not one for each of them. Of what was
        # declared public the declaration is read, which is no leaf by itself.
        return value is not pair[0] and (is_public(value) or bool(listed_numbers(value)))

    paths, tree = jax.tree_util.tree_flatten_with_path(pair, is_leaf=is_one)
    names = parameter_names(model, *pair)
    leaves: list[ArrayLeaf | FixedLeaf] = []
    arrays: list[Any] = []
    refused: list[str] = []
    for path, value in paths:
        try:
            leaf = _read_leaf(path_name(path, names), value)
        except UnsupportedModelError as error:
            refused.append(str(error))
            continue
        leaves.append(leaf)
        if isinstance(leaf, ArrayLeaf):
            arrays.append(value)
    refuse(refused, "arguments")
    return Layout(tree, tuple(leaves), shards_of(arrays), storage_of(arrays)), arrays


def as_records(
    layout: Layout,
    arrays: Sequence[Any],
    *,
    padded: bool = False,
    reading: Reading | None = None,
) -> list[Any]:
    """Return the arrays as JAX arrays with the dtypes that the layout was read with.

    :param padded: whether the caller masks rows that only fill up the part of the last device.
    :param reading: by which the caller fetches rows that are stored elsewhere, if it does.
    :raises UnsupportedModelError: there are such rows, and nobody masks or fetches them.
    """
    if layout.storage is not None and (reading is None or layout.shards is not None):
        raise UnsupportedModelError(NOT_FETCHED)
    if layout.shards is not None and not padded and layout.rows % len(layout.shards):
        raise UnsupportedModelError(
            f"this method takes records on {len(layout.shards)} devices only where their number is "
            f"a multiple of that, and there are {layout.rows}: give arrays that lie on one device"
        )
    # NumPy's word on a number that does not fit would be a word on somebody's record, which
    # nothing has charged; where warnings are errors, it would be an exception.
    with np.errstate(all="ignore"):
        pairs = list(zip(layout.arrays, arrays, strict=True))
        if layout.shards is not None:
            return [layout.shards.place(array, leaf.dtype) for leaf, array in pairs]
        if reading is None:
            return [as_jax(array, leaf.dtype) for leaf, array in pairs]
        return [reading.open(array, leaf.dtype) for leaf, array in pairs]


def _listings(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple, dict)):
        yield value
        for part in value.values() if isinstance(value, dict) else value:
            yield from _listings(part)


def _is_array_like(value: Any) -> bool:
    kinds = np.ndarray, jax.Array, jax.ShapeDtypeStruct, PaddedRecords, RecordSource, Public
    return isinstance(value, kinds)


def _read_leaf(name: str, value: Any) -> ArrayLeaf | FixedLeaf:
    if isinstance(value, Public):
        return FixedLeaf(name, public_token(value.value), value.value, declared=True)
    if listed := listed_numbers(value):
        few = f", or `numpyro_dp.public({name})` if they are known without the records"
        raise UnsupportedModelError(
            f"argument `{name}` is a {listed}: pass `np.asarray({name})`"
            f"{few if len(value) < MANY else ''}"
        )
    if isinstance(value, np.generic) or (_is_array_like(value) and value.ndim == 0):
        raise UnsupportedModelError(
            f"argument `{name}` is an array scalar, perhaps computed from the data. Of a number "
            "known without the records, or released before, make a Python number, or pass "
            f"`numpyro_dp.public({name})`; converting any other does not make it public"
        )
    if _is_array_like(value):
        return _read_array(name, value)
    if isinstance(value, STATIC_TYPES) or callable(value):
        return FixedLeaf(name, static_token(value), value, declared=False)
    raise UnsupportedModelError(
        f"argument `{name}` is a {type(value).__name__}: pass NumPy or JAX arrays (or "
        f"`numpyro_dp.public({name})` if it holds nothing private){how_to_convert(name, value)}"
    )


def _read_array(name: str, value: Any) -> ArrayLeaf:
    if isinstance(value, np.ma.MaskedArray):
        raise UnsupportedModelError(
            f"argument `{name}` is a masked array, whose mask JAX would drop: pass the values and "
            "a Boolean mask as two arrays"
        )
    if not is_numeric(value):
        raise UnsupportedModelError(
            f"argument `{name}` is an array of dtype {value.dtype}: encode it as numbers (integer "
            f"codes for categories){how_to_unite(value)}"
        )
    if value.shape[0] == 0:
        raise UnsupportedModelError(
            f"argument `{name}` {value.shape} has no rows: a private posterior needs at least one "
            "record, so check how the data were loaded"
        )
    native = value.dtype.newbyteorder("=")
    return ArrayLeaf(name, tuple(value.shape), np.dtype(jax.dtypes.canonicalize_dtype(native)))
