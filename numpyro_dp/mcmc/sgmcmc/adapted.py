"""Adaptation: start, metric, clip norm and step size of a gradient kernel, without the user's help.

A share of the run's privacy goes to a few rounds of private Fisher scoring. They say where the
posterior lies and which coordinates x make its information the identity. There every direction
costs the same noise, a record's score has norm about √(dim/records), and a chain needs step sizes
of order 1: clip norm and step size follow from public numbers alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from numpyro_dp.accounting import Budget, Relation, rounded_down
from numpyro_dp.accounting.events import ComposedDpEvent, DpEvent
from numpyro_dp.execution.calibration import least_noise
from numpyro_dp.execution.progress import steps_bar
from numpyro_dp.mcmc.first import Begun
from numpyro_dp.mcmc.sgmcmc.integrator import BoundSumKernel, Integrator, NoisyGradient, Vector
from numpyro_dp.mechanisms import PrivateSum
from numpyro_dp.model.private_model import PrivateModel
from numpyro_dp.scoring.forecast import Forecast, promised
from numpyro_dp.scoring.located import located, whitening_at
from numpyro_dp.scoring.prior import prior_moments, steepness
from numpyro_dp.scoring.release import bound_release
from numpyro_dp.scoring.statistic import unravelled
from numpyro_dp.scoring.turns import BoundRelease, released_rounds

# Four leave one run in five on its way; ten arrive where those of a release of its own do.
ROUNDS = 10
# Relaxation times that a clip norm leaves: looser clips would leave fewer.
_TIMES = 22.0
# Clip norms in units of a record's typical whitened score, √(dim/records).
_TIGHTEST, _LOOSEST = 2.0, 10.0
# Steps and mini-batches may widen the draws' variance by so much.
_WIDENED = 1.1
_LONGEST = 1.0
# Curvature of the prior at its own draws, where that of a normal one is 1.
_STEEP = 100.0
_LOST = (
    "Adaptation did not arrive: its last step was longer than its noise explains, so the released "
    "coordinates are not the posterior's and the chain may still be on its way. Give priors on the "
    "scale of the answer (within a factor of ten), a larger adaptation=, or more privacy budget."
)


class AdaptState(NamedTuple):
    """What a chain was given before its first step; released values.

    - **mean**: where the posterior was located, unconstrained, shape (dim,).
    - **mass_matrix_sqrt_inv**: W, shape (dim, dim): a step of size 1 in the chain's coordinates x
      is a step Wᵀx of the unconstrained ones, flat in the order of the site names. WᵀW is about
      the posterior's covariance.
    """

    mean: Float[Array, "... dim"]
    mass_matrix_sqrt_inv: Float[Array, "... dim dim"]


class Placed(NamedTuple):
    """A starting position **z** and the **adapt_state** that goes with it."""

    z: dict[str, Array]
    adapt_state: AdaptState


@dataclass(frozen=True)
class AdaptationPlan:
    """The release that prepares a chain.

    :param model: the model, split.
    :param privacy: the whole run's budget.
    :param relation: neighbouring relation.
    :param share: of the squared privacy loss, for this release.
    :param dense: whether coordinates that hang together are told apart.
    """

    model: PrivateModel
    privacy: Budget
    relation: Relation
    share: float
    dense: bool

    @property
    def release(self) -> BoundRelease:
        """Every number of it."""
        return bound_release(self.model, self.privacy, self.relation, ROUNDS, self.share)

    @property
    def event(self) -> DpEvent:
        """What it costs."""
        plan = self.release.plan
        return plan.cost(plan.num_steps, plan.num_steps)


@dataclass(frozen=True)
class Adaptation:
    """The release, with the chains that it starts; see :class:`~numpyro_dp.mcmc.first.First`."""

    plan: AdaptationPlan
    num_chains: int

    label: ClassVar[str] = ""
    conditions: ClassVar[tuple[str, ...]] = ()

    @property
    def event(self) -> DpEvent:
        return self.plan.event

    @property
    def steps(self) -> int:
        return self.plan.release.plan.num_steps

    @property
    def total_variation(self) -> float:
        return self.plan.release.plan.total_variation

    def begin(
        self, rng_key: Any, start: Any, records: tuple, given: bool, progress_bar: bool
    ) -> Begun:
        """Locate the posterior; chains start at draws from where it was found."""
        bound, model = self.plan.release, self.plan.model
        noise_key, outcome_key, start_key = random.split(rng_key, 3)
        with steps_bar(self.steps, (), shown=progress_bar) as show:
            rounds = released_rounds(
                bound, noise_key, outcome_key, list(records), lambda done: show(done, None, "adapt")
            )
        at = located(rounds, bound.prior, model.num_records)
        whitening = whitening_at(at, rounds, bound.prior, model.num_records)
        if not self.plan.dense:
            whitening = _diagonal(whitening)
        dtype = jnp.result_type(float)
        state = AdaptState(jnp.asarray(at.mean, dtype), jnp.asarray(whitening, dtype))
        root = jnp.asarray(np.linalg.cholesky(at.covariance), dtype)

        def place(key: Any) -> dict[str, Array]:
            # Public randomness: what is drawn follows from released numbers.
            away = root @ random.normal(key, state.mean.shape, dtype)
            return unravelled(model, state.mean + away)

        several = self.num_chains > 1
        if not given:
            keys = random.split(start_key, self.num_chains) if several else start_key
            start = jax.vmap(place)(keys) if several else place(keys)
        if several:
            state = jax.tree.map(lambda x: jnp.stack([x] * self.num_chains), state)
        return Begun(Placed(start, state), () if at.arrived else (_LOST,))


@dataclass(frozen=True)
class BoundAdaptedKernel(BoundSumKernel):
    """A kernel that moves in whitened coordinates, on clipped centred scores.

    :param adaptation: the release that gives them.
    """

    adaptation: AdaptationPlan = field(kw_only=True)

    centred: ClassVar[bool] = True
    summands: ClassVar[str] = (
        "clipped, centred per-record scores in released coordinates, after "
        f"{ROUNDS + 1} such sums of adaptation, of bound 1 and all records each"
    )

    released_values: ClassVar[tuple[str, ...]] = (
        f"the noisy sums of {ROUNDS} rounds of scores and information and of a histogram of "
        "scores' sizes, from which start and coordinates follow (adapt_state)",
        *BoundSumKernel.released_values,
    )

    @property
    def derived(self) -> tuple[str, ...]:
        return (*self.integrator.derived, "adapt_state")

    def believed(self, variance: Vector, state: Any) -> Vector:
        """What was released, unless the draws are more than twice as wide."""
        told = self.diagonal(variance.dtype, state) / self.likelihood_power
        return jnp.where(variance > 4 * told, variance, told)

    def first(self, num_chains: int) -> Adaptation:
        return Adaptation(self.adaptation, num_chains)

    def resumed(self, state: Any) -> Any:
        if getattr(state, "adapt_state", None) is None:
            raise ValueError(
                "post_warmup_state was left by a kernel that did not adapt: give this one the "
                "step_size and clip_norm of that run, or begin anew"
            )
        return state

    def leaves(self, records: list) -> list:
        return self.adaptation.release.statistic.numbered(records)

    def diagonal(self, dtype: Any, state: Any = None) -> Any:
        """Of WᵀW, which every chain was given alike."""
        whitening = state.adapt_state.mass_matrix_sqrt_inv
        return jnp.sum(whitening.reshape(-1, *whitening.shape[-2:])[0] ** 2, axis=0).astype(dtype)

    def start(self, rng_key: Any, z: Any) -> Any:
        """State of a chain at a :class:`Placed`; bare positions stand for its shapes."""
        if not isinstance(z, Placed):
            position = ravel_pytree(z)[0]
            z = Placed(z, AdaptState(position, jnp.eye(position.size, dtype=position.dtype)))
        return super().start(rng_key, z.z)._replace(adapt_state=z.adapt_state)

    def advance(self, key: Any, state: Any, records: list) -> Any:
        position, unravel = ravel_pytree(state.z)
        whitening = state.adapt_state.mass_matrix_sqrt_inv.astype(position.dtype)
        release_key, integrator_key, outcome_key = random.split(key, 3)
        statistic, mechanism = self.adaptation.release.statistic, self.private_sum

        def vector(record: list[Array]) -> Float[Array, " dim"]:
            return statistic.score(position, whitening, mechanism.clip_norm, outcome_key, record)

        released = mechanism.release(release_key, vector, records, state.i).astype(position.dtype)
        gradient = NoisyGradient(
            whitening @ self.prior_gradient(state.z) + self.likelihood_power * released,
            self.gradient_noise(state.i),
            1.0,
        )
        still = jnp.zeros_like(position)
        moved, fields = self.integrator.step(integrator_key, state, still, gradient)
        return state._replace(z=unravel(position + moved @ whitening), **fields)


class Settings(NamedTuple):
    """What follows from public numbers alone.

    - **private_sum**: of a step, clip norm and noise included.
    - **integrator**: with its step size.
    - **relaxation_times**: that a chain holds.
    - **forecast**: of the release before it.
    """

    private_sum: PrivateSum
    integrator: Integrator
    relaxation_times: float
    forecast: Forecast


@lru_cache(maxsize=64)
def adapted_settings(
    plan: AdaptationPlan,
    integrator: Integrator,
    *,
    clip_norm: float | None,
    adapt_step_size: bool,
    power: float,
    sampling_rate: float,
    num_steps: int,
    num_chains: int,
    microbatch_size: int | None,
) -> Settings:
    """Fix every number of a run whose coordinates are yet to be released.

    :param integrator: with the user's step size, if there is one.
    :param clip_norm: the user's, in units of whitened scores; ``None`` to adapt it.
    :param adapt_step_size: whether the step size is to be adapted.
    :param power: of the likelihood.
    :param num_steps: private steps of all chains.
    :raises ValueError: when no noise that the lattice can carry meets the budget.
    """
    expected, each = plan.release.forecast, num_steps // num_chains

    def at(noise_multiplier: float, clip_norm: float = 1.0) -> PrivateSum:
        return PrivateSum.create(
            num_records=plan.model.num_records,
            dim=expected.dim,
            sampling_rate=sampling_rate,
            clip_norm=clip_norm,
            noise_multiplier=noise_multiplier,
            num_steps=num_steps,
            delta=plan.privacy.delta,
            microbatch_size=microbatch_size,
        )

    def cost(mechanism: PrivateSum) -> DpEvent:
        return ComposedDpEvent([plan.event, mechanism.event(num_steps)])

    found = least_noise(at, cost, plan.privacy, plan.relation, num_steps)
    noise = power * found.noise_multiplier / sampling_rate
    typical = math.sqrt(expected.dim / plan.model.num_records)
    if clip_norm is None:
        # As loose as leaves the relaxation times asked for.
        clip_norm = math.sqrt(2 * each * power / _TIMES) / noise
        clip_norm = min(max(clip_norm, _TIGHTEST * typical), _LOOSEST * typical)
    sd = noise * clip_norm
    if adapt_step_size:
        batches = power * (1 - sampling_rate) / sampling_rate
        stable = _longest_stable(integrator, max(power, 1.0), batches)
        step = rounded_down(min(integrator.quiet_step_size(sd), stable), 3)
        integrator = replace(integrator, step_size=float(step))
    # A tempered posterior is wider.
    times = each * float(integrator.relaxation(jnp.int32(0), sd, jnp.asarray(1 / power)))
    return Settings(at(found.noise_multiplier, clip_norm), integrator, times, expected)


@lru_cache(maxsize=16)
def _steepest(model: PrivateModel) -> float:
    found = steepness(model, prior_moments(model))
    return float(np.max(np.where(np.isnan(found), math.inf, found)))


def require_even_prior(model: PrivateModel) -> None:
    """Refuse a prior that steps of one size do not suit.

    :raises ValueError: at some of its own draws it is far steeper than at others.
    """
    steepest = _steepest(model)
    if not steepest <= _STEEP:
        raise ValueError(
            f"the prior is up to {steepest:.2g} times steeper at some of its own draws than at "
            "others, as of groups whose scale is a latent: steps of one size run away where that "
            "scale is small. Use DPNUTS, which releases such a model and samples it well, or give "
            "step_size and clip_norm. Nothing was charged"
        )


def _diagonal(whitening: np.ndarray) -> np.ndarray:
    """Marginal sds, scaled so that no direction is steeper than 1."""
    sds = np.sqrt(np.sum(whitening**2, axis=0))
    precision = np.linalg.inv(whitening.T @ whitening)
    steepest = np.linalg.eigvalsh(sds[:, None] * precision * sds)[-1]
    return np.diag(sds / math.sqrt(steepest))


def _longest_stable(integrator: Integrator, curvature: float, batches: float) -> float:
    """Longest step that widens the draws by little, where the information is the identity."""
    low, high = 0.0, _LONGEST
    for _ in range(50):
        middle = (low + high) / 2
        fine = integrator.widened(middle, curvature, batches) <= _WIDENED
        low, high = (middle, high) if fine else (low, middle)
    return low


class AdaptedForecast(NamedTuple):
    """What a run of an adapted kernel would be, from public numbers; ``print`` it.

    - **relaxation_times**: of every direction, in one chain; below about ten the draws show the
      chain's way rather than a posterior.
    - **step_size**, **clip_norm**: in released coordinates, in which the posterior's sds are 1.
    - **located**: forecast of the release that gives these coordinates.
    - **released**: what :class:`~numpyro_dp.DPNUTS` would promise at the same ε.
    """

    relaxation_times: float
    step_size: Any
    clip_norm: float
    located: Forecast
    released: Forecast | None

    def __str__(self) -> str:
        step = "a schedule" if callable(self.step_size) else f"{self.step_size:g}"
        at, other = self.located, self.released
        lines = [
            f"adapts in {at.num_rounds} rounds of scores and information (κ = {at.signal:.3g}, of "
            f"the information {at.shape:.3g}; {at.dim} coordinates, {at.num_records} records)",
            f"  then step size {step}, clip norm {self.clip_norm:.3g} where the posterior's sds "
            f"are 1: a chain spans about {self.relaxation_times:.2g} relaxation times (ten make a "
            "posterior)",
        ]
        if at.verdict == "not":
            lines[1:] = [f"  refused, that tells next to nothing: {at.remedy}"]
        if other is not None:
            lines.append(f"  DPNUTS at the same ε: {other.promise}")
        return "\n".join(lines)


def adapted_forecast(plan: AdaptationPlan, settings: Settings) -> AdaptedForecast:
    """What the settings promise."""
    epsilon, delta = plan.privacy.epsilon, plan.privacy.delta
    return AdaptedForecast(
        settings.relaxation_times,
        settings.integrator.step_size,
        settings.private_sum.clip_norm,
        settings.forecast,
        promised(plan.model, epsilon, delta, plan.relation),
    )


def bound_adapted(settings: Settings, plan: AdaptationPlan, **fields: Any) -> BoundAdaptedKernel:
    """The bound kernel.

    :raises ValueError: the release before it would tell nothing, or steps of one size do not suit
        the prior.
    """
    expected = settings.forecast
    if expected.verdict == "not":
        raise ValueError(
            f"adaptation={plan.share:g} of this budget tells next to nothing of where the "
            f"posterior lies (κ = {expected.signal:.3g}, of the information "
            f"{expected.shape:.3g}), and what is left would not make a chain: "
            f"{expected.remedy}. DPNUTS makes more of the same budget; step_size and clip_norm "
            "switch adaptation off. Nothing was charged"
        )
    require_even_prior(plan.model)
    return BoundAdaptedKernel(
        private_model=plan.model,
        private_sum=settings.private_sum,
        integrator=settings.integrator,
        adaptation=plan,
        **fields,
    )
