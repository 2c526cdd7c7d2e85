"""Ledgers: the list of what was charged, and of what was drawn from charges made as plans.

A ledger decides nothing about privacy. It appends a line when a caller's test of everything before
says so, and makes test and append one atomic, durable act.
"""

import json
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

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

    **Privacy.** Public constants of a mechanism; the label is the caller's own words.
    """

    id: int
    time: str
    label: str
    event: DpEvent
    condition: str | None
    versions: str
    planned: bool = False


@dataclass(frozen=True)
class PlanDraw:
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
    draws: tuple[PlanDraw, ...] = ()
    opening: int = 0

    @property
    def event(self) -> DpEvent:
        """All charges as one list."""
        return ComposedDpEvent([entry.event for entry in self.entries])

    @property
    def conditions(self) -> tuple[str, ...]:
        """What any of the charges depends on, once each."""
        found = (entry.condition for entry in self.entries if entry.condition is not None)
        return tuple(dict.fromkeys(found))

    def curves(self, relation: Relation) -> tuple[PrivacyCurve, ...]:
        """Return what each entry costs alone, in order; those of the opening count as one."""
        events = [entry.event for entry in self.entries]
        lists = [events[: self.opening]] if self.opening else []
        lists += [[event] for event in events[self.opening :]]
        return tuple(privacy_curve(ComposedDpEvent(one), relation) for one in lists)


Admit = Callable[[Book], bool]
Chain = Literal["entries", "draws"]


class Ledger(ABC):
    """A book with a budget, if any, and a relation that were fixed when it was created."""

    budget: Budget | None
    relation: Relation

    @property
    def path(self) -> Path | None:
        """The file, None for a ledger in memory."""
        return None

    @abstractmethod
    def read(self) -> Book:
        """Return everything, read afresh."""

    @abstractmethod
    def _write(self, chain: Chain, body: str, admit: Admit) -> bool:
        """Append the line ``body`` to ``chain`` if ``admit`` of everything before holds."""

    def append(
        self,
        label: str,
        event: DpEvent,
        condition: str | None,
        admit: Admit,
        *,
        planned: bool = False,
    ) -> bool:
        """Append one entry if ``admit`` of everything before holds; return whether it did.

        Test and insertion are one act that excludes every other writer; when this returns True the
        entry lasts as long as the ledger.
        """
        # With the time and the installed packages.
        body = [_now(), label, to_json(event), condition, json.dumps(versions()), planned]
        return self._write("entries", json.dumps(body, ensure_ascii=False), admit)

    def draw(self, plan: int, label: str, event: DpEvent, admit: Admit) -> bool:
        """Append one draw from entry ``plan`` if ``admit`` holds, as ``append`` an entry."""
        body = [_now(), plan, label, to_json(event)]
        return self._write("draws", json.dumps(body, ensure_ascii=False), admit)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _read_entry(number: int, body: str) -> Entry:
    # Ledgers of format 1 knew of no plans.
    time, label, event, condition, installed, *planned = json.loads(body)
    return Entry(number, time, label, from_json(event), condition, installed, planned == [True])


def _read_draw(number: int, body: str) -> PlanDraw:
    time, plan, label, event = json.loads(body)
    return PlanDraw(number, time, plan, label, from_json(event))


# From the number of a line and its text to what it says; ValueError where this version cannot read.
READ: Mapping[Chain, Callable[[int, str], Any]] = {"entries": _read_entry, "draws": _read_draw}


class MemoryLedger(Ledger):
    """A ledger that lives and dies with the process."""

    def __init__(self, budget: Budget | None, relation: Relation) -> None:
        self.budget, self.relation = budget, relation
        self._book = Book()
        self._process = os.getpid()
        self._lock = threading.Lock()

    def read(self) -> Book:
        """Return everything."""
        return self._book

    def _write(self, chain: Chain, body: str, admit: Admit) -> bool:
        if self.budget is not None and os.getpid() != self._process:
            raise LedgerError(
                "a budget in memory was carried into another process by a fork, where it would be "
                "spent a second time: give the accountant a file with path="
            )
        with self._lock:
            if not admit(self._book):
                return False
            lines = getattr(self._book, chain)
            added = READ[chain](len(lines) + 1, body)
            self._book = self._book._replace(**{chain: (*lines, added)})
        return True
