"""An adversary of a released likelihood: the log likelihood ratio of all that it released.

Where a round asks, in which coordinates and how tightly it clips follows from the rounds before
it. Who knows both data sets therefore knows what the differing record adds to each noisy sum, and
weighs the sum by that; ratios of successive sums multiply.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random
from jaxtyping import Array, Float

from numpyro_dp.accounting import Relation
from numpyro_dp.accounting.events import DpEvent
from numpyro_dp.diagnostics.audit.likelihood_ratio import vector_in_sum
from numpyro_dp.diagnostics.audit.neighbours import NeighbourPair, take_apart
from numpyro_dp.mechanisms import PrivateSum
from numpyro_dp.scoring.release import LikelihoodRelease
from numpyro_dp.scoring.rounds import RoundSettings
from numpyro_dp.scoring.statistic import RecordStatistic, RoundPosition
from numpyro_dp.scoring.turns import (
    Ask,
    BoundRelease,
    one_release,
    record_vector,
    round_position,
    rounds_in_turn,
)

# Releases that go on together, and how many of them are in memory with the vectors of all records.
_TOGETHER, _IN_MEMORY = 256, 16
_PHASES = (0, 1)
# Shifts of the prior's middle, in its standard deviations, at which a null record is looked at.
_PROBES = (0.0, 0.25, -0.75)


class Attacked(NamedTuple):
    """Scores of many independent runs.

    - **scores**: of the runs on the data and of those on the neighbour.
    - **event**: what one run is charged.
    - **num_steps**: private steps of one run.
    - **delta**: δ that its report states, where it has one.
    """

    scores: tuple[Float[np.ndarray, " runs"], Float[np.ndarray, " runs"]]
    event: DpEvent
    num_steps: int
    delta: float | None = None


def attacked_releases(
    release: LikelihoodRelease,
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
    sides = [release.bind(arguments, {}, relation) for arguments in both]
    records = [
        side.statistic.numbered(side.statistic.private_model.records(arguments))
        for side, arguments in zip(sides, both, strict=True)
    ]
    pair = take_apart(*records, relation)
    num_steps = sides[0].plan.num_steps
    event = sides[0].plan.cost(num_steps, num_steps)
    if sides[0].statistic != sides[1].statistic or event != sides[1].plan.cost(
        num_steps, num_steps
    ):
        raise ValueError(
            "the two data sets make different models: give them equal public arguments"
        )
    if relation == "zero_out":
        _check_null(sides[0], pair)
    first, second = (
        _scores(sides[0], leaves, pair, key, num_runs, lambda more, done=done: show(done + more))
        for leaves, key, done in zip(records, noise_keys, (0, num_runs), strict=True)
    )
    return Attacked((first, second), event, num_steps)


def _scores(
    bound: BoundRelease,
    records: list[Array],
    pair: NeighbourPair,
    key: Any,
    num_runs: int,
    show: Callable[[int], None],
) -> Float[np.ndarray, " runs"]:
    size, chunks = min(num_runs, _TOGETHER), []
    for number in range(-(-num_runs // size)):
        noise_keys = random.split(random.fold_in(key, number), size)
        # Public randomness, on which no guarantee rests.
        outcome_keys = random.split(random.key(number), size)
        chunks.append(_scored(bound, records, pair, noise_keys, outcome_keys))
        show(min(num_runs, (number + 1) * size))
    return np.concatenate(chunks)[:num_runs]


def _scored(
    bound: BoundRelease,
    records: list[Array],
    pair: NeighbourPair,
    noise_keys: Any,
    outcome_keys: Any,
) -> Float[np.ndarray, " runs"]:
    """Log likelihood ratios of independent releases, which take their turns together."""
    turns = [rounds_in_turn(bound) for _ in range(len(noise_keys))]
    asks: list[Ask] = [next(turn) for turn in turns]
    total = np.zeros(len(noise_keys))
    for number in range(bound.plan.num_steps):
        each = bound.plan.sums[asks[0].phase]
        places = [round_position(bound, ask.settings) for ask in asks]
        released, gained = _released(
            bound.statistic,
            each,
            asks[0].phase,
            jax.tree.map(lambda *leaves: np.stack(leaves), *places),
            (noise_keys, outcome_keys),
            number,
            records,
            pair,
            asks[0].step,
        )
        total += np.asarray(gained, np.float64)
        sums = np.asarray(released, np.float64)
        found = [_after(turn, told) for turn, told in zip(turns, sums, strict=True)]
        asks = [ask for ask in found if ask is not None]
    return total


def _after(turn: Generator[Ask, np.ndarray, Any], released: np.ndarray) -> Ask | None:
    try:
        return turn.send(released)
    except StopIteration:
        return None


@partial(jax.jit, static_argnums=(0, 1, 2))
def _released(
    statistic: RecordStatistic,
    private_sum: PrivateSum,
    phase: int,
    places: RoundPosition,
    keys: tuple[Any, Any],
    number: Any,
    records: list[Array],
    pair: NeighbourPair,
    step: Any,
) -> tuple[Float[Array, "runs numbers"], Float[Array, " runs"]]:
    """A noisy sum of each run, and its log likelihood ratio, ``pair.own`` over ``pair.other``."""

    def one(run: tuple[RoundPosition, tuple[Any, Any]]) -> tuple[Array, Array]:
        at, own_keys = run
        noise_key, outcome_key = (random.fold_in(key, number) for key in own_keys)
        found = one_release(
            statistic, private_sum, phase, at, noise_key, outcome_key, records, step
        )
        vector = record_vector(statistic, phase, at, outcome_key)

        def in_sum(record: list[Array]) -> Array:
            return vector_in_sum(vector(record), private_sum.clip_norm)

        # The differing records first, so that all are one program.
        rows = [jnp.concatenate(leaves)[:, None] for leaves in zip(*reversed(pair), strict=True)]
        vectors = jax.vmap(in_sum)(rows)
        other, own = vectors[0], vectors[1]
        middle = vectors[2:].sum(0) + (own + other) / 2
        return found, (found - middle) @ (own - other) / private_sum.noise_sd(step) ** 2

    return lax.map(one, (places, keys), batch_size=_IN_MEMORY)


def _check_null(bound: BoundRelease, pair: NeighbourPair) -> None:
    """Refuse a pair of which neither differing record is null, as ``zero_out`` asks.

    A null record adds nothing, or exactly what the other one adds.
    """
    statistic, prior = bound.statistic, bound.prior
    added: tuple[list[np.ndarray], list[np.ndarray]] = [], []
    for phase in _PHASES:

        @jax.jit
        def in_sum(at: RoundPosition, leaves: list[Array], phase: int = phase) -> Array:
            vector = record_vector(statistic, phase, at, random.key(0))
            return vector_in_sum(vector(leaves), 1.0)

        for shift in _PROBES:
            middle = prior.mean + shift * prior.sd
            asked = RoundSettings(middle, np.diag(prior.sd), prior.precision, 1.0, 1.0)
            at = round_position(bound, asked)
            for vectors, leaves in zip(added, (pair.own, pair.other), strict=True):
                vectors.append(np.asarray(in_sum(at, leaves)))
    if not any(
        all(
            not one.any() or np.array_equal(one, two)
            for one, two in zip(added[k], added[1 - k], strict=True)
        )
        for k in (0, 1)
    ):
        raise ValueError(
            "under relation='zero_out' one of the two differing records must be null, adding "
            "nothing to any sum: fill it with nan, or audit relation='replace_one'"
        )
