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

    Each returns two truths: whether it shows that or what is a little beside it, and whether it
    shows exactly that, outside of which NumPyro's own laws have no density. Those that hang on a
    latent are left out: where it is not known yet nothing is outside.

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
        return jnp.array([True, True])
    value = jnp.asarray(site["value"])
    try:
        exactly = limits(value)
        beside = exactly | _beside(limits, value, event=bool(fn.event_shape))
    except (NotImplementedError, ValueError):
        # NumPyro's word for a support that nobody can check.
        return jnp.array([True, True])
    left = jnp.logical_not(kept)
    return jnp.stack([jnp.all(left | beside), jnp.all(left | exactly)])


def _beside(limits: constraints.Constraint, value: Array, *, event: bool) -> Array | bool:
    """Whether a formula takes it as well as what it can have: a fraction, a time of 0, an angle."""
    # Of several numbers, such as shares, rounding moves the sum.
    if event or limits is constraints.circular:
        return True
    if limits.is_discrete:
        fraction = jnp.issubdtype(value.dtype, jnp.inexact)
        return fraction and jnp.logical_and(limits(jnp.floor(value)), limits(jnp.ceil(value)))
    beside = _BESIDE * (1 + jnp.abs(value))
    return jnp.logical_or(limits(value + beside), limits(value - beside))
