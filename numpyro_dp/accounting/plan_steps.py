"""What a plan still holds: its steps by kind, less those that were drawn.

A plan is one charge for a list of releases that was fixed in advance. Its steps may be taken in any
order, in any portions, chosen from whatever was released before, and left unused: taking a step
moves it from what may still happen to what has happened, and the bound of both together stays.
"""

from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from typing import Any, NamedTuple

import attr

from numpyro_dp.accounting.events import (
    ComposedDpEvent,
    DpEvent,
    NoOpDpEvent,
    SelfComposedDpEvent,
    TotalVariation,
    from_json,
    to_json,
)


class Steps(NamedTuple):
    """Releases by kind, with counts, and the total variation beside them; both exact."""

    counts: Counter[str]
    distance: Fraction

    def covers(self, other: "Steps") -> bool:
        """Return whether ``other`` can be taken out of these."""
        return other.counts <= self.counts and other.distance <= self.distance

    def without(self, other: "Steps") -> "Steps":
        """Return these less ``other``, which they cover."""
        return Steps(self.counts - other.counts, self.distance - other.distance)

    def event(self) -> DpEvent:
        """Return these as one event."""
        kinds: list[DpEvent] = [
            SelfComposedDpEvent(from_json(kind), count) for kind, count in self.counts.items()
        ]
        distance = [TotalVariation(min(1.0, float(self.distance)))] if self.distance else []
        return ComposedDpEvent([*kinds, *distance])


def steps_of(event: DpEvent) -> Steps:
    """Return the steps of ``event``: what is neither a list nor a repetition is one step.

    :raises ValueError: for a count that is no whole number from 0 on, which would give steps back.
    """
    if isinstance(event, NoOpDpEvent):
        return Steps(Counter(), Fraction(0))
    if isinstance(event, TotalVariation):
        return Steps(Counter(), Fraction(event.distance))
    if isinstance(event, SelfComposedDpEvent):
        if type(event.count) is not int or event.count < 0:
            raise ValueError("a step is taken a whole number of times, 0 or more")
        each = steps_of(event.event)
        counts = {kind: count * event.count for kind, count in each.counts.items() if event.count}
        return Steps(Counter(counts), each.distance * event.count)
    if isinstance(event, ComposedDpEvent):
        return _sum(steps_of(child) for child in event.events)
    return Steps(Counter([to_json(_with_floats(event))]), Fraction(0))


def _with_floats(event: DpEvent) -> DpEvent:
    """Return an equal event whose real constants are floats: 9 and 9.0 are one kind of step."""
    changes: dict[str, Any] = {}
    for field in attr.fields(type(event)):
        value = getattr(event, field.name)
        if isinstance(value, DpEvent):
            changes[field.name] = _with_floats(value)
        elif type(value) is int and field.type in (float, "float"):
            changes[field.name] = float(value)
    return attr.evolve(event, **changes)


def left_over(plan: DpEvent, drawn: Iterable[DpEvent]) -> Steps:
    """Return what ``plan`` holds beyond what was drawn from it."""
    return steps_of(plan).without(_sum(steps_of(event) for event in drawn))


def _sum(many: Iterable[Steps]) -> Steps:
    counts: Counter[str] = Counter()
    distance = Fraction(0)
    for steps in many:
        counts.update(steps.counts)
        distance += steps.distance
    return Steps(counts, distance)
