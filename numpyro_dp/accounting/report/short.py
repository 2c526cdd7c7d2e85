"""A privacy report on one screen: what is to be done first, then ε with all that it depends on."""

import math
from collections.abc import Iterator, Sequence
from html import escape
from textwrap import shorten, wrap

from numpyro_dp.accounting.report import render
from numpyro_dp.accounting.report.facts import Statement
from numpyro_dp.accounting.rounding import rounded_up
from numpyro_dp.accounting.spending import printable

LINES = 20
WIDTH = 100
_NAME = 15
# Lines that notes have however much an ε depends on, the most of a further fact, and how much of a
# note is a beginning.
_NOTES = 4
_FACT = 3
_BEGINNING = 2
_FULL = ".full()"
_POINTER = (
    "more",
    ".full() has every line; python -m numpyro_dp words (docs/explanation/ten-words.md)",
)
# Name and lines of a fact, without the name's column.
_Row = tuple[str, list[str]]


def text(report: Statement) -> str:
    """Return at most ``LINES`` lines, or more where conditions and unit alone are as long."""
    lines = [
        f"{name if number == 0 else '':<{_NAME}}{line}"
        for name, fact in _rows(report)
        for number, line in enumerate(fact)
    ]
    return "\n".join(lines)


def notes_alone(notes: Sequence[str], lines: int, where: str) -> str:
    """Return notes in so many lines, each of which is begun.

    :param where: what shows the rest.
    """
    rows = _shortened(notes, lines, where)
    return "\n".join(
        f"{name if number == 0 else '':<6}{line}"
        for name, note in rows
        for number, line in enumerate(note)
    )


def html(report: Statement) -> str:
    """Return the same as an HTML fragment, with everything else folded away; texts are escaped."""
    rows = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(' '.join(fact))}</td></tr>"
        for name, fact in _rows(report)
    )
    everything = f"<details><summary>everything</summary>{render.html(report)}</details>"
    return f"<div><table>{rows}</table>{everything}</div>"


def _rows(report: Statement) -> list[_Row]:
    # ε, and what it is nothing without, is never cut: it is laid out first.
    core = [_row(name, fact) for name, fact in _guarantee(report)]
    pointer = _row(*_POINTER)
    left = LINES - _height(core) - _height([pointer])
    notes = list(_shortened(report.notes, max(left, _NOTES)))
    left -= _height(notes)
    facts: list[_Row] = []
    for name, fact in _facts(report):
        row = _cut(_row(name, fact), _FACT)
        if _height([row]) <= left:
            facts.append(row)
            left -= _height([row])
    return [*notes, *core, *facts, pointer]


def _guarantee(report: Statement) -> list[tuple[str, str]]:
    conditions = "; and that ".join(report.conditions)
    provided = f", PROVIDED THAT {conditions}" if report.conditions else ""
    refuted = "NOT differentially private: " if report.epsilon == math.inf else ""
    said = f"{refuted}{render.pair(report)} ({report.variant}){provided}"
    several = len(report.events)
    lines = [
        ("privacy", said),
        (
            "unit",
            f"{report.unit or 'not stated'} (a person who owns several is protected less)",
        ),
        ("relation", report.relation_text),
    ]
    if report.given:
        lines.append(("not in this ε", "; ".join(report.given)))
    if several > 1:
        lines.append(("charges", f"ε is of {several} charges {render.LISTED}"))
    return lines


def _facts(report: Statement) -> list[tuple[str, str]]:
    """What else is worth a look, the most telling first."""
    ledger = () if report.ledger_epsilon is None else (("whole ledger", render.ledger(report)),)
    certainty = rounded_up(report.attacker_certainty, 3)
    return [
        *ledger,
        ("computed", render.computed(report)),
        ("released", "; ".join(report.released) or "nothing"),
        ("assumed public", "; ".join(report.assumed_public) or "nothing"),
        ("attack risk", f"a guess from even odds is right with probability ≤ {certainty}"),
        ("mechanism", report.mechanism),
    ]


def _shortened(notes: Sequence[str], room: int, where: str = _FULL) -> Iterator[_Row]:
    """The notes in ``room`` lines; what of them is missing is said, and ``where`` it stands."""
    rows = [_row("note", note) for note in notes]
    most = max([len(lines) for _, lines in rows], default=0)
    # Every note begins, before one of them is told to its end.
    while most > _BEGINNING and _height([_cut(row, most) for row in rows]) > room:
        most -= 1
    for number, row in enumerate(rows):
        later = len(rows) - number - 1
        left = room - bool(later)
        if left <= 0:
            yield "", [f"… {later + 1} more notes: {where}"]
            return
        shown = _cut(row, min(most, left), where)
        room -= _height([shown])
        yield shown


def _cut(row: _Row, most: int, where: str = _FULL) -> _Row:
    name, lines = row
    if len(lines) <= most:
        return row
    cut = f" … [more: {where}]"
    room, last = WIDTH - _NAME - len(cut), lines[most - 1]
    # One word without an end cannot be shortened by words.
    kept = shorten(last, room, placeholder="", break_on_hyphens=False) or last[:room]
    return name, [*lines[: most - 1], kept + cut]


def _row(name: str, fact: str) -> _Row:
    # Words and labels are other people's: none of them begins a line of its own, or moves a cursor.
    one_line = printable(" ".join(fact.split()))
    return name, wrap(one_line, WIDTH - _NAME, break_on_hyphens=False) or [""]


def _height(rows: Sequence[_Row]) -> int:
    return sum(len(lines) for _, lines in rows)
