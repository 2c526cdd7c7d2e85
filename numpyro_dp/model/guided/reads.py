"""What part of a program of one record reads, by array and number of the entry."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_dp._quick_compile import quickly_jitted
from numpyro_dp.model.jaxprs import Pruned

# What entries of a table are made to be in turn, about so many made-up records.
_VALUES = (-1e4, -10.0, -1.0, 0.0, 0.5, *range(1, 65), 1e4)
# Values that most laws allow, of a record and of latents.
_USUAL, _LATENTS = (0.0, 1.0, 0.0, 1.0, 0.5, 2.0), (0.25, 0.5, 1.0, 0.5, 1.0, 2.0)
_RECORDS = 16
# Of larger arrays nothing is tried.
MOST_ENTRIES = 256

Entries = set[tuple[int, int]]


class Read:
    """What a part of a program reads of a record, whose arrays are some of its inputs."""

    def __init__(self, part: Pruned, leaves: list, record: range) -> None:
        self.part, self.leaves, self.first = part, leaves, record.start
        self.arrays = {i - record.start for i in record if part.used[i]}

    def array(self, i: int) -> Any:
        """Shape and type of an array of the record."""
        return self.leaves[self.first + i]

    def __eq__(self, other: object) -> bool:
        """Whether both compute the same of the same."""
        return isinstance(other, Read) and self._told == other._told

    __hash__ = None

    @property
    def _told(self) -> tuple[Any, ...]:
        arrays = (x for x in self.part.consts if not jnp.issubdtype(x.dtype, jax.dtypes.extended))
        return self.part.used, str(self.part.jaxpr), tuple(np.asarray(x).tobytes() for x in arrays)

    def entries(self, of: set[int] | None = None, *, missing: bool = True) -> Entries:
        """By array, of those in ``of``, and number of the entry.

        :param missing: also those of which only matters whether they are missing (NaN).
        """
        found: Entries = set()
        for i in self.arrays if of is None else self.arrays & of:
            here = self.first + i
            if self.leaves[here].size == 1 and (missing or not self._only_missing(here)):
                found.add((i, 0))
            elif self.leaves[here].size > 1:
                found |= {(i, e) for e in self._followed(here, _VALUES)}
        return found

    def missing(self, of: set[int]) -> Entries:
        """Entries of arrays of floats of which only matters whether they are missing (NaN)."""
        return {
            (i, entry)
            for i in self.arrays & of
            if jnp.issubdtype(self.array(i).dtype, jnp.inexact)
            for entry in self._followed(self.first + i, (0.0, np.nan))
        } - self.entries(of, missing=False)

    def _only_missing(self, i: int) -> bool:
        floats = jnp.issubdtype(self.leaves[i].dtype, jnp.inexact)
        told = floats and self._followed(i, (0.0, np.nan))
        return bool(told) and not self._followed(i, _VALUES)

    def _followed(self, i: int, values: Sequence[float]) -> list[int]:
        """Entries of an array that it is seen to follow: of a table a program does not say which.

        A value that is missing is none of those tried: a mask of who is missing follows nothing.
        """
        if self.leaves[i].size > MOST_ENTRIES:
            return []
        return [int(entry) for entry in np.flatnonzero(self._following(i, values).any(1))]

    def following(self, array: int) -> np.ndarray:
        """Which numbers follow which entries of an array, shape (entries, numbers).

        What is no number whatever was tried might follow all.
        """
        found = self._tried(self.first + array, _VALUES)
        return found.follows | found.lost

    def copying(self, array: int) -> np.ndarray:
        """Which numbers are copies of which entries of an array, where they follow them."""
        found = self._tried(self.first + array, _VALUES)
        return found.follows & found.copies

    def always(self) -> bool:
        """Whether what it tells is true whatever its arrays are seen to hold."""
        return bool(self.arrays) and bool(np.all(self.truths()))

    def truths(self) -> np.ndarray:
        """Which of its numbers are true whatever its arrays, of which it has some, hold."""
        held = (self._tried(self.first + i, _VALUES).true.all(0) for i in self.arrays)
        return np.all([*held], axis=0)

    def _following(self, i: int, values: Sequence[float]) -> np.ndarray:
        return self._tried(i, values).follows

    def _tried(self, i: int, values: Sequence[float]) -> _Tried:
        leaves, size = self.leaves, self.leaves[i].size
        rng = np.random.default_rng(0)
        with np.errstate(invalid="ignore"):
            made = [_made(rng, x, place < self.first) for place, x in enumerate(leaves)]
            tried = np.asarray(values).astype(leaves[i].dtype)

        def at(record: Any, entry: Any, value: Any) -> Any:
            inputs = [rows[record] for rows in map(jnp.asarray, made)]
            inputs[i] = jnp.reshape(jnp.ravel(inputs[i]).at[entry].set(value), inputs[i].shape)
            return jnp.ravel(self.part(inputs)[0])

        def looked_at(entry: Any) -> _Tried:
            of_values = jax.vmap(at, (None, None, 0))
            seen = jax.vmap(of_values, (0, None, None))(jnp.arange(_RECORDS), entry, tried)
            # What is no number is not even what it is.
            lost = seen != seen
            same = ((seen == seen[:, :1]) | (lost & lost[:, :1])).all(1)
            copied = (seen == tried[:, None].astype(seen.dtype)).all(1)
            true = seen.astype(bool).all((0, 1))
            return _Tried(~same.all(0), lost.all((0, 1)), (same | copied).all(0), true)

        # One entry after another: a table of many has many numbers that may follow.
        found = quickly_jitted(partial(jax.lax.map, looked_at))(jnp.arange(size))
        return _Tried(*map(np.asarray, found))


class _Tried(NamedTuple):
    """What numbers do when entries of an array are changed, each of shape (entries, numbers).

    - **follows**: whether it was seen to change; **lost**: whether it never was a number.
    - **copies**: whether it is the entry wherever it changes with it.
    - **true**: whether it never was 0.
    """

    follows: Any
    lost: Any
    copies: Any
    true: Any


def _made(rng: np.random.Generator, struct: Any, latent: bool) -> np.ndarray:
    """Values of an array for some made-up records."""
    found = rng.choice(_LATENTS if latent else _USUAL, (_RECORDS, *struct.shape))
    if latent and len(struct.shape) > 1 and struct.shape[-1] == struct.shape[-2]:
        # Both a covariance and a factor of one.
        found = np.broadcast_to(0.5 + 1.5 * np.eye(struct.shape[-1]), found.shape)
    return found.astype(struct.dtype)
