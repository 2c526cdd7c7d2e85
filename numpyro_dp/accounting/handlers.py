"""From the events of accept bits, draws and perturbations to what is proved about them.

The one place where a relation enters them: constants in an event are those under zero-out, and
``_factor`` doubles what has to be doubled. Where a mechanism has no statement it is refused.
"""

import math

from scipy.stats import poisson

from numpyro_dp._validate import finite_float, nonnegative
from numpyro_dp.accounting.bounds.accept_families import last_count
from numpyro_dp.accounting.bounds.bits import BatchBit, NoisyBarker, Penalty, PureLoss, Ranged
from numpyro_dp.accounting.bounds.directional import DirectionalBit
from numpyro_dp.accounting.bounds.perturbation import HalfNormalLoss
from numpyro_dp.accounting.bounds.smooth import SmoothBit
from numpyro_dp.accounting.curve import Parts, handles
from numpyro_dp.accounting.events import (
    BarkerBit,
    DirectionalBarkerBit,
    LangevinLastIterate,
    LogConcaveDraw,
    MinibatchBit,
    MultiCandidateBit,
    NoisyBarkerBit,
    ObjectivePerturbationRelease,
    OutputPerturbationRelease,
    PenaltyBit,
    PosteriorDraw,
    PureObjectivePerturbationRelease,
    SmoothBarkerBit,
    ZCDpEvent,
)
from numpyro_dp.accounting.pld.bound import Bound, Concentrated, NoisyRatio
from numpyro_dp.accounting.pld.mixtures import Mixture
from numpyro_dp.accounting.relation import Relation, sensitivity

__all__: list[str] = []

# Draws of one record beyond this chance are left out and charged as total variation.
_RAREST = 1e-22
_MOST_DRAWS = 400.0


def _factor(relation: Relation) -> float:
    """Return by how much a bound on one record's contribution grows under ``relation``."""
    return sensitivity(relation)


def _one(bound: Bound) -> Parts:
    return Parts(bounds={bound: 1})


@handles(BarkerBit)
def _barker(event: BarkerBit, relation: Relation) -> Parts:
    return _ranged(event.log_ratio_bound, relation)


@handles(MultiCandidateBit)
def _multi_candidate(event: MultiCandidateBit, relation: Relation) -> Parts:
    return _ranged(event.log_ratio_range, relation)


@handles(PosteriorDraw)
def _posterior(event: PosteriorDraw, relation: Relation) -> Parts:
    return _ranged(event.log_likelihood_range, relation)


def _ranged(width: float, relation: Relation) -> Parts:
    return Parts() if width == 0 else _one(Ranged(_factor(relation) * width))


@handles(NoisyBarkerBit)
def _noisy_barker(event: NoisyBarkerBit, relation: Relation) -> Parts:
    if event.log_ratio_bound == 0:
        return Parts()
    return _one(NoisyBarker(_factor(relation) * event.log_ratio_bound, event.noise_sd))


@handles(PenaltyBit)
def _penalty(event: PenaltyBit, relation: Relation) -> Parts:
    if event.log_ratio_bound == 0:
        return Parts()
    return _one(Penalty(_factor(relation) * event.log_ratio_bound, event.noise_sd))


@handles(DirectionalBarkerBit)
def _directional(event: DirectionalBarkerBit, relation: Relation) -> Parts:
    if event.row_norm == 0:
        return Parts()
    return _one(DirectionalBit(event.step_size * event.row_norm, relation == "replace_one"))


@handles(SmoothBarkerBit)
def _smooth(event: SmoothBarkerBit, relation: Relation) -> Parts:
    slope = event.step_size * event.lipschitz
    curvature = event.step_size**2 * event.smoothness
    if slope == curvature == 0:
        return Parts()
    return _one(SmoothBit(slope, curvature, event.dim, relation == "replace_one"))


@handles(MinibatchBit)
def _minibatch(event: MinibatchBit, relation: Relation) -> Parts:
    if relation == "add_remove":
        raise ValueError(
            "mini-batch accept bits have no statement under add_remove: their rates use the number "
            "of records, which is private there. Use zero_out or replace_one"
        )
    bound = event.lipschitz * event.max_move
    draws = event.expected_batch / event.num_records
    # A difference of close numbers, less than its rounding.
    floor = draws - bound - 2.0**-50 * draws
    replaced = relation == "replace_one"
    if event.acceptance == "barker":
        return _one(BatchBit(bound, floor, replaced))
    mean = floor + bound
    if mean > _MOST_DRAWS:
        raise ValueError(
            f"a mini-batch that draws every record {mean:.3g} times on average is not stated: "
            "lower expected_batch, or use the full batch (PenaltyBit, NoisyBarkerBit)"
        )
    last = last_count(mean, _RAREST)
    weights = poisson.pmf(range(last + 1), mean)
    shift = math.log1p(bound / floor) / event.noise_sd
    # What is left out goes with no draw at all; total variation pays for it.
    weights[0] += max(1.0 - float(weights.sum()), 0.0)
    mixture = Mixture(tuple(weights.tolist()), shift, replaced)
    return Parts(bounds={NoisyRatio(mixture): 1}, distances=(float(poisson.sf(last, mean)),))


@handles(LogConcaveDraw)
def _log_concave(event: LogConcaveDraw, relation: Relation) -> Parts:
    return _gaussian(_factor(relation) * event.lipschitz / math.sqrt(event.strong_convexity))


@handles(LangevinLastIterate)
def _last_iterate(event: LangevinLastIterate, relation: Relation) -> Parts:
    size, steps = event.step_size, event.num_steps
    one = _factor(relation) * event.lipschitz * math.sqrt(size / 2)
    # 1 − c without cancellation; c = 1 is the composition of all steps.
    slack = min(size * event.strong_convexity, 2 - size * event.smoothness)
    if slack <= 0:
        return _gaussian(one * math.sqrt(steps))
    slack = min(slack, 1.0)
    log_power = steps * math.log1p(-slack) if slack < 1 else -math.inf
    growth = -math.expm1(log_power) / (1 + math.exp(log_power)) * (2 - slack) / slack
    return _gaussian(one * math.sqrt(min(growth, float(steps))))


@handles(OutputPerturbationRelease)
def _output(event: OutputPerturbationRelease, relation: Relation) -> Parts:
    distance = _factor(relation) * event.lipschitz + 2 * event.gradient_tolerance
    return _gaussian(distance / (event.strong_convexity * event.noise_sd))


@handles(ObjectivePerturbationRelease)
def _objective(event: ObjectivePerturbationRelease, relation: Relation) -> Parts:
    offset = math.log1p(event.smoothness / event.regularisation)
    mu = _factor(relation) * event.lipschitz / event.noise_sd
    bounds: dict[Bound, int] = {HalfNormalLoss(offset, mu, relation != "replace_one"): 1}
    if event.gradient_tolerance == 0:
        return Parts(bounds=bounds)
    shift = 2 * event.gradient_tolerance / (event.regularisation * event.output_noise_sd)
    return Parts(squares=_gaussian(shift).squares, bounds=bounds)


@handles(PureObjectivePerturbationRelease)
def _pure_objective(event: PureObjectivePerturbationRelease, relation: Relation) -> Parts:
    epsilon = _factor(relation) * event.lipschitz / event.noise_scale
    epsilon += math.log1p(event.smoothness / event.regularisation)
    return Parts() if epsilon == 0 else _one(PureLoss(epsilon))


@handles(ZCDpEvent)
def _concentrated(event: ZCDpEvent, relation: Relation) -> Parts:
    rho = nonnegative("rho", event.rho)
    if finite_float("xi", event.xi) != 0:
        raise ValueError(
            f"only ρ-zCDP is stated here, without an offset: xi must be 0, got {event.xi!r}"
        )
    # ρ grows with the square of the contribution (privacy.md section 0).
    return Parts() if rho == 0 else _one(Concentrated(_factor(relation) ** 2 * rho))


def _gaussian(shift: float) -> Parts:
    return Parts(squares=(shift**2,)) if shift else Parts()
