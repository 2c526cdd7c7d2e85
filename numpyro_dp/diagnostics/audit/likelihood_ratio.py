"""The score of an adversary who knows everything but one record: a log likelihood ratio.

Each released move of a gradient kernel is a known drift, plus the differing record's clipped
gradient when it was in the batch, plus Gaussian noise. Who knows the other records can subtract
the drift and weigh the rest.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import random
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from numpyro_dp.diagnostics.audit.neighbours import NeighbourPair
from numpyro_dp.mcmc.posterior.ops import BoundOPS
from numpyro_dp.mcmc.sgmcmc.integrator import BoundGradientKernel, NoisyGradient


def move_score(
    kernel: BoundGradientKernel, pair: NeighbourPair, before: Any, after: Any
) -> Float[Array, ""]:
    """Log likelihood ratio of one private step, the first data set of ``pair`` over the second.

    Exact when the shared records contribute nothing (or are all in every batch) and the privacy
    noise leaves no Langevin noise to add; elsewhere still a score, only a weaker one.

    :param before: state of one chain before the step.
    :param after: state after it.
    """
    position = ravel_pytree(before.z)[0]
    rate = kernel.private_sum.sampling_rate
    metric = kernel.diagonal(position.dtype) * jnp.ones_like(position)
    shared = _clipped_sum(kernel, before.z, metric, pair.shared)
    drift = kernel.posterior_gradient(before.z, shared)
    stayed = _noiseless(kernel, before, position, drift, metric)

    def displacement(extra: Float[Array, " dim"]) -> Float[Array, " dim"]:
        return _noiseless(kernel, before, position, drift + extra, metric) - stayed

    noise_sd = kernel.likelihood_power * kernel.private_sum.noise_sd(before.i) / rate
    noise = displacement(noise_sd / jnp.sqrt(metric))
    # A coordinate that this step does not move tells nothing.
    per_noise = jnp.where(noise == 0, 0.0, 1 / noise)
    left = (ravel_pytree(after.z)[0] - stayed) * per_noise

    def log_mixture(leaves: list[Array]) -> Float[Array, ""]:
        pull = kernel.likelihood_power * _clipped_sum(kernel, before.z, metric, leaves)
        shift = displacement(pull / rate) * per_noise
        present = jnp.sum(left * shift - shift**2 / 2)
        return jnp.logaddexp(jnp.log1p(-rate), jnp.log(rate) + present)

    return log_mixture(pair.own) - log_mixture(pair.other)


def _noiseless(
    kernel: BoundGradientKernel,
    state: Any,
    position: Float[Array, " dim"],
    gradient: Float[Array, " dim"],
    metric: Float[Array, " dim"],
) -> Float[Array, " dim"]:
    """Where the integrator moves by the gradient alone."""
    # Noise without bound in the gradient leaves no noise for the integrator to add.
    given = NoisyGradient(gradient, math.inf, metric)
    return kernel.integrator.step(random.key(0), state, position, given)[0]


def _clipped_sum(
    kernel: BoundGradientKernel, z: dict, metric: Float[Array, " dim"], leaves: list[Array]
) -> Float[Array, " dim"]:
    """Clipped gradients of some records, summed in floating point; broken ones count zero."""
    gradient = kernel.record_gradient(z)

    def clipped(record: list[Array]) -> Float[Array, " dim"]:
        vector = jnp.sqrt(metric) * gradient(record)
        return vector_in_sum(vector, kernel.private_sum.clip_norm) / jnp.sqrt(metric)

    return jax.vmap(clipped)([leaf[:, None] for leaf in leaves]).sum(0)


def vector_in_sum(vector: Float[Array, " dim"], clip_norm: float) -> Float[Array, " dim"]:
    """What a private sum takes of a record's vector, in floating point; zero of a broken one."""
    norm = jnp.linalg.norm(vector)
    factor = jnp.minimum(1.0, clip_norm / jnp.maximum(norm, 1e-30))
    return jnp.where(jnp.isfinite(norm), vector * factor, 0.0)


def draw_score(kernel: BoundOPS, pair: NeighbourPair, before: Any, after: Any) -> Float[Array, ""]:
    """Log likelihood ratio of one draw up to a constant, the first data set over the second.

    Exact for draws from the posterior; of a last iterate it is what its limit would tell.
    """
    del before
    method: Any = kernel.method
    own, other = (
        method.target.log_likelihood(after.z, leaves) for leaves in (pair.own, pair.other)
    )
    return own - other
