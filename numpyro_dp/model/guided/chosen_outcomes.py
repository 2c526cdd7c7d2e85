"""Outcomes that another outcome of the record decides about, as a cost where there is one.

What else a record might have shown is drawn at its own inputs and masks. Where a mask reads another
outcome, the record's own outcome and those drawn would not be alike: all who have a cost say that
they have one, and their scores, of two parts, are clipped more than those of the others. If each
outcome is an argument as it is, all of them are drawn in turn, and masks follow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_dp.model.jaxprs import Program, Pruned, prune, trace_program
from numpyro_dp.model.plates import Trace, peeled

# What entries of a table are made to be in turn, about so many made-up records.
_VALUES = (-1e4, -10.0, -1.0, 0.0, 0.5, 1.0, 2.0, 10.0, 1e4)
_RECORDS, _MOST_ENTRIES = 8, 256


class Chosen(NamedTuple):
    """Outcomes that a mask makes hang on another outcome.

    - **sites**: their names.
    - **places**: the record array that each observed site observes as it is, by its name in the
      order of the model, if all of them can be drawn in turn; else empty.
    """

    sites: tuple[str, ...] = ()
    places: Mapping[str, int] = {}


def chosen_outcomes(sites_of: Callable[[Any, list], Trace], values: Any, structs: list) -> Chosen:
    """Look at the masks of one record's observed sites.

    :param sites_of: the sites of one record at values and arrays.
    :param values: parameters and latents, or their shapes; **structs**: the record's arrays.
    """
    places: dict[str, int | None] = {}

    def parts(values: Any, record: list) -> list[Any]:
        found = sites_of(values, record)
        sites = {name: site for name, site in found.items() if site["is_observed"]}
        for name, site in sites.items():
            places[name] = next((i for i, x in enumerate(record) if x is site["value"]), None)
        shown = [jnp.asarray(site["value"]) for site in sites.values()]
        return shown + [jnp.asarray(peeled(site["fn"]).kept) for site in sites.values()]

    program = trace_program(parts, values, structs)
    count = len(places)
    each = [_only(program, k) for k in range(2 * count)]
    leaves = [*jax.tree.leaves(values), *structs]
    first = len(leaves) - len(structs)
    if not any(any(part.used[first:]) for part in each[count:]):
        return Chosen()
    read = [_entries_read(part, leaves, first) for part in each]
    shown, asked = read[:count], read[count:]
    # What one mask leaves out together is missing, and does not hang on each other.
    together = [str(part.jaxpr) for part in each[count:]], [part.used for part in each[count:]]
    chosen = tuple(
        name
        for k, name in enumerate(places)
        if any(
            asked[k] & shown[other] and not all(told[k] == told[other] for told in together)
            for other in range(count)
            if other != k
        )
    )
    # A mask that reads its own outcome tells who is missing, which a draw would not be.
    in_turn = not any(one & other for one, other in zip(shown, asked, strict=True))
    known = {name: place for name, place in places.items() if place is not None}
    alone = len(set(known.values())) == count
    return Chosen(chosen, known if chosen and in_turn and alone else {})


def _only(program: Program, k: int) -> Pruned:
    return prune(program, [k == each for each in range(len(program.closed.jaxpr.outvars))])


def _entries_read(part: Pruned, leaves: list, first: int) -> set[tuple[int, int]]:
    """Entries of the record's arrays, the leaves from ``first`` on, that a part reads."""
    found: set[tuple[int, int]] = set()
    for i in range(first, len(leaves)):
        if part.used[i]:
            found |= {(i, 0)} if leaves[i].size == 1 else _entries_followed(part, leaves, i)
    return found


def _entries_followed(part: Pruned, leaves: list, i: int) -> set[tuple[int, int]]:
    """Entries of a table that a part is seen to follow: a program does not say which it reads.

    A value that is missing is none of those tried: a mask of who is missing follows no outcome.
    """
    size = leaves[i].size
    if size > _MOST_ENTRIES:
        return set()
    rng = np.random.default_rng(0)
    with np.errstate(invalid="ignore"):
        made = [rng.choice(_VALUES, (_RECORDS, *leaf.shape)).astype(leaf.dtype) for leaf in leaves]
        values = np.asarray(_VALUES).astype(leaves[i].dtype)

    def at(record: Any, entry: Any, value: Any) -> Any:
        inputs = [rows[record] for rows in map(jnp.asarray, made)]
        inputs[i] = jnp.reshape(jnp.ravel(inputs[i]).at[entry].set(value), inputs[i].shape)
        return jnp.ravel(part(inputs)[0])

    over = jax.vmap(jax.vmap(jax.vmap(at, (None, None, 0)), (None, 0, None)), (0, None, None))
    seen = np.asarray(jax.jit(over)(jnp.arange(_RECORDS), jnp.arange(size), values))
    same = (seen == seen[:, :, :1]) | (np.isnan(seen) & np.isnan(seen[:, :, :1]))
    moved = ~same.all(axis=(0, 2, 3))
    return {(i, int(entry)) for entry in np.flatnonzero(moved)}
