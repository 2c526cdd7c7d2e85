"""How far to trust what all rounds together say: numbers, and verdicts in sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import chi2

from numpyro_dp.families.one_gaussian import APART
from numpyro_dp.scoring.information import Matrix, Vector
from numpyro_dp.scoring.kinds import (
    DO_NOT_USE,
    RANKS,
    TOLD_OF,
    WIDE,
    WITH_CARE,
    Kind,
    counted,
    foretold,
    listed,
)
from numpyro_dp.scoring.statistic import FAR

# Where rounds disagree more than this, the last step was longer, or records stray farther, the
# intervals are not to be relied on.
_DISAGREEMENT, TRAVEL, _MISFIT = 1.5, 3.0, 1.5
# Roots of the dimension that a last step went: 1.5 to 2.4 where a slope lay up to 4 of its own sds
# off (40 groups beside a column in years), .1 to .9 of others (thirteen models of newcomers).
_LATE = 1.2
# More records far out than the model expects are named where noise explains no more than one in
# some hundred releases, and where they are so large a share that scales and rates show it.
_SURE, _STRAYS = 2.5, 0.006
# No widening mends rounds that disagree by more than this, as those between several modes do: of
# amounts under a normal they disagreed by 3.3 to 5.7 and put its scale some twenty of its own sds
# off, and by 2.3 another's amounts, of models that fit by 1.6 at most and once by 2.0 (two hundred
# releases of newcomers' models).
_TORN = 2.2
# Where no more of a prior's variance than this is taken away, an interval is the prior's; where of
# none more than this, nothing much was told at all.
TOLD, _HALF, _MUCH, _FEW_NAMED = 0.2, 0.5, 0.85, 3
# Above this intervals were 1.96 to 5.5 times as wide as NUTS's (64 releases of eight models): the
# clip takes off information too, which no one sees here.
DROWNED = 1.5
# Where information on a coordinate was fewer sds of its own noise, intervals were 1.6 to 9 times as
# wide as NUTS's; where it was more, 1.0 to 1.7 times and once 2.1 (medians of 64 coordinates over
# six releases or twenty, tests/benchmarks/bench_rare_levels.py). Of few coordinates a tighter bound
# leaves less, some 5.7√d of all of them.
FAINT, _FEW_COORDINATES = 9.0, 3.0
# But where it is more than so many √d, and so large a part of the clearest of all, it was not few
# records: of six coordinates that rounds came near to late, each 1.1 to 1.5 times as wide.
_ENOUGH, _ALIKE = 2.0, 0.6
# Of levels also where it was less than this and this part of their site's clearest: they were 1.6
# to 3.8 times as wide, above up to 2.2 (71 coordinates of three models, each with clear ones). Not
# of groups' effects, which were 1.2 to 1.9 times as wide from FAINT on (234 effects).
_LEVELS, _OF_CLEAREST, _CLEAR = 16.0, 0.7, 20.0
# Beyond so many sds of what the prior foretells of a mean, prior and records contradict each other;
# where noise lets the prior pull it back by so many of its own, its interval misses NUTS's.
_CONTRADICTED, _PULLED = 4.0, 2.0
# Where few records speak, how far scores vary is known to .06 to .30; where the truth lies far out
# in the prior and no round found it, to .8 to 2.3 (72 releases).
_SIZES = 0.5
# A verdict's last sentence says what to do, its essence first: it is shown where a note is cut.
_NEARER = (
    "Give priors on the scale of the answer, centre inputs and outcomes by public constants and "
    "divide them by others, or give more privacy budget or records (an intercept's prior about "
    "where outcomes lie, others within a factor of ten; of a scale HalfNormal, not HalfCauchy)"
)
_TAILS = (
    "Take the logarithm of what is never negative (LogNormal for Gamma), StudentT(4, …) for "
    "Normal, NegativeBinomial2 for Poisson: heavier tails than the family's are cut elsewhere in "
    "each round, so that scales come out too small, and slopes with them"
)
_FAR_OUT = (
    "; or widen a fixed prior to the scale of the answer: the truth may lie so far out in it that "
    "no round found it"
)
_OTHER_SCALE = (
    ". Widen the prior to the scale of the answer, divide outcomes and inputs by public numbers, "
    "or give more privacy budget or records: the truth may lie so far out that no round found it"
)
# Priors that are narrowed until rounds arrive are not to be widened too.
_FIRST = ". That the rounds have not arrived may be why: take the remedies of that first"
_LAW = ", give groups one law (a hierarchy), which narrows them"
_LEARNED = " What the others tell narrows them: too much where small groups are unlike large ones."


class Located(NamedTuple):
    """The released likelihood of the unconstrained latents u, and its verdicts.

    The likelihood is exp(−½‖response − design·u‖²).

    - **design**: shape (directions, dim); **response**: shape (directions,). There are as many
      directions as coordinates, less those along which no record's likelihood changes.
    - **mean**, **covariance**: of u, under a normal prior of the model prior's moments.
    - **information**, **noise_sd**: information in the whitened coordinates' directions (ascending)
      and the noise in them, shape (directions,).
    - **resolved**: share of each coordinate's prior variance that the likelihood takes away,
      shape (dim,).
    - **out**: prior sds from the middle of each coordinate's prior to its mean, shape (dim,).
    - **dispersion**: ρ, by how much records vary more than the information says.
    - **misfit**: by how much more than the model expects of them; **misfit_sd**: its noise.
    - **tail**: share of the records that is far out beyond what the model expects; **tail_sd**: its
      noise, and that of drawing records.
    - **disagreement**: χ² of the rounds' scores over **freedom**, its degrees of freedom.
    - **travelled**: distance of the mean from the last round's position, in posterior sds.
    - **unresolved**: whether the information's shape was lost in its noise.
    - **signal**: information on each coordinate, the others being known, over its noise, shape
      (dim,).
    - **widened**: how many times as wide noise makes the interval of each coordinate as the
      released information alone would have it, shape (dim,).
    - **clear**: whether the size of records' scores stood out of its noise.
    - **checked**: whether more than one round was near enough to tell of the posterior.
    - **groups**: which are groups' effects, whitened as each other, shape (dim,).
    - **moved**: by the last step, each coordinate in its own posterior sds, shape (dim,).
    """

    design: Matrix
    response: Vector
    mean: Vector
    covariance: Matrix
    information: Vector
    noise_sd: Vector
    resolved: Vector
    out: Vector
    dispersion: float
    misfit: float
    misfit_sd: float
    tail: float
    tail_sd: float
    disagreement: float
    freedom: int
    travelled: float
    unresolved: bool
    signal: Vector
    widened: Vector
    clear: bool = True
    checked: bool = True
    groups: Vector | bool = False
    moved: Vector | None = None

    @property
    def _usual(self) -> float:
        """Disagreement that one release in a thousand exceeds where nothing is wrong."""
        if not self.freedom:
            return math.inf
        return max(_DISAGREEMENT, float(chi2.ppf(0.999, self.freedom)) / self.freedom)

    @property
    def arrived(self) -> bool:
        """Whether the last step was no longer than noise alone would make it."""
        return self.travelled <= TRAVEL * math.sqrt(len(self.mean))

    @property
    def misfits(self) -> bool:
        """Whether records vary more than the model expects, by more than noise explains."""
        return self.misfit > _MISFIT + 2 * self.misfit_sd

    @property
    def strays(self) -> bool:
        """Whether more records are far out than the model expects, by more than chance explains.

        It tells more than squares, which a tight clip cuts alike for every family.
        """
        return self.arrived and self.tail > max(_SURE * self.tail_sd, _STRAYS)

    @property
    def _unlike(self) -> str:
        told = []
        if self.strays:
            told.append(
                f"{self.tail:.1%} more of them than it expects are outliers, {FAR} times as far "
                "out as usual"
            )
        if self.misfits:
            told.append(f"their scores vary {self.misfit:.1f} times as much as it expects")
        return (
            f"{WITH_CARE}: the records do not fit the model: {', and '.join(told)}, as from a "
            "wrong family or a few far outcomes. Scales, rates and slopes may be off by more than "
            "the intervals say. Take a family with heavier tails (StudentT(4, …) for Normal, of a "
            "logarithm too, its degrees of freedom fixed; LogNormal for Gamma; NegativeBinomial2 "
            "for Poisson), or the input that is missing; where priors are many times wider than "
            "the answer, narrow those first: groups that no round has found look like outliers"
        )

    def _disagree(self, kind: Kind) -> str:
        found = f"the rounds disagree ({self.disagreement:.1f} times what their noise explains): "
        # A class has no tails.
        remedy = (APART if kind.mixture else _TAILS) * (kind.mixture or not kind.classes)
        if self.disagreement > _TORN:
            cause = "" if kind.mixture else "the records do not fit the model, or "
            found += f"{cause}the likelihood has several modes"
            return f"{DO_NOT_USE}: {found}. {remedy or _NEARER}"
        remedies = f"{remedy}; or {_NEARER[0].lower()}{_NEARER[1:]}" if remedy else _NEARER
        found += "the intervals were widened by that and are not calibrated; of right models some "
        return f"{WITH_CARE}: {found}releases say so too. {remedies}"

    def verdicts(
        self,
        names: Sequence[str],
        read: Sequence[bool] | None = None,
        kind: Kind | None = None,
    ) -> tuple[str, ...]:
        """What the released numbers say against the likelihood; empty where nothing does.

        Each begins with its rank, the worst first: ``do not use`` (draws of no posterior), ``with
        care`` (intervals may not hold what they state) or ``wide`` (they do, and tell little).

        :param names: of the coordinates.
        :param read: which of them the records' terms read; by default all.
        :param kind: of the model; by default one that nothing speaks against.
        """
        kind = kind or Kind()
        said = [
            (
                not self.arrived,
                f"{DO_NOT_USE}: not arrived: the last step went {self.travelled:.1f} posterior "
                f"standard deviations{self._farthest(names)}, so the intervals are not calibrated. "
                f"{_NEARER}",
            ),
            (self.arrived and self.disagreement > self._usual, self._disagree(kind)),
            (
                self.arrived and self.travelled > _LATE * math.sqrt(len(self.mean)),
                f"{WITH_CARE}: hardly arrived: the last step still went {self.travelled:.1f} sds "
                f"of the posterior{self._farthest(names)}; what hangs together, as a slope of all "
                f"and groups' effects, may be off by several of its own. {_NEARER}",
            ),
            *((True, text) for text in foretold(kind)),
            (
                not self.checked,
                f"{DO_NOT_USE}: only the last round was near the posterior, so that no other "
                f"checks it: the intervals are not calibrated. {_NEARER}",
            ),
            (
                not self.clear,
                f"{WITH_CARE}: the size of the records' scores was hardly told from noise, so that "
                "the rounds may have asked in wrong units. Give more privacy budget or records",
            ),
            (self.misfits or self.strays, self._unlike),
            (
                self.unresolved,
                f"{WIDE}: the shape of the information was lost in its noise: coordinates that "
                "hang together, as those of correlated inputs do, have intervals as if they did "
                "not, often far too wide, or too narrow where columns say the same (a column "
                "twice, all levels beside an intercept). Centre and scale the inputs by public "
                "constants, leave out columns that repeat others, merge groups that can be merged, "
                "or give more privacy budget or records",
            ),
        ]
        found = [*(text for holds, text in said if holds), *self._contradicted(names)]
        found += [*self.untold(names, read), *self._drowned(names, read, kind)]
        # A stable sort: by rank, and within one as above.
        return tuple(sorted(found, key=lambda each: RANKS.index(each.split(":")[0])))

    def untold(
        self,
        names: Sequence[str],
        read: Sequence[bool] | None = None,
        *,
        rank: str = "",
        thus: str = "",
    ) -> tuple[str, ...]:
        """Which coordinates the records were not heard on, in a sentence; empty where on all.

        What no record's term reads, such as the scale of groups, is left out: records tell of it
        through other latents, and ``resolved``, from independent moments of the prior, does not see
        that.

        :param read: as for :meth:`verdicts`.
        :param rank: of the sentence; by default what is known of the size of scores decides.
        :param thus: what follows of it; by default that intervals are the prior's.
        """
        heard = _heard(names, read)
        weak = [names[k] for k in np.flatnonzero(heard & ~(self.resolved >= TOLD))]  # NaN, too.
        most = float(np.max(self.resolved, where=heard, initial=0.0))
        if not weak and most >= _MUCH:
            return ()
        # Of rare outcomes few scores vary; where most coordinates were heard some round was near.
        much = np.count_nonzero(heard & (self.resolved >= _MUCH))
        near = self.misfit_sd <= _SIZES or 2 * much > np.count_nonzero(heard)
        # Or where all were told of, if not clearly: of 32 events posteriors were as NUTS's.
        rank = rank or (WIDE if near or (not weak and most > _HALF) else DO_NOT_USE)
        far_out, other_scale = (_FAR_OUT, _OTHER_SCALE) if self.arrived else (_FIRST, _FIRST)
        if not weak:
            return (
                f"{rank}: little was told: at most {most:.0%} of the prior's variance of any "
                "coordinate. Give more privacy budget or records where the prior may know as much "
                "as these, as where they tell of few events; fix one of coordinates that repeat "
                f"each other (a softmax with every class free){far_out}",
            )
        one, several = "its interval is that of", "their intervals are those of"
        where = "" if thus else "resolved"  # What adapts has no diagnostics.
        thus = thus or f"{several if len(weak) > 1 else one} the prior (of a group, of its law)"
        found = f"{rank}: next to nothing was {TOLD_OF} {listed(weak, where)}: {thus}"
        if len(weak) == np.count_nonzero(heard):
            # Rare categories are a few among others; all are missed where the scale is wrong.
            return (f"{found}{other_scale}",)
        them = "them" if len(weak) > 1 else "it"
        leave = f"or leave {them} to the prior (to the groups' law in a hierarchy)"
        few = f"{leave}, where few records tell of {them}{far_out}"
        return (f"{found}. Merge what can be merged, give more privacy budget or records, {few}",)

    def _farthest(self, names: Sequence[str]) -> str:
        """Which coordinates moved most, of which the priors may be the cause."""
        if self.moved is None:
            return ""
        most = [k for k in np.argsort(-self.moved)[:_FEW_NAMED] if self.moved[k] > 1]
        return f", farthest of {listed([names[k] for k in most])}" if most else ""

    def _contradicted(self, names: Sequence[str]) -> tuple[str, ...]:
        """Which coordinates a prior pulls back from far outside it, in a sentence.

        A truth that lies so far out can be explained by a large scale as well: the rounds arrive
        there, and in its noise the prior wins.
        """
        told, out = np.clip(self.resolved, 1e-9, 1.0), np.abs(self.out)
        # By noise alone: a prior that is too narrow pulls what NUTS finds as well.
        noise = 1 - 1 / np.maximum(self.widened, 1.0) ** 2
        pulled = out * np.sqrt(1 - told) / told * noise
        where = np.flatnonzero((out / np.sqrt(told) > _CONTRADICTED) & (pulled > _PULLED))
        if not self.arrived or not len(where):
            return ()
        return (
            f"{DO_NOT_USE}: prior and records contradict each other on "
            f"{listed([names[k] for k in where])}: up to {max(out[where]):.0f} of the prior's "
            "standard deviations from its middle, and pulled back by it from farther out. Widen "
            "the prior to the scale of the answer, centre inputs and outcomes by public constants "
            "and divide them by others, or give more privacy budget or records",
        )

    def _drowned(
        self, names: Sequence[str], read: Sequence[bool] | None, kind: Kind
    ) -> tuple[str, ...]:
        """Of which coordinates noise hides more than the release tells, in sentences.

        A wide prior hides that from :meth:`untold`, which compares with the prior alone. Of few
        records the clip takes off information too, and the ratio of widths does not see it.
        """
        # An interval that is the prior's is named there.
        told = _heard(names, read) & (self.resolved >= TOLD)
        drowned = told & (self.widened > DROWNED)
        # A level or group is one of several coordinates; a site of one is more often a dispersion,
        # which lay 3 to 5 of its own sds off (docs/limitations.md).
        several = np.array(["[" in name for name in names])
        site = np.array([name.partition("[")[0] for name in names])
        clearest = np.array([self.signal[site == each].max() for each in site])
        levels = np.minimum(_LEVELS, _OF_CLEAREST * clearest)
        levels *= several & (clearest > _CLEAR) & ~np.asarray(self.groups)
        enough = self.signal > _ENOUGH * math.sqrt(len(names))
        alike = enough & (self.signal > _ALIKE * np.max(self.signal))
        below = np.maximum(levels, np.where(alike, 0.0, faint_below(len(names))))
        # Neighbours tell of an entry of a walk: 1.06 to 1.34 times as wide as NUTS's where few did.
        few = told & (self.signal < below) & ~np.isin(site, kind.walks)
        # Where noise hides much of everything it is not that these have few records.
        drowned &= ~(few & several) | (2 * np.count_nonzero(drowned) > np.count_nonzero(told))
        faint = few & ~drowned
        if not self.arrived:  # No width means anything.
            return ()
        levels = [names[k] for k in np.flatnonzero(faint & several)]
        single = [names[k] for k in np.flatnonzero(faint & ~several)]
        found = []
        if single:
            found.append(
                f"{WITH_CARE}: little was {TOLD_OF} {listed(single, 'signal')}: what was released "
                "hardly stands out of noise, as of a dispersion, of which few outcomes tell, or a "
                "rare input: the interval may be off. Give more privacy budget or records"
            )
        # What no term reads is learned from the groups that were heard alone.
        learned, law = ("", _LAW) if _heard(names, read).all() else (_LEARNED, "")
        if levels:
            found.append(
                f"{WIDE}: little was {TOLD_OF} {listed(levels, 'signal')}: of a rare category or "
                "small group such intervals are 1.2 to 7 times as wide as NUTS's, at most as the "
                f"prior, and a truth far out in it is pulled to its middle.{learned} Columns "
                "beside one of far larger values (scale that one) and last terms of a basis are "
                "named too, mostly hardly wider than NUTS's. Merge such where that can be, give "
                f"more privacy budget or records{law}, or narrow a prior wider than what is known"
            )
        if drowned.any():
            alone = (drowned & ~several).any() and kind.dispersed
            skewed = "; that of a dispersion, if one is named, may be off instead" if alone else ""
            found.append(
                f"{WIDE}: privacy noise doubles intervals: those of {counted(names, drowned)} are "
                f"up to {self.widened[drowned].max():.2g} times as wide as the records', before "
                f"a prior or groups' law narrows them{skewed}. Centre columns by public constants, "
                f"give more privacy budget or records{law}, take priors on the scale of the "
                "answer, or fewer coordinates: merge what can be merged"
            )
        return tuple(found)


def _heard(names: Sequence[str], read: Sequence[bool] | None) -> np.ndarray:
    return np.ones(len(names), bool) if read is None else np.asarray(read, bool)


def faint_below(dim: int) -> float:
    """The signal below which little was told of a coordinate."""
    return min(FAINT, _FEW_COORDINATES * math.sqrt(dim))
