"""From an event to its privacy curve: the walker over nested events, and ε(δ), δ(ε).

Every event class has one handler, registered with ``handles``; it returns ``Parts``, and parts of
a composition add up. An event without a handler is refused, so that nothing goes uncharged. All
plain Gaussians are merged in closed form, equal steps are merged by count, and what remains is
composed by dp-accounting as one privacy loss distribution. Total variation stays outside
(privacy.md section 1).
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from numbers import Integral
from typing import TypeVar

import attr

from numpyro_dp._validate import finite_float, shown
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
from numpyro_dp.accounting.pld.bound import Bound
from numpyro_dp.accounting.pld.composition import Composition, within_reach
from numpyro_dp.accounting.pld.grid import Step
from numpyro_dp.accounting.relation import Relation, check_relation, sensitivity

# Once δ is read off chords, rounding of the last digits must not point downwards.
_UP = 1 + 1e-12

# No constant of a mechanism is smaller.
_LEAST = 1e-30

_E = TypeVar("_E", bound=DpEvent)


@dataclass(frozen=True)
class Parts:
    """What an event comes to: Gaussian shifts, steps and bounds with counts, and distances.

    :param squares: squared Gaussian shifts μ², one for each kind of release.
    :param steps: counts of the Poisson-subsampled Gaussian steps.
    :param bounds: counts of everything else.
    :param distances: total variation distances.
    :param private: False as soon as anything was released without privacy.
    """

    squares: tuple[float, ...] = ()
    steps: Mapping[Step, int] = field(default_factory=dict)
    distances: tuple[float, ...] = ()
    private: bool = True
    bounds: Mapping[Bound, int] = field(default_factory=dict)

    def times(self, count: int) -> "Parts":
        """Return the parts of ``count`` repetitions."""
        if count == 0:
            return Parts()
        return Parts(
            tuple(count * square for square in self.squares),
            {step: count * number for step, number in self.steps.items()},
            tuple(count * distance for distance in self.distances),
            self.private,
            {bound: count * number for bound, number in self.bounds.items()},
        )


def _sum(many: Iterable[Parts]) -> Parts:
    squares: list[float] = []
    distances: list[float] = []
    steps: Counter[Step] = Counter()
    bounds: Counter[Bound] = Counter()
    private = True
    for part in many:
        squares.extend(part.squares)
        distances.extend(part.distances)
        steps.update(part.steps)
        bounds.update(part.bounds)
        private = private and part.private
    return Parts(tuple(squares), dict(steps), tuple(distances), private, dict(bounds))


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

    :raises ValueError: when the event, or one inside it, has no statement here.
    """
    handler = _HANDLERS.get(type(event))
    if handler is None:
        raise ValueError(
            f"no privacy statement for events of class {type(event).__name__}: supported are "
            f"{sorted(cls.__name__ for cls in _HANDLERS)}"
        )
    _check_range(event)
    with within_reach():
        return handler(event, relation)


def _check_range(event: DpEvent) -> None:
    """Refuse numbers whose squares and quotients no floating-point number holds."""
    if isinstance(event, TotalVariation):
        return
    for name in _fields(type(event)):
        value = getattr(event, name)
        if isinstance(value, float) and 0 < abs(value) < _LEAST:
            raise ValueError(
                f"{type(event).__name__}.{name} is too small to be accounted for: it must be 0 or "
                f"at least {_LEAST:g}"
            )


@cache
def _fields(cls: type[DpEvent]) -> tuple[str, ...]:
    return tuple(field.name for field in attr.fields(cls))


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
    if not isinstance(event.events, list | tuple):
        raise ValueError(f"a composition must hold a list of events, got {shown(event.events)}")
    return _sum(parts(child, relation) for child in event.events)


@handles(SelfComposedDpEvent)
def _repeated(event: SelfComposedDpEvent, relation: Relation) -> Parts:
    count = event.count
    if isinstance(count, bool) or not isinstance(count, Integral) or count < 0:
        raise ValueError(f"count must be a whole number ≥ 0, got {shown(count)}")
    return parts(event.event, relation).times(int(count))


def _only_gaussians(event: DpEvent) -> bool:
    """Return whether nothing but noisy sums is released.

    What has a Gaussian's shift by another theorem (draws, last iterates) need not be dominated by
    a sampled Gaussian under replace-one, and its constants need not hold for a batch.
    """
    if isinstance(event, ComposedDpEvent):
        return all(_only_gaussians(child) for child in event.events)
    if isinstance(event, SelfComposedDpEvent):
        return _only_gaussians(event.event)
    return type(event) in (GaussianDpEvent, NoOpDpEvent, NonPrivateDpEvent)


@handles(PoissonSampledDpEvent)
def _poisson(event: PoissonSampledDpEvent, relation: Relation) -> Parts:
    rate = finite_float("sampling_probability", event.sampling_probability)
    if not 0 <= rate <= 1:
        raise ValueError(f"sampling_probability must lie in [0, 1], got {rate!r}")
    if not _only_gaussians(event.event):
        raise ValueError(
            "Poisson sampling is stated for Gaussian releases alone: put other events beside it"
        )
    inner = parts(event.event, "add_remove")
    if rate == 1:
        return parts(event.event, relation)
    if rate == 0 or not inner.private:
        return Parts(private=inner.private)
    # Releases from one batch are one joint Gaussian; two sampled events would claim too little.
    square = math.fsum(inner.squares)
    if square == 0:
        return Parts()
    return Parts(steps={Step(rate, 1 / math.sqrt(square)): 1})


@dataclass(frozen=True)
class PrivacyCurve:
    """The trade-off between ε and δ of one (composed) event under one relation.

    Every value is an upper bound: the event is (ε, δ)-differentially private for each pair that
    the two methods return. Made by ``privacy_curve``.
    """

    composition: Composition
    distance: float
    private: bool

    def delta(self, epsilon: float) -> float:
        """Return δ at ``epsilon``.

        :param epsilon: ε ≥ 0; may be infinite.
        :returns: The least certified δ, in [0, 1].
        """
        if not epsilon >= 0:
            raise ValueError(f"epsilon must not be negative, got {epsilon!r}")
        if not self.private:
            return 1.0
        if epsilon == math.inf:
            return 0.0 if self.distance == 0 else self.delta(700.0)
        if self.distance == 0:
            return self.composition.delta(epsilon)
        return min(1.0, self._least_total(epsilon))

    def epsilon(self, delta: float) -> float:
        """Return ε at ``delta``.

        :param delta: δ in (0, 1).
        :returns: The least certified ε ≥ 0; infinite when none is.
        """
        if not 0 < delta < 1:
            raise ValueError(f"delta must lie in (0, 1), got {delta!r}")
        if not self.private:
            return math.inf
        if self.distance == 0:
            return self.composition.epsilon(delta)
        # Small distances move ε hardly at all: a little above ε without them is often enough.
        above = self.composition.epsilon(delta) * (1 + 1e-6)
        room = delta - self._outside(above)
        if room > 0 and (found := self.composition.epsilon(room)) <= above:
            return found
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
            following = self.composition.epsilon(room) if room > 0 else math.inf
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
            return self.composition.delta(at) + self._outside(at)

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


def privacy_curve(
    event: DpEvent, relation: Relation = "zero_out", *, coarse: bool = False
) -> PrivacyCurve:
    """Return the privacy curve of ``event``.

    :param event: any nesting of the events in ``numpyro_dp.events``.
    :param relation: the neighbouring relation, ``"zero_out"``, ``"replace_one"`` or
        ``"add_remove"``.
    :param coarse: quicker, and every value a little larger still, where steps have wide losses.
    :returns: The curve, with methods ``epsilon(delta)`` and ``delta(epsilon)``.
    :raises ValueError: when the relation or an event is unknown.

    **References.** privacy.md sections 0 to 2; design.md section 5.

    **Example**::

        >>> curve = privacy_curve(SelfComposedDpEvent(GaussianDpEvent(5.0), 100))
        >>> round(curve.epsilon(1e-5), 4)
        9.9973
    """
    checked = check_relation(relation)
    found = parts(event, checked)
    steps = tuple(sorted((step, count) for step, count in found.steps.items() if count))
    bounds = tuple(sorted(((b, n) for b, n in found.bounds.items() if n), key=repr))
    composition = Composition(checked, math.fsum(found.squares), steps, coarse, bounds)
    return PrivacyCurve(composition, math.fsum(found.distances), found.private)
