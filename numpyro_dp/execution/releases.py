"""The private sums of a run of several phases, and what they cost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from numpyro_dp import _validate
from numpyro_dp._shards import Shards
from numpyro_dp.accounting import Budget, Relation
from numpyro_dp.accounting.events import ComposedDpEvent, DpEvent
from numpyro_dp.execution.calibration import least_noise
from numpyro_dp.mechanisms import PrivateSum, SparsePrivateSum


@dataclass(frozen=True)
class Phase:
    """Consecutive releases of one statistic.

    :param name: what is released, in a few words for reports (``"scores"``).
    :param dim: numbers in one record's statistic.
    :param clip_norm: L2 bound on one record's (scaled) statistic; ``inf`` where privacy is off.
    :param weights: relative squared privacy loss of each release of this phase.
    :param scale: public positive weights of the numbers: ``scale * statistic`` is clipped, and
        undone after the release; ``None`` for ones.
    :param entries: how many of the numbers one record may touch, where its statistic comes as
        :class:`~numpyro_dp.mechanisms.Touched` rows of a table; ``None`` for a dense vector.
    """

    name: str
    dim: int
    clip_norm: float
    weights: tuple[float, ...]
    scale: tuple[float, ...] | None = None
    entries: int | None = None

    def __post_init__(self) -> None:
        _validate.positive_int("dim", self.dim)
        if self.clip_norm != math.inf:
            _validate.positive("clip_norm", self.clip_norm)
        if not self.weights or min(self.weights) <= 0:
            raise ValueError(f"phase {self.name!r} needs at least one release, of positive weight")


@dataclass(frozen=True)
class Releases:
    """One private sum for each phase.

    :param phases: what is released.
    :param sums: how, in the same order.
    :param noise_multiplier: standard deviation of the noise over the clip norm, at a release of
        average weight.
    """

    phases: tuple[Phase, ...]
    sums: tuple[PrivateSum, ...]
    noise_multiplier: float

    @property
    def num_steps(self) -> int:
        """Releases of a whole run."""
        return sum(len(phase.weights) for phase in self.phases)

    @property
    def total_variation(self) -> float:
        """Distance of a whole run to the ideal mechanism: tables and overflowing rooms."""
        pairs = zip(self.phases, self.sums, strict=True)
        return sum(len(phase.weights) * each.tv_per_step for phase, each in pairs)

    def cost(self, done: int, num_steps: int) -> DpEvent:
        """What the first ``done`` of a run's ``num_steps`` releases cost."""
        events, left = [], min(done, num_steps)
        for phase, each in zip(self.phases, self.sums, strict=True):
            taken = min(left, len(phase.weights))
            left -= taken
            if taken:
                events.append(each.event(taken))
        return ComposedDpEvent(events)


@lru_cache(maxsize=64)
def planned_releases(
    *,
    phases: tuple[Phase, ...],
    noise: float | Budget,
    delta: float,
    relation: Relation,
    num_records: int,
    sampling_rate: float,
    microbatch_size: int | None,
    shards: Shards | None = None,
) -> Releases:
    """The private sums of a run.

    :param noise: noise multiplier of a release of average weight, or the budget that the whole
        run is calibrated to.
    :raises ValueError: when no noise that the lattice can carry meets the budget.
    """
    weights = [weight for phase in phases for weight in phase.weights]
    average, total = sum(weights) / len(weights), len(weights)

    if any(phase.clip_norm == math.inf for phase in phases) and noise != 0:
        raise ValueError("a guide without clipping needs noise_multiplier=0: nothing is private")

    def one(phase: Phase, noise_multiplier: float) -> PrivateSum:
        private = noise_multiplier > 0
        # At which releases take their shares of the squared privacy loss.
        levels = tuple(noise_multiplier * math.sqrt(average / each) for each in phase.weights)
        kind = PrivateSum if phase.entries is None else SparsePrivateSum
        return kind.create(
            num_records=num_records,
            shards=shards,
            dim=phase.dim,
            sampling_rate=sampling_rate,
            clip_norm=phase.clip_norm if private else math.inf,
            noise_multiplier=levels[0] if len(set(levels)) == 1 else levels,
            num_steps=total,
            delta=delta,
            microbatch_size=microbatch_size,
            scale=phase.scale if private else None,
            entries=phase.entries,
        )

    def at(noise_multiplier: float) -> Releases:
        sums = tuple(one(phase, noise_multiplier) for phase in phases)
        return Releases(phases, sums, noise_multiplier)

    if not isinstance(noise, Budget):
        return at(noise)
    return least_noise(at, lambda plan: plan.cost(total, total), noise, relation, total)
