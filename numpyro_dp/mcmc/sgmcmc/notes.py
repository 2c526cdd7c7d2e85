"""Sentences that several kernels say about their draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Note", "hotter_than", "in_one_line", "raised_temperature"]

# What counts as no more than asked for, although it was computed in floating point.
_ROUNDING = 1 + 1e-9


class Note(NamedTuple):
    """What is to be known of some draws.

    - **text**: a sentence for the report, with the remedy.
    - **sign**: what a table of the draws says of it, after "these draws".
    """

    text: str
    sign: str


def hotter_than(reached: float, temperature: float) -> bool:
    """Whether privacy noise at this temperature exceeds what a sampler asks for."""
    return reached > temperature * _ROUNDING


def raised_temperature(reached: float, temperature: float, remedy: str) -> tuple[Note, ...]:
    """What to say when the privacy noise exceeds the noise that a sampler asks for.

    :param reached: temperature at which the privacy noise alone would put the draws.
    :param temperature: the one that was asked for.
    :param remedy: which argument would mend it, and how.
    :returns: nothing, or one note.
    """
    if not hotter_than(reached, temperature):
        return ()
    wide = f"{math.sqrt(reached / temperature):.3g}"
    text = (
        f"The privacy noise exceeds the Langevin noise of this step size: the draws are at "
        f"temperature {reached:.3g} instead of {temperature:g} and spread too widely by "
        f"a factor {wide}. {remedy} would be free of this."
    )
    return (Note(text, f"are {wide} times too wide (temperature {reached:.3g})"),)


def in_one_line(notes: Sequence[str], signs: Sequence[str]) -> str:
    """How many notes a report has, and what they say of the draws; empty where there are none."""
    if not notes:
        return ""
    count = f"{len(notes)} note{'' if len(notes) == 1 else 's'}: see .privacy"
    return f"{count} (these draws {'; '.join(signs)})" if signs else count
