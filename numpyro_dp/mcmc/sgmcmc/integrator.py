"""The noisy-gradient engine that the stochastic-gradient kernels share.

A step is: private sum of clipped record gradients → estimate of the posterior gradient →
integrator. Only the integrator differs between DP-SGLD and its relatives; it sees released
values and the public scale of their noise, never a record.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from numpyro_dp.accounting import rounded_down
from numpyro_dp.accounting.events import DpEvent
from numpyro_dp.accounting.report.facts import RunFacts
from numpyro_dp.accounting.spending import printable
from numpyro_dp.execution.facts import sum_facts
from numpyro_dp.mcmc.adaptation import require_plain
from numpyro_dp.mcmc.kernel import BoundKernel
from numpyro_dp.mechanisms import PrivateSum
from numpyro_dp.scoring.verdicts.kinds import RANKS, beginning

# What counts as no more than asked for, although it was computed in floating point.
_ROUNDING = 1 + 1e-9


class Note(NamedTuple):
    """What is to be known of some draws.

    - **text**: a sentence for the report, with the remedy.
    - **sign**: what a table of the draws says of it, after "these draws".
    - **first**: whether it harms more than what was known before the run, such as a temperature.
    """

    text: str
    sign: str
    first: bool = False


def hotter_than(reached: float, temperature: float) -> bool:
    """Whether privacy noise at this temperature exceeds what a sampler asks for."""
    return reached > temperature * _ROUNDING


def raised_temperature(reached: float, temperature: float, remedy: str) -> tuple[Note, ...]:
    """What to say when the privacy noise exceeds the noise that a sampler asks for.

    :param reached: temperature at which the privacy noise alone would put the draws.
    :param temperature: the one that was asked for.
    :param remedy: which argument would mend it, and how.
    :returns: nothing, or one note.
    """
    if not hotter_than(reached, temperature):
        return ()
    wide = f"{math.sqrt(reached / temperature):.3g}"
    text = (
        f"The privacy noise exceeds the Langevin noise of this step size: the draws are at "
        f"temperature {reached:.3g} instead of {temperature:g} and spread too widely by "
        f"a factor {wide}. {remedy} would be free of this."
    )
    return (Note(text, f"are {wide} times too wide (temperature {reached:.3g})"),)


def in_one_line(notes: Sequence[str], signs: Sequence[str]) -> str:
    """How many notes a report has, and what they say of the draws; empty where there are none."""
    if not notes:
        return ""
    count = f"{len(notes)} note{'' if len(notes) == 1 else 's'}: see .privacy"
    ranked = (beginning(note) for note in notes if note.startswith(RANKS))
    said = "; ".join([f"these draws {'; '.join(signs)}"] * bool(signs) + [*ranked])
    return printable(f"{count} ({said})") if said else count


StepSize = float | Callable[[Any], Any]
Scalar = Float[Array, ""]
Vector = Float[Array, " dim"]
# The next position, and the state fields that change with it.
Move = tuple[Vector, dict[str, Any]]


class NoisyGradient(NamedTuple):
    """All that an integrator is told of the records, and the public scales that go with it.

    - **value**: estimates the gradient of the (tempered) log posterior density.
    - **sd**: standard deviation of its privacy noise where it is multiplied by the root of
      ``metric``; one for each coordinate or the same for all.
    - **metric**: the public preconditioner, a diagonal or 1.

    **Privacy.** ``value`` is a function of one released sum; the rest is public.
    """

    value: Vector
    sd: float | Float[Array, "*dim"]
    metric: Vector | float


@dataclass(frozen=True)
class Integrator(ABC):
    """How a released gradient moves a position: frozen, hashable by value, sees no record.

    :param step_size: η, or a schedule of it.
    :param temperature: that of the draws, if the privacy noise is no more than the noise asked for.
    """

    # As of a bound kernel.
    derived: ClassVar[tuple[str, ...]] = ()
    # What a shorter step needs beside it, or could be instead.
    remedy: ClassVar[str] = ""

    step_size: StepSize
    temperature: float

    @abstractmethod
    def start(self, rng_key: Any, z: dict, position: Vector, gradient_sd: Any = 0.0) -> Any:
        """The first state of a chain, with whatever else the integrator carries.

        ``gradient_sd`` is that of its first step.
        """

    @abstractmethod
    def step(self, key: Any, state: Any, position: Vector, gradient: NoisyGradient) -> Move:
        """The next position, and the state fields that change with it."""

    def notes(self, gradient_sd: float, state: Any = None) -> tuple[Note, ...]:
        """What a report should say of draws made at this noise.

        ``state`` is the last one, with a leading axis where chains are several: what it adds to
        the notes without a state is said after a run.
        """
        if callable(self.step_size) or gradient_sd == 0:
            return ()
        reached = self.reached(self.step_size, gradient_sd)
        free = rounded_down(self.free_step_size(gradient_sd), 3)
        remedy = f"A step_size of at most {free}{self.remedy}"
        return raised_temperature(reached, self.temperature, remedy)

    @abstractmethod
    def reached(self, step_size: float, gradient_sd: float) -> float:
        """Temperature at which the privacy noise alone would put the draws."""

    @abstractmethod
    def free_step_size(self, gradient_sd: float) -> float:
        """Longest step at which the privacy noise is no more than the noise asked for."""

    def quiet_step_size(self, gradient_sd: float) -> float:
        """Longest step at which it changes nothing else either."""
        return self.free_step_size(gradient_sd)

    @abstractmethod
    def widened(self, step_size: float, curvature: float, batches: float) -> float:
        """Variance of the draws over the target's along a direction of this curvature.

        Privacy noise apart: long steps overshoot, and mini-batches, whose gradients have a variance
        of ``batches`` times the curvature, shake. Infinite where the steps run away.
        """

    @abstractmethod
    def relaxation(self, step: Any, gradient_sd: Any, variance: Any, state: Any = None) -> Any:
        """Share of a relaxation time that one step is, where the target has this variance.

        All in coordinates multiplied by the root of the inverse preconditioner. ``state`` is as
        for :meth:`notes`, and its leading axis one of the result's.
        """


def step_at(step_size: StepSize, step: Any, dtype: Any) -> Float[Array, ""]:
    """η of a step, whether it is a number or a schedule."""
    return jnp.asarray(step_size(step) if callable(step_size) else step_size, dtype)


@dataclass(frozen=True)
class BoundSumKernel(BoundKernel):
    """A kernel that releases one noisy sum a step, its noise, room and lattice fixed.

    :param spread: noise of each coordinate of the gradient (times the root of ``metric``), in
        units of the noise of the clipped sum: one number, or one for each coordinate.
    """

    private_sum: PrivateSum
    integrator: Integrator
    likelihood_power: float
    metric: tuple[float, ...] | None = None
    spread: float | tuple[float, ...] = 1.0

    # A private sum does so.
    masks_padding: ClassVar[bool] = True
    # Whether clipped vectors have mean zero under the model, whatever the clip norm.
    centred: ClassVar[bool] = False
    summands: ClassVar[str] = "clipped per-record gradients"
    released_values: ClassVar[tuple[str, ...]] = (
        "the position after every step (warm-up included) and its step counter",
    )

    @property
    def derived(self) -> tuple[str, ...]:
        return self.integrator.derived

    @property
    def gradient_sd(self) -> float:
        """Standard deviation of the privacy noise in a coordinate of the released gradient.

        Under a noise schedule or several clip norms, the largest.
        """
        mechanism = self.private_sum
        loudest = max(mechanism.schedule or (mechanism.noise_multiplier,))
        return self._scaled(loudest * mechanism.clip_norm) if mechanism.is_private else 0.0

    def _scaled(self, noise_sd: Any) -> Any:
        one = self.likelihood_power * noise_sd / self.private_sum.sampling_rate
        return one * float(np.max(self.spread))

    def believed(self, variance: Vector, state: Any) -> Vector:
        """Variance of the target by coordinate, given that of some draws, which may be few."""
        return variance

    def resumed(self, state: Any) -> Any:
        require_plain(state)
        return state

    def gradient_noise(self, step: Any) -> Any:
        """Standard deviation of a step's privacy noise, in each coordinate if they differ."""
        loudest = self._scaled(self.private_sum.noise_sd(step))
        if not isinstance(self.spread, tuple):
            return loudest
        return loudest * jnp.asarray(self.spread, jnp.float32) / max(self.spread)

    def diagonal(self, dtype: Any, state: Any = None) -> Any:
        """The preconditioner's diagonal as an array, or 1.

        ``state`` is as for :meth:`Integrator.notes`.
        """
        return 1.0 if self.metric is None else jnp.asarray(self.metric, dtype)

    def prior_gradient(self, z: dict) -> Vector:
        """Gradient of the log prior at a position; it reads no record."""
        position, unravel = ravel_pytree(z)
        return jax.grad(lambda position: self.private_model.log_prior(unravel(position)))(position)

    def posterior_gradient(self, z: dict, likelihood: Vector) -> Vector:
        """Gradient of the (tempered) log posterior, from the released one of the likelihood."""
        return self.prior_gradient(z) + self.likelihood_power * likelihood

    def start(self, rng_key: Any, z: dict) -> Any:
        return self.integrator.start(rng_key, z, ravel_pytree(z)[0], self.gradient_noise(0))

    def event(self, num_steps: int, *, start: int = 0, num_chains: int = 1) -> DpEvent:
        return self.private_sum.event(num_steps, start=start, num_chains=num_chains)

    def facts(self) -> RunFacts:
        mechanism = self.private_sum
        notes = self.integrator.notes(self.gradient_sd)
        remarks: tuple[str, ...] = ()
        if self.likelihood_power != 1:
            remarks += (
                f"The likelihood was raised to the power {self.likelihood_power:g}: these are "
                "draws from a tempered posterior.",
            )
        if not mechanism.is_private:
            remarks += ("Clipping and noise were switched off: nothing here is private.",)
        return sum_facts(
            mechanism,
            f"the sum of {self.summands}",
            draw="step and chain",
            noise_multiplier=_noise_in_words(mechanism),
            released=self.released_values,
            notes=tuple(note.text for note in notes),
            signs=tuple(note.sign for note in notes if note.sign),
            remarks=remarks,
        )


@dataclass(frozen=True)
class BoundPositionKernel(BoundSumKernel):
    """A kernel whose records' vectors are functions of the unconstrained position alone."""

    # A private sum does so, and no other release comes before the steps.
    fetches: ClassVar[bool] = True

    @abstractmethod
    def record_vector(self, z: dict) -> Callable[[list[Array]], Float[Array, " entries"]]:
        """What one record adds to the released sum at a position."""

    def release(self, key: Any, z: dict, records: list, step: Any) -> Float[Array, " entries"]:
        """The noisy sum of one step: all that leaves."""
        released = self.private_sum.release(key, self.record_vector(z), records, step)
        return released.astype(ravel_pytree(z)[0].dtype)

    def learnt(self, state: Any, released: Float[Array, " entries"]) -> tuple[Any, Vector]:
        """The state with what it keeps of a released sum, and the gradient in that sum."""
        return state, released

    def advance(self, key: Any, state: Any, records: list) -> Any:
        position, unravel = ravel_pytree(state.z)
        release_key, integrator_key = random.split(key)
        released = self.release(release_key, state.z, records, state.i)
        state, likelihood = self.learnt(state, released)
        gradient = NoisyGradient(
            self.posterior_gradient(state.z, likelihood),
            self.gradient_noise(state.i),
            self.diagonal(position.dtype),
        )
        position, moved = self.integrator.step(integrator_key, state, position, gradient)
        return state._replace(z=unravel(position), **moved)

    def record_gradient(self, z: dict) -> Callable[[list[Array]], Vector]:
        """Gradient of one record's log likelihood at a position."""
        position, unravel = ravel_pytree(z)

        def gradient(record: list[Array]) -> Vector:
            def term(position: Vector) -> Float[Array, ""]:
                return self.private_model.record_log_likelihood(unravel(position), record)

            return jax.grad(term)(position)

        return gradient


@dataclass(frozen=True)
class BoundGradientKernel(BoundPositionKernel):
    """A kernel whose released sum is the gradient alone."""

    def record_vector(self, z: dict) -> Callable[[list[Array]], Vector]:
        return self.record_gradient(z)


def _noise_in_words(mechanism: PrivateSum) -> float | str:
    if mechanism.schedule is None:
        return mechanism.noise_multiplier
    return f"{min(mechanism.schedule):.4g} to {max(mechanism.schedule):.4g}, by a schedule"
