"""Where a model's prior lies, and the directions of its latents that records can tell apart.

In unconstrained coordinates; no record is looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jax.flatten_util import ravel_pytree
from numpyro import distributions as dist, handlers
from numpyro.infer import init_to_sample

from numpyro_dp._quick_compile import lightly_jitted, quickly_jitted
from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.families.outcome_laws import dispersions
from numpyro_dp.families.silent_directions import Meetings
from numpyro_dp.model.data_free import run_data_free
from numpyro_dp.model.names import quoted
from numpyro_dp.model.plates import peeled
from numpyro_dp.model.private_model import PrivateModel
from numpyro_dp.scoring.information import Entries, Matrix, Vector
from numpyro_dp.scoring.rounds import PriorMoments
from numpyro_dp.scoring.statistic import unravelled

_DRAWS, _PLACES = 2_000, 64
# Quartiles of a normal are this far apart, in standard deviations.
_QUARTILES = 1.349
# The square of what lies beyond is more than float32 holds.
_LARGEST = 1e18
# Of coordinates' parts in silent directions, what is more than rounding.
_RANK = 1e-6
# Of how far entries move there, what is more than rounding of scores.
_EQUAL = 1e-3
# Sds of a median of so many normal draws from nought, within which it may be nought.
_NOUGHT = 3 * 1.2533 / math.sqrt(_DRAWS)
# The same of their spread, as a part of it: half of what quartiles of a normal law are off by.
_WIDER = 3 * 1.17 / math.sqrt(_DRAWS)
# How much of that is left where rounds begin. All of it, times a blood pressure, is a rate of e⁴.
_OFF = 0.1
_WIDENED = 1.5
_CUTPOINTS = (
    "dist.TransformedDistribution(dist.Normal(0, 1).expand([k]).to_event(1), "
    "dist.transforms.OrderedTransform()) of k cutpoints (docs/howto/ordinal-answers.md)"
)


def prior_moments(model: PrivateModel) -> PriorMoments:
    """Medians and quartile ranges of 2,000 prior draws, as independent normals.

    Not means and standard deviations: a Cauchy prior has none.

    :raises UnsupportedModelError: for a latent without a proper prior.
    """
    improper = improper_latents(model)
    if improper:
        such = _CUTPOINTS if set(improper) <= set(ordered(model)) else "dist.Normal(0, 10)"
        raise UnsupportedModelError(
            f"the prior of {quoted(improper)} is flat: the rounds begin where the prior lies and "
            f"in its units. Give a proper prior on the scale of the answer, such as {such} (beside "
            "the factor that hangs its entries together, if there is one, as of an ICAR)"
        )
    draws = np.asarray(_drawn(model), np.float64)
    # What has overflowed is refused below, by name.
    with np.errstate(all="ignore"):
        low, middle, high = np.quantile(draws, [0.25, 0.5, 0.75], axis=0)
        spread = (high - low) / _QUARTILES
        without = ~((np.abs(middle) + spread < _LARGEST) & (spread > 0))
    latents = sorted(model.structure.latents.items())
    sites = np.repeat(np.arange(len(latents)), [struct.size for _, struct in latents])
    if without.any():
        named = [latents[k][0] for k in np.unique(sites[without])]
        raise UnsupportedModelError(
            f"the prior of {quoted(named)} has no spread that a number "
            "holds: half of its draws, or more, are too large, too small or all alike. Give it a "
            "proper prior on the scale of the answer; what exponentiates, such as "
            "`OrderedTransform`, `ExpTransform` or `LogNormal`, takes logarithms, not hundreds"
        )
    middle, spread = _of_one_law(middle, spread, sites)
    # Of a prior about nought, the middle of some draws lies as far off as it is wide: under
    # Normal(0, 100) at log odds of -2 to 1, where outcomes tell a quarter of what they do at 0.
    # Not at nought itself: there what is multiplied by others is told of nothing.
    nought = np.abs(middle) < _NOUGHT * spread
    mean = np.where(nought, _OFF * middle / np.maximum(spread, 1), middle)
    return PriorMoments(mean, spread, sites=sites)


def wider(model: PrivateModel, prior: PriorMoments) -> Vector:
    """A step along which outcomes scatter more widely, one and a half of its prior's sds of each
    latent that scales them, shape (dim,); nought where the model has none."""
    latents = sorted(model.structure.latents.items())
    ways = dispersions(model, unravelled(model, prior.mean))
    free = _latents_of(model, lambda law: _support(law) is dist.constraints.real)
    steps = [
        # Of several that may have either sign each widens some records' and narrows others'.
        ways.get(name, 0) if each.size == 1 or name not in free else 0
        for name, each in latents
    ]
    return _WIDENED * np.repeat(steps, [each.size for _, each in latents]) * prior.sd


def _of_one_law(middle: Vector, spread: Vector, sites: Vector) -> tuple[Vector, Vector]:
    """Entries of a latent whose draws tell them apart no more than chance does, as of one law.

    Where groups' common level trades with a column that is not centred, little is left of far more,
    and units that differ by chance are enough to lose it.
    """
    middle, spread = middle.copy(), spread.copy()
    for site in np.unique(sites):
        these = sites == site
        typical, at = float(np.mean(spread[these])), float(np.mean(middle[these]))
        apart = np.abs(spread[these] - typical) / _WIDER, np.abs(middle[these] - at) / _NOUGHT
        if max(map(np.max, apart)) < typical:
            middle[these], spread[these] = at, typical
    return middle, spread


def steepness(model: PrivateModel, prior: PriorMoments) -> np.ndarray:
    """Largest curvature of the prior's log density at each of some prior draws, shape (draws,).

    In units of its own spread, in which that of a normal prior is 1 everywhere. Where groups hang
    on a scale of their own it is not: a small scale makes it as large as one likes.
    """
    return np.asarray(_steepness(model, prior.sd), np.float64)


@partial(lightly_jitted, static_argnums=0)
def _steepness(model: PrivateModel, sd: Any) -> Any:
    def log_prior(x: Any) -> Any:
        return model.log_prior(unravelled(model, x * sd))

    def steepest(u: Any) -> Any:
        curvature = -jax.hessian(log_prior)(u / sd)
        return jnp.linalg.eigvalsh(curvature)[-1]

    return jax.lax.map(steepest, _draws(model)[:_PLACES])


def _draws(model: PrivateModel) -> Any:
    keys = random.split(random.key(0), _DRAWS)
    return jax.lax.map(lambda key: ravel_pytree(model.init(key, init_to_sample))[0], keys)


_drawn = quickly_jitted(_draws, static_argnums=0)


def improper_latents(model: PrivateModel) -> list[str]:
    """Latents whose prior is flat, sorted."""
    return _latents_of(model, lambda law: isinstance(law, dist.ImproperUniform))


def ordered(model: PrivateModel) -> list[str]:
    """Latents whose entries follow each other, as cutpoints do; sorted."""
    return _latents_of(model, lambda law: _support(law) is dist.constraints.ordered_vector)


def shares(model: PrivateModel) -> list[str]:
    """Latents whose entries add up to one; sorted."""
    return _latents_of(model, lambda law: _support(law) is dist.constraints.simplex)


def _support(law: Any) -> Any:
    """Of a law, or of each of the independent ones that it is made of."""
    return getattr(law.support, "base_constraint", law.support)


def walks(model: PrivateModel) -> list[str]:
    """Latents that are random walks, whose entries tell of their neighbours; sorted."""
    return _latents_of(model, lambda law: isinstance(law, dist.GaussianRandomWalk))


def bounded(model: PrivateModel) -> list[str]:
    """Latents that are each one number and not any, as a scale, a share and a rate are; sorted."""
    one = [name for name, struct in model.structure.latents.items() if not struct.shape]
    free = _latents_of(model, lambda law: law.support is dist.constraints.real)
    return sorted({*one}.difference(free))


def _latents_of(model: PrivateModel, holds: Callable[[Any], bool]) -> list[str]:
    """Latents of whose law something holds, which is looked at and not computed; sorted."""
    found: set[str] = set()

    def look(key: Any) -> None:
        body = handlers.seed(lambda: run_data_free(model), key)
        sites = handlers.trace(handlers.substitute(body, substitute_fn=init_to_sample)).get_trace()
        found.update(name for name in model.latents if holds(peeled(sites[name]["fn"]).fn))

    jax.eval_shape(look, random.key(0))
    return sorted(found)


class Directions(NamedTuple):
    """Coordinates v of what records tell of the unconstrained latents, u = origin + basis · v.

    - **origin**: shape (dim,); **basis**: shape (dim, directions).
    - **inverse**: from u less its origin to v, shape (directions, dim).
    - **silent**: prior covariance of what u is made of beside that, shape (dim, dim).
    """

    origin: Vector
    basis: Matrix
    inverse: Matrix
    silent: Matrix


def every_direction(dim: int) -> Directions:
    """v is u."""
    return Directions(np.zeros(dim), np.eye(dim), np.eye(dim), np.zeros((dim, dim)))


def heard_directions(
    prior: PriorMoments, silent: Matrix, meetings: Meetings | None = None
) -> tuple[Directions, PriorMoments]:
    """What is orthogonal, in units of the prior, to directions that no record tells; its prior.

    Information there is exactly nothing, where rounds would find noise, and take it for knowledge:
    with many coordinates it made intervals of sums' parts three times too narrow.

    :param prior: of the latents.
    :param silent: orthonormal rows in units of the prior, shape (number, dim).
    :param meetings: which latents' entries a record may touch together; by default all.
    """
    dim, number = len(prior.sd), len(silent)
    if not number:
        entries = None if meetings is None else Entries(*meetings, np.eye(dim), np.arange(dim))
        sites = _compared(prior.sites, entries)
        return every_direction(dim), prior._replace(entries=entries, sites=sites)
    # The rows after the first span what these leave; coordinates that these do not touch stay.
    basis = np.linalg.qr(silent.T, mode="complete")[0][:, number:]
    untold = prior.sd[:, None] * (silent.T @ silent) * prior.sd
    found = Directions(prior.mean, prior.sd[:, None] * basis, basis.T / prior.sd, untold)
    entries = None if meetings is None else _without(meetings, silent, basis, prior.sd)
    latents = np.argmax(np.abs(basis), axis=0) if entries is None else entries.latents
    sites = None if prior.sites is None else _compared(prior.sites[latents], entries)
    return found, PriorMoments(np.zeros(dim - number), np.ones(dim - number), entries, sites)


def _compared(sites: Vector | None, entries: Entries | None) -> Vector | None:
    """Sites whose entries are compared in :func:`~numpyro_dp.scoring.information.held`.

    Groups' effects, which are whitened as each other, are each a site of its own.
    """
    if sites is None or entries is None:
        return sites
    groups = np.bincount(entries.alike)[entries.alike] > 1
    return np.where(groups, len(sites) + np.arange(len(sites)), sites)


def _without(meetings: Meetings, silent: Matrix, basis: Matrix, sd: Vector) -> Entries:
    """Entries of all latents but as many as there are silent directions, of which these are free.

    Those that meet most others, as an intercept does beside groups. It stays where it is; of groups
    that move alike the mean does, so that a record of the one that is left out moves all others.
    Where that one stayed instead, it moved only with all entries of another factor: what is told of
    it was what remains of far more, with the noise and the evening out of all of these, and it came
    to rest too near the middle, in 9 of 9 releases by a half of its way (51 states, six ages).

    In units of the latents: a group's prior is as wide as what is known of it, and a column adds as
    much to each.
    """
    fixed: list[int] = []
    stays: list[np.ndarray] = []
    met = meetings.met.copy()
    for k in np.argsort(-met.sum(0), kind="stable"):
        own = meetings.alike == meetings.alike[k]
        moves = (silent * sd)[:, own]
        alike = np.ptp(moves, axis=1).max() <= _EQUAL * np.abs(moves).max()
        stay = (own if alike else np.arange(len(sd)) == k) * sd / sd[own].max()
        if np.linalg.matrix_rank(np.array([*stays, stay]) @ silent.T, tol=_RANK) > len(fixed):
            fixed.append(int(k))
            stays.append(stay)
            if alike:
                met[np.ix_(own, own)] = 1
    kept = np.delete(np.arange(len(basis)), fixed)
    moved = silent[:, kept].T @ np.linalg.solve(stays @ silent.T, stays @ basis)
    met, alike = met[np.ix_(kept, kept)], meetings.alike[kept]
    return Entries(met, alike, sd[kept, None] * (basis[kept] - moved), kept)
