"""DP-Fast MH that adapts: a random walk in released coordinates, its bound and step public numbers.

There the posterior's standard deviations are 1, and what a record may say of a move is a small
number whatever the model: the charge is averaged over the direction of the move.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from numpyro_dp.accounting import calibrate, privacy_curve
from numpyro_dp.accounting.events import ComposedDpEvent, DpEvent
from numpyro_dp.accounting.report.facts import RunFacts
from numpyro_dp.mcmc.adaptation import RELEASED, Adaptation, placed, require_adapted
from numpyro_dp.mcmc.kernel import Terms
from numpyro_dp.mcmc.metropolis.plan import MetropolisPlan, MetropolisSettings, planned, run_event
from numpyro_dp.mcmc.metropolis.proposals import Move, RandomWalk
from numpyro_dp.mcmc.metropolis.step import BoundMetropolis, MetropolisState
from numpyro_dp.scoring.adaptation import ROUNDS, AdaptationPlan

# Bounds in units of a record's typical score, √(dim/records).
_TIGHTEST, _LOOSEST = 3.0, 10.0
# Relaxation times that make a posterior, and those below which a chain is not worth its charge.
_POSTERIOR, _LEAST = 10.0, 0.1
# Best step of Barker's walk times the root of the dimension, where the target's sds are 1.
_BEST = 2.46


@dataclass(frozen=True)
class BoundAdaptedMetropolis(BoundMetropolis):
    """A Metropolis kernel whose walk is isotropic in released coordinates.

    :param adaptation: the release that gives them.
    :param relaxation_times: that a chain holds.
    """

    adaptation: AdaptationPlan = field(kw_only=True)
    relaxation_times: float = field(kw_only=True)

    @property
    def derived(self) -> tuple[str, ...]:
        return (*super().derived, "adapt_state")

    def first(self, num_chains: int) -> Adaptation:
        return Adaptation(self.adaptation, num_chains)

    def resumed(self, state: MetropolisState) -> MetropolisState:
        require_adapted(state)
        return self.renewed(state)

    def leaves(self, records: list) -> list:
        return self.adaptation.release.statistic.numbered(records)

    def start(self, rng_key: Any, z: Any) -> MetropolisState:
        """State of a chain at a :class:`~numpyro_dp.mcmc.adaptation.Placed`."""
        z = placed(z)
        return super().start(rng_key, z.z)._replace(adapt_state=z.adapt_state)

    def displaced(self, state: MetropolisState, move: Float[Array, " dim"]) -> Float[Array, " dim"]:
        whitening = state.adapt_state.mass_matrix_sqrt_inv.astype(move.dtype)
        return jnp.matmul(move, whitening, precision=lax.Precision.HIGHEST)

    def record_cache(self, state: MetropolisState, records: list) -> Any:
        return super().record_cache(state, self._own(records))

    def advance_from(
        self, key: Any, state: MetropolisState, record_cache: Any, records: list
    ) -> tuple[MetropolisState, Any]:
        return super().advance_from(key, state, record_cache, self._own(records))

    def _own(self, records: list) -> list:
        """Without the row numbers, by which the release alone draws outcomes."""
        return records[:-1] if self.adaptation.release.statistic.draws else records

    def facts(self) -> RunFacts:
        facts = super().facts()
        return replace(
            facts,
            mechanism=f"{facts.mechanism}, in coordinates from {ROUNDS + 1} Gaussian sums of bound "
            "1 over all records",
            released=(RELEASED, *facts.released),
            signs=self._signs(),
        )

    def _signs(self) -> tuple[str, ...]:
        if self.relaxation_times >= _POSTERIOR:
            return ()
        return (f"span {self.relaxation_times:.2g} relaxation times",)

    def _of_the_bound(self) -> str:
        # Of a yes of probability p a record's score is √(1/p − 1) times the typical one.
        loose = self.plan.settings.slope / self.plan.power / self.adaptation.typical
        return (
            f"Records are cut to a bound of {loose:.2g} times a typical record's score, which is a "
            f"guess: outcomes rarer than about one in {1 + loose**2:.3g} say more than that of "
            "their probability, and it comes out too small. A larger lipschitz= moves this limit, "
            "with shorter steps; DPSGLD and DPNUTS, whose clips are centred, have none."
        )

    def _effective_draws(self) -> str:
        said = f"A chain spans about {self.relaxation_times:.2g} relaxation times"
        if self.relaxation_times >= _POSTERIOR:
            return f"{said} of the posterior."
        return (
            f"{said}, as many as this budget holds: below ten, read the draws as a point and not "
            "as intervals."
        )


class Settings(NamedTuple):
    """What follows from public numbers alone.

    - **plan**: of a step.
    - **relaxation_times**: that a chain holds.
    """

    plan: MetropolisPlan
    relaxation_times: float


@lru_cache(maxsize=64)
def adapted_settings(
    adaptation: AdaptationPlan,
    terms: Terms,
    *,
    lipschitz: float | None,
    smoothness: float | None,
    power: float,
) -> Settings:
    """Fix every number of a run whose coordinates are yet to be released.

    :param terms: steps, chains and relation.
    :param lipschitz: the user's bound, on whitened scores; ``None`` to adapt it.
    :param smoothness: the user's, on whitened curvatures; ``None``: that of such scores.
    :param power: of the likelihood.
    :raises ValueError: when no step fits the budget.
    """
    dim, typical = adaptation.release.statistic.dim, adaptation.typical
    if lipschitz is not None and lipschitz < typical:
        raise ValueError(
            f"lipschitz={lipschitz:g} is less than a typical record's score in released "
            f"coordinates, {typical:.3g}: most records would be cut to nothing. Give 3 to 10 times "
            "that, or leave it out"
        )
    best = _BEST / math.sqrt(dim * power)

    def settings(step: float, bound: float) -> MetropolisSettings:
        return MetropolisSettings(
            acceptance="barker",
            lipschitz=bound,
            # Where a record's scores reach C, its information reaches about C².
            smoothness=bound**2 if smoothness is None else smoothness,
            record_bound=None,
            max_move=None,
            num_candidates=1,
            batch_size=None,
            noise_scale=None,
            power=power,
            rho=None,
            step_size=step,
            directional=True,
            dim=dim,
            num_records=adaptation.model.num_records,
            one_by_one=False,
            shards=adaptation.model.shards,
        )

    def event(step: float, bound: float) -> DpEvent:
        return ComposedDpEvent([adaptation.event, run_event(settings(step, bound), terms)])

    def most(event: Callable[[float], DpEvent]) -> float:
        """The largest number that the budget allows of what costs more the larger it is."""
        noise = calibrate(lambda x: event(1 / x), adaptation.privacy, adaptation.relation)
        return 1 / noise

    bound = _TIGHTEST * typical if lipschitz is None else lipschitz
    step = min(most(lambda step: event(step, bound)), best)
    if lipschitz is None and step == best:
        # Longer steps tell no more; a looser bound cuts fewer records.
        bound = min(most(lambda bound: event(step, bound)), _LOOSEST * typical)
    if (found := _epsilon(event(step, bound), adaptation)) > adaptation.privacy.epsilon:
        raise ValueError(f"no step fits the budget: the shortest would cost ε = {found:.4g}")
    each = terms.num_steps // terms.num_chains
    plan = planned(settings(step, bound), terms, None)
    return Settings(plan, each * _relaxation(step * math.sqrt(power), dim))


def _epsilon(event: DpEvent, adaptation: AdaptationPlan) -> float:
    return privacy_curve(event, adaptation.relation).epsilon(adaptation.privacy.delta)


def _relaxation(step: float, dim: int) -> float:
    """Share of a relaxation time that one step of Barker's walk is, where the target's sds are 1.

    Its log ratios are about normal, of variance l² and mean −l²/2 with l² = step²·dim.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    variance = step**2 * dim
    accepted = 1 / (1 + np.exp(variance / 2 - math.sqrt(variance) * nodes))
    return step**2 / 2 * float(weights @ accepted / weights.sum())


def bound_adapted(
    adaptation: AdaptationPlan,
    settings: Settings,
    steps_per_sample: int,
    public_moves: tuple[Move, ...],
) -> BoundAdaptedMetropolis:
    """The bound kernel of these settings.

    :raises ValueError: a chain would hardly move.
    """
    if settings.relaxation_times < _LEAST:
        raise ValueError(
            f"a chain would span {settings.relaxation_times:.2g} relaxation times of the "
            "posterior and tell nothing that its start does not: give a smaller lipschitz= or "
            "adaptation=, fewer chains, or more privacy budget. Nothing was charged"
        )
    step: Any = settings.plan.settings.step_size
    return BoundAdaptedMetropolis(
        private_model=adaptation.model,
        steps_per_sample=steps_per_sample,
        walk=RandomWalk(step),
        plan=settings.plan,
        public_moves=public_moves,
        adaptation=adaptation,
        relaxation_times=settings.relaxation_times,
    )
