"""What an algorithm may know before its first step: where the posterior lies and how it is shaped.

A share of a run's privacy goes to a few rounds of private Fisher scoring. They say where the
posterior lies and which coordinates x make its information the identity. There every direction
costs the same noise and a record's score has norm about √(dim/records): clip norms, bounds and step
sizes of what follows are public numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from jax import random

from numpyro_dp.accounting import Budget, Relation
from numpyro_dp.accounting.events import ComposedDpEvent, DpEvent
from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.execution.calibration import least_noise
from numpyro_dp.execution.progress import epsilon_table, steps_bar
from numpyro_dp.mechanisms import PrivateSum
from numpyro_dp.model.data_free import read_coordinates
from numpyro_dp.model.private_model import PrivateModel
from numpyro_dp.scoring.information import Matrix
from numpyro_dp.scoring.located import located, whitening_at
from numpyro_dp.scoring.prior import prior_moments, steepness
from numpyro_dp.scoring.release import bound_release
from numpyro_dp.scoring.statistic import coordinate_names
from numpyro_dp.scoring.turns import BoundRelease, released_rounds
from numpyro_dp.scoring.verdicts.kinds import WITH_CARE
from numpyro_dp.scoring.verdicts.trust import Located

# Four leave one run in five on its way; ten arrive where those of a release of its own do.
ROUNDS = 10
SUMMANDS = (
    "clipped, centred per-record scores in released coordinates, after "
    f"{ROUNDS + 1} such sums of adaptation, of bound 1 and all records each"
)
RELEASED = (
    f"the noisy sums of {ROUNDS} rounds of scores and information and of scores' sizes and how "
    "they divide over latents and groups, from which start and coordinates follow"
)
# Curvature of the prior at its own draws, where that of a normal one is 1.
_STEEP = 100.0
_LOST = (
    f"{WITH_CARE}: adaptation did not arrive: its last step was longer than its noise explains, so "
    "the released coordinates are not the posterior's and what follows may still be on its way. "
    "Give priors on the scale of the answer (within a factor of ten), a larger adaptation=, or "
    "more privacy budget."
)
# Of intervals nothing: what follows hears the records too.
BEGINS = "what follows begins there with little more than the prior"


class Adapted(NamedTuple):
    """What adaptation released.

    - **at**: the located posterior.
    - **whitening**: W, shape (dim, dim): a step of size 1 in coordinates x is a step Wᵀx of the
      unconstrained ones. WᵀW is about the posterior's covariance.
    - **rest_key**: for what is drawn from it.
    - **notes**: what the released numbers say against it.
    """

    at: Located
    whitening: Matrix
    rest_key: Any
    notes: tuple[str, ...]


@dataclass(frozen=True)
class AdaptationPlan:
    """The release that prepares a run; hashable.

    :param model: the model, split.
    :param privacy: the whole run's budget.
    :param relation: neighbouring relation.
    :param share: of the squared privacy loss, for this release.
    :param dense: whether coordinates that hang together are told apart.
    """

    model: PrivateModel
    privacy: Budget
    relation: Relation
    share: float
    dense: bool

    @property
    def release(self) -> BoundRelease:
        """Every number of it."""
        return bound_release(self.model, self.privacy, self.relation, ROUNDS, self.share)

    @property
    def event(self) -> DpEvent:
        """What it costs."""
        return self.release.plan.cost(self.steps, self.steps)

    @property
    def steps(self) -> int:
        """Its releases."""
        return self.release.plan.num_steps

    @property
    def total_variation(self) -> float:
        """Distance to the ideal mechanism."""
        return self.release.plan.total_variation

    @property
    def typical(self) -> float:
        """Norm of a typical record's score in released coordinates."""
        expected = self.release.forecast
        return math.sqrt(expected.dim / expected.num_records)

    def rest(
        self, num_steps: int, clip_norm: float = 1.0, noise: float | None = None, **shape: Any
    ) -> PrivateSum:
        """The sum that each of ``num_steps`` steps releases after it.

        :param clip_norm: bound on a record's vector.
        :param noise: its noise multiplier; by default what takes the rest of the budget.
        :param shape: sampling rate and rows at a time of :meth:`PrivateSum.create`.
        :raises ValueError: when no noise that the lattice can carry meets the budget.
        """

        # Here, where a model that has none is refused: a search over noise would go on.
        before, dim = self.event, self.release.statistic.dim

        def at(noise_multiplier: float) -> PrivateSum:
            return PrivateSum.create(
                num_records=self.model.num_records,
                shards=self.model.shards,
                dim=dim,
                clip_norm=clip_norm,
                noise_multiplier=noise_multiplier,
                num_steps=num_steps,
                delta=self.privacy.delta,
                **shape,
            )

        def cost(mechanism: PrivateSum) -> DpEvent:
            return ComposedDpEvent([before, mechanism.event(num_steps)])

        if noise is not None:
            return at(noise)
        return least_noise(at, cost, self.privacy, self.relation, num_steps)

    def require_located(self, without: str) -> None:
        """Refuse a share that would tell nothing.

        :param without: which arguments switch adaptation off.
        :raises ValueError: the forecast says so.
        """
        expected = self.release.forecast
        if expected.verdict == "not":
            raise ValueError(
                f"adaptation={self.share:g} of this budget tells next to nothing of where the "
                f"posterior lies (κ = {expected.signal:.3g}, of the information "
                f"{expected.shape:.3g}), and what is left would not tell more: "
                f"{expected.remedy}. {self._better()}{without} switch adaptation off. Nothing was "
                "charged"
            )

    def _better(self) -> str:
        """What makes more of the budget, where it takes the model."""
        try:
            bound_release(self.model, self.privacy, self.relation)
        except UnsupportedModelError:
            return ""
        return "DPNUTS makes more of the same budget; "

    def adapted(self, rng_key: Any, records: list, progress_bar: bool) -> Adapted:
        """Locate the posterior; the release must be charged by now.

        :param rng_key: a typed secret key.
        :param records: leaves of the statistic's :meth:`RecordStatistic.numbered`.
        :param progress_bar: whether to show one.

        **Privacy.** One histogram and :data:`ROUNDS` joint sums over all records; see
        :class:`~numpyro_dp.LikelihoodRelease`.
        """
        bound = self.release
        noise_key, outcome_key, rest_key = random.split(rng_key, 3)
        reached = epsilon_table(
            bound.plan, self.steps, self.relation, self.privacy.delta, progress_bar
        )
        # A last entry that no step of it reaches: all that is charged.
        table = (*reached, (self.steps + 1, self.privacy.epsilon))
        with steps_bar(self.steps, table, shown=progress_bar) as show:
            rounds = released_rounds(
                bound, noise_key, outcome_key, records, lambda done: show(done, None, "adapt")
            )
        at = located(rounds, bound.prior, self.model.num_records)
        whitening = whitening_at(at, rounds, bound.prior, self.model.num_records)
        if not self.dense:
            whitening = _diagonal(whitening)
        lost = () if at.arrived else (_LOST,)
        of_model = coordinate_names(self.model), read_coordinates(self.model)
        notes = (*at.outside.said, *lost, *at.untold(*of_model, rank=WITH_CARE, thus=BEGINS))
        return Adapted(at, whitening, rest_key, notes)


def require_even_prior(model: PrivateModel, without: str) -> None:
    """Refuse a prior that steps of one size do not suit.

    :param without: which arguments switch adaptation off.
    :raises ValueError: at some of its own draws it is far steeper than at others.
    """
    steepest = _steepest(model)
    if not steepest <= _STEEP:
        raise ValueError(
            f"the prior is up to {steepest:.2g} times steeper at some of its own draws than at "
            "others, as of groups whose scale is a latent: steps of one size run away where that "
            "scale is small. Use DPNUTS, which releases such a model and samples it well, or give "
            f"{without}. Nothing was charged"
        )


@lru_cache(maxsize=16)
def _steepest(model: PrivateModel) -> float:
    found = steepness(model, prior_moments(model))
    return float(np.max(np.where(np.isnan(found), math.inf, found)))


def _diagonal(whitening: np.ndarray) -> np.ndarray:
    """Marginal sds, scaled so that no direction is steeper than 1."""
    sds = np.sqrt(np.sum(whitening**2, axis=0))
    precision = np.linalg.inv(whitening.T @ whitening)
    steepest = np.linalg.eigvalsh(sds[:, None] * precision * sds)[-1]
    return np.diag(sds / math.sqrt(steepest))
