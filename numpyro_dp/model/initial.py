"""Starting positions that no record has touched."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array
from numpyro.distributions import biject_to

from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.model.jaxprs import Pruned, fingerprint, prune, trace_program
from numpyro_dp.model.messages import explained
from numpyro_dp.model.names import quoted
from numpyro_dp.model.plates import run_whole
from numpyro_dp.model.programs import require_no_closure
from numpyro_dp.model.records import Layout
from numpyro_dp.model.structure import Structure

_TRIES = 100
_JITTER = 1e-4


def initial_program(
    model: Callable[..., Any],
    layout: Layout,
    structure: Structure,
    rng_key: Array,
    strategy: Callable[..., Any],
    num_records: int,
    private_size: bool,
) -> Callable[[Array], dict[str, Array]]:
    """Return key ↦ unconstrained position, traced without data; refuse a strategy that reads it."""
    # NumPyro's own convention: a bare strategy is called to get its configured form.
    configured = strategy if isinstance(strategy, partial) else strategy()
    rows = layout.rows
    key = jax.ShapeDtypeStruct(jnp.shape(rng_key), rng_key.dtype)
    pruned = _trace(model, layout, structure, key, configured, rows)
    for others in layout.other_rows() if private_size else ():
        longer = _trace(model, layout, structure, key, configured, others)
        if fingerprint(pruned) != fingerprint(longer):
            raise UnsupportedModelError(
                "the initial values depend on the number of records, which is private under "
                "add_remove: use `init_to_uniform` or `init_to_value`"
            )
    require_no_closure(pruned, layout, num_records)
    names = sorted(structure.latents)
    return lambda k: dict(zip(names, pruned([k]), strict=True))


def _trace(
    model: Callable[..., Any],
    layout: Layout,
    structure: Structure,
    key: jax.ShapeDtypeStruct,
    strategy: Callable[..., Any],
    rows: int,
) -> Pruned:
    def start(rng_key: Array, arrays: list[Any]) -> dict[str, Array]:
        trace, _ = run_whole(model, layout.fill(arrays), rng_key, strategy=strategy)
        return {
            name: jnp.asarray(
                biject_to(trace[name]["fn"].support).inv(jnp.asarray(trace[name]["value"])),
                structure.latents[name].dtype,
            )
            for name in structure.latents
        }

    with explained():
        program = trace_program(start, key, layout.structs(rows))
    pruned = prune(program)
    reads = [a.name for a, used in zip(layout.arrays, pruned.used[1:], strict=True) if used]
    if reads:
        raise UnsupportedModelError(
            f"the initial values depend on record argument(s) {quoted(reads)}: use a strategy "
            "that needs no data, such as `init_to_uniform`"
        )
    return pruned


def draw_position(
    start: Callable[[Array], dict[str, Array]],
    log_prior: Callable[[Mapping[str, Array]], Array],
    rng_key: Array,
) -> dict[str, Array]:
    """Draw until the prior is finite, at most 100 times, in plain or in traced code."""

    def attempt(key: Array) -> tuple[Array, dict[str, Array], Array]:
        key, draw_key, jitter_key = jax.random.split(key, 3)
        z = _off_zero(jitter_key, start(draw_key))
        return key, z, jnp.isfinite(log_prior(z))

    def again(state: tuple[Array, Array, dict[str, Array], Array]) -> Array:
        tries, _, _, finite = state
        return (tries < _TRIES) & ~finite

    def step(
        state: tuple[Array, Array, dict[str, Array], Array],
    ) -> tuple[Array, Array, dict[str, Array], Array]:
        tries, key, _, _ = state
        return (tries + 1, *attempt(key))

    if isinstance(rng_key, Tracer):
        # Every try within the loop: a program then holds once what draws and what judges it.
        found = jax.eval_shape(attempt, rng_key)[1:]
        z, finite = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), found)
        state = (jnp.asarray(0), rng_key, z, finite)
    else:
        state = (jnp.asarray(1), *attempt(rng_key))
        if not isinstance(state[3], Tracer) and bool(state[3]):
            return state[2]
    return jax.lax.while_loop(again, step, state)[2]


def _off_zero(key: Array, z: dict[str, Array]) -> dict[str, Array]:
    keys = jax.random.split(key, len(z))
    return {
        name: jnp.where(
            value == 0, _JITTER * jax.random.uniform(k, value.shape, value.dtype), value
        )
        for k, (name, value) in zip(keys, z.items(), strict=True)
    }
