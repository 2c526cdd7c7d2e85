"""DP-SGFS: stochastic gradient Fisher scoring on a private gradient and second moment."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import random
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int

from numpyro_dp import _validate
from numpyro_dp.mcmc.sgmcmc.integrator import (
    BoundPositionKernel,
    Integrator,
    Move,
    NoisyGradient,
    Vector,
    step_at,
)
from numpyro_dp.mcmc.sgmcmc.kernel import GradientKernel, Weights

_TINY = 1e-30


@dataclass(frozen=True)
class BoundFisherKernel(BoundPositionKernel):
    """Releases gradients and second moments in one sum.

    :param clip_weights: weights of the gradient's coordinates in its own clip; ``None``: 1.
    """

    clip_weights: tuple[float, ...] | None = None

    summands: ClassVar[str] = (
        "clipped per-record gradients and their outer products, one joint vector for each record"
    )
    released_values: ClassVar[tuple[str, ...]] = (
        "the noisy sums of gradients and of their outer products in every step (warm-up included), "
        "and with them the position after it, the average second moment and the step counter",
    )

    def record_vector(self, z: dict) -> Callable[[list[Array]], Float[Array, " entries"]]:
        gradient = self.record_gradient(z)
        rows, columns = _triangle(ravel_pytree(z)[0].size)
        clip_norm = self.private_sum.clip_norm

        def vector(record: list[Array]) -> Float[Array, " entries"]:
            clipped = gradient(record)
            if clip_norm != math.inf:
                weights = 1.0 if self.clip_weights is None else jnp.asarray(self.clip_weights)
                norm = jnp.linalg.norm(weights * clipped)
                clipped = clipped * jnp.minimum(1.0, clip_norm / jnp.maximum(norm, _TINY))
            return jnp.concatenate([clipped, clipped[rows] * clipped[columns]])

        return vector

    def learnt(self, state: Any, released: Float[Array, " entries"]) -> tuple[Any, Vector]:
        average = state.second_moment
        dim = len(average)
        average = average + (_symmetric(released[dim:], dim) - average) / (state.i + 1)
        # The average with this step's own release in it: without, the first step would know
        # nothing of the curvature. That the two share a batch matters like one over the steps.
        return state._replace(second_moment=average), released[:dim]


def _triangle(dim: int) -> tuple[Int[np.ndarray, " entries"], Int[np.ndarray, " entries"]]:
    """Rows and columns of the upper triangle, in the order in which it is released."""
    return np.triu_indices(dim)


def _symmetric(entries: Float[Array, " entries"], dim: int) -> Float[Array, "dim dim"]:
    """The matrix of which ``entries`` is the upper triangle."""
    rows, columns = _triangle(dim)
    place = np.zeros((dim, dim), int)
    place[rows, columns] = place[columns, rows] = np.arange(len(rows))
    return entries[place]


class SGFSState(NamedTuple):
    """What a DP-SGFS chain carries; released values, functions of them, and a key.

    - **i**: private steps taken so far.
    - **z**: unconstrained position, one array for each latent site.
    - **second_moment**: average of the released second moments of all steps so far.
    - **rng_key**: key of the noise to come; zeroed in every state that outlives a run.
    """

    i: Int[Array, "..."]
    z: dict[str, Float[Array, "..."]]
    second_moment: Float[Array, "... dim dim"]
    rng_key: Any


@dataclass(frozen=True)
class FisherScoring(Integrator):
    """θ ← θ + Q·(gradient + fresh noise), Q = 2·(curvature + all noise)⁻¹.

    On a Gaussian target any such step leaves exactly the target's covariance: with H the curvature
    and N the covariance of all noise, (1 - QH)·H⁻¹·(1 - QH) + Q·N·Q = H⁻¹ for Q = 2·(H + N)⁻¹.
    """

    derived: ClassVar[tuple[str, ...]] = ("second_moment",)

    likelihood_power: float
    sampling_rate: float

    def start(self, rng_key: Any, z: dict, position: Vector, gradient_sd: Any = 0.0) -> SGFSState:
        nothing = jnp.zeros((position.size, position.size), position.dtype)
        return SGFSState(jnp.zeros((), jnp.int32), z, nothing, rng_key)

    @property
    def _curvature(self) -> float:
        """Curvature and Poisson noise of the gradient, in units of the second moment."""
        power, rate = self.likelihood_power, self.sampling_rate
        return power + power**2 * (1 - rate) / rate / self.temperature

    def step(self, key: Any, state: SGFSState, position: Vector, gradient: NoisyGradient) -> Move:
        value, gradient_sd, metric = gradient
        step = step_at(self.step_size, state.i, position.dtype)
        inverse = 4 / jnp.maximum(step, _TINY)
        # Coordinates in which fresh and privacy noise are white: what is left is one symmetric
        # matrix, made positive by its eigenvalues.
        known = gradient_sd**2 / self.temperature + inverse
        root = jnp.sqrt(jnp.asarray(metric, position.dtype) / known) * jnp.ones_like(position)
        values, vectors = jnp.linalg.eigh(root[:, None] * state.second_moment * root)
        scoring = 2 / (1 + self._curvature * jnp.maximum(values, 0))
        # Public randomness: it completes the noise of the step and protects nothing.
        white = random.normal(key, position.shape, position.dtype)
        fresh = white * jnp.sqrt(self.temperature * inverse / known)
        moved = vectors @ (scoring * (vectors.T @ (root * value + fresh)))
        return position + root * moved, {}

    def reached(self, step_size: float, gradient_sd: float) -> float:
        # The step shrinks where the privacy noise is large, so the temperature is always kept.
        return 0.0

    def free_step_size(self, gradient_sd: float) -> float:
        return math.inf

    def widened(self, step_size: float, curvature: float, batches: float) -> float:
        # Steps are shortened by the curvature and all noise that the kernel has learnt of.
        return 1.0

    def relaxation(self, step: Any, gradient_sd: Any, variance: Any, state: Any = None) -> Any:
        size = step_at(self.step_size, step, jnp.float32)
        noise = gradient_sd**2 / self.temperature + 4 / jnp.maximum(size, _TINY)
        batches = self._curvature / self.likelihood_power
        covered = 2 / (batches + variance * noise)
        # More than the whole way overshoots, and forgets no faster than the same short of it.
        return jnp.minimum(covered, 2 - covered)


@dataclass(frozen=True, kw_only=True, eq=False)
class DPSGFS(GradientKernel):
    """Differentially private stochastic gradient Fisher scoring.

    Each step releases, in one noisy sum, the clipped per-record gradients and their outer products.
    The average of the released second moments estimates the curvature of the log likelihood and
    the noise of the batches, and preconditions the step: directions that the records determine
    well take short steps, others long ones. With V that average made positive, B the inverse of
    the preconditioner, S the privacy noise's covariance and T the temperature, a step moves by
    Q·(gradient + N(0, 4TB/η)) with Q = 2·(V + V·(1 − q)/q/T + S/T + 4B/η)⁻¹, which leaves a
    Gaussian target as it is at any η. For small η it is DP-SGLD with its preconditioner.

    It stores and decomposes a d × d matrix in each step: for at most a hundred dimensions or so.

    :param model: a NumPyro model, as for :class:`~numpyro_dp.DPSGLD`.
    :param step_size: η, in units of squared unconstrained parameter; a number or a schedule. The
        privacy noise and the curvature shorten steps by themselves, so that η may be far above the
        posterior variance; it limits the steps while little is known of the curvature. On full
        batches with little privacy noise, more than 4 posterior variances overshoots the mode
        back and forth.
    :param clip_norm: bound C on one record's gradient, as for DP-SGLD. Its outer product is
        computed from the clipped gradient.
    :param second_moment_share: share s of the squared privacy loss that is spent on the second
        moment, in (0, 1). The noise of the gradient is larger by 1/√(1 − s) for it.
    :raises ValueError: for arguments out of range.

    Every other argument is :class:`~numpyro_dp.DPSGLD`'s.

    **Privacy.** Released: gradient sum and second-moment sum of every step, and so the position
    after it. Mechanism: one Poisson-subsampled Gaussian mechanism on the joint vector
    (√(1 − s)·g, √s·svec(ggᵀ)/C), svec the upper triangle with off-diagonal entries times √2. Both
    parts have norm at most their weight times C, so the joint sensitivity is C·√(1 − s + s) = C
    under zero-out and add/remove, 2C under replace-one; two releases of one batch would need two
    events. The event is DP-SGLD's. Averaging, projection and preconditioning are post-processing.

    **References.** Ahn, Korattikara, Welling, *Bayesian Posterior Sampling via Stochastic Gradient
    Fisher Scoring* (ICML 2012), with the exact noise of Poisson batches; Wang, Fienberg, Smola,
    *Privacy for Free* (ICML 2015), with the joint sensitivity above in place of 1.

    **Example**::

        >>> import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist
        >>> import numpyro_dp as ndp
        >>> def model(x):
        ...     mu = numpyro.sample("mu", dist.Normal(0, 1))
        ...     with numpyro.plate("people", x.shape[0]):
        ...         numpyro.sample("x", dist.Normal(mu, 1), obs=x)
        >>> kernel = ndp.DPSGFS(model, step_size=1e-2, batch_size=50, clip_norm=2.0,
        ...                     privacy=ndp.Budget(1.0, 1e-5))
        >>> mcmc = ndp.MCMC(kernel, num_warmup=50, num_samples=50, progress_bar=False)
        >>> mcmc.run(jax.random.key(0), jnp.linspace(-1.0, 3.0, 500))
        >>> mcmc.privacy.epsilon <= 1.0
        True
    """

    second_moment_share: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.adapts:
            raise ValueError(
                "DPSGFS learns its metric on the way: give both step_size and clip_norm"
            )
        share = _validate.positive("second_moment_share", self.second_moment_share)
        if share >= 1:
            raise ValueError(f"second_moment_share must be less than 1, got {share!r}")

    def integrator(self, sampling_rate: float) -> FisherScoring:
        return FisherScoring(*self.paced, float(self.likelihood_power), sampling_rate)

    def _entries(self, dim: int) -> int:
        return dim + dim * (dim + 1) // 2

    def _weights(
        self, weights: Weights, blocks: Weights, clip_norm: float, dim: int
    ) -> tuple[Weights, float | tuple[float, ...]]:
        # A gradient whose weighted norm is at most C gets the weight √(1 - s), its outer product
        # √s/C, off-diagonal entries √2 more: the squared norms are at most (1 - s)·C² and s·C².
        share = self.second_moment_share
        kept = math.sqrt(1 - share)
        spread = 1 / kept if blocks is None else tuple(norm / kept for norm in blocks)
        if clip_norm == math.inf:
            return None, spread
        each = np.ones(dim) if weights is None else np.array(weights)
        rows, columns = _triangle(dim)
        moment = each[rows] * each[columns] * math.sqrt(share) / clip_norm
        moment = np.where(rows == columns, moment, math.sqrt(2) * moment)
        return tuple(np.concatenate([kept * each, moment]).tolist()), spread

    def _bound(self, weights: Weights, **fields: Any) -> BoundFisherKernel:
        return BoundFisherKernel(clip_weights=weights, **fields)
