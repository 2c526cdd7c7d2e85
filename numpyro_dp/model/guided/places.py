"""Where in a record outcomes stand, so that others may be put there, and in how many turns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from numpyro import distributions as dist

from numpyro_dp.model.guided.own_samples import in_its_type
from numpyro_dp.model.guided.reads import MOST_ENTRIES, Read

# Whose draws with one key are moved as their mean is.
_MOVED = dist.MultivariateNormal, dist.LowRankMultivariateNormal, dist.MultivariateStudentT


class Place(NamedTuple):
    """Where an outcome stands in the arrays of a record, number by number.

    - **arrays**: by array, for each of its entries which number of the outcome it is; -1 is none.
    - **turns**: how often the outcome is drawn, with one key, until each number follows those
      that its law reads.
    - **gaps**: whether what is missing (NaN) stays so.
    """

    arrays: tuple[tuple[int, tuple[int, ...]], ...]
    turns: int = 1
    gaps: bool = False

    def put(self, outcome: Any, record: Sequence[Any]) -> list[Any]:
        """A record with another outcome."""
        found = list(record)
        for i, numbers in self.arrays:
            leaf = jnp.ravel(found[i])
            other = jnp.ravel(in_its_type(jnp.asarray(outcome), leaf))
            both = jnp.concatenate([other, leaf])
            at = np.where(np.asarray(numbers) < 0, other.size + np.arange(leaf.size), numbers)
            # In pieces: an array of indices might be one of records, by its shape.
            runs = np.split(at, np.flatnonzero(np.diff(at) != 1) + 1)
            both = jnp.concatenate([both[run[0] : run[-1] + 1] for run in runs])
            if self.gaps and jnp.issubdtype(leaf.dtype, jnp.inexact):
                both = jnp.where(jnp.isnan(leaf), leaf, both)
            found[i] = jnp.reshape(both, jnp.shape(found[i]))
        return found


def places_of(shown: Sequence[list[tuple[int, int]]], arrays: Sequence[Any]) -> list[Place] | None:
    """Where some outcomes stand; ``None`` where two share a number.

    :param shown: of each, what its numbers are copies of; **arrays**: of the record, or structs.
    """
    entries = [entry for each in shown for entry in each]
    if len(set(entries)) < len(entries):
        return None
    places = []
    for each in shown:
        number = {entry: k for k, entry in enumerate(each)}
        touched = sorted({i for i, _ in each})
        of = [(i, tuple(number.get((i, e), -1) for e in range(arrays[i].size))) for i in touched]
        places.append(Place(tuple(of)))
    return places


def copied(read: Read) -> list[tuple[int, int]] | None:
    """By number of what is observed the array and entry that it is a copy of, or that it is where
    it is any, as in ``jnp.where(t[:, 0] == 1, t[:, 1], 0)``; ``None`` where one is computed.

    :param read: the program of what is observed.
    """
    if not read.part.jaxpr.eqns and len(read.arrays) == 1:
        (i,) = read.arrays
        return [(i, e) for e in range(read.array(i).size)]
    if any(read.array(i).size > MOST_ENTRIES for i in read.arrays):
        return None
    found: dict[int, tuple[int, int]] = {}
    for i in sorted(read.arrays):
        for entry, number in np.argwhere(read.copying(i)):
            if int(number) in found:
                return None
            found[int(number)] = i, int(entry)
    size = math.prod(read.part.out_shapes[0])
    return [found[k] for k in range(size)] if len(found) == size else None


def turns_of(place: Place, asked: Read, drawn: Read, law: Any) -> int | None:
    """In how many turns an outcome is drawn whose law or mask reads numbers of it.

    :param asked: the program of the mask; **drawn**: of a draw, with one key.
    :param law: what is inside of its distribution.
    :returns: ``None`` where its numbers follow each other in a circle, or a draw of each would not
        follow its own law. So with a mask that reads the number that it masks: one that stands for
        none, which a draw would not be.
    """
    (size,) = drawn.part.out_shapes[0]
    if law.event_shape and (asked.arrays or not isinstance(law, _MOVED)):
        return None
    if any(drawn.array(i).size > MOST_ENTRIES for i, _ in place.arrays):
        return None
    if asked.arrays and math.prod(asked.part.out_shapes[0]) != size:
        return None
    each = [_follows(place, read, size) for read in (drawn, asked)]
    if None in map(_longest, (each[0], each[0] | each[1])):
        return None
    return _longest(each[0])


def _follows(place: Place, read: Read, size: int) -> np.ndarray:
    """Which numbers of an outcome follow which of it, the latter by row."""
    follows = np.zeros((size, size), int)
    for i, numbers in place.arrays:
        if i in read.arrays:
            ours = np.flatnonzero(np.asarray(numbers) >= 0)
            follows[np.asarray(numbers)[ours]] |= read.following(i)[ours]
    return follows


def _longest(follows: np.ndarray) -> int | None:
    """How many numbers follow each other at most; ``None`` in a circle."""
    longest, reach = 1, follows
    while reach.any():
        if longest == len(follows):
            return None
        longest, reach = longest + 1, np.minimum(reach @ follows, 1)
    return longest
