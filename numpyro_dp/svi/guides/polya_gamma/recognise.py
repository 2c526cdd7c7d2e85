"""What Pólya–Gamma inference needs of a user's model: rows, outcomes, and a conjugate prior."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import random
from jaxtyping import Array, Float

from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.families.glm import GLM, recognise
from numpyro_dp.families.losses import Loss
from numpyro_dp.families.predictor import constant_slopes, flat_position
from numpyro_dp.families.sites import latent_sites
from numpyro_dp.model.guided.guides import synthetic_arguments
from numpyro_dp.model.guided.model import Outline
from numpyro_dp.model.plates import peeled
from numpyro_dp.model.private_model import PrivateModel

_FAMILIES = ("bernoulli", "binomial", "negative_binomial")
_POINTS, _TOLERANCE = 8, 1e-3
_FITS = (
    "PolyaGammaGuide fits Bernoulli, Binomial and NegativeBinomial outcomes with affine logits "
    "under normal priors, whose precision may have a Gamma prior (or whose variance an "
    "InverseGamma one); for other models use DPSVI"
)


class Latents(NamedTuple):
    """Latent sites of a model by name, in the order in which they are flattened.

    - **coefficients**: name and shape.
    - **precisions**: name, shape, and whether the site is a variance instead.
    """

    coefficients: tuple[tuple[str, tuple[int, ...]], ...]
    precisions: tuple[tuple[str, tuple[int, ...], bool], ...]

    @property
    def dim(self) -> int:
        """Number of coefficients."""
        return sum(_size(shape) for _, shape in self.coefficients)

    @property
    def groups(self) -> int:
        """Number of precisions."""
        return sum(_size(shape) for _, shape, _ in self.precisions)


def read_latents(model: Callable[..., Any], args: Sequence[Any], kwargs: Mapping) -> Latents:
    """Trace a model for its continuous latents, with outcomes or without; no value exists."""
    coefficients, precisions = [], []

    def look() -> None:
        sites = latent_sites(model, (tuple(args), dict(kwargs)), random.key(0))
        for name, site in sorted(sites.items()):
            fn, shape = peeled(site["fn"]).fn, jnp.shape(site["value"])
            if isinstance(fn, dist.Gamma | dist.InverseGamma):
                precisions.append((name, shape, isinstance(fn, dist.InverseGamma)))
            elif not fn.support.is_discrete:
                coefficients.append((name, shape))

    jax.eval_shape(look)
    return Latents(tuple(coefficients), tuple(precisions))


class WeightPrior(NamedTuple):
    """A normal law of the coefficients, given precisions that have Gamma laws.

    The precision of the coefficients is ``fixed + diag(groups @ taus)``.

    - **linear**: of shape (dim,): the precision times the mean.
    - **shape**, **rate**: of the precisions' priors.
    """

    fixed: Float[np.ndarray, "dim dim"]
    linear: Float[np.ndarray, " dim"]
    groups: Float[np.ndarray, "dim groups"]
    shape: Float[np.ndarray, " groups"]
    rate: Float[np.ndarray, " groups"]

    @property
    def posterior_shape(self) -> Float[np.ndarray, " groups"]:
        """Shape of each precision's variational Gamma law, whatever the coefficients are."""
        return self.shape + np.count_nonzero(self.groups, axis=0) / 2

    def posterior_rate(
        self, mean: Float[Array, " dim"], variance: Float[Array, " dim"]
    ) -> Float[Array, " groups"]:
        """Its rate: the expected half sum of squares, added to the prior's."""
        return jnp.asarray(self.rate) + (mean**2 + variance) @ jnp.asarray(self.groups) / 2

    def precision(self, rate: Float[Array, " groups"]) -> Float[Array, "dim dim"]:
        """Expected precision of the coefficients at the precisions' variational law."""
        taus = jnp.asarray(self.posterior_shape) / rate
        return jnp.asarray(self.fixed) + jnp.diag(jnp.asarray(self.groups) @ taus)


@dataclass(frozen=True, eq=False)
class Regression:
    """A model that Pólya–Gamma inference fits.

    :param glm: the recognised model; a row has zeros where the predictor reads no latent.
    :param loss: its loss, with bounds.
    :param latents: sites in order.
    :param chosen: places of the coefficients in a row.
    :param intercept: which coefficient is the intercept, and the constant in its column.
    :param centred: which columns are centred.
    :param prior: of the coefficients.
    """

    glm: GLM
    loss: Loss
    latents: Latents
    chosen: np.ndarray
    intercept: tuple[int, float] | None
    centred: np.ndarray
    prior: WeightPrior

    @property
    def dim(self) -> int:
        """Number of coefficients."""
        return len(self.chosen)

    @property
    def largest(self) -> float:
        """Bound on the Pólya–Gamma shape of a record, its weight included."""
        return 4 * self.loss.smoothness


@lru_cache(maxsize=64)
def read_regression(
    model: Callable[..., Any],
    found: Outline,
    intercept: int | None,
    max_trials: int | None,
    max_count: float | None,
) -> Regression:
    """Recognise a model of the family, or refuse by site, cause and remedy.

    :param found: the model's arguments, and the model split.
    :param intercept: place of a coefficient whose column holds ones; ``None`` to find it.
    """
    target = found.private_model
    if target is None:
        raise UnsupportedModelError(
            "the model has parameters or latents of single records, and no predictor that all "
            f"records share: {_FITS}"
        )
    glm = recognise(target)
    if glm.family not in _FAMILIES:
        raise UnsupportedModelError(
            f"site `{glm.site}` has {glm.family} outcomes, which no Pólya–Gamma variable makes "
            f"conjugate: {_FITS}"
        )
    loss = glm.loss(max_trials=max_trials, max_count=max_count)
    arguments = synthetic_arguments(found.layout, found.few_rows)
    latents = read_latents(model, *arguments)
    chosen, constant = _columns(latents, constant_slopes(target))
    place = _intercept(constant, intercept)
    centred = np.isnan(constant)
    if place is not None:
        centred[place[0]] = False
    laws = _gamma_laws(model, arguments, latents)
    return Regression(
        glm, loss, latents, chosen, place, centred, _read_prior(target, latents, laws)
    )


def _columns(latents: Latents, slopes: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Places of the coefficients in a row, and the constant in each column (NaN where none is).

    Precisions never enter a predictor that is linear in unconstrained latents.
    """
    places, constants, start = [], [], 0
    own = dict(latents.coefficients)
    shapes = own | {name: shape for name, shape, _ in latents.precisions}
    for name in sorted(shapes):
        size = _size(shapes[name])
        if name in own:
            places += range(start, start + size)
            constants += list(np.ravel(slopes.get(name, np.full(size, np.nan))))
        start += size
    return np.array(places), np.array(constants, float)


def _intercept(constant: np.ndarray, given: int | None) -> tuple[int, float] | None:
    if given is not None:
        if not -len(constant) <= given < len(constant):
            raise ValueError(
                f"intercept={given} is no coefficient: the model has {len(constant)} of them"
            )
        place = given % len(constant)
        return place, 1.0 if np.isnan(constant[place]) else float(constant[place])
    known = [k for k, value in enumerate(constant) if not np.isnan(value) and value != 0]
    return (known[0], float(constant[known[0]])) if known else None


def _read_prior(
    model: PrivateModel, latents: Latents, laws: tuple[np.ndarray, np.ndarray]
) -> WeightPrior:
    """Coefficients' conditional normal law and precisions' Gamma laws, checked on the program."""
    dim, groups = latents.dim, latents.groups
    dtype = flat_position(model)[1].dtype

    def log_prior(w: Float[Array, " dim"], log_tau: Float[Array, " groups"]) -> Float[Array, ""]:
        return model.log_prior({**cut(w, latents.coefficients), **_logs(latents, log_tau)})

    def curvature(w: Float[Array, " dim"], tau: Float[Array, " groups"]) -> Array:
        return -jax.hessian(log_prior)(w, jnp.log(tau))

    w, tau = jnp.zeros(dim, dtype), jnp.ones(groups, dtype)
    scaled = np.asarray(jax.jit(jax.jacfwd(curvature, argnums=1))(w, tau), float)
    scaled = np.einsum("iig->ig", scaled)
    total = np.asarray(jax.jit(curvature)(w, tau), float)
    linear = np.asarray(jax.jit(jax.grad(log_prior))(w, jnp.log(tau)), float)
    fixed = (total + total.T) / 2 - np.diag(scaled.sum(axis=1))
    fixed[np.abs(fixed) < 1e-6 * np.abs(total).max(initial=0)] = 0
    prior = WeightPrior(fixed, linear, scaled, *laws)
    _require_prior(prior, jax.jit(jax.vmap(log_prior)), dtype, latents)
    return prior


def _gamma_laws(
    model: Callable[..., Any], arguments: tuple[tuple, dict], latents: Latents
) -> tuple[np.ndarray, np.ndarray]:
    """Shape and rate of every precision's prior, in order."""
    if not latents.precisions:
        return np.zeros(0), np.zeros(0)
    sites, found = latent_sites(model, arguments, random.key(0)), []
    for name, shape, _ in latents.precisions:
        fn = peeled(sites[name]["fn"]).fn
        found.append([np.broadcast_to(part, shape) for part in (fn.concentration, fn.rate)])
    shapes, rates = (np.concatenate([np.ravel(pair[k]) for pair in found]) for k in (0, 1))
    return shapes, rates


def _require_prior(prior: WeightPrior, log_prior: Callable, dtype: Any, latents: Latents) -> None:
    """Compare differences of our formula and the model's program at made-up positions."""
    rng = np.random.default_rng(0)
    w = rng.normal(0, 2, (_POINTS, latents.dim))
    logs = rng.normal(0, 1, (_POINTS, latents.groups))
    precision = np.exp(logs) @ prior.groups.T
    ours = w @ prior.linear - np.einsum("pi,ij,pj->p", w, prior.fixed, w) / 2
    ours -= np.sum(precision * w**2, axis=1) / 2
    shared = np.any(prior.groups != 0, axis=1)
    ours += np.log(precision[:, shared]).sum(axis=1) / 2
    ours += logs @ prior.shape - np.exp(logs) @ prior.rate
    models = np.asarray(log_prior(jnp.asarray(w, dtype), jnp.asarray(logs, dtype)), float)
    close = np.allclose(ours - ours[0], models - models[0], rtol=_TOLERANCE, atol=_TOLERANCE)
    if not close or np.linalg.eigvalsh(prior.fixed)[0] < -1e-6 * np.abs(prior.fixed).max():
        names = [name for name, _ in latents.coefficients]
        raise UnsupportedModelError(
            f"the prior of site(s) {', '.join(f'`{name}`' for name in names)} is not normal with a "
            "constant mean and a precision that is constant or has a Gamma prior of its own: "
            f"{_FITS}"
        )


def cut(flat: Array, sites: Sequence[tuple]) -> dict[str, Array]:
    """Values of sites, each given by name and shape first, from their flat vector."""
    values, start = {}, 0
    for name, shape, *_ in sites:
        values[name] = flat[start : start + _size(shape)].reshape(shape)
        start += _size(shape)
    return values


def _logs(latents: Latents, log_tau: Float[Array, " groups"]) -> dict[str, Array]:
    """Unconstrained positions of the precisions' sites."""
    own = cut(log_tau, latents.precisions)
    return {name: -own[name] if inverse else own[name] for name, _, inverse in latents.precisions}


def _size(shape: Sequence[int]) -> int:
    return int(np.prod(shape, dtype=int))
