"""A tempered, strongly log-concave target with its public constants."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from jaxtyping import Float

from numpyro_dp.families.glm import GLM, GaussianPrior, gaussian_prior, recognise
from numpyro_dp.families.losses import Loss, Row
from numpyro_dp.mcmc.posterior.draw import StronglyLogConcave, record_by_record
from numpyro_dp.model.private_model import PrivateModel

# Offsets and outcomes past this are cut: their rounding would have no bound.
_LARGEST_NUMBER = 1e6
# Unit roundoff of float64, and what a library's exp or logistic function may be off by in it.
_U = 2.0**-53
_ULPS = 64


@dataclass(frozen=True)
class ConcaveTarget:
    """F(θ) = −log prior(θ) + τ Σ f(x·θ + offset), for records within their bounds.

    :param private_model: the model.
    :param guarantee: what bounds the records.
    :param power: τ.
    :param num_records: the number of records, or a public upper bound where it is private.
    :param one_by_one: rows are computed one at a time, since a missing record moves the others.
    """

    private_model: PrivateModel
    guarantee: StronglyLogConcave
    power: float
    num_records: int
    one_by_one: bool = False

    @property
    def glm(self) -> GLM:
        return recognise(self.private_model)

    @property
    def loss(self) -> Loss:
        return self.guarantee.loss(self.glm)

    @property
    def prior(self) -> GaussianPrior:
        """The model's prior, tightened where the guarantee asks for it."""
        prior, wanted = gaussian_prior(self.private_model), self.guarantee.strong_convexity
        extra = 0.0 if wanted is None else max(wanted - prior.least, 0.0)
        if extra == 0:
            return prior
        precision = prior.precision + extra * np.eye(self.glm.dim)
        # A unit in the last place below and above: the addition itself rounds.
        least, most = (prior.least + extra) * (1 - 4 * _U), (prior.most + extra) * (1 + 4 * _U)
        return GaussianPrior(precision, prior.linear, least, most)

    @property
    def strong_convexity(self) -> float:
        """m of F for every data set: that of the prior."""
        return self.prior.least

    @property
    def smoothness(self) -> float:
        """M of F for every data set of this size."""
        curvature = self.loss.smoothness * self.guarantee.row_norm**2
        return (self.prior.most + self.power * self.num_records * curvature) * (1 + 1e-9)

    @property
    def lipschitz(self) -> float:
        """G: bound on one record's gradient in F, before rounding."""
        return self.power * self.loss.lipschitz * self.guarantee.row_norm * (1 + 1e-9)

    def rows(self, records: list) -> Row:
        """Projected rows in the position's own type."""
        return record_by_record(
            partial(self.glm.clipped, row_norm=self.guarantee.row_norm), records, self.one_by_one
        )

    def exact(self, rows: Row) -> Row:
        """Rows in float64, every one within its bounds; call it where 64 bits are enabled."""
        x, offset, outcome, trials = (each.astype(jnp.float64) for each in rows[:4])
        kept = rows.kept & (jnp.sum(x**2, axis=1) <= self.guarantee.row_norm**2)
        return Row(
            jnp.where(kept[:, None], x, 0),
            jnp.clip(offset, -_LARGEST_NUMBER, _LARGEST_NUMBER),
            jnp.clip(outcome, -_LARGEST_NUMBER, _LARGEST_NUMBER),
            trials,
            kept,
        )

    def gradient(self, theta: Float[Array, " dim"], rows: Row) -> Float[Array, " dim"]:
        """∇F at ``theta``."""
        slope = self.loss.slope(rows.x @ theta + rows.offset, rows)
        return self.power * (slope @ rows.x) - self.prior.gradient(theta)

    def energy(self, theta: Float[Array, " dim"], rows: Row) -> Float[Array, ""]:
        """F at ``theta``, up to a constant."""
        losses = self.loss.value(rows.x @ theta + rows.offset, rows)
        precision = jnp.asarray(self.prior.precision, theta.dtype)
        linear = jnp.asarray(self.prior.linear, theta.dtype)
        return self.power * jnp.sum(losses) + theta @ precision @ theta / 2 - linear @ theta

    def log_likelihood(self, z: dict, records: list) -> Float[Array, ""]:
        """What records add to the tempered log density."""
        theta, rows = ravel_pytree(z)[0], self.rows(records)
        losses = self.loss.value(rows.x @ theta + rows.offset, rows)
        return -self.power * jnp.sum(jnp.where(rows.kept, losses, 0))

    def rounding(self, largest: float) -> float:
        """Bound on the error of :meth:`gradient` in float64, in norm, for ``|θ_j| ≤ largest``.

        Standard bounds γ_n = n·u/(1 − n·u) on sums and products in any order, doubled for what is
        of second order; whatever the records.
        """
        d, n, norm = self.glm.dim, self.num_records, self.guarantee.row_norm
        reach = largest * math.sqrt(d)
        predictor = (d + 4) * _U * (norm * reach + 2 * _LARGEST_NUMBER)
        slope = self.loss.smoothness * predictor + _ULPS * 2 * _U * self.loss.lipschitz
        likelihood = self.power * n * norm * (slope + (n + 4) * _U * self.loss.lipschitz)
        prior = self.prior
        quadratic = (d + 4) * _U * float(np.linalg.norm(prior.precision)) * reach
        linear = 4 * _U * float(np.linalg.norm(prior.linear))
        total = self.power * n * norm * self.loss.lipschitz + quadratic / _U + linear / _U
        return 2 * (likelihood + quadratic + linear + 4 * _U * total)
