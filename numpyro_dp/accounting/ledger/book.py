"""Ledgers: the list of what was charged, and of what was drawn from charges made as plans.

A ledger decides nothing about privacy. It appends a line when a caller's test of everything before
says so, and makes test and append one atomic, durable act.
"""

import json
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, Protocol

from numpyro_dp.accounting.budget import Budget
from numpyro_dp.accounting.curve import PrivacyCurve, privacy_curve
from numpyro_dp.accounting.events import ComposedDpEvent, DpEvent, from_json, to_json
from numpyro_dp.accounting.relation import Relation
from numpyro_dp.accounting.versions import versions
from numpyro_dp.errors import LedgerError


@dataclass(frozen=True)
class Entry:
    """One charge.

    :param id: position in the ledger, from 1.
    :param time: when it was charged, UTC, ISO 8601.
    :param label: who charged it.
    :param event: what was released.
    :param condition: what the privacy of the entry depends on, None when nothing.
    :param versions: installed packages, as JSON.
    :param planned: whether it was charged as a plan, from which draws are taken.
    """

    id: int
    time: str
    label: str
    event: DpEvent
    condition: str | None
    versions: str
    planned: bool = False


@dataclass(frozen=True)
class Draw:
    """Something taken out of an entry that was charged as a plan; it costs nothing more.

    :param id: position among the draws, from 1.
    :param time: when it was taken, UTC, ISO 8601.
    :param plan: ``id`` of the entry it was taken from.
    :param label: who took it.
    :param event: what was released.
    """

    id: int
    time: str
    plan: int
    label: str
    event: DpEvent


class Book(NamedTuple):
    """Everything a ledger holds.

    - **entries**: the charges, in order.
    - **draws**: what was taken out of plans, in order.
    - **opening**: how many of the first entries count as one list that was fixed in advance, since
      they were charged before ledgers knew of any other rule.
    """

    entries: tuple[Entry, ...] = ()
    draws: tuple[Draw, ...] = ()
    opening: int = 0

    def curves(self, relation: Relation) -> tuple[PrivacyCurve, ...]:
        """Return what each entry costs alone, in order; those of the opening count as one."""
        events = [entry.event for entry in self.entries]
        lists = [events[: self.opening]] if self.opening else []
        lists += [[event] for event in events[self.opening :]]
        return tuple(privacy_curve(ComposedDpEvent(one), relation) for one in lists)


Admit = Callable[[Book], bool]


class Ledger(Protocol):
    """A book with a budget and a relation fixed when it was created."""

    @property
    def budget(self) -> Budget | None:
        """The budget, None when there is none."""
        ...

    @property
    def relation(self) -> Relation:
        """The neighbouring relation."""
        ...

    @property
    def path(self) -> Path | None:
        """The file, None for a ledger in memory."""
        ...

    def read(self) -> Book:
        """Return everything, read afresh."""
        ...

    def append(
        self,
        label: str,
        event: DpEvent,
        condition: str | None,
        admit: Admit,
        *,
        planned: bool = False,
    ) -> bool:
        """Append one entry if ``admit`` of everything before holds; return whether it did."""
        ...

    def draw(self, plan: int, label: str, event: DpEvent, admit: Admit) -> bool:
        """Append one draw from entry ``plan`` if ``admit`` holds; return whether it did."""
        ...


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def entry_body(label: str, event: DpEvent, condition: str | None, planned: bool) -> str:
    """Return an entry as one line of JSON, with the time and the installed packages."""
    body = [_now(), label, to_json(event), condition, json.dumps(versions()), planned]
    return json.dumps(body, ensure_ascii=False)


def draw_body(plan: int, label: str, event: DpEvent) -> str:
    """Return a draw as one line of JSON, with the time."""
    return json.dumps([_now(), plan, label, to_json(event)], ensure_ascii=False)


def read_entry(number: int, body: str) -> Entry:
    """Return the entry that ``entry_body`` wrote.

    :raises ValueError: when this version cannot read it.
    """
    # Ledgers of format 1 knew of no plans.
    time, label, event, condition, installed, *planned = json.loads(body)
    return Entry(number, time, label, from_json(event), condition, installed, planned == [True])


def read_draw(number: int, body: str) -> Draw:
    """Return the draw that ``draw_body`` wrote; raises as ``read_entry``."""
    time, plan, label, event = json.loads(body)
    return Draw(number, time, plan, label, from_json(event))


class MemoryLedger:
    """A ledger that lives and dies with the process."""

    def __init__(self, budget: Budget | None, relation: Relation) -> None:
        self.budget = budget
        self.relation: Relation = relation
        self.path: Path | None = None
        self._book = Book()
        self._process = os.getpid()
        self._lock = threading.Lock()

    def read(self) -> Book:
        """Return everything."""
        return self._book

    def append(
        self,
        label: str,
        event: DpEvent,
        condition: str | None,
        admit: Admit,
        *,
        planned: bool = False,
    ) -> bool:
        """Append one entry if ``admit`` of everything before holds; return whether it did."""
        body = entry_body(label, event, condition, planned)
        with self._writing():
            entries = self._book.entries
            if not admit(self._book):
                return False
            added = read_entry(len(entries) + 1, body)
            self._book = self._book._replace(entries=(*entries, added))
        return True

    def draw(self, plan: int, label: str, event: DpEvent, admit: Admit) -> bool:
        """Append one draw from entry ``plan`` if ``admit`` holds; return whether it did."""
        body = draw_body(plan, label, event)
        with self._writing():
            draws = self._book.draws
            if not admit(self._book):
                return False
            self._book = self._book._replace(draws=(*draws, read_draw(len(draws) + 1, body)))
        return True

    def _writing(self) -> threading.Lock:
        if self.budget is not None and os.getpid() != self._process:
            raise LedgerError(
                "a budget in memory was carried into another process by a fork, where it would be "
                "spent a second time: give the accountant a file with path="
            )
        return self._lock
