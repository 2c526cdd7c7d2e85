"""A ledger in 80 columns, as findings, and as JSON."""

import json
import math
from textwrap import fill

from numpyro_dp.accounting import Entry, relation_text, rounded_up
from numpyro_dp.accounting.events import describe, to_json
from numpyro_dp.accounting.spending import WORDS, printable, spent_lines, what_is_left
from numpyro_dp.cli.snapshot import DELTAS, Snapshot

_WIDTH = 80
_NAME = 15
_SCHEMA = "numpyro_dp.Ledger/1"


def show(ledger: Snapshot) -> tuple[str, int]:
    """Return the budget, the totals and every charge as text of 80 columns, and exit code 0."""
    lines = [_line(name, text) for name, text in _summary(ledger)]
    words = _line("words", WORDS)
    if not ledger.entries:
        return "\n".join([*lines, "", "nothing was charged", "", words]), 0
    width = max(3, len(str(len(ledger.entries))))
    head = f"{'#':>{width}}  {'time (UTC)':<19}  {'ε alone':<9}  charge"
    rows = [_row(ledger, entry, width) for entry in ledger.entries]
    return "\n".join([*lines, "", head, *rows, "", words]), 0


def verify(ledger: Snapshot) -> tuple[str, int]:
    """Return what was found when every charge was recomputed, and 1 if anything is wrong."""
    problems = _problems(ledger)
    lines = [
        _line("ledger", printable(str(ledger.path))),
        _line("digests", f"{len(ledger.entries)} charges, each follows from those before it"),
        _line("budget", _limit(ledger)),
        *[_line(name, text) for name, text in _spent(ledger)],
        *[_line("problem", problem) for problem in problems],
        _line("verdict", f"{len(problems)} problem(s)" if problems else "nothing is wrong"),
    ]
    return "\n".join(lines), 1 if problems else 0


def export(ledger: Snapshot) -> tuple[str, int]:
    """Return everything as JSON, where infinity is the text ``"inf"``, and exit code 0."""
    budget = ledger.budget
    tree = {
        "schema": _SCHEMA,
        "path": str(ledger.path),
        "relation": ledger.relation,
        "budget": None if budget is None else {"epsilon": budget.epsilon, "delta": budget.delta},
        "delta": ledger.delta,
        "conditions": list(ledger.book.conditions),
        "epsilon": _finite(math.inf if ledger.book.conditions else ledger.charged()),
        "epsilon_under_conditions": _finite(ledger.charged()),
        "epsilon_as_one_list": _finite(ledger.total(ledger.delta)),
        "fixed_in_advance": ledger.book.opening,
        "curve": [
            {"delta": delta, "epsilon_under_conditions": _finite(ledger.total(delta))}
            for delta in DELTAS
        ],
        "left": _finite(ledger.left()),
        "entries": [
            {
                "id": entry.id,
                "time": entry.time,
                "label": entry.label,
                "description": describe(entry.event),
                "event": json.loads(to_json(entry.event)),
                "epsilon_alone": _finite(ledger.alone(entry)),
                "condition": entry.condition,
                "planned": entry.planned,
                "versions": json.loads(entry.versions),
            }
            for entry in ledger.entries
        ],
        "draws": [
            {
                "id": draw.id,
                "time": draw.time,
                "plan": draw.plan,
                "label": draw.label,
                "event": json.loads(to_json(draw.event)),
            }
            for draw in ledger.book.draws
        ],
    }
    return json.dumps(tree, indent=2, ensure_ascii=False, allow_nan=False), 0


def _summary(ledger: Snapshot) -> list[tuple[str, str]]:
    others = ", ".join(f"{rounded_up(ledger.total(delta))} at {delta:.0e}" for delta in DELTAS)
    others += "; as one list fixed in advance" if len(ledger.entries) > 1 else ""
    lines = [
        ("ledger", printable(str(ledger.path))),
        ("relation", relation_text(ledger.relation)),
        ("budget", _limit(ledger)),
        *_spent(ledger),
        ("ε at δ", others),
    ]
    if ledger.budget is not None:
        lines.append(("left", what_is_left(ledger.left())))
    return lines


def _limit(ledger: Snapshot) -> str:
    if ledger.budget is None:
        return "none: spending is counted without a limit"
    return f"ε = {ledger.budget.epsilon:.6g} at δ = {ledger.delta:.3g}"


def _spent(ledger: Snapshot) -> list[tuple[str, str]]:
    return spent_lines(
        total=ledger.charged(),
        planned=ledger.total(ledger.delta),
        count=len(ledger.entries),
        opening=ledger.book.opening,
        delta=ledger.delta,
        budget=None if ledger.budget is None else ledger.budget.epsilon,
        conditions=ledger.book.conditions,
    )


def _problems(ledger: Snapshot) -> list[str]:
    found = [
        f"charge {entry.id} is of a kind for which this version has no privacy statement"
        for entry in ledger.unstated
    ]
    if ledger.budget is None:
        return found
    total = ledger.charged()
    if total > ledger.budget.epsilon:
        excess = rounded_up(total - ledger.budget.epsilon)
        found.append(f"the budget is overspent: the total exceeds it by ε = {excess}")
    if ledger.book.conditions:
        found.append("the budget is kept only if the conditions above hold")
    return found


def _row(ledger: Snapshot, entry: Entry, width: int) -> str:
    condition = f" [if {entry.condition}]" if entry.condition else ""
    plan = " [plan]" if entry.planned else ""
    charge = f"{entry.label}: {describe(entry.event)}{plan}{condition}"
    lead = f"{entry.id:>{width}}  {entry.time[:19]:<19}  {rounded_up(ledger.alone(entry)):<9}  "
    return fill(lead + printable(charge), _WIDTH, subsequent_indent=" " * len(lead))


def _line(name: str, text: str) -> str:
    return fill(f"{name:<{_NAME}}{text}", _WIDTH, subsequent_indent=" " * _NAME)


def _finite(value: float) -> float | str:
    return value if math.isfinite(value) else "inf"
