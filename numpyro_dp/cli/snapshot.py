"""One reading of a ledger: every figure of one output is about the same entries."""

import math
import os
from dataclasses import dataclass
from pathlib import Path

from numpyro_dp.accounting import (
    DEFAULT_DELTA,
    Budget,
    Entry,
    Relation,
    privacy_curve,
)
from numpyro_dp.accounting.admission import charged
from numpyro_dp.accounting.advice import largest_left
from numpyro_dp.accounting.events import DpEvent
from numpyro_dp.accounting.ledger.book import Book
from numpyro_dp.accounting.ledger.file import FileLedger
from numpyro_dp.errors import LedgerError

DELTAS = (1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9)


@dataclass(frozen=True)
class Snapshot:
    """What a ledger held at one moment.

    :param path: the file.
    :param budget: its budget, ``None`` without one.
    :param relation: its neighbouring relation.
    :param book: its charges, in order, and what was taken out of plans.
    """

    path: Path
    budget: Budget | None
    relation: Relation
    book: Book

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "Snapshot":
        """Read the ledger at ``path``, whose digests are checked on the way.

        :raises LedgerError: when there is no file, or one that is foreign or damaged.
        """
        # A ledger's class would make a new file where there is none.
        if not Path(path).exists():
            raise LedgerError(f"there is no ledger at {path}: check the path")
        ledger = FileLedger(path, None, "zero_out")
        return cls(ledger.path, ledger.budget, ledger.relation, ledger.read())

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The charges."""
        return self.book.entries

    @property
    def delta(self) -> float:
        """The δ at which this ledger states ε."""
        return DEFAULT_DELTA if self.budget is None else self.budget.delta

    @property
    def unstated(self) -> tuple[Entry, ...]:
        """Charges for which this version has no privacy statement."""
        return tuple(entry for entry in self.entries if not self._has_statement(entry.event))

    def alone(self, entry: Entry) -> float:
        """ε of one charge by itself; infinite when this version has no statement for it."""
        return self._epsilon(entry.event, self.delta)

    def total(self, delta: float) -> float:
        """ε of all charges together at ``delta``, under their conditions if any."""
        return self._epsilon(self.book.event, delta)

    def charged(self) -> float:
        """ε that counts against the budget, or the total without one; under conditions if any."""
        if self.budget is None or self.unstated:
            return self.total(self.delta)
        return charged(self.book.curves(self.relation), self.budget)

    def left(self) -> float:
        """The largest ε whose Gaussian event still fits; infinite without a budget."""
        if self.budget is None:
            return math.inf
        return 0.0 if self.unstated else largest_left(self.book.curves(self.relation), self.budget)

    def _has_statement(self, event: DpEvent) -> bool:
        try:
            privacy_curve(event, self.relation)
        except ValueError:
            return False
        return True

    def _epsilon(self, event: DpEvent, delta: float) -> float:
        if not self._has_statement(event):
            return math.inf
        return privacy_curve(event, self.relation).epsilon(delta)
