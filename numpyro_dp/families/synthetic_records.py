"""Made-up records from the prior predictive, and what their gradients would be.

No value of any record is looked at: the model's own shapes, prior and outcome distributions, and
inputs made up or given as public, are all there is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jax.core import Tracer
from jax.flatten_util import ravel_pytree
from numpyro import distributions as dist, handlers
from numpyro.infer import init_to_sample

from numpyro_dp._quick_compile import quickly_jitted
from numpyro_dp.families.sites import record_sites
from numpyro_dp.model.guided.own_samples import (
    as_observed,
    has_own_samples,
    in_its_array,
    require_own_samples,
)
from numpyro_dp.model.messages import explained
from numpyro_dp.model.private_model import PrivateModel

# Truths, chosen out of so many prior draws, by the most even of so many choices. Sites of more
# coordinates than the last are even enough by chance.
_DRAWS, _POOL, _CHOICES, _COORDINATES = 8, 128, 2048, 16


class SyntheticRecords(NamedTuple):
    """Made-up records, each of whose outcomes were drawn at a prior draw, and their gradients.

    - **at_truth**: shape (draws, records, dim); gradients at the position the outcomes came from.
    - **at_start**: the same records' gradients where a chain starts.
    - **spread**: shape (draws, dim); that position minus the start.
    - **records**: leaves of shape (draws, records, ...).
    - **truths**: values of the latents that are one number each, shape (draws,), by site.
    """

    at_truth: np.ndarray
    at_start: np.ndarray
    spread: np.ndarray
    records: tuple[np.ndarray, ...] = ()
    truths: Mapping[str, np.ndarray] = MappingProxyType({})

    def first(self, count: int) -> SyntheticRecords:
        """Only so many records of each draw."""
        return SyntheticRecords(
            self.at_truth[:, :count],
            self.at_start[:, :count],
            self.spread,
            tuple(leaf[:, :count] for leaf in self.records),
            self.truths,
        )


class Shares(Protocol):
    """What a record adds to a step, as a function of unconstrained latents; hashable."""

    def flat(self, z: dict[str, Any]) -> Any:
        """The latents in a row, in the order of the vector."""
        ...

    def __call__(self, z: dict[str, Any], record: list[Any]) -> Any:
        """A record's vector before it is clipped."""
        ...


@dataclass(frozen=True)
class LikelihoodGradient:
    """The gradient of a record's log likelihood, which is what a chain adds up.

    :param private_model: the model, split.
    """

    private_model: PrivateModel

    def flat(self, z: dict[str, Any]) -> Any:
        """The latents in a row."""
        return ravel_pytree(z)[0]

    def __call__(self, z: dict[str, Any], record: list[Any]) -> Any:
        """One record's gradient."""
        return ravel_pytree(jax.grad(self.private_model.record_log_likelihood)(z, record))[0]


def synthetic_gradients(
    model: PrivateModel, start: dict[str, Any], inputs: list[Any], rng_key: Any, vector: Shares
) -> SyntheticRecords:
    """Made-up records, and what they would add to a step.

    :param model: the model, split.
    :param start: the unconstrained position where a chain starts.
    :param inputs: record arrays, made up or public; outcomes in them that the model observes as
        they are get replaced by draws from the model.
    :param rng_key: a typed key; nothing here is secret.
    :param vector: what a record adds to a step.
    """
    truth_key, outcome_key = random.split(rng_key)
    drawn, constrained = prior_draws(model, truth_key)
    chosen = _evenly_spread({name: np.asarray(leaf) for name, leaf in drawn.items()})
    truths = {name: leaf[chosen] for name, leaf in drawn.items()}
    numbers = {
        name: np.asarray(leaf)[chosen].ravel()
        for name, leaf in constrained.items()
        if leaf.size == _POOL
    }
    at_truth, records, at_start = gradients_at(model, vector, inputs, truths, outcome_key, start)
    spread = jax.vmap(vector.flat)(truths) - vector.flat(start)
    rows = tuple(np.asarray(leaf)[:, :, 0] for leaf in records)
    found = map(np.asarray, (at_truth, at_start, spread))
    return SyntheticRecords(*found, records=rows, truths=numbers)


def _draws(model: PrivateModel, rng_key: Any) -> tuple[dict, dict]:
    """A pool of prior draws, unconstrained and constrained."""
    draws = jax.lax.map(lambda key: model.init(key, init_to_sample), random.split(rng_key, _POOL))
    constrained = jax.vmap(model.constrain)(draws)
    return draws, {name: constrained[name] for name in draws}


prior_draws = quickly_jitted(_draws, static_argnums=0)


def _evenly_spread(draws: dict[str, np.ndarray]) -> np.ndarray:
    """Rows of a pool of draws in which each coordinate has one in about every part of its range.

    A few draws by chance may leave out all small scales, and a verdict with them. Sites weigh
    alike, however many coordinates they have.
    """
    choices = np.random.default_rng(0).permuted(np.tile(np.arange(_POOL), (_CHOICES, 1)), axis=1)
    choices, even = choices[:, :_DRAWS], (np.arange(_DRAWS) + 0.5) / _DRAWS
    uneven = np.zeros(_CHOICES)
    for leaf in draws.values():
        ranks = leaf.reshape(_POOL, -1)[:, :_COORDINATES].argsort(0).argsort(0) / _POOL
        uneven += np.abs(np.sort(ranks[choices], 1) - even[:, None]).mean((1, 2))
    return choices[uneven.argmin()]


@partial(jax.jit, static_argnums=(0, 1))
def gradients_at(
    model: PrivateModel,
    vector: Shares,
    inputs: list[Any],
    truths: dict,
    rng_key: Any,
    start: dict | None = None,
) -> tuple:
    """Records whose outcomes are drawn at some positions, and what they add to a step there.

    :param truths: unconstrained positions, with a leading axis (draws).
    :param start: a further position at which the same records' vectors are asked for, if any.
    :returns: vectors at the truths, shape (draws, records, dim), record arrays, and vectors at
        ``start``.
    """
    simulate = simulator(model)
    draws = jax.tree.leaves(truths)[0].shape[0]

    def one_draw(drawn: tuple) -> tuple:
        truth, outcome_key = drawn
        rows = [leaf[:, None] for leaf in inputs]
        keys = random.split(outcome_key, inputs[0].shape[0])
        records = jax.vmap(partial(simulate, truth))(rows, keys)
        places = (truth,) if start is None else (truth, start)
        at_truth, *rest = (jax.vmap(partial(vector, place))(records) for place in places)
        return at_truth, records, *rest

    return jax.lax.map(one_draw, (truths, random.split(rng_key, draws)))


def simulator(model: PrivateModel) -> Callable[[dict, list, Any], list]:
    """A function that redraws the outcomes of one record at a position."""

    def simulate(z: dict, record: list, key: Any) -> list:
        return redrawn(model, model.constrain(z), record, key)

    return simulate


def redrawn(model: PrivateModel, values: Mapping[str, Any], record: list, key: Any) -> list:
    """One record with outcomes drawn from the model, constrained latents given."""
    try:
        drawn = _in_turn(model, values, record, key, as_observed)
        if any(x.dtype != leaf.dtype for x, leaf in zip(drawn, record, strict=True)):
            # What the model does with a whole number, as to take it for an index, fails here.
            observed_sites(model, values, drawn, key)
    except TypeError:
        drawn = _in_turn(model, values, record, key, in_its_array)
    return drawn


def _in_turn(
    model: PrivateModel,
    values: Mapping[str, Any],
    record: list,
    key: Any,
    placed: Callable[[Any, Any], Any],
) -> list:
    model_key, draw_key = random.split(key)
    drawn = list(record)
    for k in range(len(observed_sites(model, values, drawn, model_key))):
        # A later outcome may depend on the earlier ones.
        site = observed_sites(model, values, drawn, model_key)[k]
        place = place_of(site, drawn)
        if place is not None:
            outcome = site["fn"].sample(random.fold_in(draw_key, k))
            drawn[place] = placed(jnp.reshape(outcome, drawn[place].shape), drawn[place])
    return drawn


def require_outcomes_that_follow(model: PrivateModel, asker: str, instead: str) -> None:
    """Refuse a model whose outcomes NumPyro does not draw from their density.

    :param asker: who draws them; **instead**: what may be done instead.
    :raises UnsupportedModelError: an outcome is censored.
    """

    def look(values: dict, record: list) -> None:
        for site in observed_sites(model, values, record, random.key(0)):
            require_own_samples(site, asker, instead)

    with explained(model.plate):
        jax.eval_shape(look, model.programs.constrained, model.layout.structs(1))


def outcome_places(model: PrivateModel) -> dict[str, int | None]:
    """Of each observed site the record array that it is, as it is; ``None`` where it is none."""
    found: dict[str, int | None] = {}

    def look(values: dict, record: list) -> None:
        for site in observed_sites(model, values, record, random.key(0)):
            found[site["name"]] = place_of(site, record)

    jax.eval_shape(look, model.programs.constrained, model.layout.structs(1))
    return found


def place_of(site: Mapping[str, Any], record: list) -> int | None:
    """The record array that a site observes as it is, if any."""
    return next((i for i, leaf in enumerate(record) if leaf is site["value"]), None)


def observed_sites(
    model: PrivateModel, values: Mapping[str, Any], record: list, key: Any
) -> list[dict[str, Any]]:
    """Observed sites of one record, constrained latents given."""
    with handlers.block():
        sites = record_sites(model.function, model, values, record, key)
    return [site for site in sites.values() if site["is_observed"]]


class Outcomes(NamedTuple):
    """What the observed sites of a record are.

    - **follow**: whether each is an argument as it is and can be drawn, so that made-up ones
      follow the model.
    - **bare_counts**: whether one is a count whose mean fixes its variance, as a Poisson's does.
      Real counts are as a rule more spread than that; nothing in such a model can tell.
    """

    follow: bool
    bare_counts: bool


def outcomes(model: PrivateModel, start: dict[str, Any], inputs: list[Any]) -> Outcomes:
    """Look at a model's observed sites, without a value."""
    found: list[tuple[bool, bool]] = []

    def look(z: dict, record: list) -> None:
        for site in observed_sites(model, model.constrain(z), record, random.key(0)):
            given = any(leaf is site["value"] for leaf in record)
            given = given and has_own_samples(site["fn"])
            found.append((given, _is_bare_count(site["fn"])))

    jax.eval_shape(look, start, [leaf[:1] for leaf in inputs])
    return Outcomes(all(given for given, _ in found), any(bare for _, bare in found))


def _is_bare_count(fn: Any) -> bool:
    while hasattr(fn, "base_dist"):
        fn = fn.base_dist
    if isinstance(fn, dist.Poisson | dist.MultinomialLogits | dist.MultinomialProbs):
        return True
    if not isinstance(fn, dist.BinomialLogits | dist.BinomialProbs):
        return False
    trials = fn.total_count
    # One trial has no spread of its own.
    return isinstance(trials, Tracer) or bool(np.any(np.asarray(trials) > 1))
