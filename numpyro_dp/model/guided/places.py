"""Where in a record outcomes stand, so that others may be put there, and in how many turns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from numpyro import distributions as dist

from numpyro_dp._quick_compile import quickly_jitted
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
            # A gather: XLA scatters one number after another on a CPU.
            at = np.where(np.asarray(numbers) < 0, other.size + np.arange(leaf.size), numbers)
            whole = other.size == leaf.size and (at == np.arange(leaf.size)).all()
            both = other if whole else jnp.concatenate([other, leaf])[at]
            if self.gaps and jnp.issubdtype(leaf.dtype, jnp.inexact):
                both = jnp.where(jnp.isnan(leaf), leaf, both)
            found[i] = jnp.reshape(both, jnp.shape(found[i]))
        return found


def places_of(shown: Sequence[Read]) -> list[Place] | None:
    """Where some outcomes stand; ``None`` where one is computed, or two share a number.

    :param shown: programs of what is observed.
    """
    places: list[Place] = []
    met: set[tuple[int, int]] = set()
    for read in shown:
        entries = _copied(read)
        if entries is None or met & set(entries) or len(set(entries)) < len(entries):
            return None
        met |= set(entries)
        number = {entry: k for k, entry in enumerate(entries)}
        places.append(
            Place(
                tuple(
                    (i, tuple(number.get((i, e), -1) for e in range(read.array(i).size)))
                    for i in sorted(read.arrays)
                )
            )
        )
    return places


def _copied(read: Read) -> list[tuple[int, int]] | None:
    """By number of what is observed the array and entry that it is a copy of."""
    if not read.part.jaxpr.eqns and len(read.arrays) == 1:
        (i,) = read.arrays
        return [(i, e) for e in range(read.array(i).size)]
    arrays = {i: read.array(i) for i in sorted(read.arrays)}
    if not arrays or sum(x.size for x in arrays.values()) > MOST_ENTRIES:
        return None
    # What is computed is no mark, or not under both signs.
    first, second = (_marked(read, arrays, sign) for sign in (1, -1))
    return first if first == second else None


def _marked(read: Read, arrays: dict[int, Any], sign: int) -> list[tuple[int, int]] | None:
    inputs = [np.ones(x.shape, x.dtype) for x in read.leaves]
    mark: dict[float, tuple[int, int]] = {}
    for i, x in arrays.items():
        floats = jnp.issubdtype(x.dtype, jnp.floating)
        if not floats and not jnp.issubdtype(x.dtype, jnp.signedinteger):
            return None
        # A fraction, so that what is rounded is no copy.
        marks = sign * (len(mark) + 2 + np.arange(x.size) + 0.25 * floats)
        inputs[read.first + i] = marks.reshape(x.shape).astype(x.dtype)
        mark |= {float(each): (i, e) for e, each in enumerate(marks)}
    value = np.ravel(np.asarray(quickly_jitted(lambda at: read.part(at)[0])(inputs)))
    found = [mark[each] for each in map(float, value) if each in mark]
    return found if len(found) == value.size else None


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
    if asked.arrays and math.prod(asked.part.out_shapes[0]) != size:
        return None
    each = [_follows(place, read, size) for read in (drawn, asked)]
    if None in map(_longest, (each[0], each[0] | each[1])):
        return None
    return _longest(each[0])


def _follows(place: Place, read: Read, size: int) -> np.ndarray:
    """Which numbers of an outcome, by column, follow which others of it."""
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
