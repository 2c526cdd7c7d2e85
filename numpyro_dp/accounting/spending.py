"""The spending report of a ledger: who spent what, and what is left."""

from dataclasses import dataclass
from html import escape

from numpyro_dp.accounting.figures import rounded_down, rounded_up
from numpyro_dp.accounting.relation import Relation, relation_text

__all__ = ["SpendingReport", "SpendingRow"]


@dataclass(frozen=True)
class SpendingRow:
    """One charge: its label, its event in words, its ε alone, its time and its condition."""

    label: str
    event: str
    epsilon: float
    time: str
    condition: str | None


@dataclass(frozen=True)
class SpendingReport:
    """Everything a ledger holds, for people.

    Args:
        rows: the charges, in order.
        total: ε of all of them together at ``delta``; under the conditions of the rows, if any.
        delta: the δ of every figure.
        relation: the neighbouring relation of every figure.
        budget: the ε that may be spent in all, None without a limit.
        left: the largest ε whose Gaussian event still fits.
        path: the ledger's file, None in memory.
    """

    rows: tuple[SpendingRow, ...]
    total: float
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
        if self.conditions:
            lines.append(("spent", "ε = ∞ without conditions"))
            reasons = "; and if ".join(self.conditions)
            total = f"ε = {rounded_up(self.total)} at δ = {self.delta:.3g}, if {reasons}"
            lines.append(("conditionally", total))
        else:
            lines.append(("spent", f"ε = {rounded_up(self.total)} at δ = {self.delta:.3g}"))
        if self.budget is not None:
            lines.append(
                ("left", f"ε = {rounded_down(self.left)} (largest Gaussian event that still fits)")
            )
        return lines

    def __str__(self) -> str:
        lines = [f"{name:<14}{text}" for name, text in self._lines()]
        if not self.rows:
            return "\n".join([*lines, "nothing was charged"])
        lines.append("ε alone   time (UTC)           charge")
        for row in self.rows:
            condition = f" [if {row.condition}]" if row.condition else ""
            lines.append(
                f"{rounded_up(row.epsilon):<9} {row.time[:19]:<20} {row.label}: {row.event}"
                f"{condition}"
            )
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        head = "".join(
            f"<tr><th>{escape(name)}</th><td colspan='3'>{escape(text)}</td></tr>"
            for name, text in self._lines()
        )
        body = "".join(
            f"<tr><td>{escape(row.label)}</td><td>{escape(row.event)}</td>"
            f"<td>{rounded_up(row.epsilon)}</td><td>{escape(row.time[:19])}"
            f"{escape(' if ' + row.condition) if row.condition else ''}</td></tr>"
            for row in self.rows
        )
        titles = "<tr><th>charge</th><th>event</th><th>ε alone</th><th>time (UTC)</th></tr>"
        return f"<table>{head}{titles}{body}</table>"
