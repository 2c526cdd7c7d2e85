"""What a run will release and cost, fixed before any record is touched."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from numpyro_dp.accounting import Budget, Relation
from numpyro_dp.accounting.events import ComposedDpEvent, DpEvent
from numpyro_dp.mechanisms import PrivateSum
from numpyro_dp.mechanisms.planning import least_noise

__all__ = ["Plan", "planned"]


@dataclass(frozen=True)
class Plan:
    """Private sums of a run.

    :param gradient: one release a step.
    :param curvature: one release at the end, or ``None``.
    """

    gradient: PrivateSum
    curvature: PrivateSum | None

    def event(self, num_steps: int) -> DpEvent:
        """What a run of ``num_steps`` costs."""
        return self.cost(num_steps, num_steps)

    def cost(self, done: int, num_steps: int) -> DpEvent:
        """What the first ``done`` of ``num_steps`` steps cost; the curvature comes last."""
        steps = self.gradient.event(done)
        if self.curvature is None or done < num_steps:
            return steps
        return ComposedDpEvent([steps, self.curvature.event(1)])


@lru_cache(maxsize=64)
def planned(
    *,
    noise: float | Budget,
    num_steps: int,
    delta: float,
    relation: Relation,
    curvature_dim: int,
    curvature_clip: float,
    curvature_share: float,
    **shape: Any,
) -> Plan:
    """The private sums of a run of ``num_steps``.

    :param noise: noise multiplier of a step, or the budget that the whole run is calibrated to.
    :param curvature_dim: coordinates of the curvature, 0 for none.
    :param curvature_clip: L2 bound on one record's curvature.
    :param curvature_share: share of the squared privacy loss that the curvature takes.
    :param shape: what else the steps' :meth:`PrivateSum.create` takes.
    :raises ValueError: when no noise that the lattice can carry meets the budget.
    """

    def at(noise_multiplier: float) -> Plan:
        gradient = PrivateSum.create(
            noise_multiplier=noise_multiplier, num_steps=num_steps, delta=delta, **shape
        )
        if not curvature_dim:
            return Plan(gradient, None)
        private = gradient.is_private
        curvature = PrivateSum.create(
            num_records=shape["num_records"],
            dim=curvature_dim,
            sampling_rate=1.0,
            clip_norm=curvature_clip if private else math.inf,
            noise_multiplier=_share(gradient, num_steps, curvature_share) if private else 0.0,
            num_steps=1,
            delta=delta,
            microbatch_size=shape["microbatch_size"],
        )
        return Plan(gradient, curvature)

    if not isinstance(noise, Budget):
        return at(noise)
    return least_noise(at, lambda plan: plan.event(num_steps), noise, relation, num_steps)


def _share(gradient: PrivateSum, num_steps: int, share: float) -> float:
    """Noise multiplier that takes ``share`` of the squared loss, the steps taking the rest.

    For Poisson batches the steps count as their Gaussian limit does. That only decides how a
    budget is divided: what is charged is computed from the events themselves.
    """
    rate, noise = gradient.sampling_rate, gradient.noise_multiplier
    one = 1 / noise**2 if rate == 1 else rate**2 * math.expm1(min(1 / noise**2, 20.0))
    return math.sqrt((1 - share) / (share * num_steps * one))
