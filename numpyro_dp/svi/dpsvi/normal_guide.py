"""Where the normal autoguides keep location and scale: by site, or in a row of their own order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpyro.infer import autoguide

from numpyro_dp.model.guided.model import VariationalModel

NORMAL_GUIDES = (
    autoguide.AutoNormal,
    autoguide.AutoDiagonalNormal,
    autoguide.AutoMultivariateNormal,
)


def located_by_guide(target: VariationalModel) -> bool:
    """Whether the guide's latents are all there is to learn."""
    model = target.private_model
    return model is not None and set(target.latents) == set(model.latents)


def scale_names(guide: Any, latents: Sequence[str]) -> tuple[str, ...]:
    """Names of the parameters that hold the guide's scale."""
    if isinstance(guide, autoguide.AutoMultivariateNormal):
        return (f"{guide.prefix}_scale_tril",)
    return tuple(by_name(guide, "scale", {name: jnp.zeros(0) for name in latents}))


def location(guide: Any, latents: Sequence[str], params: dict[str, Any]) -> dict[str, Any]:
    """The unconstrained latents, by site, where the guide is located."""
    if isinstance(guide, autoguide.AutoContinuous):
        return dict(guide._unpack_latent(params[f"{guide.prefix}_loc"]))
    return {name: params[f"{name}_{guide.prefix}_loc"] for name in latents}


def by_name(guide: Any, what: str, values: dict[str, Any]) -> dict[str, Any]:
    """Parameters from a value for each site.

    :param what: ``"loc"`` or ``"scale"``.
    """
    if isinstance(guide, autoguide.AutoContinuous):
        row = jnp.concatenate([jnp.reshape(values[name], -1) for name in guide._init_locs])
        return {f"{guide.prefix}_{what}": row}
    return {f"{name}_{guide.prefix}_{what}": value for name, value in values.items()}


def spread(guide: Any, covariance: np.ndarray, like: dict[str, Any]) -> dict[str, Any]:
    """Scale parameters of a covariance: its marginal standard deviations, or its root.

    :param covariance: of the unconstrained latents in the order of their names, shape (dim, dim).
    :param like: the latents by site.
    """
    flat, unravel = ravel_pytree(like)
    if not isinstance(guide, autoguide.AutoMultivariateNormal):
        sds = jnp.asarray(np.sqrt(np.diag(covariance)), flat.dtype)
        return by_name(guide, "scale", unravel(sds))
    numbered = jax.tree.map(np.asarray, unravel(jnp.arange(flat.size, dtype=flat.dtype)))
    order = np.asarray(by_name(guide, "loc", numbered)[f"{guide.prefix}_loc"], int)
    root = np.linalg.cholesky(covariance[np.ix_(order, order)])
    return {f"{guide.prefix}_scale_tril": jnp.asarray(root, flat.dtype)}
