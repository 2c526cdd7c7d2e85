"""The laws of a record's outcomes: which they are, and which latents widen them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import random

from numpyro_dp._quick_compile import quickly_compiled
from numpyro_dp.families.sites import record_sites
from numpyro_dp.model.plates import peeled
from numpyro_dp.model.private_model import PrivateModel

_CLASSES = (
    dist.BernoulliProbs,
    dist.BernoulliLogits,
    dist.BinomialProbs,
    dist.BinomialLogits,
    dist.CategoricalProbs,
    dist.CategoricalLogits,
)
# Laws that have a location, and a scale of the distances to it.
_SCALED = (
    dist.AsymmetricLaplace,
    dist.Cauchy,
    dist.Gumbel,
    dist.Laplace,
    dist.LogNormal,
    dist.Logistic,
    dist.Normal,
    dist.StudentT,
)


def asymmetric(model: PrivateModel) -> list[str]:
    """Observed sites of an asymmetric Laplace law, which mostly stands for a quantile."""
    laws = dist.AsymmetricLaplace, dist.AsymmetricLaplaceQuantile
    return [name for name, law, *_ in laws_of(model) if issubclass(law, laws)]


def scattered_gates(model: PrivateModel) -> list[str]:
    """Observed sites that are zero by a gate or by a law that may scatter widely.

    Zeros of the one look like those of the other. A Poisson's or binomial's mean fixes its zeros.
    """
    bare = dist.Poisson, dist.BinomialLogits, dist.BinomialProbs
    return [
        name
        for name, law, base, _ in laws_of(model)
        if issubclass(law, dist.ZeroInflatedProbs) and not issubclass(base, bare)
    ]


def of_classes(model: PrivateModel) -> bool:
    """Whether every observed site has a bounded whole number, as a class or of trials."""
    return all(issubclass(law, _CLASSES) for _, law, *_ in laws_of(model))


def may_scatter(model: PrivateModel) -> bool:
    """Whether an observed site's law may have a dispersion beside its mean."""
    fixed = *_CLASSES, dist.Poisson, dist.Exponential
    return not all(issubclass(law, fixed) for _, law, *_ in laws_of(model))


def of_counts(model: PrivateModel) -> bool:
    """Whether an observed site's law is of counts that vary more than Poisson's."""
    laws = [law for _, own, base, _ in laws_of(model) for law in (own, base)]
    return any(issubclass(law, dist.GammaPoisson) for law in laws)


def heavy(model: PrivateModel) -> bool:
    """Whether an observed site's law has heavy tails already."""
    return any(issubclass(law, dist.StudentT | dist.Cauchy) for _, law, *_ in laws_of(model))


def of_several_numbers(model: PrivateModel) -> list[str]:
    """Observed sites of several numbers of a record that the model has as independent."""
    return [name for name, _, _, numbers in laws_of(model) if numbers > 1]


def has_cases(model: PrivateModel) -> bool:
    """Whether an observed site has whole numbers, such as cases or events, which may be rare."""
    for _, law, *_ in laws_of(model):
        # A mixture's is that of its components, which its class does not tell.
        with contextlib.suppress(NotImplementedError):
            if getattr(getattr(law, "support", None), "is_discrete", False):
                return True
    return False


@lru_cache(maxsize=16)
def laws_of(model: PrivateModel) -> list[tuple[str, type, type, int]]:
    """A record's observed sites, the classes of their laws and of these laws' own base, and how
    many numbers of a record are independent of each other there.

    Nothing is computed.
    """
    found, numbers = {}, {}

    def look(z: Mapping[str, Any]) -> None:
        arrays = [jnp.zeros(leaf.shape, leaf.dtype) for leaf in model.layout.structs(1)]
        sites = record_sites(model.function, model, model.constrain(z), arrays, random.key(0))
        for name, site in sites.items():
            if site["is_observed"]:
                found[name] = law = peeled(site["fn"]).fn
                batch = jnp.shape(site["value"])[: -len(law.event_shape) or None]
                numbers[name] = math.prod(batch)

    latents = model.structure.latents.items()
    jax.eval_shape(look, {name: jax.ShapeDtypeStruct(s.shape, s.dtype) for name, s in latents})
    return [
        (name, type(law), type(peeled(getattr(law, "base_dist", None)).fn), numbers[name])
        for name, law in found.items()
    ]


def dispersions(model: PrivateModel, z: Mapping[str, Any]) -> dict[str, int]:
    """Latents that scale how far outcomes lie from where the model has them, and which way.

    :param z: an unconstrained position.
    :returns: 1 for each where a larger one widens the law, -1 where it narrows it, as a precision
        does. Those that move the law's location as well are none.
    """
    if not any(issubclass(law, _SCALED) for _, law, *_ in laws_of(model)):
        return {}

    def moments(z: Mapping[str, Any]) -> tuple[Any, Any]:
        arrays = [jnp.ones(leaf.shape, leaf.dtype) for leaf in model.layout.structs(1)]
        sites = record_sites(model.function, model, model.constrain(z), arrays, random.key(0))
        laws = [peeled(site["fn"]).fn for site in sites.values() if site["is_observed"]]
        scaled = [law for law in laws if isinstance(law, _SCALED)]
        widths = [jnp.log(jnp.asarray(law.scale, float)) for law in scaled]
        places = [jnp.asarray(law.loc, float) for law in scaled]
        total = [sum(map(jnp.sum, each), start=jnp.zeros(())) for each in (widths, places)]
        return total[0], total[1]

    position = dict(z)
    widths, places = quickly_compiled(jax.jacrev(moments), position)(position)
    return {
        name: int(np.sign(np.sum(widths[name])))
        for name in position
        if np.isfinite(widths[name]).all() and np.any(widths[name]) and not np.any(places[name])
    }
