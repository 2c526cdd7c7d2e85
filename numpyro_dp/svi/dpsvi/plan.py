"""What a run will release and cost, fixed before any record is touched."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from numpyro_dp.accounting import Budget, Relation
from numpyro_dp.accounting.events import ComposedDpEvent, DpEvent
from numpyro_dp.execution.calibration import least_noise
from numpyro_dp.execution.facts import conditions_of
from numpyro_dp.mechanisms import PrivateSum
from numpyro_dp.scoring.adaptation import AdaptationPlan
from numpyro_dp.svi.dpsvi.elbo import ElboRelease, ElboTrace


@dataclass(frozen=True)
class ReleasePlan:
    """Private sums of a run.

    :param gradient: one release a step.
    :param curvature: one release at the end, or ``None``.
    :param elbo: a release after every so many steps, or ``None``.
    """

    gradient: PrivateSum
    curvature: PrivateSum | None
    elbo: ElboRelease | None = None

    def event(self, num_steps: int) -> DpEvent:
        """What a run of ``num_steps`` costs."""
        return self.cost(num_steps, num_steps)

    def cost(self, done: int, num_steps: int) -> DpEvent:
        """What the first ``done`` of ``num_steps`` steps cost; the curvature comes last."""
        parts = [self.gradient.event(done)]
        if self.elbo is not None:
            parts += self.elbo.cost(done)
        if self.curvature is not None and done == num_steps:
            parts.append(self.curvature.event(1))
        return parts[0] if len(parts) == 1 else ComposedDpEvent(parts)

    def paid(self, num_steps: int) -> dict[str, Any]:
        """Releases of a run of ``num_steps``, what it spends outside the events, and if what."""
        return {
            "steps": num_steps,
            "total_variation": self.total_variation(num_steps),
            "conditions": conditions_of(self.gradient),
        }

    def total_variation(self, num_steps: int) -> float:
        """What a run of ``num_steps`` spends outside the events, at each ε."""
        total = self.gradient.tv_per_step * num_steps
        if self.elbo is not None:
            total += self.elbo.private_sum.tv_per_step * self.elbo.count(num_steps)
        return total if self.curvature is None else total + self.curvature.tv_per_step


@dataclass(frozen=True)
class AdaptedPlan(ReleasePlan):
    """Private sums of a run whose start and coordinates are released before its steps.

    :param adaptation: that release.
    """

    adaptation: AdaptationPlan = field(kw_only=True)

    def cost(self, done: int, num_steps: int) -> DpEvent:
        """What adaptation and the first ``done`` steps cost."""
        return ComposedDpEvent([self.adaptation.event, super().cost(done, num_steps)])

    def paid(self, num_steps: int) -> dict[str, Any]:
        """Releases of adaptation and of ``num_steps``, and what they spend outside the events."""
        steps = super().paid(num_steps)
        before = self.adaptation
        return steps | {
            "steps": before.steps + steps["steps"],
            "total_variation": before.total_variation + steps["total_variation"],
        }


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
    elbo: ElboTrace | None = None,
    **shape: Any,
) -> ReleasePlan:
    """The private sums of a run of ``num_steps``.

    :param noise: noise multiplier of a step, or the budget that the whole run is calibrated to.
    :param curvature_dim: coordinates of the curvature, 0 for none.
    :param curvature_clip: L2 bound on one record's curvature.
    :param curvature_share: share of the squared privacy loss that the curvature takes.
    :param elbo: when losses are released; ``None`` for never.
    :param shape: what else the steps' :meth:`PrivateSum.create` takes.
    :raises ValueError: when no noise that the lattice can carry meets the budget.
    """
    shares = {
        "curvature": curvature_share if curvature_dim else 0.0,
        "losses": 0.0 if elbo is None else elbo.share,
    }
    if sum(shares.values()) >= 1:
        raise ValueError(
            f"the curvature takes {shares['curvature']:.0%} of the squared privacy loss and the "
            f"losses {shares['losses']:.0%}, which leaves nothing for the steps: lower share="
        )

    def at(noise_multiplier: float) -> ReleasePlan:
        gradient = PrivateSum.create(
            noise_multiplier=noise_multiplier, num_steps=num_steps, delta=delta, **shape
        )
        whole = _squared_loss(gradient, num_steps) / (1 - sum(shares.values()))

        def beside(share: float, count: int, clip_norm: float, **own: Any) -> PrivateSum:
            rate = own["sampling_rate"] if gradient.amplified else 1.0
            private = gradient.is_private
            return PrivateSum.create(
                num_records=shape["num_records"],
                shards=shape.get("shards"),
                storage=shape.get("storage"),
                clip_norm=clip_norm if private else math.inf,
                noise_multiplier=_noise(share * whole, count, rate) if private else 0.0,
                num_steps=count,
                delta=delta,
                microbatch_size=shape["microbatch_size"],
                **own,
            )

        curvature = losses = None
        if curvature_dim:
            curvature = beside(
                shares["curvature"], 1, curvature_clip, dim=curvature_dim, sampling_rate=1.0
            )
        if elbo is not None:
            private_size = relation == "add_remove"
            private_sum = beside(
                shares["losses"],
                num_steps // elbo.every,
                elbo.sensitivity(private_size),
                dim=1,
                sampling_rate=gradient.sampling_rate,
                max_records=shape["max_records"],
            )
            losses = ElboRelease(elbo, private_sum, elbo.middle(private_size))
        return ReleasePlan(gradient, curvature, losses)

    if not isinstance(noise, Budget):
        return at(noise)
    return least_noise(at, lambda plan: plan.event(num_steps), noise, relation, num_steps)


def _squared_loss(mechanism: PrivateSum, num_steps: int) -> float:
    """What many releases add to the squared privacy loss, in their Gaussian limit.

    It only decides how a budget is divided: what is charged is computed from the events.
    """
    rate, noise = mechanism.sampling_rate, mechanism.noise_multiplier
    if not mechanism.is_private:
        return math.inf
    one = 1 / noise**2 if not mechanism.amplified else rate**2 * math.expm1(min(1 / noise**2, 20.0))
    return num_steps * one


def _noise(squared_loss: float, count: int, rate: float) -> float:
    """Noise multiplier at which ``count`` releases come to a squared privacy loss."""
    one = squared_loss / count
    return 1 / math.sqrt(one if rate == 1 else math.log1p(one / rate**2))
