"""Directions of a model's latents that change no record's likelihood, whatever the records are.

Made-up records tell them, of public values alone: in ``mu + a[group]`` a number may be taken off
every ``a`` and added to ``mu``, and nobody who sees records could tell.
"""

from __future__ import annotations

import math
from itertools import product
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jax.flatten_util import ravel_pytree

from numpyro_dp._quick_compile import quickly_compiled
from numpyro_dp.families.synthetic_records import LikelihoodGradient, gradients_at
from numpyro_dp.model.data_free import read_coordinates
from numpyro_dp.model.jaxprs import choices
from numpyro_dp.model.private_model import PrivateModel

# Made-up records for each coordinate, and the most coordinates that are looked at.
_RECORDS, MOST = 6, 300
# Relative to the largest direction: what rounding leaves of none, and what is more than that.
NONE, SOME = 1e-5, 1e-3
# Inputs of made-up records, in units of the usual ones: a bend or a step that only far inputs
# reach, such as a year, tells apart what near ones do not.
_FAR = (30.0, 3_000.0)
# Positions, in sds of the prior about its middle. Farther out under a wide one all outcomes are
# certain, as where the cutpoints of ordered answers lie e⁵ apart: records seem to tell none.
_SPREADS = (1.0, 0.1, 0.01)


def made_up_scores(
    model: PrivateModel,
    middle: np.ndarray,
    sd: np.ndarray,
    *far: float,
    spreads: tuple[float, ...] = (1.0,),
    seed: int = 0,
) -> tuple[np.ndarray, ...]:
    """Scores of made-up records at two positions, in units of the prior: (records, dim) each.

    :param middle: of the prior of the unconstrained latents in a row, shape (dim,).
    :param sd: its spread, shape (dim,).
    :param far: by what inputs that are no index are multiplied, at the same two positions each.
    :param spreads: how far from the middle positions are, in sds: two for each, of which those of
        the first are taken with inputs far out.
    :param seed: of the positions and the records.
    """
    dim, rng = len(sd), np.random.default_rng(seed)
    sizes = choices(model.term, sorted(model.structure.latents)).sizes
    inputs = made_up_inputs(model, _RECORDS * dim + 60, rng)
    latents = {n: jnp.zeros(s.shape, s.dtype) for n, s in model.structure.latents.items()}
    row, position = ravel_pytree(latents)

    def places(spread: float) -> tuple[Any, Any, Any]:
        first, second = (
            position(jnp.asarray(middle + spread * sd * rng.normal(size=dim), row.dtype))
            for _ in (0, 1)
        )
        return jax.tree.map(lambda leaf: leaf[None], first), second, random.key(2)

    def both(inputs: list[Any], truths: Any, second: Any, key: Any) -> tuple[Any, Any]:
        vector = LikelihoodGradient(model)
        at, _, elsewhere = gradients_at(model, vector, inputs, truths, key, second)
        return at[0], elsewhere[0]

    given, *others = map(places, spreads)
    scores = quickly_compiled(both, inputs, *given)
    found = list(scores(inputs, *given))
    for each in others:
        found += scores(inputs, *each)
    for times in far:
        away = [
            leaf if place in sizes else _times(times, leaf) for place, leaf in enumerate(inputs)
        ]
        found += scores(away, *given)
    return tuple(np.asarray(each, float) * sd for each in found)


def made_up_inputs(model: PrivateModel, count: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Rows of every record array, of shape (count, ...); an index chooses among all entries.

    Of indices of one number each, as ``a[group, month]`` has, every combination is met where there
    are as many rows.
    """
    longest = max([s for each in model.structure.latents.values() for s in each.shape], default=2)
    sizes = choices(model.term, sorted(model.structure.latents)).sizes
    structs, met, every = model.layout.structs(1), 1, {}
    for place, size in sorted(sizes.items()):
        if place < len(structs) and structs[place].size == 1 and met * size <= count:
            every[place] = np.arange(count) // met % size
            met *= size

    def made_up(place: int, leaf: Any) -> np.ndarray:
        shape = (count, *leaf.shape[1:])
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            return rng.normal(size=shape).astype(leaf.dtype)
        if place in every:
            return every[place].reshape(shape).astype(leaf.dtype)
        most = 2 if leaf.dtype == bool else sizes.get(place, max(longest, 2))
        return rng.integers(0, most, shape).astype(leaf.dtype)

    return [made_up(place, leaf) for place, leaf in enumerate(structs)]


def _times(far: float, leaf: np.ndarray) -> np.ndarray:
    if leaf.dtype == bool:
        return leaf
    most = np.inf if jnp.issubdtype(leaf.dtype, jnp.floating) else np.iinfo(leaf.dtype).max
    return np.minimum(leaf * far, most).astype(leaf.dtype)


def chosen_scores(model: PrivateModel, middle: np.ndarray, sd: np.ndarray) -> np.ndarray | None:
    """Scores of made-up records near and far, where each chooses among entries, as ``a[group]``.

    :param middle: of the prior of the unconstrained latents in a row, shape (dim,).
    :param sd: its spread, shape (dim,).
    :returns: in units of the prior, shape (records, dim); ``None`` for other models, and where some
        entry was never chosen, of which nothing would be known.
    """
    chosen = choices(model.term, sorted(model.structure.latents)).names
    if not chosen or not 1 < len(sd) <= MOST or not model.layout.arrays:
        return None
    scores = np.concatenate(made_up_scores(model, middle, sd, *_FAR, spreads=_SPREADS))
    # What is no number far out decides nothing there; a model of none is not looked at.
    scores = scores[np.isfinite(scores).all(1)]
    touched = (scores != 0).any(0)
    return scores if touched[np.array(read_coordinates(model))].all() else None


def silent_directions(model: PrivateModel, scores: np.ndarray | None) -> np.ndarray:
    """Directions along which no made-up record's likelihood changes, near, far or elsewhere.

    Coordinates that no record's term reads are among them, such as the scale of groups. Beyond
    these only models are looked at in which a record chooses among entries, as ``a[group]`` does:
    others have such directions by their inputs, which made-up records do not share.

    :param scores: :func:`chosen_scores`.
    :returns: orthonormal rows in units of the prior, shape (directions, dim); often none.
    """
    reads = np.array(read_coordinates(model))
    read, unread = np.flatnonzero(reads), np.eye(len(reads))[~reads]
    if scores is None:
        return unread
    # Each record counts alike before coordinates are compared, and after: beside a rate of e³⁰ in
    # one group its effect was nothing in all other records, and seemed to be told by itself.
    scores = _of_length_one(scores[:, read])
    sizes = np.linalg.norm(scores, axis=0)
    found = _null(scores / sizes)
    silent = np.zeros((len(found), len(reads)))
    silent[:, read] = found / sizes
    return np.concatenate([unread, np.linalg.qr(silent.T)[0].T])


class Meetings(NamedTuple):
    """Which latents' entries a record may touch together.

    - **met**: 1 where a record may touch both of two, else 0, shape (dim, dim).
    - **alike**: a number for each entry, the same of those of a site that are never touched
      together and stand at the same place among those that are; shape (dim,).
    """

    met: np.ndarray
    alike: np.ndarray


def meetings(model: PrivateModel, scores: np.ndarray | None) -> Meetings | None:
    """Of which pairs of latents' entries a record may touch both, and so tell the information.

    Of ``a[group]`` a record touches one; between two factors every pair may meet, though not every
    one does among some made-up records. So sites are judged as wholes: where records that touch an
    entry of the one touch more entries of the other between them than any of them alone, all are
    taken to meet.

    :param scores: :func:`chosen_scores`.
    :returns: ``None`` where all may be touched together.
    """
    if scores is None:
        return None
    touched = scores != 0
    met = touched.T.astype(float) @ touched > 0
    met[:, ~touched.any(0)] = met[~touched.any(0)] = True
    ends = np.cumsum([math.prod(s.shape) for _, s in sorted(model.structure.latents.items())])
    sites = np.split(np.arange(len(met)), ends[:-1])
    for one, other in product(sites, repeat=2):
        pairs = np.ix_(one, other)
        if met[pairs].sum(1).max() > touched[:, other].sum(1).max():
            met[pairs] = True
    met |= met.T
    if met.all():
        return None
    # Of those that an entry meets in its site, so many come before it.
    before = [np.tril(met[np.ix_(site, site)], -1).sum(1) for site in sites]
    kinds = [(k, int(place)) for k, places in enumerate(before) for place in places]
    numbers = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
    return Meetings(met.astype(float), np.array([numbers[kind] for kind in kinds]))


def _null(scores: np.ndarray) -> np.ndarray:
    """Rows that all scores are orthogonal to, up to rounding; all scores count alike."""
    scores = _of_length_one(scores)
    if np.count_nonzero(scores.any(1)) <= scores.shape[1]:
        return np.zeros((0, scores.shape[1]))
    _, values, directions = np.linalg.svd(scores, full_matrices=False)
    return directions[np.count_nonzero(values > NONE * values[0]) :]


def _of_length_one(rows: np.ndarray) -> np.ndarray:
    """The same directions; a row of nothing but noughts stays."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.divide(rows, lengths, where=lengths > 0, out=np.zeros_like(rows))
