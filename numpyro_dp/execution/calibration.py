"""The private sum of a run: its noise as given, or calibrated to a budget."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

from numpyro_dp.accounting import Budget, Relation, calibrate, privacy_curve
from numpyro_dp.accounting.events import DpEvent
from numpyro_dp.mechanisms.private_sum import PrivateSum

Plan = TypeVar("Plan")


@lru_cache(maxsize=64)
def planned_sum(
    *,
    num_steps: int,
    delta: float,
    relation: Relation,
    noise: float | tuple[float, ...] | Budget,
    **shape: Any,
) -> PrivateSum:
    """The private sum for a run of ``num_steps``.

    :param noise: noise multiplier, one for each step of a chain, or the budget to calibrate to.
    :param shape: what else :meth:`PrivateSum.create` takes.
    :raises ValueError: when no noise that the lattice can carry meets the budget.
    """

    def at(noise_multiplier: float | tuple[float, ...]) -> PrivateSum:
        return PrivateSum.create(
            noise_multiplier=noise_multiplier, num_steps=num_steps, delta=delta, **shape
        )

    if not isinstance(noise, Budget):
        return at(noise)
    return least_noise(at, lambda mechanism: mechanism.event(num_steps), noise, relation, num_steps)


def least_noise(
    at: Callable[[float], Plan],
    cost: Callable[[Plan], DpEvent],
    budget: Budget,
    relation: Relation,
    num_steps: int,
) -> Plan:
    """What a noise multiplier makes, at the least one whose cost fits a budget.

    :param at: from a noise multiplier to everything that a run will release; raises
        ``ValueError`` where the lattice cannot carry so much noise.
    :param cost: the event of all those releases.
    :param budget: what the whole run may cost.
    :param relation: neighbouring relation.
    :param num_steps: private steps of the run, for the message.
    :raises ValueError: when no noise that the lattice can carry meets the budget.
    """

    def carried(noise_multiplier: float) -> Plan:
        # A lattice that serves several levels may refuse some, and carry more noise as well as
        # less.
        for quarter in range(60):
            with contextlib.suppress(ValueError):
                return at(min(noise_multiplier * 2.0 ** (quarter / 4), most))
        return at(most)

    def run(noise_multiplier: float) -> DpEvent:
        return cost(carried(noise_multiplier))

    with warnings.catch_warnings():
        # Of noise that is tried and not taken nothing need be said.
        warnings.simplefilter("ignore")
        most = _most_noise(at)
        least = privacy_curve(run(most), relation).epsilon(budget.delta)
        found = calibrate(run, budget, relation) if least <= budget.epsilon else None
    if found is None:
        remedy = (
            f"ε ≥ {least:.3g} would do at this δ"
            if math.isfinite(least)
            else "no ε would do at this δ, which must be larger"
        )
        raise ValueError(
            f"privacy={budget} is too small for {num_steps} private steps, even with the most "
            f"noise the release can carry: {remedy}; or run fewer steps, fewer chains or smaller "
            "batches"
        )
    return carried(found)


def _most_noise(at: Callable[[float], Any]) -> float:
    """The largest noise multiplier, to a quarter of an octave, that the lattice can carry."""
    for quarter in range(60, -40, -1):
        with contextlib.suppress(ValueError):
            at(2.0 ** (quarter / 4))
            return 2.0 ** (quarter / 4)
    raise ValueError("no noise multiplier fits the integer lattice in so many dimensions")
