"""What still fits a budget: the part of an answer that a refused user needs."""

import math
from collections.abc import Callable
from functools import lru_cache

from numpyro_dp.accounting import admission
from numpyro_dp.accounting.budget import Budget
from numpyro_dp.accounting.calibrate import calibrate
from numpyro_dp.accounting.curve import PrivacyCurve, privacy_curve
from numpyro_dp.accounting.events import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
    TotalVariation,
)
from numpyro_dp.accounting.ledger.book import Book
from numpyro_dp.accounting.relation import Relation
from numpyro_dp.accounting.rounding import rounded_down, rounded_up

Curves = tuple[PrivacyCurve, ...]

_PRECISION = 3e-4
# No noise multiplier or number of steps beyond is looked for.
_MOST_NOISE = 2.0**20


@lru_cache(maxsize=64)
def _room(spent: Curves, budget: Budget) -> float:
    return admission.gaussian_room(spent, budget)


def largest_left(spent: Curves, budget: Budget) -> float:
    """Return the largest ε whose Gaussian event at the budget's δ is admitted after ``spent``.

    :param spent: what each entry so far costs alone, in order.
    :param budget: the whole budget.
    :returns: ε ≥ 0, rounded down.
    """
    if not spent:
        return budget.epsilon
    room = _room(spent, budget)
    if room == 0:
        return 0.0
    # The shift stands for itself under every relation, so zero-out's unit sensitivity serves all.
    return privacy_curve(GaussianDpEvent(1 / room)).epsilon(budget.delta) * (1 - 1e-9)


def refusal(label: str, event: DpEvent, book: Book, budget: Budget, relation: Relation) -> str:
    """Return why ``event`` was refused after what ``book`` holds, and what would fit.

    :param label: who asked.
    :param event: what was asked for.
    :param book: everything charged so far.
    :param budget: the whole budget.
    :param relation: the neighbouring relation.
    """
    spent = book.curves(relation)
    total = privacy_curve(ComposedDpEvent([book.event, event]), relation).epsilon(budget.delta)
    first = book.entries[0].label if book.entries else None
    curve = privacy_curve(event, relation)
    left = largest_left(spent, budget)
    asked = (
        f"{label!r} asks for ε = {rounded_up(curve.epsilon(budget.delta))} at "
        f"δ = {budget.delta:.3g} ({relation}); left is ε = {rounded_down(left)}."
    )
    options = [option(spent, event, budget, relation) for option in (steps_that_fit, _noise)]
    named = [option for option in options if option is not None]
    remedy = f"What would fit: {', or '.join(named)}." if named else "Nothing of it would fit."
    found = curve.composition
    if not named and left > 0 and not found.steps and not found.bounds:
        # Gaussians alone: together they count as the one that is left.
        remedy = (
            f"What would fit: the same with privacy of ε = {rounded_down(left)}; a forecast says "
            "whether that would tell anything."
        )
    distant = total <= budget.epsilon and not admission.holds_distance((*spent, curve), budget)
    if distant and not named:
        remedy = (
            "No part of it fits as a later charge, as one plan with the others it may; fewer steps "
            "in one run have a smaller distance."
        )
    elif left == 0 and not named:
        remedy = "The budget is used up."
    return f"{asked} {_why(curve, spent, budget, total, first)} Nothing was charged. {remedy}"


def _why(
    curve: PrivacyCurve, spent: Curves, budget: Budget, total: float, first: str | None
) -> str:
    if total > budget.epsilon:
        return (
            f"Together with what was spent it would come to ε = {rounded_up(total)}, "
            f"{rounded_up(total - budget.epsilon)} over the budget of {budget.epsilon:.4g}."
        )
    planned = (
        f"It would have fitted one plan made beforehand with {first!r} (Accountant.plan), where "
        "nothing is lost: charge together what is known in advance."
    )
    found = admission.counted((*spent, curve), budget)
    if found is None:
        return f"The charges before it leave no room for one that is chosen later. {planned}"
    if not admission.holds_distance((*spent, curve), budget):
        return (
            "Its total variation (tables, padded rooms) is more than is kept for charges that "
            f"are chosen later. {planned}"
        )
    room = _room(spent, budget)
    return (
        f"Chosen after other charges, it counts as a Gaussian of shift {rounded_up(found.shift)} "
        f"(up to δ = {found.slack:.2g}), and {rounded_down(room)} is left: "
        f"Accountant.remaining() says what may be asked for. {planned}"
    )


def steps_that_fit(spent: Curves, event: DpEvent, budget: Budget, relation: Relation) -> str | None:
    """Return how many of the repeated steps of ``event`` would fit, in words, or None."""
    repeated = _repetition(event)
    if repeated is None or repeated.count <= 1:
        return None

    def curve(count: float) -> PrivacyCurve:
        fewer = _replaced(event, SelfComposedDpEvent(repeated.event, max(int(count), 1)))
        return privacy_curve(fewer, relation)

    def fits(count: int) -> bool:
        return admission.admits((*spent, curve(count)), budget)

    most = int(repeated.count)
    if spent and _room(spent, budget) == 0 and not admission.is_pure((*spent, curve(most))):
        return None
    low, high = 0, most
    near = _crossing(lambda x: _over(spent, curve(x), budget), float(most), 0.5)
    if near is not None:
        # The last digits are looked for where the answer must be.
        guess, width = int(min(near, most - 1)), max(int(near * _PRECISION), 1)
        low = next((g for g in (guess, guess - width) if g > 0 and fits(g)), 0)
        high = guess + width if low == guess else guess if low else max(guess - width, 0)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return f"{low} of its {repeated.count} steps" if low else None


def _noise(spent: Curves, event: DpEvent, budget: Budget, relation: Relation) -> str | None:
    """Return the noise multiplier at which ``event`` would fit, in words, or None."""
    family = _noise_family(event)
    if family is None:
        return None
    asked, made = family
    if spent:
        multiplier = _least_noise(asked, made, spent, budget, relation)
    else:
        try:
            multiplier = calibrate(made, budget, relation)
        except ValueError:
            multiplier = None
    if multiplier is None:
        return None
    # Rounded up, so that the number as printed fits as well.
    return f"noise_multiplier = {math.ceil(multiplier * 1e4) / 1e4:.4f}"


def _least_noise(
    asked: float,
    made: Callable[[float], DpEvent],
    spent: Curves,
    budget: Budget,
    relation: Relation,
) -> float | None:
    """Return about the least noise multiplier that is admitted after ``spent``."""

    def curve(noise: float) -> PrivacyCurve:
        return privacy_curve(made(noise), relation)

    near = _crossing(lambda noise: _over(spent, curve(noise), budget), max(asked, 1e-3), -1.0)
    if near is None:
        return None
    for _ in range(10):
        if admission.admits((*spent, curve(near)), budget):
            return near
        near *= 1 + _PRECISION
    return None


def _over(spent: Curves, curve: PrivacyCurve, budget: Budget) -> float:
    """Return the shift that ``curve`` counts as, over what is left: it looks at the last link only.

    Infinite where nothing is certified, and for what counts by its pure ε, where no shift says
    whether it fits.
    """
    found = admission.counted((*spent, curve), budget)
    room = _room(spent, budget)
    if found is None or room == 0 or admission.is_pure((*spent, curve)):
        return math.inf
    return found.shift / room


def _crossing(over: Callable[[float], float], start: float, power: float) -> float | None:
    """Return about where ``over`` passes through 1, given that it grows like a ``power``."""
    x, ratio = start, over(start)
    for _ in range(40):
        if math.isfinite(ratio) or not 1e-3 < x < _MOST_NOISE:
            break
        x *= 2.0 ** (-1 / power)
        ratio = over(x)
    if not math.isfinite(ratio) or ratio == 0:
        return None
    slope = power
    for _ in range(8):
        step = -math.log(ratio) / slope
        if abs(step) < _PRECISION / 4:
            break
        following = x * math.exp(min(max(step, -3.0), 3.0))
        found = over(following)
        if not math.isfinite(found) or found == 0:
            return None
        moved = math.log(following / x)
        slope = math.log(found / ratio) / moved or power
        x, ratio = following, found
    return x


def _noise_family(event: DpEvent) -> tuple[float, Callable[[float], DpEvent]] | None:
    """Return the noise of ``event`` and a function from other noise to the same event."""
    repeated = _repetition(event)
    step = repeated.event if repeated is not None else event
    rate: float | None = None
    if isinstance(step, PoissonSampledDpEvent):
        rate, step = step.sampling_probability, step.event
    if not isinstance(step, GaussianDpEvent):
        return None

    def made(multiplier: float) -> DpEvent:
        quieter: DpEvent = GaussianDpEvent(multiplier)
        if rate is not None:
            quieter = PoissonSampledDpEvent(rate, quieter)
        if repeated is not None:
            quieter = _replaced(event, SelfComposedDpEvent(quieter, repeated.count))
        return quieter

    return float(step.noise_multiplier), made


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
