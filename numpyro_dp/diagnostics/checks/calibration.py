"""``private_calibration_curve``: are outcomes as frequent as a posterior says?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from scipy.stats import chi2

from numpyro_dp import _validate
from numpyro_dp.accounting import Accountant, Budget, PrivacyReport
from numpyro_dp.diagnostics.checks.accuracy import Forecast, classes_of
from numpyro_dp.diagnostics.checks.question import Draws, Question
from numpyro_dp.diagnostics.checks.release import Answer, Payment, Subject, answered
from numpyro_dp.diagnostics.checks.result import Interval, cost, for_arviz, interval
from numpyro_dp.diagnostics.plots import axes_or_new
from numpyro_dp.families.outcome import Outcome
from numpyro_dp.model.private_model import PrivateModel

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Half of a count, as the other part of a record's vector is half of an outcome.
_COUNT = 0.5
# A bin whose count is less than so many standard deviations of its noise tells nothing.
_LEAST_COUNT = 4.0
_MOST_BINS = 50

Bins = Float[np.ndarray, " bins"]


@dataclass(frozen=True, eq=False)
class CalibrationCurve:
    """What :func:`private_calibration_curve` returns; ``print`` it, or ``.plot()`` it.

    Arrays have one entry for each bin, shape (bins,); NaN where too few records lie in it to tell.
    Frequencies, probabilities and their errors are shares, and not percentages.

    :param edges: of the bins of predicted probability, shape (bins + 1,).
    :param count: estimated number of records in each bin.
    :param predicted: the middle of each bin.
    :param observed: ``predicted`` plus the mean over the bin's records of outcome less predicted
        probability: the frequency that would be observed there, were all of them predicted the
        middle.
    :param standard_error: of ``observed``, for the population that the records were drawn from:
        privacy noise and the records' own variation.
    :param noise_sd: of it, what the privacy noise adds, in ``observed``.
    :param count_noise_sd: standard deviation of the privacy noise in each count.
    :param statistic: sum over bins of the squared deviations, each over the variance that it would
        have in a calibrated model.
    :param p_value: probability that a calibrated model's statistic is at least as large.
    :param event: what is predicted, in words.
    :param num_records: how many records were held out.
    :param privacy: the :class:`~numpyro_dp.PrivacyReport` of this check.

    **Privacy.** One released vector of sums and what follows from it, paid for by the function's
    charge.

    **References**: see :func:`private_calibration_curve`.

    **Example**: see :func:`private_calibration_curve`.
    """

    edges: Float[np.ndarray, " edges"]
    count: Bins
    predicted: Bins
    observed: Bins
    standard_error: Bins
    noise_sd: Bins
    count_noise_sd: float
    statistic: float
    p_value: float
    event: str
    num_records: int
    privacy: PrivacyReport

    def interval(self, level: float = 0.95) -> Interval:
        """A central interval for ``observed`` in each bin.

        :param level: the probability that it holds the population's.
        :returns: its ends, cut to [0, 1].
        :raises ValueError: a level outside of (0, 1).
        """
        return interval(self.observed, self.standard_error, level, (0.0, 1.0))

    def __str__(self) -> str:
        lines = [f"calibration of {self.event} ({self.num_records:,} records)"]
        lines.append(f"  {'predicted':13}{'observed less predicted':25}{'records':>14}")
        # Not the sum with the middle of the bin: predictions need not lie there.
        rows = zip(self.observed - self.predicted, self.standard_error, self.count, strict=True)
        for (low, high), (apart, error, count) in zip(pairwise(self.edges), rows, strict=True):
            shown = "too few to tell" if np.isnan(apart) else f"{apart:+.3f} ± {error:.3f}"
            records = f"{max(count, 0):,.0f} ± {self.count_noise_sd:.2g}"
            lines.append(f"  {f'{low:.2f} to {high:.2f}':13}{shown:25}{records:>14}")
        told = "no bin tells" if np.isnan(self.p_value) else f"p = {self.p_value:.2g}"
        lines.append(f"  a calibrated model deviates as far with {told}; small: it is off")
        return "\n".join([*lines, f"  {cost(self.privacy)}"])

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw observed against predicted, with 95 % intervals and the line of a calibrated model.

        :param ax: matplotlib axes to draw into; ``None`` makes new ones.
        :returns: the axes.
        :raises ImportError: when matplotlib is not installed.
        """
        axes = axes_or_new(ax)
        lower, upper = self.interval()
        told = np.isfinite(self.observed)
        ends = (self.edges[0], self.edges[-1])
        axes.plot(ends, ends, "k--", linewidth=1, label="calibrated")
        axes.vlines(self.predicted[told], lower[told], upper[told], colors="C0")
        axes.plot(self.predicted[told], self.observed[told], "o", color="C0", label="records")
        axes.set(xlabel=f"predicted: {self.event}", ylabel="observed", ylim=(-0.02, 1.02))
        axes.legend(loc="upper left", frameon=False)
        return axes

    def to_inference_data(self) -> Any:
        """For ArviZ: the curve as group ``private_check`` with dimension ``bin``.

        :returns: an ``xarray.DataTree`` with ArviZ 1, ``arviz.InferenceData`` with ArviZ 0.23.
        :raises ImportError: when ArviZ is not installed.
        """
        names = ("count", "observed", "standard_error", "noise_sd")
        return for_arviz(
            {name: getattr(self, name) for name in names},
            self.privacy,
            dims=("bin",),
            coords={"bin": self.predicted.tolist()},
            edges=self.edges.tolist(),
            p_value=self.p_value,
            event=self.event,
            num_records=self.num_records,
        )


@dataclass(frozen=True)
class _Residuals(Question):
    """A record's bin, and its outcome less a half less how far its probability is off the middle.

    Outcome less probability is that and a constant of the bin, which the count multiplies.
    """

    outcome: Outcome
    edges: tuple[float, ...]

    summands = "counts of records by predicted probability, and their outcomes"
    released = (
        "a noisy number of records for each bin of predicted probability",
        "for each bin the noisy sum of outcomes less predicted probabilities",
    )
    remedy = ", or fewer bins,"

    @property
    def bins(self) -> int:
        """Number of bins."""
        return len(self.edges) - 1

    @property
    def dim(self) -> int:
        """A count and a sum for each bin."""
        return 2 * self.bins

    @property
    def half(self) -> float:
        """The most that the second part can be."""
        widest = max(high - low for low, high in pairwise(self.edges))
        return (1 + widest) / 2

    @property
    def bound(self) -> float:
        """A record lies in one bin."""
        return float(np.hypot(_COUNT, self.half))

    @property
    def coarseness(self) -> float:
        """As if records lay in all bins alike."""
        return float(self.bins)

    def vector(
        self, draws: Draws, record: list[Array], key: Key[Array, ""]
    ) -> Float[Array, " dim"]:
        forecast = Forecast(self.model, self.outcome, draws, record)
        number = 1 if self.outcome.classes == 2 else jnp.argmax(forecast.probabilities)
        predicted = forecast.probabilities[number]
        # One array would be taken for records where these are as many.
        edges = jnp.stack([jnp.asarray(edge, predicted.dtype) for edge in self.edges])
        place = jnp.searchsorted(edges[1:-1], predicted, side="right")
        middle = (edges[:-1] + edges[1:])[place] / 2
        apart = forecast.right(number) - 0.5 - (predicted - middle)
        apart = jnp.clip(apart, -self.half, self.half)
        inside = jax.nn.one_hot(place, self.bins)
        vector = jnp.concatenate([_COUNT * inside, apart * inside])
        # A record that nothing is predicted of is in no bin.
        return jnp.where(forecast.known, vector, 0.0)


def private_calibration_curve(
    rng_key: Any,
    model: Callable[..., Any],
    posterior_samples: Any,
    *args: Any,
    privacy: Budget | None = None,
    noise_multiplier: float | None = None,
    bins: int | Sequence[float] = 10,
    accountant: Accountant | None = None,
    data_plate: str | None = None,
    allow_unresolved: bool = False,
    secure: bool = True,
    **kwargs: Any,
) -> CalibrationCurve:
    """Are outcomes of held-out private records as frequent as a posterior says?

    Records are put into bins of their posterior predictive probability. Of a binary outcome that is
    the probability of 1. Of an outcome of more classes it is that of the most probable class, and
    what is observed is whether that class occurred.

    :param rng_key, model, posterior_samples, args, privacy, noise_multiplier, accountant: as in
        :func:`private_log_predictive_density`.
    :param bins: how many bins of equal width, or their edges: public numbers, ascending, from 0 (or
        1/K, of K > 2 classes) to 1. Noise is spread over the bins: the fewer, the better each is
        known.
    :param data_plate, allow_unresolved, secure, kwargs: as in
        :func:`private_log_predictive_density`.
    :returns: the curve with error bars, and what it cost.
    :raises BudgetExceededError: the accountant refuses; nothing was charged.
    :raises UnsupportedModelError: the model cannot be split, its outcome is not one of a few
        classes, or the number of records is private.
    :raises ValueError: an argument is out of range, draws are missing or not finite, or noise would
        drown the answer if records lay in all bins alike.

    **Privacy.** Released: one noisy sum over all records of a vector with two numbers for each bin,
    zero but in the record's own: ½, and its outcome less ½ less the distance of its probability
    from the bin's middle, which is at most (1 + w)/2, w the widest bin. A record that holds NaN
    or infinity adds nothing. Sensitivity √(¼ + (1 + w)²/4) under zero-out, where a
    null record adds 0, and twice that under replace-one; event ``Gaussian(noise_multiplier)`` on
    the integer lattice and the total variation of its table, charged before a record is read.
    Under add/remove, where N is private, it is refused.

    **References.** DeGroot and Fienberg (1983) for the curve; the Gaussian mechanism.

    **Example**::

        >>> import jax, numpy as np, numpyro, numpyro.distributions as dist, numpyro_dp as ndp
        >>> def model(x, y):
        ...     slope = numpyro.sample("slope", dist.Normal(0, 10))
        ...     with numpyro.plate("people", y.shape[0]):
        ...         numpyro.sample("y", dist.Bernoulli(logits=slope * x), obs=y)
        >>> draw = np.random.default_rng(0)
        >>> x = draw.uniform(-1, 1, 10_000)
        >>> y = (draw.random(10_000) < 1 / (1 + np.exp(-2 * x))).astype(int)
        >>> curve = ndp.private_calibration_curve(
        ...     jax.random.key(0), model, {"slope": np.full(10, 2.0)}, x, y, bins=5,
        ...     privacy=ndp.Budget(1.0, 1e-5))
        >>> bool(np.all(np.abs(curve.observed - curve.predicted) < 6 * curve.standard_error))
        True
    """
    payment = Payment(
        "private_calibration_curve",
        privacy,
        noise_multiplier,
        accountant,
        bool(allow_unresolved),
        secure,
    )

    def ask(split: PrivateModel, draws: Draws) -> _Residuals:
        outcome = classes_of(split, "private_calibration_curve")
        return _Residuals(split, outcome, _edges(bins, outcome.classes or 2))

    subject = Subject(model, posterior_samples, args, kwargs, data_plate)
    question, answer = answered(payment, rng_key, subject, ask)
    return _curve(question, answer)


def _edges(bins: Any, classes: int) -> tuple[float, ...]:
    first = 0.0 if classes == 2 else 1 / classes
    if not isinstance(bins, (Sequence, np.ndarray)):
        count = _validate.positive_int("bins", bins)
        edges = tuple(np.linspace(first, 1.0, min(count, _MOST_BINS + 1) + 1).tolist())
    else:
        edges = tuple(_validate.finite_float("bins", edge) for edge in bins)
    ascending = all(low < high for low, high in pairwise(edges))
    spanning = len(edges) > 1 and abs(edges[0] - first) < 1e-6 and abs(edges[-1] - 1) < 1e-6
    if not (ascending and spanning) or len(edges) > _MOST_BINS + 1:
        raise ValueError(
            f"bins must be a number of at most {_MOST_BINS}, or ascending edges from {first:.4g} "
            "to 1"
        )
    return edges


def _curve(question: _Residuals, answer: Answer) -> CalibrationCurve:
    size, edges = answer.num_records, np.array(question.edges)
    count = answer.mean[: question.bins] / _COUNT * size
    noise = answer.noise_sd * size
    middle = (edges[:-1] + edges[1:]) / 2
    known = np.where(count > _LEAST_COUNT * noise / _COUNT, count, np.nan)
    # Of the outcome less a half: where the model is calibrated, the middle less a half.
    centred = answer.mean[question.bins :] * size / known
    observed = centred + 0.5
    by_noise = noise / known * np.hypot(1, centred / _COUNT)
    # Two of each outcome more: no run of equal outcomes has a variance of zero.
    share = (np.clip(observed, 0, 1) * known + 2) / (known + 4)
    error = np.sqrt(by_noise**2 + share * (1 - share) / known)
    # What it would be of a calibrated model, whose share is that of its predictions.
    null_noise = noise / known * np.hypot(1, (middle - 0.5) / _COUNT)
    null = np.sqrt(null_noise**2 + middle * (1 - middle) / known)
    deviations = ((observed - middle) / null)[np.isfinite(known)]
    statistic = float(np.sum(deviations**2))
    binary = question.outcome.classes == 2
    return CalibrationCurve(
        edges=edges,
        count=count,
        predicted=middle,
        observed=np.clip(observed, 0, 1),
        standard_error=error,
        noise_sd=by_noise,
        count_noise_sd=noise / _COUNT,
        statistic=statistic,
        p_value=float(chi2.sf(statistic, len(deviations))) if len(deviations) else np.nan,
        event=f"{question.outcome.site} = 1" if binary else "the most probable class",
        num_records=size,
        privacy=answer.privacy,
    )
