"""``private_posterior_predictive_check``: do records look like those that a model would make?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jaxtyping import Array, Float, Key
from scipy.stats import t as student

from numpyro_dp.accounting import Accountant, Budget
from numpyro_dp.diagnostics.checks.default_range import evenly, picked
from numpyro_dp.diagnostics.checks.predictive_result import PredictiveCheck, StatisticCheck
from numpyro_dp.diagnostics.checks.question import Draws, Question
from numpyro_dp.diagnostics.checks.release import Answer, Payment, Subject, answered
from numpyro_dp.diagnostics.checks.result import spread_of_mean
from numpyro_dp.diagnostics.checks.statistics import (
    REPLICATES,
    Statistic,
    chosen_statistics,
)
from numpyro_dp.families.outcome import (
    Outcome,
    class_probabilities,
    holds_numbers,
    outcome_of,
)
from numpyro_dp.families.synthetic_records import redrawn, require_outcomes_that_follow
from numpyro_dp.model.private_model import PrivateModel
from numpyro_dp.model.records import read_arguments

# Of a record's norm, beside 1 for what it shows and 1 for what was expected: what goes to the
# square of their difference, and to how the expectation moves from draw to draw.
_SQUARE, _MOVES = 0.3, 0.5
# At so many draws; where outcomes cannot be listed, by so many replicates at each.
_DRAWS, _REPLICATES = 8, 8
_PARTS = 3 + _DRAWS


@dataclass(frozen=True)
class _Compared(Question):
    """Of each statistic what a record shows, what the model expected of it, and how sure it was."""

    outcome: Outcome
    statistics: tuple[Statistic, ...]

    summands = "statistics of outcomes, and what the model expects of them"
    released = (
        "the noisy mean of each statistic",
        "its noisy mean under the posterior predictive law, at the records' own inputs",
        "the noisy mean square of the difference",
        f"the noisy mean under each of {_DRAWS} draws",
    )
    remedy = ", or fewer statistics,"

    @property
    def dim(self) -> int:
        """So many for each statistic."""
        return _PARTS * len(self.statistics)

    @property
    def bound(self) -> float:
        """Each part is bounded by itself."""
        return float(np.sqrt(len(self.statistics) * (2 + _SQUARE**2 + _MOVES**2)))

    @property
    def coarseness(self) -> float:
        """Of a difference of two means."""
        return float(np.sqrt(0.5))

    def vector(
        self, draws: Draws, record: list[Array], key: Key[Array, ""]
    ) -> Float[Array, " dim"]:
        if self.outcome.classes is None:
            shown, expected, at_draws = self._simulated(draws, record, key)
        else:
            shown, expected, at_draws = self._enumerated(draws, record)
        squared = ((shown - expected) / 2) ** 2
        moved = at_draws - expected
        longest = jnp.sqrt(jnp.sum(moved**2, axis=0))
        moved = moved * jnp.minimum(1, _MOVES / jnp.maximum(longest, _MOVES))
        parts = jnp.stack([shown, expected, _SQUARE * (2 * squared - 1), *moved], axis=1)
        # What is no number adds nothing, to no statistic.
        known = holds_numbers(record) & jnp.all(jnp.isfinite(parts))
        return jnp.where(known, parts, 0.0).reshape(-1)

    def _scaled(
        self, record: list[Array], statistics: tuple[Statistic, ...]
    ) -> Float[Array, " statistics"]:
        return jnp.stack([each.scaled(self.model, self.outcome, record) for each in statistics])

    def _enumerated(self, draws: Draws, record: list[Array]) -> tuple[Array, Array, Array]:
        """Statistics, what is expected of them, and that at a few draws, over all classes."""
        probabilities = class_probabilities(self.model, self.outcome, draws, record)

        def of(changed: list[Array]) -> Array:
            return self._scaled(changed, self.statistics)

        classes = jnp.arange(self.outcome.classes)
        of_class = jax.vmap(lambda k: of(self.outcome.with_class(record, k)))(classes)
        few = probabilities[evenly(draws, _DRAWS)]
        return of(record), jnp.mean(probabilities, axis=0) @ of_class, few @ of_class

    def _simulated(
        self, draws: Draws, record: list[Array], key: Key[Array, ""]
    ) -> tuple[Array, Array, Array]:
        """The same, over outcomes drawn for this record at its own inputs."""

        def drawn(values: Draws, key: Any) -> list[Array]:
            return redrawn(self.model, values, record, key)

        keys = random.split(random.fold_in(key, 0), REPLICATES)
        singles = jax.vmap(drawn)(picked(draws, evenly(draws, REPLICATES)), keys)
        law, tie_key = jax.vmap(self.outcome.value)(singles), random.fold_in(key, 2)
        beside = tuple(each.against(law, tie_key) for each in self.statistics)

        def of(changed: list[Array]) -> Array:
            return self._scaled(changed, beside)

        means = jnp.mean(jax.vmap(of)(singles), axis=0)
        pairs = zip(self.statistics, means, strict=True)
        expected = jnp.stack([each.expected(mean) for each, mean in pairs])
        # The same random numbers at every draw: what moves is what the draw moves.
        keys = random.split(random.fold_in(key, 1), _REPLICATES)
        few = picked(draws, evenly(draws, _DRAWS))
        at_draws = jax.vmap(lambda values: jax.vmap(lambda key: of(drawn(values, key)))(keys))(few)
        moves = jnp.mean(at_draws, axis=1)
        return of(record), expected, expected + moves - jnp.mean(moves, axis=0)


def private_posterior_predictive_check(
    rng_key: Any,
    model: Callable[..., Any],
    posterior_samples: Any,
    *args: Any,
    privacy: Budget | None = None,
    noise_multiplier: float | None = None,
    statistics: Sequence[str] | Mapping[str, tuple[Callable[..., Any], float, float]] | None = None,
    outcome_range: tuple[float, float] | None = None,
    accountant: Accountant | None = None,
    data_plate: str | None = None,
    allow_unresolved: bool = False,
    secure: bool = True,
    **kwargs: Any,
) -> PredictiveCheck:
    """Do held-out private records look like those that a fitted model would make?

    Means of statistics of the records are compared with their means under the posterior predictive
    law *at the records' own inputs*. What a replicated record would be depends on those inputs, so
    it is part of the sum that gets the noise: no replicate leaves.

    :param rng_key: a JAX key; with ``secure=True`` it governs made-up outcomes only.
    :param model, posterior_samples, args, privacy, noise_multiplier, accountant: as in
        :func:`private_log_predictive_density`. The model has one observed site.
    :param statistics: names, or ``(function, low, high)`` by name: a function of one record's
        outcome, or of the outcome and a dictionary of the record's arrays by name, and the public
        range that it is cut to. Named are ``"mean"``, ``"spread"`` (the squared distance from the
        middle of ``outcome_range``), ``"zeros"`` (the share of outcomes that are 0), and
        ``"inside 50 %"`` and ``"inside 90 %"`` (the share in the record's own central interval). By
        default ``"mean"`` of a binary outcome, the share of each class of an outcome of at most
        ten, and else ``"mean"`` and ``"spread"`` with ``outcome_range``, both shares inside
        without. All share the noise: the fewer, the better each is known.
    :param outcome_range: what outcomes are cut to, for ``"mean"`` and ``"spread"``: public numbers.
        Outcomes of K classes have 0 to K - 1.
    :param data_plate, allow_unresolved, secure, kwargs: as in
        :func:`private_log_predictive_density`.
    :returns: observed and expected means, p-values that include the noise, and what it cost.
    :raises BudgetExceededError: the accountant refuses; nothing was charged.
    :raises UnsupportedModelError: the model cannot be split, has several outcomes or one that is
        computed, a statistic reads more than a record or is no JAX function, or the number of
        records is private.
    :raises ValueError: an argument is out of range, a range is missing, draws are missing or not
        finite, or noise would drown the answer.

    **Privacy.** Released: one noisy sum over all records, of each statistic t and its expectation
    m, both scaled to [-1, 1], 0.3·((t - m)²/2 - 1), and the expectations at eight draws less m, cut
    to a norm of ½: all functions of this record, its row number and public draws. A record that
    holds NaN or infinity, or for which one of them is no number, adds nothing. Sensitivity
    √(2.34·k) for k statistics under zero-out, where a null record adds 0, and twice that under
    replace-one; event ``Gaussian(noise_multiplier)`` on the integer lattice and the total variation
    of its table, charged before a record is read. Under add/remove, where N is private, it is
    refused.

    **References.** Gelman, Meng and Stern, *Posterior predictive assessment of model fitness via
    realized discrepancies* (1996) for the check; *How a step is released*
    (docs/explanation/how-a-step-is-released.md) for private scores.

    **Example**::

        >>> import jax, numpy as np, numpyro, numpyro.distributions as dist, numpyro_dp as ndp
        >>> def model(y):
        ...     rate = numpyro.sample("rate", dist.Gamma(1, 1))
        ...     with numpyro.plate("people", y.shape[0]):
        ...         numpyro.sample("y", dist.Poisson(rate), obs=y)
        >>> draw = np.random.default_rng(0)
        >>> y = np.where(draw.random(4_000) < 0.5, 0, draw.poisson(2.0, 4_000))  # Too many zeros.
        >>> check = ndp.private_posterior_predictive_check(
        ...     jax.random.key(0), model, {"rate": draw.normal(1.0, 0.02, 100)}, y,
        ...     statistics=["mean", "zeros"], outcome_range=(0, 10), privacy=ndp.Budget(1.0, 1e-5))
        >>> bool(check["zeros"].p_value < 0.001), bool(check["zeros"].difference > 0.1)
        (True, True)
    """
    payment = Payment(
        "private_posterior_predictive_check",
        privacy,
        noise_multiplier,
        accountant,
        bool(allow_unresolved),
        secure,
    )

    def ask(split: PrivateModel, draws: Draws) -> _Compared:
        outcome = outcome_of(split)
        instead = "private_log_predictive_density takes it as it is"
        require_outcomes_that_follow(split, payment.called, instead)
        arrays = read_arguments(model, args, kwargs)[1]
        return _Compared(
            split, outcome, chosen_statistics(split, outcome, statistics, outcome_range, arrays)
        )

    subject = Subject(model, posterior_samples, args, kwargs, data_plate)
    question, answer = answered(payment, rng_key, subject, ask)
    rows = zip(question.statistics, answer.mean.reshape(-1, _PARTS), strict=True)
    return PredictiveCheck(
        statistics={each.name: _found(each, parts, answer) for each, parts in rows},
        num_records=answer.num_records,
        privacy=answer.privacy,
    )


def _found(
    statistic: Statistic, parts: Float[np.ndarray, " parts"], answer: Answer
) -> StatisticCheck:
    shown, expected, square, *at_draws = parts
    apart, noise = shown - expected, np.sqrt(2) * answer.noise_sd
    squared, of_squared = 2 * (square / _SQUARE + 1), 2 / _SQUARE
    sampling = spread_of_mean(apart, squared, answer, noise=np.sqrt(2), square_noise=of_squared)
    posterior = np.sqrt(max(np.var(at_draws, ddof=1) - answer.noise_sd**2, 0.0))
    error = np.hypot(sampling, noise)
    apart_sd = np.hypot(error, posterior)
    # Of a variance that is partly estimated from a few draws.
    freedom = (_DRAWS - 1) * (apart_sd / max(posterior, 1e-12)) ** 4
    half = (statistic.high - statistic.low) / 2

    def in_units(mean: float) -> float:
        return float(np.clip(statistic.low + half * (1 + mean), statistic.low, statistic.high))

    return StatisticCheck(
        observed=in_units(shown),
        expected=in_units(expected),
        difference=float(half * apart),
        standard_error=float(half * error),
        noise_sd=float(half * noise),
        posterior_sd=float(half * posterior),
        p_value=float(student.sf(apart / apart_sd, min(freedom, 1e6))),
    )
