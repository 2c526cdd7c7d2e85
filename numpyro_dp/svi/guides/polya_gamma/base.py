"""What every Pólya–Gamma schedule shares: centred rows, the prior, and the way back."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from numpyro_dp.execution.releases import Phase
from numpyro_dp.families.losses import Row
from numpyro_dp.model.guided.model import Outline
from numpyro_dp.svi.guides.polya_gamma.recognise import Regression, cut
from numpyro_dp.svi.vips.statistics import Schedule

# Shares of the squared privacy loss.
CENTRING, FIRST_MATRIX = 0.05, 0.06
# The mean square of a row is one number beside many: it may be as noisy as this makes it.
_SQUARE = 0.3
# From the root mean square to a norm that about nine rows in ten keep to.
_SPREAD = 1.15
# Least spread of centred rows, relative to the declared norm, that noise is told apart from.
_LEAST = 0.05


@dataclass(frozen=True)
class PolyaGammaSettings:
    """Options of a Pólya–Gamma run, all public.

    :param row_norm: bound on most rows before centring, without the intercept.
    :param centred_norm: bound on most rows after it; ``None`` to learn it with the mean.
    :param centre: whether a release of the mean comes first.
    :param score_clip: bound on a record's score; ``None`` for what suits.
    """

    row_norm: float
    centred_norm: float | None
    centre: bool
    score_clip: float | None


class Inputs(NamedTuple):
    """Released facts about the inputs: what is subtracted, and how long rows are then."""

    shift: Float[Array, " dim"]
    radius: Float[Array, ""]


class Law(NamedTuple):
    """The variational law of centred coefficients, and the rates of the precisions' laws."""

    mean: Float[Array, " dim"]
    covariance: Float[Array, "dim dim"]
    rate: Float[Array, " groups"]


class KnownWeights(NamedTuple):
    """All that is carried: inputs, law, and what a design keeps for itself."""

    inputs: Inputs
    law: Law
    work: Any


class PolyaGammaSchedule(Schedule):
    """Base of the designs: an optional centring phase, then the design's own.

    :param regression: the model.
    :param found: its outline.
    :param settings: options.
    :param own: the design's phases.
    """

    def __init__(
        self,
        regression: Regression,
        found: Outline,
        settings: PolyaGammaSettings,
        own: Sequence[Phase],
    ) -> None:
        self.regression, self.found, self.settings = regression, found, settings
        centring = Phase(
            "centre of the inputs",
            regression.dim + 1,
            math.sqrt(1 + _SQUARE**2),
            (CENTRING,),
        )
        self.phases = (centring, *own) if settings.centre else tuple(own)
        self._skipped = 1 if settings.centre else 0

    def start(self, key: Array) -> KnownWeights:
        """The prior, before anything is released."""
        dim, prior = self.regression.dim, self.regression.prior
        dtype = self._dtype
        own = 0.0 if self.regression.intercept is None else self.regression.intercept[1]
        norm = self.settings.centred_norm or self.settings.row_norm
        inputs = Inputs(jnp.zeros(dim, dtype), jnp.asarray(math.hypot(norm, own), dtype))
        # Where a precision is unknown its coefficients start at the prior's expectation of it.
        rate = jnp.asarray(prior.posterior_shape * prior.rate / np.maximum(prior.shape, 1e-6))
        law = Law(jnp.zeros(dim, dtype), jnp.zeros((dim, dim), dtype), rate.astype(dtype))
        return KnownWeights(inputs, law, self.begin())

    def statistic(self, phase: int, state: KnownWeights, record: Sequence[Array]) -> Array:
        """The record's part of the centre, or of the design's own release."""
        if phase < self._skipped:
            return self._centre_statistic(record)
        return self.own_statistic(phase - self._skipped, state, self.row(state.inputs, record))

    def advance(
        self, phase: int, state: KnownWeights, released: Array, noise_sd: Array, step: Array
    ) -> KnownWeights:
        """What is known after a release."""
        released, noise_sd = released.astype(self._dtype), noise_sd.astype(self._dtype)[0]
        if phase < self._skipped:
            return state._replace(inputs=self._centred(state.inputs, released, noise_sd))
        return self.own_advance(phase - self._skipped, state, released, noise_sd, step)

    def records(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Array]:
        """Record arrays of the arguments that the schedule was made for."""
        return self.regression.glm.private_model.records(args, kwargs, padded=True)

    def params(self, state: KnownWeights) -> dict[str, Array]:
        """Mean and Cholesky factor of the coefficients as the model has them."""
        back = self._back(state.inputs)
        covariance = back @ state.law.covariance @ back.T
        found = {
            "auto_loc": back @ state.law.mean,
            "auto_scale_tril": _factor(covariance),
        }
        if self.regression.latents.groups:
            shape = jnp.asarray(self.regression.prior.posterior_shape, self._dtype)
            found |= {"auto_shape": shape, "auto_rate": state.law.rate}
        return found

    def coefficients(self) -> list[str]:
        """A name for every coefficient, in the order of the flat vector."""
        latents = self.regression.latents
        places = cut(jnp.arange(latents.dim), latents.coefficients)
        names = [""] * latents.dim
        for name, numbers in places.items():
            for index, number in np.ndenumerate(np.asarray(numbers)):
                at = ", ".join(map(str, index))
                names[int(number)] = f"'{name}[{at}]'" if at else f"'{name}'"
        return names

    @abstractmethod
    def begin(self) -> Any:
        """What the design keeps for itself, before any release."""

    @abstractmethod
    def own_statistic(self, phase: int, state: KnownWeights, row: Row) -> Array:
        """Like :meth:`statistic`, of the design's phases and for a centred row."""

    @abstractmethod
    def own_advance(
        self, phase: int, state: KnownWeights, released: Array, noise_sd: Array, step: Array
    ) -> KnownWeights:
        """Like :meth:`advance`, of the design's phases; one size of noise for all numbers."""

    @property
    def _dtype(self) -> Any:
        return jax.dtypes.canonicalize_dtype(float)

    def row(self, inputs: Inputs, record: Sequence[Array]) -> Row:
        """The centred inputs of one record; its norm is not bounded yet."""
        row = self.regression.glm.row(record)
        x = row.x[self.regression.chosen]
        return row._replace(x=jnp.where(row.kept, x - inputs.shift.astype(x.dtype), 0))

    def prior_precision(self, state: KnownWeights) -> Float[Array, "dim dim"]:
        """Expected prior precision of the centred coefficients."""
        back = self._back(state.inputs)
        return back.T @ self.regression.prior.precision(state.law.rate) @ back

    def prior_gradient(self, state: KnownWeights, at: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """Gradient of the expected log prior of the centred coefficients."""
        back = self._back(state.inputs)
        linear = back.T @ jnp.asarray(self.regression.prior.linear, at.dtype)
        return linear - self.prior_precision(state) @ at

    def with_law(
        self, state: KnownWeights, mean: Float[Array, " dim"], covariance: Float[Array, "dim dim"]
    ) -> KnownWeights:
        """A new law of the coefficients, and of the precisions one step further from the data."""
        back = self._back(state.inputs)
        own = jnp.einsum("ij,jk,ik->i", back, covariance, back)
        rate = self.regression.prior.posterior_rate(back @ mean, own)
        return state._replace(law=Law(mean, covariance, rate.astype(mean.dtype)))

    def _back(self, inputs: Inputs) -> Float[Array, "dim dim"]:
        """From coefficients of centred inputs to those of the model: the intercept takes all."""
        identity = jnp.eye(self.regression.dim, dtype=inputs.shift.dtype)
        if self.regression.intercept is None:
            return identity
        place, constant = self.regression.intercept
        return identity.at[place].add(-inputs.shift / constant)

    def _centre_statistic(self, record: Sequence[Array]) -> Float[Array, " numbers"]:
        row = self.regression.glm.row(record)
        x = row.x[self.regression.chosen] / self.settings.row_norm
        x = jnp.where(jnp.asarray(self.regression.centred), x, 0)
        x = x * jnp.minimum(1, 1 / jnp.maximum(jnp.linalg.norm(x), 1e-12))
        return jnp.append(x, _SQUARE * jnp.sum(x * x))

    def _centred(
        self, inputs: Inputs, released: Float[Array, " numbers"], noise_sd: Float[Array, ""]
    ) -> Inputs:
        norm, count = self.settings.row_norm, self.found.num_records
        mask = jnp.asarray(self.regression.centred)
        shift = jnp.where(mask, released[:-1] * (norm / count), 0)
        if self.settings.centred_norm is not None:
            return Inputs(shift, inputs.radius)
        square = released[-1] * (norm**2 / (count * _SQUARE))
        noise = noise_sd * norm / count
        # The squared noise of the mean would be taken for length.
        around = square - jnp.sum(shift**2) + jnp.sum(mask) * noise**2
        around = jnp.clip(around, (_LEAST * norm) ** 2, norm**2)
        own = 0.0 if self.regression.intercept is None else self.regression.intercept[1]
        return Inputs(shift, jnp.sqrt(_SPREAD**2 * (around + own**2)))


def least_resolved(dim: int, signal: float, row_norm: float, own: float) -> float:
    """Sum of squares along a direction of the inputs that the noise of a curvature lets through.

    The edge of that noise over a quarter, by public numbers: rows are as long as they may be.

    :param signal: the μ of a Gaussian mechanism as private as the whole run.
    :param own: the constant in the column of the intercept.
    """
    if signal == math.inf:
        return 0.0
    return math.sqrt(2 * dim) / (signal * math.sqrt(FIRST_MATRIX)) * (row_norm**2 + own**2)


def resolution(dim: int, num_records: int, signal: float) -> float:
    """Edge of the noise of the first curvature matrix over its mean eigenvalue, by public numbers.

    :param signal: the μ of a Gaussian mechanism as private as the whole run.
    """
    if signal == math.inf:
        return 0.0
    noise = math.sqrt(2 * dim) / (signal * math.sqrt(FIRST_MATRIX))
    # In units of the longest row's curvature, of which an average row has less.
    return noise * dim * _SPREAD**2 / num_records


def _factor(covariance: Float[Array, "dim dim"]) -> Float[Array, "dim dim"]:
    """Cholesky factor; a covariance that rounding made singular gets a touch of ridge."""
    scale = jnp.sqrt(jnp.maximum(jnp.diagonal(covariance), jnp.finfo(covariance.dtype).tiny))
    ridge = 8 * jnp.finfo(covariance.dtype).eps * len(scale)
    unit = covariance / jnp.outer(scale, scale) + ridge * jnp.eye(len(scale))
    return scale[:, None] * jnp.linalg.cholesky((unit + unit.T) / 2)
