"""The last iterate of full-batch Langevin dynamics, on the integers from start to end.

The state is a vector of integers in a public unit. A step maps it to a real vector, rounds that to
the integers, and adds floor(Z) from an exact table: by the identity f + floor(Z) = floor(f + Z) it
is the ideal noisy step of a map that differs from θ − h∇F(θ) by rounding alone. The proof of the
last iterate's guarantee (shifted interpolation) only needs that two states at distance r are taken,
on neighbouring data, to means at distance at most c·r + h·G; rounding adds a constant to hG, and is
charged as a larger G.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax, random
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from numpyro_dp import _validate
from numpyro_dp.accounting.events import DpEvent, LangevinLastIterate
from numpyro_dp.families.losses import Row
from numpyro_dp.mcmc.posterior.concave import ConcaveTarget
from numpyro_dp.mcmc.posterior.draw import Draw
from numpyro_dp.mechanisms import word_pairs
from numpyro_dp.mechanisms.lattice import Lattice, floor_noise

# Two table draws: one unit is 2^-21 of a step's noise, so that rounding costs next to nothing.
_NOISE = Lattice(
    sd=1 << 12, span=8, coarse=1 << 9, squared_bound=1, cap=1.0, dither=False, scale=1.0
)
_NOISE_SD = _NOISE.sd * math.hypot(1, _NOISE.coarse)
# Projection to this box moves no two points apart; float64 holds its integers exactly.
_BOX = 1e4
_MOST_UNITS = 2.0**50
_MOST_STEPS = 2_000
_STEPS_WITHOUT_CURVATURE = 200


@dataclass(frozen=True)
class Langevin:
    """Draw by full-batch Langevin dynamics from a public start, and release the last state only.

    :param step_size: h, in units of squared unconstrained parameter; default 1.5/(m + M), m and M
        the least and largest curvature that the target can have for any data of this size, and
        1.8/M where m is 0.
    :param iterations: T, gradient steps of one draw; default 4.5/(h·m), at most 2000, and 200
        where m is 0.

    **Privacy.** Unconditional: the event holds for every T. See
    :class:`~numpyro_dp.events.LangevinLastIterate`.

    **References.** Altschuler and Talwar, *Privacy of Noisy Stochastic Gradient Descent* (2022);
    Bok, Su and Altschuler, *Shifted Interpolation for Differential Privacy* (2024).

    **Example**: see :class:`OPS`.
    """

    step_size: float | None = None
    iterations: int | None = None

    def __post_init__(self) -> None:
        _validate.own_numbers(self)
        _validate.given(_validate.positive, step_size=self.step_size)
        _validate.given(_validate.positive_int, iterations=self.iterations)

    def bound_to(self, target: ConcaveTarget) -> LangevinDraw:
        """Fix step size and number of iterations for a target.

        :raises ValueError: when the step size does not contract.
        """
        least, most = target.strong_convexity, target.smoothness
        default = (1.5 if least > 0 else 1.8) / (least + most)
        step = default if self.step_size is None else float(self.step_size)
        if not step * most < 2:
            raise ValueError(
                f"step_size={step:g} must be below 2/M = {2 / most:.4g}, M = {most:.4g} being the "
                "largest curvature of the target: longer steps do not contract"
            )
        count = self.iterations
        if count is None:
            wanted = math.ceil(4.5 / (step * least)) if least > 0 else _STEPS_WITHOUT_CURVATURE
            count = min(max(wanted, 1), _MOST_STEPS)
        return LangevinDraw(target, step, int(count))


@dataclass(frozen=True)
class LangevinDraw(Draw):
    """Full-batch Langevin dynamics with its step size and number of iterations fixed."""

    target: ConcaveTarget
    step_size: float
    iterations: int

    @property
    def unit(self) -> float:
        """Size of the integers' unit: the table's noise is √(2h), a hair more to be safe."""
        return math.sqrt(2 * self.step_size) / _NOISE_SD * (1 + 1e-12)

    @property
    def box(self) -> float:
        """Coordinates are kept within ±box."""
        return min(_BOX, _MOST_UNITS * self.unit)

    @property
    def rounding(self) -> float:
        """What rounding adds to G, for two states and two data sets."""
        root = math.sqrt(self.target.glm.dim)
        # Rounding to the integers and the floor of the noise: each moves two states apart by at
        # most a unit in every coordinate.
        integers = 2 * root * self.unit * (1 + 1e-3)
        # Noise may carry a coordinate a little past the box before it is projected again.
        reach = self.box + 10 * math.sqrt(2 * self.step_size)
        position = 16 * 2.0**-53 * root * reach
        gradient = 2 * self.target.rounding(reach)
        return (integers + 2 * position) / self.step_size + gradient

    @property
    def bound(self) -> float:
        return self.target.lipschitz + self.rounding

    @property
    def event(self) -> DpEvent:
        return LangevinLastIterate(
            step_size=self.step_size,
            num_steps=self.iterations,
            lipschitz=self.bound,
            strong_convexity=self.target.strong_convexity,
            smoothness=self.target.smoothness,
        )

    @property
    def tv(self) -> float:
        return self.iterations * self.target.glm.dim * _NOISE.tv

    @property
    def mechanism(self) -> str:
        return (
            f"last of {self.iterations} full-batch Langevin steps of size {self.step_size:.4g} "
            "from a public start; nothing in between is released"
        )

    @property
    def arithmetic(self) -> str:
        return (
            "state and noise on one integer lattice, floored Gaussian noise from an exact table; "
            "gradients in 64-bit floating point, whose rounding is bounded for all data and "
            f"charged as {self.rounding:.3g} on top of {self.target.lipschitz:.4g}; taken for "
            "granted: the processor's exp is right to 64 units in the last place"
        )

    @property
    def notes(self) -> tuple[str, ...]:
        travelled = self.step_size * self.target.strong_convexity * self.iterations
        if travelled >= 3:
            return ()
        if travelled == 0:
            return (
                "The prior is flat in some direction: this is a private last iterate, charged as "
                "if every step had been released, and no posterior draw.",
            )
        return (
            f"h·m·T = {travelled:.3g} is below 3: this is a private last iterate, not a posterior "
            "draw in the directions that the records determine weakly. More iterations or a "
            "tighter prior would mend it.",
        )

    @property
    def conditions(self) -> tuple[str, ...]:
        return ()

    def draw(self, key: Any, z: dict, records: list) -> dict:
        start, unravel = ravel_pytree(z)
        rows = self.target.rows(records)
        with jax.enable_x64(True):
            end = self._walk(key, start.astype(jnp.float64), self.target.exact(rows))
            released = end.astype(start.dtype)
        return unravel(released)

    def _walk(self, key: Any, start: Float[Array, " dim"], rows: Row) -> Float[Array, " dim"]:
        unit, most = self.unit, math.floor(self.box / self.unit)
        dim = start.size
        centre = round(-_NOISE.mean)

        def on_lattice(theta: Float[Array, " dim"]) -> Float[Array, " dim"]:
            units = jnp.clip(jnp.rint(theta / unit), -most, most)
            return jnp.where(jnp.isnan(units), 0, units)

        def step(_: Any, carry: tuple) -> tuple:
            units, key = carry
            key, fresh = random.split(key)
            theta = units * unit
            mean = on_lattice(theta - self.step_size * self.target.gradient(theta, rows))
            noise = floor_noise(_NOISE, *word_pairs(fresh, _NOISE.draws * dim))
            # Whole numbers far below 2^53: this addition is exact.
            return mean + (noise + centre).astype(jnp.float64), key

        units, _ = lax.fori_loop(0, self.iterations, step, (on_lattice(start), key))
        return units * unit
