"""The noisy-gradient engine that the stochastic-gradient kernels share.

A step is: private sum of clipped record gradients → estimate of the posterior gradient →
integrator. Only the integrator differs between DP-SGLD and its relatives; it sees released
values and the public scale of their noise, never a record.
"""

from __future__ import annotations

import contextlib
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, ArrayLike, Float

from numpyro_dp import _validate
from numpyro_dp.accounting import Budget, Relation, calibrate, privacy_curve
from numpyro_dp.accounting.events import DpEvent
from numpyro_dp.mcmc.kernel import BoundKernel, PrivateKernel, RunFacts
from numpyro_dp.mechanisms import PrivateSum
from numpyro_dp.model import PrivateModel

__all__ = ["BoundGradientKernel", "GradientKernel", "Integrator"]

_LATTICE_ARITHMETIC = (
    "integer record contributions, exact integer sum, floored Gaussian noise from an exact table "
    "on the same integers"
)
_ROW_BY_ROW = (
    "; records computed one at a time, and taken to be computed alike by the programs for N and "
    "N + 1 records"
)


class Integrator(Protocol):
    """How a released gradient moves a position: frozen, hashable by value, sees no record."""

    def start(self, rng_key: Any, z: dict, position: Float[Array, " dim"]) -> Any:
        """The first state of a chain, with whatever else the integrator carries."""
        ...

    def step(
        self,
        key: Any,
        state: Any,
        position: Float[Array, " dim"],
        gradient: Float[Array, " dim"],
        gradient_sd: float | Float[Array, ""],
        metric: Float[Array, " dim"] | float,
    ) -> tuple[Float[Array, " dim"], dict[str, Any]]:
        """The next position, and the state fields that change with it.

        ``gradient`` estimates the gradient of the (tempered) log posterior density. Multiplied by
        the root of ``metric``, the public preconditioner, its privacy noise has standard deviation
        ``gradient_sd`` a coordinate.
        """
        ...

    def notes(self, gradient_sd: float) -> tuple[str, ...]:
        """What a report should say of draws made at this noise."""
        ...


@dataclass(frozen=True)
class BoundGradientKernel(BoundKernel):
    """A gradient kernel with its noise, room and lattice fixed."""

    private_sum: PrivateSum
    integrator: Integrator
    likelihood_power: float
    metric: tuple[float, ...] | None = None

    @property
    def gradient_sd(self) -> float:
        """Standard deviation of the privacy noise in a coordinate of the released gradient.

        Under a noise schedule, the largest.
        """
        mechanism = self.private_sum
        loudest = max(mechanism.schedule or (mechanism.noise_multiplier,))
        return self._scaled(loudest * mechanism.clip_norm) if mechanism.is_private else 0.0

    def _scaled(self, noise_sd: Any) -> Any:
        return self.likelihood_power * noise_sd / self.private_sum.sampling_rate

    def start(self, rng_key: Any, z: dict) -> Any:
        return self.integrator.start(rng_key, z, ravel_pytree(z)[0])

    def advance(self, key: Any, state: Any, records: list) -> Any:
        position, unravel = ravel_pytree(state.z)
        release_key, integrator_key = random.split(key)

        def log_prior(position):
            return self.wall.log_prior(unravel(position))

        def record_gradient(record):
            def term(position):
                return self.wall.record_log_likelihood(unravel(position), record)

            return jax.grad(term)(position)

        released = self.private_sum.release(release_key, record_gradient, records, state.i)
        likelihood = self.likelihood_power * released.astype(position.dtype)
        gradient = jax.grad(log_prior)(position) + likelihood
        metric = 1.0 if self.metric is None else jnp.asarray(self.metric, position.dtype)
        noise_sd = self._scaled(self.private_sum.noise_sd(state.i))
        position, moved = self.integrator.step(
            integrator_key, state, position, gradient, noise_sd, metric
        )
        return state._replace(z=unravel(position), **moved)

    def event(self, num_steps: int, *, start: int = 0, num_chains: int = 1) -> DpEvent:
        return self.private_sum.event(num_steps, start=start, num_chains=num_chains)

    def facts(self) -> RunFacts:
        mechanism = self.private_sum
        notes = self.integrator.notes(self.gradient_sd)
        if self.likelihood_power != 1:
            notes += (
                f"The likelihood was raised to the power {self.likelihood_power:g}: these are "
                "draws from a tempered posterior.",
            )
        if not mechanism.is_private:
            notes += ("Clipping and noise were switched off: nothing here is private.",)
        full = mechanism.sampling_rate == 1
        return RunFacts(
            mechanism=(
                "Gaussian mechanism on the sum of clipped per-record gradients"
                if mechanism.is_private
                else "none: un-noised, unclipped gradients"
            ),
            sampler=(
                "every record in every step"
                if full
                else f"Poisson sampling, rate {mechanism.sampling_rate:.6g}, a fresh draw for each "
                "step and chain"
            ),
            sampling_rate=mechanism.sampling_rate,
            clip_norm=mechanism.clip_norm,
            noise_multiplier=_noise_in_words(mechanism),
            overflow_delta=mechanism.tv_per_step,
            released=("the position after every step (warm-up included) and its step counter",),
            arithmetic=(
                _LATTICE_ARITHMETIC + (_ROW_BY_ROW if mechanism.max_records is not None else "")
                if mechanism.is_private
                else "floating point"
            ),
            notes=notes,
        )


def _noise_in_words(mechanism: PrivateSum) -> float | str:
    if mechanism.schedule is None:
        return mechanism.noise_multiplier
    return f"{min(mechanism.schedule):.4g} to {max(mechanism.schedule):.4g}, by a schedule"


@dataclass(frozen=True, kw_only=True, eq=False)
class GradientKernel(PrivateKernel):
    """Arguments that every stochastic-gradient kernel takes; see :class:`~numpyro_dp.DPSGLD`."""

    clip_norm: float
    batch_size: float | None = None
    sampling_rate: float | None = None
    noise_multiplier: float | Callable[[int], float] | None = None
    likelihood_power: float = 1.0
    microbatch_size: int | None = None
    max_records: int | None = None
    preconditioner: Mapping[str, ArrayLike] | None = None
    _schedule: list[float] = field(init=False, repr=False, default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.privacy is None) == (self.noise_multiplier is None):
            raise ValueError(
                "give either privacy=Budget(epsilon, delta), from which the noise is calibrated, "
                "or noise_multiplier=, and not both"
            )
        if self.batch_size is not None and self.sampling_rate is not None:
            raise ValueError("give batch_size= (expected size) or sampling_rate=, not both")
        if self.batch_size is not None:
            _validate.positive("batch_size", self.batch_size)
        if self.sampling_rate is not None:
            _validate.rate("sampling_rate", self.sampling_rate)
        if self.microbatch_size is not None:
            _validate.positive_int("microbatch_size", self.microbatch_size)
        if self.max_records is not None:
            _validate.positive_int("max_records", self.max_records)
        _validate.positive("likelihood_power", self.likelihood_power)
        if callable(self.noise_multiplier):
            _validate.positive("clip_norm", self.clip_norm)
            return
        if self.noise_multiplier is not None:
            _validate.nonnegative("noise_multiplier", self.noise_multiplier)
        if self.noise_multiplier == 0 and self.clip_norm == math.inf:
            return
        if self.clip_norm == math.inf or self.noise_multiplier == 0:
            raise ValueError(
                "clip_norm=inf and noise_multiplier=0 switch privacy off together, for tests: "
                "either one alone has no guarantee and is refused"
            )
        _validate.positive("clip_norm", self.clip_norm)

    @abstractmethod
    def integrator(self) -> Integrator:
        """The integrator that makes this kernel what it is."""

    def bind(
        self,
        wall: PrivateModel,
        *,
        num_steps: int,
        relation: Relation,
        delta: float,
        num_chains: int = 1,
    ) -> BoundGradientKernel:
        if relation == "add_remove":
            self._check_private_size(wall.num_records)
        metric = None if self.preconditioner is None else _metric(wall, self.preconditioner)
        mechanism = _private_sum(
            num_records=wall.num_records,
            max_records=self.max_records if relation == "add_remove" else None,
            dim=_dimension(wall),
            sampling_rate=self._sampling_rate(wall.num_records),
            clip_norm=self.clip_norm,
            microbatch_size=self.microbatch_size,
            scale=None if metric is None else tuple(math.sqrt(g) for g in metric),
            num_steps=num_steps,
            delta=delta,
            relation=relation,
            noise=self._noise(num_steps // num_chains),
        )
        return BoundGradientKernel(
            wall=wall,
            steps_per_sample=self.steps_per_sample,
            private_sum=mechanism,
            integrator=self.integrator(),
            likelihood_power=float(self.likelihood_power),
            metric=metric,
        )

    def _noise(self, steps: int) -> float | tuple[float, ...] | Budget:
        """Budget, noise multiplier, or the schedule's values for the steps of one chain."""
        if self.privacy is not None:
            return self.privacy
        noise: Any = self.noise_multiplier
        if not callable(noise):
            return float(noise)
        # Each step's value is asked for once: a callable that answers otherwise the next time
        # must not part the noise that is drawn from the noise that was charged.
        known = self._schedule
        for step in range(len(known), max(steps, 1)):
            known.append(_validate.positive("noise_multiplier", float(noise(step))))
        return tuple(known[: max(steps, 1)])

    def _check_private_size(self, num_records: int) -> None:
        if self.sampling_rate is None or self.sampling_rate == 1 or self.max_records is None:
            raise ValueError(
                "under relation='add_remove' the number of records is private: give "
                "sampling_rate= below 1 (not batch_size) and max_records=, a public upper bound "
                "on the number of records"
            )
        if self.max_records < num_records:
            raise ValueError("max_records is smaller than the data: give a public upper bound")

    def _sampling_rate(self, num_records: int) -> float:
        if self.batch_size is not None:
            if self.batch_size > num_records:
                raise ValueError(
                    f"batch_size={self.batch_size:g} is larger than the {num_records} records: "
                    "give at most that many, or neither batch_size nor sampling_rate for full "
                    "batches"
                )
            return self.batch_size / num_records
        return 1.0 if self.sampling_rate is None else float(self.sampling_rate)


@lru_cache(maxsize=64)
def _shapes(wall: PrivateModel) -> dict[str, tuple[int, ...]]:
    """Unconstrained shape of each latent, in the order in which they are flattened."""
    z = jax.eval_shape(wall.init, jax.eval_shape(lambda: random.key(0)))
    return {name: tuple(z[name].shape) for name in sorted(z)}


def _dimension(wall: PrivateModel) -> int:
    return sum(math.prod(shape) for shape in _shapes(wall).values())


def _metric(wall: PrivateModel, preconditioner: Mapping[str, ArrayLike]) -> tuple[float, ...]:
    """The diagonal of the preconditioner over the flattened position, 1 where none is given."""
    shapes = _shapes(wall)
    unknown = sorted(set(preconditioner) - set(shapes))
    if unknown:
        raise ValueError(
            f"preconditioner names {', '.join(unknown)}, but the latents are {', '.join(shapes)}"
        )
    diagonal = []
    for name, shape in shapes.items():
        values = np.asarray(preconditioner.get(name, 1.0), dtype=float)
        try:
            values = np.broadcast_to(values, shape)
        except ValueError:
            raise ValueError(
                f"preconditioner[{name!r}] has shape {values.shape}, which does not broadcast to "
                f"the unconstrained shape {shape}"
            ) from None
        diagonal.append(values.ravel())
    flat = np.concatenate(diagonal)
    if not np.all(np.isfinite(flat) & (flat > 0)):
        raise ValueError("preconditioner must be positive and finite in every coordinate")
    return tuple(flat.tolist())


@lru_cache(maxsize=64)
def _private_sum(
    *,
    num_steps: int,
    delta: float,
    relation: Relation,
    noise: float | tuple[float, ...] | Budget,
    **shape: Any,
) -> PrivateSum:
    """The private sum for a run, its noise calibrated when ``noise`` is a budget."""

    def at(noise_multiplier: float | tuple[float, ...]) -> PrivateSum:
        return PrivateSum.create(
            noise_multiplier=noise_multiplier, num_steps=num_steps, delta=delta, **shape
        )

    if not isinstance(noise, Budget):
        return at(noise)
    most = _most_noise(at)

    def run(noise_multiplier: float) -> DpEvent:
        return at(min(noise_multiplier, most)).event(num_steps)

    least = privacy_curve(run(most), relation).epsilon(noise.delta)
    if least > noise.epsilon:
        remedy = (
            f"ε ≥ {least:.3g} would do at this δ"
            if math.isfinite(least)
            else "no ε would do at this δ, which must be larger"
        )
        raise ValueError(
            f"privacy={noise} is too small for {num_steps} private steps, even with the most noise "
            f"the release can carry: {remedy}; or run fewer steps, fewer chains or smaller batches"
        )
    return at(calibrate(run, noise, relation))


def _most_noise(at: Callable[[float], PrivateSum]) -> float:
    """The largest noise multiplier, to a quarter of an octave, that the lattice can carry."""
    for quarter in range(60, -40, -1):
        with contextlib.suppress(ValueError):
            at(2.0 ** (quarter / 4))
            return 2.0 ** (quarter / 4)
    raise ValueError("no noise multiplier fits the integer lattice in so many dimensions")
