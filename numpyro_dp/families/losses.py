"""Convex losses of a linear predictor, with bounds on their first and second derivative."""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from numpyro_dp import _validate
from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.families.hinge import huber_hinge


class Row(NamedTuple):
    """What a generalised linear model knows of one record; a leading axis stands for several.

    - **x**: gradient of the linear predictor, intercept included.
    - **offset**: the predictor at zero; a shift that no derivative bound depends on.
    - **outcome**: what was observed.
    - **trials**: of a binomial outcome, failures of a negative binomial one, else 1.
    - **kept**: False for a record that is masked or not finite, which contributes nothing.
    """

    x: Float[Array, "*rows dim"]
    offset: Float[Array, "*rows"]
    outcome: Float[Array, "*rows"]
    trials: Float[Array, "*rows"]
    kept: Bool[Array, "*rows"]


@dataclass(frozen=True)
class Loss:
    """``-log p`` of one record as a function of its predictor, up to a constant; convex.

    Bounds that are infinite leave the loss as the model has it; finite ones continue it linearly,
    which keeps it convex.

    :param family: ``"bernoulli"``, ``"binomial"``, ``"negative_binomial"``, ``"poisson"``,
        ``"normal"`` or ``"hinge"``.
    :param weight: public factor of the record's log likelihood (``handlers.scale``).
    :param noise_scale: standard deviation of a normal outcome; half width of a hinge's corner.
    :param max_trials: public bound on the number of trials (or failures).
    :param huber: residual, in standard deviations, past which squared error becomes linear.
    :param low, high: predictors past which a Poisson loss becomes linear.
    :param max_count: public bound on a Poisson or negative binomial count; larger ones are cut to
        it.
    """

    family: str
    weight: float = 1.0
    noise_scale: float = 1.0
    max_trials: float = 1.0
    huber: float = math.inf
    low: float = -math.inf
    high: float = math.inf
    max_count: float = math.inf

    @property
    def lipschitz(self) -> float:
        """Bound on ``|f'|``, for every possible outcome; infinite when there is none."""
        if self.family == "hinge":
            return self.weight
        if self.family == "normal":
            return self.weight * self.huber / self.noise_scale
        if self.family == "poisson":
            return self.weight * max(_exp(self.high), self.max_count - _exp(self.low))
        if self.family == "negative_binomial":
            return self.weight * max(self.max_count, self.max_trials)
        return self.weight * self.max_trials

    @property
    def smoothness(self) -> float:
        """Bound on ``f''``; infinite when there is none."""
        if self.family == "hinge":
            return self.weight / (2 * self.noise_scale)
        if self.family == "normal":
            return self.weight / self.noise_scale**2
        if self.family == "poisson":
            return self.weight * _exp(self.high)
        if self.family == "negative_binomial":
            return self.weight * (self.max_count + self.max_trials) / 4
        return self.weight * self.max_trials / 4

    def value(self, predictor: Float[Array, "*rows"], row: Row) -> Float[Array, "*rows"]:
        """The loss at a predictor (offset included), zero for a record that is not kept."""
        y, n = self._outcome(row)
        if self.family == "normal":
            residual = jnp.abs(predictor - y) / self.noise_scale
            inner = jnp.minimum(residual, self.huber)
            loss = jnp.where(residual > inner, inner * (residual - inner / 2), residual**2 / 2)
        elif self.family == "poisson":
            inside = jnp.clip(predictor, self.low, self.high)
            loss = jnp.exp(inside) * (1 + predictor - inside) - y * predictor
        elif self.family == "hinge":
            loss = huber_hinge((2 * y - 1) * predictor, self.noise_scale)
        else:
            loss = self._attempts(y, n) * jax.nn.softplus(predictor) - y * predictor
        return jnp.where(row.kept, self.weight * loss, 0)

    def slope(self, predictor: Float[Array, "*rows"], row: Row) -> Float[Array, "*rows"]:
        """Derivative of :meth:`value`; the record's gradient is ``slope * x``."""
        y, n = self._outcome(row)
        if self.family == "normal":
            residual = (predictor - y) / self.noise_scale
            slope = jnp.clip(residual, -self.huber, self.huber) / self.noise_scale
        elif self.family == "poisson":
            slope = jnp.exp(jnp.clip(predictor, self.low, self.high)) - y
        elif self.family == "hinge":
            side, width = 2 * y - 1, self.noise_scale
            slope = -side * jnp.clip((1 + width - side * predictor) / (2 * width), 0, 1)
        else:
            slope = self._attempts(y, n) * jax.nn.sigmoid(predictor) - y
        return jnp.where(row.kept, self.weight * slope, 0)

    def attempts(self, row: Row) -> Float[Array, "*rows"]:
        """The loss of a logistic family is this times softplus, less a linear term."""
        return jnp.where(row.kept, self.weight * self._attempts(*self._outcome(row)), 0)

    def _attempts(self, y: Array, n: Array) -> Array:
        return n + y if self.family == "negative_binomial" else n

    def holds(self, row: Row) -> Bool[Array, "*rows"]:
        """Whether the outcome is one that the model can draw: within its bounds."""
        y, n = self._outcome(row)
        return (y == row.outcome) & (n == row.trials)

    def _outcome(self, row: Row) -> tuple[Array, Array]:
        """Outcome and trials within their bounds: NumPyro does not hold observations to theirs."""
        y, n = row.outcome, row.trials
        if self.family == "normal":
            return y, n
        if self.family == "poisson":
            return jnp.clip(y, 0, self.max_count), n
        n = jnp.clip(n, 0, self.max_trials)
        if self.family == "negative_binomial":
            return jnp.clip(y, 0, self.max_count), n
        return jnp.clip(y, 0, n), n


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf


def bounded_loss(
    site: str,
    raw: Loss,
    fixed_trials: bool,
    *,
    huber: float | None,
    max_trials: int | None,
    predictor_bounds: tuple[float, float] | None,
    max_count: float | None,
) -> Loss:
    """The loss with the bounds its family needs, or a refusal that names the missing one."""
    family = raw.family
    bounds: dict[str, float] = {}
    if family == "normal":
        if huber is None:
            raise UnsupportedModelError(
                f"squared error at site `{site}` has no bounded gradient: give huber=, the "
                "residual in standard deviations past which it becomes linear"
            )
        bounds["huber"] = _validate.positive("huber", huber)
    elif family == "poisson":
        if predictor_bounds is None or max_count is None:
            raise UnsupportedModelError(
                f"the Poisson likelihood of site `{site}` has no bounded gradient: give "
                "predictor_bounds=(low, high), past which the rate stays constant in the gradient, "
                "and max_count=, a public bound on the counts"
            )
        low, high = (_validate.finite_float("predictor_bounds", b) for b in predictor_bounds)
        if not low < high:
            raise ValueError(f"predictor_bounds must be increasing, got {predictor_bounds!r}")
        bounds |= {"low": low, "high": high}
        bounds["max_count"] = _validate.positive("max_count", max_count)
    elif family == "negative_binomial":
        if not fixed_trials or max_count is None:
            raise UnsupportedModelError(
                f"the negative binomial likelihood of site `{site}` has no bounded gradient: give "
                "max_count=, a public bound on the counts, and the same public total_count to "
                "every record"
            )
        bounds["max_count"] = _validate.positive("max_count", max_count)
    elif family == "binomial" and not fixed_trials:
        if max_trials is None:
            raise UnsupportedModelError(
                f"the number of trials at site `{site}` differs from record to record: give "
                "max_trials=, a public bound on it"
            )
        bounds["max_trials"] = float(_validate.positive_int("max_trials", max_trials))
    return replace(raw, **bounds)
