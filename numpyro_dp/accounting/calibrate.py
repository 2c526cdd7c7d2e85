"""The least noise, or the largest of another parameter, that keeps an event within a budget."""

import math
from collections.abc import Callable
from functools import partial

from numpyro_dp._validate import positive
from numpyro_dp.accounting.bounds.proved import proved
from numpyro_dp.accounting.budget import Budget
from numpyro_dp.accounting.curve import privacy_curve
from numpyro_dp.accounting.events import DpEvent
from numpyro_dp.accounting.pld.gaussian import gaussian_delta
from numpyro_dp.accounting.pld.grid import loss_variance
from numpyro_dp.accounting.relation import Relation, check_relation, sensitivity

_LARGEST = 1e9
_PRECISION = 5e-4
_Point = tuple[float, float]


def calibrate(
    event_family: Callable[[float], DpEvent],
    budget: Budget,
    relation: Relation = "zero_out",
) -> float:
    """Return the least noise multiplier at which ``event_family`` fits ``budget``.

    :param event_family: from a noise multiplier (noise standard deviation over clip norm) to the
        event of one complete run, total variation included; more noise must cost less.
    :param budget: the (ε, δ) that the run may cost.
    :param relation: the neighbouring relation.
    :returns: A noise multiplier that fits, at most a factor 1.0005 above the least one.
    :raises ValueError: when no noise multiplier up to 1e9 fits, as when total variation alone
        exceeds δ.

    **Privacy.** Reads constants of a mechanism and a budget, and no record: free.

    **References.** Balle and Wang, *Improving the Gaussian Mechanism for Differential Privacy*
    (2018), for a Gaussian, from which the search starts; *Budgets, ledgers and reports*
    (docs/reference/accounting.md).

    **Example**::

        >>> from numpyro_dp.accounting.events import GaussianDpEvent
        >>> round(calibrate(GaussianDpEvent, Budget(1.0, 1e-5)), 2)
        3.73
    """
    relation = check_relation(relation)
    distance = math.fsum(proved(event_family(_LARGEST), relation).distances)
    weighed = (1 + math.exp(min(budget.epsilon, 700.0))) * distance
    if weighed >= budget.delta:
        most = math.log(max(budget.delta / distance - 1, 1.0))
        raise ValueError(
            f"no noise fits: at epsilon = {budget.epsilon:g} the total variation of the noise's "
            f"tables, {distance:.3g}, counts 1 + e^epsilon times, {weighed:.3g}, and delta is "
            f"{budget.delta:g}: take a smaller epsilon (below {most:.1f}), a larger delta, or "
            "fewer steps or coordinates"
        )

    def epsilon(noise: float, coarse: bool = False) -> float:
        return privacy_curve(event_family(noise), relation, coarse=coarse).epsilon(budget.delta)

    # Small sampling rates have wide losses, and each fine curve of theirs takes a second.
    guess = _guess(event_family, budget, relation)
    rough = _search(partial(epsilon, coarse=True), guess, budget.epsilon)
    return _search(epsilon, rough, budget.epsilon)


def largest(
    event_family: Callable[[float], DpEvent],
    budget: Budget,
    relation: Relation = "zero_out",
    *,
    lower: float,
    upper: float,
) -> float:
    """Return the largest parameter at which ``event_family`` fits ``budget``.

    :param event_family: from a parameter whose ε rises (a likelihood power, a bound on the log
        ratio, a number of steps) to the event of one complete run.
    :param budget: the (ε, δ) that the run may cost.
    :param relation: the neighbouring relation.
    :param lower: the least parameter of interest, positive.
    :param upper: the largest one; when both are ``int`` the parameter is a whole number.
    :returns: A parameter that fits, at most a factor 1.0005 below the largest one; exactly the
        largest whole number.
    :raises ValueError: when ``lower`` does not fit, or the bounds are not 0 < lower ≤ upper.

    **Privacy.** Nothing is released; the family must use public numbers alone.

    **References.** *Budgets, ledgers and reports*.

    **Example**::

        >>> from numpyro_dp.accounting.events import BarkerBit, SelfComposedDpEvent
        >>> budget = Budget(1.0, 1e-5)
        >>> steps = largest(
        ...     lambda count: SelfComposedDpEvent(BarkerBit(0.1), int(count)),
        ...     budget, lower=1, upper=1_000_000,
        ... )
        >>> steps
        27
    """
    relation = check_relation(relation)
    low, high = positive("lower", lower), positive("upper", upper)
    if low > high:
        raise ValueError(f"lower must not exceed upper, got {lower!r} and {upper!r}")

    def epsilon(value: float) -> float:
        return privacy_curve(event_family(value), relation).epsilon(budget.delta)

    if epsilon(lower) > budget.epsilon:
        raise ValueError(
            f"not even the lower bound {lower!r} fits epsilon = {budget.epsilon:g} at delta = "
            f"{budget.delta:g}: raise the budget or lower the bound"
        )
    if isinstance(lower, int) and isinstance(upper, int):
        return _largest_count(epsilon, budget.epsilon, lower, upper)
    if epsilon(upper) <= budget.epsilon:
        return upper

    def inverse(noise: float) -> float:
        # The bracket stays within what the caller named.
        value = 1 / noise
        return 0.0 if value < low else math.inf if value > high else epsilon(value)

    return max(1 / _search(inverse, 1 / low, budget.epsilon), low)


def _largest_count(epsilon: Callable[[float], float], target: float, low: int, upper: int) -> int:
    """Return the largest whole number up to ``upper`` whose ε is at most ``target``; ``low`` fits.

    Long runs take longest to account, so the search comes from below.
    """
    step, high = 1, upper + 1
    while low + step < high:
        if epsilon(low + step) > target:
            high = low + step
        else:
            low, step = low + step, 4 * step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if epsilon(middle) <= target else (low, middle)
    return low


def _search(epsilon: Callable[[float], float], start: float, target: float) -> float:
    """Return the least noise, to ``_PRECISION``, whose ε is at most ``target``."""
    low: _Point | None = None
    high: _Point | None = None
    noise, rounds = start, 0
    while low is None or high is None or high[0] > low[0] * (1 + _PRECISION):
        found = epsilon(noise)
        if found <= target:
            high = (noise, found)
            if found >= target * (1 - _PRECISION):
                return noise
        else:
            low = (noise, found)
        rounds += 1
        noise = _next(low, high, target, rounds)
        if not 1 / _LARGEST < noise < _LARGEST:
            raise ValueError(
                f"no noise multiplier up to {_LARGEST:g} fits epsilon = {target:g}: the event's "
                "ε does not fall with its noise"
            )
    return high[0]


def _next(low: _Point | None, high: _Point | None, target: float, rounds: int) -> float:
    """Return the noise to try next: extrapolate, then interpolate log ε in log noise."""
    if low is None or high is None:
        # ε falls about like 1/noise, and a little too far brackets the answer at once; where other
        # charges keep it from falling, ever longer steps do.
        noise, found = low or high or (1.0, target)
        beyond = min(1.003**2 ** (rounds - 1), 8.0)
        factor = found / target * (beyond if high is None else 1 / beyond)
        return noise * min(max(factor, 1 / 8), 8.0)
    span = math.log(high[0] / low[0])
    if rounds % 4 == 0 or high[1] <= 0 or not math.isfinite(low[1]):
        return low[0] * math.exp(span / 2)
    share = math.log(low[1] / target) / math.log(low[1] / high[1])
    # Step to just beyond the crossing, on the side where the bracket is still wide.
    offset = _PRECISION / 3 if share < 0.5 else -_PRECISION / 3
    place = share * span + offset
    return low[0] * math.exp(min(max(place, 0.02 * span), 0.98 * span))


def _guess(event_family: Callable[[float], DpEvent], budget: Budget, relation: Relation) -> float:
    """Return the noise at which the Gaussian of the same total variance would just fit."""
    allowed = gaussian_shift(budget) ** 2

    def variance(noise: float) -> float:
        found = proved(event_family(noise), relation)
        total = math.fsum(found.squares)
        for step, count in found.steps.items():
            total += count * loss_variance(step, sensitivity(relation), cap=700.0)
        return total + math.fsum(count * bound.variance for bound, count in found.bounds.items())

    low, high = math.log(1e-3), math.log(1e6)
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (middle, high) if variance(math.exp(middle)) > allowed else (low, middle)
    return math.exp(high)


def gaussian_shift(budget: Budget) -> float:
    """Return the largest μ for which N(μ, 1) against N(0, 1) fits ``budget``.

    :param budget: the (ε, δ) to fit.
    :returns: μ, rounded down by at most a factor 1 − 1e-12.
    """
    low, high = 0.0, 1.0
    while gaussian_delta(budget.epsilon, high) <= budget.delta:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        fits = gaussian_delta(budget.epsilon, middle) <= budget.delta
        low, high = (middle, high) if fits else (low, middle)
    return low
