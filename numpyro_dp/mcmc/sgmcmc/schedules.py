"""Step-size schedules that optax does not have; any callable of the step counter will do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from numpyro_dp import _validate


@dataclass(frozen=True)
class PolynomialStepSize:
    """η_t = a·(b + t)^(−γ), the usual schedule of stochastic-gradient Langevin dynamics.

    :param a: scale, positive, in units of step size.
    :param b: offset, positive, in steps.
    :param gamma: decay γ, in [0, 1]; above ½ the steps' squares are summable, as the convergence
        theorems ask.
    :raises ValueError: for arguments out of range.

    **Privacy.** A public function of the step counter.

    **References.** Welling, Teh, *Bayesian Learning via Stochastic Gradient Langevin Dynamics*
    (ICML 2011), Section 3.

    **Example**::

        >>> schedule = PolynomialStepSize(a=1e-2, b=100, gamma=0.5)
        >>> float(schedule(0)), float(schedule(300))
        (0.0010000000474974513, 0.0005000000237487257)
    """

    a: float
    b: float
    gamma: float

    def __post_init__(self) -> None:
        _validate.own_numbers(self)
        _validate.positive("a", self.a)
        _validate.positive("b", self.b)
        if not 0 <= _validate.finite_float("gamma", self.gamma) <= 1:
            raise ValueError(f"gamma must lie in [0, 1], got {self.gamma!r}")

    def __call__(self, step: Int[Array, ""] | int) -> Float[Array, ""]:
        counter: Any = jnp.asarray(step, jnp.float32)
        return self.a * (self.b + counter) ** -self.gamma


@dataclass(frozen=True)
class PhaseTransitionStepSize:
    """η_t = max(a·(b + t)^(−γ), floor): first search, then sample at a step that noise allows.

    A large step is dominated by the noise of the gradient: the chain searches like noisy gradient
    descent. Once a fraction α or less of the Langevin noise comes from the gradient the chain
    samples, and smaller steps only slow it. That is so from η = 4α·temperature/sd² on, which is
    the floor.

    :param a: scale, positive, in units of step size.
    :param b: offset, positive, in steps.
    :param gamma: decay γ, in [0, 1].
    :param gradient_sd: sd of a coordinate of the released gradient: ``likelihood_power``·
        ``noise_multiplier``·``clip_norm``/``sampling_rate``, a public number. Add the noise of
        small batches only if you know it without the records.
    :param alpha: α, in (0, 1]: largest share of the gradient's noise in the noise of a step.
    :param temperature: that of the kernel.
    :raises ValueError: for arguments out of range.

    **Privacy.** A public function of the step counter.

    **References.** Welling, Teh, *Bayesian Learning via Stochastic Gradient Langevin Dynamics*
    (ICML 2011), Section 4.2 (the sampling threshold α); Wang, Fienberg, Smola, *Privacy for Free*
    (ICML 2015), where the gradient's noise is the one that privacy asks for.

    **Example**::

        >>> schedule = PhaseTransitionStepSize(a=1.0, b=1, gamma=1.0, gradient_sd=20.0)
        >>> schedule.floor
        0.01
        >>> float(schedule(1)), float(schedule(1_000)) == float(jnp.float32(0.01))
        (0.5, True)
    """

    a: float
    b: float
    gamma: float
    gradient_sd: float
    alpha: float = 1.0
    temperature: float = 1.0

    def __post_init__(self) -> None:
        _validate.own_numbers(self)
        PolynomialStepSize(self.a, self.b, self.gamma)
        _validate.positive("gradient_sd", self.gradient_sd)
        _validate.rate("alpha", self.alpha)
        _validate.positive("temperature", self.temperature)

    @property
    def floor(self) -> float:
        """The step size that is kept in the end."""
        return 4 * self.alpha * self.temperature / self.gradient_sd**2

    def __call__(self, step: Int[Array, ""] | int) -> Float[Array, ""]:
        searching = PolynomialStepSize(self.a, self.b, self.gamma)(step)
        return jnp.maximum(searching, self.floor)
