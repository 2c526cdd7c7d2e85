"""The spending report of a ledger: who spent what, and what is left."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from textwrap import fill

from numpyro_dp.accounting.admission import charged
from numpyro_dp.accounting.budget import Budget
from numpyro_dp.accounting.curve import privacy_curve
from numpyro_dp.accounting.events import ComposedDpEvent, describe
from numpyro_dp.accounting.ledger.book import Book
from numpyro_dp.accounting.relation import Relation, relation_text
from numpyro_dp.accounting.rounding import rounded_down, rounded_up

_WIDTH = 100


@dataclass(frozen=True)
class SpendingRow:
    """One charge: its label, its event in words, its ε alone, its time and its condition.

    ``drawn`` holds who took a part of a plan, in order; it is None for what is no plan.
    """

    label: str
    event: str
    epsilon: float
    time: str
    condition: str | None
    drawn: tuple[str, ...] | None = None

    def __str__(self) -> str:
        plan = "" if self.drawn is None else f" [plan, drawn by: {', '.join(self.drawn) or 'none'}]"
        condition = f" [if {self.condition}]" if self.condition else ""
        return printable(f"{self.label}: {self.event}{plan}{condition}")


def printable(text: str) -> str:
    """Return one line of ``text``: whoever wrote a label must not steer its reader's screen."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


# Where the words of every report stand, the place that the command prints last.
WORDS = "python -m numpyro_dp words (docs/explanation/ten-words.md)"


def _wrapped(lead: str, text: str) -> str:
    return fill(lead + text, _WIDTH, subsequent_indent=" " * len(lead), break_on_hyphens=False)


def guarantee(budget: Budget, conditions: Sequence[str] = ()) -> str:
    """Return what a budget promises, in words, and what that depends on."""
    said = f"ε = {budget.epsilon:.6g} at δ = {budget.delta:.3g}, however charges were chosen"
    return f"{said}, PROVIDED THAT {'; and that '.join(conditions)}" if conditions else said


def what_is_left(epsilon: float) -> str:
    """Return what is left of a budget, in words: what was charged is printed beside it."""
    return (
        f"ε = {rounded_down(epsilon)} (largest Gaussian event that still fits; ε does not subtract)"
    )


def spent_lines(
    *,
    total: float,
    planned: float,
    count: int,
    opening: int,
    delta: float,
    budget: float | None,
    conditions: tuple[str, ...],
) -> list[tuple[str, str]]:
    """Return what may be said of everything charged, as names and texts.

    :param total: ε that counts against the budget, or of all charges as one list without one.
    :param planned: ε of all charges as one list.
    :param count: number of charges.
    :param opening: how many of them count as one list that was fixed in advance.
    :param delta: the δ of all figures.
    :param budget: the ε that nothing may exceed.
    :param conditions: what all of it depends on.
    """
    at = f"at δ = {delta:.3g}"
    lines: list[tuple[str, str]] = []
    if budget is not None:
        lines.append(("guarantee", guarantee(Budget(budget, delta))))
    spent = f"ε = {rounded_up(total)} {at}"
    later = count - max(opening, 1)
    if later > 0 and budget is not None:
        lines.append(
            (
                "charged",
                f"{spent} (first entry or plan exactly, {later} later as Gaussians; ε = "
                f"{rounded_up(planned)} had all been planned)",
            )
        )
    elif later > 0:
        lines.append(
            (
                "counted",
                f"{spent} for a list of charges fixed in advance; if one was chosen from earlier "
                "results, no ε is stated: give a budget",
            )
        )
    else:
        lines.append(("counted" if budget is None else "charged", spent))
    if opening > 1:
        lines.append(
            (
                "provided that",
                f"its first {opening} charges, made under an older rule, were fixed in advance",
            )
        )
    if conditions:
        reasons = printable("; and if ".join(conditions))
        lines = [(name, f"{text}, if {reasons}") for name, text in lines]
        lines.insert(0, ("in all", "ε = ∞ without conditions"))
    return lines


@dataclass(frozen=True)
class SpendingReport:
    """Everything a ledger holds, for people.

    :param rows: the charges, in order.
    :param total: ε of all of them together at ``delta``, as it counts against the budget; under the
        conditions of the rows, if any.
    :param planned: ε of all of them at ``delta``, had they been one list fixed in advance.
    :param opening: how many of the first charges count as such a list.
    :param delta: the δ of every figure.
    :param relation: the neighbouring relation of every figure.
    :param budget: the ε that may be spent in all, None without a limit.
    :param left: the largest ε whose Gaussian event still fits.
    :param path: the ledger's file, None in memory.

    **Privacy.** A function of charged events, the budget and the callers' labels.
    """

    rows: tuple[SpendingRow, ...]
    total: float
    planned: float
    opening: int
    delta: float
    relation: Relation
    budget: float | None
    left: float
    path: str | None

    @property
    def conditions(self) -> tuple[str, ...]:
        """Every condition that the total depends on, once each."""
        found = (row.condition for row in self.rows if row.condition is not None)
        return tuple(dict.fromkeys(found))

    def _lines(self) -> list[tuple[str, str]]:
        limit = (
            "no budget: nothing is refused; every ε here is"
            if self.budget is None
            else f"ε = {self.budget:.6g}"
        )
        lines = [
            ("ledger", self.path or "in memory"),
            ("relation", relation_text(self.relation)),
            ("budget", f"{limit} at δ = {self.delta:.3g}"),
        ]
        lines += spent_lines(
            total=self.total,
            planned=self.planned,
            count=len(self.rows),
            opening=self.opening,
            delta=self.delta,
            budget=self.budget,
            conditions=self.conditions,
        )
        if self.budget is not None:
            lines.append(("left", what_is_left(self.left)))
        return lines

    def __str__(self) -> str:
        lines = [_wrapped(f"{name:<14}", text) for name, text in self._lines()]
        words = _wrapped(f"{'words':<14}", WORDS)
        if not self.rows:
            return "\n".join([*lines, "nothing was charged", words])
        lines.append("ε alone   time (UTC)           charge")
        for row in self.rows:
            lines.append(_wrapped(f"{rounded_up(row.epsilon):<9} {row.time[:19]:<20} ", str(row)))
        return "\n".join([*lines, words])

    def _repr_html_(self) -> str:
        head = "".join(
            f"<tr><th>{escape(name)}</th><td colspan='2'>{escape(text)}</td></tr>"
            for name, text in self._lines()
        )
        body = "".join(
            f"<tr><td>{escape(str(row))}</td><td>{rounded_up(row.epsilon)}</td>"
            f"<td>{escape(row.time[:19])}</td></tr>"
            for row in self.rows
        )
        titles = "<tr><th>charge</th><th>ε alone</th><th>time (UTC)</th></tr>"
        return f"<table>{head}{titles}{body}</table><p>{escape(WORDS)}</p>"


def spending(
    book: Book,
    budget: Budget | None,
    relation: Relation,
    delta: float,
    *,
    left: float,
    path: Path | None,
) -> SpendingReport:
    """Return the report of ``book`` at ``delta``, which is that of the ``budget`` if there is one.

    :param left: the largest ε whose Gaussian event still fits.
    :param path: the ledger's file, None in memory.
    """
    total = privacy_curve(book.event, relation).epsilon(delta)
    rows = tuple(
        SpendingRow(
            entry.label,
            describe(entry.event),
            privacy_curve(ComposedDpEvent([entry.event]), relation).epsilon(delta),
            entry.time,
            entry.condition,
            tuple(d.label for d in book.draws if d.plan == entry.id) if entry.planned else None,
        )
        for entry in book.entries
    )
    return SpendingReport(
        rows=rows,
        total=total if budget is None else charged(book.curves(relation), budget),
        planned=total,
        opening=book.opening,
        delta=delta,
        relation=relation,
        budget=None if budget is None else budget.epsilon,
        left=left,
        path=None if path is None else str(path),
    )
