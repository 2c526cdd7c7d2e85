"""Step-size schedules that optax does not have; any callable of the step counter will do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from numpyro_dp import _validate

__all__ = ["PolynomialStepSize"]


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
        _validate.positive("a", self.a)
        _validate.positive("b", self.b)
        if not 0 <= _validate.finite_float("gamma", self.gamma) <= 1:
            raise ValueError(f"gamma must lie in [0, 1], got {self.gamma!r}")

    def __call__(self, step: Int[Array, ""] | int) -> Float[Array, ""]:
        counter: Any = jnp.asarray(step, jnp.float32)
        return self.a * (self.b + counter) ** -self.gamma
