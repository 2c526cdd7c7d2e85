"""Drawn outcomes in the place of observed ones, and laws whose draws are not of their density."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from numpyro import distributions as dist
from numpyro.primitives import Messenger

from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.model.plates import peeled

# NumPyro draws from the law before it is censored.
_CENSORED = (
    dist.LeftCensoredDistribution,
    dist.RightCensoredDistribution,
    dist.IntervalCensoredDistribution,
)


def has_own_samples(fn: Any) -> bool:
    """Whether draws of a distribution are of its density, and those of all that it is made of."""
    return _censored_in(fn) is None


def _censored_in(fn: Any) -> dist.Distribution | None:
    """The first censored distribution that a distribution is, or is made of."""
    fn = peeled(fn).fn
    if isinstance(fn, _CENSORED):
        return fn
    parts = getattr(fn, "component_distributions", None) or [
        getattr(fn, name, None) for name in ("component_distribution", "base_dist", "_base")
    ]
    made_of = [part for part in parts if isinstance(part, dist.Distribution) and part is not fn]
    return next(filter(None, map(_censored_in, made_of)), None)


def as_observed(outcome: Any, observed: Any) -> jax.Array:
    """A drawn outcome in the type of an observed one, unless that would cut off its fraction.

    Amounts and ratings are often whole numbers under a law that is not.
    """
    cut = not jnp.issubdtype(jnp.result_type(observed), jnp.inexact)
    fraction = jnp.issubdtype(jnp.result_type(outcome), jnp.inexact)
    return outcome if cut and fraction else outcome.astype(jnp.result_type(observed))


def in_its_array(outcome: Any, observed: Any) -> jax.Array:
    """A drawn outcome in the shape and type of the array it stands in, which others may read."""
    return jnp.reshape(in_its_type(outcome, observed), jnp.shape(observed))


def in_its_type(outcome: Any, observed: Any) -> jax.Array:
    """A drawn outcome in the type of the array it stands in."""
    whole = not jnp.issubdtype(jnp.result_type(observed), jnp.inexact)
    fraction = jnp.issubdtype(jnp.result_type(outcome), jnp.inexact)
    outcome = jnp.round(outcome) if whole and fraction else outcome
    return outcome.astype(jnp.result_type(observed))


class Unobserved(Messenger):
    """Forget what was observed at some sites, so that they are drawn."""

    def __init__(self, fn: Callable[..., Any], sites: tuple[str, ...]) -> None:
        super().__init__(fn)
        self.sites = sites

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "sample" and msg["name"] in self.sites:
            msg["value"], msg["is_observed"] = None, False


class WithOutcomes(Messenger):
    """Put other values in the place of observed ones.

    ``says`` has by site another whose value says whether it is asked, in place of its mask.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        values: Mapping[str, jax.Array],
        says: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(fn)
        self.values, self.says = values, says

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "sample" and msg["name"] in self.values:
            msg["value"] = as_observed(self.values[msg["name"]], msg["value"])
            if other := self.says.get(msg["name"]):
                law = peeled(msg["fn"])
                asked = jnp.reshape(self.values[other] == 1, jnp.shape(law.kept))
                msg["fn"] = law.fn.mask(asked)


def require_own_samples(site: Mapping[str, Any], asker: str, instead: str) -> None:
    """Refuse a site whose draws are not of its density.

    :param asker: who draws, as the subject of the sentence.
    :param instead: what may be done instead.
    :raises UnsupportedModelError: it is censored.
    """
    censored = _censored_in(site["fn"])
    if censored is not None:
        name = type(censored).__name__
        raise UnsupportedModelError(
            f"{asker} draws what might have been observed at `{site['name']}`, and NumPyro draws "
            f"from {name} without censoring: the answer would be far off. Where the limit of every "
            "record is known, observe whether a record is beyond it (Bernoulli of the law's cdf "
            "there) and, under handlers.mask, the value of each that is not (of the truncated "
            f"law); {instead}"
        )
