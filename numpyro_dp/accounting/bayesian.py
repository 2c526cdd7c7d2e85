"""Bayesian accounting: what a run tells of a *typical* record. It is not differential privacy.

The figures here are averages over a sample of records. They say nothing of the record that is
unlike the sample, which is the one that needs protection; they are therefore never called ε, never
enter a budget or a ledger, and always stand beside the worst case.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon
from numpy.typing import ArrayLike
from scipy.special import gammaln, logsumexp

from numpyro_dp._validate import own_numbers, positive, rate
from numpyro_dp.accounting.curve import privacy_curve
from numpyro_dp.accounting.events import (
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)
from numpyro_dp.accounting.rounding import rounded_up

_ORDERS = (*range(2, 65), 80, 96, 128, 160, 192, 256)
_LEVELS = 200


@dataclass(frozen=True)
class TypicalCost:
    """A typical-case diagnostic beside the worst case; made by ``typical_cost``.

    :param cost: ε_μ of the sample of records.
    :param delta: δ_μ, and the δ of ``worst_case``.
    :param worst_case: ε of the same run: the differential privacy guarantee.
    :param num_records: m, how many public or held-out records the figure is about.
    :param quantile: of the records' costs, None for their exponential average.
    :param num_steps: steps of the run.

    **Privacy.** A function of the distances that were given: public where these are.
    """

    cost: float
    delta: float
    worst_case: float
    num_records: int
    quantile: float | None
    num_steps: int

    def __str__(self) -> str:
        which = "average" if self.quantile is None else f"{self.quantile:.0%} quantile"
        return (
            "Typical-case diagnostic, NOT differential privacy: (ε_μ, δ_μ) = "
            f"({rounded_up(self.cost)}, {self.delta:.3g}), {which} over {self.num_records} public "
            f"or held-out records and {self.num_steps} steps, without any statement of confidence. "
            f"The guarantee of this run is ε = {rounded_up(self.worst_case)} at the same δ."
        )

    def __float__(self) -> float:
        raise TypeError(
            "a typical-case diagnostic is no number to compare with ε or to add to one: read "
            ".cost together with .worst_case"
        )


@dataclass(frozen=True)
class BayesianAccountant:
    """Accounts for what Poisson-subsampled Gaussian steps tell of typical records.

    :param sampling_rate: chance of a record to take part in a step, in (0, 1].
    :param noise_multiplier: noise standard deviation over ``clip_norm``.
    :param clip_norm: L2 bound on a record's contribution; longer distances are cut to it.

    **Privacy.** None. The distances must come from *public or held-out* records: computed from the
    training records they would be a release that nothing accounts for. The accountant cannot tell
    them apart; it takes no budget and charges nothing.

    **References.** Triastcyn and Faltings, *Bayesian Differential Privacy for Machine Learning*
    (2020). Their estimator adds a Student-t bound and claims a failure probability of 1e-15; with
    one record in a thousand far from the rest, a sample misses all of them, and with them the
    bound, nine times in ten. No confidence is stated here: *Bayesian differential privacy is not
    differential privacy* (docs/explanation/bayesian-dp.md).

    **Example**::

        >>> accountant = BayesianAccountant(sampling_rate=0.02, noise_multiplier=1.0, clip_norm=1.0)
        >>> distances = np.full((100, 50), 0.1)
        >>> found = accountant.typical_cost(distances, delta=1e-5)
        >>> found.cost < found.worst_case
        True
    """

    sampling_rate: float
    noise_multiplier: float
    clip_norm: float

    def __post_init__(self) -> None:
        own_numbers(self)
        rate("sampling_rate", self.sampling_rate)
        positive("noise_multiplier", self.noise_multiplier)
        positive("clip_norm", self.clip_norm)

    def typical_cost(
        self,
        distances: ArrayLike,
        *,
        delta: float,
        quantile: float | None = None,
    ) -> TypicalCost:
        """Return the typical cost of a run.

        :param distances: shape (steps, m); for each step and each of m public or held-out records,
            the norm of what the record would contribute to that step.
        :param delta: δ_μ, and the δ of the worst case, in (0, 1).
        :param quantile: in (0, 1), the quantile of the records' costs to report; None averages
            their exponentials.
        :returns: The diagnostic, with the worst case beside it. Each record's Rényi cost is summed
            over all steps first, and only then averaged: the exponential of a whole run stands
            inside the expectation.
        :raises ValueError: when distances are not a table of finite numbers ≥ 0, or a number is out
            of range.
        """
        table = np.asarray(distances, float)
        if table.ndim != 2 or table.size == 0 or not np.all(np.isfinite(table) & (table >= 0)):
            raise ValueError(
                "distances must be a table (steps, records) of finite numbers that are not negative"
            )
        if not 0 < delta < 1:
            raise ValueError(f"delta must lie in (0, 1), got {delta!r}")
        if quantile is not None and not 0 < quantile < 1:
            raise ValueError(f"quantile must lie in (0, 1), got {quantile!r}")
        costs = self._record_costs(np.minimum(table, self.clip_norm))
        orders = np.array(_ORDERS, float)
        if quantile is None:
            typical = logsumexp((orders - 1) * costs, axis=0, b=1 / len(costs)) / (orders - 1)
        else:
            typical = np.quantile(costs, quantile, axis=0, method="higher")
        # Averaged in this way it is the Rényi divergence of record and output together.
        cost, _ = compute_epsilon(_ORDERS, typical.tolist(), delta)
        steps, records = table.shape
        worst = self._worst_case(steps, delta)
        return TypicalCost(max(float(cost), 0.0), delta, worst, records, quantile, steps)

    def _record_costs(self, table: np.ndarray) -> np.ndarray:
        """Rényi cost of each record over all steps, shape (records, orders)."""
        # Distances are rounded up to levels, so that the formula is evaluated a few times only.
        unit = self.clip_norm / _LEVELS
        levels = np.ceil(table / unit - 1e-9).astype(int)
        one_step = np.zeros((_LEVELS + 1, len(_ORDERS)))
        for level in np.unique(levels):
            if level:
                one_step[level] = self._renyi(level / _LEVELS)
        return np.stack([one_step[column].sum(0) for column in levels.T])

    def _renyi(self, share: float) -> np.ndarray:
        """Rényi divergences of one step for a record at ``share`` of the clip norm.

        Mironov, Talwar and Zhang, *Rényi Differential Privacy of the Sampled Gaussian Mechanism*
        (2019), section 3.3, at whole orders.
        """
        square = (share / self.noise_multiplier) ** 2
        q = self.sampling_rate
        if q == 1:
            return np.array(_ORDERS) * square / 2
        found = []
        for order in _ORDERS:
            k = np.arange(order + 1)
            chances = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
            chances += k * math.log(q) + (order - k) * math.log1p(-q)
            found.append(logsumexp(chances + (k * k - k) * square / 2) / (order - 1))
        return np.array(found)

    def _worst_case(self, steps: int, delta: float) -> float:
        release = GaussianDpEvent(self.noise_multiplier)
        sampled = PoissonSampledDpEvent(self.sampling_rate, release)
        event = release if self.sampling_rate == 1 else sampled
        return privacy_curve(SelfComposedDpEvent(event, steps)).epsilon(delta)
