"""What the kernels with a momentum share: its public arithmetic, and the check of its friction.

In coordinates multiplied by the root of the inverse preconditioner the mass is 1. A step is
p ← (1 − f)·p + h·gradient + fresh noise, θ ← θ + h·p, with h = √η and friction fraction f.
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
from jax import random
from jaxtyping import Array, Float

from numpyro_dp import _validate
from numpyro_dp.accounting import rounded_down
from numpyro_dp.mcmc.sgmcmc.integrator import Move, NoisyGradient, Scalar, StepSize, Vector

# Where the posterior's sds are 1, less friction swings to and fro, and more creeps.
CRITICAL = 2.0


def check_friction(name: str, friction: object, step_size: StepSize | None) -> None:
    """Refuse a friction that is not positive, or takes more than all momentum in one step."""
    value = _validate.positive(name, friction)
    if step_size is None or callable(step_size):
        return
    lost = step_size**0.5 * value
    if lost > 1 + 1e-9:
        raise ValueError(
            f"√step_size·{name} is {lost:.3g}, but no step can lose more than all of its "
            f"momentum: lower {name} to at most {rounded_down(step_size**-0.5)}, or lower step_size"
        )


def kicked(
    key: Any,
    momentum: Vector,
    position: Vector,
    gradient: NoisyGradient,
    stride: Scalar,
    *,
    friction: Scalar,
    wanted: Scalar,
) -> Move:
    """The next position and the momentum that led there.

    :param stride: h.
    :param friction: f, the share of the momentum that is lost.
    :param wanted: variance of all noise in the momentum, the privacy noise counted into it.
    """
    root = jnp.sqrt(jnp.asarray(gradient.metric, position.dtype))
    missing = jnp.maximum(wanted - (stride * gradient.sd) ** 2, 0)
    # Public randomness: it completes the noise of the friction and protects nothing.
    fresh = jnp.sqrt(missing) * random.normal(key, position.shape, position.dtype)
    momentum = (1 - friction) * momentum + stride * root * gradient.value + fresh
    moved = position + stride * root * momentum
    return moved, {"momentum": momentum_between(position, moved, stride * root, momentum)}


def momentum_between(
    before: Vector, after: Vector, pace: Float[Array, "*dim"], otherwise: Vector
) -> Vector:
    """The momentum as two released positions show it, so that it holds nothing else.

    ``otherwise`` is kept where a schedule's step is zero and positions show nothing.
    """
    shown = (after - before) / jnp.where(pace > 0, pace, 1)
    return jnp.where(pace > 0, shown, otherwise)


def overshot(step_size: float, curvature: float, friction: float) -> float:
    """Variance of the positions over the target's, of steps with a momentum; inf if they run away.

    The stationary law of the linear recursion: 1/(1 − h²·curvature/(4 − 2f)).
    """
    pull = step_size * curvature / (4 - 2 * friction)
    return 1 / (1 - pull) if pull < 1 else math.inf


def relaxation_share(stride: Any, friction: Any, variance: Any) -> Any:
    """Share of a relaxation time of one step: overdamped it diffuses, else friction limits it."""
    diffusive = stride**2 / jnp.maximum(friction * variance, 1e-30)
    return jnp.minimum(diffusive, friction / 2)
