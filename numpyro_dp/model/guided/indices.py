"""Whether indices by which a record chooses among latents are such: no -1, which is the last."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
from jax import Array
from jax.extend import core as jax_core

from numpyro_dp.model.guided.chosen_outcomes import parts_of
from numpyro_dp.model.jaxprs import Program, Pruned, prune, trace_program, with_outputs

# What hands on an index as it is, or puts indices of several axes beside each other.
_HANDED_ON = {"broadcast_in_dim", "convert_element_type", "reshape", "squeeze", "concatenate"}
# What makes one array of several, of which -1 may be meant, or may do so inside.
_LONGER = {"concatenate", "pad", "scatter", "dynamic_update_slice", "jit", "pjit", "scan", "while"}


def within_groups(term: Pruned, values: list, structs: list) -> tuple[Pruned, ...]:
    """Programs of whether each index that chooses of a latent is 0 or more, and below how many
    there are.

    JAX takes -1 for the last, and what is beyond for the last too. Of latents that were put behind
    each other nothing is said: there -1 may be meant.

    :param term: a record's log likelihood, of values and its arrays, whose shapes follow.
    """
    latents = set(term.jaxpr.invars[: sum(term.used[: len(values)])])
    found = dict(_indices(term.jaxpr, latents))
    if not found:
        return ()
    chosen = with_outputs(term.jaxpr, list(found))
    chosen_by = prune(Program(jax_core.ClosedJaxpr(chosen, term.consts), None))
    still = iter(chosen_by.used)
    chosen_by = chosen_by._replace(used=tuple(needed and next(still) for needed in term.used))

    def within(*inputs: Array) -> list[Array]:
        pairs = zip(chosen_by(inputs), found.values(), strict=True)
        return [jnp.all((index >= 0) & (index < size)) for index, size in pairs]

    each = parts_of(trace_program(within, *values, *structs))
    # What a latent decides is no index of the record's.
    return tuple(part for part in each if not any(part.used[: len(values)]))


def _indices(jaxpr: Any, latents: set) -> Iterator[tuple[Any, int]]:
    """Integers that choose of what latents alone make, and of how many; loops are not looked into.

    JAX adds the size of an axis to an index below 0, which shows both.
    """
    made = {out: equation for equation in jaxpr.eqns for out in equation.outvars}
    for equation in jaxpr.eqns:
        if equation.primitive.name == "gather":
            steps, begins = _behind(equation.invars[0], made)
            if not steps & _LONGER and begins and begins <= latents:
                yield from _wrapped(equation.invars[1], made)


def _behind(atom: Any, made: dict) -> tuple[set[str], set]:
    """The primitives that make an array, and the inputs that they begin with."""
    steps, begins, waiting = set(), set(), {atom}
    seen = set()
    while waiting:
        each = waiting.pop()
        if isinstance(each, jax_core.Literal) or each in seen:
            continue
        seen.add(each)
        equation = made.get(each)
        if equation is None:
            begins.add(each)
        else:
            steps.add(equation.primitive.name)
            waiting |= {x for x in equation.invars if not isinstance(x, jax_core.Literal)}
    return steps, begins


def _wrapped(atom: Any, made: dict) -> Iterator[tuple[Any, int]]:
    """What ``x`` is in ``x + size where x < 0 else x``, and the size."""
    equation = None if isinstance(atom, jax_core.Literal) else made.get(atom)
    if equation is None:
        return
    if equation.primitive.name in _HANDED_ON:
        for each in equation.invars:
            yield from _wrapped(each, made)
    elif equation.primitive.name == "select_n" and len(equation.invars) == 3:
        index, more = equation.invars[1], made.get(equation.invars[2])
        if more is not None and more.primitive.name == "add" and more.invars[0] is index:
            size = more.invars[1]
            if isinstance(size, jax_core.Literal):
                yield index, int(size.val)
