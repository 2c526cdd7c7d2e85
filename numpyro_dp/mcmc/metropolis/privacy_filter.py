"""What a Metropolis step may let a record say, and what that costs.

Either a bound that was fixed in advance, or a bound that follows the state under a zCDP filter:
the cost of a move is computed from released values before any record is read, and a move that
would take the chain past its allowance is refused unseen.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Int32

from numpyro_dp.accounting import events

_LIMB = 24
_HALF = _LIMB // 2
# A step whose cost is this many units would use up a whole chain's share.
COST_RANGE = 1 << 20
_HEAD_START = 0.1


# Two limbs, and what a step is told: its bound, whether it may try its move, what is then left.
Allowance = Int[Array, "2"]
Admission = tuple[int | Int32[Array, ""], Bool[Array, ""], Allowance]


@dataclass(frozen=True)
class FixedCharge:
    """The same bound and the same event for every step.

    :param limit: largest integer of one record.
    :param step: the event of one step.
    :param tv: total variation of one step to the ideal one.
    """

    limit: int
    step: events.DpEvent
    tv: float

    def start(self) -> Allowance:
        """The allowance that a chain starts with."""
        return jnp.zeros(2, jnp.int32)

    def admit(self, left: Allowance, points: list[dict], possible: Bool[Array, ""]) -> Admission:
        """Bound on one record's integer, whether the move may be tried, and what is then left.

        ``possible`` says whether the prior allows the move at all.
        """
        return self.limit, possible, left

    def event(self, num_steps: int, *, start: int, num_chains: int) -> events.DpEvent:
        """What ``num_steps`` steps cost."""
        return events.ComposedDpEvent(
            [events.SelfComposedDpEvent(self.step, num_steps), _distance(num_steps * self.tv)]
        )


@dataclass(frozen=True)
class FilteredCharge:
    """A bound that depends on the move, under a zCDP filter.

    A chain has an allowance of zCDP, in whole numbers of ``rho_unit``: a tenth of its share at the
    start and the rest in equal parts, one a step. A step of bound b costs what a decision with
    that bound costs; with too little left the move is refused without reading any record.

    :param bound: symmetric public bound on |u| in nats, of the points of a step.
    :param unit: nats of a record's integer.
    :param largest: the largest integer of a record.
    :param cost: from a record's integer to the cost's root: ``cost² · rho_unit`` is the zCDP of
        the step.
    :param rho_unit: zCDP of one unit of allowance.
    :param steps: steps that a chain is planned to take.
    :param tv: total variation of one step to the ideal one.

    **Privacy.** The sum of the costs of a chain's first n steps never exceeds
    ``rho_unit · (head start + n · per step)``, which is charged before the first of them; a zCDP
    filter: *Events* (docs/reference/events.md).
    """

    bound: Callable[[list[dict]], Float[Array, ""]]
    unit: float
    largest: int
    cost: Callable[[Float[Array, ""]], Float[Array, ""]]
    rho_unit: float
    steps: int
    tv: float

    @property
    def per_step(self) -> int:
        """Units of allowance that each step adds."""
        return COST_RANGE**2 // (self.steps + self._advance)

    @property
    def _advance(self) -> int:
        return math.ceil(_HEAD_START * self.steps)

    def start(self) -> Allowance:
        return allowance(self.per_step * self._advance)

    def admit(self, left: Allowance, points: list[dict], possible: Bool[Array, ""]) -> Admission:
        units = jnp.floor(self.bound(points) / self.unit)
        within = possible & (units >= 0) & (units <= self.largest)
        limit = jnp.where(within, units, 0)
        root = jnp.ceil(self.cost(limit))
        # More than all that a chain ever has; past some point its square would wrap around.
        within &= root <= 2 * COST_RANGE
        paid, left = spend(left, self.per_step, jnp.where(within, root, 0).astype(jnp.int32))
        tried = within & paid
        return jnp.where(tried, limit, 0).astype(jnp.int32), tried, left

    def event(self, num_steps: int, *, start: int, num_chains: int) -> events.DpEvent:
        each, rest = divmod(num_steps, num_chains)
        if rest:
            raise ValueError(f"{num_steps} steps cannot be shared by {num_chains} chains")
        units = each * self.per_step + (0 if start else self.per_step * self._advance)
        return metered(num_chains * units * self.rho_unit, num_steps * self.tv)


# How steps are bounded and charged; frozen, fixed before any data is seen.
StepCharge = FixedCharge | FilteredCharge


def metered(rho: float, tv: float) -> events.DpEvent:
    """What chains cost that a filter lets spend ``rho`` in all, ``tv`` being their tables'."""
    # The factor outweighs what floats round away.
    return events.ComposedDpEvent([events.ZCDpEvent(rho * (1 + 1e-9)), _distance(tv)])


def allowance(units: int) -> Allowance:
    """A number of units as two limbs of a 32-bit array."""
    return jnp.asarray([units >> _LIMB, units & ((1 << _LIMB) - 1)], jnp.int32)


def spend(
    left: Allowance, income: int, root: Int32[Array, ""]
) -> tuple[Bool[Array, ""], Allowance]:
    """Add ``income`` and, when it is there, take ``root²`` away; exact.

    :param left: units, as :func:`allowance` has them.
    :param income: units to add.
    :param root: at most 2^21.
    :returns: whether the cost could be paid, and what is left.
    """
    added = allowance(income)
    low = left[1] + added[1]
    high = left[0] + added[0] + (low >> _LIMB)
    low = low & ((1 << _LIMB) - 1)
    upper, lower = root >> _HALF, root & ((1 << _HALF) - 1)
    cross = 2 * upper * lower
    cost_low = ((cross & ((1 << _HALF) - 1)) << _HALF) + lower * lower
    cost_high = upper * upper + (cross >> _HALF) + (cost_low >> _LIMB)
    low_after = low - (cost_low & ((1 << _LIMB) - 1))
    high_after = high - cost_high - (low_after < 0)
    paid = high_after >= 0
    after = jnp.stack([high_after, low_after & ((1 << _LIMB) - 1)])
    return paid, jnp.where(paid, after, jnp.stack([high, low]))


@dataclass(frozen=True)
class PairwiseBound:
    """The largest of a user's bound over all pairs of points, in either order, in nats.

    :param record_bound: public bound on the change of one record's log likelihood between two
        unconstrained positions.
    :param power: the likelihood power, which multiplies it.
    """

    record_bound: Callable[[dict, dict], Any]
    power: float

    def __call__(self, points: list[dict]) -> Float[Array, ""]:
        one, other = np.nonzero(~np.eye(len(points), dtype=bool))
        stacked = jax.tree.map(lambda *each: jnp.stack(each), *points)
        here, there = ({k: v[side] for k, v in stacked.items()} for side in (one, other))
        # NaN stays NaN, and refuses the move.
        each = jax.vmap(lambda *pair: jnp.asarray(self.record_bound(*pair), jnp.float32))
        return self.power * jnp.max(each(here, there))


@dataclass(frozen=True)
class BitCost:
    """Cost's root of a decision on exact sums: proportional to the bound.

    :param factor: cost's root of one unit.
    :param extra: what is added for rounding.
    """

    factor: float
    extra: float = 0.0

    def __call__(self, limit: Float[Array, ""]) -> Float[Array, ""]:
        return limit * self.factor + self.extra


@dataclass(frozen=True)
class BatchCost:
    """Cost's root of a Barker decision on a Poisson batch: b·B/(B − N·b) for a bound b.

    :param factor: cost's root of one unit where the batch is everything.
    :param whole: units at which N·b would reach the mean batch B.
    """

    factor: float
    whole: int

    def __call__(self, limit: Float[Array, ""]) -> Float[Array, ""]:
        return limit * self.factor / (1 - limit / self.whole)


def _distance(total: float) -> events.TotalVariation:
    return events.TotalVariation(min(1.0, total))
