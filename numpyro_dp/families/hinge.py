"""``HuberHinge``: the smoothed hinge of support vector machines, as an observed site."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, ArrayLike, Float
from numpyro.distributions import constraints
from numpyro.distributions.util import promote_shapes, validate_sample


def huber_hinge(margin: ArrayLike, width: ArrayLike) -> Array:
    """Hinge loss with its corner rounded over ``1 ± width``: slope in [−1, 0], convex."""
    short = jnp.clip(1 + width - jnp.asarray(margin), 0, 2 * jnp.asarray(width))
    beyond = jnp.maximum(1 - width - jnp.asarray(margin), 0)
    return short**2 / (4 * jnp.asarray(width)) + beyond


class HuberHinge(dist.Distribution):
    """A 0/1 outcome under the smoothed hinge loss, for private large-margin classifiers.

    Observe it as you would a Bernoulli outcome: the site's log density is minus the loss of the
    margin ``(2y − 1)·score``. It is a pseudo-likelihood, as of a ``numpyro.factor``: nothing
    normalises it over outcomes. Unlike a factor it is known to be convex, 1-Lipschitz and
    ``1/(2 width)``-smooth in the score, so :class:`~numpyro_dp.ObjectivePerturbation`,
    :class:`~numpyro_dp.OutputPerturbation` and :class:`~numpyro_dp.OPS` take it.

    :param score: linear predictor, any shape.
    :param width: half width of the rounded corner, positive; a public number.

    **Privacy.** None of its own: a term of a model.

    **References.** Chapelle, *Training a support vector machine in the primal* (Neural Computation
    2007); Chaudhuri, Monteleoni, Sarwate, *Differentially private empirical risk minimization*
    (JMLR 2011), section 3.4.2, for its constants.

    **Example**::

        >>> import jax.numpy as jnp
        >>> import numpyro_dp as ndp
        >>> ndp.HuberHinge(jnp.array([1.0, 0.0, -1.0]), width=0.5).log_prob(jnp.ones(3)).tolist()
        [-0.125, -1.0, -2.0]
    """

    arg_constraints = {"score": constraints.real, "width": constraints.positive}  # noqa: RUF012
    support = constraints.boolean
    pytree_data_fields = ("score", "width")

    def __init__(
        self,
        score: Float[ArrayLike, "*shape"],
        width: float | Float[ArrayLike, "*shape"] = 0.5,
        *,
        validate_args: bool | None = None,
    ) -> None:
        self.score, self.width = promote_shapes(score, width)
        shape = jnp.broadcast_shapes(jnp.shape(score), jnp.shape(width))
        super().__init__(batch_shape=shape, validate_args=validate_args)

    def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> Array:
        """Outcomes in proportion to ``exp(−loss)``.

        :param key: a JAX key.
        :param sample_shape: leading axes of the draws.
        """
        odds = huber_hinge(-self.score, self.width) - huber_hinge(self.score, self.width)
        shape = (*sample_shape, *self.batch_shape)
        return jax.random.bernoulli(key, jax.nn.sigmoid(odds), shape).astype(int)

    @validate_sample
    def log_prob(self, value: ArrayLike) -> Array:
        """Minus the loss.

        :param value: outcomes, 0 or 1; what lies outside counts as the nearer one.
        """
        side = 2 * jnp.clip(jnp.asarray(value), 0, 1) - 1
        return -huber_hinge(side * self.score, self.width)
