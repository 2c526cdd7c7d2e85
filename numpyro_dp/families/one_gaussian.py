"""What one Gaussian likelihood of a model's latents cannot hold, told from public values alone.

Where records tell only of a product of latents, as of ``tau * z`` in a hierarchy that is written
non-centred by hand, a Gaussian of the factors misses how large the factors may be. Where components
of a mixture begin alike, no score tells one from the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import combinations
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import random

from numpyro_dp._quick_compile import quickly_compiled
from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.families.outcome_laws import laws_of
from numpyro_dp.families.silent_directions import MOST, NONE, SOME, made_up_scores
from numpyro_dp.families.sites import record_sites
from numpyro_dp.families.synthetic_records import prior_draws
from numpyro_dp.model.data_free import read_latents
from numpyro_dp.model.jaxprs import products, prune, trace_program
from numpyro_dp.model.names import quoted
from numpyro_dp.model.plates import peeled
from numpyro_dp.model.private_model import PrivateModel

_MIXTURES = (dist.MixtureSameFamily, dist.MixtureGeneral)
# Of components whose priors overlap by less than the first, 33 releases of 33 found the mode that
# these name; of an ordering under a wide prior (.07) one of five, the others up to 400 of its own
# standard deviations off.
APART_BELOW, _MOST_OVERLAP = 0.01, 0.05
# Of three components at -1, 0 and 1 whose spreads have a median of .3, of which this is .31, two of
# twenty data sets made up from the prior lay 11 and 19 of their own sds off, one unnamed.
MOST_BLURRED = 0.2
APART = (
    "Give each component a prior centre of its own and a narrow prior about it (a quarter of the "
    "distance to the next at most, as in `dist.Normal(jnp.array([-1.0, 1.0]), 0.5)`, of three an "
    "eighth; an ordering alone is not enough), the shares a prior that is not flat, and the "
    "spreads one well below half of the distance"
)
_ABOUT_ONE = (
    "; of components about one centre, as of outliers, the spreads such priors "
    "(`dist.LogNormal(jnp.array([0.0, 1.8]), 0.25)`), or `StudentT` in place of the mixture"
)
_BY_BITS = "`DPFastMH` with a step size and a bound of your own, which needs no scores"
# Pairs of positions that must all show a product.
_PAIRS = 3
# Nats between components below which rounds do not get away from where they begin.
_ALIKE = 0.2


def require_one_gaussian(model: PrivateModel, middle: np.ndarray, sd: np.ndarray) -> None:
    """Refuse, before it is paid for, what one Gaussian likelihood was measured to get wrong.

    :param middle: of the prior of the unconstrained latents in a row, shape (dim,).
    :param sd: its spread, shape (dim,).
    :raises UnsupportedModelError: with cause and remedy.
    """
    factors = untold_product(model, middle, sd)
    if factors is not None and all(model.structure.latents[each].size == 1 for each in factors):
        raise UnsupportedModelError(
            f"records tell only of a product of latents {quoted(factors)}, as of a share of "
            "positive tests, to which prevalence and sensitivity lead together: along such a "
            "product the likelihood is no Gaussian. Fix all but one of them at public numbers, or "
            "make what records do tell, as that share, a latent of its own, and compute the others "
            "from its draws (docs/howto/models-by-name.md). Or use `DPSVI`"
        )
    if factors is not None:
        raise UnsupportedModelError(
            f"records tell only of a product of latents {quoted(factors)}, as of `mu + tau * z` in "
            "a hierarchy (of `tau * lam * z` in a horseshoe) that is non-centred by hand or by a "
            "`reparam` within it: along such a product the likelihood is no Gaussian, and the "
            "scale would come out too large. Make the product a latent of its own, as in "
            '`a = numpyro.sample("a", dist.Normal(mu, tau))`, `dist.Normal(0, tau * lam)`; where '
            "NUTS should sample it non-centred, wrap the model, `numpyro.handlers.reparam(model, "
            'config={"a": LocScaleReparam(0)})`: it is released as written and sampled as wrapped. '
            "Several effects of a group at once are `dist.MultivariateNormal(mu, "
            "scale_tril=tau[:, None] * L)` in the groups' plate; of `numpyro.contrib.hsgp` take "
            "`non_centered=False`. Of a discrimination or loading, as in `d[j] * (q[i] - h[j])`, "
            "fix the one factor at 1. Or use `DPSVI`"
        )
    if has_free_shares(model) and (lost := _endless(model)):
        raise UnsupportedModelError(
            f"of draws of the prior {lost:.0%} put a mixture's component beyond all numbers, as "
            "`OrderedTransform` does, which adds `exp` of the second number on to the first. Give "
            f"the numbers that it transforms priors on that scale; or: {APART}"
        )
    share = overlap(model) if has_free_shares(model) else 0.0
    if share > _MOST_OVERLAP:
        raise UnsupportedModelError(
            f"the priors of a mixture's components overlap: of two draws of them, in {share:.0%} "
            "of pairs, a component of the first lies beyond the next component of the second. The "
            "rounds would stop between its modes, far from either, and nothing that is released "
            f"tells that. {APART}{_ABOUT_ONE};"
            f" or use {_BY_BITS}"
        )


def require_slopes(model: PrivateModel) -> None:
    """Refuse latents that records read by steps alone, of which no score tells anything.

    :raises UnsupportedModelError: with their names and the remedy.
    """
    if stepped := _stepped(model):
        raise UnsupportedModelError(
            f"records tell of latent(s) {quoted(stepped)} by a comparison or by rounding alone, "
            "so that no score moves them: make the step a slope, as in `jax.nn.sigmoid((day - t) / "
            f"width)` for `day > t` with a public width; or use {_BY_BITS}"
        )


@lru_cache(maxsize=16)
def _stepped(model: PrivateModel) -> list[str]:
    """Latents that a record's term reads, and whose slope reads nothing: it is zero everywhere."""
    latents = dict(model.structure.latents)
    try:
        gradient = jax.grad(model.record_log_likelihood)
        slopes = trace_program(gradient, latents, model.layout.structs(1))
    except ValueError as error:
        raise UnsupportedModelError(
            f"a record's log likelihood has no gradient ({str(error).rstrip('.')}); "
            f"or use {_BY_BITS}"
        ) from error
    names, stepped = sorted(latents), []
    for name in names:
        slope = prune(slopes, [name == each for each in names])
        constant = name in read_latents(model) and not any(slope.used)
        if constant and not any(np.any(each) for each in slope([])):
            stepped.append(name)
    return stepped


def require_components_apart(model: PrivateModel, z: Mapping[str, Any]) -> None:
    """Refuse a mixture whose components no score tells apart where the rounds begin.

    :param z: where the prior's middle is, unconstrained.
    :raises UnsupportedModelError: with cause and remedy.
    """
    site = alike_components(model, z)
    if site is not None:
        raise UnsupportedModelError(
            f"the components of mixture `{site}` begin alike, since their priors have one centre: "
            f"no score tells one from the other. {APART}{_ABOUT_ONE}; or use {_BY_BITS}"
        )


def untold_product(
    model: PrivateModel, middle: np.ndarray, sd: np.ndarray
) -> tuple[str, ...] | None:
    """Latents that are multiplied before a record is read, and that no records could tell apart.

    Pairs of made-up positions decide. At each of them some directions of the latents change no
    made-up record's likelihood; where these directions are others at the other position, the
    likelihood is constant along a curve, which no Gaussian is. One pair may lie where all records
    are beyond a limit or masked, and tell of nothing else.

    :param middle: of the prior of the unconstrained latents in a row, shape (dim,).
    :param sd: its spread, shape (dim,).
    :returns: names of the first such set of latents, or ``None``.
    """
    names = sorted(model.structure.latents)
    found = sorted(map(sorted, filter(lambda s: len(s) > 1, products(model.term, names))))
    if not found or not 1 < len(sd) <= MOST or not model.layout.arrays:
        return None
    curved = all(_curved(*made_up_scores(model, middle, sd, seed=seed)) for seed in range(_PAIRS))
    return tuple(found[0]) if curved else None


def _curved(at: np.ndarray, elsewhere: np.ndarray) -> bool:
    """Whether scores at one position are silent along directions in which others are not."""
    if not (np.isfinite(at).all() and np.isfinite(elsewhere).all()):
        return False
    _, sizes, directions = np.linalg.svd(at, full_matrices=True)
    silent = directions[np.count_nonzero(sizes > NONE * sizes[0]) :]
    heard = np.linalg.norm(elsewhere @ silent.T, 2) if len(silent) else 0.0
    return bool(heard > SOME * np.linalg.norm(elsewhere, 2))


def alike_components(model: PrivateModel, z: Mapping[str, Any]) -> str | None:
    """An observed site that is a mixture whose components are one and the same at a position.

    :param z: the unconstrained latents.
    """
    if not _has_mixture(model):
        return None
    values = model.constrain(dict(z))
    # A record of zeros alone may be one of which nothing was observed: a mask is a column too.
    zeros, ones = (
        [jnp.full(leaf.shape, filling, leaf.dtype) for leaf in model.layout.structs(1)]
        for filling in (0, 1)
    )

    def told(values: dict) -> dict[str, Any]:
        found = {}
        among_ones = record_sites(model.function, model, values, ones, random.key(0))
        for name, site in record_sites(model.function, model, values, zeros, random.key(0)).items():
            laws = [peeled(each["fn"]).fn for each in (site, among_ones[name])]
            if site["is_observed"] and isinstance(laws[0], _MIXTURES):
                found[name] = jnp.maximum(*map(_apart, laws))
        return found

    apart = quickly_compiled(told, values)(values)
    return next((name for name, nats in apart.items() if nats < _ALIKE), None)


@lru_cache(maxsize=16)
def has_free_shares(model: PrivateModel) -> bool:
    """Whether an outcome is a mixture whose shares are latent, so that components may trade places.

    Those of an effect that is integrated out, at fixed points with fixed weights, may not.
    """
    if not _has_mixture(model):
        return False
    drawn = prior_draws(model, random.key(0))[1]
    some = _shares(model, {name: values[:2] for name, values in drawn.items()})
    return not all(np.allclose(*shares) for shares in some)


def _shares(model: PrivateModel, drawn: dict) -> list[np.ndarray]:
    """Shares of each mixture's components at each of such values of the latents, stacked."""

    def shares(values: dict) -> list[Any]:
        arrays = [jnp.zeros(leaf.shape, leaf.dtype) for leaf in model.layout.structs(1)]
        sites = record_sites(model.function, model, values, arrays, random.key(0))
        laws = [peeled(site["fn"]).fn for site in sites.values() if site["is_observed"]]
        mixed = [law for law in laws if isinstance(law, _MIXTURES)]
        return [jax.nn.softmax(law.mixing_distribution.logits) for law in mixed]

    return [np.asarray(each) for each in quickly_compiled(jax.vmap(shares), drawn)(drawn)]


def closest(model: PrivateModel, z: Mapping[str, Any]) -> tuple[float, float]:
    """At a position, own sds between the two closest components of a mixture; the least share.

    NaN for the former where nothing is known, as of :func:`overlap`.
    """
    values = jax.tree.map(lambda value: jnp.asarray(value)[None], model.constrain(z))
    gaps = [np.min(apart) for each in _moments_of(model, values) for apart, _ in _gaps(each)]
    least = min(float(np.min(shares)) for shares in _shares(model, values))
    return float(min(gaps, default=math.nan)), least


@lru_cache(maxsize=16)
def overlap(model: PrivateModel) -> float:
    """How much the priors of a mixture's components overlap.

    The chance that of two independent draws of the prior one puts two components the other way
    round, by their means or their variances, whichever tells them better; of those two components
    that are told worst. One half where they are alike, .0023 where their centres are four standard
    deviations of the prior apart. NaN where nothing is known: of components of several families,
    or without moments.
    """
    rows = [np.moveaxis(each, 1, -1) for each in _moments(model)]
    worst = [_worst_told(each.reshape(*each.shape[:2], -1)) for each in rows]
    return max(worst, default=math.nan)


@lru_cache(maxsize=16)
def blurred(model: PrivateModel) -> float:
    """How often components of a draw of the prior lie closer than two of their own sds.

    Of records that come of such components none tells which, and several modes may suit them all,
    however far apart the priors of the centres are. Whose sds differ by three times are not meant.
    """
    gaps = [pair for each in _moments(model) for pair in _gaps(each)]
    close = [(apart < 2) & (stretch < np.log(3)) for apart, stretch in gaps]
    return float(np.any(close, axis=0).mean()) if close else math.nan


def _gaps(moments: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Of each pair of components, by draw: own sds apart, and the logarithm of their sds' ratio."""
    mean, log_variance = np.moveaxis(moments, 1, 0)
    sds = np.exp(log_variance / 2)
    for one, other in combinations(range(mean.shape[1]), 2):
        gap = (mean[:, one] - mean[:, other]) / ((sds[:, one] + sds[:, other]) / 2)
        stretch = np.abs(np.log(sds[:, one] / sds[:, other])).max(-1)
        # Of two records whichever tells them better; its numbers count together.
        yield np.linalg.norm(gap.reshape(len(gap), 2, -1), axis=2).max(1), stretch


@lru_cache(maxsize=16)
def _moments(model: PrivateModel) -> list[np.ndarray]:
    """Means and logarithms of variances of components of each mixture, of draws of the prior.

    Of shape (draws, 2, components, numbers), the numbers of one record and then of another.
    """
    return _moments_of(model, prior_draws(model, random.key(0))[1])


def _of_one_family(law: dist.MixtureGeneral) -> bool:
    return len({type(peeled(part).fn) for part in law.component_distributions}) == 1


def _moments_of(model: PrivateModel, drawn: Any) -> list[np.ndarray]:
    """The same of such draws, stacked."""

    def features(values: dict) -> list[Any]:
        found: list[list[Any]] = []
        for filling in (0, 1):
            arrays = [jnp.full(s.shape, filling, s.dtype) for s in model.layout.structs(1)]
            sites = record_sites(model.function, model, values, arrays, random.key(0))
            laws = [peeled(site["fn"]).fn for site in sites.values() if site["is_observed"]]
            found.append([])
            for law in laws:
                if isinstance(law, dist.MixtureSameFamily):
                    moments = law.component_mean, jnp.log(law.component_variance)
                    front = [jnp.moveaxis(each, law.mixture_dim, 0) for each in moments]
                    found[-1].append(jnp.stack([each.reshape(len(each), -1) for each in front]))
                elif isinstance(law, dist.MixtureGeneral) and _of_one_family(law):
                    parts = law.component_distributions
                    both = [[part.mean for part in parts], [part.variance for part in parts]]
                    alike = [jnp.stack(jnp.broadcast_arrays(*each)) for each in both]
                    means, variances = (each.reshape(len(parts), -1) for each in alike)
                    found[-1].append(jnp.stack([means, jnp.log(variances)]))
        return [jnp.concatenate(both, axis=2) for both in zip(*found, strict=True)]

    try:
        told = quickly_compiled(jax.vmap(features), drawn)(drawn)
    except (NotImplementedError, AttributeError):
        return []
    return [np.asarray(each, float) for each in told]


def _endless(model: PrivateModel) -> float:
    """Share of the prior's draws of which a component's mean is nowhere, as others' are not.

    That is where float32 does not hold its square.
    """
    most = math.sqrt(np.finfo(np.float32).max)
    held = [np.abs(each[:, 0]) < most for each in _moments(model)]
    return max((float(np.mean(np.any(~each & each.any(0), (1, 2)))) for each in held), default=0.0)


def _worst_told(features: np.ndarray) -> float:
    """Of numbers of shape (draws, components, features), as :func:`overlap` has it."""
    number, worst = features.shape[1], 0.0
    for one in range(number):
        for other in range(one + 1, number):
            mine, theirs = features[:, one], features[:, other]
            above, alike = mine[:, None] > theirs, mine[:, None] == theirs
            above = above.mean((0, 1)) + alike.mean((0, 1)) / 2
            told = np.isfinite(mine).all(0) & np.isfinite(theirs).all(0)
            worst = max(worst, float(np.min(np.minimum(above, 1 - above)[told], initial=0.5)))
    return worst


def _has_mixture(model: PrivateModel) -> bool:
    """Whether a record's site is a mixture."""
    return any(issubclass(law, _MIXTURES) for _, law, *_ in laws_of(model))


def _apart(law: Any) -> Any:
    """Nats between components of a mixture, at its own draws."""
    draws = law.sample(random.key(1), (200,))
    weights = jax.nn.log_softmax(law.mixing_distribution.logits)
    # A density of nought is far from any other, and like another of nought.
    each = jnp.maximum(law.component_log_probs(draws) - weights, np.finfo(np.float32).min)
    return jnp.abs(each - each[..., :1]).mean(0).max()
