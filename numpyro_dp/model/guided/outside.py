"""Whether a record shows what the laws of its outcomes can have: no 2 for a yes or no."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from numpyro.distributions import constraints

from numpyro_dp.model.guided.chosen_outcomes import parts_of
from numpyro_dp.model.jaxprs import Pruned, trace_program
from numpyro_dp.model.plates import peeled

# Of a value and one: more than float32 rounds off.
_BESIDE = 1e-6


def within_laws(
    sites_of: Callable[[Any, list], list[Mapping[str, Any]]], values: Any, structs: list
) -> tuple[Pruned, ...]:
    """Programs of whether it does, one of each site whose law says what it can have.

    Those that hang on a latent are left out: where it is not known yet nothing is outside. So are
    laws of several numbers, such as shares, which add up to 1 but for rounding.

    :param sites_of: the observed sites of one record at values and arrays.
    :param values: parameters and latents, or their shapes; **structs**: the record's arrays.
    """

    def parts(values: Any, record: list) -> list[Array]:
        return [_within(site) for site in sites_of(values, record)]

    count = len(jax.tree.leaves(values))
    found = parts_of(trace_program(parts, values, structs))
    return tuple(each for each in found if not any(each.used[:count]) and any(each.used))


def _within(site: Mapping[str, Any]) -> Array:
    fn, kept, _ = peeled(site["fn"])
    limits = getattr(fn, "support", None)
    # A density of angles is the same a turn on.
    judged = isinstance(limits, constraints.Constraint) and limits is not constraints.circular
    if not judged or fn.event_shape:
        return jnp.array(True)
    value = jnp.asarray(site["value"])
    try:
        if limits.is_discrete and not jnp.issubdtype(value.dtype, jnp.inexact):
            inside = limits(value)
        elif limits.is_discrete:
            # A fraction between two that it can have may be meant, as a share for a yes or no.
            inside = limits(jnp.floor(value)) & limits(jnp.ceil(value))
        else:
            # At an end that is not its own a density may be as good as beside it: a time of 0.
            beside = _BESIDE * (1 + jnp.abs(value))
            inside = limits(value) | limits(value + beside) | limits(value - beside)
    except (NotImplementedError, ValueError):
        # NumPyro's word for a support that nobody can check.
        return jnp.array(True)
    return jnp.all(jnp.logical_or(jnp.logical_not(kept), inside))
