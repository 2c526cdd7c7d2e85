"""``private_accuracy``: how often the most probable class is the one that is observed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from numpyro_dp.accounting import Accountant, Budget
from numpyro_dp.diagnostics.checks.question import Draws, Question
from numpyro_dp.diagnostics.checks.release import Payment, Subject, answered
from numpyro_dp.diagnostics.checks.result import PrivateScore, cost
from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.families.outcome import (
    Outcome,
    class_probabilities,
    holds_numbers,
    outcome_of,
)
from numpyro_dp.model.private_model import PrivateModel


@dataclass(frozen=True, eq=False)
class Accuracy(PrivateScore):
    """What :func:`private_accuracy` returns; ``print`` it.

    :param estimate: share, in [0, 1], of the records whose most probable class is the observed one.
    :param standard_error: as in :class:`~numpyro_dp.diagnostics.checks.result.PrivateScore`.

    **Privacy.** One released sum and what follows from it, paid for by the function's charge.

    **References**: see :func:`private_accuracy`.

    **Example**: see :func:`private_accuracy`.
    """

    @property
    def possible(self) -> tuple[float, float]:
        """Ends of the range that the share and its interval are cut to: 0 and 1."""
        return 0.0, 1.0

    def __str__(self) -> str:
        return "\n".join([*self._told("accuracy"), f"  {cost(self.privacy)}"])


class Forecast:
    """Of one record, under the posterior predictive law."""

    def __init__(
        self, model: PrivateModel, outcome: Outcome, draws: Draws, record: list[Array]
    ) -> None:
        self.probabilities = jnp.mean(class_probabilities(model, outcome, draws, record), axis=0)
        self._observed = jnp.reshape(outcome.value(record), ()).astype(jnp.float32)
        self._whole = holds_numbers(record)

    @property
    def known(self) -> Bool[Array, ""]:
        """Whether the record and its probabilities are numbers."""
        return self._whole & jnp.all(jnp.isfinite(self.probabilities))

    def right(self, number: Any) -> Bool[Array, ""]:
        """Whether a class is the one that is observed."""
        return self.known & (self._observed == number)


def classes_of(model: PrivateModel, called: str) -> Outcome:
    """The outcome, which is one of a few classes.

    :raises UnsupportedModelError: it is not.
    """
    outcome = outcome_of(model)
    if outcome.classes is None:
        raise UnsupportedModelError(
            f"site `{outcome.site}` is not one outcome of a few classes: {called} is for "
            "Bernoulli, categorical and ordinal outcomes; private_log_predictive_density and "
            "private_posterior_predictive_check take any"
        )
    return outcome


@dataclass(frozen=True)
class _Right(Question):
    """One where the most probable class is observed, minus one where it is not."""

    outcome: Outcome

    summands = "whether the most probable class of a record is observed"
    released = ("the noisy share of records whose most probable class is observed",)
    dim = 1
    bound = 1.0
    coarseness = 0.5

    def vector(self, draws: Draws, record: list[Array], key: Key[Array, ""]) -> Float[Array, "1"]:
        forecast = Forecast(self.model, self.outcome, draws, record)
        right = forecast.right(jnp.argmax(forecast.probabilities))
        return jnp.where(right, 1.0, -1.0)[None]


def private_accuracy(
    rng_key: Any,
    model: Callable[..., Any],
    posterior_samples: Any,
    *args: Any,
    privacy: Budget | None = None,
    noise_multiplier: float | None = None,
    accountant: Accountant | None = None,
    data_plate: str | None = None,
    allow_unresolved: bool = False,
    secure: bool = True,
    **kwargs: Any,
) -> Accuracy:
    """How often the class that a posterior holds for most probable is observed.

    The share of held-out private records whose outcome, Bernoulli, categorical or ordinal, is the
    class of the largest posterior predictive probability.

    :param rng_key, model, posterior_samples, args, privacy, noise_multiplier, accountant: as in
        :func:`private_log_predictive_density`: draws by site of shape (draws, ...), records with
        one row each, whose outcome is one number.
    :param data_plate, allow_unresolved, secure, kwargs: likewise.
    :returns: the share in [0, 1], its errors (single numbers, as shares) and what it cost.
    :raises BudgetExceededError: the accountant refuses; nothing was charged.
    :raises UnsupportedModelError: the model cannot be split, its outcome is not one of a few
        classes, or the number of records is private.
    :raises ValueError: an argument is out of range, draws are missing or not finite, or noise would
        drown the answer.

    **Privacy.** Released: one noisy sum over all records of 1 where the class is observed and -1
    where it is not, or where the record holds NaN or infinity. Sensitivity 1 under zero-out, where
    a null record adds 0, and 2 under replace-one; event ``Gaussian(noise_multiplier)`` on the
    integer lattice and the total variation of its table, charged before a record is read. Under
    add/remove, where N is private, it is refused.

    **References.** Dwork and Roth, *The Algorithmic Foundations of Differential Privacy* (2014),
    for the Gaussian mechanism; *How a step is released*
    (docs/explanation/how-a-step-is-released.md) for the centred count.

    **Example**::

        >>> import jax, numpy as np, numpyro, numpyro.distributions as dist, numpyro_dp as ndp
        >>> def model(x, y):
        ...     slope = numpyro.sample("slope", dist.Normal(0, 10))
        ...     with numpyro.plate("people", y.shape[0]):
        ...         numpyro.sample("y", dist.Bernoulli(logits=slope * x), obs=y)
        >>> x = np.linspace(-1, 1, 2_000)
        >>> y = (x > 0).astype(int)
        >>> found = ndp.private_accuracy(
        ...     jax.random.key(0), model, {"slope": np.full(10, 3.0)}, x, y,
        ...     privacy=ndp.Budget(1.0, 1e-5))
        >>> bool(found.estimate > 0.97), bool(found.noise_sd < 0.005)
        (True, True)
    """
    payment = Payment(
        "private_accuracy",
        privacy,
        noise_multiplier,
        accountant,
        bool(allow_unresolved),
        secure,
    )

    def ask(split: PrivateModel, draws: Draws) -> _Right:
        return _Right(split, classes_of(split, "private_accuracy"))

    subject = Subject(model, posterior_samples, args, kwargs, data_plate)
    _, answer = answered(payment, rng_key, subject, ask)
    share = float(np.clip((1 + answer.mean[0]) / 2, 0, 1))
    noise, size = answer.noise_sd / 2, answer.num_records
    return Accuracy(
        estimate=share,
        # Of a share the variance is known from the share.
        standard_error=float(np.sqrt(share * (1 - share) / size + noise**2)),
        noise_sd=noise,
        num_records=size,
        privacy=answer.privacy,
    )
