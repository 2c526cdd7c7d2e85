"""An adversary of a perturbed minimiser: the likelihood ratio of the noise that explains it.

Output perturbation adds noise to a minimiser that whoever knows both data sets can compute. Of
objective perturbation the released point is where the gradient of one data set or the other is
cancelled by the secret linear term, whose density is known; the little noise on the result is left
out, which weakens the score by next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jaxtyping import Array, Float

from numpyro_dp._arrays import host_device
from numpyro_dp.accounting import Relation
from numpyro_dp.diagnostics.audit.neighbours import require_one_model, take_apart
from numpyro_dp.diagnostics.audit.releases import Attacked
from numpyro_dp.estimators.noise import Gaussian, Tilt
from numpyro_dp.estimators.perturbation import PerturbationEstimator, PerturbationPlan
from numpyro_dp.estimators.release import LatticeOutput
from numpyro_dp.estimators.solver import Design, minimise, objective_gradient

_TOGETHER = 512


class _Side(NamedTuple):
    """An estimator on one of the two data sets, with every number fixed."""

    plan: PerturbationPlan
    rows: Design
    records: list[Array]


def attacked_minimisers(
    estimator: PerturbationEstimator,
    both: tuple[tuple[Any, ...], tuple[Any, ...]],
    relation: Relation,
    noise_keys: Any,
    num_runs: int,
    show: Callable[[int], None],
) -> Attacked:
    """Release often on either data set, and score every release.

    :param both: arguments of the model, of the data and of its neighbour.
    :param noise_keys: a key for each data set.
    :raises ValueError: for data sets that are no neighbours, or are charged differently.
    """
    own = copy(estimator)
    object.__setattr__(own, "_account", estimator._account.apart(relation))
    sides = [_side(own, arguments) for arguments in both]
    take_apart(sides[0].records, sides[1].records, relation)
    require_one_model(estimator.model, both, relation)
    if relation == "zero_out":
        _check_null(sides)
    if sides[0].plan.event != sides[1].plan.event:
        raise ValueError(
            "the two data sets are charged differently: give them equal public arguments, and "
            "max_records= where they differ in size"
        )
    tilt = sides[0].plan.tilt
    score = _output_score(sides) if tilt is None else _tilt_score(sides, tilt)
    first, second = (
        _scores(side, score, key, num_runs, lambda more, at=at: show(at + more))
        for side, key, at in zip(sides, noise_keys, (0, num_runs), strict=True)
    )
    return Attacked((first, second), sides[0].plan.event, 1)


def _side(estimator: PerturbationEstimator, arguments: tuple[Any, ...]) -> _Side:
    model, glm, plan, records = estimator.prepared(arguments, {})
    del model
    return _Side(plan, estimator.designed(glm, plan, records), records)


def _check_null(sides: list[_Side]) -> None:
    """Refuse a pair of which neither differing row is null: projected, such a row is all zeros."""
    both = [[np.asarray(column).reshape(-1, *np.shape(column)[2:]) for column in side.rows]
            for side in sides]  # fmt: skip
    differing = np.zeros(len(both[0][0]), bool)
    for own, other in zip(*both, strict=True):
        differing |= np.any((own != other).reshape(len(own), -1), axis=1)
    if not any(np.all(np.asarray(rows[0])[differing] == 0) for rows in both):
        raise ValueError(
            "under relation='zero_out' one of the two differing records must be null, adding "
            "nothing to the objective: fill it with nan, or audit relation='replace_one'"
        )


Score = Callable[[Float[np.ndarray, "runs dim"]], Float[np.ndarray, " runs"]]


def _scores(
    side: _Side, score: Score, key: Any, num_runs: int, show: Callable[[int], None]
) -> Float[np.ndarray, " runs"]:
    plan, dim = side.plan, side.plan.problem.dim
    still, chunks = _still(side), []
    for number in range(-(-num_runs // _TOGETHER)):
        tilt_key, output_key = random.split(random.fold_in(key, number))
        points = np.broadcast_to(still, (_TOGETHER, dim))
        if plan.tilt is not None:
            tilts = _tilts(plan.tilt, tilt_key, dim)
            points = minimise(plan.problem, side.rows, tilts, plan.iterations)
        # The noise of many points is that of one long one, number by number.
        output = LatticeOutput(plan.output.noise_sd, points.size)
        middle = np.broadcast_to(plan.problem.start, points.shape)
        released = output.release(output_key, points.ravel(), middle.ravel())
        chunks.append(score(released.reshape(points.shape)))
        show(min(num_runs, (number + 1) * _TOGETHER))
    return np.concatenate(chunks)[:num_runs]


def _still(side: _Side) -> Float[np.ndarray, " dim"]:
    plan = side.plan
    return minimise(plan.problem, side.rows, np.zeros(plan.problem.dim), plan.iterations)


def _tilts(tilt: Tilt, key: Any, dim: int) -> Float[np.ndarray, "runs dim"]:
    if isinstance(tilt, Gaussian):
        return tilt.draw(key, _TOGETHER * dim).reshape(_TOGETHER, dim)
    return np.stack([tilt.draw(each, dim) for each in random.split(key, _TOGETHER)])


def _output_score(sides: list[_Side]) -> Score:
    own, other = (_still(side) for side in sides)
    towards = (own - other) / sides[0].plan.output.noise_sd ** 2
    return lambda points: (points - (own + other) / 2) @ towards


def _tilt_score(sides: list[_Side], tilt: Tilt) -> Score:
    def score(points: Float[np.ndarray, "runs dim"]) -> Float[np.ndarray, " runs"]:
        own, other = (_log_density(side, tilt, points) for side in sides)
        return own - other

    return score


def _log_density(
    side: _Side, tilt: Tilt, points: Float[np.ndarray, "runs dim"]
) -> Float[np.ndarray, " runs"]:
    """Of the released points, up to a constant: that of the tilt, and how it is stretched."""
    stated = side.plan.problem
    with jax.enable_x64(True), jax.default_device(host_device()):
        rows = Design(*map(jnp.asarray, side.rows))
        given = rows, jnp.asarray(stated.precision), jnp.asarray(stated.start)
        tilts, stretched = _explained(stated.loss, *given, jnp.asarray(points))
        tilts, stretched = np.asarray(tilts), np.asarray(stretched)
    if isinstance(tilt, Gaussian):
        return stretched - np.sum(tilts**2, axis=1) / (2 * tilt.sd**2)
    return stretched - np.linalg.norm(tilts, axis=1) / tilt.scale


@partial(jax.jit, static_argnums=0)
def _explained(
    loss: Any, rows: Design, precision: Array, start: Array, points: Float[Array, "runs dim"]
) -> tuple[Float[Array, "runs dim"], Float[Array, " runs"]]:
    """The linear term under which each point is the minimiser; log |det| of its derivative."""

    def needed(point: Float[Array, " dim"]) -> Float[Array, " dim"]:
        return -objective_gradient(loss, rows, precision, start, point)

    def both(point: Float[Array, " dim"]) -> tuple[Array, Array]:
        return needed(point), jnp.linalg.slogdet(jax.jacfwd(needed)(point))[1]

    return jax.lax.map(both, points, batch_size=16)
