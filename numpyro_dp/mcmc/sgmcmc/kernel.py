"""Arguments of the stochastic-gradient kernels, and how they become a bound kernel."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jaxtyping import ArrayLike

from numpyro_dp import _validate
from numpyro_dp.accounting import Budget
from numpyro_dp.execution import arguments
from numpyro_dp.execution.calibration import planned_sum
from numpyro_dp.mcmc.adaptation import AdaptedForecast, AdaptingKernel, adapted_forecast
from numpyro_dp.mcmc.kernel import Terms
from numpyro_dp.mcmc.sgmcmc.adapted import INSTEAD, Settings, adapted_settings, bound_adapted
from numpyro_dp.mcmc.sgmcmc.integrator import (
    BoundGradientKernel,
    BoundSumKernel,
    Integrator,
    StepSize,
)
from numpyro_dp.model.private_model import PrivateModel
from numpyro_dp.scoring.adaptation import AdaptationPlan, require_even_prior

# One for each coordinate; ``None``: 1.
Weights = tuple[float, ...] | None


@lru_cache(maxsize=64)
def shapes(model: PrivateModel) -> dict[str, tuple[int, ...]]:
    """Unconstrained shape of each latent, in the order in which they are flattened."""
    z = jax.eval_shape(model.init, jax.eval_shape(lambda: random.key(0)))
    return {name: tuple(z[name].shape) for name in sorted(z)}


def dimension(model: PrivateModel) -> int:
    """Number of coordinates of the unconstrained position."""
    return sum(math.prod(shape) for shape in shapes(model).values())


def by_coordinate(
    model: PrivateModel, argument: str, values: Mapping[str, ArrayLike], *, default: float | None
) -> tuple[float, ...]:
    """One positive number for each coordinate, from numbers or arrays by site.

    :param model: the model.
    :param argument: name of the user's argument, for messages.
    :param values: by site, what broadcasts to its unconstrained shape.
    :param default: for sites that are not named; ``None`` asks for all of them.
    :raises ValueError: for unknown or missing sites, wrong shapes, and what is not positive.
    """
    latents = shapes(model)
    unknown = sorted(set(values) - set(latents))
    if unknown:
        raise ValueError(
            f"{argument} names {', '.join(unknown)}, but the latents are {', '.join(latents)}"
        )
    missing = [name for name in latents if name not in values]
    if missing and default is None:
        raise ValueError(f"{argument} must name every latent: add {', '.join(missing)}")
    spread = []
    for name, shape in latents.items():
        given = np.asarray(values.get(name, default), dtype=float)
        try:
            spread.append(np.broadcast_to(given, shape).ravel())
        except ValueError:
            raise ValueError(
                f"{argument}[{name!r}] has shape {given.shape}, which does not broadcast to the "
                f"unconstrained shape {shape}"
            ) from None
    flat = np.concatenate(spread)
    if not np.all(np.isfinite(flat) & (flat > 0)):
        raise ValueError(f"{argument} must be positive and finite in every coordinate")
    return tuple(flat.tolist())


_LEAST_POWER = 1e-12


@dataclass(frozen=True, kw_only=True, eq=False)
class GradientKernel(AdaptingKernel):
    """Arguments that every stochastic-gradient kernel takes; see :class:`~numpyro_dp.DPSGLD`."""

    step_size: StepSize | None = None
    clip_norm: float | Mapping[str, float] | None = None
    batch_size: float | None = None
    sampling_rate: float | None = None
    noise_multiplier: float | Callable[[int], float] | None = None
    temperature: float = 1.0
    likelihood_power: float = 1.0
    microbatch_size: int | None = None
    max_records: int | None = None
    preconditioner: Mapping[str, ArrayLike] | None = None
    _schedule: list[float] = field(init=False, repr=False, default_factory=list)

    instead: ClassVar[str] = "both step_size and clip_norm"
    apart: ClassVar[tuple[str, ...]] = ("preconditioner",)

    def __post_init__(self) -> None:
        super().__post_init__()
        arguments.check_noise(self.privacy, self.noise_multiplier)
        arguments.check_batches(
            self.batch_size, self.sampling_rate, self.microbatch_size, self.max_records
        )
        if self.adapts and isinstance(self.clip_norm, Mapping):
            raise ValueError(
                "a clip_norm by site has no meaning in released coordinates: give step_size too, "
                "or leave both out"
            )
        if self.adapts:
            self.check_adaptation()
        if not callable(self.step_size):
            _validate.given(_validate.positive, step_size=self.step_size)
        _validate.positive("temperature", self.temperature)
        if _validate.positive("likelihood_power", self.likelihood_power) < _LEAST_POWER:
            raise ValueError(
                f"likelihood_power={self.likelihood_power:g} leaves the prior: no record is heard "
                f"at less than {_LEAST_POWER:g}"
            )
        # What a schedule is at a step is known when it is bound; that it is noise is known now.
        noise: Any = None if callable(self.noise_multiplier) else self.noise_multiplier
        arguments.check_noise_and_clip(noise, self.clip_norm)

    @property
    def adapts(self) -> bool:
        return self.step_size is None or self.clip_norm is None

    @property
    def paced(self) -> tuple[StepSize, float]:
        """What every integrator is given first: step size and temperature."""
        # Adaptation puts its own in place of what is missing; a step of NaN is nobody's.
        step = self.step_size if callable(self.step_size) else float(self.step_size or math.nan)
        return step, float(self.temperature)

    @abstractmethod
    def integrator(self, sampling_rate: float) -> Integrator:
        """The integrator that makes this kernel what it is."""

    def _promised(self, model: PrivateModel, terms: Terms) -> AdaptedForecast:
        require_even_prior(model, INSTEAD)
        plan, settings = self._settings(model, terms)
        chains = settings.relaxation_times, settings.integrator.step_size
        return adapted_forecast(plan, *chains, settings.private_sum.clip_norm)

    def _settings(self, model: PrivateModel, terms: Terms) -> tuple[AdaptationPlan, Settings]:
        plan = self.adaptation_plan(model, terms)
        rate = arguments.expected_rate(self.batch_size, self.sampling_rate, model.num_records)
        clip: Any = self.clip_norm
        return plan, adapted_settings(
            plan,
            self.integrator(rate),
            clip_norm=None if clip is None else float(clip),
            adapt_step_size=self.step_size is None,
            power=float(self.likelihood_power),
            sampling_rate=rate,
            num_steps=terms.num_steps,
            num_chains=terms.num_chains,
            microbatch_size=self.microbatch_size,
        )

    def _bind(self, model: PrivateModel, terms: Terms) -> BoundSumKernel:
        if callable(self.step_size):
            # A schedule that fails does so here, and not in a step that is paid for.
            jax.eval_shape(self.step_size, jax.ShapeDtypeStruct((), jnp.int32))
        if self.adapts:
            plan, settings = self._settings(model, terms)
            return bound_adapted(
                settings,
                plan,
                steps_per_sample=self.steps_per_sample,
                likelihood_power=float(self.likelihood_power),
            )
        private_size = terms.relation == "add_remove"
        if private_size:
            arguments.check_private_size(self.sampling_rate, self.max_records, model.num_records)
        given: Any = self.clip_norm
        metric, blocks, joint = None, None, given
        if self.preconditioner is not None:
            metric = by_coordinate(model, "preconditioner", self.preconditioner, default=1.0)
        if isinstance(joint, Mapping):
            blocks, joint = by_coordinate(model, "clip_norm", joint, default=None), 1.0
        rate = arguments.expected_rate(self.batch_size, self.sampling_rate, model.num_records)
        dim = dimension(model)
        weights = _clip_weights(metric, blocks)
        scale, spread = self._weights(weights, blocks, float(joint), dim)
        mechanism = planned_sum(
            num_records=model.num_records,
            shards=model.shards,
            storage=model.layout.storage,
            max_records=self.max_records if private_size else None,
            dim=self._entries(dim),
            sampling_rate=rate,
            clip_norm=float(joint),
            microbatch_size=self.microbatch_size,
            scale=scale,
            num_steps=terms.num_steps,
            delta=terms.delta,
            relation=terms.relation,
            noise=self._noise(terms.num_steps // terms.num_chains),
        )
        return self._bound(
            weights,
            private_model=model,
            steps_per_sample=self.steps_per_sample,
            private_sum=mechanism,
            integrator=self.integrator(rate),
            likelihood_power=float(self.likelihood_power),
            metric=metric,
            spread=spread,
        )

    def _entries(self, dim: int) -> int:
        """Numbers in a record's vector."""
        return dim

    def _weights(
        self, weights: Weights, blocks: Weights, clip_norm: float, dim: int
    ) -> tuple[Weights, float | tuple[float, ...]]:
        """Weights of a record's whole vector in the joint clip, and ``spread`` of the noise.

        :param weights: of the gradient's coordinates in its own clip.
        :param blocks: clip norm of each coordinate's site, where they differ.
        :param clip_norm: of the joint clip.
        :returns: The weights (``None``: 1, or nothing is clipped), and the noise of the gradient's
            coordinates in units of that of the whole sum.
        """
        return weights, 1.0 if blocks is None else blocks

    def _bound(self, weights: Weights, **fields: Any) -> BoundSumKernel:
        """The bound kernel, from its fields and the weights of a gradient in its clip."""
        return BoundGradientKernel(**fields)

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


def _clip_weights(metric: Weights, blocks: Weights) -> Weights:
    """Weights of a gradient's coordinates in the joint clip."""
    roots = None if metric is None else [math.sqrt(g) for g in metric]
    if blocks is None:
        return None if roots is None else tuple(roots)
    return tuple(g / norm for g, norm in zip(roots or [1.0] * len(blocks), blocks, strict=True))
