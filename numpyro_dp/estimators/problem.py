"""The strongly convex problem an estimator solves, in constants that hold for every data set."""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import jax
import numpy as np

from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.families.glm import GLM, gaussian_prior
from numpyro_dp.families.losses import Loss

LARGEST_OFFSET = 30.0
"""Offsets of a predictor are cut to this size: on the scale of log odds and log rates it is nothing
that data reach, and it bounds what rounding can do."""


@dataclass(frozen=True, eq=False)
class Problem:
    """Minimise Σ f(x·θ + offset) + ½(θ − start)ᵀP(θ − start) + b·θ over θ.

    Everything here is public: none of it is computed from a value of the data.

    :param loss: f, convex.
    :param num_records: number of records, or a public bound on it.
    :param row_norm: R, bound on ‖x‖.
    :param largest_offset: bound on |offset|.
    :param precision: P, shape (dim, dim): that of the prior and the extra ridge.
    :param start: shape (dim,); where the prior is largest, and where the solver starts.
    :param strong_convexity: λ, a lower bound on P's eigenvalues.
    :param prior_smoothness: an upper bound on P's eigenvalues.
    :param ridge: the part of P that is not the prior's, a multiple of the identity.
    :param tilt: bound on ‖b‖.
    """

    loss: Loss
    num_records: int
    row_norm: float
    largest_offset: float
    precision: np.ndarray
    start: np.ndarray
    strong_convexity: float
    prior_smoothness: float
    ridge: float = 0.0
    tilt: float = 0.0

    @property
    def dim(self) -> int:
        """Number of coordinates."""
        return self.start.size

    @property
    def lipschitz(self) -> float:
        """L: bound on the norm of one record's gradient."""
        return self.loss.lipschitz * self.row_norm

    @property
    def record_smoothness(self) -> float:
        """β: bound on the norm of one record's Hessian."""
        return self.loss.smoothness * self.row_norm**2

    @property
    def smoothness(self) -> float:
        """M: bound on the norm of the objective's Hessian."""
        return self.prior_smoothness + self.num_records * self.record_smoothness

    @property
    def condition(self) -> float:
        """κ = M/λ."""
        return self.smoothness / self.strong_convexity

    @cached_property
    def excess(self) -> float:
        """Bound on the objective at the start above its minimum, whatever the data."""
        slope = self.num_records * self.lipschitz + self.tilt
        # J(x) − J* ≤ ‖∇J(x)‖²/2λ, and ∇J(start) is the data's and the tilt's alone.
        return min(slope**2 / (2 * self.strong_convexity), self._excess_by_value())

    @property
    def distance(self) -> float:
        """Bound on the way from the start to the minimiser, whatever the data."""
        return math.sqrt(2 * self.excess / self.strong_convexity)

    def tilted(self, tilt: float) -> "Problem":
        """The same problem for linear terms of norm up to ``tilt``."""
        return replace(self, tilt=tilt)

    def _excess_by_value(self) -> float:
        """J(x) − J* ≤ N·(f(x) − inf f) + ‖b‖·D − ½λD² at D = ‖x − θ*‖, at most over D."""
        losses = self.num_records * self._largest_loss()
        return losses + self.tilt**2 / (2 * self.strong_convexity)

    def _largest_loss(self) -> float:
        if self.loss.family not in ("bernoulli", "binomial"):
            return math.inf
        # n·softplus(η) − yη with 0 ≤ y ≤ n is at least 0 and at most n(log 2 + |η|).
        predictor = self.largest_offset + self.row_norm * float(np.linalg.norm(self.start))
        return self.loss.lipschitz * (math.log(2) + predictor)


def problem(
    glm: GLM, loss: Loss, *, num_records: int, row_norm: float, regularisation: float
) -> Problem:
    """The problem of a recognised model, with an extra ridge around the prior's mode.

    :param glm: the model.
    :param loss: its loss, with bounded derivatives.
    :param num_records: number of records, or a public bound on it.
    :param row_norm: bound on the rows of the design.
    :param regularisation: curvature of the extra ridge, added to the prior's.
    :raises UnsupportedModelError: when the prior is not Gaussian, or too flat to be of use.
    """
    prior = gaussian_prior(glm.private_model)
    dim = glm.dim
    precision = prior.precision + regularisation * np.eye(dim)
    least = (prior.least + regularisation) * (1 - 1e-12)
    if not least > 0:
        raise UnsupportedModelError(
            "the prior is flat in some direction, so that the minimiser has no bounded "
            "sensitivity: give every parameter a normal prior, or regularisation="
        )
    start = np.linalg.solve(precision, prior.linear) if np.any(prior.linear) else np.zeros(dim)
    return Problem(
        loss=loss,
        num_records=num_records,
        row_norm=row_norm,
        largest_offset=_largest_offset(glm),
        precision=precision,
        # The problem is stated around this very point, so that nothing hangs on the solve.
        start=start,
        strong_convexity=least,
        prior_smoothness=(prior.most + regularisation) * (1 + 1e-12),
        ridge=regularisation,
    )


def _largest_offset(glm: GLM) -> float:
    """Bound to which offsets are cut: 0 where made-up records have none, as in most models."""
    if glm.family == "normal":
        # Taken over into the outcome.
        return 0.0
    offsets = glm.rows(glm.private_model.dummy_records(jax.random.key(0), 16)).offset
    return LARGEST_OFFSET if np.any(np.asarray(offsets)) else 0.0
