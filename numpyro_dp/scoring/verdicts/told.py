"""Which coordinates the records were hardly heard on, and what is to be done about each kind."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from numpyro_dp.scoring.information import Matrix, Vector
from numpyro_dp.scoring.verdicts.kinds import (
    DO_NOT_USE,
    TO_KNOW,
    TOLD_OF,
    WIDE,
    WITH_CARE,
    Kind,
    Verdict,
    counted,
    listed,
    site_of,
)

# Where no more of a prior's variance than this is taken away, an interval is the prior's; where of
# none more than this, nothing much was told at all.
TOLD, _HALF, _MUCH = 0.2, 0.5, 0.85
# Above this intervals were 1.96 to 5.5 times as wide as NUTS's (64 releases of eight models): the
# clip takes off information too, which no one sees here.
DROWNED = 1.5
# Where information on a coordinate was fewer sds of its own noise than this, which grows with their
# number d, intervals were 1.3 to 5 times as wide as NUTS's, most 1.8 times or more; where it was
# more, of up to 12 coordinates 1.05 to 1.7 times, and of 32 up to 2.4 (rare and dense columns of
# four families, 80 releases). Of few coordinates a tighter bound leaves less, some 5.7√d of all.
_EACH, _AT_LEAST, _AT_MOST = 0.5, 2.0, 3.0
# But where it is more than so many √d, and so large a part of the clearest of all, it was not few
# records: all are told as little.
_ENOUGH, _ALIKE = 2.0, 0.7
# Of what is far less than of most.
_FAR_LESS = 0.6
# Of groups' effects, in √d: below it they were 1.3 to 1.8 times as wide.
_OF_GROUPS = 1.5
# Of a site of one, and at most in √d: more often a dispersion than a rare input, which lay 3 to 5
# of its own sds off (docs/limitations.md).
_SINGLE, _OF_SINGLE = 9.0, 3.0
# So many of a prior's sds from its middle a mean is far out, and so many of what the prior
# foretells of a mean, of which as much is told.
_OUT, _UNLIKELY = 1.0, 2.0
# Where few records speak, how far scores vary is known to .06 to .30; where the truth lies far out
# in the prior and no round found it, to .8 to 2.3 (72 releases).
_SIZES = 0.5
# Of so many coordinates of a site rare levels are a part; where most of them are unheard, their
# columns are. A column this many times as large as the middle one, and this many times an
# intercept, is no level: the root of what is told of it goes by its size (thirty columns in units
# of their own: to a tenth, but for those of which nothing is told).
_COLUMNS, _LARGE, _NO_LEVEL = 4, 5.0, 2.0
_FAR_OUT = (
    "; or widen a fixed prior to the scale of the answer: the truth may lie so far out in it that "
    "no round found it"
)
# Where the scale of a prior, of the outcomes or of columns is likely to be the cause, which no
# merging mends: that of an intercept, a dispersion or of most of what one site holds.
_SCALE = "the scale of the answer, centre and scale outcomes and columns (by public numbers), "
_UNFOUND = ", as where the truth lies so far out that no round found it"
_UNITS = (
    "Centre and scale columns by public numbers (a typical value and a spread that one can state "
    "without a look at the records), give more privacy budget or records, or merge what are levels "
    "of a category"
)
_NOT_A_NUMBER = (
    "; and see that not every record has a NaN in it, as of an empty column: such add nothing"
)
# Priors that are narrowed until rounds arrive are not to be widened too.
_FIRST = ". That the rounds have not arrived may be why: take the remedies of that first"
_MANY = "a column or class of which all are told little"
_RARE = "what few records tell of, as a rare category or answer"
_LAW = ", give groups one law (a hierarchy), which narrows them"
_LAW_OF_LEVELS = ", give a category's levels one law (a hierarchy), which narrows them"


class Told(NamedTuple):
    """What was released of each coordinate, and what is known of it without the records.

    - **names**, **heard**: of the coordinates, and which of them the records' terms read; **kind**:
      of the model; the others as of :class:`~numpyro_dp.scoring.verdicts.trust.Located`.
    """

    names: Sequence[str]
    heard: np.ndarray
    resolved: Vector
    out: Vector
    signal: Vector
    widened: Vector
    groups: Vector | bool
    design: Matrix
    misfit_sd: float
    arrived: bool
    kind: Kind

    @property
    def _sites(self) -> np.ndarray:
        return np.array([site_of(name) for name in self.names])

    @property
    def _several(self) -> np.ndarray:
        """Which are one of several of their site, as a level or group is."""
        return np.array(["[" in name for name in self.names])

    def _named(self, which: np.ndarray) -> list[str]:
        return [self.names[k] for k in np.flatnonzero(which)]

    @property
    def _lost(self) -> np.ndarray:
        return self.heard & ~(self.resolved >= TOLD)  # NaN, too.

    def untold(self, *, rank: str = "", thus: str = "") -> tuple[Verdict, ...]:
        """Which coordinates the records were not heard on, in a sentence; empty where on all.

        :param rank: of the sentence; by default what is known of the size of scores decides.
        :param thus: what follows of it; by default that intervals are the prior's.
        """
        names = self._named(self._lost)
        return tuple(Verdict(text, names) for text in self._untold(rank, thus))

    def _untold(self, rank: str, thus: str) -> tuple[str, ...]:
        heard, lost = self.heard, self._lost
        weak = self._named(lost)
        most = float(np.max(self.resolved, where=heard, initial=0.0))
        if not weak and most >= _MUCH:
            return ()
        # Of rare outcomes few scores vary; where most coordinates were heard some round was near.
        much = np.count_nonzero(heard & (self.resolved >= _MUCH))
        near = self.misfit_sd <= _SIZES or 2 * much > np.count_nonzero(heard)
        # Or where all were told of, if not clearly: of 32 events posteriors were as NUTS's.
        rank = rank or (WIDE if near or (not weak and most > _HALF) else DO_NOT_USE)
        # A law that is learned is as wide as the others make it.
        fixed = (lost & ~np.isin(self._sites, self.kind.learned)).any() or not weak
        far_out = _FAR_OUT * bool(fixed) if self.arrived else _FIRST
        if not weak:
            return (
                f"{rank}: little was told: at most {most:.0%} of the prior's variance of any "
                "coordinate. Give more privacy budget or records where the prior may know as much "
                "as these, as where they tell of few events; fix one of coordinates that repeat "
                f"each other (a softmax with every class free){far_out}",
            )
        one, several = "its interval is that of", "their intervals are those of"
        where = "" if thus else "resolved"  # What adapts has no diagnostics.
        whose, left_to = self._lent_by(lost)
        thus = thus or f"{several if len(weak) > 1 else one} {whose}"
        told = f"next to nothing was {TOLD_OF} {listed(weak, where)}"
        if (lost & np.isin(self._sites, self.kind.ordered)).any():
            return (
                f"{DO_NOT_USE}: {told}: entries of an ordered latent follow each other, so that "
                "others may be far off. Give the steps between them a narrower prior, such as "
                "Normal(0, 1) on the logarithmic scale of OrderedTransform, or merge an answer "
                "that hardly anybody gives",
            )
        found = f"{rank}: {told}: {thus}"
        columns = self.columns(lost) or self._beside_large(lost)
        large = self.large(columns)
        them, more = "them" if len(weak) > 1 else "it", "give more privacy budget or records"
        few = f"{more}, or leave {them} to {left_to}, where few records tell of {them}"
        whole = self._whole(lost)
        # Rare categories are a few among others; all are missed where the scale is wrong.
        every = len(weak) == np.count_nonzero(heard)
        single = (lost & ~self._several).any()
        nobody = _NOT_A_NUMBER * bool(every or rank == DO_NOT_USE)
        if every and columns:
            far = f"{_UNFOUND}. {_UNITS}{_FAR_OUT}{nobody}" if self.arrived else _FIRST
            return (f"{found}{large}{far}",)
        if every or single or (not columns and (whole & ~self._pooled).any()):
            scale = (
                f"Widen priors to {_SCALE}or {more}" if every else f"Give priors on {_SCALE}{few}"
            )
            scale += nobody
            return (f"{found}{large}{f'{_UNFOUND}. {scale}' if self.arrived else _FIRST}",)
        if columns:
            likely = "as of columns in units of their own, or far from nought"
            return (f"{found}, {likely}{large}. {_UNITS}{far_out}",)
        remedy = f"G{few[1:]}" if whole.any() else f"Merge what can be merged, {few}"
        return (f"{found}. {remedy}{far_out}",)

    def _lent_by(self, lost: np.ndarray) -> tuple[str, str]:
        """Whose the intervals of such coordinates are, and what they may be left to."""
        learned = np.isin(self._sites, self.kind.learned)
        if not (lost & learned).any():
            return "the prior", "the prior"
        if (lost & ~learned).any():
            return "the prior (of a group, of its law)", "the prior (to the groups' law)"
        law = "the law that is learned from the others"
        return law, law

    @property
    def _pooled(self) -> np.ndarray:
        """Of which others tell, or which a record touches one of: groups, walks, shares, learned
        laws."""
        kind = self.kind
        others = np.isin(self._sites, [*kind.walks, *kind.shares, *kind.learned])
        return others | np.asarray(self.groups)

    def _whole(self, lost: np.ndarray) -> np.ndarray:
        """Which were lost with more than half of their site."""
        sites = self._sites
        sizes, own = Counter(sites[self.heard]), Counter(sites[lost])
        return lost & np.array([2 * own[site] > sizes[site] for site in sites])

    def columns(self, which: np.ndarray | bool = True) -> list[str]:
        """Sites of columns, more than half of which are such: no rare levels.

        A record touches one of groups, and of a walk or a learned law the others tell.
        """
        sites = self._sites
        columns = self._several & self.heard & ~self._pooled
        sizes, own = (Counter(sites[each]) for each in (columns, columns & which))
        return [str(n) for n in sizes if sizes[n] >= _COLUMNS and 2 * own[n] > sizes[n]]

    def _beside_large(self, lost: np.ndarray) -> list[str]:
        """Sites of columns that lost some, and of which others are far larger."""
        some = {site_of(name) for name in self._named(lost)}
        return [site for site in self.columns() if site in some and self._loud([site])]

    def _loud(self, of: Sequence[str]) -> list[str]:
        """Coordinates of these sites that are of columns far larger than the others."""
        if not of:
            return []
        size, sites = np.linalg.norm(self.design, axis=0), self._sites
        single = self.heard & ~self._several
        # A level is no larger than an intercept. Without one nobody knows whether this is one.
        least = _NO_LEVEL * size[single].max() if single.any() else math.inf
        found = np.zeros(len(size), bool)
        for site in of:
            own = sites == site
            found |= own & (size > max(_LARGE * np.median(size[own]), least))
        return self._named(found)

    def large(self, of: Sequence[str] | None = None) -> str:
        """Which columns seem to be far larger than others of their site; empty where none does.

        :param of: sites; by default all that may be of columns.
        """
        found = listed(self._loud(self.columns() if of is None else of))
        beside = "; others may hide behind them"
        return f" (columns of far larger values, it seems: {found}{beside})" * bool(found)

    @property
    def _few(self) -> np.ndarray:
        """Which few records tell of, though more than nothing."""
        told, dim = self.heard & (self.resolved >= TOLD), len(self.names)
        enough = self.signal > _ENOUGH * math.sqrt(dim)
        alike = enough & (self.signal > _ALIKE * np.max(self.signal))
        # A level or group is one of several coordinates.
        below = np.where(self.groups, _OF_GROUPS * math.sqrt(dim), faint_below(dim))
        below = np.where(self._several, below, min(_SINGLE, _OF_SINGLE * math.sqrt(dim)))
        below = np.where(alike, 0.0, below)
        # Neighbours tell of an entry of a walk: 1.06 to 1.34 times as wide as NUTS's where few did.
        return told & (self.signal < below) & ~np.isin(self._sites, self.kind.walks)

    def far_out(self) -> tuple[Verdict, ...]:
        """Of which coordinates the rounds may have ended on the way out, in a sentence.

        Few records tell of them, and they are farther from the middle than the prior expects: of
        36 among 4,500 records whose truth lay 5.5 prior sds out the means came out 1.1 to 2.7 of
        them from the middle, 3 to 7 of their own sds from NUTS's (ten releases).
        """
        names = self._named(self._on_the_way)
        if not (self.arrived and names):
            return ()
        it, its = ("they", "their") if len(names) > 1 else ("it", "its")
        text = (
            f"{WITH_CARE}: little was {TOLD_OF} {listed(names, 'signal')}: {it} came out far from "
            f"the middle of {its} prior, and a truth that lies farther out may not have been "
            f"reached, many of {its} own sds off{self._dispersed(names)}. Widen {its} prior to the "
            "scale of the answer, centre and scale outcomes and columns (by public numbers), or "
            "give more privacy budget or records"
        )
        return (Verdict(text, names),)

    @property
    def _on_the_way(self) -> np.ndarray:
        foretold_sd = np.sqrt(np.clip(self.resolved, 0.0, 1.0))
        far = np.abs(self.out) > np.maximum(_OUT, _UNLIKELY * foretold_sd)
        little = self.heard & ((self.resolved < TOLD) | self._few) & far
        # A learned law is as wide as the others make it.
        return little & ~np.isin(self._sites, self.kind.learned)

    def drowned(self) -> tuple[Verdict, ...]:
        """Of which coordinates noise hides more than the release tells, in sentences.

        A wide prior hides that from :meth:`untold`, which compares with the prior alone. Of few
        records the clip takes off information too, and the ratio of widths does not see it.
        """
        if not self.arrived:  # No width means anything.
            return ()
        several, site = self._several, self._sites
        # An interval that is the prior's is named there.
        told = self.heard & (self.resolved >= TOLD)
        drowned, few = told & (self.widened > DROWNED), self._few & several
        # Where noise hides much of everything it is not that these have few records, but for those
        # of which far less is told than of most.
        if 2 * np.count_nonzero(drowned) > np.count_nonzero(told):
            few &= self.signal < _FAR_LESS * np.median(self.signal[told])
        drowned &= ~few
        faint = self._few & ~drowned
        pooled = np.isin(site, self.kind.learned)
        fixed = faint & several & ~pooled
        found: dict[str, list[str]] = {}
        # What is far out is named there.
        if single := self._named(faint & ~several & ~self._on_the_way):
            found[
                f"{WITH_CARE}: little was {TOLD_OF} {listed(single, 'signal')}: what was released "
                "hardly stands out of noise, as of a dispersion, of which few outcomes tell, or a "
                f"rare input: the interval may be off{self._dispersed(single)}. Give more privacy "
                "budget or records"
            ] = single
        # In columns of like units others would be named, so that no list of them helps.
        unlike = [site for site in self.columns(fixed) if self._loud([site])]
        fixed_alone = fixed & ~np.isin(site, unlike)
        if unlike:
            found[
                f"{WIDE}: little was {TOLD_OF} most of {listed(unlike)}, beside columns of far "
                f"larger values ({listed(self._loud(unlike))}, it seems): any interval of "
                f"{listed(unlike)}, those of the large columns too, may be several times as wide "
                "as NUTS's. Take a typical value off each large column and divide it by "
                "about as much as it varies, both public numbers, or give more privacy budget or "
                "records"
            ] = self._named(np.isin(site, unlike))
        if fixed_alone.any():
            found[self._of_few(fixed_alone)] = self._named(fixed_alone)
        if drowned.any():
            found[self._doubled(drowned)] = self._named(drowned)
        if small := self._named(faint & several & pooled):
            found[
                f"{TO_KNOW}: little was {TOLD_OF} {listed(small, 'signal')}: the law that is "
                "learned from the others lends the rest, as to a hierarchy's small groups. Such "
                "intervals are mostly wider than NUTS's, at most as that law, and too narrow where "
                "small groups are unlike large ones, as one far out is pulled to them, several of "
                f"its own sds, and the law's own mean and scale{self._laws} with it. Read "
                "none of them by itself, or give more privacy budget or records"
            ] = small
        return tuple(Verdict(text, names) for text, names in found.items())

    def _dispersed(self, names: Sequence[str]) -> str:
        """What a dispersion of counts, of which little was told, may mean."""
        if not self.kind.counts or not set(names).intersection(self.kind.scales):
            return ""
        return (
            " (of a dispersion: where counts vary no more than Poisson's nothing tells of it, and "
            "Poisson will do; where a few are wrong codes, such as 99, rates and slopes lie off "
            "too: mask these)"
        )

    @property
    def _laws(self) -> str:
        """What no record's term reads, as the mean and scale of groups."""
        names = listed(self._named(~self.heard))
        return f" ({names})" * bool(names)

    def _of_few(self, which: np.ndarray) -> str:
        """Of rare categories and small groups under a law that stands fixed."""
        groups = which & np.asarray(self.groups)
        # Of most of a site's, as of the classes of a multinomial, few are rare.
        whole = self._whole(which) & ~groups
        of = {_RARE: which & ~groups & ~whole, "a small group": groups, _MANY: whole}
        kinds = " or ".join(each for each, found in of.items() if found.any())
        loud = listed(self._loud(sorted(set(self._sites[which & ~groups]))))
        beside = (
            f" Beside columns of far larger values ({loud}, it seems) they may be hardly wider."
        )
        scale = f"Divide the column of {loud} by a public number, merge" if loud else "Merge"
        # Shares have one law.
        levels = (which & ~groups & ~np.isin(self._sites, self.kind.shares)).any()
        law = _LAW if groups.any() else _LAW_OF_LEVELS * bool(levels)
        return (
            f"{WIDE}: little was {TOLD_OF} {listed(self._named(which), 'signal')}: "
            f"such intervals may be far wider than NUTS's (of {kinds}), at most as the prior, and "
            f"a truth far out in it is pulled to its middle.{beside * bool(loud)} {scale} levels "
            f"or groups where that can be, give more privacy budget or records{law}, or narrow a "
            "prior wider than what is known"
        )

    def _doubled(self, drowned: np.ndarray) -> str:
        # What no term reads is learned of the others: there is one law already.
        law = _LAW if self.heard.all() else ""
        scales = self._named(drowned & np.isin(self._sites, self.kind.scales))
        skewed = f"; {listed(scales)} may lie off instead" if scales else ""
        return (
            f"{WIDE}: privacy noise widens intervals: those of {counted(self.names, drowned)} are "
            f"up to about {self.widened[drowned].max():.2g} times as wide as the records', before "
            "a prior or groups' law narrows them, a rare or skewed column's or a group's "
            f"more{skewed}. Centre columns by public constants, give more privacy budget or "
            f"records{law}, take priors on the scale of the answer, or fewer coordinates: merge "
            "what can be merged"
        )


def faint_below(dim: int) -> float:
    """The signal below which little was told of a coordinate."""
    return min(_EACH * dim + _AT_LEAST, _AT_MOST * math.sqrt(dim))
