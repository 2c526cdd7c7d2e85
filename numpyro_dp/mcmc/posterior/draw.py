"""What a way of drawing must say of itself, and the guarantees that it can be given for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from jax import lax

from numpyro_dp import _validate
from numpyro_dp.accounting.events import DpEvent
from numpyro_dp.families.glm import GLM
from numpyro_dp.families.losses import Loss


class Draw(ABC):
    """A way of drawing with every number fixed: frozen, hashable by value.

    ``target`` is the posterior that is drawn from; its ``log_likelihood(z, records)`` is what
    records add to the log density.
    """

    @property
    @abstractmethod
    def event(self) -> DpEvent:
        """What one draw costs, its arithmetic left out."""

    @property
    @abstractmethod
    def tv(self) -> float:
        """Total variation between one draw as computed and as charged, whatever the data."""

    @property
    @abstractmethod
    def mechanism(self) -> str:
        """The mechanism, in words."""

    @property
    @abstractmethod
    def arithmetic(self) -> str:
        """How the guarantee holds in machine arithmetic, in words."""

    @property
    @abstractmethod
    def bound(self) -> float:
        """What one record can contribute, in the unit of the guarantee."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know about the draws."""
        return ()

    @property
    @abstractmethod
    def conditions(self) -> tuple[str, ...]:
        """What the guarantee depends on; empty when nothing."""

    @abstractmethod
    def draw(self, key: Any, z: dict, records: list) -> dict:
        """One draw from a secret key, a public or released start, and the records."""


@dataclass(frozen=True)
class BoundedLikelihood:
    """Every record's log likelihood is cut to ``[lower, upper]``, whatever the model.

    :param lower: public lower bound; smaller values count as it.
    :param upper: public upper bound; larger values count as it. For a discrete outcome 0 loses
        nothing.
    :raises ValueError: unless lower < upper and both are finite.

    **Privacy.** One record changes the log density by a function of range at most
    τ·(upper − lower) under zero-out and add/remove, whether or not 0 lies in between: what a
    record adds everywhere alike cancels in the posterior. Twice that under replace-one.

    **References.** Wang, Fienberg, Smola, *Privacy for Free* (2015), section 3, with the constants
    of *Events* (docs/reference/events.md) and the likelihood alone tempered.

    **Example**: see :class:`OPS`.
    """

    lower: float
    upper: float

    def __post_init__(self) -> None:
        _validate.own_numbers(self)
        low = _validate.finite_float("lower", self.lower)
        if not low < _validate.finite_float("upper", self.upper):
            raise ValueError(f"lower must be below upper, got {self.lower!r} and {self.upper!r}")


@dataclass(frozen=True, kw_only=True)
class StronglyLogConcave:
    """A generalised linear model with a Gaussian prior, its rows projected to a ball.

    :param row_norm: public bound R on the Euclidean norm of a record's row, intercept included;
        longer rows are scaled down to it.
    :param strong_convexity: m, the least curvature of −log prior. ``None`` takes the model's own;
        where the model's prior curves less, it is tightened to m by a Gaussian factor round zero.
    :param huber: for normal outcomes, the residual in standard deviations past which squared
        error becomes linear.
    :param max_trials: for binomial outcomes, public bound on a record's number of trials.
    :param predictor_bounds: for Poisson outcomes, the log rates past which the loss is linear.
    :param max_count: for Poisson outcomes, public bound on a record's count.
    :raises ValueError: for numbers out of range.

    **Privacy.** Rests on four facts that are proved for the model before it is run: the predictor
    is affine in the unconstrained parameters, the loss is convex with bounded first and second
    derivative, and the prior's curvature is constant.

    **References.** Gopi, Lee, Liu, *Private Convex Optimization via Exponential Mechanism* (2022),
    with the conditions that stand in *Events*.

    **Example**: see :class:`OPS`.
    """

    row_norm: float
    strong_convexity: float | None = None
    huber: float | None = None
    max_trials: int | None = None
    predictor_bounds: tuple[float, float] | None = None
    max_count: float | None = None

    def __post_init__(self) -> None:
        _validate.own_numbers(self)
        _validate.positive("row_norm", self.row_norm)
        _validate.given(_validate.nonnegative, strong_convexity=self.strong_convexity)

    def loss(self, glm: GLM) -> Loss:
        """The model's loss with its derivatives bounded.

        :raises UnsupportedModelError: when a bound that the outcome needs is missing.
        """
        return glm.loss(
            huber=self.huber,
            max_trials=self.max_trials,
            predictor_bounds=self.predictor_bounds,
            max_count=self.max_count,
        )


def record_by_record(function: Callable[[list], Any], records: list, one_by_one: bool) -> Any:
    """``function`` of every record (leaves with leading axis 1), stacked.

    :param function: of one record.
    :param records: leaves with one row for each record.
    :param one_by_one: in a loop instead of at once: where records may be absent, the place of a
        record in a vector instruction must not decide how it is rounded.
    """
    rows = [leaf[:, None] for leaf in records]
    return lax.map(function, rows) if one_by_one else jax.vmap(function)(rows)
