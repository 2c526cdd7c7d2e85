"""Outcomes that another outcome of the record decides about, as a cost where there is one.

What else a record might have shown is drawn at its own inputs and masks. Where a mask or a law
reads another outcome, the record's own outcome and those drawn would not be alike: all who have a
cost say that they have one, and their scores, of two parts, are clipped more than those of the
others. If each outcome is an argument as it is, all are drawn in turn, and masks and laws follow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from numpyro_dp._quick_compile import quickly_jitted
from numpyro_dp.model.jaxprs import Program, Pruned, prune, trace_program
from numpyro_dp.model.plates import Trace, peeled, row_sites
from numpyro_dp.model.private_model import PrivateModel

# What entries of a table are made to be in turn, about so many made-up records.
_VALUES = (-1e4, -10.0, -1.0, 0.0, 0.5, *range(1, 65), 1e4)
# Values that most laws allow.
_USUAL = (0.0, 1.0, 0.0, 1.0, 0.5, 2.0)
_RECORDS, _MOST_ENTRIES = 16, 256


class Chosen(NamedTuple):
    """How the outcomes of a record hang on each other.

    - **asked**: sites that another outcome decides to ask, by a mask that reads it.
    - **told**: other sites whose law reads another outcome.
    - **places**: the record array that each observed site observes as it is, in the order in which
      they can be drawn in turn; empty where they cannot, or none hangs on another.
    - **partial**: entries of arrays, by array and entry, that are read of those alone who are
      asked what another outcome decides.
    - **itself**: sites whose law reads a number of their own outcome.
    """

    asked: tuple[str, ...] = ()
    told: tuple[str, ...] = ()
    places: Mapping[str, int] = {}
    partial: frozenset[tuple[int, int]] = frozenset()
    itself: tuple[str, ...] = ()


Entries = set[tuple[int, int]]


def chosen_outcomes(sites_of: Callable[[Any, list], Trace], values: Any, structs: list) -> Chosen:
    """Look at the masks and laws of one record's observed sites.

    :param sites_of: the sites of one record at values and arrays.
    :param values: parameters and latents, or their shapes; **structs**: the record's arrays.
    """
    places: dict[str, int | None] = {}

    def observed(values: Any, record: list) -> list[Any]:
        found = sites_of(values, record)
        sites = {name: site for name, site in found.items() if site["is_observed"]}
        for name, site in sites.items():
            places[name] = next((i for i, x in enumerate(record) if x is site["value"]), None)
        return list(sites.values())

    def parts(values: Any, record: list, others: list) -> list[Any]:
        sites = observed(values, record)
        laws = [peeled(site["fn"]) for site in sites]
        shown = [jnp.asarray(site["value"]) for site in sites]
        told = [law.fn.log_prob(other) for law, other in zip(laws, others, strict=True)]
        return shown + [jnp.asarray(law.kept) for law in laws] + told

    shapes = partial(jax.eval_shape, lambda *at: [jnp.asarray(x["value"]) for x in observed(*at)])
    # In the place of what is observed, so that what a law reads beside it is seen.
    others = shapes(values, structs)
    program = trace_program(parts, values, structs, others)
    leaves, count = [*jax.tree.leaves(values), *structs, *others], len(places)
    each = parts_of(program)
    record = range(len(leaves) - len(structs) - count, len(leaves) - count)
    shown, asked, told = (
        [Read(part, leaves, record) for part in each[k * count : (k + 1) * count]] for k in range(3)
    )
    # Of arrays that nobody observes it matters only later.
    of = {i for part in shown for i in part.arrays}
    seen = [part.entries(of) for part in shown]
    by_mask = [part.entries(of, missing=False) for part in asked]
    by_law = [part.entries(of) for part in told]
    asked_of = [_parents(entries, seen, k) for k, entries in enumerate(by_mask)]
    # What one mask leaves out together is missing, and does not hang on each other.
    asked_of = [{j for j in at if asked[j] != asked[k]} for k, at in enumerate(asked_of)]
    told_of = [_parents(entries, seen, k) for k, entries in enumerate(by_law)]
    parents = [one | other for one, other in zip(asked_of, told_of, strict=True)]
    names, order = list(places), _in_order(parents)
    # A law that reads its own outcome draws entry after entry, and a mask that does tells who is
    # missing, which a draw would not be.
    own = any(one[k] & seen[k] for one in (by_mask, by_law) for k in range(count))
    own |= any(part.entries(of) - entries for part, entries in zip(asked, by_mask, strict=True))
    known = {names[k]: place for k in order or () if (place := places[names[k]]) is not None}
    alone = len(set(known.values())) == count
    chosen = [k for k in range(count) if asked_of[k]]
    return Chosen(
        tuple(names[k] for k in chosen),
        tuple(names[k] for k in range(count) if told_of[k] and not asked_of[k]),
        known if any(parents) and alone and not own else {},
        frozenset(_partial(told, seen, set(chosen)) if chosen else ()),
        tuple(names[k] for k in range(count) if by_law[k] & seen[k]),
    )


def _parents(read: Entries, shown: list[Entries], k: int) -> set[int]:
    """Which others of the observed sites show what the ``k``-th reads."""
    return {j for j, entries in enumerate(shown) if j != k and entries & read}


def _in_order(parents: list[set[int]]) -> list[int] | None:
    """The sites, each after those that it reads; ``None`` where they read each other."""
    order: list[int] = []
    while len(order) < len(parents):
        ready = [k for k in range(len(parents)) if k not in order and parents[k] <= set(order)]
        if not ready:
            return None
        order.append(ready[0])
    return order


def _partial(told: list[Read], shown: list[Entries], chosen: set[int]) -> Entries:
    """Inputs that laws of chosen sites read, and no other law."""
    read = [part.entries() for part in told]
    of_all = set().union(*shown, *(read[k] for k in range(len(read)) if k not in chosen))
    return set().union(*(read[k] for k in chosen)) - of_all


class Read:
    """What a part of a program reads of a record, whose arrays are some of its inputs."""

    def __init__(self, part: Pruned, leaves: list, record: range) -> None:
        self.part, self.leaves, self.first = part, leaves, record.start
        self.arrays = {i - record.start for i in record if part.used[i]}

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

    def _only_missing(self, i: int) -> bool:
        floats = jnp.issubdtype(self.leaves[i].dtype, jnp.inexact)
        told = floats and self._followed(i, (0.0, np.nan))
        return bool(told) and not self._followed(i, _VALUES)

    def _followed(self, i: int, values: Sequence[float]) -> list[int]:
        """Entries of an array that it is seen to follow: of a table a program does not say which.

        A value that is missing is none of those tried: a mask of who is missing follows nothing.
        """
        leaves, size = self.leaves, self.leaves[i].size
        if size > _MOST_ENTRIES:
            return []
        rng = np.random.default_rng(0)
        with np.errstate(invalid="ignore"):
            made = [rng.choice(_USUAL, (_RECORDS, *x.shape)).astype(x.dtype) for x in leaves]
            tried = np.asarray(values).astype(leaves[i].dtype)

        def at(record: Any, entry: Any, value: Any) -> Any:
            inputs = [rows[record] for rows in map(jnp.asarray, made)]
            inputs[i] = jnp.reshape(jnp.ravel(inputs[i]).at[entry].set(value), inputs[i].shape)
            return jnp.ravel(self.part(inputs)[0])

        over = jax.vmap(jax.vmap(jax.vmap(at, (None, None, 0)), (None, 0, None)), (0, None, None))
        found = quickly_jitted(over)(jnp.arange(_RECORDS), jnp.arange(size), tried)
        seen = np.asarray(found)
        same = (seen == seen[:, :, :1]) | (np.isnan(seen) & np.isnan(seen[:, :, :1]))
        return [int(entry) for entry in np.flatnonzero(~same.all(axis=(0, 2, 3)))]


def parts_of(program: Program) -> list[Pruned]:
    """What is left of a program for each of its outputs alone."""
    count = range(len(program.closed.jaxpr.outvars))
    return [prune(program, [k == each for each in count]) for k in count]


@lru_cache(maxsize=16)
def chosen_of(model: PrivateModel) -> Chosen:
    """The same of a split model."""
    if len(model.structure.inside(model.plate, "observed")) < 1:
        return Chosen()

    def sites_of(values: Any, record: list) -> Trace:
        shared = model.function, model.plate, model.num_records
        return row_sites(*shared, values, model.layout.fill(record), random.key(0), 1)

    return chosen_outcomes(sites_of, model.programs.constrained, model.layout.structs(1))
