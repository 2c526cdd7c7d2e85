"""Data sets whose truth is known: latents from the prior, outcomes from the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from numpyro.infer import init_to_sample

from numpyro_dp._public import is_public
from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.families.synthetic_records import (
    outcome_places,
    require_outcomes_that_follow,
    simulator,
)
from numpyro_dp.model.names import quoted
from numpyro_dp.model.private_model import PrivateModel, private_model
from numpyro_dp.model.records import ArrayLeaf
from numpyro_dp.scoring.prior import improper_latents


class DataSet(NamedTuple):
    """One simulated data set.

    - **truth**: the latents and the data-free deterministic sites that it came from, by site.
    - **args**, **kwargs**: arguments of the model, with simulated outcomes.
    - **alike**: share of the records that have the most frequent outcome; of several outcomes the
      largest.
    """

    truth: dict[str, np.ndarray]
    args: tuple
    kwargs: dict[str, Any]
    alike: float


@dataclass(frozen=True, eq=False)
class Simulation:
    """A source of data sets.

    :param model: the model, split.
    :param inputs: its record arrays; those of outcomes are placeholders.
    :param given: the leaves of its arguments, as they were given.
    :param tree: their structure.
    :param arrays: which of the leaves are record arrays, in order.
    :param outcomes: which of the record arrays are outcomes.
    """

    model: PrivateModel
    inputs: list[Any]
    given: tuple[Any, ...]
    tree: Any
    arrays: tuple[int, ...]
    outcomes: frozenset[int]

    def draw(self, rng_key: Any) -> DataSet:
        """A data set, from a typed key."""
        truth, records = _drawn(self.model, self.inputs, rng_key)
        leaves = list(self.given)
        for place, record in zip(self.arrays, records, strict=True):
            leaves[place] = record
        args, kwargs = jax.tree.unflatten(self.tree, leaves)
        alike = max(_most_frequent(np.asarray(records[k])) for k in self.outcomes)
        return DataSet({name: np.asarray(x) for name, x in truth.items()}, args, kwargs, alike)


def simulation(
    model: Callable[..., Any], args: tuple, kwargs: Mapping[str, Any], data_plate: str | None
) -> Simulation:
    """Find what of the arguments the model observes, and how to draw it.

    :raises UnsupportedModelError: where truths or outcomes cannot be drawn.
    :raises ValueError: an input is a shape without values, or an outcome beside inputs is none.
    """
    split = private_model(model, args, dict(kwargs), data_plate=data_plate)
    _require_a_prior(split)
    places = outcome_places(split)
    computed = [name for name, place in places.items() if place is None]
    if computed:
        raise UnsupportedModelError(
            f"what {quoted(computed)} observes is computed from arguments, or is a factor: "
            "outcomes can be simulated where a site observes an argument as it is, such as "
            '`numpyro.sample("y", ..., obs=y)`. Compute it before the model is called'
        )
    require_outcomes_that_follow(split, "coverage", "coverage has no other way")
    given, tree = jax.tree.flatten((args, dict(kwargs)), is_leaf=is_public)
    arrays = tuple(i for i, x in enumerate(split.layout.leaves) if isinstance(x, ArrayLeaf))
    outcomes = frozenset(place for place in places.values() if place is not None)
    if len(outcomes) < len(arrays):
        _require_shapes([(split.layout.arrays[k].name, given[arrays[k]]) for k in outcomes])
    inputs = []
    for k, (place, leaf) in enumerate(zip(arrays, split.layout.arrays, strict=True)):
        if k not in outcomes and isinstance(given[place], jax.ShapeDtypeStruct):
            raise ValueError(
                f"argument `{leaf.name}` is a shape, and the model does not observe it: give "
                "public or made-up values, since outcomes are simulated at them"
            )
        inputs.append(jnp.zeros(leaf.shape, leaf.dtype) if k in outcomes else given[place])
    rows = split.records(*jax.tree.unflatten(tree, _filled(given, arrays, inputs)))
    return Simulation(split, rows, tuple(given), tree, arrays, outcomes)


def _require_shapes(outcomes: Sequence[tuple[str, Any]]) -> None:
    """Refuse values of outcomes beside inputs: whoever gives them gives records, by mistake.

    Their own values are never used, but the inputs beside them are, at no charge.
    """
    names = sorted(name for name, value in outcomes if not isinstance(value, jax.ShapeDtypeStruct))
    if names:
        raise ValueError(
            f"argument(s) {quoted(names)} are observed: coverage draws them itself, and uses the "
            "inputs beside them as they are, which no ε covers. Never give it records: give "
            "made-up inputs, such as draws within the ranges that you expect, and "
            "jax.ShapeDtypeStruct((num_records,), jnp.int32), or jnp.float32, in the place of "
            "outcomes"
        )


def _most_frequent(outcomes: np.ndarray) -> float:
    """Share of the records, along the first axis, that have the most frequent outcome."""
    counts = np.unique(outcomes, axis=0, return_counts=True)[1]
    return float(counts.max() / len(outcomes))


def _filled(given: list[Any], arrays: tuple[int, ...], inputs: list[Any]) -> list[Any]:
    leaves = list(given)
    for place, values in zip(arrays, inputs, strict=True):
        leaves[place] = values
    return leaves


def _require_a_prior(model: PrivateModel) -> None:
    tilted = model.structure.outside(model.plate, "observed", "factor")
    flat = improper_latents(model)
    if tilted or flat:
        what = f"site(s) {quoted(tilted)} outside of plate" if tilted else "the flat prior of"
        which = f" `{model.plate}` change the prior" if tilted else f" {quoted(flat)} has no draws"
        raise UnsupportedModelError(
            f"{what}{which}: coverage draws its truths from the prior, so every latent needs a "
            "proper distribution of its own"
        )


@partial(jax.jit, static_argnums=0)
def _drawn(model: PrivateModel, inputs: list[Any], rng_key: Any) -> tuple[dict, list]:
    truth_key, outcome_key = random.split(rng_key)
    z = model.init(truth_key, init_to_sample)
    simulate = simulator(model)
    keys = random.split(outcome_key, model.num_records)
    rows = jax.vmap(partial(simulate, z))([leaf[:, None] for leaf in inputs], keys)
    truth = {**model.constrain(z), **model.deterministics(z)}
    return truth, [leaf[:, 0] for leaf in rows]
