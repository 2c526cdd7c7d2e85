"""``private_log_predictive_density``: how well a posterior predicts records it has not seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from numpyro_dp import _validate
from numpyro_dp.accounting import Accountant, Budget
from numpyro_dp.diagnostics.checks.default_range import default_range, log_predictive_density
from numpyro_dp.diagnostics.checks.question import Draws, Question
from numpyro_dp.diagnostics.checks.release import Payment, Subject, answered
from numpyro_dp.diagnostics.checks.result import PrivateScore, cost, spread_of_mean
from numpyro_dp.families.outcome import holds_numbers, observed_of
from numpyro_dp.model.private_model import PrivateModel

# What of a record's norm goes to its square, and as much to whether it was cut: together they add
# a twelfth to the noise of the mean.
_SQUARE = _CUT = 0.3
# Of the range: the largest possible density is not passed by what float32 makes of it.
_ROUNDING = 1e-4


@dataclass(frozen=True, eq=False)
class LogPredictiveDensity(PrivateScore):
    """What :func:`private_log_predictive_density` returns; ``print`` it.

    :param estimate: mean over records of the log predictive density, in nats, each cut to
        ``bounds``.
    :param standard_error: as in :class:`~numpyro_dp.diagnostics.checks.result.PrivateScore`: noise
        and the variation between records, which is released too.
    :param bounds: what log densities are cut to: least and largest, in nats.
    :param share_cut: estimated share, in [0, 1], of the records whose log density was cut, or was
        no number.
    :param share_cut_noise_sd: standard deviation of the privacy noise in ``share_cut``.

    **Privacy.** Released sums and what follows from them, paid for by the function's charge.

    **References**: see :func:`private_log_predictive_density`.

    **Example**: see :func:`private_log_predictive_density`.
    """

    bounds: tuple[float, float]
    share_cut: float
    share_cut_noise_sd: float

    @property
    def possible(self) -> tuple[float, float]:
        """The bounds."""
        return self.bounds

    def __str__(self) -> str:
        low, high = self.bounds
        lines = self._told("log predictive density of a record")
        lines.append(
            f"  cut to [{low:.4g}, {high:.4g}]: {_percent(self.share_cut)} ± "
            f"{_percent(self.share_cut_noise_sd)} of the records"
        )
        return "\n".join([*lines, f"  {cost(self.privacy)}"])

    def _numbers(self) -> dict[str, float]:
        low, high = self.bounds
        cut = {"share_cut": self.share_cut, "share_cut_noise_sd": self.share_cut_noise_sd}
        return {**super()._numbers(), "low": low, "high": high, **cut}


def _percent(share: float) -> str:
    """To two digits, and to the whole per cent from ten on: ``.2g`` makes 1e+02 of 100."""
    return f"{100 * share:.0f} %" if share >= 0.0995 else f"{100 * share:.2g} %"


@dataclass(frozen=True)
class _Density(Question):
    """Log density of a record, its square, and whether it was cut."""

    low: float
    high: float
    masked: bool

    summands = "log predictive densities, their squares, and which of them were cut"
    released = (
        "the noisy mean of the cut log predictive densities",
        "the noisy mean of their squares",
        "the noisy share of those that were cut",
    )
    dim = 3
    bound = float(np.sqrt(1 + _SQUARE**2 + _CUT**2))
    coarseness = 0.5

    def vector(self, draws: Draws, record: list[Array], key: Key[Array, ""]) -> Float[Array, "3"]:
        found = log_predictive_density(self.model, draws, record)
        # What is missing is the model's business where it masks, and else speaks against it.
        found = jnp.where(self.masked | holds_numbers(record), found, -jnp.inf)
        kept = jnp.clip(jnp.where(jnp.isfinite(found), found, self.low), self.low, self.high)
        scaled = (2 * kept - self.low - self.high) / (self.high - self.low)
        scaled = jnp.clip(scaled, -1, 1)
        within = jnp.abs(found - kept) <= _ROUNDING * (self.high - self.low)
        cut = jnp.where(within, -1.0, 1.0)
        return jnp.stack([scaled, _SQUARE * (2 * scaled**2 - 1), _CUT * cut])


def private_log_predictive_density(
    rng_key: Any,
    model: Callable[..., Any],
    posterior_samples: Any,
    *args: Any,
    privacy: Budget | None = None,
    noise_multiplier: float | None = None,
    bounds: tuple[float, float] | None = None,
    accountant: Accountant | None = None,
    data_plate: str | None = None,
    allow_unresolved: bool = False,
    secure: bool = True,
    **kwargs: Any,
) -> LogPredictiveDensity:
    """How well a posterior predicts private records that it has not seen: the question of ``loo``.

    The mean over held-out records of log (1/S) Σ_s p(record | draw s), each cut to ``bounds``. It
    compares models on the same records: the higher, the better. Records that the posterior was
    fitted to are charged all the same, and flatter the model.

    :param rng_key: a JAX key; with ``secure=True`` it governs nothing.
    :param model: the NumPyro model, as it was fitted.
    :param posterior_samples: *released* draws of its latents by site, shape (draws, ...), such as
        ``mcmc.get_samples()``; or an object that has ``get_samples()``.
    :param args: the model's arguments, held-out records among them.
    :param privacy: :class:`~numpyro_dp.Budget` of this check; or
    :param noise_multiplier: standard deviation of the noise over the norm of a record's vector.
    :param bounds: least and largest log density of a record in nats, public numbers. By default
        [-log K - 3, 0] for an outcome of K classes, else the range of 4,096 records made up from
        the model at the draws (inputs between 0.1 and 0.9) and log 2 more at either end; of counts
        up to 0, and without the lowest of 500. Give them where real inputs are elsewhere: the share
        of cut records tells.
    :param accountant: the ledger that must agree; without one the report stands alone.
    :param data_plate: name of the plate whose slices are the records, when several enclose the
        observations; ``"auto"`` takes each row for one, where no plate does.
    :param allow_unresolved: release even where noise would drown the answer.
    :param secure: whether the noise comes from keys of the operating system, as in
        :class:`~numpyro_dp.MCMC`.
    :param kwargs: the model's keyword arguments.
    :returns: the mean in nats a record, with errors, the share of cut records and what it cost.
    :raises BudgetExceededError: the accountant refuses; nothing was charged.
    :raises UnsupportedModelError: the model cannot be split, outcomes cannot be made up and
        ``bounds`` is not given, or the number of records is private.
    :raises ValueError: an argument is out of range, draws are missing or not finite, or noise would
        drown the answer.

    **Privacy.** Released: one noisy sum over all records of (u, 0.3·(2u² - 1), ±0.3), u the cut log
    density scaled to [-1, 1] and the last its mark of a cut; a record whose density is no number,
    or that holds NaN or infinity in a model without ``handlers.mask``, counts as cut at the lower
    end. Sensitivity √1.18 under zero-out, where a null record adds 0,
    and twice that under replace-one; event ``Gaussian(noise_multiplier)`` on the integer lattice
    and the total variation of its table, charged before a record is read. The default bounds see no
    record. Under add/remove, where N is private, it is refused.

    **References.** Vehtari, Gelman and Gabry, *Practical Bayesian model evaluation using
    leave-one-out cross-validation and WAIC* (2017) for the question; *How a step is released*
    (docs/explanation/how-a-step-is-released.md) for private scores.

    **Example**::

        >>> import jax, numpy as np, numpyro, numpyro.distributions as dist, numpyro_dp as ndp
        >>> def model(y):
        ...     mean = numpyro.sample("mean", dist.Normal(0, 10))
        ...     with numpyro.plate("people", y.shape[0]):
        ...         numpyro.sample("y", dist.Normal(mean, 1), obs=y)
        >>> draws = {"mean": np.random.default_rng(0).normal(3.0, 0.1, 200)}
        >>> held_out = np.random.default_rng(1).normal(3.0, 1.0, 4_000)
        >>> found = ndp.private_log_predictive_density(
        ...     jax.random.key(0), model, draws, held_out, privacy=ndp.Budget(1.0, 1e-5))
        >>> bool(abs(found.estimate + 1.42) < 0.1), bool(found.privacy.epsilon <= 1)
        (True, True)
    """
    payment = Payment(
        "private_log_predictive_density",
        privacy,
        noise_multiplier,
        accountant,
        bool(allow_unresolved),
        secure,
    )
    given = None if bounds is None else checked_range("bounds", bounds)

    def ask(split: PrivateModel, draws: Draws) -> _Density:
        low, high = default_range(split, draws) if given is None else given
        return _Density(split, low, high, observed_of(split).masked)

    subject = Subject(model, posterior_samples, args, kwargs, data_plate)
    question, answer = answered(payment, rng_key, subject, ask)
    mean, square, cut = answer.mean / (1, _SQUARE, _CUT)
    low, high = question.low, question.high
    half = (high - low) / 2
    spread = spread_of_mean(mean, (1 + square) / 2, answer, square_noise=0.5 / _SQUARE)
    error = np.hypot(spread, answer.noise_sd)
    return LogPredictiveDensity(
        estimate=float(np.clip(low + half * (1 + mean), low, high)),
        standard_error=float(half * error),
        noise_sd=half * answer.noise_sd,
        num_records=answer.num_records,
        privacy=answer.privacy,
        bounds=(low, high),
        share_cut=float(np.clip((1 + cut) / 2, 0, 1)),
        share_cut_noise_sd=answer.noise_sd / (2 * _CUT),
    )


def checked_range(name: str, given: Any) -> tuple[float, float]:
    """Two finite numbers, the first one less.

    :raises ValueError: for anything else.
    """
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise ValueError(f"{name} must be (low, high), got {_validate.shown(given)}")
    low, high = (_validate.finite_float(name, end) for end in given)
    if low >= high:
        raise ValueError(f"{name} must be (low, high) with low below high, got ({low}, {high})")
    # Vectors are rounded in single precision.
    with np.errstate(over="ignore"):
        length = np.float32(high) - np.float32(low)
    if not (np.isfinite(length) and length > 1e-6 * max(abs(low), abs(high))):
        raise ValueError(f"{name}=({low}, {high}) are no two numbers of single precision")
    return low, high
