"""The score of an adversary of a Metropolis chain: the likelihood ratio of its accept bits.

A step tells one bit, of a move that is public. Who knows all records but one knows the odds of that
bit with it and without.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from numpyro_dp.diagnostics.audit.neighbours import NeighbourPair
from numpyro_dp.mcmc.metropolis.step import BoundMetropolis
from numpyro_dp.mechanisms.accept.log_ratio import FullBatch, as_integers

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(40)


def tells_bits(kernel: Any) -> bool:
    """Whether every step of a kernel is one bit on all records, of a move that can be told."""
    return (
        isinstance(kernel, BoundMetropolis)
        and isinstance(kernel.plan.log_ratio, FullBatch)
        and kernel.plan.settings.private
        and kernel.plan.settings.num_candidates == 1
        and not kernel.public_moves
    )


def bit_score(
    kernel: BoundMetropolis, pair: NeighbourPair, before: Any, after: Any
) -> Float[Array, ""]:
    """Log likelihood ratio of one step's bit, the first data set of ``pair`` over the second.

    :param before: state of one chain before the step, its key included.
    :param after: state after it.
    """
    step_key, _ = random.split(kernel.keys(before)[1])
    move = kernel.proposed(step_key, before)
    there = kernel.at(before, move)
    prior = kernel.private_model.log_prior(there) - kernel.private_model.log_prior(before.z)
    possible, places = prior > -jnp.inf, [before.z, there]
    limit, tried, _ = kernel.plan.charge.admit(before.allowance, places, possible)
    change, unit = kernel.change(before, move), kernel.plan.test.grid.unit

    def terms(leaves: list[Array]) -> Float[Array, ""]:
        nats = jax.vmap(change.term)([leaf[:, None] for leaf in leaves])
        return unit * jnp.sum(as_integers(nats, unit, limit).astype(nats.dtype))

    shared = terms(pair.shared) + jnp.where(possible, prior, 0)
    accepted = jnp.any(ravel_pytree(after.z)[0] != ravel_pytree(before.z)[0])

    def log_odds(leaves: list[Array]) -> Float[Array, ""]:
        log_ratio = shared + terms(leaves)
        if kernel.plan.settings.acceptance == "barker":
            # Also where a bit is nearly sure, and tells most.
            return jax.nn.log_sigmoid(jnp.where(accepted, log_ratio, -log_ratio))
        chance = _acceptance(kernel, log_ratio)
        return jnp.log(jnp.where(accepted, chance, 1 - chance))

    ratio = log_odds(pair.own) - log_odds(pair.other)
    return jnp.where(tried & jnp.isfinite(ratio), ratio, 0)


def _acceptance(kernel: BoundMetropolis, log_ratio: Float[Array, ""]) -> Float[Array, ""]:
    """Chance of a move, by the kernel's rule."""
    settings = kernel.plan.settings
    sd = settings.noise_scale or 0.0
    noisy = log_ratio - sd**2 / 2 + sd * jnp.asarray(_NODES, log_ratio.dtype)
    penalty = settings.acceptance == "penalty"
    rule = jnp.exp(jnp.minimum(noisy, 0)) if penalty else jax.nn.sigmoid(noisy)
    return jnp.asarray(_WEIGHTS / _WEIGHTS.sum(), log_ratio.dtype) @ rule
