"""An adversary of a whole run of what releases noisy sums: fits, guides, a private centre.

Runs are repeated within one program, from one public start and with a key of their own, each with
its sums overheard.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random
from jaxtyping import Array, Float

from numpyro_dp.accounting import Relation
from numpyro_dp.accounting.events import DpEvent
from numpyro_dp.diagnostics.audit.neighbours import (
    NeighbourPair,
    require_one_model,
    take_apart,
)
from numpyro_dp.diagnostics.audit.overheard import Canaries, Told, overheard
from numpyro_dp.diagnostics.audit.releases import Attacked
from numpyro_dp.execution.arguments import single_precision
from numpyro_dp.execution.releases import Releases
from numpyro_dp.mechanisms import PrivateSum
from numpyro_dp.model.guided.outcomes import Simulated
from numpyro_dp.svi.centre import PrivateCentre, released_mean
from numpyro_dp.svi.dpsvi.curvature import CurvatureRelease
from numpyro_dp.svi.dpsvi.dpsvi import DPSVI
from numpyro_dp.svi.dpsvi.fit import Carry, Fit
from numpyro_dp.svi.vips.statistics import Schedule
from numpyro_dp.svi.vips.vips import VIPS, released_step

# Runs in one call of the program, and how many of them are in memory with all records' vectors.
_TOGETHER, _IN_MEMORY = 2048, 64

# Starts of which the loudest is attacked, and runs from each that say which it is.
_STARTS, _TRIAL = 6, 256

Front = DPSVI | VIPS | PrivateCentre
Heard = NeighbourPair | Canaries


class OverheardRun(Protocol):
    """One run, with every number fixed; hashable, a static argument of the program."""

    def __call__(self, key: Any, start: Any, records: list[Array], pair: Heard) -> Told:
        """What a run from ``start`` tells, on the records of one data set."""


class Side(NamedTuple):
    """A front end on one of the two data sets.

    - **run**: one run of it.
    - **start**: where it starts; public.
    - **records**: as its sums are given them.
    - **event**: what it is charged.
    - **num_steps**: its releases.
    """

    run: OverheardRun
    start: Any
    records: list[Array]
    event: DpEvent
    num_steps: int


def attacked_runs(
    front: Front,
    both: tuple[tuple[Any, ...], tuple[Any, ...]],
    relation: Relation,
    key: Any,
    noise_keys: Any,
    num_steps: int | None,
    num_runs: int,
    show: Callable[[int], None],
) -> Attacked:
    """Run often on either data set, and score every run.

    :param both: arguments of ``front.run``, of the data and of its neighbour.
    :param key: of a few starts, of which that is common to all runs where most is heard.
    :param noise_keys: a key for each data set.
    :param num_steps: of one run; ``None`` for the least, or what a guide takes by itself.
    :raises ValueError: for data sets that are no neighbours, or are charged differently.
    """
    own = copy(front)
    object.__setattr__(own, "_account", front._account.apart(relation))
    starts = random.split(key, 1 if isinstance(front, PrivateCentre) else _STARTS)
    sides = [_side(own, starts[0], num_steps, arguments) for arguments in both]
    pair = take_apart(sides[0].records, sides[1].records, relation)
    if not isinstance(own, PrivateCentre):
        require_one_model(own.model, both, relation)
    if sides[0].event != sides[1].event:
        raise ValueError(
            "the two data sets are charged differently: give them equal public arguments, and "
            "sampling_rate= in place of batch_size="
        )
    if len(starts) > 1:
        # Where a record has nothing to say, as where its outcome is sure, nothing can be heard.
        found = [
            tuple(_side(own, each, num_steps, arguments).start for arguments in both)
            for each in starts[1:]
        ]
        found.append((sides[0].start, sides[1].start))
        trial = random.split(random.fold_in(noise_keys[0], num_runs), _TRIAL)
        heard = [_heard(sides[0], start, trial, pair) for start, _ in found]
        loudest = found[int(np.argmax(np.nan_to_num(heard, nan=-np.inf)))]
        sides = [side._replace(start=at) for side, at in zip(sides, loudest, strict=True)]
    first, second = (
        _scores(side, pair, noise_key, relation, num_runs, lambda more, at=at: show(at + more))
        for side, noise_key, at in zip(sides, noise_keys, (0, num_runs), strict=True)
    )
    return Attacked((first, second), sides[0].event, sides[0].num_steps)


class WholeRun(NamedTuple):
    """One run, of which each canary was a part or not.

    - **scores**: of each canary.
    - **event**: what the run is charged.
    - **dim**: numbers that a step releases.
    """

    scores: Float[np.ndarray, " canaries"]
    event: DpEvent
    dim: int


def whole_run(
    svi: DPSVI, key: Any, num_steps: int, given: list[tuple[Any, ...]], noise_key: Any
) -> WholeRun:
    """One run on ``given[0]``, in which some of the canaries of ``given[1]`` are."""
    own = copy(svi)
    own._account = svi._account.apart("zero_out")
    side, canaries = (_fit(own, key, num_steps, arguments) for arguments in given)
    told = _once(side.run, noise_key, side.start, side.records, Canaries(canaries.records))
    run: Any = side.run
    return WholeRun(np.asarray(told.ratio, np.float64), side.event, run.fit.private_sum.dim)


def _heard(side: Side, start: Any, keys: Any, pair: NeighbourPair) -> float:
    """How much a few runs from a start tell; of no part in what is counted."""
    return float(np.mean(_chunk(side.run, keys, start, side.records, pair).ratio))


def _side(front: Front, key: Any, num_steps: int | None, args: tuple[Any, ...]) -> Side:
    if isinstance(front, DPSVI):
        return _fit(front, key, 1 if num_steps is None else num_steps, args)
    if isinstance(front, VIPS):
        schedule, plan, _, start, records = front.prepared(key, num_steps, args, {})
        steps = plan.num_steps
        records = list(schedule.prepared(records))
        return Side(StatisticsRun(schedule, plan), start, records, plan.cost(steps, steps), steps)
    (x,) = args
    columns, mechanism = front.planned(x.shape)
    records = [jnp.asarray(single_precision(x))]
    return Side(CentreRun(mechanism, columns), (), records, mechanism.event(1), 1)


def _fit(svi: DPSVI, key: Any, num_steps: int, args: tuple[Any, ...]) -> Side:
    ready = svi.prepared(key, num_steps, args, {})
    fit, plan = ready.fit, ready.plan
    run = FitRun(fit, ready.curvature, svi.guide, num_steps, ready.tail)
    records = fit.numbered(list(ready.records))
    return Side(run, ready.begin, records, plan.event(num_steps), num_steps)


@dataclass(frozen=True, eq=False)
class FitRun:
    """A run of :class:`~numpyro_dp.DPSVI`: gradients, losses and a last curvature."""

    fit: Fit
    curvature: CurvatureRelease | None
    guide: Any
    num_steps: int
    tail: int

    def __call__(self, key: Any, start: Carry, records: list[Array], pair: Heard) -> Told:
        other_key, noise_key = random.split(key)
        numbered = isinstance(self.fit.outcomes, Simulated)
        plain = [leaves[:-1] if numbered else leaves for leaves in (records, *pair)]
        records, bare = plain[0], type(pair)(*plain[1:])

        def step(before: tuple[Carry, Told], index: Array) -> tuple[tuple[Carry, Told], None]:
            carry, so_far = before
            told: list[Told] = []
            listening = overheard(self.fit.private_sum, pair, told)
            fit = replace(self.fit, private_sum=listening)
            moved = fit.moved(carry, records, index >= self.num_steps - self.tail)
            so_far = so_far.and_then(told)
            if fit.elbo is not None:
                told = []
                elbo = replace(fit.elbo, private_sum=overheard(fit.elbo.private_sum, bare, told))
                fit.loss(elbo, carry, records)
                so_far = so_far.and_then(told, elbo.due(index))
            return (moved, so_far), None

        begin = start._replace(noise_key=noise_key), Told.nothing(pair)
        (last, whole), _ = lax.scan(step, begin, jnp.arange(self.num_steps))
        if self.curvature is None:
            return whole
        told = []
        listening = overheard(self.curvature.private_sum, bare, told)
        params = self.fit.target.constrain(self.fit.end(last, self.tail))
        curvature = replace(self.curvature, private_sum=listening)
        curvature.variances(self.guide, params, random.fold_in(other_key, last.i), records)
        return whole.and_then(told)


@dataclass(frozen=True, eq=False)
class StatisticsRun:
    """A run of :class:`~numpyro_dp.VIPS`: the releases of all its phases."""

    schedule: Schedule
    plan: Releases

    def __call__(self, key: Any, start: Any, records: list[Array], pair: Heard) -> Told:
        state, so_far, done = start, Told.nothing(pair), 0
        for phase, each in enumerate(self.plan.sums):
            count = len(self.plan.phases[phase].weights)

            def step(
                before: tuple[Any, Told], at: Array, phase: int = phase, each: PrivateSum = each,
                done: int = done,
            ) -> tuple[tuple[Any, Told], None]:  # fmt: skip
                state, so_far = before
                told: list[Told] = []
                listening, step_key = overheard(each, pair, told), random.fold_in(key, done + at)
                state = released_step(self.schedule, listening, phase, state, step_key, records, at)
                return (state, so_far.and_then(told)), None

            (state, so_far), _ = lax.scan(step, (state, so_far), jnp.arange(count))
            done += count
        return so_far


@dataclass(frozen=True, eq=False)
class CentreRun:
    """The one release of :class:`~numpyro_dp.PrivateCentre`."""

    mechanism: PrivateSum
    columns: tuple[int, ...]

    def __call__(self, key: Any, start: Any, records: list[Array], pair: Heard) -> Told:
        told: list[Told] = []
        released_mean(overheard(self.mechanism, pair, told), self.columns, key, records[0])
        return Told.nothing(pair).and_then(told)


def _scores(
    side: Side,
    pair: NeighbourPair,
    key: Any,
    relation: Relation,
    num_runs: int,
    show: Callable[[int], None],
) -> Float[np.ndarray, " runs"]:
    size, chunks = min(num_runs, _TOGETHER), []
    for number in range(-(-num_runs // size)):
        keys = random.split(random.fold_in(key, number), size)
        told = _chunk(side.run, keys, side.start, side.records, pair)
        if relation == "zero_out" and not np.asarray(told.null).all(0).any():
            raise ValueError(
                "under relation='zero_out' one of the two differing records must be null, adding "
                "nothing to any sum: fill it with nan, or audit relation='replace_one'"
            )
        chunks.append(np.asarray(told.ratio, np.float64))
        show(min(num_runs, (number + 1) * size))
    return np.concatenate(chunks)[:num_runs]


@partial(jax.jit, static_argnums=0)
def _once(run: OverheardRun, key: Any, start: Any, records: list[Array], heard: Heard) -> Told:
    return run(key, start, records, heard)


@partial(jax.jit, static_argnums=0)
def _chunk(run: OverheardRun, keys: Any, start: Any, records: list[Array], pair: Heard) -> Told:
    return lax.map(lambda key: run(key, start, records, pair), keys, batch_size=_IN_MEMORY)
