"""An exact lower confidence bound on ε from the scores of two samples.

A threshold on the score is a test of which data set was used; (ε, δ)-differential privacy bounds
the odds of every such test. The threshold is chosen on one half of the scores and judged on the
other, so that the choice costs no confidence.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float
from scipy.special import expit
from scipy.stats import beta

from numpyro_dp.diagnostics.plots import axes_or_new

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_THRESHOLDS = 400
# The best of many thresholds looks better than it is, above all where counts are small; choosing
# under narrower odds of error keeps to those that hold up.
_CAUTION = 100

Scores = Float[np.ndarray, " chains"]


@dataclass(frozen=True)
class LowerBound:
    """What an attack proved, beside what is stated; no guarantee follows from it."""

    epsilon_lower: float
    epsilon_reported: float
    delta: float
    confidence: float

    @property
    def refutes(self) -> bool:
        """Whether the reported ε is too small, at the stated confidence."""
        return self.epsilon_lower > self.epsilon_reported

    @property
    def ceiling(self) -> float:
        """The largest ε that the attack could have shown."""
        raise NotImplementedError

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw what was proved beside what is stated.

        :param ax: matplotlib axes to draw into; ``None`` makes new ones.
        :returns: the axes: a bar of all ε that are refuted, a line at the reported one, and a
            dotted one at the most that the attack could have shown.
        :raises ImportError: when matplotlib is not installed.
        """
        axes = axes_or_new(ax)
        colour = "tab:red" if self.refutes else "tab:blue"
        axes.barh([0], [self.epsilon_lower], color=colour, height=0.5, label="refuted ε")
        axes.axvline(self.epsilon_reported, color="black", label="reported ε")
        axes.axvline(self.ceiling, color="grey", linestyle=":", label="most that could be shown")
        axes.set(yticks=[], ylim=(-1, 1), xlabel=f"ε at δ = {self.delta:.3g}")
        axes.set_xlim(left=0)
        axes.legend(loc="upper right", frameon=False)
        return axes

    def _said(self, claim: str, evidence: str, warning: str) -> str:
        """The finding in words; ``claim`` says of what the ε is."""
        verdict = "is REFUTED." if self.refutes else "is not contradicted."
        text = (
            f"With {100 * self.confidence:g} % confidence no ε below {self.epsilon_lower:.4g} "
            f"holds at δ = {self.delta:.3g} {claim}. The reported ε = {self.epsilon_reported:.4g} "
            f"{verdict} {evidence}; so many could show at most ε = {self.ceiling:.3g}. {warning}"
        )
        return textwrap.fill(text, 99)


@dataclass(frozen=True)
class Verdict:
    """One test, judged on scores that had no part in its choice.

    :param epsilon: lower confidence bound on ε; 0 when the test shows nothing.
    :param first: whether the test's positives are runs of the first data set.
    :param threshold: the score above which a run counts as a positive.
    :param hits: runs above the threshold on the data set of the positives.
    :param false_hits: runs above it on the other one.
    :param runs: runs judged on each data set.
    """

    epsilon: float
    first: bool
    threshold: float
    hits: int
    false_hits: int
    runs: int


def best_verdict(first: Scores, second: Scores, *, delta: float, confidence: float) -> Verdict:
    """Choose a threshold and an order on the first halves, judge them on the second halves.

    :param first: scores of independent runs on one data set.
    :param second: as many on its neighbour.
    :param delta: δ of the statement that is tested.
    :param confidence: probability that the returned ε is not above the truth.
    """
    half = len(first) // 2
    cautious = 1 - (1 - confidence) / _CAUTION
    # Evenly spaced in the log odds of the quantile: what tells neighbours apart sits in the tails.
    both = np.concatenate([first[:half], second[:half]])
    reach = np.log(len(both))
    learnt = np.unique(np.quantile(both, expit(np.linspace(-reach, reach, _THRESHOLDS))))
    best, first_is_positive, threshold = -1.0, True, float(learnt[0])
    for order in (True, False):
        pair = (first[:half], second[:half]) if order else (second[:half], first[:half])
        hits, false_hits = (
            len(scores) - np.searchsorted(np.sort(scores), learnt, side="right") for scores in pair
        )
        epsilon = epsilon_from_counts(
            hits, false_hits, half, half, delta=delta, confidence=cautious
        )
        if epsilon.max() > best:
            best, first_is_positive = float(epsilon.max()), order
            threshold = float(learnt[epsilon.argmax()])
    held = (first[half:], second[half:]) if first_is_positive else (second[half:], first[half:])
    hits, false_hits = (int(np.sum(scores > threshold)) for scores in held)
    runs = len(held[0])
    epsilon = epsilon_from_counts(hits, false_hits, runs, runs, delta=delta, confidence=confidence)
    return Verdict(float(epsilon), first_is_positive, threshold, hits, false_hits, runs)


def epsilon_from_counts(
    hits: np.ndarray | int,
    false_hits: np.ndarray | int,
    runs: int,
    other_runs: int,
    *,
    delta: float,
    confidence: float,
) -> np.ndarray:
    """Lower confidence bound on ε from how often one fixed event happened on each data set.

    With probability ``confidence`` the two Clopper-Pearson limits hold together, and both orders
    of the pair follow from them: the event itself, and its complement with the data sets swapped.

    :param hits: how often the event happened in ``runs`` runs on one data set.
    :param false_hits: how often it happened in ``other_runs`` runs on the other.
    :param delta: δ of the statement that is tested.
    :param confidence: joint confidence of the two limits.
    :returns: ε ≥ 0, of the common shape of the counts.
    """
    error = (1 - confidence) / 2
    least = _lower_limit(np.asarray(hits), runs, error)
    most = 1 - _lower_limit(other_runs - np.asarray(false_hits), other_runs, error)
    with np.errstate(divide="ignore", invalid="ignore"):
        event = np.log(np.maximum(least - delta, 0) / most)
        complement = np.log(np.maximum(1 - most - delta, 0) / (1 - least))
    return np.maximum(np.maximum(event, complement), 0.0)


def _lower_limit(count: np.ndarray, runs: int, error: float) -> np.ndarray:
    """Clopper-Pearson: the chance below which ``count`` or more has probability ``error``."""
    limit = beta.ppf(error, np.maximum(count, 1), runs - count + 1)
    return np.where(count == 0, 0.0, limit)
