"""What a plan is about: the numbers of a kernel or a variational run, fixed without data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax import random

from numpyro_dp.accounting import Budget, Relation, privacy_curve, rounded_up
from numpyro_dp.accounting.events import DpEvent
from numpyro_dp.diagnostics.plan.rehearsal import GuideGradient, Rehearsal
from numpyro_dp.diagnostics.plan.rehearsed_fit import SimulatedFit
from numpyro_dp.diagnostics.plan.signal import SignalModel
from numpyro_dp.diagnostics.plan.steps import ChainSteps
from numpyro_dp.errors import redacted
from numpyro_dp.estimators.perturbation import PerturbationEstimator
from numpyro_dp.families.synthetic_records import (
    LikelihoodGradient,
    Shares,
    SyntheticRecords,
    outcomes,
    require_outcomes_that_follow,
    synthetic_gradients,
)
from numpyro_dp.mcmc.kernel import PrivateKernel
from numpyro_dp.mcmc.sgmcmc.bias import CLUMPED, Bias, clip_weights, many_records, metric_root
from numpyro_dp.mcmc.sgmcmc.integrator import Integrator
from numpyro_dp.mcmc.start import starting_positions
from numpyro_dp.mechanisms import PrivateSum
from numpyro_dp.model.private_model import PrivateModel, private_model
from numpyro_dp.svi import DPSVI
from numpyro_dp.svi.dpsvi.elbo import ElboRelease

# Fewer made-up records than parameters would show some directions too strong and others not at all.
_LEAST_RECORDS, _MOST_RECORDS, _PER_PARAMETER = 128, 1024, 4


@dataclass(frozen=True, kw_only=True, eq=False)
class PlannedRun:
    """A run that is planned; everything here is public.

    :param name: of the kernel, or of the object and its guide.
    :param relation: neighbouring relation of ε.
    :param delta: δ.
    :param num_steps: private steps of all chains.
    :param num_chains: chains.
    :param mechanism: the sum that each step releases.
    :param curvature: the sum that is released once at the end, or ``None``.
    :param losses: how losses are released on the way, or ``None``.
    :param noise: standard deviation of the noise in one step's estimate of the full gradient.
    :param event: what a number of steps costs.
    :param step_size: of a chain; ``None`` for a schedule or an optimiser.
    :param integrator: of a chain; ``None`` for an optimiser.
    :param power: of the likelihood.
    :param weights: of the coordinates in the clip.
    :param rehearsal: how an optimiser fares; ``None`` for a chain.
    :param dress: the same on the model's own gradients.
    :param centred: whether clipped gradients have mean zero under the model.
    :param synthetic: gradients of made-up records, few enough to rehearse on.
    :param bias: what clipping makes of many of them.
    :param by_site: whether the clip has a bound for each site.
    :param started: whether another kernel, which sees the records, makes the start.
    :param model: the model, split.
    """

    name: str
    relation: Relation
    delta: float
    num_steps: int
    num_chains: int
    mechanism: PrivateSum
    curvature: PrivateSum | None = None
    losses: ElboRelease | None = None
    noise: float
    event: Callable[[int], DpEvent]
    step_size: float | None = None
    integrator: Integrator | None = None
    power: float = 1.0
    weights: np.ndarray
    rehearsal: Rehearsal | None = None
    dress: SimulatedFit | None = None
    centred: bool = False
    synthetic: SyntheticRecords
    bias: Bias
    started: bool = False
    model: PrivateModel
    by_site: bool = False

    @property
    def influence(self) -> float:
        """Bound on the total variation between the run and the same run without any record.

        Each release adds E[K²]/(2·nm²) at most to their relative entropy, K records being in its
        batch, whatever came before: a mixture of normals that are K bounds apart. Pinsker's
        inequality makes a total variation of the sum, and what the machine's noise and batches
        differ by from the ideal ones is added.
        """
        if self.started:
            return 1.0
        releases = [(self.mechanism, self.num_steps)]
        if self.curvature is not None:
            releases.append((self.curvature, 1))
        if self.losses is not None:
            releases.append((self.losses.private_sum, self.losses.count(self.num_steps)))
        squares = sum(count * _squared_shift(each) for each, count in releases)
        # Either run is as far as this from the ideal one that the divergence is about.
        tables = sum(count * each.tv_per_step for each, count in releases)
        return min(math.sqrt(squares) / 2 + 2 * tables, 1.0)

    def signal_model(self) -> SignalModel:
        """The run as a signal_model from made-up records to its draws."""
        return SignalModel(
            self.synthetic,
            self.power * self.num_records,
            self.mechanism.clip_norm,
            self.noise,
            self.num_steps // self.num_chains,
            self.step_size,
            self.rehearsal,
            self.weights,
        )

    def steps(self, signal_model: SignalModel) -> ChainSteps | None:
        """The steps of a chain whose step size is a number."""
        if self.step_size is None or self.integrator is None:
            return None
        distance, rate = signal_model.distance, self.mechanism.sampling_rate
        return ChainSteps(
            self.integrator,
            signal_model.information() + distance**-2.0,
            distance,
            self.noise,
            signal_model.num_steps,
            self.power * (1 - rate) / rate,
        )

    @property
    def free_step_size(self) -> float | None:
        """Longest step at which the privacy noise is no more than a chain asks for."""
        return None if self.integrator is None else self.integrator.free_step_size(self.noise)

    @property
    def num_records(self) -> int:
        """The number of records, or its public bound where it is private."""
        return self.mechanism.max_records or self.mechanism.num_records


def planned_run(
    planned: Any,
    args: tuple,
    kwargs: Mapping[str, Any],
    *,
    num_steps: int,
    privacy: Budget | None,
    num_chains: int,
    inputs: Sequence[Any] | None,
) -> PlannedRun:
    """Fix every number of a run, and make up records for it; see :func:`~numpyro_dp.plan`."""
    shapes, named = jax.tree.map(_shape_only, (args, dict(kwargs)))
    if isinstance(planned, DPSVI) and not planned.adapts:
        if num_chains != 1:
            raise ValueError(f"DPSVI makes one fit, got num_chains={num_chains}")
        return _of_svi(planned, shapes, named, num_steps, privacy, inputs)
    if isinstance(planned, PrivateKernel) and not getattr(planned, "adapts", False):
        return _of_kernel(planned, shapes, named, num_steps, privacy, num_chains, inputs)
    raise ValueError(
        "plan takes a numpyro_dp kernel that releases noisy gradients, such as DPSGLD with "
        "step_size and clip_norm, or a DPSVI object with optim and clip_norm, got "
        f"{type(planned).__name__}: {_instead(planned)}"
    )


def _instead(planned: Any) -> str:
    """What tells the cost of a run that has no plan."""
    if callable(getattr(planned, "forecast", None)):
        return "use its own forecast()"
    if isinstance(planned, DPSVI):
        return "it adapts: LikelihoodRelease(model, privacy=...).forecast(...) says what it tells"
    if isinstance(planned, PerturbationEstimator):
        return (
            "run it without accountant= on made-up records of the same shapes, and read cost and "
            "noise in result.privacy: neither hangs on a value of the records"
        )
    return "other samplers have no noisy gradient to plan"


def _squared_shift(mechanism: PrivateSum) -> float:
    """Mean square of how far a batch can move its noisy sum, in standard deviations."""
    batch = mechanism.expected_batch
    spread = batch * (1 - mechanism.sampling_rate)
    return (batch**2 + spread) / mechanism.noise_multiplier**2


def _of_kernel(
    kernel: PrivateKernel,
    shapes: tuple,
    named: dict[str, Any],
    num_steps: int,
    privacy: Budget | None,
    num_chains: int,
    inputs: Sequence[Any] | None,
) -> PlannedRun:
    if privacy is not None:
        noise = {"noise_multiplier": None} if hasattr(kernel, "noise_multiplier") else {}
        kernel = replace(kernel, model=kernel.user_model, privacy=privacy, **noise)
    relation, plate = kernel.relation, kernel.data_plate
    private_size = relation == "add_remove"
    steps = num_steps * kernel.steps_per_sample * num_chains

    def settled() -> tuple[PrivateModel, Any, dict[str, Any]]:
        model = private_model(
            kernel.user_model, shapes, named, data_plate=plate, private_size=private_size
        )
        bound = kernel.bind(
            model, num_steps=steps, relation=relation, delta=kernel.delta, num_chains=num_chains
        )
        return model, bound, starting_positions(model, kernel.init_strategy, random.key(0), None, 1)

    model, bound, start = redacted(private_size, settled)
    name = type(kernel).__name__
    mechanism = getattr(bound, "private_sum", None)
    if mechanism is None:
        cost = bound.event(steps, num_chains=num_chains)
        raise _cost_alone(name, cost, steps, relation, kernel.delta)
    mechanism = _require_noise(name, mechanism)
    options: Any = kernel
    step, power = options.step_size, float(options.likelihood_power)
    metric = metric_root(bound)
    # In coordinates over the root of the preconditioner, in which all noise is alike.
    synthetic, few, sites, stretch = _synthetic(
        kernel.user_model, plate, model, start, inputs, LikelihoodGradient(model), metric
    )
    weights = clip_weights(bound) * np.ones(len(sites))
    size = mechanism.max_records or mechanism.num_records
    return PlannedRun(
        name=name,
        relation=relation,
        delta=kernel.delta,
        num_steps=steps,
        num_chains=num_chains,
        mechanism=mechanism,
        noise=float(getattr(bound, "gradient_sd", math.nan)),
        event=lambda count: bound.event(count, num_chains=num_chains),
        step_size=None if callable(step) else step,
        integrator=bound.integrator,
        power=power,
        weights=weights,
        synthetic=synthetic.first(few),
        bias=_bias(synthetic, sites, power * size, weights, stretch),
        started=kernel.init_kernel is not None,
        by_site=isinstance(options.clip_norm, Mapping),
        model=model,
    )


def _of_svi(
    svi: DPSVI,
    shapes: tuple,
    named: dict[str, Any],
    num_steps: int,
    privacy: Budget | None,
    inputs: Sequence[Any] | None,
) -> PlannedRun:
    svi, fit, costs, state = svi._prepared(num_steps, shapes, named, privacy)
    name = f"DPSVI with {type(svi.guide).__name__}"
    mechanism = _require_noise(name, costs.gradient)
    settings = svi._settings
    noise = float(mechanism.noise_sd()) / mechanism.sampling_rate
    params = svi.optim.get_params(state.optim_state)
    gradient = GuideGradient(fit, svi.guide, params, random.key(1))
    model, plate = gradient.private_model, settings.data_plate
    synthetic, few, sites, stretch = _synthetic(
        svi.model, plate, model, gradient.start, inputs, gradient, np.ones(1)
    )
    weights, size = np.ones(len(sites)), mechanism.max_records or mechanism.num_records
    bias = _bias(synthetic, sites, size, weights, stretch)
    synthetic = synthetic.first(few)
    rehearsal = Rehearsal(fit, state, noise, num_steps, round(settings.average * num_steps))
    return PlannedRun(
        name=name,
        relation=svi._account.relation,
        delta=svi.delta,
        num_steps=num_steps,
        num_chains=1,
        mechanism=mechanism,
        curvature=costs.curvature,
        losses=costs.elbo,
        noise=noise,
        event=costs.event,
        rehearsal=rehearsal,
        dress=SimulatedFit(rehearsal, gradient, synthetic),
        centred=fit.outcomes is not None,
        weights=weights,
        synthetic=synthetic,
        bias=bias,
        model=model,
    )


def _shape_only(value: Any) -> Any:
    """Arrays lose their values here, before anything could read them."""
    if isinstance(value, (np.ndarray, jax.Array)) and value.ndim:
        return jax.ShapeDtypeStruct(value.shape, value.dtype)
    return value


def _require_noise(name: str, mechanism: PrivateSum) -> PrivateSum:
    if not mechanism.is_private:
        raise ValueError(
            f"{name} is set to release its sum of gradients without noise, so there is nothing to "
            "plan: give privacy=, or a positive noise_multiplier and a finite clip_norm"
        )
    return mechanism


def _cost_alone(
    name: str, event: DpEvent, steps: int, relation: Relation, delta: float
) -> ValueError:
    """The refusal of a kernel without noisy gradients, with all that can be said of its run."""
    cost = rounded_up(privacy_curve(event, relation).epsilon(delta))
    return ValueError(
        f"{name} releases no private sum of gradients, so there is no noise on a gradient to "
        f"judge. What it would cost: ε = {cost} at δ = {delta:.3g} ({relation}) for {steps} steps "
        "of all chains. With privacy=ndp.Budget(epsilon, delta) the kernel is fitted to a budget, "
        "or refused with what would fit, before a record is touched; what a budget buys stands in "
        "docs/howto/which-sampler.md"
    )


def _bias(
    synthetic: SyntheticRecords,
    sites: tuple[str, ...],
    size: float,
    weights: np.ndarray,
    stretch: float,
) -> Bias:
    # The prior's precision in each coordinate, and its pull, from its draws.
    spread = synthetic.spread
    precision = 1 / np.maximum(spread.var(0, ddof=1), 1e-12)
    pull = precision * (spread.mean(0) - spread)
    return Bias(
        synthetic.at_truth, pull, precision, sites, size, weights, stretch, synthetic.truths
    )


def _synthetic(
    model: Callable[..., Any],
    plate: str | None,
    target: PrivateModel,
    start: dict[str, Any],
    inputs: Sequence[Any] | None,
    gradient: Shares,
    metric: np.ndarray,
) -> tuple[SyntheticRecords, int, tuple[str, ...], float]:
    """Made-up records; how many a few are; each coordinate's site; the stretch of a bias.

    Gradients are those of coordinates over ``metric``; inputs come again with new outcomes.
    """
    require_outcomes_that_follow(target, "plan", "plan has no other way to judge a clip")
    dim = sum(leaf.size for leaf in jax.tree.leaves(start))
    few = min(max(_LEAST_RECORDS, _PER_PARAMETER * dim), _MOST_RECORDS)
    many = max(few, many_records(dim))
    if inputs is None:
        given = target.dummy_records(random.key(0), many)
    else:
        rows = _given(model, plate, target, inputs)
        few = len(rows[0])
        given = [np.resize(leaf, (max(many, few), *leaf.shape[1:])) for leaf in rows]
    found = synthetic_gradients(target, start, given, random.key(0), gradient)
    numbered = {name: np.full_like(leaf, k) for k, (name, leaf) in enumerate(start.items())}
    sites = tuple(list(start)[int(k)] for k in np.asarray(gradient.flat(numbered)))
    return (
        found._replace(
            at_truth=found.at_truth * metric,
            at_start=found.at_start * metric,
            spread=found.spread / metric,
        ),
        few,
        sites,
        CLUMPED if outcomes(target, start, given).bare_counts else 1.0,
    )


def _given(
    model: Callable[..., Any], plate: str | None, target: PrivateModel, inputs: Sequence[Any]
) -> list[Any]:
    public = private_model(model, tuple(inputs), data_plate=plate)
    rows = public.records(tuple(inputs))
    expected = [leaf.shape[1:] for leaf in target.dummy_records(random.key(0), 1)]
    if [leaf.shape[1:] for leaf in rows] != expected:
        raise ValueError(
            f"inputs has rows of shapes {[leaf.shape[1:] for leaf in rows]}, the records "
            f"{expected}: give arguments of the same structure"
        )
    return rows
