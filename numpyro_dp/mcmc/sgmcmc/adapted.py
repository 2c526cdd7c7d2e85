"""Gradient kernels that adapt: steps in released coordinates, all of one size.

There every direction costs the same noise, a record's score has norm about √(dim/records), and a
chain needs step sizes of order 1: clip norm and step size follow from public numbers alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
from jax import random
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from numpyro_dp.accounting import rounded_down
from numpyro_dp.mcmc.adaptation import RELEASED, Adaptation, placed, require_adapted
from numpyro_dp.mcmc.sgmcmc.integrator import BoundSumKernel, Integrator, NoisyGradient, Vector
from numpyro_dp.mechanisms import PrivateSum
from numpyro_dp.scoring.adaptation import SUMMANDS, AdaptationPlan, require_even_prior

# Relaxation times that a clip norm leaves: looser clips would leave fewer.
_TIMES = 22.0
# Clip norms in units of a record's typical whitened score, √(dim/records).
_TIGHTEST, _LOOSEST = 2.0, 10.0
# Steps and mini-batches may widen the draws' variance by so much.
_WIDENED = 1.1
_LONGEST = 1.0
# The arguments that switch adaptation off.
INSTEAD = "step_size and clip_norm"


@dataclass(frozen=True)
class BoundAdaptedKernel(BoundSumKernel):
    """A kernel that moves in whitened coordinates, on clipped centred scores.

    :param adaptation: the release that gives them.
    """

    adaptation: AdaptationPlan = field(kw_only=True)

    centred: ClassVar[bool] = True
    summands: ClassVar[str] = SUMMANDS

    released_values: ClassVar[tuple[str, ...]] = (RELEASED, *BoundSumKernel.released_values)

    @property
    def derived(self) -> tuple[str, ...]:
        return (*self.integrator.derived, "adapt_state")

    def believed(self, variance: Vector, state: Any) -> Vector:
        """What was released, unless the draws are more than twice as wide."""
        told = self.diagonal(variance.dtype, state) / self.likelihood_power
        return jnp.where(variance > 4 * told, variance, told)

    def first(self, num_chains: int) -> Adaptation:
        return Adaptation(self.adaptation, num_chains)

    def resumed(self, state: Any) -> Any:
        require_adapted(state)
        return state

    def leaves(self, records: list) -> list:
        return self.adaptation.release.statistic.numbered(records)

    def diagonal(self, dtype: Any, state: Any = None) -> Any:
        """Of WᵀW, which every chain was given alike."""
        whitening = state.adapt_state.mass_matrix_sqrt_inv
        return jnp.sum(whitening.reshape(-1, *whitening.shape[-2:])[0] ** 2, axis=0).astype(dtype)

    def start(self, rng_key: Any, z: Any) -> Any:
        """State of a chain at a :class:`~numpyro_dp.mcmc.adaptation.Placed`."""
        z = placed(z)
        return super().start(rng_key, z.z)._replace(adapt_state=z.adapt_state)

    def advance(self, key: Any, state: Any, records: list) -> Any:
        position, unravel = ravel_pytree(state.z)
        whitening = state.adapt_state.mass_matrix_sqrt_inv.astype(position.dtype)
        release_key, integrator_key, outcome_key = random.split(key, 3)
        statistic, mechanism = self.adaptation.release.statistic, self.private_sum

        def vector(record: list[Array]) -> Float[Array, " dim"]:
            return statistic.score(position, whitening, mechanism.clip_norm, outcome_key, record)

        released = mechanism.release(release_key, vector, records, state.i).astype(position.dtype)
        gradient = NoisyGradient(
            whitening @ self.prior_gradient(state.z) + self.likelihood_power * released,
            self.gradient_noise(state.i),
            1.0,
        )
        still = jnp.zeros_like(position)
        moved, fields = self.integrator.step(integrator_key, state, still, gradient)
        return state._replace(z=unravel(position + moved @ whitening), **fields)


class Settings(NamedTuple):
    """What follows from public numbers alone.

    - **private_sum**: of a step, clip norm and noise included.
    - **integrator**: with its step size.
    - **relaxation_times**: that a chain holds.
    """

    private_sum: PrivateSum
    integrator: Integrator
    relaxation_times: float


@lru_cache(maxsize=64)
def adapted_settings(
    plan: AdaptationPlan,
    integrator: Integrator,
    *,
    clip_norm: float | None,
    adapt_step_size: bool,
    power: float,
    sampling_rate: float,
    num_steps: int,
    num_chains: int,
    microbatch_size: int | None,
) -> Settings:
    """Fix every number of a run whose coordinates are yet to be released.

    :param integrator: with the user's step size, if there is one.
    :param clip_norm: the user's, in units of whitened scores; ``None`` to adapt it.
    :param adapt_step_size: whether the step size is to be adapted.
    :param power: of the likelihood.
    :param num_steps: private steps of all chains.
    :raises ValueError: when no noise that the lattice can carry meets the budget.
    """
    each = num_steps // num_chains
    shape: dict[str, Any] = {"sampling_rate": sampling_rate, "microbatch_size": microbatch_size}
    found = plan.rest(num_steps, **shape)
    noise = power * found.noise_multiplier / sampling_rate
    if clip_norm is None:
        # As loose as leaves the relaxation times asked for.
        clip_norm = math.sqrt(2 * each * power / _TIMES) / noise
        clip_norm = min(max(clip_norm, _TIGHTEST * plan.typical), _LOOSEST * plan.typical)
    sd = noise * clip_norm
    if adapt_step_size:
        batches = power * (1 - sampling_rate) / sampling_rate
        stable = _longest_stable(integrator, max(power, 1.0), batches)
        step = rounded_down(min(integrator.quiet_step_size(sd), stable), 3)
        integrator = replace(integrator, step_size=float(step))
    # A tempered posterior is wider.
    times = each * float(integrator.relaxation(jnp.int32(0), sd, jnp.asarray(1 / power)))
    noise_multiplier: Any = found.noise_multiplier
    private_sum = plan.rest(num_steps, clip_norm=clip_norm, noise=noise_multiplier, **shape)
    return Settings(private_sum, integrator, times)


def _longest_stable(integrator: Integrator, curvature: float, batches: float) -> float:
    """Longest step that widens the draws by little, where the information is the identity."""
    low, high = 0.0, _LONGEST
    for _ in range(50):
        middle = (low + high) / 2
        fine = integrator.widened(middle, curvature, batches) <= _WIDENED
        low, high = (middle, high) if fine else (low, middle)
    return low


def bound_adapted(settings: Settings, plan: AdaptationPlan, **fields: Any) -> BoundAdaptedKernel:
    """The bound kernel.

    :raises ValueError: the release before it would tell nothing, or steps of one size do not suit
        the prior.
    """
    plan.require_located(INSTEAD)
    require_even_prior(plan.model, INSTEAD)
    return BoundAdaptedKernel(
        private_model=plan.model,
        private_sum=settings.private_sum,
        integrator=settings.integrator,
        adaptation=plan,
        **fields,
    )
