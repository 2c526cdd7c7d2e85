"""Where log predictive densities lie if the model is right, from public numbers alone."""

from __future__ import annotations

import contextlib
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, Int

from numpyro_dp._quick_compile import lightly_jitted
from numpyro_dp.diagnostics.checks.question import Draws
from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.families.outcome import log_likelihoods, observed_of, outcome_of
from numpyro_dp.families.synthetic_records import outcome_places, redrawn
from numpyro_dp.model.names import quoted
from numpyro_dp.model.private_model import PrivateModel

# Below the density of a guess among the classes: an outcome to which a twentieth of it was given.
_SURPRISE = 3.0
_DRAWS, _RECORDS = 64, 64
# For inputs elsewhere than the made-up ones: a density twice as high, or half.
_MARGIN = math.log(2)
_RAREST = 0.002


def log_predictive_density(
    model: PrivateModel, draws: Draws, record: list[Array]
) -> Float[Array, ""]:
    """Log density of a record under the posterior predictive law."""
    each = log_likelihoods(model, draws, record)
    return logsumexp(each) - math.log(len(each))


def default_range(model: PrivateModel, draws: Draws) -> tuple[float, float]:
    """Ends between which log predictive densities lie, but for a few, if the model is right.

    For an outcome of K classes -log K - 3 and 0. Else the least and the largest of 4,096 made-up
    records, at inputs between 0.1 and 0.9 and outcomes drawn at 64 of the draws, and log 2 more at
    either end. Where all outcomes are discrete up to 0, and down to what one in 500 is below: the
    rarest counts would make it twice as wide, and its noise with it.

    :raises UnsupportedModelError: what is observed cannot be simulated.
    """
    with contextlib.suppress(UnsupportedModelError):
        classes = outcome_of(model).classes
        if classes is not None:
            return -math.log(classes) - _SURPRISE, 0.0
    computed = [name for name, place in outcome_places(model).items() if place is None]
    if computed:
        raise UnsupportedModelError(
            f"what {quoted(computed)} observes is computed from arguments, and records cannot be "
            "made up: give bounds=(low, high), between which log densities of a record are kept"
        )
    inputs = model.dummy_records(random.key(0), _RECORDS)
    found = np.asarray(_simulated(model, picked(draws, evenly(draws, _DRAWS)), inputs))
    discrete = observed_of(model).discrete
    low, high = float(np.quantile(found, _RAREST if discrete else 0)), float(found.max())
    if not math.isfinite(low + high):
        raise UnsupportedModelError(
            "log densities of made-up records are not finite: give bounds=(low, high), between "
            "which log densities of a record are kept"
        )
    return low - _MARGIN, 0.0 if discrete else high + _MARGIN


def evenly(draws: Draws, count: int) -> Int[Array, " count"]:
    """So many numbers of draws, evenly spread; where there are fewer, some more than once.

    Computed where it is traced: an array that is there already is taken for records where these
    are as many.
    """
    last = len(next(iter(draws.values()))) - 1
    return (jnp.arange(count) * last + (count - 1) // 2) // (count - 1)


def picked(draws: Draws, numbers: Int[Array, " count"]) -> Draws:
    """Some of the draws."""
    return {name: values[numbers] for name, values in draws.items()}


@partial(lightly_jitted, static_argnums=0)
def _simulated(
    model: PrivateModel, draws: Draws, inputs: list[Array]
) -> Float[Array, "draws records"]:
    """Log predictive densities of records drawn from the model."""

    def of_record(values: Draws, record: list[Array], key: Array) -> Array:
        made_up = redrawn(model, values, record, key)
        return log_predictive_density(model, draws, made_up)

    def of_draw(given: tuple[Draws, Array]) -> Array:
        values, key = given
        keys = random.split(key, _RECORDS)
        records = [leaf[:, None] for leaf in inputs]
        return jax.vmap(of_record, (None, 0, 0))(values, records, keys)

    return jax.lax.map(of_draw, (draws, random.split(random.key(1), _DRAWS)))
