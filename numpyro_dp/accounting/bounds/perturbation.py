"""What is proved about output perturbation, a Gaussian, and objective perturbation.

The loss of objective perturbation is no worse than a half-normal one.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr, ndtr

from numpyro_dp.accounting import events
from numpyro_dp.accounting.bounds.bits import PureLoss
from numpyro_dp.accounting.bounds.proved import Proved, of_bound, of_shift, proves
from numpyro_dp.accounting.pld.bound import UP, Bound, Pieces
from numpyro_dp.accounting.pld.profiles import FARTHEST, Profile
from numpyro_dp.accounting.pld.renyi import ORDERS, Array
from numpyro_dp.accounting.relation import Relation, sensitivity


@dataclass(frozen=True)
class HalfNormalLoss(Bound):
    """Loss dominated by ``offset`` + μ²/2 + μ|N(0, 1)|: objective perturbation.

    :param offset: log(1 + β/λ).
    :param mu: sensitivity over noise.
    :param sharp: whether the closed-form profile is proved too (zero-out and add/remove).

    **References.** Redberg, Koskela and Wang, *Improving the Privacy and Practicality of Objective
    Perturbation* (2023), Theorem 3.1; *Events* (docs/reference/events.md), estimators.
    """

    offset: float
    mu: float
    sharp: bool

    def renyi(self) -> Array:
        """offset + μ²/2 + log(2e^{(α−1)²μ²/2}Φ((α − 1)μ)) / (α − 1)."""
        excess = ORDERS - 1
        tilt = excess * self.mu
        moment = math.log(2) + tilt**2 / 2 + log_ndtr(tilt)
        return (self.offset + self.mu**2 / 2 + moment / excess) * UP

    def pieces(self, count: int) -> Pieces | None:
        """The closed-form profile, where it is proved."""
        return ((HalfNormalProfile(self.offset, self.mu), count),) if self.sharp else None

    def delta(self, epsilon: float) -> float:
        """The closed-form profile, where it is proved."""
        if not self.sharp:
            return 1.0
        return float(_half_normal_deltas(np.array([epsilon]), self.offset, self.mu)[0])


@dataclass(frozen=True)
class HalfNormalProfile(Profile):
    """The profile of objective perturbation under zero-out."""

    offset: float
    mu: float

    @property
    def variance(self) -> float:
        """About that of the half-normal part, and of the offset's sign."""
        return self.mu**2 + self.offset**2

    @property
    def largest(self) -> float:
        """Where a half-normal variable is beyond reach."""
        return min(self.offset + self.mu**2 / 2 + 10 * self.mu, FARTHEST)

    def deltas(self, epsilons: Array) -> tuple[Array, ...]:
        """Return δ at ``epsilons``."""
        return (_half_normal_deltas(epsilons, self.offset, self.mu),)


def _half_normal_deltas(epsilons: Array, offset: float, mu: float) -> Array:
    """Return 2H(ε̃) for ε̂ ≥ 0, else 1 − e^{ε̂} + 2e^{ε̂}H(μ²/2); ε̃ = ε − offset, ε̂ = ε̃ − μ²/2."""
    if mu == 0:
        return np.maximum(-np.expm1(epsilons - offset), 0.0)
    beyond = epsilons - offset - mu**2 / 2
    near = np.minimum(beyond, 0.0)
    at = np.maximum(beyond, 0.0) + mu**2 / 2
    # H, the profile of N(μ, 1) against N(0, 1), at ε̃ or at its least argument μ²/2.
    second = np.exp(at + log_ndtr(-mu / 2 - at / mu))
    tail = np.maximum(ndtr(mu / 2 - at / mu) - second, 0.0) * (1 + 1e-9)
    return np.minimum(-np.expm1(near) + 2 * np.exp(near) * tail, 1.0)


@proves(events.OutputPerturbationRelease)
def _output(event: events.OutputPerturbationRelease, relation: Relation) -> Proved:
    distance = sensitivity(relation) * event.lipschitz + 2 * event.gradient_tolerance
    return of_shift(distance / (event.strong_convexity * event.noise_sd))


@proves(events.ObjectivePerturbationRelease)
def _objective(event: events.ObjectivePerturbationRelease, relation: Relation) -> Proved:
    offset = math.log1p(event.smoothness / event.regularisation)
    mu = sensitivity(relation) * event.lipschitz / event.noise_sd
    bounds: dict[Bound, int] = {HalfNormalLoss(offset, mu, relation != "replace_one"): 1}
    if event.gradient_tolerance == 0:
        return Proved(bounds=bounds)
    shift = 2 * event.gradient_tolerance / (event.regularisation * event.output_noise_sd)
    return Proved(squares=of_shift(shift).squares, bounds=bounds)


@proves(events.PureObjectivePerturbationRelease)
def _pure_objective(event: events.PureObjectivePerturbationRelease, relation: Relation) -> Proved:
    epsilon = sensitivity(relation) * event.lipschitz / event.noise_scale
    epsilon += math.log1p(event.smoothness / event.regularisation)
    return Proved() if epsilon == 0 else of_bound(PureLoss(epsilon))
