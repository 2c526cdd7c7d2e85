"""What the kind of a model alone says against a release of it, before one is paid for."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from numpyro_dp.families.one_gaussian import APART

# A verdict's first words.
DO_NOT_USE, WITH_CARE, WIDE, TO_KNOW = RANKS = ("do not use", "with care", "wide", "to know")
# Where what a verdict is about ends, and its numbers begin; no comma of an index.
_REST = re.compile(r"[:(]|,(?= )")
# A coordinate of a vector.
_ENTRY = re.compile(r"(?P<site>.*)\[(?P<at>\d+)\]")
TOLD_OF = "told of"
# So many coordinates are told by name; of more it is said where they stand.
NAMED = 6
_MOST = ", the most of released.diagnostics.widened"


class Kind(NamedTuple):
    """What verdicts hang on beside the released numbers; public.

    - **mixture**: whether components may trade places; **apart**: whether their priors are too far
      apart for that; **nearness**: in what they are not, in words; **found**: how they lie in what
      was released, in words.
    - **unlike**: sites whose law reads another outcome that is not drawn with them.
    - **itself**: sites whose law reads a number of their own outcome.
    - **partial**: arrays that are read of those records alone who are asked **asked**.
    - **several**: sites of several numbers of a record that the model has as independent.
    - **scatters**: whether a law may have a dispersion beside its mean.
    - **quantile**: sites of an asymmetric Laplace law.
    - **walks**: latents whose entries tell of their neighbours; **shares**: that add up to one.
    - **classes**: whether every outcome is of few values, such as a class or a number of trials.
    - **scales**: latents that may be the dispersion of an outcome's law: each a number that is
      bounded below.
    - **counts**: whether a law is of counts that vary more than Poisson's.
    - **heavy**: whether a law has heavy tails already.
    - **learned**: latents whose law is learned, as that of groups is, from the others.
    - **ordered**: latents whose entries follow each other, as cutpoints do.
    - **scattered**: sites with a gate for zeros over a law that may scatter as widely as it likes.
    """

    mixture: bool = False
    apart: bool = False
    nearness: str = ""
    found: str = ""
    unlike: Sequence[str] = ()
    itself: Sequence[str] = ()
    partial: Sequence[str] = ()
    asked: Sequence[str] = ()
    scattered: Sequence[str] = ()
    several: Sequence[str] = ()
    scatters: bool = False
    quantile: Sequence[str] = ()
    walks: Sequence[str] = ()
    shares: Sequence[str] = ()
    classes: bool = False
    scales: Sequence[str] = ()
    counts: bool = False
    heavy: bool = False
    learned: Sequence[str] = ()
    ordered: Sequence[str] = ()


def foretold(kind: Kind) -> tuple[str, ...]:
    """What the kind of a model alone says against a release of it, before one is paid for."""
    said = [
        (
            kind.mixture and not kind.apart,
            f"{WITH_CARE}: of a mixture the rounds may agree on a place between its modes, "
            f"which no number here tells{kind.nearness and f' ({kind.nearness})'}: before records "
            "are spent on one, ndp.coverage tries it on records made up from the model. "
            f"{kind.found}{APART}",
        ),
        (
            bool(kind.unlike),
            f"{WITH_CARE}: the law of {listed(kind.unlike)} reads another outcome of the record, "
            "which is not drawn with it, so that a clip may move what both tell by some of their "
            "own sds. Pass each outcome as an argument or a column of one, not computed in the "
            "model, that a site observes as it is: a flag that masks others too",
        ),
        (
            bool(kind.itself),
            f"{WITH_CARE}: the law of {listed(kind.itself)} reads a number of its own outcome and "
            "cannot be drawn number after number, so that it stands fixed where others are drawn: "
            "slopes on it lie many of their own sds off, in intervals narrower than NUTS's. "
            "Observe numbers of arguments as they are, of which none reads itself, of a law of "
            "each or a MultivariateNormal",
        ),
        (
            bool(kind.partial),
            f"{WITH_CARE}: {listed(kind.partial)} is read of those records alone who are asked "
            f"{listed(kind.asked)}. Where it is known of every record nothing is wrong. Fit the "
            "parts as two models, each with a share of the budget, where it is known of those "
            "alone (NaN or filled up for others): there the answer is far off",
        ),
        (
            bool(kind.scattered),
            f"{WITH_CARE}: zeros of {listed(kind.scattered)} may come by its gate or by a wide "
            "scatter of its law: where the scatter is great the rounds end between the two, gate, "
            "dispersion and rates several of their own sds off, mostly under no other note. Give "
            "the gate or the dispersion a narrow prior, or leave the gate out",
        ),
        (
            bool(kind.quantile),
            f"{WITH_CARE}: where {listed(kind.quantile)} stands for a quantile of outcomes of "
            "another law, coefficients lie many of their own sds off, mostly under no other "
            "note. Fit a law of the outcomes, and take its quantile by Predictive",
        ),
    ]
    return tuple(text for holds, text in said if holds)


def listed(names: Sequence[str], least_of: str = "") -> str:
    """Names in a row, the first six where there are many; neighbours of a site as a range.

    :param least_of: field of the diagnostics that tells which the others are.
    """
    names = _in_ranges(names)
    # One more takes no more room by its name.
    if len(names) <= NAMED + 1:
        return ", ".join(names)
    where = f" (the least of released.diagnostics.{least_of})" * bool(least_of)
    return f"{', '.join(names[:NAMED])} and {len(names) - NAMED} more{where}"


def site_of(name: str) -> str:
    """Of which site a coordinate is."""
    return name.partition("[")[0]


def counted(names: Sequence[str], widened: np.ndarray) -> str:
    """Which coordinates are widened, by name; of a site with many how many of its own these are."""
    sites = [site_of(name) for name in names]
    sizes, told = Counter(sites), []
    for site, group in groupby(np.flatnonzero(widened), lambda k: sites[k]):
        own = [names[k] for k in group]
        told += own if len(own) <= NAMED else [f"{site} ({len(own)} of {sizes[site]}{_MOST})"]
    return ", ".join(told)


def _in_ranges(names: Sequence[str]) -> list[str]:
    """``a[2]–a[5]`` in place of three or more that follow each other."""
    runs: list[list[str]] = []
    for name in names:
        if not (runs and _follows(runs[-1][-1], name)):
            runs.append([])
        runs[-1].append(name)
    pairs = [[f"{run[0]}–{run[-1]}"] if len(run) > 2 else run for run in runs]
    return [name for pair in pairs for name in pair]


def _follows(one: str, other: str) -> bool:
    first, second = (_ENTRY.fullmatch(name) for name in (one, other))
    if not first or not second or first["site"] != second["site"]:
        return False
    return int(second["at"]) == int(first["at"]) + 1


class Verdict(str):
    """A sentence or more against a result, of which the last says what to do.

    - **coordinates**: of which little was told, or prior and records contradict each other, by
      name, such as ``w[2]``; none where it is about something else.
    """

    coordinates: tuple[str, ...]

    def __new__(cls, text: str, coordinates: Iterable[str] = ()) -> Verdict:
        found = super().__new__(cls, text)
        found.coordinates = tuple(coordinates) or getattr(text, "coordinates", ())
        return found

    @property
    def rank(self) -> str:
        """``do not use``, ``with care``, ``wide`` or ``to know``; empty where it has none."""
        found = self.partition(":")[0]
        return found if found in RANKS else ""


def speaks_against(verdict: str) -> bool:
    """Whether it does, and is not only good to know."""
    return not verdict.startswith(TO_KNOW)


def worst_first(verdicts: Iterable[str]) -> tuple[Verdict, ...]:
    """Verdicts by rank; those of one rank as they were."""
    return tuple(sorted(map(Verdict, verdicts), key=lambda each: RANKS.index(each.rank)))


def beginning(verdict: str) -> str:
    """What a verdict is about, after its rank if it has one, without numbers and remedy."""
    rank, found, rest = verdict.partition(": ")
    if found and rank in RANKS:
        return f"{rank}: {_begun(rest)}"
    return _begun(verdict)


def _begun(text: str) -> str:
    head, *more = _REST.split(text, maxsplit=1)
    # The first of several coordinates is not all of them.
    several = bool(more) and text[len(head)] == "," and TOLD_OF in head
    return f"{head.strip()}{', …' if several else ''}"
