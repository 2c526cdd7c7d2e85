"""What may be said of intervals from a few data sets: of their share, and of single misses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import betainc
from scipy.stats import norm

# Chance of the alarm "too rarely" where intervals are right; of the same of any site; of a pass
# where they are as much too narrow as `_NARROW` says.
ALARM, SITE_ALARM, _PASS = 0.025, 0.01, 0.05
# What has to be told from intervals that are right: those three quarters as wide.
_NARROW = 0.75
# Own standard deviations that a truth lies off by: named; and no chance of a right method's.
NAMED, _GROSS = 5.0, 6.0
# Standard errors that a suggested number of data sets may fall short of what is expected of them.
_LUCK = 0.67
_MOST_SUGGESTED = 10_000


class Share(NamedTuple):
    """Which part of the intervals held their truths, and how many coordinates' worth that is.

    - **held**: the part.
    - **datasets**: data sets.
    - **shared**: part of a single truth's variance that its data set's others have in common with
      it: one where a data set holds all of its truths or none, 1/d where its d truths are
      independent.

    A data set that misses nearly all of its truths makes an estimated standard error large, which
    must not be taken for leniency. The tests below are binomial, of ``datasets / shared`` truths:
    misses that come together leave fewer of these, never fewer than data sets.
    """

    held: float
    datasets: int
    shared: float

    @classmethod
    def of(cls, held: Bool[np.ndarray, "datasets coordinates"], level: float) -> Share:
        """From a table of what was held."""
        datasets, dim = len(held), max(held.shape[1], 1)
        by_set = held.mean(1)
        share = float(by_set.mean())
        # One data set more is made up, whose truths hang together by half: where nothing was
        # missed there is no variance to divide.
        one = level * (1 - level)
        between = np.sum((by_set - share) ** 2) * datasets / max(datasets - 1, 1)
        between += one * (1 + 1 / dim) / 2
        shared = between / (datasets * share * (1 - share) + one)
        return cls(share, datasets, float(np.clip(shared, 1 / dim, 1.0)))

    def too_rare(self, level: float, chance: float = ALARM) -> bool:
        """Whether right intervals would hold so few with less than this chance."""
        held, missed = self._counts()
        # The beta integral is the binomial's tail, of counts that need not be whole.
        return missed > 0 and 1 - float(betainc(held + 1, missed, level)) < chance

    def tells(self, level: float) -> bool:
        """Whether intervals three quarters as wide would hardly hold so many."""
        held, missed = self._counts()
        return held > 0 and float(betainc(held, missed + 1, too_narrow(level))) < _PASS

    def enough(self, level: float) -> int:
        """Data sets that will mostly tell, if intervals are right; in tens."""
        for number in range(10, _MOST_SUGGESTED, 10):
            luck = _LUCK * math.sqrt(level * (1 - level) * self.shared / number)
            if number > self.datasets and self._replace(held=level - luck, datasets=number).tells(
                level
            ):
                return number
        return _MOST_SUGGESTED

    def _counts(self) -> tuple[float, float]:
        truths = self.datasets / self.shared
        return self.held * truths, (1 - self.held) * truths


def too_narrow(level: float) -> float:
    """What intervals of this level hold if they are three quarters as wide as they should be."""
    return float(2 * norm.cdf(_NARROW * norm.ppf((1 + level) / 2)) - 1)


class Distances(NamedTuple):
    """How far truths lie from the means, in the fits' own standard deviations; NaN if not finite.

    - **off**: of each truth.
    - **worst**: of each data set's farthest; -1 where none is finite.
    """

    off: Float[np.ndarray, "datasets coordinates"]
    worst: Float[np.ndarray, " datasets"]

    @classmethod
    def of(cls, truths: np.ndarray, mean: np.ndarray, sd: np.ndarray) -> Distances:
        """From tables of each; what is the same number in all data sets is no truth to find."""
        spread = truths.std(0)
        varies = spread > 1e-6 * np.abs(truths).max(0)
        # A method without any spread is far off wherever it is not exact.
        off = np.abs(truths - mean) / np.maximum(sd, 1e-6 * np.where(varies, spread, 1.0))
        off = np.where(varies, off, 0.0)
        return cls(off, np.where(np.isnan(off), -1.0, off).max(1))

    def gross(self, among: Sequence[int]) -> list[int]:
        """Data sets of these with a miss that no right method makes, the farthest off first.

        One beyond six sds, or two beyond five.
        """
        far = self.named(among)
        return far if len(far) > 1 or any(self.worst[k] > _GROSS for k in far) else []

    def named(self, among: Sequence[int]) -> list[int]:
        """Data sets of these with a truth more than five sds off, the farthest first."""
        far = [k for k in among if self.worst[k] > NAMED]
        return sorted(far, key=lambda k: -self.worst[k])
