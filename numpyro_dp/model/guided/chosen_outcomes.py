"""Outcomes that another outcome of the record decides about, as a cost where there is one.

What else a record might have shown is drawn at its own inputs and masks. Where a mask or a law
reads another outcome, the record's own outcome and those drawn would not be alike: all who have a
cost say that they have one, and their scores, of two parts, are clipped more than those of the
others. If each number of an outcome is one of an argument as it is, all are drawn in turn, and
masks and laws follow: outcome after outcome, and number after number where a law reads its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import random
from numpyro.distributions import constraints

from numpyro_dp.model.guided.places import Place, copied, places_of, turns_of
from numpyro_dp.model.guided.reads import Entries, Read
from numpyro_dp.model.jaxprs import Program, Pruned, prune, trace_program
from numpyro_dp.model.plates import Trace, peeled, row_sites
from numpyro_dp.model.private_model import PrivateModel


class Chosen(NamedTuple):
    """How the outcomes of a record hang on each other.

    - **asked**: sites that another outcome decides to ask, by a mask that reads it.
    - **told**: other sites whose law reads another outcome.
    - **places**: where in the record each observed site's outcome stands, in the order in which
      they can be drawn in turn; empty where they cannot, or none hangs on another or itself.
    - **says**: by site that another outcome decides to ask, and that has no place, the one whose 1
      says so, as that there is a cost; empty unless so with all.
    - **partial**: entries of arrays, by array and entry, that are read of those alone who are
      asked what another outcome decides.
    - **itself**: sites whose law reads a number of their own outcome, where there are no places.
    - **instead**: by site, another that is never asked with it and of which its law reads what is
      observed, as the time until which somebody was seen who had no event.
    """

    asked: tuple[str, ...] = ()
    told: tuple[str, ...] = ()
    places: Mapping[str, Place] = {}
    says: Mapping[str, str] = {}
    partial: frozenset[tuple[int, int]] = frozenset()
    itself: tuple[str, ...] = ()
    instead: Mapping[str, str] = {}


def chosen_outcomes(sites_of: Callable[[Any, list], Trace], values: Any, structs: list) -> Chosen:
    """Look at the masks and laws of one record's observed sites.

    :param sites_of: the sites of one record at values and arrays.
    :param values: parameters and latents, or their shapes; **structs**: the record's arrays.
    """
    names: list[str] = []

    def observed(values: Any, record: list) -> list[Any]:
        found = sites_of(values, record)
        sites = {name: site for name, site in found.items() if site["is_observed"]}
        names[:] = sites
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
    leaves, count = [*jax.tree.leaves(values), *structs, *others], len(names)
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
    hang = _hangs(asked, seen, by_mask, by_law)
    copies = [copied(part) for part in shown] if any(map(any, hang)) else []
    known = [each for each in copies if each is not None]
    if known and len(known) == count:
        # Without what only says where an outcome is any.
        seen = [set(each) for each in known]
        hang = _hangs(asked, seen, by_mask, by_law)
    asked_of, told_of, itself, until = hang
    parents = [one | other for one, other in zip(asked_of, told_of, strict=True)]
    # Who is missing stays so. Of those whom an outcome asks it is not known who would be.
    missing = set().union(*(part.missing(of) for part in asked)) if any(map(any, hang)) else ()
    own = missing and (any(asked_of) or any(until))

    def drawn(k: int) -> tuple[Read, Any]:
        laws: list[Any] = []

        def draw(values: Any, record: list, _: list) -> jax.Array:
            fn = observed(values, record)[k]["fn"]
            laws.append(peeled(fn).fn)
            return jnp.ravel(fn.sample(random.key(0)))

        return Read(prune(trace_program(draw, values, structs, others)), leaves, record), laws[-1]

    places: dict[str, Place] = {}
    order = _in_order(parents) if any(map(any, hang)) and len(known) == count and not own else None
    if order is not None:
        found = dict(zip(order, places_of([known[k] for k in order], structs) or (), strict=False))
        for k in (k for k in order if itself[k] or until[k]):
            turns = turns_of(found[k], asked[k], *drawn(k)) if k in found else None
            found = {**found, k: found[k]._replace(turns=turns)} if turns else {}
        places = {names[k]: each._replace(gaps=bool(missing)) for k, each in found.items()}
    chosen = [k for k in range(count) if asked_of[k]]

    def says(k: int, other: int) -> bool:
        """Whether a site is asked if another of noughts and ones is 1."""

        def agree(values: Any, record: list, _: list) -> jax.Array:
            sites = observed(values, record)
            shown, law = jnp.asarray(sites[other]["value"]), peeled(sites[k]["fn"])
            if not (_binary(sites[other]) and shown.size == jnp.size(law.kept) == 1):
                return jnp.zeros(())
            asked = jnp.reshape(law.kept, shown.shape)
            return jnp.all(((shown != 0) & (shown != 1)) | (asked == (shown == 1)))

        return Read(prune(trace_program(agree, values, structs, others)), leaves, record).always()

    def never_both(k: int, other: int) -> bool:
        def never(values: Any, record: list, _: list) -> jax.Array:
            sites = observed(values, record)
            return ~jnp.all(jnp.stack([jnp.any(peeled(sites[j]["fn"]).kept) for j in (k, other)]))

        return Read(prune(trace_program(never, values, structs, others)), leaves, record).always()

    told_by = {}
    if chosen and not (places or missing or any(told_of) or any(itself)):
        told_by = {
            k: j for k in chosen for j in asked_of[k] if len(asked_of[k]) == 1 and says(k, j)
        }
    return Chosen(
        tuple(names[k] for k in chosen),
        tuple(names[k] for k in range(count) if told_of[k] and not asked_of[k]),
        places,
        {names[k]: names[j] for k, j in told_by.items()} if len(told_by) == len(chosen) else {},
        frozenset(_partial(told, seen, set(chosen)) if chosen else ()),
        () if places else tuple(names[k] for k in range(count) if itself[k]),
        {names[k]: names[j] for k in range(count) for j in told_of[k] if never_both(k, j)},
    )


def _binary(site: Mapping[str, Any]) -> bool:
    return peeled(site["fn"]).fn.support is constraints.boolean


class _Hangs(NamedTuple):
    """What each outcome hangs on.

    - **asked**, **told**: the others that its mask and its law read.
    - **itself**, **until**: numbers of itself that its law and its mask read, the latter as of who
      is at risk until there was an event.
    """

    asked: list[set[int]]
    told: list[set[int]]
    itself: list[Entries]
    until: list[Entries]


def _hangs(
    asked: list[Read], seen: list[Entries], by_mask: list[Entries], by_law: list[Entries]
) -> _Hangs:
    asked_of = [_parents(entries, seen, k) for k, entries in enumerate(by_mask)]
    # What one mask leaves out together is missing, and does not hang on each other.
    asked_of = [{j for j in at if asked[j] != asked[k]} for k, at in enumerate(asked_of)]
    told_of = [_parents(entries, seen, k) for k, entries in enumerate(by_law)]
    itself = [entries & own for entries, own in zip(by_law, seen, strict=True)]
    until = [entries & own for entries, own in zip(by_mask, seen, strict=True)]
    return _Hangs(asked_of, told_of, itself, until)


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


def parts_of(program: Program) -> list[Pruned]:
    """What is left of a program for each of its outputs alone."""
    count = range(len(program.closed.jaxpr.outvars))
    return [prune(program, [k == each for each in count]) for k in count]


@lru_cache(maxsize=16)
def chosen_of(model: PrivateModel) -> Chosen:
    """The same of a split model."""
    if not model.structure.inside(model.plate, "observed"):
        return Chosen()

    def sites_of(values: Any, record: list) -> Trace:
        shared = model.function, model.plate, model.num_records
        return row_sites(*shared, values, model.layout.fill(record), random.key(0), 1)

    return chosen_outcomes(sites_of, model.programs.constrained, model.layout.structs(1))
