"""What a posterior predictive check says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from numpyro_dp.accounting import PrivacyReport
from numpyro_dp.diagnostics.checks.result import Interval, cost, for_arviz, interval
from numpyro_dp.diagnostics.plots import axes_or_new

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class StatisticCheck(NamedTuple):
    """One statistic, in its own units.

    - **observed**: its mean over the records.
    - **expected**: its mean under the posterior predictive law, at the records' own inputs.
    - **difference**: observed less expected, before noise moved one of them out of its range and
      it was cut back.
    - **standard_error**: of ``difference``, for the population that the records were drawn from:
      privacy noise and the records' own variation.
    - **noise_sd**: standard deviation of the privacy noise in ``difference``; that in ``observed``
      and in ``expected`` is smaller by √2.
    - **posterior_sd**: estimated standard deviation of the expected mean over the draws.
    - **p_value**: posterior predictive: probability that the mean of replicated records, released
      with the same noise, is at least the observed one. Near 0 and near 1 the model is off.

    Each is one number; all but the last are in the units of the statistic.

    **Privacy.** A function of what the check released.
    """

    observed: float
    expected: float
    difference: float
    standard_error: float
    noise_sd: float
    posterior_sd: float
    p_value: float

    def interval(self, level: float = 0.95) -> Interval:
        """A central interval for ``difference``.

        :param level: the probability that it holds the population's.
        :returns: its ends.
        :raises ValueError: a level outside of (0, 1).
        """
        return interval(self.difference, self.standard_error, level)


@dataclass(frozen=True, eq=False)
class PredictiveCheck:
    """What :func:`private_posterior_predictive_check` returns; ``print`` it, or ``.plot()`` it.

    :param statistics: what was found, by name, each a
        :class:`~numpyro_dp.diagnostics.checks.predictive_result.StatisticCheck` of single numbers.
    :param num_records: how many records were held out.
    :param privacy: the :class:`~numpyro_dp.PrivacyReport` of this check.

    **Privacy.** Released statistics and what follows from them, paid for by the function's charge.

    **References**: see :func:`private_posterior_predictive_check`.

    **Example**: see :func:`private_posterior_predictive_check`.
    """

    statistics: Mapping[str, StatisticCheck]
    num_records: int
    privacy: PrivacyReport

    def __getitem__(self, name: str) -> StatisticCheck:
        """What was found of one statistic."""
        return self.statistics[name]

    def __str__(self) -> str:
        width = max(10, *(len(name) for name in self.statistics))
        lines = [f"posterior predictive check ({self.num_records:,} records)"]
        lines.append(f"  {'':{width}}{'observed':>11}{'expected':>11}{'difference':>23}{'p':>7}")
        for name, found in self.statistics.items():
            apart = f"{found.difference:.3g} ± {found.standard_error:.2g}"
            lines.append(
                f"  {name:{width}}{found.observed:11.4g}{found.expected:11.4g}{apart:>23}"
                f"{found.p_value:7.3f}"
            )
        lines.append("  p near 0 or 1: the model is off; else these records do not show it")
        return "\n".join([*lines, f"  {cost(self.privacy)}"])

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw each difference over its standard error, with a 95 % interval.

        :param ax: matplotlib axes to draw into; ``None`` makes new ones.
        :returns: the axes.
        :raises ImportError: when matplotlib is not installed.
        """
        axes = axes_or_new(ax)
        places = np.arange(len(self.statistics))
        apart = [found.difference / found.standard_error for found in self.statistics.values()]
        reach = np.subtract(interval(0.0, 1.0, 0.95).upper, 0.0)
        axes.axvline(0, color="k", linestyle="--", linewidth=1)
        axes.errorbar(apart, places, xerr=reach, fmt="o", color="C0")
        axes.set_yticks(places, labels=list(self.statistics))
        axes.invert_yaxis()
        axes.set_xlabel("observed less expected, in standard errors")
        return axes

    def to_inference_data(self) -> Any:
        """For ArviZ: the table as group ``private_check`` with dimension ``statistic``.

        :returns: an ``xarray.DataTree`` with ArviZ 1, ``arviz.InferenceData`` with ArviZ 0.23.
        :raises ImportError: when ArviZ is not installed.
        """
        columns = zip(*self.statistics.values(), strict=True)
        return for_arviz(
            dict(zip(StatisticCheck._fields, map(np.array, columns), strict=True)),
            self.privacy,
            dims=("statistic",),
            coords={"statistic": list(self.statistics)},
            num_records=self.num_records,
        )
