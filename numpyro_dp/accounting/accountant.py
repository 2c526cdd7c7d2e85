"""The accountant: one budget, one relation, one ledger; nothing is released before its charge."""

import math
import os
import pickle
from pathlib import Path
from typing import NoReturn

from numpyro_dp import _validate
from numpyro_dp.accounting.advice import largest_left, noise_that_fits, steps_that_fit
from numpyro_dp.accounting.budget import DEFAULT_DELTA, Budget
from numpyro_dp.accounting.curve import PrivacyCurve, privacy_curve
from numpyro_dp.accounting.events import ComposedDpEvent, DpEvent, describe, from_json, to_json
from numpyro_dp.accounting.figures import rounded_down, rounded_up
from numpyro_dp.accounting.ledger import Entry, FileLedger, Ledger, MemoryLedger
from numpyro_dp.accounting.relation import Relation, check_relation
from numpyro_dp.accounting.spending import SpendingReport, SpendingRow
from numpyro_dp.errors import BudgetExceededError, LedgerError

__all__ = ["Accountant"]


class Accountant:
    """Enforces a privacy budget over everything that is released from one data set.

    Args:
        budget: what may be spent in all; None counts without a limit.
        path: a file for the ledger, shared between processes and kept after crashes; None keeps
            it in memory. An existing ledger opened without a budget keeps its own budget and
            relation.
        relation: the neighbouring relation of every guarantee: ``"zero_out"``, ``"replace_one"``
            or ``"add_remove"``.
        allow_conditional: whether charges whose privacy depends on a condition are accepted
            against a budget.

    Raises:
        LedgerError: when the file is foreign, damaged, or fixed to other terms.
        ValueError: when an argument is out of range.

    Privacy:
        A charge is on disk before ``charge`` returns and is never taken back. Entries compose
        adaptively; ε at the ledger's δ never exceeds the budget. Without any δ, δ is 1e-6.

    References:
        design.md section 5.

    Example:
        >>> from numpyro_dp.accounting.events import GaussianDpEvent
        >>> accountant = Accountant(Budget(epsilon=1.0, delta=1e-5))
        >>> accountant.charge(GaussianDpEvent(10.0), label="mean")
        >>> round(accountant.epsilon(), 3)
        0.341
    """

    def __init__(
        self,
        budget: Budget | None = None,
        *,
        path: str | os.PathLike[str] | None = None,
        relation: Relation = "zero_out",
        allow_conditional: bool = False,
    ) -> None:
        if budget is not None and not isinstance(budget, Budget):
            raise ValueError(f"budget must be a Budget or None, got {_validate.shown(budget)}")
        checked = check_relation(relation)
        self._ledger: Ledger = (
            MemoryLedger(budget, checked) if path is None else FileLedger(path, budget, checked)
        )
        self._allow_conditional = bool(allow_conditional)

    @property
    def budget(self) -> Budget | None:
        """The budget, None when spending is counted without a limit."""
        return self._ledger.budget

    @property
    def relation(self) -> Relation:
        """The neighbouring relation."""
        return self._ledger.relation

    @property
    def path(self) -> Path | None:
        """The ledger's file, None in memory."""
        return self._ledger.path

    @property
    def allow_conditional(self) -> bool:
        """Whether conditional charges are accepted against a budget."""
        return self._allow_conditional

    @property
    def stated_delta(self) -> float:
        """The δ at which this accountant states ε: the budget's, or 1e-6 without one."""
        return DEFAULT_DELTA if self.budget is None else self.budget.delta

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Every charge so far, read afresh from the ledger."""
        return self._ledger.entries()

    def charge(self, event: DpEvent, *, label: str, condition: str | None = None) -> None:
        """Record ``event`` before it happens, or refuse it.

        Args:
            event: everything that will be released, as one event.
            label: who asks; a short name for reports.
            condition: what the privacy of this event depends on, in words; None when nothing.

        Raises:
            BudgetExceededError: when the composed ε at the ledger's δ would exceed the budget,
                or when the charge is conditional or not private and there is a budget. Nothing
                was charged.
            ValueError: when the event has no privacy statement under this relation.
            LedgerError: when the ledger cannot be read or written; nothing was charged.
        """
        if not isinstance(label, str) or not label.strip():
            raise ValueError(f"label must be a non-empty text, got {_validate.shown(label)}")
        if condition is not None and (not isinstance(condition, str) or not condition.strip()):
            raise ValueError("condition must be a non-empty text or None")
        # What is checked must be what is stored, to the last bit.
        stored = from_json(to_json(event))
        self._check_kind(self._curve((), stored), label, condition)
        # Outside the transaction, so that others wait for a look-up only.
        self._admits(self.entries, stored)
        seen: list[tuple[Entry, ...]] = []

        def admit(entries: tuple[Entry, ...]) -> bool:
            seen[:] = [entries]
            return self._admits(entries, stored)

        if not self._ledger.append(label, stored, condition, admit):
            self._refuse(seen[0], stored, label)

    def fits(self, event: DpEvent) -> bool:
        """Return whether ``event`` could be charged now; nothing is charged.

        Raises:
            ValueError: when the event has no privacy statement under this relation.
        """
        return self._admits(self.entries, from_json(to_json(event)))

    def epsilon(self, delta: float | None = None) -> float:
        """Return ε of everything charged.

        Args:
            delta: δ in (0, 1); None for the budget's, or 1e-6 without one.

        Returns:
            ε; infinite once a conditional entry was recorded, since nothing holds without its
            condition.
        """
        entries = self.entries
        at = self.stated_delta if delta is None else delta
        total = self._curve(entries).epsilon(at)
        return math.inf if _conditions(entries) else total

    def delta(self, epsilon: float) -> float:
        """Return δ of everything charged at ``epsilon`` ≥ 0; 1 once an entry is conditional."""
        entries = self.entries
        total = self._curve(entries).delta(epsilon)
        return 1.0 if _conditions(entries) else total

    def remaining(self) -> float:
        """Return the largest ε whose plain Gaussian event at the ledger's δ still fits.

        Returns:
            ε, rounded down by at most a thousandth; 0 when nothing fits, infinite without a
            budget. PLD budgets do not subtract: this is not budget minus spent.
        """
        if self.budget is None:
            return math.inf
        return largest_left(_composed(self.entries), self.budget, self.relation)

    def report(self) -> SpendingReport:
        """Return who spent what and what is left; ``str`` and notebooks show it as text."""
        entries = self.entries
        rows = tuple(
            SpendingRow(
                entry.label,
                describe(entry.event),
                self._curve((), entry.event).epsilon(self.stated_delta),
                entry.time,
                entry.condition,
            )
            for entry in entries
        )
        return SpendingReport(
            rows=rows,
            total=self._curve(entries).epsilon(self.stated_delta),
            delta=self.stated_delta,
            relation=self.relation,
            budget=None if self.budget is None else self.budget.epsilon,
            left=self.remaining(),
            path=None if self.path is None else str(self.path),
        )

    def _curve(self, entries: tuple[Entry, ...], *more: DpEvent) -> PrivacyCurve:
        return privacy_curve(_composed(entries, *more), self.relation)

    def _admits(self, entries: tuple[Entry, ...], event: DpEvent) -> bool:
        curve = self._curve(entries, event)
        return self.budget is None or curve.epsilon(self.budget.delta) <= self.budget.epsilon

    def _check_kind(self, alone: PrivacyCurve, label: str, condition: str | None) -> None:
        if self.budget is None:
            return
        if not alone.private:
            raise BudgetExceededError(
                f"{label!r} asks for a release without privacy (ε = ∞): an accountant with a "
                "budget refuses it. Add noise, or use an accountant without a budget"
            )
        if condition is not None and not self._allow_conditional:
            raise BudgetExceededError(
                f"{label!r} is private only if {condition}: an accountant with a budget refuses "
                "conditional charges unless it was made with allow_conditional=True"
            )

    def _refuse(self, entries: tuple[Entry, ...], event: DpEvent, label: str) -> NoReturn:
        budget = self.budget
        if budget is None:
            raise BudgetExceededError(f"{label!r} was refused by the ledger; nothing was charged")
        spent = _composed(entries)
        asked = self._curve((), event).epsilon(budget.delta)
        composed = self._curve(entries, event).epsilon(budget.delta)
        left = largest_left(spent, budget, self.relation)
        options = [
            steps_that_fit(spent, event, budget, self.relation),
            noise_that_fits(spent, event, budget, self.relation),
        ]
        named = [option for option in options if option is not None]
        remedy = f"What would fit: {', or '.join(named)}." if named else "Nothing of it would fit."
        if left == 0:
            remedy = "The budget is used up."
        raise BudgetExceededError(
            f"{label!r} asks for ε = {rounded_up(asked)} at δ = {budget.delta:.3g} "
            f"({self.relation}); left is ε = {rounded_down(left)}. Together with what was spent "
            "it would come to "
            f"ε = {rounded_up(composed)}, {rounded_up(composed - budget.epsilon)} over the budget "
            f"of {budget.epsilon:.4g}. Nothing was charged. {remedy}"
        )

    def __repr__(self) -> str:
        where = "memory" if self.path is None else str(self.path)
        return f"Accountant({self.budget}, relation={self.relation!r}, ledger={where!r})"

    def __reduce__(self) -> tuple[object, ...]:
        if self.path is None and self.budget is not None:
            # Two copies would each believe in the whole budget.
            raise pickle.PicklingError(
                "an accountant with a budget whose ledger is in memory cannot be copied or "
                "pickled: each copy would spend the budget again. Give it a file with path="
            )
        if self.path is None:
            return (_recounted, (self.relation, self._allow_conditional, self.entries))
        return (_reopen, (str(self.path), self._allow_conditional))


def _reopen(path: str, allow_conditional: bool) -> Accountant:
    if not Path(path).exists():
        # Creating an empty ledger here would forget all that was spent.
        raise LedgerError(f"the ledger {path} of a pickled accountant no longer exists")
    return Accountant(path=path, allow_conditional=allow_conditional)


def _recounted(
    relation: Relation, allow_conditional: bool, entries: tuple[Entry, ...]
) -> Accountant:
    """Return an accountant without a limit that starts from what its original had counted."""
    copy = Accountant(relation=relation, allow_conditional=allow_conditional)
    for entry in entries:
        copy.charge(entry.event, label=entry.label, condition=entry.condition)
    return copy


def _conditions(entries: tuple[Entry, ...]) -> list[str]:
    return [entry.condition for entry in entries if entry.condition is not None]


def _composed(entries: tuple[Entry, ...], *more: DpEvent) -> DpEvent:
    return ComposedDpEvent([*(entry.event for entry in entries), *more])
