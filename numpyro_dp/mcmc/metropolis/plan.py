"""From the settings of a Metropolis kernel to one plan: how a step decides and what it costs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from numpyro_dp._shards import Shards
from numpyro_dp.accounting import Budget, Relation, calibrate, events, privacy_curve, rounded_up
from numpyro_dp.accounting.advice import steps_that_fit
from numpyro_dp.mcmc.kernel import Terms
from numpyro_dp.mcmc.metropolis.privacy_filter import (
    COST_RANGE,
    BatchCost,
    BitCost,
    FilteredCharge,
    FixedCharge,
    PairwiseBound,
    StepCharge,
    metered,
)
from numpyro_dp.mechanisms.accept.fixed_point import FixedPointGrid
from numpyro_dp.mechanisms.accept.log_ratio import FullBatch, LogRatio, UnclippedBatch
from numpyro_dp.mechanisms.accept.minibatch import PoissonBatch, weight_bound
from numpyro_dp.mechanisms.accept.pick import PICK_MARGIN, PICK_TV
from numpyro_dp.mechanisms.accept.rules import (
    AcceptanceTest,
    Barker,
    Metropolis,
    acceptance_test,
    bit_event,
    fine_grid,
)

_OVERFLOW = 1e-12
# Past this many standard deviations a direction-averaged term is cut, which only shortens it.
_FARTHEST = 9.0
# Straight pieces of the logistic table, and rounding of a slope as large as it may be:
# (|Z| + e)² ≤ (1 + t)Z² + (1 + 1/t)e² with t = 0.005 and e below 0.002, which is what a sum of
# 1,000 products rounds by at most. That is a proof for Rényi divergences; for profiles it is one to
# first order, as long as a move of one step size tells no more than the widest, in nats.
_DIRECTIONAL_MARGIN, _WIDEST_STRIDE = 1.005, 4.0
# The logistic table again, for a rate and a weight that both follow the term.
_BATCH_MARGIN = 1.005
_LARGEST_SHARE = 0.5
# As fine as float32 weights are: each kept draw rounds once.
_WEIGHT_RESOLUTION = 1 << 23
_NON_PRIVATE_GRID = FixedPointGrid(2.0**-24, 14)


@dataclass(frozen=True)
class MetropolisSettings:
    """What a plan is made from: public values, hashable.

    :param acceptance: name of the acceptance test.
    :param lipschitz: bound on one record's gradient, ``None`` where ``record_bound`` is given.
    :param smoothness: bound on one record's curvature, ``None`` where none is claimed.
    :param record_bound: bound on one record's term, a function of the two positions.
    :param max_move: longest move.
    :param num_candidates: candidates of a step.
    :param batch_size: expected draws of a mini-batch, ``None`` for all records.
    :param noise_scale: standard deviation of the noise in nats.
    :param power: likelihood power.
    :param rho: zCDP of the whole run, where a filter meters it.
    :param step_size: of the random walk, where the charge is averaged over directions.
    :param directional: whether it is.
    :param dim: dimensions of a position.
    :param num_records: records in the data.
    :param one_by_one: whether records are computed one at a time.
    :param shards: devices among which the records are divided; ``None`` for one.
    """

    acceptance: str
    lipschitz: float | None
    smoothness: float | None
    record_bound: Callable[[dict, dict], Any] | None
    max_move: float | None
    num_candidates: int
    batch_size: float | None
    noise_scale: float | None
    power: float | None
    rho: float | None
    step_size: float | None
    directional: bool
    dim: int
    num_records: int
    one_by_one: bool
    shards: Shards | None = None

    @property
    def full_batch(self) -> dict[str, Any]:
        """How all records are looked at."""
        padded = None if self.shards is None else self.num_records
        return {"one_by_one": self.one_by_one, "num_records": padded, "shards": self.shards}

    @property
    def private(self) -> bool:
        """False where a setting switches privacy off."""
        return self.lipschitz != math.inf and self.noise_scale != 0

    @property
    def slope(self) -> float:
        """Bound on the gradient of one record's term, the likelihood power included."""
        return _known(self.power, "likelihood_power") * _known(self.lipschitz, "lipschitz")

    @property
    def bound(self) -> float:
        """Largest term of one record in a step, in nats, the likelihood power included."""
        return self.slope * _known(self.max_move, "max_move")

    @property
    def stride(self) -> float:
        """Largest term, in nats, of a record that moves one standard deviation of a step."""
        return self.slope * _known(self.step_size, "step_size")

    @property
    def bend(self) -> float:
        """Largest term, in nats, that curvature allows a record in a move of one step size."""
        curvature = _known(self.power, "likelihood_power") * (self.smoothness or 0.0)
        return curvature * _known(self.step_size, "step_size") ** 2 / 2

    @property
    def farthest(self) -> float:
        """Largest term, in nats, of any record in a move averaged over its direction."""
        return self.stride * _FARTHEST + self.bend * (_FARTHEST + math.sqrt(self.dim)) ** 2

    @property
    def too_wide(self) -> bool:
        """Whether a charge averaged over directions has no margin for rounding."""
        return self.directional and self.stride + self.bend * self.dim > _WIDEST_STRIDE

    @property
    def mean_batch(self) -> float:
        """Expected draws of a mini-batch."""
        return _known(self.batch_size, "batch_size")


def _known(value: float | None, name: str) -> float:
    if value is None:
        raise ValueError(f"{name}= is needed before a step can be charged")
    return value


@dataclass(frozen=True)
class MetropolisPlan:
    """How a step decides and what it costs; every number fixed.

    :param test: the acceptance test.
    :param log_ratio: how records enter it.
    :param charge: bound and cost of a step.
    :param power: likelihood power.
    :param settings: what it was made from, complete.
    """

    test: AcceptanceTest
    log_ratio: LogRatio
    charge: StepCharge
    power: float
    settings: MetropolisSettings

    @property
    def tv(self) -> float:
        """Total variation of one step to the ideal one."""
        return self.test.tv + self.log_ratio.tv


@lru_cache(maxsize=64)
def planned(settings: MetropolisSettings, terms: Terms, budget: Budget | None) -> MetropolisPlan:
    """The plan of a run, what is free in ``settings`` calibrated to ``budget``.

    :raises ValueError: when the run does not fit the budget, or the settings do not fit together.
    """
    num_steps, num_chains, relation, _ = terms
    overflow = _overflow(terms)

    def made(settings: MetropolisSettings) -> MetropolisPlan:
        return _plan(settings, num_steps, num_chains, overflow)

    if budget is None:
        return made(settings)
    if not settings.private:
        raise ValueError(
            "privacy= and a setting without privacy (lipschitz=inf, or noise_scale=0) exclude each "
            "other: drop one"
        )
    free = _free(settings)
    if free is None:
        plan = made(settings)
        _require_fit(plan.charge.event(num_steps, start=0, num_chains=num_chains), budget, relation)
        return plan

    def run(noise: float) -> events.DpEvent:
        return run_event(free(noise), terms)

    return made(free(calibrate(run, budget, relation)))


def _free(settings: MetropolisSettings) -> Callable[[float], MetropolisSettings] | None:
    """From a number that falls in privacy loss as noise does, to the settings it stands for."""
    if settings.record_bound is not None:
        if settings.rho is None:
            return lambda noise: replace(settings, rho=1 / (2 * noise**2))
        return None
    if settings.acceptance != "barker" and settings.noise_scale is None:
        return lambda noise: replace(settings, noise_scale=noise)
    if settings.power is None:
        return lambda noise: replace(settings, power=1 / noise)
    return None


def _require_fit(event: events.DpEvent, budget: Budget, relation: Relation) -> None:
    found = privacy_curve(event, relation).epsilon(budget.delta)
    if found <= budget.epsilon:
        return
    fitting = steps_that_fit((), event, budget, relation)
    fewer = f"what would fit: {fitting}" if fitting else "not even one of its steps would fit"
    raise ValueError(
        f"this run costs ε = {rounded_up(found)} at δ = {budget.delta:.3g}, more than "
        f"privacy={budget}; {fewer}. Or let the budget choose: likelihood_power=None tempers the "
        "likelihood until the run fits, acceptance='penalty' or 'noisy_barker' without "
        "noise_scale= takes as much noise as it needs"
    )


def _overflow(terms: Terms) -> float:
    """Chance that a step's batch exceeds its room."""
    return min(_OVERFLOW, 1e-3 * terms.delta / terms.num_steps)


def run_event(settings: MetropolisSettings, terms: Terms) -> events.DpEvent:
    """The event of a run, without building anything: what a calibration looks at."""
    num_steps = terms.num_steps
    tables = (0.0 if settings.batch_size is None else 4 * _overflow(terms)) + 2.0**-44
    if settings.rho is not None and settings.record_bound is not None:
        return metered(settings.rho, num_steps * tables)
    return FixedCharge(1, _step_event(settings), tables).event(num_steps, start=0, num_chains=1)


def _step_event(settings: MetropolisSettings) -> events.DpEvent:
    """The event of one step at a bound fixed in advance."""
    if not settings.private or settings.too_wide:
        # Too wide a step only a calibration asks for, on its way to a power that it can take.
        return events.NonPrivateDpEvent()
    if settings.directional:
        step, slope = _known(settings.step_size, "step_size"), settings.slope * _DIRECTIONAL_MARGIN
        if settings.smoothness is None:
            return events.DirectionalBarkerBit(step, slope)
        curvature = 2 * settings.bend / step**2 * _DIRECTIONAL_MARGIN
        return events.SmoothBarkerBit(step, slope, curvature, settings.dim)
    if settings.num_candidates > 1:
        return events.MultiCandidateBit(2 * settings.bound)
    if settings.batch_size is None:
        return bit_event(settings.acceptance, settings.bound, settings.noise_scale)
    if settings.num_records * settings.bound > _LARGEST_SHARE * settings.batch_size:
        # Only a calibration asks for this, on its way to a power at which the batch is enough.
        return events.NonPrivateDpEvent()
    return events.MinibatchBit(
        num_records=settings.num_records,
        lipschitz=settings.slope,
        max_move=_known(settings.max_move, "max_move"),
        expected_batch=settings.batch_size,
        acceptance=settings.acceptance,
        noise_sd=settings.noise_scale or 0.0,
    )


def _plan(
    settings: MetropolisSettings, num_steps: int, num_chains: int, overflow: float
) -> MetropolisPlan:
    if settings.power is None:
        raise ValueError(
            "likelihood_power=None lets a budget choose the power: give privacy=, or a number"
        )
    if settings.lipschitz == math.inf:
        test: AcceptanceTest = (Barker if settings.acceptance == "barker" else Metropolis)(
            _NON_PRIVATE_GRID, 1
        )
        whole = UnclippedBatch(_NON_PRIVATE_GRID, settings.full_batch["num_records"])
        charge = FixedCharge(1, events.NonPrivateDpEvent(), 0.0)
        return MetropolisPlan(test, whole, charge, settings.power, settings)
    if settings.record_bound is not None:
        return _filtered(settings, num_steps, num_chains, overflow)
    if settings.batch_size is not None:
        return _batched(settings, overflow)
    test, limit = _full_test(settings)
    log_ratio = FullBatch(test.grid, test.largest, **settings.full_batch)
    picking = PICK_TV if settings.num_candidates > 1 else 0.0
    charge = FixedCharge(limit, _step_event(settings), test.tv + picking)
    return MetropolisPlan(
        test, log_ratio, charge, _known(settings.power, "likelihood_power"), settings
    )


def _full_test(settings: MetropolisSettings) -> tuple[AcceptanceTest, int]:
    """Test and largest integer of a record, for exact sums at a bound fixed in advance."""
    if settings.too_wide:
        raise ValueError(
            f"a move of one step size may tell more than {_WIDEST_STRIDE:g} nats of a record, for "
            "which the rounding of its slope is not accounted for: take a smaller step_size, "
            "smoothness or likelihood_power, or give max_move="
        )
    if settings.directional:
        test: AcceptanceTest = Barker.create(settings.farthest)
    elif settings.num_candidates > 1:
        test = Barker.create(2 * settings.bound - PICK_MARGIN)
    else:
        test = acceptance_test(settings.acceptance, settings.bound, settings.noise_scale)
    return test, test.largest


def _batched(settings: MetropolisSettings, overflow: float) -> MetropolisPlan:
    share = settings.num_records * settings.bound / settings.mean_batch
    margin = _BATCH_MARGIN if settings.acceptance == "barker" else 1.0
    # Too small a batch is refused below, by name.
    heaviest = weight_bound(min(share, _LARGEST_SHARE))
    test = acceptance_test(settings.acceptance, heaviest, settings.noise_scale, _WEIGHT_RESOLUTION)
    log_ratio = PoissonBatch.create(
        *(settings.num_records, settings.mean_batch, overflow),
        *(test.grid, test.largest, settings.shards),
    )
    # A batch that is too small is refused by the bound itself, which is what the charge looks at.
    log_ratio.limit(settings.bound)
    limit = log_ratio.limit(settings.bound / margin)
    charge = FixedCharge(limit, _step_event(settings), test.tv + log_ratio.tv)
    return MetropolisPlan(
        test, log_ratio, charge, _known(settings.power, "likelihood_power"), settings
    )


def _filtered(
    settings: MetropolisSettings, num_steps: int, num_chains: int, overflow: float
) -> MetropolisPlan:
    rho, power = settings.rho, settings.power
    if rho is None or settings.record_bound is None or power is None:
        raise ValueError(
            "record_bound= is metered by a zCDP filter, which needs a total: give privacy=, or rho="
        )
    share = rho / num_chains
    steps = num_steps // num_chains
    widest = math.sqrt(8 * share)
    bound = PairwiseBound(settings.record_bound, power)
    rho_unit = share / COST_RANGE**2
    log_ratio: LogRatio
    cost: Callable[[Any], Any]
    if settings.batch_size is not None:
        test: AcceptanceTest = Barker.create(weight_bound(_LARGEST_SHARE), _WEIGHT_RESOLUTION)
        batch = PoissonBatch.create(
            *(settings.num_records, settings.batch_size, overflow),
            *(test.grid, test.largest, settings.shards),
        )
        log_ratio, largest, nats = batch, batch.largest, batch.unit * _BATCH_MARGIN
        whole = round(largest / _LARGEST_SHARE)
        cost = BatchCost(nats / widest * COST_RANGE * (1 + 1e-6), whole)
    else:
        test = _filtered_test(settings, widest)
        log_ratio, largest = FullBatch(test.grid, test.largest, **settings.full_batch), test.largest
        nats = test.grid.unit * math.exp(test.grid.cell)
        extra = PICK_MARGIN / widest * COST_RANGE if settings.num_candidates > 1 else 0.0
        cost = BitCost(math.sqrt(test.rho(1) / rho_unit) * (1 + 1e-6), extra)
    picking = PICK_TV if settings.num_candidates > 1 else 0.0
    tv = test.tv + log_ratio.tv + picking
    charge = FilteredCharge(bound, nats, largest, cost, rho_unit, steps, tv)
    return MetropolisPlan(test, log_ratio, charge, power, settings)


def _filtered_test(settings: MetropolisSettings, widest: float) -> AcceptanceTest:
    """A test whose largest record would use up a chain's share at once."""
    if settings.acceptance == "barker":
        return Barker(*fine_grid(widest, COST_RANGE))
    if settings.noise_scale is None:
        raise ValueError("record_bound= with a noisy test needs noise_scale=, in nats")
    return acceptance_test(
        settings.acceptance, widest / 2 * settings.noise_scale, settings.noise_scale
    )
