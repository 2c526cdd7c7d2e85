"""Generalised linear models, recognised: a convex loss of a provably linear predictor.

Some guarantees need more than independent records: a bound on every record's gradient that no
clipping of gradients could give (clipping them makes the loss non-convex), and a prior whose
curvature is known. Both are facts about the model's program, and proved on it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from numpyro_dp._quick_compile import quickly_compiled
from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.families.losses import Loss, Row, bounded_loss
from numpyro_dp.families.predictor import (
    OutcomeParts,
    dissect,
    flat_position,
    record_likelihood,
)
from numpyro_dp.families.prior import prior_message, prior_terms
from numpyro_dp.model.private_model import PrivateModel

_POINTS = 16
_TOLERANCE = 1e-3


@dataclass(frozen=True)
class GLM:
    """A model whose every record is a convex loss of one linear predictor; made by `recognise`.

    :param private_model: the model.
    :param site: the observed site.
    :param family: ``"bernoulli"``, ``"binomial"``, ``"negative_binomial"``, ``"poisson"``,
        ``"normal"`` or ``"hinge"``.
    :param raw_loss: the loss as the model has it, perhaps without bounds; see :meth:`loss`.
    :param fixed_trials: whether the number of trials is a constant of the model.
    :param parts: programs of one record's arrays, which :meth:`row` runs.

    **Privacy.** A row is a function of one record; it never depends on the position. Whatever is
    computed from rows and a loss alone is bounded by the loss's derivatives, whether or not the
    model was understood rightly: that ``-loss`` is the model's log likelihood is checked on made-up
    records, for the sake of correctness only.
    """

    private_model: PrivateModel
    site: str = field(compare=False)
    family: str = field(compare=False)
    raw_loss: Loss = field(compare=False)
    fixed_trials: bool = field(compare=False)
    parts: OutcomeParts = field(compare=False, repr=False)

    @property
    def dim(self) -> int:
        """Number of unconstrained coordinates."""
        return flat_position(self.private_model)[1].shape[0]

    def row(self, record: Sequence[Array]) -> Row:
        """What the model makes of one record (arrays with a leading axis of 1).

        A masked record, or one of which any number is not finite, becomes a zero row that
        contributes nothing.
        """
        inputs = [None, *record, None]
        x, offset, outcome, trials, kept = (part(inputs)[0] for part in self.parts)
        dtype = flat_position(self.private_model)[1].dtype
        x, offset, outcome, trials = (
            jnp.asarray(each).astype(dtype) for each in (x, offset, outcome, trials)
        )
        finite = jnp.all(jnp.isfinite(x)) & jnp.isfinite(offset + outcome + trials)
        kept = jnp.asarray(kept, bool) & finite
        # The selection comes before any product: 0 * NaN is NaN.
        return Row(*(jnp.where(kept, each, 0) for each in (x, offset, outcome, trials)), kept)

    def clipped(self, record: Sequence[Array], row_norm: float) -> Row:
        """:meth:`row` with ``x`` projected to Euclidean norm at most ``row_norm``.

        The intercept is a column of ``x`` like any other. The offset stays as it is: it shifts
        the predictor and enters no derivative bound.
        """
        row = self.row(record)
        largest = jnp.max(jnp.abs(row.x))
        # Scaled first: a square may overflow where the row does not.
        unit = row.x / jnp.where(largest > 0, largest, 1)
        # A few units in the last place below, so that rounding cannot end above the bound.
        inside = row_norm * (1 - (self.dim + 16) * float(jnp.finfo(row.x.dtype).eps))
        most = inside / jnp.sqrt(jnp.maximum(jnp.sum(unit**2), 1))
        return row._replace(x=jnp.where(largest > most, unit * most, row.x))

    def rows(self, records: Sequence[Array], row_norm: float | None = None) -> Row:
        """Rows of all records at once, projected when ``row_norm`` is given."""
        one = self.row if row_norm is None else partial(self.clipped, row_norm=row_norm)
        return jax.vmap(one)([leaf[:, None] for leaf in records])

    def loss(
        self,
        *,
        huber: float | None = None,
        max_trials: int | None = None,
        predictor_bounds: tuple[float, float] | None = None,
        max_count: float | None = None,
    ) -> Loss:
        """The loss with bounded derivatives; Bernoulli outcomes need no option.

        :param huber: for normal outcomes, the residual in standard deviations past which the loss
            becomes linear (a Huber loss).
        :param max_trials: for binomial outcomes with a number of trials in each record, a public
            bound on it; larger ones are cut to it.
        :param predictor_bounds: for Poisson outcomes, the log rates past which the loss becomes
            linear.
        :param max_count: for Poisson and negative binomial outcomes, a public bound on the count;
            larger ones are cut to it.
        :raises UnsupportedModelError: when an option that the family needs is missing.
        """
        return bounded_loss(
            self.site,
            self.raw_loss,
            self.fixed_trials,
            huber=huber,
            max_trials=max_trials,
            predictor_bounds=predictor_bounds,
            max_count=max_count,
        )


@lru_cache(maxsize=64)
def recognise(model: PrivateModel) -> GLM:
    """Prove that a model is a generalised linear one.

    :param model: the model, split.
    :returns: The linear predictor and the loss of its one outcome.
    :raises UnsupportedModelError: naming the site and the condition that fails: one outcome in the
        private plate, (negative) binomial, Poisson or normal with a constant scale, whose predictor
        is affine in the unconstrained parameters (the program of its gradient, after dead-code
        elimination, reads no parameter).

    **Privacy.** No value of any record is looked at.

    **Example**::

        >>> import jax.numpy as jnp, numpyro, numpyro.distributions as dist
        >>> from numpyro_dp.model.private_model import PrivateModel
        >>> def model(x, y):
        ...     w = numpyro.sample("w", dist.Normal(0, 2).expand([2]).to_event(1))
        ...     with numpyro.plate("people", x.shape[0]):
        ...         numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)
        >>> split = PrivateModel(model, (jnp.ones((5, 2)), jnp.ones(5, int)))
        >>> glm = recognise(split)
        >>> glm.family, glm.loss().lipschitz, glm.loss().smoothness, prior_curvature(split)
        ('bernoulli', 1.0, 0.25, (0.25, 0.25))
    """
    found = dissect(model)
    loss = Loss(
        family=found.family,
        weight=found.weight,
        noise_scale=found.noise_scale,
        max_trials=math.inf if found.trials is None else found.trials,
    )
    if not (loss.weight > 0 and loss.noise_scale > 0):
        raise UnsupportedModelError(
            f"site `{found.site}` has a weight or a noise scale that is not positive: such a "
            "likelihood is not log-concave"
        )
    glm = GLM(model, found.site, found.family, loss, found.trials is not None, found.parts)
    _require_same_likelihood(glm)
    return glm


def _require_same_likelihood(glm: GLM) -> None:
    """Compare differences of loss and log likelihood on made-up records and positions."""
    _, struct = flat_position(glm.private_model)
    log_likelihood = record_likelihood(glm.private_model)

    def compare(record: list[Array], z: Array) -> tuple[Array, Array, Array]:
        row = glm.row(record)
        loss = jax.vmap(lambda z: glm.raw_loss.value(row.x @ z + row.offset, row))(z)
        model = jax.vmap(lambda z: log_likelihood(z, record))(z)
        return loss[1] - loss[0], model[0] - model[1], glm.raw_loss.holds(row)

    made = [glm.private_model.dummy_records(jax.random.key(k), 1) for k in range(_POINTS)]
    records = jax.tree.map(lambda *leaves: np.stack(leaves), *made)
    z = np.random.default_rng(0).normal(size=(_POINTS, 2, *struct.shape)).astype(struct.dtype)
    compiled = quickly_compiled(jax.vmap(compare), records, z)
    ours, models, inside = (np.asarray(each) for each in compiled(records, z))
    # Some made-up outcomes lie outside their support, such as more successes than trials; of whole
    # numbers NumPyro then says so, of others that are held as floats it goes on.
    valid = np.isfinite(models) & inside
    if not valid.any() or not np.allclose(
        ours[valid], models[valid], rtol=_TOLERANCE, atol=_TOLERANCE
    ):
        raise UnsupportedModelError(
            f"the likelihood of site `{glm.site}` is not that of its linear predictor on made-up "
            "records: step functions and stopped gradients look linear to a derivative; use "
            "DPSGLD or DPSVI"
        )


@dataclass(frozen=True, eq=False)
class GaussianPrior:
    """A prior whose log density is ``-z'Pz/2 + b'z`` in the flat unconstrained position.

    :param precision: P, shape (dim, dim); zero where the prior is flat.
    :param linear: b, shape (dim,).
    :param least: a lower bound on P's smallest eigenvalue, at least 0.
    :param most: an upper bound on P's largest.
    """

    precision: np.ndarray
    linear: np.ndarray
    least: float
    most: float

    def gradient(self, z: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """Gradient of the log prior."""
        precision = jnp.asarray(self.precision, z.dtype)
        return jnp.asarray(self.linear, z.dtype) - precision @ z


@lru_cache(maxsize=64)
def gaussian_prior(model: PrivateModel) -> GaussianPrior:
    """The prior in unconstrained coordinates, Jacobians included, when it is Gaussian or flat.

    :param model: the model, split.
    :raises UnsupportedModelError: naming a site whose log density has no constant, non-positive
        curvature.

    **Privacy.** No record is looked at. The quadratic itself, not the model's prior, is what a
    kernel samples from: a guarantee that rests on its curvature holds in any case.
    """
    terms, (_, struct) = prior_terms(model), flat_position(model)
    zero = jnp.zeros(struct.shape, struct.dtype)
    values, slopes, curvatures = jax.jit(
        lambda z: (terms(z), jax.jacrev(terms)(z), jax.hessian(terms)(z))
    )(zero)
    points = 3 * jax.random.normal(jax.random.key(0), (_POINTS, *struct.shape), struct.dtype)
    seen = jax.jit(jax.vmap(terms))(points)
    for name in values:
        quadratic = [values[name] + slopes[name] @ z + z @ curvatures[name] @ z / 2 for z in points]
        if not np.allclose(seen[name], quadratic, rtol=_TOLERANCE, atol=_TOLERANCE):
            raise UnsupportedModelError(prior_message(model, name))
    total = -sum((np.asarray(c, float) for c in curvatures.values()), np.zeros((zero.size,) * 2))
    precision = (total + total.T) / 2
    linear = sum((np.asarray(s, float) for s in slopes.values()), np.zeros(zero.size))
    diagonal = np.count_nonzero(precision) == np.count_nonzero(np.diag(precision))
    eigenvalues = np.sort(np.diag(precision)) if diagonal else np.linalg.eigvalsh(precision)
    # What the decomposition may be off by, far above LAPACK's backward error.
    slack = 0.0 if diagonal else 1e-12 * zero.size * float(np.abs(eigenvalues).max())
    least, most = float(eigenvalues[0]), float(eigenvalues[-1])
    if least < -slack - 1e-6 * abs(most):
        raise UnsupportedModelError(
            "the prior is not log-concave: a factor outside the plate curves upwards; take it out"
        )
    lift = max(0.0, slack - least)
    if lift > 0:
        # What the checks above leave below zero is made flat, so that the curvature claimed here
        # is that of this very matrix, also once a ridge is added to both.
        precision = precision + lift * np.eye(zero.size)
        most = (most + lift) * (1 + 1e-12)
    return GaussianPrior(precision, linear, max(0.0, least - slack), max(0.0, most) + slack)


def prior_curvature(model: PrivateModel) -> tuple[float, float]:
    """Bounds (m, M) on the curvature of ``-log prior`` in unconstrained coordinates.

    :param model: the model, split.
    :returns: m, rounded down (0 for a prior that is flat in some direction), and M, rounded up.
    :raises UnsupportedModelError: when the curvature is not provably constant, naming the site.

    **Privacy.** No record is looked at: the prior is a program that reads none.
    """
    prior = gaussian_prior(model)
    return prior.least, prior.most
