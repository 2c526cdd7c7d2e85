"""Where chains start: drawn from public values, or given by the caller."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import random
from numpyro.infer import init_to_uniform

from numpyro_dp._arrays import unplaced
from numpyro_dp.model.private_model import PrivateModel

# Close to the middle of every prior: a private run has few steps to spend on the way to the mode.
_NEAR_ZERO = init_to_uniform(radius=0.1)


def starting_positions(
    model: PrivateModel, strategy: Any, keys: Any, init_params: Any, num_chains: int
) -> dict:
    """Unconstrained starting positions, with a leading chain axis for several chains.

    :param model: the model.
    :param strategy: a NumPyro initialisation strategy, or ``None`` for one near zero.
    :param keys: one typed key, or one for each chain.
    :param init_params: positions that the caller gives instead, checked for their shapes.
    :param num_chains: chains to start.
    :raises ValueError: when ``init_params`` does not fit the latents, or is not finite.
    """
    several = num_chains > 1
    if several and keys.ndim == 0:
        keys = random.split(keys, num_chains)
    drawn = _drawn(model, _NEAR_ZERO if strategy is None else strategy, keys)
    if init_params is None:
        return drawn
    expected = jax.tree.map(jnp.shape, drawn)
    given = jax.tree.map(jnp.shape, init_params)
    if given != expected:
        raise ValueError(
            f"init_params has shapes {given}, but the unconstrained latents"
            f"{' (leading axis: chains)' if several else ''} have {expected}"
        )
    given = unplaced(init_params)
    found = jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), given, drawn)
    if not all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(found)):
        raise ValueError("init_params holds numbers that are not finite: no step leads from there")
    return found


@partial(jax.jit, static_argnums=(0, 1))
def _drawn(model: PrivateModel, strategy: Any, keys: Any) -> dict:
    def draw(key):
        return model.init(key, strategy)

    return jax.vmap(draw)(keys) if keys.ndim else draw(keys)
