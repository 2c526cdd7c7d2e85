"""The sentence that coverage ends with, and the data sets that it names."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from numpyro_dp.diagnostics.coverage.judging import SITE_ALARM, Distances, Share, too_narrow
from numpyro_dp.diagnostics.coverage.posteriors import NOTHING, Posteriors, Table
from numpyro_dp.model.names import quoted
from numpyro_dp.scoring.verdicts.kinds import RANKS

# Data sets below which no share is judged, and of how many the truths are shown.
FEW, SHOWN = 5, 3
# Standard errors that a share may be too large by chance.
_CHANCE = 2.0
_NARROWER = (
    "give what was missed there a narrower prior, if that is known of it, or leave it out, and try "
    "again before records are spent"
)


def counted(number: int, what: str) -> str:
    """So many of what a word names."""
    return f"{number} {what}{'s' * (number != 1)}"


@dataclass(frozen=True, eq=False)
class Verdict:
    """On the fits that do not refuse themselves.

    :param level: what the intervals state.
    :param truths: of each data set.
    :param fitted: the method's posteriors.
    :param columns: coordinates of each site.
    """

    level: float
    truths: Table
    fitted: Posteriors
    columns: Mapping[str, slice]

    @cached_property
    def _distances(self) -> Distances:
        return Distances.of(self.truths, self.fitted.mean, self.fitted.sd)

    @cached_property
    def _kept(self) -> list[int]:
        return self.fitted.usable

    @property
    def _sets(self) -> str:
        usable = "" if len(self._kept) == len(self.truths) else "usable "
        return counted(len(self._kept), f"{usable}data set")

    def sentence(self) -> str:
        """What may be said of the intervals."""
        level, number = self.level, len(self._kept)
        gross = self._distances.gross(self._kept)
        sometimes = f"intervals do not always hold: {self._missed(gross)}: {_NARROWER}"
        if number < FEW:
            too_few = f"{self._sets} {'is' if number == 1 else 'are'} too few to judge by"
            few = too_few if number else "no fit is left to judge"
            return f"{sometimes}; {few}" if gross else few
        held = self.fitted.holds(self.truths)[self._kept]
        share = Share.of(held, level)
        if share.too_rare(level):
            rarely = "intervals hold the truth too rarely: they are too narrow, or off"
            return f"{rarely}; {self._missed(gross)}" if gross else rarely
        if gross:
            return sometimes
        # One data set is one truth at worst, however many coordinates it has.
        if share.held > level + _CHANCE * math.sqrt(level * (1 - level) / number):
            return "intervals hold the truth more often than they say: they are too wide"
        return self._of_sites(share, self._too_rare(held))

    def _too_rare(self, held: np.ndarray) -> str:
        chance = SITE_ALARM / len(self.columns)
        return quoted(
            [
                name
                for name, columns in self.columns.items()
                if Share.of(held[:, columns], self.level).too_rare(self.level, chance)
            ]
        )

    def _of_sites(self, share: Share, rare: str) -> str:
        """Where all of them together give no alarm."""
        if share.tells(self.level):
            said = f"intervals hold what they say, as far as {self._sets} tell"
            return f"{said}, but those of {rare} too rarely" if rare else said
        # So that as many are left as will tell.
        more = share.enough(self.level) * len(self.truths) / len(self._kept)
        said = (
            f"{self._sets} cannot tell {100 * self.level:.3g}% intervals from "
            f"{100 * too_narrow(self.level):.2g}% ones; num_datasets={math.ceil(more / 10)}0 would"
        )
        if rare:
            return f"intervals of {rare} hold the truth too rarely; of the others {said}"
        return f"nothing speaks against the intervals, but {said}"

    def _missed(self, gross: Sequence[int]) -> str:
        """The worst data set of those that said nothing, and of those that said too little."""
        notes, worst = self.fitted.notes, self._distances.worst
        silent = [k for k in gross if notes[k] == NOTHING]
        noted = [k for k in gross if notes[k] != NOTHING]
        # Of several what warned least: the others' users were told.
        noted.sort(key=lambda k: -RANKS.index(notes[k]) if notes[k] in RANKS else -len(RANKS))
        lay = "data set {} lay {:.3g} of its own sds off and "
        told = [lay.format(k, worst[k]) + "nothing was said of it" for k in silent[:1]]
        told += [lay.format(k, worst[k]) + f"said `{notes[k]}` at worst" for k in noted[:1]]
        return ", ".join(told)

    def _missing_most(self) -> list[int]:
        """Where intervals held too rarely, data sets by how many truths they missed."""
        held = self.fitted.holds(self.truths)[self._kept]
        if not len(held) or not Share.of(held, self.level).too_rare(self.level):
            return []
        order = np.argsort(held.mean(1), kind="stable")
        return [self._kept[k] for k in order if not held[k].all()]

    def far_off(self, names: Sequence[str], reference: Posteriors | None, called: str) -> list[str]:
        """Data sets with a truth far off, a line each: what was said, was true, and was found.

        Where none lies far off and intervals held too rarely, those that missed most.

        :param names: of the coordinates.
        :param reference: posteriors on the same data sets, of a method ``called`` so.
        """
        notes, worst, lines = self.fitted.notes, self._distances.worst, []
        for k in (self._distances.named(self._kept) or self._missing_most())[:SHOWN]:
            off = self._distances.off[k]
            said = "nothing" if notes[k] == NOTHING else f"`{notes[k]}`"
            beside = ""
            if reference is not None:
                own = Distances.of(self.truths, reference.mean, reference.sd).worst[k]
                beside = f" ({called}: {own:.2g})" if own >= 0 else ""
            told = "; ".join(
                f"{names[j]} {self.truths[k, j]:.3g} (found {self.fitted.mean[k, j]:.3g} ± "
                f"{self.fitted.sd[k, j]:.2g})"
                for j in np.argsort(-np.nan_to_num(off), kind="stable")[:SHOWN]
            )
            lines.append(
                f"  data set {k}, which said {said}, lay {worst[k]:.3g} of its own sds off{beside};"
                f" truths missed most: {told}"
            )
        return lines
