"""What coverage found: how often intervals held the truth, how wide they were, and how far off."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from numpyro_dp.diagnostics.coverage.judging import Share
from numpyro_dp.diagnostics.coverage.posteriors import NOTHING, OTHER, Posteriors, Table
from numpyro_dp.diagnostics.coverage.ranks import Shown, drawn_levels, drawn_ranks
from numpyro_dp.diagnostics.coverage.verdict import SHOWN, Verdict, counted
from numpyro_dp.diagnostics.inference_data import assembled, dataset_of
from numpyro_dp.diagnostics.plots import axes_or_new
from numpyro_dp.model.names import coordinates_of
from numpyro_dp.scoring.verdicts.kinds import DO_NOT_USE, RANKS, beginning

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH = 98
# What of a verdict's beginning differs from data set to data set.
_NUMBER = re.compile(r"\d+(\.\d+)?")
# An outcome of so large a share of the records is all but certain. Rare ones are so in some data
# sets, and where priors leave nothing to chance in more than this share of them.
_DECIDED, _MANY = 0.99, 1 / 3
# So many things that the method said are shown.
_SAID = 4
# Chance that a right reference is called no measure; and how much of the truths' spread an interval
# has left where next to nothing was learnt.
_REFERENCE_ALARM, _UNTOLD = 0.001, 0.9
# What a table's widths and errors are, without a reference and with one.
_RELATIVE = {
    False: "width: median, in its own units; error: root mean square of means, mostly of the "
    "farthest data set",
    True: "width: median, as a multiple of {0}'s; error: root mean square about the truths, "
    "likewise",
}


class SiteCoverage(NamedTuple):
    """What was found of one site, or of all of them.

    - **coverage**, **standard_error**: share of truths in their intervals. Data sets, not
      coordinates, are independent.
    - **reference**, **reference_error**: of the reference on the same data sets.
    - **difference**, **difference_error**: coverage less the reference's, by data set.
    - **width**: median ratio of an interval's width to the reference's; without a reference, median
      width.
    - **rmse**: root mean squared error of the mean over that of the reference, both in the
      reference's standard deviations; without a reference, as it is.

    Numbers, not arrays; NaN without a reference, where there is nothing to say.

    **Privacy.** Of simulated records only.
    """

    coverage: float
    standard_error: float
    reference: float
    reference_error: float
    difference: float
    difference_error: float
    width: float
    rmse: float


@dataclass(frozen=True, eq=False)
class CoverageResult:
    """What :func:`numpyro_dp.coverage` returns; ``print`` it.

    :param method: name of the method.
    :param level: what its intervals state.
    :param num_records: records of a data set.
    :param shapes: shape of each site, in the order of the coordinates.
    :param truths: of each data set, shape (datasets, coordinates), each in its site's own units.
    :param fitted: the method's posteriors, whose arrays have that shape.
    :param reference_name: name of the reference; empty without one.
    :param reference: its posteriors on the same data sets, or ``None``.
    :param alike: of each data set, the share of the records that have the most frequent outcome.

    **Privacy.** Simulated records only: nothing is private here.

    **References**: see :func:`numpyro_dp.coverage`.

    **Example**: see :func:`numpyro_dp.coverage`.
    """

    method: str
    level: float
    num_records: int
    shapes: Mapping[str, tuple[int, ...]]
    truths: Table
    fitted: Posteriors
    reference_name: str = ""
    reference: Posteriors | None = None
    alike: tuple[float, ...] = ()

    @property
    def num_datasets(self) -> int:
        """How many data sets were made up and fitted, failed ones included."""
        return len(self.truths)

    @property
    def num_failed(self) -> int:
        """Data sets on which some draw was not finite: none of their intervals counts."""
        return int(np.isnan(self.fitted.mean).any(1).sum())

    @property
    def verdicts(self) -> dict[str, int]:
        """On how many data sets the method said what against itself: the worst first, of one rank
        the most frequent."""
        said = (
            {_NUMBER.sub("…", beginning(each)) for each in of_set}
            for of_set in self.fitted.verdicts
        )
        counts = Counter(each for of_set in said for each in sorted(of_set)).most_common()
        ranks = {rank: at for at, rank in enumerate(RANKS)}
        return dict(
            sorted(counts, key=lambda each: ranks.get(each[0].partition(":")[0], len(RANKS)))
        )

    @property
    def ranks(self) -> dict[str, int]:
        """On how many data sets the worst that the method said of itself had which rank.

        "other notes" stands for what has no rank, "no note" where it said nothing.
        """
        worst = Counter(self.fitted.notes)
        return {rank: worst[rank] for rank in (*RANKS, OTHER, NOTHING) if worst[rank]}

    @property
    def pooled(self) -> SiteCoverage:
        """Of all coordinates."""
        return self._of(slice(None))

    @property
    def usable(self) -> tuple[float, float]:
        """Coverage and its error where the method did not say ``do not use``; NaN if nowhere."""
        kept = self.fitted.usable
        held = self.fitted.holds(self.truths)[kept]
        return self._rate(held) if kept else (math.nan, math.nan)

    @property
    def judgement(self) -> str:
        """What follows from all of it, in a sentence.

        Fits that say ``do not use`` are counted and not judged: right intervals hold what they
        state whatever is said of them. Of the others, in this order ("simulated": 5 to 100 data
        sets, 1 to 30 coordinates correlated by 0 to .99, levels of .5 to .99):

        - *Too rarely*: right intervals hold so few with a chance below 2.5 % (simulated: 3 % at
          most, 3.5 % of five data sets).
        - *Do not always hold*: a truth lies more than six of its fit's own standard deviations
          off, or two data sets have one more than five off. If posteriors are normal, chance makes
          that once in five million data sets of a hundred coordinates; if exponential, once in a
          thousand coordinates. It is named beside *too rarely* too.
        - *Too wide*: more are held by two standard errors of data sets that hold all or none.
        - *Hold what they say*: intervals three quarters as wide as they should be, which hold .86
          for .95, hold so many with a chance below 5 % (simulated: 8 % at most from twenty data
          sets on, 13 % of fewer, and 18 % at the level of .99). A site that holds too few is named;
          of right ones any with a chance of 1 %.
        - *Cannot tell*, otherwise, and how many data sets would, three times in four or more.

        Of right intervals of 95 % on twenty data sets, 80 to 98 % are told that they hold with nine
        coordinates correlated by .5 or less, and 35 to 40 % with a single one or what is nearly so.
        """
        refused = self.ranks.get(DO_NOT_USE, 0)
        said = self._verdict.sentence()
        if self._untold:
            said = f"{said}; they are about as wide as the prior, so that little was learnt"
        if self.reference is not None:
            own = Share.of(self.reference.holds(self.truths), self.level)
            if own.too_rare(self.level, _REFERENCE_ALARM):
                said = f"{said}; {self.reference_name} itself holds too few, and is no measure here"
        if refused:
            # A wide prior makes up some data sets that nobody has, and those fits say so.
            of_few = 2 * refused <= self.num_datasets
            rare = " or, if only truths far out in the prior do, narrow it" if of_few else ""
            said = (
                f"{said}; {refused} of {self.num_datasets} fits say `{DO_NOT_USE}` of themselves: "
                f"mend what they name{rare} before a record is spent"
            )
        return said

    @property
    def _verdict(self) -> Verdict:
        return Verdict(self.level, self.truths, self.fitted, self.columns)

    @property
    def _untold(self) -> bool:
        """Whether half of the coordinates are known hardly better than before."""
        spread = self.truths.std(0)
        left = np.median(self.fitted.sd, axis=0)[spread > 0] / spread[spread > 0]
        return bool(left.size and np.median(left) > _UNTOLD)

    @property
    def sites(self) -> dict[str, SiteCoverage]:
        """Of each site."""
        return {name: self._of(columns) for name, columns in self.columns.items()}

    @property
    def columns(self) -> dict[str, slice]:
        """Coordinates of each site."""
        found, first = {}, 0
        for name, shape in self.shapes.items():
            found[name] = slice(first, first + math.prod(shape))
            first += math.prod(shape)
        return found

    def _without_chance(self) -> str:
        """What is to be said where the data sets that were made up are such as nobody has."""
        decided = sum(share >= _DECIDED for share in self.alike)
        if decided <= self.num_datasets * _MANY:
            return ""
        return (
            f"In {decided} of {self.num_datasets} data sets nearly all outcomes are alike, as "
            "where priors times columns in their own units leave nothing to chance: of data such "
            "as yours this says little. Centre and scale columns by public numbers, or narrow "
            "priors"
        )

    def _far_out(self) -> list[str]:
        """Of fits that say ``do not use``, the truths that lie farthest from the others."""
        refused = [k for k, note in enumerate(self.fitted.notes) if note == DO_NOT_USE]
        low, middle, high = np.quantile(self.truths, [0.25, 0.5, 0.75], axis=0)
        away = np.abs(self.truths - middle) / np.maximum(high - low, 1e-12)
        names = coordinates_of(self.shapes)
        lines = []
        for k in refused[:SHOWN]:
            farthest = np.argsort(-away[k], kind="stable")[:2]
            told = "; ".join(
                f"{names[j]} {self.truths[k, j]:.3g} (half of all: {low[j]:.3g} to {high[j]:.3g})"
                for j in farthest
            )
            said = next(each for each in self.fitted.verdicts[k] if each.startswith(DO_NOT_USE))
            said = beginning(said).removeprefix(f"{DO_NOT_USE}: ")
            lines.append(
                f"  it said so of data set {k} ({said}), whose truths farthest out are {told}"
            )
        return lines

    def _of(self, which: slice) -> SiteCoverage:
        truths, fitted = self.truths[:, which], self.fitted.columns(which)
        held, widths, off = _kept(fitted, truths)
        if self.reference is None:
            none = math.nan
            found = (none, none, none, none, np.nanmedian(widths), np.sqrt(np.nanmean(off**2)))
            return SiteCoverage(*self._rate(held), *map(float, found))
        reference = self.reference.columns(which)
        own_held, own_widths, own_off = _kept(reference, truths)
        scaled, own_scaled = off / reference.sd, own_off / reference.sd
        return SiteCoverage(
            *self._rate(held),
            *self._rate(own_held),
            *self._rate(held.astype(float) - own_held),
            width=float(np.nanmedian(widths / own_widths)),
            rmse=float(np.sqrt(np.nanmean(scaled**2) / np.nanmean(own_scaled**2))),
        )

    def _rate(self, held: np.ndarray) -> tuple[float, float]:
        """A share and its standard error, with one data set more of one coordinate's variance.

        Without that, a few data sets that agree would have no error at all.
        """
        by_set = held.mean(1)
        squares = np.sum((by_set - by_set.mean()) ** 2) + self.level * (1 - self.level)
        return float(by_set.mean()), float(np.sqrt(squares) / len(by_set))

    def __str__(self) -> str:
        pooled = self.pooled
        lines = [
            f"{self.method}: {self.level:.0%} intervals held {_with_error(*pooled[:2])} of the "
            f"truths ({counted(self.num_datasets, 'data set')} of {self.num_records} records)",
            "  inputs: as given, taken as public or made up; no ε covers them",
        ]
        if self.reference is not None:
            lines.append(
                f"  {self.reference_name} on the same: {_with_error(*pooled[2:4])}, a difference "
                f"of {_with_error(*pooled[4:6], sign='+')}; intervals {pooled.width:.2f} times as "
                f"wide, errors {pooled.rmse:.2f} times as large"
            )
        named = max(map(len, self.shapes))
        compared = self.reference is not None
        header = f"  {'site':{named}}  {'held':13}"
        header += f"  {self.reference_name:13}" if compared else ""
        lines.append(f"{header}  {'width':>8}  {'error':>8}")
        for name, site in self.sites.items():
            row = f"  {name:{named}}  {_with_error(*site[:2]):13}"
            row += f"  {_with_error(*site[2:4]):13}" if compared else ""
            lines.append(f"{row}  {site.width:8.3g}  {site.rmse:8.3g}")
        lines.append(f"  {_RELATIVE[compared].format(self.reference_name)}")
        if self.num_failed:
            lines.append(f"  not finite, counted as missed: {counted(self.num_failed, 'data set')}")
        if self.verdicts:
            said = [f"{text} ({count})" for text, count in self.verdicts.items()]
            more = len(said) - _SAID
            said[_SAID:] = [f"and {counted(more, 'other')} (.verdicts)"] * (more > 0)
            lines.append(f"  said by the method itself, in data sets: {'; '.join(said)}")
            worst = ", ".join(f"{rank} {count}" for rank, count in self.ranks.items())
            lines.append(f"  data sets by the worst that was said of each: {worst}")
        if DO_NOT_USE in self.ranks and len(self.ranks) > 1:
            lines.append(
                f"  where it did not say `{DO_NOT_USE}`, {_with_error(*self.usable)} of the truths "
                "were held"
            )
        lines += self._far_out()
        lines += [f"  {line}" for line in wrap(self._without_chance(), _WIDTH)]
        names = coordinates_of(self.shapes)
        lines += self._verdict.far_off(names, self.reference, self.reference_name)
        lines += [f"  {line}" for line in wrap(f"In short: {self.judgement}.", _WIDTH)]
        return "\n".join(lines)

    def plot(self, ax: Axes | None = None, *, kind: Literal["rank", "level"] = "rank") -> Axes:
        """Draw the ranks of the truths, or how many truths intervals of every level held.

        :param ax: matplotlib axes to draw into; ``None`` makes new ones.
        :param kind: ``"rank"``: a histogram, level where the method is calibrated, ∪-shaped where
            intervals are too short and ∩-shaped where they are too wide, with a band that nine in
            ten bars of a calibrated method lie in. ``"level"``: attained against stated coverage.
        :returns: the axes.
        :raises ImportError: when matplotlib is not installed.
        :raises ValueError: for another kind.
        """
        if kind not in ("rank", "level"):
            raise ValueError(f'kind is "rank" or "level", got {kind!r}')
        ax = axes_or_new(ax)
        (drawn_ranks if kind == "rank" else drawn_levels)(ax, self._shown())
        ax.legend(loc="lower right")
        return ax

    def _shown(self) -> list[Shown]:
        shown = [Shown(self.method, self.fitted.rank, "C0")]
        if self.reference is not None:
            shown.append(Shown(self.reference_name, self.reference.rank, "C1"))
        return shown

    def to_inference_data(self) -> Any:
        """For ArviZ: the truths as ``prior``, and their ranks as ``prior_sbc``, one draw a set.

        ``arviz_plots.plot_ecdf_pit(data, group="prior_sbc")`` draws them.

        :returns: an ``xarray.DataTree`` with ArviZ 1, ``arviz.InferenceData`` with ArviZ 0.23.
        """
        attributes = {"method": self.method, "level": self.level, "num_records": self.num_records}

        def by_site(table: Table) -> dict[str, np.ndarray]:
            return {
                name: table[:, columns].reshape(1, -1, *self.shapes[name])
                for name, columns in self.columns.items()
            }

        groups = {"prior": self.truths, "prior_sbc": self.fitted.rank}
        datasets = {
            group: dataset_of(by_site(table), {}, {}, dict(attributes))
            for group, table in groups.items()
        }
        return assembled(datasets)


def _kept(fitted: Posteriors, truths: Table) -> tuple[np.ndarray, Table, Table]:
    """Which truths the intervals hold, their widths, and how far the means are off."""
    return fitted.holds(truths), fitted.upper - fitted.lower, fitted.mean - truths


def _with_error(value: float, error: float, sign: str = "") -> str:
    return f"{value:{sign}.3f} ± {error:.3f}"
