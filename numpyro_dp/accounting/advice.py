"""What still fits a budget: the part of an answer that a refused user needs."""

import math
from functools import lru_cache

from numpyro_dp.accounting.budget import Budget
from numpyro_dp.accounting.calibrate import calibrate, gaussian_shift
from numpyro_dp.accounting.curve import parts, privacy_curve
from numpyro_dp.accounting.events import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
    TotalVariation,
    from_json,
    to_json,
)
from numpyro_dp.accounting.relation import Relation

__all__ = ["largest_left", "noise_that_fits", "steps_that_fit"]


def largest_left(spent: DpEvent, budget: Budget, relation: Relation) -> float:
    """Return the largest ε whose Gaussian event at the budget's δ fits beside ``spent``.

    Args:
        spent: everything charged so far.
        budget: the whole budget.
        relation: the neighbouring relation.

    Returns:
        ε ≥ 0, rounded down.
    """
    return _largest_left(to_json(spent), budget, relation)


@lru_cache(maxsize=256)
def _largest_left(spent_json: str, budget: Budget, relation: Relation) -> float:
    spent = from_json(spent_json)
    found = parts(spent, relation)
    if not found.private:
        return 0.0
    if not found.steps and not found.distances and not found.bounds:
        return _closed_form(math.fsum(found.squares), budget)
    if privacy_curve(spent, relation).epsilon(budget.delta) >= budget.epsilon:
        return 0.0
    try:
        noise = calibrate(
            lambda multiplier: ComposedDpEvent([spent, GaussianDpEvent(multiplier)]),
            budget,
            relation,
        )
    except ValueError:
        return 0.0
    return privacy_curve(GaussianDpEvent(noise), relation).epsilon(budget.delta)


def _closed_form(square: float, budget: Budget) -> float:
    if square == 0:
        return budget.epsilon
    left = gaussian_shift(budget) ** 2 - square
    if left <= 0:
        return 0.0
    # The shift stands for itself under every relation, so zero-out's unit sensitivity serves all.
    return privacy_curve(GaussianDpEvent(1 / math.sqrt(left))).epsilon(budget.delta) * (1 - 1e-9)


def steps_that_fit(
    spent: DpEvent, event: DpEvent, budget: Budget, relation: Relation
) -> str | None:
    """Return how many of the repeated steps of ``event`` would fit, in words, or None."""
    repeated = _repetition(event)
    if repeated is None or repeated.count <= 1:
        return None

    def fits(count: int) -> bool:
        fewer = _replaced(event, SelfComposedDpEvent(repeated.event, count))
        curve = privacy_curve(ComposedDpEvent([spent, fewer]), relation)
        return curve.epsilon(budget.delta) <= budget.epsilon

    low, high = 0, int(repeated.count)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return f"{low} of its {repeated.count} steps" if low else None


def noise_that_fits(
    spent: DpEvent, event: DpEvent, budget: Budget, relation: Relation
) -> str | None:
    """Return the noise multiplier at which ``event`` would fit, in words, or None."""
    repeated = _repetition(event)
    step = repeated.event if repeated is not None else event
    if isinstance(step, GaussianDpEvent):
        rate = None
    elif isinstance(step, PoissonSampledDpEvent) and isinstance(step.event, GaussianDpEvent):
        rate = step.sampling_probability
    else:
        return None

    def family(multiplier: float) -> DpEvent:
        quieter: DpEvent = GaussianDpEvent(multiplier)
        if rate is not None:
            quieter = PoissonSampledDpEvent(rate, quieter)
        if repeated is not None:
            quieter = _replaced(event, SelfComposedDpEvent(quieter, repeated.count))
        return ComposedDpEvent([spent, quieter])

    try:
        multiplier = calibrate(family, budget, relation)
    except ValueError:
        return None
    # Rounded up, so that the number as printed fits as well.
    return f"noise_multiplier = {math.ceil(multiplier * 1e4) / 1e4:.4f}"


def _repetition(event: DpEvent) -> SelfComposedDpEvent | None:
    """Return the one repeated step of an event that holds nothing else but distances."""
    if isinstance(event, SelfComposedDpEvent):
        return event
    if not isinstance(event, ComposedDpEvent):
        return None
    others = [child for child in event.events if not isinstance(child, TotalVariation)]
    return others[0] if len(others) == 1 and isinstance(others[0], SelfComposedDpEvent) else None


def _replaced(event: DpEvent, step: SelfComposedDpEvent) -> DpEvent:
    if isinstance(event, ComposedDpEvent):
        kept = [child for child in event.events if isinstance(child, TotalVariation)]
        return ComposedDpEvent([step, *kept])
    return step
