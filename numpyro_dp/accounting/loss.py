"""One privacy loss distribution for a composition of steps, by dp-accounting.

Every step is discretised pessimistically on one grid and composed by the library's convolution.
What we choose here is the grid: fine against the loss of one step, or small sampling rates would
be rounded up to several times their cost, and coarse enough to stay quick.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from typing import NamedTuple

import numpy as np
from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent
from dp_accounting.gaussian_mechanism import get_epsilon_gaussian
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from dp_accounting.rdp import RdpAccountant
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from numpyro_dp.accounting.bounds import Bound, Pieces, RenyiProfile
from numpyro_dp.accounting.mixtures import Mixture
from numpyro_dp.accounting.profiles import Profile, discretise
from numpyro_dp.accounting.relation import Relation, sensitivity
from numpyro_dp.accounting.renyi import ORDERS, Array, renyi_delta, renyi_epsilon

__all__ = ["Bounds", "Composition", "Step", "Steps", "gaussian_delta", "loss_variance"]

_NEIGHBOURS: Mapping[Relation, NeighboringRelation] = {
    "zero_out": NeighboringRelation.REPLACE_SPECIAL,
    "replace_one": NeighboringRelation.REPLACE_ONE,
    "add_remove": NeighboringRelation.ADD_OR_REMOVE_ONE,
}
# Grid spacing over the standard deviation of one step's loss: the excess of ε is about its
# square over twelve.
_FINENESS = 1 / 32
_GROUPED_FINENESS = 1 / 4
_COARSEST = 2.0**-10
_MAX_POINTS = 1 << 21
# Wide losses make the transforms long.
_MAX_STEP_POINTS = 1 << 16
# Rounding that the library's Fourier convolution leaves in δ, for each step: about 2^-53 a step
# when errors add up, ten times what is seen against exact values.
_ROUNDING = 2.0**-53
_MAX_MULTIPLIERS = 64
# More different bounds than this are composed by closed-form divergences.
_MAX_PROFILES = 24
# The library's Rényi divergences of sampled steps take time that grows with the order.
_SAMPLED_ORDERS = np.flatnonzero((ORDERS > 1.05) & (ORDERS <= 512))[::3]
# Beyond this e^ε leaves the floating-point range of our own profiles.
_WIDEST = 500.0
# Closed forms are right to about twelve digits; rounding must not point downwards.
_UP = 1 + 1e-9


class Step(NamedTuple):
    """One Poisson-subsampled Gaussian release: sampling rate and noise over clip norm."""

    rate: float
    multiplier: float


Steps = tuple[tuple[Step, int], ...]
Bounds = tuple[tuple[Bound, int], ...]


@dataclass(frozen=True)
class Composition:
    """Everything that a run released, as one curve.

    Args:
        relation: neighbouring relation.
        square: Σ μ² over the Gaussian releases without sampling, μ the sensitivity over the noise;
            they compose in closed form.
        steps: Poisson-subsampled steps with their counts, sorted.
        coarse: use fewer points for the widest losses: quicker, and ε a little larger still.
        bounds: mechanisms of other kinds with their counts.

    Where several bounds are valid each is computed and the least is reported: pure ε's added up,
    Gaussians that are no better, Rényi divergences, and one privacy loss distribution.
    """

    relation: Relation
    square: float
    steps: Steps
    coarse: bool = False
    bounds: Bounds = ()

    def epsilon(self, delta: float) -> float:
        """Return an upper bound on ε at ``delta``."""
        if not self.bounds:
            return self._known_epsilon(delta)
        found = [self._pure(), self._known_epsilon(delta)]
        gaussian = self._as_gaussians()
        if gaussian is not None:
            found.append(gaussian.epsilon(delta))
        if not self.steps:
            found.append(renyi_epsilon(_divergences(self), delta) * _UP)
        if self._alone is not None and self._alone.delta(min(found)) <= delta:
            found.append(_least_epsilon(self._alone, delta, min(found)))
        return min(found)

    def delta(self, epsilon: float) -> float:
        """Return an upper bound on δ at ``epsilon`` ≥ 0."""
        if not self.bounds:
            return self._known_delta(epsilon)
        if epsilon >= self._pure():
            return 0.0
        found = [self._known_delta(epsilon)]
        gaussian = self._as_gaussians()
        if gaussian is not None:
            found.append(gaussian.delta(epsilon))
        if not self.steps:
            found.append(float(renyi_delta(_divergences(self), np.array([epsilon]))[0]) * _UP)
        if self._alone is not None:
            found.append(self._alone.delta(epsilon))
        return min(*found, 1.0)

    @property
    def _alone(self) -> Bound | None:
        """The one bound, when nothing was released but a single step of it."""
        if self.steps or self.square or len(self.bounds) != 1 or self.bounds[0][1] != 1:
            return None
        return self.bounds[0][0]

    def _pure(self) -> float:
        if self.steps or self.square:
            return math.inf
        return math.fsum(count * bound.pure for bound, count in self.bounds) * _UP

    def _as_gaussians(self) -> "Composition | None":
        """Return the composition with every bound replaced by a Gaussian that is no better."""
        square = math.fsum(count * bound.shift**2 for bound, count in self.bounds)
        if not math.isfinite(square):
            return None
        return replace(self, square=self.square + square * _UP, bounds=())

    def _known_epsilon(self, delta: float) -> float:
        """Return ε of the privacy loss distribution, or of Gaussians alone in closed form."""
        if not self.steps and not self.bounds:
            if self.square == 0 or gaussian_delta(0.0, math.sqrt(self.square)) <= delta:
                return 0.0
            # The library's search passes through logarithms of zero for the least shifts.
            with np.errstate(divide="ignore"):
                return get_epsilon_gaussian(self.square**-0.5, delta) * _UP
        room = delta - self._rounding()
        if room < delta / 2:
            return renyi_epsilon(_divergences(self), delta) * _UP
        return min(
            (_crossing(found, room) * _UP for found in _composed(self)),
            default=math.inf,
        )

    def _known_delta(self, epsilon: float) -> float:
        if not self.steps and not self.bounds:
            return gaussian_delta(epsilon, math.sqrt(self.square)) if self.square else 0.0
        found = [float(one.get_delta_for_epsilon(epsilon)) for one in _composed(self)]
        return min([*found, 1.0]) + self._rounding() if found else 1.0

    def _rounding(self) -> float:
        counts = [count for _, count in self.steps] + [count for _, count in self.bounds]
        return _ROUNDING * (1024 + sum(counts))


def gaussian_delta(epsilon: float, shift: float) -> float:
    """Return δ(ε) of N(shift, 1) against N(0, 1) (Balle and Wang 2018, Theorem 8)."""
    first = float(ndtr(shift / 2 - epsilon / shift))
    second = math.exp(epsilon + float(log_ndtr(-shift / 2 - epsilon / shift)))
    return min(max(first - second, 0.0) * _UP, 1.0)


def _crossing(found: PrivacyLossDistribution, delta: float) -> float:
    """Return the least ε at which ``found`` has ``delta``; the library walks there in Python."""

    def excess(epsilon: float) -> float:
        return math.log(max(float(found.get_delta_for_epsilon(epsilon)), 1e-300) / delta)

    if excess(0.0) <= 0:
        return 0.0
    low, high = 0.0, 1.0
    while excess(high) > 0:
        if high > 1e7:
            return math.inf
        low, high = high, 4 * high
    near = float(brentq(excess, low, high, xtol=1e-12, rtol=1e-11))
    while excess(near) > 0:
        near *= 1 + 1e-11
    return near


def _least_epsilon(bound: Bound, delta: float, high: float) -> float:
    """Return ε at which a single step has ``delta``, from above, given that ``high`` is enough."""
    low = 0.0
    if bound.delta(low) <= delta:
        return 0.0
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if bound.delta(middle) <= delta else (middle, high)
    return high


@lru_cache(maxsize=64)
def _divergences(composition: Composition) -> Array:
    """Return Rényi divergences of everything, at ``ORDERS``: looser, but free of rounding.

    The library's Rényi accountant ignores replace-one (privacy.md section 0), so nothing finite is
    said of sampled steps under that relation.
    """
    total = ORDERS * composition.square / 2
    many = len(composition.bounds) > _MAX_PROFILES
    for bound, count in composition.bounds:
        total = total + count * (bound.quick_renyi() if many else bound.renyi())
    if not composition.steps:
        return total
    if composition.relation == "replace_one":
        return np.full_like(total, math.inf)
    accountant = RdpAccountant(
        orders=ORDERS[_SAMPLED_ORDERS].tolist(),
        neighboring_relation=_NEIGHBOURS[composition.relation],
    )
    for step, count in composition.steps:
        event = PoissonSampledDpEvent(step.rate, GaussianDpEvent(step.multiplier))
        accountant.compose(event, count)
    sampled = np.full_like(total, math.inf)
    sampled[_SAMPLED_ORDERS] = accountant.rdp
    return total + sampled


@lru_cache(maxsize=64)
def _composed(composition: Composition) -> tuple[PrivacyLossDistribution, ...]:
    """Return every privacy loss distribution that dominates the composition; none if none does."""
    ways = [_own_pieces(composition)]
    if composition.bounds and (composition.steps or composition.square):
        ways.append(_renyi_pieces(composition))
    return tuple(_one_loss(composition, way) for way in ways if way is not None)


def _own_pieces(composition: Composition) -> Pieces | None:
    """Return each bound as its own profile; bounds without one together, by their divergences."""
    found: list[tuple[Profile, int]] = []
    rest: list[tuple[Bound, int]] = []
    many = len(composition.bounds) > _MAX_PROFILES
    for bound, count in composition.bounds:
        own = None if many and math.isfinite(bound.renyi()[0]) else bound.pieces(count)
        if own is None:
            rest.append((bound, count))
        else:
            found.extend(own)
    if not rest:
        return tuple(found)
    if not found and not composition.steps and not composition.square:
        # Divergences alone convert without a loss distribution, and better.
        return None
    return _with_divergences(tuple(found), tuple(rest))


def _renyi_pieces(composition: Composition) -> Pieces | None:
    """Return all bounds as one profile from their divergences."""
    if all(bound.pieces(1) is None for bound, _ in composition.bounds):
        return None
    return _with_divergences((), composition.bounds)


def _with_divergences(found: Pieces, rest: Bounds) -> Pieces | None:
    divergences = _divergences(Composition("zero_out", 0.0, (), bounds=rest))
    if not np.isfinite(divergences).any():
        return None
    return (*found, (RenyiProfile(tuple(divergences.tolist())), 1))


def _one_loss(composition: Composition, pieces: Pieces) -> PrivacyLossDistribution:
    steps = _grouped(composition.steps)
    fineness = _FINENESS if steps == composition.steps else _GROUPED_FINENESS
    spacing = _spacing(composition, steps, pieces, fineness)
    relation = composition.relation
    parts = [_one_step(relation, step, spacing).self_compose(count) for step, count in steps]
    parts += [_one_piece(profile, spacing).self_compose(count) for profile, count in pieces]
    if composition.square:
        merged = Step(1.0, sensitivity(relation) / math.sqrt(composition.square))
        parts.append(_one_step(relation, merged, spacing))
    return reduce(lambda one, other: one.compose(other), parts)


@lru_cache(maxsize=128)
def _one_piece(profile: Profile, spacing: float) -> PrivacyLossDistribution:
    return discretise(profile, spacing)


@lru_cache(maxsize=128)
def _one_step(relation: Relation, step: Step, spacing: float) -> PrivacyLossDistribution:
    if step.rate < 1 and _largest_loss(step, sensitivity(relation)) < _WIDEST:
        weights = (1 - step.rate, step.rate)
        return discretise(Mixture(weights, 1 / step.multiplier, relation == "replace_one"), spacing)
    return privacy_loss_distribution.from_gaussian_mechanism(
        step.multiplier,
        sampling_prob=step.rate,
        value_discretization_interval=spacing,
        neighboring_relation=_NEIGHBOURS[relation],
    )


def _spacing(composition: Composition, steps: Steps, pieces: Pieces, fineness: float) -> float:
    """Return the grid spacing, a power of two so that runs share their discretised steps."""
    shift = sensitivity(composition.relation)
    count = sum(n for _, n in (*steps, *pieces))
    variance = sum(n * loss_variance(step, shift) for step, n in steps)
    variance += sum(n * profile.variance for profile, n in pieces)
    spread = math.sqrt(variance + composition.square)
    reach = 12 * spread + spread**2
    widest = max(_largest_loss(step, shift) for step, _ in steps) if steps else 0.0
    widest = max([widest, *(profile.largest for profile, _ in pieces)])
    points = _MAX_STEP_POINTS // 8 if composition.coarse else _MAX_STEP_POINTS
    wanted = max(fineness * math.sqrt(variance / count), reach / _MAX_POINTS, widest / points)
    spacing = min(wanted, max(_COARSEST, reach / 4096, widest / points))
    return 2.0 ** math.floor(math.log2(spacing))


def _largest_loss(step: Step, shift: float) -> float:
    """Return about the largest loss of one step that has any mass: log(1 + q(e^x − 1))."""
    mu = shift / step.multiplier
    exponent = mu**2 / 2 + 9 * mu
    if exponent > 700:
        return max(exponent + math.log(step.rate), 1.0)
    return math.log1p(step.rate * math.expm1(exponent))


def loss_variance(step: Step, shift: float, cap: float = 2.0) -> float:
    """Return roughly the variance of one step's loss, q²(e^{μ²} − 1).

    At ``cap`` on μ² the rare large losses are left out.
    """
    square = (shift / step.multiplier) ** 2
    return min(step.rate**2 * math.expm1(min(square, cap)), square)


def _grouped(steps: Steps) -> Steps:
    """Return some hundred multipliers at most, each rounded down: an upper bound on the loss.

    Neighbouring multipliers share the least of them until the cost added by that reaches its share
    of 1 % of the whole, so that the many quiet steps of a long schedule share most.
    """
    if len(steps) <= _MAX_MULTIPLIERS:
        return steps
    share = 0.009 / _MAX_MULTIPLIERS * sum(n * _cost(step) for step, n in steps)
    groups: list[list] = []
    excess = 0.0
    for step, count in steps:
        if groups and groups[-1][0].rate == step.rate:
            excess += count * (_cost(groups[-1][0]) - _cost(step))
            if excess <= share:
                groups[-1][1] += count
                continue
        groups.append([step, count])
        excess = 0.0
    return tuple((step, count) for step, count in groups)


def _cost(step: Step) -> float:
    return loss_variance(step, 1.0, cap=700.0)
