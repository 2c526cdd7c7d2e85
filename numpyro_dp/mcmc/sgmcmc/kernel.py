"""Arguments of the stochastic-gradient kernels, and how they become a bound kernel."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jax import random
from jaxtyping import ArrayLike

from numpyro_dp import _validate
from numpyro_dp.accounting import Budget
from numpyro_dp.execution import arguments
from numpyro_dp.execution.calibration import planned_sum
from numpyro_dp.mcmc.kernel import PrivateKernel, Terms
from numpyro_dp.mcmc.sgmcmc.adapted import (
    AdaptationPlan,
    AdaptedForecast,
    Settings,
    adapted_forecast,
    adapted_settings,
    bound_adapted,
    require_even_prior,
)
from numpyro_dp.mcmc.sgmcmc.integrator import (
    BoundGradientKernel,
    BoundSumKernel,
    Integrator,
    StepSize,
)
from numpyro_dp.model.private_model import PrivateModel, private_model
from numpyro_dp.scoring.release import refuse_private_size

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


@dataclass(frozen=True, kw_only=True, eq=False)
class GradientKernel(PrivateKernel):
    """Arguments that every stochastic-gradient kernel takes; see :class:`~numpyro_dp.DPSGLD`."""

    step_size: StepSize | None = None
    clip_norm: float | Mapping[str, float] | None = None
    adaptation: float = 0.25
    dense_mass: bool = True
    batch_size: float | None = None
    sampling_rate: float | None = None
    noise_multiplier: float | Callable[[int], float] | None = None
    temperature: float = 1.0
    likelihood_power: float = 1.0
    microbatch_size: int | None = None
    max_records: int | None = None
    preconditioner: Mapping[str, ArrayLike] | None = None
    _schedule: list[float] = field(init=False, repr=False, default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        arguments.check_noise(self.privacy, self.noise_multiplier)
        arguments.check_batches(
            self.batch_size, self.sampling_rate, self.microbatch_size, self.max_records
        )
        if self.adapts:
            self._check_adaptation()
        if not callable(self.step_size):
            _validate.given(_validate.positive, step_size=self.step_size)
        _validate.positive("temperature", self.temperature)
        _validate.positive("likelihood_power", self.likelihood_power)
        # What a schedule is at a step is known when it is bound; that it is noise is known now.
        noise: Any = None if callable(self.noise_multiplier) else self.noise_multiplier
        arguments.check_noise_and_clip(noise, self.clip_norm)

    @property
    def adapts(self) -> bool:
        """Whether a release before the chains gives what was left open."""
        return self.step_size is None or self.clip_norm is None

    def _check_adaptation(self) -> None:
        if not 0 < _validate.positive("adaptation", self.adaptation) < 1:
            raise ValueError("adaptation must lie between 0 and 1: chains need a share too")
        if self.privacy is None:
            raise ValueError(
                "without both step_size and clip_norm the kernel adapts, which takes a share of a "
                "budget: give privacy=Budget(epsilon, delta) in place of noise_multiplier, or both"
            )
        if isinstance(self.clip_norm, Mapping):
            raise ValueError(
                "a clip_norm by site has no meaning in released coordinates: give step_size too, "
                "or leave both out"
            )
        for name in ("preconditioner", "init_kernel", "init_strategy", "num_steps"):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"{name}= goes with both step_size and clip_norm: without them a release "
                    "before the chains gives their start and metric, in numpyro_dp.MCMC"
                )

    @property
    def paced(self) -> tuple[StepSize, float]:
        """What every integrator is given first: step size and temperature."""
        step = self.step_size if callable(self.step_size) else float(self.step_size or math.nan)
        return step, float(self.temperature)

    @abstractmethod
    def integrator(self, sampling_rate: float) -> Integrator:
        """The integrator that makes this kernel what it is."""

    def forecast(
        self, *args: Any, num_steps: int, num_chains: int = 1, **kwargs: Any
    ) -> AdaptedForecast:
        """What a run that adapts would be, from public numbers; costs nothing. ``print`` it.

        :param args: arguments of the model; only their shapes are used.
        :param num_steps: private steps of one chain, warm-up included.
        :param num_chains: chains.
        :param kwargs: keyword arguments of the model.
        :raises ValueError: for a kernel with step_size and clip_norm, whose forecast is
            :func:`~numpyro_dp.plan`; and for a prior that steps of one size do not suit.
        """
        if not self.adapts:
            raise ValueError("this kernel has its settings: numpyro_dp.plan tells what they do")
        refuse_private_size(self.relation)
        model = private_model(self.user_model, args, kwargs, data_plate=self.data_plate)
        each = _validate.positive_int("num_steps", num_steps)
        num_chains = _validate.positive_int("num_chains", num_chains)
        require_even_prior(model)
        terms = Terms(each * num_chains, num_chains, self.relation, self.delta)
        return adapted_forecast(*self._settings(model, terms))

    def _settings(self, model: PrivateModel, terms: Terms) -> tuple[AdaptationPlan, Settings]:
        refuse_private_size(terms.relation)
        privacy: Any = self.privacy
        shares = privacy, terms.relation, float(self.adaptation), bool(self.dense_mass)
        plan = AdaptationPlan(model, *shares)
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
