"""The accountant: one budget, one relation, one ledger; nothing is released before its charge."""

import math
import os
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from numpyro_dp import _validate
from numpyro_dp.accounting.admission import admits, charged
from numpyro_dp.accounting.advice import largest_left, refusal
from numpyro_dp.accounting.budget import DEFAULT_DELTA, Budget
from numpyro_dp.accounting.curve import PrivacyCurve, privacy_curve
from numpyro_dp.accounting.events import (
    ComposedDpEvent,
    DpEvent,
    describe,
    from_json,
    to_json,
)
from numpyro_dp.accounting.ledger.book import Book, Entry, Ledger, MemoryLedger
from numpyro_dp.accounting.ledger.file import FileLedger
from numpyro_dp.accounting.plan_steps import holds, planned_entry, planned_list, unused
from numpyro_dp.accounting.relation import Relation, check_relation
from numpyro_dp.accounting.spending import SpendingReport, spending
from numpyro_dp.errors import BudgetExceededError, LedgerError

_LONGEST_LABEL, _LONGEST_CONDITION = 200, 2000


class Accountant:
    """Enforces a privacy budget over everything that is released from one data set.

    :param budget: what may be spent in all; None counts without a limit.
    :param path: a file for the ledger, shared between processes and kept after crashes; None keeps
        it in memory. An existing ledger opened without a budget keeps its own budget and relation.
    :param relation: the neighbouring relation of every guarantee: ``"zero_out"``, ``"replace_one"``
        or ``"add_remove"``.
    :param allow_conditional: whether charges whose privacy depends on a condition are accepted
        against a budget.
    :raises LedgerError: when the file is foreign, damaged, or fixed to other terms.
    :raises ValueError: when an argument is out of range.

    **Privacy.** A charge is on disk before ``charge`` returns and is never taken back. Charges may
    be chosen from earlier results: whatever is chosen, everything together stays within the budget
    at the ledger's δ. Later charges cost a few per cent more than if they had been planned, and
    heavy ones more: charge what you know in advance as one ``plan``. Without a budget only a list
    of charges that was fixed in advance has an ε. Without any δ, δ is 1e-6.

    **References.** The rule and its proof in outline: ``numpyro_dp.accounting.admission``.

    **Example**::

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
        return self._ledger.read().entries

    @property
    def releases(self) -> int:
        """How many charges and draws from plans there were so far; a plan by itself is none."""
        book = self._ledger.read()
        return sum(not entry.planned for entry in book.entries) + len(book.draws)

    def charge(self, event: DpEvent, *, label: str, condition: str | None = None) -> None:
        """Record ``event`` before it happens, or refuse it.

        :param event: everything that will be released, as one event.
        :param label: who asks; a short name for reports, one printable line.
        :param condition: what the privacy of this event depends on, in words; None when nothing.
        :raises BudgetExceededError: when the charge would exceed the budget, or when it is
            conditional or not private and there is a budget. Nothing was charged.
        :raises ValueError: when the event has no privacy statement under this relation.
        :raises LedgerError: when the ledger cannot be read or written; nothing was charged.
        """
        self._append(event, label, condition, planned=False)

    def plan(
        self, events: Sequence[DpEvent], *, label: str, condition: str | None = None
    ) -> "ChargePlan":
        """Charge a list of releases that is fixed now, at once; take them from it one by one later.

        What is known in advance costs less together: a plan counts as one list, whatever order its
        parts are then released in, and however that order is chosen. What is never used stays
        charged.

        :param events: what may be released.
        :param label: as for ``charge``.
        :param condition: as for ``charge``; for every part.
        :returns: The plan, to be passed wherever ``accountant=`` is taken.
        :raises BudgetExceededError: as for ``charge``, for all of ``events`` together.
        :raises ValueError: when an event has no privacy statement, or the list is empty.
        :raises LedgerError: as for ``charge``.

        **Example**::

            >>> from numpyro_dp.accounting.events import GaussianDpEvent
            >>> accountant = Accountant(Budget(epsilon=1.0, delta=1e-5))
            >>> first, second = GaussianDpEvent(6.0), GaussianDpEvent(8.0)
            >>> plan = accountant.plan([first, second], label="two looks")
            >>> plan.charge(second, label="the second one first")
            >>> plan.fits(second), plan.fits(first)
            (False, True)
        """
        number = self._append(planned_list(events), label, condition, planned=True)
        return ChargePlan(self, self.entries[number - 1])

    @property
    def plans(self) -> tuple["ChargePlan", ...]:
        """Every plan in the ledger, also those that other processes made."""
        return tuple(ChargePlan(self, entry) for entry in self.entries if entry.planned)

    def fits(self, event: DpEvent) -> bool:
        """Return whether ``event`` could be charged now; nothing is charged.

        :raises ValueError: when the event has no privacy statement under this relation.
        """
        return self._admits(self._ledger.read(), from_json(to_json(event)))

    def epsilon(self, delta: float | None = None) -> float:
        """Return ε of everything charged, for a list of charges that was fixed in advance.

        Where charges were chosen from earlier results, the budget is what is guaranteed, at its
        own δ and nowhere else.

        :param delta: δ in (0, 1); None for the budget's, or 1e-6 without one.
        :returns: At the δ of a budget, what counts against it: never more than the budget.
            Elsewhere, and without a budget, ε of all charges as one list. Infinite once a
            conditional entry was recorded, since nothing holds without its condition.
        """
        book = self._ledger.read()
        at = self.stated_delta if delta is None else delta
        if book.conditions:
            return math.inf
        total = privacy_curve(book.event, self.relation)
        if self.budget is None or at > self.budget.delta:
            return total.epsilon(at)
        counted = charged(book.curves(self.relation), self.budget)
        if at == self.budget.delta:
            return counted
        return max(total.epsilon(at), counted)

    def delta(self, epsilon: float) -> float:
        """Return δ of all charges as one list at ``epsilon`` ≥ 0; 1 once an entry is conditional.

        As ``epsilon`` of another δ than the budget's: for a list that was fixed in advance.
        """
        book = self._ledger.read()
        total = privacy_curve(book.event, self.relation).delta(epsilon)
        return 1.0 if book.conditions else total

    def remaining(self) -> float:
        """Return the largest ε whose plain Gaussian event at the ledger's δ still fits.

        :returns: ε, rounded down by at most a thousandth; 0 when nothing fits, infinite without a
            budget. Budgets do not subtract: this is not budget minus spent.
        """
        if self.budget is None:
            return math.inf
        return largest_left(self._ledger.read().curves(self.relation), self.budget)

    def report(self, *, delta: float | None = None) -> SpendingReport:
        """Return who spent what and what is left; ``str`` and notebooks show it as text.

        :param delta: δ of every figure, such as that of the runs; only of a ledger without budget,
            which states 1e-6 otherwise.
        :raises ValueError: ``delta`` is no δ, or is not the budget's.
        """
        at = self.stated_delta if delta is None else _validate.rate("delta", delta)
        if self.budget is not None and at != self.budget.delta:
            raise ValueError(
                f"what is left of a budget holds at its own δ ({self.budget.delta:.3g}): leave "
                f"delta out, or ask accountant.epsilon(delta={at:.3g})"
            )
        book, left = self._ledger.read(), self.remaining()
        return spending(book, self.budget, self.relation, at, left=left, path=self.path)

    def _append(self, event: DpEvent, label: str, condition: str | None, *, planned: bool) -> int:
        """Charge ``event`` and return the number of its entry."""
        _validate.one_line("label", label, _LONGEST_LABEL)
        if condition is not None:
            _validate.one_line("condition", condition, _LONGEST_CONDITION)
        # What is checked must be what is stored, to the last bit.
        stored = from_json(to_json(event))
        self._check_kind(self._curve(stored), label, condition)
        # Outside the transaction, so that others wait for a look-up only.
        self._admits(self._ledger.read(), stored)
        seen: list[Book] = []

        def admit(book: Book) -> bool:
            seen[:] = [book]
            return self._admits(book, stored)

        if not self._ledger.append(label, stored, condition, admit, planned=planned):
            self._refuse(seen[0], stored, label)
        return len(seen[0].entries) + 1

    def _curve(self, event: DpEvent) -> PrivacyCurve:
        return privacy_curve(ComposedDpEvent([event]), self.relation)

    def _admits(self, book: Book, event: DpEvent) -> bool:
        curve = self._curve(event)
        return self.budget is None or admits((*book.curves(self.relation), curve), self.budget)

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

    def _refuse(self, book: Book, event: DpEvent, label: str) -> NoReturn:
        budget = self.budget
        if budget is None:
            raise BudgetExceededError(f"{label!r} was refused by the ledger; nothing was charged")
        raise BudgetExceededError(refusal(label, event, book, budget, self.relation))

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


class ChargePlan(Accountant):
    """Releases that were charged together in advance; made by ``Accountant.plan``.

    It is taken wherever an accountant is, and shares its ledger: processes that open one ledger
    draw from the same plans. ``charge`` takes a part out of what was planned and costs nothing
    more; all else is as in the ledger.

    **Privacy.** All of it was charged when the plan was made, used or not; a part is drawn once.
    """

    def __init__(self, accountant: Accountant, entry: Entry) -> None:
        self._ledger = accountant._ledger
        self._allow_conditional = accountant._allow_conditional
        self._entry = entry

    @property
    def label(self) -> str:
        """The label of the plan."""
        return self._entry.label

    @property
    def unused(self) -> DpEvent:
        """What was not taken yet."""
        return unused(self._ledger.read(), self._entry).event()

    def charge(self, event: DpEvent, *, label: str, condition: str | None = None) -> None:
        """Take ``event`` out of the plan before it happens, or refuse it.

        :param event: a planned event, several of them, or fewer repetitions of one.
        :param label: who asks.
        :param condition: what the privacy of this event depends on; it must be the plan's own.
        :raises BudgetExceededError: when the plan does not hold it, or not any more. Nothing was
            taken.
        :raises LedgerError: when the ledger cannot be read or written; nothing was taken.
        """
        _validate.one_line("label", label, _LONGEST_LABEL)
        stored = self._checked(event)
        planned = planned_entry(self._ledger.read(), self._entry)
        if condition is not None and condition != planned.condition:
            raise BudgetExceededError(
                f"{label!r} is private only if {condition}, which the plan {planned.label!r} does "
                "not say: make the plan with this condition="
            )
        if not self._ledger.draw(
            self._entry.id, label, stored, lambda book: holds(book, self._entry, stored)
        ):
            raise BudgetExceededError(
                f"{label!r} asks for {describe(stored)}, which the plan {planned.label!r} does not "
                f"hold any more or never did; unused in it: {describe(self.unused)}. Nothing was "
                "taken. Ask for a part of that with constants equal to the last digit (of a run, "
                "its own event from a rehearsal, distances included), or charge this to the "
                "accountant itself"
            )

    def fits(self, event: DpEvent) -> bool:
        """Return whether ``event`` could be taken out of the plan now; nothing is taken."""
        return holds(self._ledger.read(), self._entry, self._checked(event))

    def plan(
        self, events: Sequence[DpEvent], *, label: str, condition: str | None = None
    ) -> "ChargePlan":
        """Refuse: a plan was fixed when it was made.

        :raises ValueError: always.
        """
        raise ValueError("a plan takes no further plans: ask the accountant that made it")

    def _checked(self, event: DpEvent) -> DpEvent:
        """What is taken must have a statement of its own, as what is charged."""
        stored = from_json(to_json(event))
        self._curve(stored)
        return stored

    def __repr__(self) -> str:
        return f"ChargePlan({self.label!r}, unused={describe(self.unused)!r})"

    def __reduce__(self) -> tuple[object, ...]:
        if self.path is None:
            raise pickle.PicklingError(
                "a plan whose ledger is in memory cannot be copied or pickled: each copy would "
                "use it again. Give the accountant a file with path="
            )
        return (_reopen_plan, (str(self.path), self._allow_conditional, self._entry))


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


def _reopen_plan(path: str, allow_conditional: bool, entry: Entry) -> ChargePlan:
    return ChargePlan(_reopen(path, allow_conditional), entry)
