"""DP-SGHMC: stochastic gradient Hamiltonian Monte Carlo on a private gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from numpyro_dp.mcmc.sgmcmc.integrator import Integrator, Move, NoisyGradient, Vector, step_at
from numpyro_dp.mcmc.sgmcmc.kernel import GradientKernel
from numpyro_dp.mcmc.sgmcmc.momentum import (
    CRITICAL,
    check_friction,
    kicked,
    overshot,
    relaxation_share,
)


class SGHMCState(NamedTuple):
    """What a DP-SGHMC chain carries; released values, functions of them, and a key.

    - **i**: private steps taken so far.
    - **z**: unconstrained position, one array for each latent site.
    - **momentum**: the last move over √η and the root of the preconditioner: a function of two
      released positions. Flat, in the order of the site names.
    - **rng_key**: key of the noise to come; zeroed in every state that outlives a run.
    - **adapt_state**: what adaptation released, :class:`~numpyro_dp.mcmc.AdaptState`; ``None``
      without it.
    """

    i: Int[Array, "..."]
    z: dict[str, Float[Array, "..."]]
    momentum: Float[Array, "... dim"]
    rng_key: Any
    adapt_state: Any = None


@dataclass(frozen=True)
class FrictionDynamics(Integrator):
    """p ← (1 − hA)·p + h·gradient + fresh noise, θ ← θ + h·p, with h = √η."""

    derived: ClassVar[tuple[str, ...]] = ("momentum",)
    remedy: ClassVar[str] = " at this friction, or more friction,"

    friction: float

    def start(self, rng_key: Any, z: dict, position: Vector, gradient_sd: Any = 0.0) -> SGHMCState:
        return SGHMCState(jnp.zeros((), jnp.int32), z, jnp.zeros_like(position), rng_key)

    def _lost(self, stride: Any) -> Any:
        """Share of the momentum that a step loses; a schedule may ask for more than all."""
        return jnp.minimum(stride * self.friction, 1)

    def step(self, key: Any, state: SGHMCState, position: Vector, gradient: NoisyGradient) -> Move:
        stride = jnp.sqrt(step_at(self.step_size, state.i, position.dtype))
        lost = self._lost(stride)
        wanted = 2 * lost * self.temperature
        return kicked(key, state.momentum, position, gradient, stride, friction=lost, wanted=wanted)

    def reached(self, step_size: float, gradient_sd: float) -> float:
        return step_size**0.5 * gradient_sd**2 / (2 * self.friction)

    def free_step_size(self, gradient_sd: float) -> float:
        return (2 * self.friction * self.temperature / gradient_sd**2) ** 2

    def widened(self, step_size: float, curvature: float, batches: float) -> float:
        lost = min(step_size**0.5 * self.friction, 1.0)
        shaken = 1 + step_size * curvature * batches / (2 * lost)
        return shaken * overshot(step_size, curvature, lost)

    def relaxation(self, step: Any, gradient_sd: Any, variance: Any, state: Any = None) -> Any:
        stride = jnp.sqrt(step_at(self.step_size, step, jnp.float32))
        return relaxation_share(stride, self._lost(stride), variance)


@dataclass(frozen=True, kw_only=True, eq=False)
class DPSGHMC(GradientKernel):
    """Differentially private stochastic gradient Hamiltonian Monte Carlo.

    Each step releases the noisy sum of clipped per-record gradients, as
    :class:`~numpyro_dp.DPSGLD` does, and feeds it to Langevin dynamics with a momentum. With
    h = √η: the momentum loses the share hA, gains h·gradient, and receives the noise of variance
    2hA·temperature that the friction asks for, the privacy noise counted into it; the position
    moves by h times the momentum.

    It is also gradient descent with momentum: learning rate η = ``step_size``, momentum 1 − hA.
    At hA = 1 it is DP-SGLD at step size 2η.

    :param model: a NumPyro model, as for :class:`~numpyro_dp.DPSGLD`.
    :param step_size: η, in units of squared unconstrained parameter; a number or a schedule.
    :param friction: A, positive, per unconstrained parameter; √η·A is the share of the momentum
        that is lost in a step and at most 1 (a schedule that asks for more gets 1). ``None``, which
        goes with adaptation only, is 2: critical damping where the posterior's sds are 1.
    :param preconditioner: public diagonal G of the inverse mass, by site.
    :raises ValueError: for arguments out of range, or √step_size·friction above 1.

    Every other argument is :class:`~numpyro_dp.DPSGLD`'s.

    **Privacy.** Mechanism, sensitivity, relations and event are DP-SGLD's. Released: the position
    after every step; the momentum in the state is a function of two of them, and hiding it would
    buy nothing.

    **References.** Chen, Fox, Guestrin, *Stochastic Gradient Hamiltonian Monte Carlo* (ICML 2014);
    Wang, Fienberg, Smola, *Privacy for Free* (ICML 2015), with friction multiplied by h rather
    than by η = h² (which would leave a momentum of far too large a variance), and the privacy
    noise known rather than estimated from gradients.

    **Example**::

        >>> import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist
        >>> import numpyro_dp as ndp
        >>> def model(x):
        ...     mu = numpyro.sample("mu", dist.Normal(0, 1))
        ...     with numpyro.plate("people", x.shape[0]):
        ...         numpyro.sample("x", dist.Normal(mu, 1), obs=x)
        >>> kernel = ndp.DPSGHMC(model, step_size=1e-4, friction=20.0, batch_size=50,
        ...                      clip_norm=2.0, privacy=ndp.Budget(1.0, 1e-5))
        >>> mcmc = ndp.MCMC(kernel, num_warmup=50, num_samples=50, progress_bar=False)
        >>> mcmc.run(jax.random.key(0), jnp.linspace(-1.0, 3.0, 500))
        >>> mcmc.privacy.epsilon <= 1.0
        True
    """

    friction: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.friction is None and not self.adapts:
            raise ValueError("friction must be given with step_size and clip_norm")
        given = CRITICAL if self.friction is None else self.friction
        check_friction("friction", given, self.step_size)

    def integrator(self, sampling_rate: float) -> FrictionDynamics:
        return FrictionDynamics(*self.paced, float(self.friction or CRITICAL))
