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
from numpyro_dp.accounting.ledger.book import Book, Entry
from numpyro_dp.errors import LedgerError


class PlannedSteps(NamedTuple):
    """Releases by kind, with counts, and the total variation beside them; both exact."""

    counts: Counter[str]
    distance: Fraction

    def covers(self, other: "PlannedSteps") -> bool:
        """Return whether ``other`` can be taken out of these."""
        return other.counts <= self.counts and other.distance <= self.distance

    def without(self, other: "PlannedSteps") -> "PlannedSteps":
        """Return these less ``other``, which they cover."""
        return PlannedSteps(self.counts - other.counts, self.distance - other.distance)

    def event(self) -> DpEvent:
        """Return these as one event."""
        kinds: list[DpEvent] = [
            SelfComposedDpEvent(from_json(kind), count) for kind, count in self.counts.items()
        ]
        distance = [TotalVariation(min(1.0, float(self.distance)))] if self.distance else []
        return ComposedDpEvent([*kinds, *distance])


def steps_of(event: DpEvent) -> PlannedSteps:
    """Return the steps of ``event``: what is neither a list nor a repetition is one step.

    :raises ValueError: for a count that is no whole number from 0 on, which would give steps back.
    """
    if isinstance(event, NoOpDpEvent):
        return PlannedSteps(Counter(), Fraction(0))
    if isinstance(event, TotalVariation):
        return PlannedSteps(Counter(), Fraction(event.distance))
    if isinstance(event, SelfComposedDpEvent):
        if type(event.count) is not int or event.count < 0:
            raise ValueError("a step is taken a whole number of times, 0 or more")
        each = steps_of(event.event)
        counts = {kind: count * event.count for kind, count in each.counts.items() if event.count}
        return PlannedSteps(Counter(counts), each.distance * event.count)
    if isinstance(event, ComposedDpEvent):
        return _sum(steps_of(child) for child in event.events)
    return PlannedSteps(Counter([to_json(_with_floats(event))]), Fraction(0))


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


def planned_list(events: object) -> DpEvent:
    """Return the event of a plan: a list of what may be released, with room for rounding."""
    listed = list(events) if isinstance(events, (list, tuple)) else []
    if not listed or not all(isinstance(event, DpEvent) for event in listed):
        raise ValueError(
            "a plan needs a list of one or more events of numpyro_dp.events; that of a run "
            "stands in the report of a rehearsal with the same settings on made-up records: "
            "numpyro_dp.events.from_json(report.events[0][1])"
        )
    distance = steps_of(ComposedDpEvent(listed)).distance
    if distance:
        # Portions of a run round their distances each for itself.
        listed.append(TotalVariation(min(1.0, float(distance) * 1e-9)))
    return ComposedDpEvent(listed)


def planned_entry(book: Book, entry: Entry) -> Entry:
    """Return the plan's ``entry``, or refuse where the ledger's file was exchanged."""
    found = book.entries[entry.id - 1] if entry.id <= len(book.entries) else None
    if found != entry:
        raise LedgerError(
            f"the ledger no longer holds the plan {entry.label!r} as it was made: its file was "
            "exchanged for another one. Nothing was taken; make the plan again"
        )
    return found


def unused(book: Book, entry: Entry) -> PlannedSteps:
    """Return what the plan ``entry`` holds beyond what was drawn from it."""
    planned = planned_entry(book, entry)
    drawn = _sum(steps_of(draw.event) for draw in book.draws if draw.plan == planned.id)
    return steps_of(planned.event).without(drawn)


def holds(book: Book, entry: Entry, event: DpEvent) -> bool:
    """Return whether the plan ``entry`` still holds ``event``."""
    return unused(book, entry).covers(steps_of(event))


def _sum(many: Iterable[PlannedSteps]) -> PlannedSteps:
    counts: Counter[str] = Counter()
    distance = Fraction(0)
    for steps in many:
        counts.update(steps.counts)
        distance += steps.distance
    return PlannedSteps(counts, distance)
