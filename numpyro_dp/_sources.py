"""Records that a store hands out by row number, fetched while a compiled loop runs.

The program holds the number of a *reading* in place of records, and calls back to the host with row
numbers. What a store says of single rows stays inside of the call: an error there would be one on
the rows that were drawn.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int32

from numpyro_dp import _validate
from numpyro_dp._arrays import as_jax, host_device

UNREAD = (
    "records could not be fetched from their store, or did not come in the shape and dtype that "
    "their RecordSource states: the run ends without a result. Which rows, and what the store said "
    "of them, is not told: whose records were drawn is secret. Look into the store itself, such as "
    "by reading all of it once, and run again"
)
"""Said of every failure alike."""
NOT_FETCHED = (
    "rows of a RecordSource are fetched by DPSGLD, DPSGHMC, DPSGNHT and DPSGFS with step_size and "
    "clip_norm, in numpyro_dp.MCMC, and by DPSVI with clip_norm, where no other argument is "
    "divided among devices. Use one of these, or copy the "
    "records once, piece by piece, to a file made by np.lib.format.open_memmap, which whatever "
    "computes on a CPU reads where it lies"
)
"""Said where records would have to be at hand."""


class Storage(NamedTuple):
    """Who sees which rows are fetched; a plain value.

    - **trusted**: whether whoever stores the records may be taken not to look.
    """

    trusted: bool


class RecordSource:
    """Records that stay in a store of yours, and are fetched by row number while a run computes.

    Stands where an array of records would stand, in :class:`~numpyro_dp.MCMC` with ``DPSGLD``,
    ``DPSGHMC``, ``DPSGNHT`` or ``DPSGFS`` (``step_size`` and ``clip_norm`` given), and in
    :class:`~numpyro_dp.DPSVI` with ``clip_norm``: for records larger than the memory of the device
    that computes. Bits are those of an array. Everything else refuses it before the charge.

    :param store: has ``__len__`` and ``__getitems__``, as grain's, Hugging Face's and PyTorch's
        sources do: the latter takes a list of row numbers, of which some may be equal, and
        returns as many records in that order: a sequence, or one array (for ``field``, a mapping
        to arrays) with a row for each. It is called on threads of JAX's own, and must not use JAX.
    :param shape: shape of one record, ``()`` for a number; by default the store's own
        ``shape[1:]``. Public.
    :param dtype: type of its entries; by default the store's own ``dtype``. Public.
    :param field: which part of each record, for stores whose records are dictionaries or tuples.
        Sources of one store are fetched together.
    :param trusted_storage: whether whoever stores the records, and whoever sees what is asked of
        the store, is trusted not to look at which rows are fetched.
    :raises ValueError: an argument is out of range, or the store is none.

    **Privacy.** Row numbers of a mini-batch say whose records are in it, and the store is told
    them. Unless ``trusted_storage=True``, a run therefore claims no amplification by sampling: it
    is charged as if every record were in every batch, each step as a Gaussian mechanism. With it,
    steps are charged as those of an array in memory, and the charge is conditional: the condition
    stands in the report, and an accountant with a budget needs ``allow_conditional=True``. Batches
    are fetched in full: padding asks for row 0. The number of records is public. No record is
    fetched before the charge; a failure after it ends the run with one fixed message. What the
    store itself logs or prints is its own.

    **References.** ``__getitems__`` is that of PyTorch's map-style datasets. What a store sees, and
    why it matters: *Records larger than memory* (docs/howto/larger-than-memory.md).

    **Example**::

        >>> import numpy as np
        >>> import numpyro_dp as ndp
        >>> class Store:
        ...     def __len__(self):
        ...         return 1_000
        ...     def __getitems__(self, rows):
        ...         return [{"x": np.ones(3), "y": 1} for _ in rows]
        >>> store = Store()
        >>> ndp.RecordSource(store, shape=(3,), dtype="float32", field="x")
        RecordSource(float32[1000, 3], field='x')
    """

    def __init__(
        self,
        store: Any,
        *,
        shape: Sequence[int] | None = None,
        dtype: Any = None,
        field: Any = None,
        trusted_storage: bool = False,
    ) -> None:
        missing = [n for n in ("__len__", "__getitems__") if not callable(getattr(store, n, None))]
        if missing:
            raise ValueError(
                f"a store needs __len__ and __getitems__(rows), which returns the records of a "
                f"list of row numbers: {type(store).__name__} has no {' and no '.join(missing)}; "
                "wrap it in a class of yours that has both"
            )
        if not isinstance(trusted_storage, bool):
            given = _validate.shown(trusted_storage)
            raise ValueError(f"trusted_storage must be True or False, got {given}")
        if shape is None and field is None:
            shape = tuple(getattr(store, "shape", ()))[1:] if hasattr(store, "shape") else None
        if dtype is None and field is None:
            dtype = getattr(store, "dtype", None)
        if shape is None or dtype is None:
            raise ValueError(
                "give shape= and dtype= of one record, which the store does not tell: they are "
                "public, and no record is looked at for them"
            )
        try:
            self.shape: tuple[int, ...] = (len(store), *map(operator.index, shape))
        except TypeError:
            given = _validate.shown(shape)
            raise ValueError(f"shape must be a tuple of integers, got {given}") from None
        if min(self.shape[1:], default=1) < 1:
            raise ValueError(f"shape must hold positive sizes, got {self.shape[1:]}")
        self.dtype = np.dtype(dtype)
        self.field, self.trusted_storage = field, trusted_storage
        self._store = store

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        part = "" if self.field is None else f", field={self.field!r}"
        return f"RecordSource({self.dtype}{list(self.shape)}{part})"


def storage_of(arrays: Sequence[Any]) -> Storage | None:
    """Where some arrays of records are fetched from; ``None`` if none of them is.

    Trusted is what every one of them declares to be.
    """
    sources = [array for array in arrays if isinstance(array, RecordSource)]
    return Storage(all(each.trusted_storage for each in sources)) if sources else None


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["reading"],
    meta_fields=["place", "shape", "dtype"],
)
@dataclass(frozen=True)
class StoredRows:
    """A leaf of records whose rows are fetched; an argument of compiled programs.

    :param reading: number of the reading, the one thing that a program knows of a store.
    :param place: which of its sources.
    :param shape: of all records.
    :param dtype: of what is fetched.
    """

    reading: Array
    place: int
    shape: tuple[int, ...]
    dtype: np.dtype


@dataclass(eq=False)
class Reading:
    """What one run fetches; nothing is fetched before it is opened, nor after it is closed."""

    number: int = field(default_factory=itertools.count(1).__next__)
    sources: list[tuple[RecordSource, np.dtype]] = field(default_factory=list)
    failed: bool = False
    interrupted: bool = False

    def open(self, source: Any, dtype: np.dtype) -> Any:
        """The leaf that stands for a source within a program; of an array, the array for JAX.

        :raises ValueError: JAX has no CPU, by which programs call back, or is one of several
            processes.
        """
        if not isinstance(source, RecordSource):
            return as_jax(source, dtype)
        if jax.process_count() > 1:
            raise ValueError(
                "a RecordSource is fetched by one process, and this is one of several, each of "
                "which would fetch the same batches: run it without jax.distributed.initialize()"
            )
        if host_device() is None:
            raise ValueError(
                "a RecordSource is fetched by the host, which JAX is not allowed to use: add cpu "
                "to JAX_PLATFORMS, such as 'cuda,cpu'"
            )
        _OPEN[self.number] = self
        self.sources.append((source, dtype))
        number = jnp.asarray(np.uint32(self.number))
        return StoredRows(number, len(self.sources) - 1, source.shape, dtype)

    def close(self) -> None:
        """Let go of the sources: what still asks for rows gets zeros."""
        _OPEN.pop(self.number, None)
        self.sources.clear()

    def require_read(self) -> None:
        """Refuse a result of records that were not all fetched.

        :raises RuntimeError: :data:`UNREAD`.
        :raises KeyboardInterrupt: somebody stopped the run while it was fetching.
        """
        if self.interrupted:
            raise KeyboardInterrupt
        if self.failed:
            raise RuntimeError(UNREAD)

    def rows(self, places: Sequence[int], rows: np.ndarray) -> list[np.ndarray] | None:
        """The rows of some sources; ``None`` where they could not be had, now or before."""
        if self.failed or self.interrupted:
            return None
        try:
            return self._rows([self.sources[place] for place in places], rows)
        except KeyboardInterrupt:
            self.interrupted = True
        except BaseException:
            # Whatever it is, it may tell of the rows: it ends here, and is not chained.
            self.failed = True
        return None

    def _rows(
        self, wanted: Sequence[tuple[RecordSource, np.dtype]], rows: np.ndarray
    ) -> list[np.ndarray]:
        numbers = rows.astype(np.int64).reshape(-1)
        got: dict[int, Any] = {}
        found = []
        for source, dtype in wanted:
            store = source._store
            if id(store) not in got:
                got[id(store)] = store.__getitems__(numbers.tolist())
            array = _stacked(got[id(store)], source.field)
            if array.shape != (numbers.size, *source.shape[1:]):
                raise ValueError("another shape")
            # NumPy's word on a number that does not fit would be one on a record.
            with np.errstate(all="ignore"):
                array = array.astype(dtype, casting="same_kind", copy=False)
            found.append(array.reshape(*rows.shape, *source.shape[1:]))
        return found


_OPEN: dict[int, Reading] = {}


def _stacked(records: Any, part: Any) -> np.ndarray:
    if part is not None:
        by_name = isinstance(records, Mapping)
        records = records[part] if by_name else [record[part] for record in records]
    found = np.ma.asarray(records) if _is_masked(records) else np.asarray(records)
    if np.ma.is_masked(found):
        raise ValueError("missing values")  # NumPy would give what lies beneath.
    return np.asarray(found)


def _is_masked(records: Any) -> bool:
    each = records if isinstance(records, (list, tuple)) else ()
    return any(isinstance(one, np.ma.MaskedArray) for one in (records, *each))


@dataclass(frozen=True)
class _Fetch:
    """What a program calls on the host; it never raises."""

    places: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[np.dtype, ...]

    def __call__(self, number: Any, rows: Any) -> list[np.ndarray]:
        asked = np.asarray(rows)
        reading = _OPEN.get(int(np.asarray(number).reshape(-1)[0]))
        found = None if reading is None else reading.rows(self.places, asked)
        if found is not None:
            return found
        each = zip(self.shapes, self.dtypes, strict=True)
        return [np.zeros((*asked.shape, *shape), dtype) for shape, dtype in each]


def rows_of(
    records: Sequence[Any], rows: Int32[Array, " rows"], resident: Callable[[Array], Array]
) -> list[Array]:
    """Rows of every leaf of records, in one call to the host for all that are stored elsewhere.

    :param rows: their numbers.
    :param resident: how they are taken from a leaf that is at hand.
    """
    stored = [leaf for leaf in records if isinstance(leaf, StoredRows)]
    if not stored:
        return [resident(leaf) for leaf in records]
    shapes = tuple(leaf.shape[1:] for leaf in stored)
    dtypes = tuple(leaf.dtype for leaf in stored)
    fetch = _Fetch(tuple(leaf.place for leaf in stored), shapes, dtypes)
    like = [
        jax.ShapeDtypeStruct((*rows.shape, *shape), dtype)
        for shape, dtype in zip(shapes, dtypes, strict=True)
    ]
    # Chains side by side ask together: their rows have one axis more, and the number one of 1.
    found = iter(jax.pure_callback(fetch, like, stored[0].reading, rows, vmap_method="expand_dims"))
    return [next(found) if isinstance(leaf, StoredRows) else resident(leaf) for leaf in records]


def require_read(records: Sequence[Any], computed: Any) -> None:
    """End a run whose records could not be fetched, while it is under way.

    :param records: its leaves.
    :param computed: what was computed of them, which is waited for where they are fetched.
    :raises RuntimeError: :data:`UNREAD`.
    """
    for number in {int(leaf.reading) for leaf in records if isinstance(leaf, StoredRows)}:
        jax.block_until_ready(computed)
        _OPEN[number].require_read()
