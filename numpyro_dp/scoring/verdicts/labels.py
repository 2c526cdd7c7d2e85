"""What a user calls coordinates, such as ``w[age]``, in notes and in NumPyro's table."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from numpyro_dp.accounting.spending import printable
from numpyro_dp.model.names import coordinates_of, labelled

# NumPyro's row is a name and seven numbers, of ten characters each.
_NUMBERS = 7 * 10


def renamed(draws: Any, labels: Mapping[str, Sequence[Any]]) -> dict[str, str]:
    """By the name of a coordinate what its user calls it; of other sites its own.

    :param draws: by site, leading axes chain and draw.
    :raises ValueError: for labels of a site that there is not, or of another number.
    """
    shapes = {site: np.shape(rows)[2:] for site, rows in draws.items()} if _named(draws) else {}
    if not _named(labels):
        raise ValueError('labels must give names by site, as in {"w": ["age", "income"]}')
    found = {name: name for name in coordinates_of(shapes)}
    for site, given in labels.items():
        if site not in shapes:
            there = ", ".join(map(repr, shapes))
            raise ValueError(f"labels names {site!r}, which has no draws; sites: {there}")
        names, shape = labelled(site, shapes[site], given), shapes[site]
        words = [printable(" ".join(name.split())) for name in names]
        found |= zip(coordinates_of({site: shape}), words, strict=True)
    return found


def _named(given: Any) -> bool:
    return isinstance(given, Mapping)


def in_text(text: str, named: Mapping[str, str]) -> str:
    """A note with these names, in which no blank ends a sentence."""
    if not named:
        return text
    # Longest first: `w[0]` is the end of `scope/w[0]`, too.
    known = "|".join(map(re.escape, sorted(named, key=len, reverse=True)))
    return re.sub(rf"(?<!\w)(?:{known})(?!\w)", lambda at: named[at[0]].replace(" ", "\xa0"), text)


def in_table(lines: Sequence[str], named: Mapping[str, str]) -> list[str]:
    """Lines of NumPyro's table with these names, its first column as wide as they are."""
    header = next((line for line in lines if line.split()[:1] == ["mean"]), "")
    if not named or not header:
        return list(lines)
    width = len(header) - _NUMBERS
    names = [line[:width].strip() for line in lines]
    shown = [named.get(name, name) for name in names]
    wide = max(width, *(len(name) for name in named.values()))
    return [
        f"{name:>{wide}}{line[width:]}" if len(line) >= len(header) else line
        for name, line in zip(shown, lines, strict=True)
    ]
