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

# Of a value and one: no end of a density is wider.
_BESIDE = 1e-6


def within_laws(
    sites_of: Callable[[Any, list], list[Mapping[str, Any]]], values: Any, structs: list
) -> tuple[Pruned, ...]:
    """Programs of whether it does, one of each site whose law says what it can have.

    They say no of an end of a density too, where it may be finite or not: the likelihood tells.
    Those that hang on a latent are left out: where it is not known yet nothing is outside.

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
    if not isinstance(limits, constraints.Constraint):
        return jnp.array(True)
    value = jnp.asarray(site["value"])
    # What is missing is another matter.
    missing, several = jnp.isnan(value), len(fn.event_shape)
    if several:
        missing = jnp.any(missing, axis=tuple(range(-several, 0)))
    try:
        inside = jnp.logical_and(limits(value), _off_its_ends(limits, value))
    except (NotImplementedError, ValueError):
        # NumPyro's word for a support that nobody can check.
        return jnp.array(True)
    return jnp.all(jnp.logical_not(kept) | missing | inside)


def _off_its_ends(limits: constraints.Constraint, value: Array) -> Array | bool:
    if limits is constraints.simplex:
        return jnp.all(value > 0, axis=-1)
    if limits.is_discrete or limits.event_dim:
        return True
    beside = _BESIDE * (1 + jnp.abs(value))
    return jnp.logical_and(limits(value - beside), limits(value + beside))
