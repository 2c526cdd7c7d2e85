"""DP-SGNHT: a stochastic gradient Nosé-Hoover thermostat on a private gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from numpyro_dp.mcmc.sgmcmc.integrator import (
    Integrator,
    Move,
    NoisyGradient,
    Note,
    Scalar,
    Vector,
    hotter_than,
    step_at,
)
from numpyro_dp.mcmc.sgmcmc.kernel import GradientKernel
from numpyro_dp.mcmc.sgmcmc.momentum import (
    CRITICAL,
    check_friction,
    kicked,
    overshot,
    relaxation_share,
)


class SGNHTState(NamedTuple):
    """What a DP-SGNHT chain carries; released values, functions of them, and a key.

    - **i**: private steps taken so far.
    - **z**: unconstrained position, one array for each latent site.
    - **momentum**: the last move over √η and the root of the preconditioner: a function of two
      released positions. Flat, in the order of the site names.
    - **thermostat**: the friction ξ, a function of all momenta so far.
    - **rng_key**: key of the noise to come; zeroed in every state that outlives a run.
    - **adapt_state**: what adaptation released, :class:`~numpyro_dp.mcmc.AdaptState`; ``None``
      without it.
    """

    i: Int[Array, "..."]
    z: dict[str, Float[Array, "..."]]
    momentum: Float[Array, "... dim"]
    thermostat: Float[Array, "..."]
    rng_key: Any
    adapt_state: Any = None


@dataclass(frozen=True)
class Thermostat(Integrator):
    """As DP-SGHMC's dynamics, with a friction that follows the momentum's released energy."""

    derived: ClassVar[tuple[str, ...]] = ("momentum", "thermostat")

    diffusion: float

    def start(self, rng_key: Any, z: dict, position: Vector, gradient_sd: Any = 0.0) -> SGNHTState:
        first = jnp.asarray(self.diffusion, position.dtype)
        return SGNHTState(jnp.zeros((), jnp.int32), z, jnp.zeros_like(position), first, rng_key)

    def step(self, key: Any, state: SGNHTState, position: Vector, gradient: NoisyGradient) -> Move:
        stride = jnp.sqrt(step_at(self.step_size, state.i, position.dtype))
        lost = jnp.minimum(stride * state.thermostat, 1)
        wanted = 2 * stride * self.diffusion * self.temperature
        position, moved = kicked(
            key, state.momentum, position, gradient, stride, friction=lost, wanted=wanted
        )
        return position, {
            **moved,
            "thermostat": self.warmed(state.thermostat, stride, moved["momentum"]),
        }

    def warmed(self, thermostat: Scalar, stride: Scalar, momentum: Vector) -> Scalar:
        """The thermostat after a move, from released momenta alone."""
        # A momentum that lost the share f and was refilled has variance T / (1 - f/2) where the
        # positions have temperature T; without the factor they would be too cold by f/2.
        lost = jnp.minimum(stride * thermostat, 1)
        energy = (1 - lost / 2) * jnp.mean(momentum**2)
        return thermostat + stride * (energy - self.temperature)

    def _settled(self, stride: Any, gradient_sd: Any) -> Any:
        """Friction fraction at which the thermostat balances all noise."""
        answering = (stride * gradient_sd) ** 2 / (2 * self.temperature)
        return jnp.minimum(jnp.maximum(stride * self.diffusion, jnp.max(answering)), 1)

    def notes(self, gradient_sd: float, state: Any = None) -> tuple[Note, ...]:
        hot = super().notes(gradient_sd, state)
        if hot or callable(self.step_size):
            return hot
        answering = self.step_size**0.5 * gradient_sd**2 / (2 * self.temperature)
        if not hotter_than(answering, self.diffusion):
            return ()
        text = (
            f"The privacy noise exceeds what diffusion={self.diffusion:g} asks for: the "
            f"thermostat answers it with a friction of about {answering:.3g}, which keeps the "
            "temperature once it has settled, and the chain moves more slowly for it."
        )
        return (Note(text, ""),)

    def reached(self, step_size: float, gradient_sd: float) -> float:
        return step_size * gradient_sd**2 / 2

    def free_step_size(self, gradient_sd: float) -> float:
        return 2 * self.temperature / gradient_sd**2

    def quiet_step_size(self, gradient_sd: float) -> float:
        settled = (2 * self.diffusion * self.temperature / gradient_sd**2) ** 2
        return min(self.free_step_size(gradient_sd), settled)

    def widened(self, step_size: float, curvature: float, batches: float) -> float:
        # The thermostat answers what batches shake.
        return overshot(step_size, curvature, min(step_size**0.5 * self.diffusion, 1.0))

    def relaxation(self, step: Any, gradient_sd: Any, variance: Any, state: Any = None) -> Any:
        stride = jnp.sqrt(step_at(self.step_size, step, jnp.float32))
        return relaxation_share(stride, self._settled(stride, gradient_sd), variance)


@dataclass(frozen=True, kw_only=True, eq=False)
class DPSGNHT(GradientKernel):
    """Differentially private stochastic gradient Nosé-Hoover thermostat.

    The dynamics of :class:`~numpyro_dp.DPSGHMC`, with a friction ξ that is not chosen but follows
    the momentum: it rises while the momentum's energy is above the temperature and falls while it
    is below. Whatever noise the gradients bring (Poisson batches, privacy noise beyond what
    ``diffusion`` asks for) is balanced without being known.

    With h = √η a step injects noise of variance 2hA·temperature into the momentum, the privacy
    noise counted into it, takes the share hξ from the momentum, and moves ξ by
    h·((1 − hξ/2)·mean(p²) − temperature).

    :param model: a NumPyro model, as for :class:`~numpyro_dp.DPSGLD`.
    :param step_size: η, in units of squared unconstrained parameter; a number or a schedule.
    :param diffusion: A, positive, per unconstrained parameter: how much noise is injected at
        least, and the friction at the start. ``None``, which goes with adaptation only, is 2.
    :param preconditioner: public diagonal G of the inverse mass, by site.
    :raises ValueError: for arguments out of range, or √step_size·diffusion above 1.

    Every other argument is :class:`~numpyro_dp.DPSGLD`'s. The thermostat needs some hundred steps
    to settle: let them be warm-up (which is charged). One thermostat balances noise that is alike
    in all (preconditioned) coordinates: with a ``clip_norm`` by site, choose ``diffusion`` large
    enough that nothing is left for it to balance.

    **Privacy.** Mechanism, sensitivity, relations and event are DP-SGLD's. Released: the position
    after every step; momentum and thermostat in the state are functions of these positions, so
    they cost nothing.

    **References.** Ding et al., *Bayesian Sampling Using Stochastic Gradient Thermostats* (NeurIPS
    2014), with the factor 1 − hξ/2 that keeps the temperature of the positions at first order in
    h; Wang, Fienberg, Smola, *Privacy for Free* (ICML 2015).

    **Example**::

        >>> import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist
        >>> import numpyro_dp as ndp
        >>> def model(x):
        ...     mu = numpyro.sample("mu", dist.Normal(0, 1))
        ...     with numpyro.plate("people", x.shape[0]):
        ...         numpyro.sample("x", dist.Normal(mu, 1), obs=x)
        >>> kernel = ndp.DPSGNHT(model, step_size=1e-4, diffusion=10.0, batch_size=50,
        ...                      clip_norm=2.0, privacy=ndp.Budget(1.0, 1e-5))
        >>> mcmc = ndp.MCMC(kernel, num_warmup=50, num_samples=50, progress_bar=False)
        >>> mcmc.run(jax.random.key(0), jnp.linspace(-1.0, 3.0, 500))
        >>> mcmc.privacy.epsilon <= 1.0
        True
    """

    diffusion: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.diffusion is None and not self.adapts:
            raise ValueError("diffusion must be given with step_size and clip_norm")
        given = CRITICAL if self.diffusion is None else self.diffusion
        check_friction("diffusion", given, self.step_size)

    def integrator(self, sampling_rate: float) -> Thermostat:
        return Thermostat(*self.paced, float(self.diffusion or CRITICAL))
