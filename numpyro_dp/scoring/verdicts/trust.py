"""How far to trust what all rounds together say: numbers, and verdicts in sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import chi2

from numpyro_dp.families.one_gaussian import APART
from numpyro_dp.scoring.information import Matrix, Vector
from numpyro_dp.scoring.statistic import FAR
from numpyro_dp.scoring.verdicts.kinds import (
    DO_NOT_USE,
    WIDE,
    WITH_CARE,
    Kind,
    Verdict,
    foretold,
    listed,
    worst_first,
)
from numpyro_dp.scoring.verdicts.outside import Outside
from numpyro_dp.scoring.verdicts.told import Told

# Where rounds disagree more than this, the last step was longer, or records stray farther, the
# intervals are not to be relied on.
_DISAGREEMENT, TRAVEL, _MISFIT = 1.5, 3.0, 1.5
# Roots of the dimension that a last step went: 1.5 to 2.4 where a slope lay up to 4 of its own sds
# off (40 groups beside a column in years), .1 to .9 of others (thirteen models of newcomers).
_LATE = 1.2
# More records far out than the model expects are named where noise explains no more than one in
# some hundred releases, and where they are so large a share that scales and rates show it.
_SURE, _STRAYS = 2.5, 0.006
# Scores vary so much less than the model expects, and fewer are far out than chance explains, where
# a scale was overshot: of counts with an effect of each record integrated out, under wide priors,
# scales of seven of seven releases lay 36 to 168 own sds off, six of which were looked at (.37 to
# .53), four under no note but of width. Of twelve models whose laws may scatter, uniform errors
# under a normal among them, two releases each had .87 and more; noughts and ones under a normal .8.
_SLACK, _SLACK_AT_MOST = 0.6, 0.8
# No widening mends rounds that disagree by more than this, as those between several modes do: of
# amounts under a normal they disagreed by 3.3 to 5.7 and put its scale some twenty of its own sds
# off, and by 2.3 another's amounts, of models that fit by 1.6 at most and once by 2.0 (two hundred
# releases of newcomers' models).
_TORN = 2.2
# So many that moved farthest are named.
_FEW_NAMED = 3
# Beyond so many sds of what the prior foretells of a mean, prior and records contradict each other;
# where noise lets the prior pull it back by so many of its own, its interval misses NUTS's.
_CONTRADICTED, _PULLED = 4.0, 2.0
# Of what next to nothing was told noise alone may say so near the middle: nearer than this many of
# those, 1.5 of the prior's. (A truth 5.5 prior sds out, of 36 records: the mean 1.3 to 1.9 from the
# middle, 3 to 4 of its own sds from NUTS's, six releases.)
_NEAR = 0.375
# A verdict's last sentence says what to do, its essence first: it is shown where a note is cut.
_NEARER = (
    "Give priors on the scale of the answer, centre inputs and outcomes by public constants and "
    "divide them by others, or give more privacy budget or records (an intercept's prior about "
    "where outcomes lie, others within a factor of ten{})"
)
_OF_SCALES = "; of a scale HalfNormal, not HalfCauchy"
# The same where columns show that they are the cause.
_CENTRED = (
    "Centre inputs by public constants and divide them by others, the large ones first, give "
    "priors on the scale of the answer, or give more privacy budget or records"
)
# Of rows of a person pooled as if they were of as many people a scale lay 5 own sds off.
_TOGETHER = (
    "Let numbers of one record hang together, as rows of a person do, by a MultivariateNormal or "
    "an effect that is integrated out (docs/howto/choose-the-unit.md), or "
)
_FAMILY = (
    " a family with heavier tails (StudentT(4, …) for Normal, of a logarithm too, its degrees of "
    "freedom fixed; LogNormal for Gamma; NegativeBinomial2 for Poisson)"
)
# Of 720 releases of regressions that fit eight (docs/_static/calibration.jsonl).
_HEAVY = (
    " a look into the codebook (the tails are heavy already, and one release in some ninety of a "
    "right model says so by chance)"
)
_SOUGHT = (
    ", or the input that is missing; where priors are many times wider than the answer, narrow "
    "those first: groups that no round has found look like outliers"
)
# Classes have no tails.
_OF_CLASSES = (
    " in the input that is missing, make a mask that ends where an event came of the events "
    "themselves (docs/howto/models-by-name.md, survival), or narrow priors many times wider than "
    "the answer"
)
# Of a yes or no as 1 and 2, where another note does not tell so.
_CODED = "code outcomes as their law has them (0 and 1, categories from 0)"
_CODES = f"C{_CODED[1:]}, "
_TAILS = (
    "Take the logarithm of what is never negative (LogNormal for Gamma), StudentT(4, …) for "
    "Normal, NegativeBinomial2 for Poisson: heavier tails than the family's are cut elsewhere in "
    "each round, so that scales come out too small, and slopes with them"
)


def _nearer(kind: Kind) -> str:
    """What to do where rounds went too far; of a scale only where there may be one."""
    return _NEARER.format(_OF_SCALES if kind.scatters or kind.learned else "")


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
    - **outside**: how many records show what their law cannot have.
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
    outside: Outside = Outside()

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
    def slack(self) -> bool:
        """Whether records vary less than the model expects, by more than noise explains."""
        little = self.misfit < _SLACK and self.misfit + self.misfit_sd < _SLACK_AT_MOST
        return little and self.tail < -_SURE * self.tail_sd

    @property
    def strays(self) -> bool:
        """Whether more records are far out than the model expects, by more than chance explains.

        It tells more than squares, which a tight clip cuts alike for every family.
        """
        return self.arrived and self.tail > max(_SURE * self.tail_sd, _STRAYS)

    def _unlike(self, kind: Kind) -> str:
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
            "wrong family, a code such as 99 or a few far outcomes. Scales, rates and slopes may "
            "be off by more than the intervals say. "
            + (f"{_TOGETHER}take" if kind.several else "Take")
            + (_OF_CLASSES if kind.classes else (_HEAVY if kind.heavy else _FAMILY) + _SOUGHT)
        )

    def _disagree(self, kind: Kind, large: str) -> str:
        times = f"{self.disagreement:.1f} times what their noise explains"
        found = f"the rounds disagree ({times}){large}"
        # A class has no tails.
        remedy = (APART if kind.mixture else _TAILS) * (kind.mixture or not kind.classes)
        nearest = _nearer(kind)
        if large and not kind.mixture:
            also = f"t{_TAILS[1:]}" if remedy else _CODED
            remedy, nearest = f"{_CENTRED}; or {also}", _CENTRED
        remedy = remedy or f"{_CODES}{nearest[0].lower()}{nearest[1:]}"
        if kind.several:
            remedy = f"{_TOGETHER}{remedy[0].lower()}{remedy[1:]}"
        # Between a gate and a wide scatter a release lay up to 13 of its own sds off at 2.1.
        if self.disagreement > _TORN or kind.scattered:
            cause = "" if kind.mixture else "the records do not fit the model, or "
            found += f": {cause}the likelihood has several modes"
            return f"{DO_NOT_USE}: {found}. {remedy}"
        nearer = f"; or {nearest[0].lower()}{nearest[1:]}"
        remedies = remedy if nearest[1:] in remedy else remedy + nearer
        found += (
            ", as of a right model one release in some dozens does by chance or for a rare column: "
            "the intervals were widened by that and are not calibrated. To ask again costs the "
            "budget again"
        )
        return f"{WITH_CARE}: {found}. {remedies}"

    def verdicts(
        self,
        names: Sequence[str],
        read: Sequence[bool] | None = None,
        kind: Kind | None = None,
    ) -> tuple[Verdict, ...]:
        """What the released numbers say against the likelihood; empty where nothing does.

        Each begins with its rank, the worst first: ``do not use`` (draws of no posterior), ``with
        care`` (intervals may not hold what they state), ``wide`` (they do, and tell little) or ``to
        know`` (nothing is wrong where the model is right).

        :param names: of the coordinates.
        :param read: which of them the records' terms read; by default all.
        :param kind: of the model; by default one that nothing speaks against.
        """
        kind = kind or Kind()
        told = self._told(names, read, kind)
        large, columns, nearer = told.large(), told.columns(), _nearer(kind)
        give = f"{APART}, or give" if kind.mixture else "Give"
        said = [
            (
                not self.arrived,
                f"{DO_NOT_USE}: not arrived: the last step went {self.travelled:.1f} posterior "
                f"standard deviations{self._farthest(names)}{large}, so the intervals are "
                f"not calibrated. {_CENTRED if large else nearer}",
            ),
            (self.arrived and self.disagreement > self._usual, self._disagree(kind, large)),
            (
                self.arrived and self.travelled > _LATE * math.sqrt(len(self.mean)),
                f"{WITH_CARE}: hardly arrived: the last step still went {self.travelled:.1f} sds "
                f"of the posterior{self._farthest(names)}; what hangs together, as a slope of all "
                f"and groups' effects, may be off by several of its own. {nearer}",
            ),
            *((True, text) for text in foretold(kind)),
            (
                not self.checked,
                f"{DO_NOT_USE}: only the last round was near the posterior, so that no other "
                f"checks it: the intervals are not calibrated. {_CENTRED if columns else nearer}",
            ),
            (
                not self.clear,
                f"{WITH_CARE}: the size of the records' scores was hardly told from noise, so that "
                "the rounds may have asked in wrong units. Give more privacy budget or records",
            ),
            (self.misfits or self.strays, self._unlike(kind)),
            (
                self.slack and kind.scatters,
                f"{DO_NOT_USE}: the records vary less than the model expects (their scores "
                f"{self.misfit:.1f} times as much): rounds went where a scale is too large, and "
                f"have not come back. {give} priors on the scale of the answer, of scales first "
                "(HalfNormal about as wide as they are), of an intercept about where outcomes lie, "
                "or give more privacy budget or records",
            ),
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
        # The cause before what it leads to.
        found = [*self.outside.said, *(text for holds, text in said if holds)]
        found += self._contradicted(names)
        return worst_first([*found, *told.far_out(), *told.untold(), *told.drowned()])

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
        return self._told(names, read, Kind()).untold(rank=rank, thus=thus)

    def _told(self, names: Sequence[str], read: Sequence[bool] | None, kind: Kind) -> Told:
        heard = np.ones(len(names), bool) if read is None else np.asarray(read, bool)
        of_each = self.resolved, self.out, self.signal, self.widened, self.groups
        return Told(names, heard, *of_each, self.design, self.misfit_sd, self.arrived, kind)

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
        # An sd of what the prior foretells of a mean, in its own.
        foretold_sd = np.maximum(np.sqrt(told), _NEAR)
        where = np.flatnonzero((out > _CONTRADICTED * foretold_sd) & (pulled > _PULLED))
        # Where no other round was near there is nothing to contradict.
        if not (self.arrived and self.checked and len(where)):
            return ()
        against = [names[k] for k in where]
        text = (
            f"{DO_NOT_USE}: prior and records contradict each other on {listed(against)}: up to "
            f"{max(out[where]):.2g} of the prior's standard deviations from its middle, and pulled "
            "back by it from farther out. Widen the prior to the scale of the answer, centre "
            "inputs and outcomes by public constants and divide them by others, or give more "
            "privacy budget or records"
        )
        return (Verdict(text, against),)
