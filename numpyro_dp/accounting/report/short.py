"""A privacy report on one screen: what is to be done first, then ε with all that it depends on."""

import math
import re
from collections.abc import Sequence
from html import escape
from itertools import accumulate
from textwrap import wrap

from numpyro_dp.accounting.report import render
from numpyro_dp.accounting.report.facts import Statement
from numpyro_dp.accounting.rounding import rounded_up
from numpyro_dp.accounting.spending import WORDS, printable

LINES = 20
WIDTH = 100
_NAME = 15
# Lines that notes have however much an ε depends on, the most of a further fact, and the least of a
# note: what is wrong, and what to do.
_NOTES = 4
_FACT = 3
_LEAST = 2
_FULL, _CUT = ".full()", " …"
# What to do is the last sentence of a note.
_SENTENCE = re.compile(r"(?<=\.) (?=[A-Z])")
# Where a sentence may end before its end; less than so much of it says nothing, as a rank alone.
_CLAUSE, _SAYS = re.compile(r"(?<=[;:,]) | (?=\()"), 16
_POINTER = ("more", f".full() has every line; {WORDS}")
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
    """Return notes in so many lines, each of which says what is wrong and what to do.

    :param where: what shows the rest.
    """
    rows = _shortened(notes, lines, where, pointed=True)
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
    notes = _shortened(report.notes, max(left, _NOTES))
    left -= _height(notes)
    facts: list[_Row] = []
    for name, fact in _facts(report):
        row = _ended(_row(name, fact), _FACT)
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


def _shortened(
    notes: Sequence[str], room: int, where: str = _FULL, *, pointed: bool = False
) -> list[_Row]:
    """The notes in ``room`` lines; how many of them are left out is said, and ``where`` they stand.

    :param pointed: say ``where`` too if all of them are there and one is cut.
    """
    rows = [_row("note", note) for note in notes]
    if _height(rows) <= room:
        return rows
    least = sum(min(len(lines), _LEAST) for _, lines in rows)
    room -= pointed or least > room
    most = max(len(lines) for _, lines in rows)
    # Of every note the least, before one of them is told to its end.
    while most > _LEAST and sum(min(len(lines), most) for _, lines in rows) > room:
        most -= 1
    heights = [min(len(lines), most) for _, lines in rows]
    told = sum(reached <= room for reached in accumulate(heights))
    spare, shown = room - sum(heights[:told]), []
    # What is left is for the first, which are the most harmful.
    for row, height in zip(rows, heights[:told], strict=False):
        shown.append(_cut(row, height + spare))
        spare -= _height(shown[-1:]) - height
    left = len(rows) - told
    if pointed or left:
        more = f"{left} more note{'s' * (left > 1)}" if left else "in full"
        shown.append(("", [f"… {more}: {where}"]))
    return shown


def _cut(row: _Row, most: int) -> _Row:
    """A note without its middle: what to do, which stands last, begins a line of its own.

    What stands of either are whole sentences, or clauses of one.
    """
    name, lines = row
    *found, remedy = _SENTENCE.split(" ".join(lines))
    if len(lines) <= most or not found:
        return _ended(row, most)
    last = _row(name, remedy)
    # More lines than half of them only where what to do is told to its end.
    _, begun = _ended(_row(name, " ".join(found)), max(most - _height([last]), most // 2, 1))
    return name, begun + _ended(last, most - len(begun))[1]


def _ended(row: _Row, most: int) -> _Row:
    name, lines = row
    return (name, _begun(" ".join(lines), most)) if len(lines) > most else row


def _begun(text: str, most: int) -> list[str]:
    """As many whole sentences as go into ``most`` lines, or clauses where none does."""
    longest = text[: most * (WIDTH - _NAME)]
    for end in (_SENTENCE, _CLAUSE):
        for found in reversed([*end.finditer(longest)]):
            kept = longest[: found.start()]
            # Nothing ends within brackets.
            if len(kept) < _SAYS or kept.count("(") != kept.count(")"):
                continue
            lines = _wrapped(kept.rstrip(";:,") + _CUT)
            if len(lines) <= most:
                return lines
    return _wrapped(text, max_lines=most)


def _row(name: str, fact: str) -> _Row:
    # Words and labels are other people's: none of them begins a line of its own, or moves a cursor.
    one_line = printable(" ".join(fact.split()))
    return name, _wrapped(one_line) or [""]


def _wrapped(text: str, max_lines: int | None = None) -> list[str]:
    return wrap(text, WIDTH - _NAME, break_on_hyphens=False, max_lines=max_lines, placeholder=_CUT)


def _height(rows: Sequence[_Row]) -> int:
    return sum(len(lines) for _, lines in rows)
