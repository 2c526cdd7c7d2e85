"""From an event to its privacy curve: the walker over nested events, and ε(δ), δ(ε).

Every event class has one handler, registered with ``handles``; it returns ``Parts``, and parts of
a composition add up. An event without a handler is refused, so that nothing goes uncharged. All
plain Gaussians are merged in closed form, equal steps are merged by count, and what remains is
composed as one privacy loss distribution. Total variation stays outside (privacy.md section 1).
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from numbers import Integral
from typing import TypeVar

import numpy as np

from numpyro_dp._validate import finite_float
from numpyro_dp.accounting.composition import DECADES, Steps, Table, tables
from numpyro_dp.accounting.events import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    NonPrivateDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
    TotalVariation,
)
from numpyro_dp.accounting.profiles import (
    Gaussian,
    PoissonGaussian,
    PoissonGaussianReplace,
    Profile,
)
from numpyro_dp.accounting.relation import Relation, check_relation, sensitivity

__all__ = ["FINE", "Parts", "PrivacyCurve", "handles", "parts", "privacy_curve"]

# Grid spacing in standard deviations: ε is about 1e-5 too large, relatively.
FINE = 0.01
# With hundreds of kinds of steps a wider grid keeps the cost down; ε is about 2e-4 too large.
_FINE_MANY = 0.05
_MANY_STEPS = 64
# Ratio of neighbouring levels when more than 64 noise multipliers are grouped.
_LEVEL = math.log(1.005)
# Once δ is read off chords, rounding of the last digits must not point downwards.
_UP = 1 + 1e-12
_USUAL_BUCKET = 5

_E = TypeVar("_E", bound=DpEvent)


@dataclass(frozen=True)
class Parts:
    """What an event comes to: Gaussian shifts, other steps with counts, and distances.

    Args:
        squares: squared Gaussian shifts μ², one for each kind of release.
        steps: counts of the steps that are not plain Gaussians.
        distances: total variation distances.
        private: False as soon as anything was released without privacy.
    """

    squares: tuple[float, ...] = ()
    steps: Mapping[Profile, int] = field(default_factory=dict)
    distances: tuple[float, ...] = ()
    private: bool = True

    def times(self, count: int) -> "Parts":
        """Return the parts of ``count`` repetitions."""
        if count == 0:
            return Parts()
        return Parts(
            tuple(count * square for square in self.squares),
            {step: count * number for step, number in self.steps.items()},
            tuple(count * distance for distance in self.distances),
            self.private,
        )


def _sum(many: Iterable[Parts]) -> Parts:
    squares: list[float] = []
    distances: list[float] = []
    steps: Counter[Profile] = Counter()
    private = True
    for part in many:
        squares.extend(part.squares)
        distances.extend(part.distances)
        steps.update(part.steps)
        private = private and part.private
    return Parts(tuple(squares), dict(steps), tuple(distances), private)


_Handler = Callable[[DpEvent, Relation], Parts]
_HANDLERS: dict[type[DpEvent], _Handler] = {}


def handles(cls: type[_E]) -> Callable[[Callable[[_E, Relation], Parts]], _Handler]:
    """Register a function from an event of class ``cls`` and a relation to its ``Parts``."""

    def keep(handler: Callable[[_E, Relation], Parts]) -> _Handler:
        def checked(event: DpEvent, relation: Relation) -> Parts:
            if not isinstance(event, cls):
                raise TypeError(f"expected {cls.__name__}, got {type(event).__name__}")
            return handler(event, relation)

        _HANDLERS[cls] = checked
        return checked

    return keep


def parts(event: DpEvent, relation: Relation) -> Parts:
    """Return what ``event`` comes to under ``relation``.

    Raises:
        ValueError: when the event, or one inside it, has no statement here.
    """
    handler = _HANDLERS.get(type(event))
    if handler is None:
        raise ValueError(
            f"no privacy statement for events of class {type(event).__name__}: supported are "
            f"{sorted(cls.__name__ for cls in _HANDLERS)}"
        )
    return handler(event, relation)


def _multiplier(value: object) -> float:
    multiplier = finite_float("noise_multiplier", value)
    if multiplier < 0:
        raise ValueError(f"noise_multiplier must not be negative, got {value!r}")
    return multiplier


@handles(NoOpDpEvent)
def _nothing(event: NoOpDpEvent, relation: Relation) -> Parts:
    return Parts()


@handles(NonPrivateDpEvent)
def _without_privacy(event: NonPrivateDpEvent, relation: Relation) -> Parts:
    return Parts(private=False)


@handles(TotalVariation)
def _total_variation(event: TotalVariation, relation: Relation) -> Parts:
    return Parts(distances=(event.distance,))


@handles(GaussianDpEvent)
def _gaussian(event: GaussianDpEvent, relation: Relation) -> Parts:
    multiplier = _multiplier(event.noise_multiplier)
    if multiplier == 0:
        return Parts(private=False)
    return Parts(squares=((sensitivity(relation) / multiplier) ** 2,))


@handles(ComposedDpEvent)
def _composed(event: ComposedDpEvent, relation: Relation) -> Parts:
    return _sum(parts(child, relation) for child in event.events)


@handles(SelfComposedDpEvent)
def _repeated(event: SelfComposedDpEvent, relation: Relation) -> Parts:
    count = event.count
    if isinstance(count, bool) or not isinstance(count, Integral) or count < 0:
        raise ValueError(f"count must be a whole number ≥ 0, got {count!r}")
    return parts(event.event, relation).times(int(count))


@handles(PoissonSampledDpEvent)
def _poisson(event: PoissonSampledDpEvent, relation: Relation) -> Parts:
    rate = finite_float("sampling_probability", event.sampling_probability)
    if not 0 <= rate <= 1:
        raise ValueError(f"sampling_probability must lie in [0, 1], got {rate!r}")
    inner = parts(event.event, "add_remove")
    if inner.steps or inner.distances:
        raise ValueError(
            "Poisson sampling is stated for Gaussian releases alone: put other events beside it"
        )
    if rate == 1:
        return parts(event.event, relation)
    if rate == 0 or not inner.private:
        return Parts(private=inner.private)
    # Releases from one batch are one joint Gaussian; two sampled events would claim too little.
    square = math.fsum(inner.squares)
    if square == 0:
        return Parts()
    pair = PoissonGaussianReplace if relation == "replace_one" else PoissonGaussian
    return Parts(steps={pair(rate, 1 / math.sqrt(square)): 1})


def _grouped(steps: Mapping[Profile, int]) -> dict[Profile, int]:
    """Round noise multipliers down to a geometric grid when there are many of them."""
    sampled = [s for s in steps if isinstance(s, PoissonGaussian | PoissonGaussianReplace)]
    if len({step.noise_multiplier for step in sampled}) <= _MANY_STEPS:
        return dict(steps)
    grouped: Counter[Profile] = Counter()
    for step, count in steps.items():
        if isinstance(step, PoissonGaussian | PoissonGaussianReplace):
            step = type(step)(step.rate, _rounded_down(step.noise_multiplier))
        grouped[step] += count
    return dict(grouped)


def _rounded_down(multiplier: float) -> float:
    # The grid is geometric in √(e^{1/σ²} − 1), to which ε of many steps is proportional: a grid
    # geometric in σ itself would be too coarse below 1.
    inverse = multiplier**-2
    log_size = 0.5 * (inverse + math.log(-math.expm1(-inverse)))
    rounded = 2 * _LEVEL * math.ceil(log_size / _LEVEL)
    lower = float(np.logaddexp(0.0, rounded)) ** -0.5
    return min(lower, multiplier)


@dataclass(frozen=True)
class PrivacyCurve:
    """The trade-off between ε and δ of one (composed) event under one relation.

    Every value is an upper bound: the event is (ε, δ)-differentially private for each pair that
    the two methods return. Made by ``privacy_curve``.
    """

    relation: Relation
    steps: Steps
    distance: float
    private: bool
    fineness: float = FINE

    def delta(self, epsilon: float) -> float:
        """Return δ at ``epsilon``.

        Args:
            epsilon: ε ≥ 0; may be infinite.

        Returns:
            The least certified δ, in [0, 1].
        """
        if not epsilon >= 0:
            raise ValueError(f"epsilon must not be negative, got {epsilon!r}")
        if not self.private:
            return 1.0
        if epsilon == math.inf:
            return 0.0 if self.distance == 0 else self.delta(700.0)
        if self.distance == 0:
            return self._pld_delta(epsilon)
        return min(1.0, self._least_total(epsilon))

    def epsilon(self, delta: float) -> float:
        """Return ε at ``delta``.

        Args:
            delta: δ in (0, 1).

        Returns:
            The least certified ε ≥ 0; infinite when none is.
        """
        if not 0 < delta < 1:
            raise ValueError(f"delta must lie in (0, 1), got {delta!r}")
        if not self.private:
            return math.inf
        if self.distance == 0:
            return self._pld_epsilon(delta)
        # A value reached from above is certified: δ_PLD there leaves room for the distance at a
        # larger ε. From below it would not be.
        for share in (0.5, 0.9, 0.99, 0.999):
            if delta * share <= 2 * self.distance:
                continue
            start = math.log(delta * share / self.distance - 1)
            found = self._descend(start, delta)
            if found is not None:
                return found
        return math.inf

    def _descend(self, start: float, delta: float) -> float | None:
        current = start
        for step in range(60):
            room = delta - self._outside(current)
            following = self._pld_epsilon(room) if room > 0 else math.inf
            if following > current:
                return None if step == 0 else current
            if following >= current * (1 - 1e-10):
                return following
            current = following
        return current

    def _outside(self, epsilon: float) -> float:
        return (1 + math.exp(min(epsilon, 700.0))) * self.distance * _UP

    def _least_total(self, epsilon: float) -> float:
        """Return the running minimum over [0, ε] of δ_PLD + (1 + e^ε)·distance, convex in e^ε."""

        def total(at: float) -> float:
            return self._pld_delta(at) + self._outside(at)

        best = total(epsilon)
        low, high = 0.0, min(epsilon, 700.0)
        if best <= total(high * (1 - 1e-6)):
            return best
        golden = (math.sqrt(5) - 1) / 2
        for _ in range(60):
            left, right = high - golden * (high - low), low + golden * (high - low)
            first, second = total(left), total(right)
            best = min(best, first, second)
            low, high = (low, right) if first <= second else (left, high)
        return best

    def _pld_delta(self, epsilon: float) -> float:
        exact = _single(self.steps)
        if exact is not None:
            return min(1.0, exact(epsilon) * _UP)
        best, bucket, visited = 1.0, _USUAL_BUCKET, set[int]()
        # A table is accurate at its own decade and above; the right one is looked up last.
        while bucket not in visited:
            visited.add(bucket)
            best = min(best, max(table.delta(epsilon) for table in self._tables(bucket)))
            if best > 0:
                bucket = _bucket(best * 0.999)
        return min(1.0, best * _UP)

    def _pld_epsilon(self, delta: float) -> float:
        target = delta / _UP / _UP
        exact = _single(self.steps)
        if exact is not None:
            return _solve(exact, target)
        return max(table.epsilon(target) for table in self._tables(_bucket(delta))) * _UP

    def _tables(self, bucket: int) -> tuple[Table, ...]:
        return tables(self.steps, bucket, self.fineness)


def _bucket(delta: float) -> int:
    return max(0, math.floor(-math.log10(delta) / DECADES + 1e-9))


def _single(steps: Steps) -> Callable[[float], float] | None:
    """Return the exact profile when at most one step was taken."""
    if not steps:
        return lambda epsilon: 0.0
    (step, count), *others = steps
    if others or count != 1:
        return None

    def profile(epsilon: float) -> float:
        at = np.array([epsilon])
        forward = float(step.forward(at)[0])
        return forward if step.symmetric else max(forward, float(step.backward(at)[0]))

    return profile


def _solve(profile: Callable[[float], float], target: float) -> float:
    """Return the least ε ≥ 0 with profile(ε) ≤ target, from above."""
    if profile(0.0) <= target:
        return 0.0
    high = 1e-9
    while profile(high) > target:
        high *= 4
    low = 0.0 if high == 1e-9 else high / 4
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if profile(middle) > target else (low, middle)
    return high


def privacy_curve(
    event: DpEvent, relation: Relation = "zero_out", *, fineness: float = FINE
) -> PrivacyCurve:
    """Return the privacy curve of ``event``.

    Args:
        event: any nesting of the events in ``numpyro_dp.events``.
        relation: the neighbouring relation, ``"zero_out"``, ``"replace_one"`` or
            ``"add_remove"``.
        fineness: grid spacing; every value is an upper bound, a larger one is faster and looser
            (relative excess of ε about fineness²/12).

    Returns:
        The curve, with methods ``epsilon(delta)`` and ``delta(epsilon)``.

    Raises:
        ValueError: when the relation or an event is unknown.

    References:
        privacy.md sections 0 to 2; design.md section 5.

    Example:
        >>> curve = privacy_curve(SelfComposedDpEvent(GaussianDpEvent(5.0), 100))
        >>> round(curve.epsilon(1e-5), 4)
        9.9973
    """
    checked = check_relation(relation)
    found = parts(event, checked)
    if not found.private:
        return PrivacyCurve(checked, (), 0.0, False, fineness)
    steps = _grouped({step: count for step, count in found.steps.items() if count})
    if len(steps) > _MANY_STEPS:
        fineness = max(fineness, _FINE_MANY)
    square = math.fsum(found.squares)
    ordered = sorted(steps.items(), key=lambda item: repr(item[0]))
    if square > 0:
        ordered.append((Gaussian(math.sqrt(square)), 1))
    return _curve(checked, tuple(ordered), math.fsum(found.distances), fineness)


@lru_cache(maxsize=256)
def _curve(relation: Relation, steps: Steps, distance: float, fineness: float) -> PrivacyCurve:
    return PrivacyCurve(relation, steps, distance, True, fineness)
