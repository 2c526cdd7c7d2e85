"""Scales of a mean-field guide from one noisy release of the likelihood's curvature.

Gradients with privacy noise do not teach a guide its scales: their signal is of the size of one
record's share. The curvature of the log likelihood at the final location is a sum over records
that one release resolves far better.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.scipy.special import log_ndtr
from jaxtyping import Array, Float
from numpyro.infer import autoguide

from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.mechanisms import CHACHA20, PrivateSum
from numpyro_dp.model.guided.model import VariationalModel
from numpyro_dp.model.private_model import PrivateModel
from numpyro_dp.model.programs import require_own_curvature
from numpyro_dp.svi.dpsvi.normal_guide import by_name, located_by_guide, location, scale_names

# Basis vectors handled at a time: memory a record is this times the dimension.
_AT_A_TIME = 64


def held_scales(
    guide: Any, target: VariationalModel, scale: str | None, private_size: bool
) -> tuple[str, ...]:
    """Scale parameters that gradients leave alone, since the curvature decides them.

    :param scale: what was asked for: ``"curvature"``, ``"gradient"``, or ``None`` for the former
        where it is possible.
    :raises UnsupportedModelError: the curvature was asked for and cannot decide, or it would run
        code of the model that is not about one record alone.
    """
    possible = not private_size and _takes_curvature(guide, target)
    if scale == "curvature" and not possible:
        raise UnsupportedModelError(
            f"scale='curvature' is for AutoNormal and AutoDiagonalNormal over a model without "
            f"parameters or latents of single records, where the number of records is public; "
            f"this is {type(guide).__name__}: use scale='gradient'"
        )
    if scale == "gradient" or not possible:
        return ()
    _require_judged(target.private_model)
    return scale_names(guide, target.latents)


@lru_cache(maxsize=64)
def _require_judged(model: PrivateModel) -> None:
    # The model judges what every algorithm runs, and only this one takes second derivatives.
    values = len(jax.tree.leaves(model.programs.constrained))
    require_own_curvature(model.term, model.layout, model.num_records, values)


def _takes_curvature(guide: Any, target: VariationalModel) -> bool:
    normal = type(guide) in (autoguide.AutoNormal, autoguide.AutoDiagonalNormal)
    return normal and located_by_guide(target)


@dataclass(frozen=True)
class CurvatureRelease:
    """One noisy sum of the diagonals of the records' curvatures, and the scales it gives.

    :param target: the bound.
    :param private_sum: the release, over all records.
    """

    target: VariationalModel
    private_sum: PrivateSum

    def scales(self, guide: Any, params: dict[str, Any], key: Any, records: tuple) -> dict:
        """Constrained scale parameters at the location of ``params`` (constrained too).

        **Privacy.** One Gaussian release of the sum of clipped diagonals; everything else is
        computed from it and from the prior.
        """
        variance = _compiled(self.model, self.private_sum, key, self._at(guide, params), records)
        return by_name(guide, "scale", jax.tree.map(jnp.sqrt, variance))

    def variances(self, guide: Any, params: dict[str, Any], key: Any, records: Any) -> dict:
        """What :meth:`scales` releases, for use within a program: variances by site."""
        return _variances(self.model, self.private_sum, key, self._at(guide, params), records)

    @property
    def model(self) -> PrivateModel:
        """The model, without its guide.

        :raises ValueError: it has parameters of its own.
        """
        if self.target.private_model is None:
            raise ValueError("scale='curvature' needs a model without parameters of its own")
        return self.target.private_model

    def _at(self, guide: Any, params: dict[str, Any]) -> dict[str, Array]:
        return location(guide, self.target.latents, params)

    def trace(self, guide: Any, params: dict[str, Any], records: tuple) -> None:
        """Trace :meth:`scales` at unconstrained parameters; raises what only a trace shows."""

        def scales(params: dict[str, Any], records: tuple) -> dict[str, Any]:
            key = jax.random.key(0, impl=CHACHA20)
            return self.scales(guide, self.target.constrain(params), key, records)

        jax.eval_shape(scales, params, records)


def _variances(
    model: PrivateModel, private_sum: PrivateSum, key: Any, z: dict, records: Any
) -> dict[str, Array]:
    flat, unravel = ravel_pytree(z)

    def record_curvature(record: list[Array]) -> Float[Array, " dim"]:
        return _curvature(lambda at: model.record_log_likelihood(unravel(at), record), flat)

    released = private_sum.release(key, record_curvature, list(records)).astype(flat.dtype)
    prior = _curvature(lambda at: model.log_prior(unravel(at)), flat)
    likelihood = _positive_mean(released, private_sum.noise_sd())
    # A prior may curve upwards where the likelihood still holds the posterior together.
    precision = jnp.maximum(prior + likelihood, 1e-6 * (1 + jnp.abs(prior)))
    return unravel(1 / precision)


_compiled = jax.jit(_variances, static_argnums=(0, 1))


def _curvature(log_density: Any, at: Float[Array, " dim"]) -> Float[Array, " dim"]:
    """Diagonal of the negative Hessian."""
    gradient = jax.grad(log_density)

    def entry(direction: Float[Array, " dim"]) -> Float[Array, ""]:
        return -jnp.vdot(direction, jax.jvp(gradient, (at,), (direction,))[1])

    return lax.map(entry, jnp.eye(at.size, dtype=at.dtype), batch_size=_AT_A_TIME)


def _positive_mean(seen: Float[Array, " dim"], noise_sd: Any) -> Float[Array, " dim"]:
    """Mean of a quantity known to be positive, seen with normal noise of known size."""
    if isinstance(noise_sd, float) and noise_sd == 0:
        return jnp.maximum(seen, 0)
    ratio = seen / noise_sd
    hazard = jnp.exp(-(ratio**2) / 2 - 0.5 * jnp.log(2 * jnp.pi) - log_ndtr(ratio))
    return noise_sd * jnp.maximum(ratio + hazard, 1e-3)
