"""One privacy loss distribution for a composition of steps, by dp-accounting.

Every step is discretised pessimistically on one grid and composed by the library's convolution.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, reduce

import numpy as np
from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent
from dp_accounting.gaussian_mechanism import get_epsilon_gaussian
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.pld.pld_pmf import PLDPmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from dp_accounting.rdp import RdpAccountant
from scipy.optimize import brentq
from scipy.signal import lfilter

from numpyro_dp.accounting.pld.bound import Bound, Pieces, RenyiProfile
from numpyro_dp.accounting.pld.gaussian import gaussian_delta, gaussian_deltas
from numpyro_dp.accounting.pld.grid import Step, Steps, grouped, largest_loss, spacing_of
from numpyro_dp.accounting.pld.mixtures import GaussianMixture
from numpyro_dp.accounting.pld.profiles import Profile, discretise
from numpyro_dp.accounting.pld.renyi import ORDERS, Array, renyi_delta, renyi_epsilon
from numpyro_dp.accounting.relation import Relation, sensitivity

_NEIGHBOURS: Mapping[Relation, NeighboringRelation] = {
    "zero_out": NeighboringRelation.REPLACE_SPECIAL,
    "replace_one": NeighboringRelation.REPLACE_ONE,
    "add_remove": NeighboringRelation.ADD_OR_REMOVE_ONE,
}
# Rounding that the library's Fourier convolution leaves in δ, for each step: about 2^-53 a step
# when errors add up, ten times what is seen against exact values.
_ROUNDING = 2.0**-53
# More different bounds than this are composed by closed-form divergences.
_MAX_PROFILES = 24
# The library's Rényi divergences of sampled steps take time that grows with the order.
_SAMPLED_ORDERS = np.flatnonzero((ORDERS > 1.05) & (ORDERS <= 512))[::3]
# Beyond this e^ε leaves the floating-point range of our own profiles.
_WIDEST = 500.0
# Many δ at once are not read beyond this ε, where e^ε is still a number.
_FARTHEST_READ = 320.0
# Closed forms are right to about twelve digits; rounding must not point downwards.
_UP = 1 + 1e-9
_discretised = lru_cache(maxsize=128)(discretise)


Bounds = tuple[tuple[Bound, int], ...]


@dataclass(frozen=True)
class Composition:
    """Everything that a run released, as one curve.

    :param relation: neighbouring relation.
    :param square: Σ μ² over the Gaussian releases without sampling, μ the sensitivity over the
        noise; they compose in closed form.
    :param steps: Poisson-subsampled steps with their counts, sorted.
    :param coarse: use fewer points for the widest losses: quicker, and ε a little larger still.
    :param bounds: mechanisms of other kinds with their counts.

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
        with within_reach():
            return _epsilon(self, delta)

    def _least_of_all(self, delta: float) -> float:
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
        with within_reach():
            return self._least_delta(epsilon)

    def _least_delta(self, epsilon: float) -> float:
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

    def deltas(self, epsilons: Array, enough: float = 0.0) -> Array:
        """Return an upper bound on δ at each of increasing ``epsilons`` ≥ 0, as ``delta`` does.

        Nobody asks how far below ``enough`` it lies: what takes long to say so is left out.
        """
        with within_reach():
            return self._least_deltas(epsilons, enough)

    def _least_deltas(self, epsilons: Array, enough: float) -> Array:
        known = self._known_deltas(epsilons, enough)
        if not self.bounds:
            return known
        found = [known, np.ones_like(epsilons)]
        gaussian = self._as_gaussians()
        if gaussian is not None:
            found.append(gaussian.deltas(epsilons, enough))
        if not self.steps:
            found.append(renyi_delta(_divergences(self), epsilons) * _UP)
        if self._alone is not None:
            found.append(np.array([self._alone.delta(float(epsilon)) for epsilon in epsilons]))
        return np.where(epsilons >= self._pure(), 0.0, np.min(found, axis=0))

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
        rounding = self._rounding()
        least = min([*found, 1.0]) + rounding if found else 1.0
        if least > 2 * rounding:
            return least
        # As for ε: where rounding rules, divergences say more.
        return min(least, float(renyi_delta(_divergences(self), np.array([epsilon]))[0]) * _UP)

    def _known_deltas(self, epsilons: Array, enough: float) -> Array:
        if not self.steps and not self.bounds:
            return gaussian_deltas(epsilons, math.sqrt(self.square) * _UP)
        found = [np.ones_like(epsilons), *(_read_off(one, epsilons) for one in _composed(self))]
        rounding = self._rounding()
        least = np.min(found, axis=0) + rounding
        if enough > 2 * rounding or (least > 2 * rounding).all():
            return least
        return np.minimum(least, renyi_delta(_divergences(self), epsilons) * _UP)

    def _rounding(self) -> float:
        counts = [count for _, count in self.steps] + [count for _, count in self.bounds]
        return _ROUNDING * (1024 + sum(counts))


@contextmanager
def within_reach() -> Generator[None]:
    """Refuse what floating-point numbers cannot account for, in words that name the cause."""
    try:
        yield
    except (OverflowError, ZeroDivisionError, FloatingPointError) as error:
        raise ValueError(
            "these events cannot be accounted for: their constants are too large or too small for "
            f"floating-point numbers ({error}). Use constants nearer to 1, or more noise"
        ) from error


@lru_cache(maxsize=256)
def _epsilon(composition: Composition, delta: float) -> float:
    """Reports and refusals ask for the same figures again and again."""
    return composition._least_of_all(delta)


def _read_off(found: PrivacyLossDistribution, epsilons: Array) -> Array:
    """Return δ of ``found`` at many ε ≥ 0 at once; one by one, the library takes seconds."""
    rows = [_on_grid(pmf) for pmf in {found._pmf_remove, found._pmf_add}]
    points = np.expm1(epsilons)
    # Between two losses of the grid δ is a chord in e^ε.
    return np.max([np.interp(points, losses, deltas) for losses, deltas in rows], axis=0) * _UP


def _on_grid(pmf: PLDPmf) -> tuple[Array, Array]:
    """Return e^loss − 1 and δ there, at every loss of the grid from 0 on.

    With A the mass beyond a loss and h the spacing, δ = (1 − e^{−h})·A + e^{−h}·(δ one loss
    further): sums of positive numbers, so that no digits cancel.
    """
    dense = pmf.to_dense_pmf()
    spacing, low = dense._discretization, dense._lower_loss
    masses = np.concatenate([np.zeros(max(low, 0)), dense._probs[max(-low, 0) :], [0.0]])
    # What is lost beyond counts as lost altogether.
    near, far = np.split(masses, [max(int(_FARTHEST_READ / spacing), 1)])
    beyond = np.concatenate([[0.0], np.cumsum(near[:0:-1])])
    falling = lfilter([-math.expm1(-spacing)], [1.0, -math.exp(-spacing)], beyond)
    losses = np.expm1(spacing * np.arange(len(near)))
    return losses, falling[::-1] + (dense._infinity_mass + far.sum())


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

    The library's Rényi accountant ignores replace-one (docs/reference/events.md), so nothing finite
    is said of sampled steps under that relation.
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
    return tuple(
        _one_loss(composition, way) for way in ways if way is not None and not _all_lost(way)
    )


def _all_lost(pieces: Pieces) -> bool:
    """Return whether so much of the loss lies beyond every grid that no δ is left to bound."""
    total = 0.0
    for profile, count in pieces:
        # δ falls in ε; far out its computed values may rise by rounding.
        points = np.linspace(0.0, profile.largest, 65)
        total += count * max(float(row.min()) for row in profile.deltas(points))
    return total >= 1


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
    relation = composition.relation
    steps = grouped(composition.steps)
    spacing = spacing_of(
        steps,
        pieces,
        sensitivity(relation),
        composition.square,
        merged=steps != composition.steps,
        coarse=composition.coarse,
    )
    parts = [_one_step(relation, step, spacing).self_compose(count) for step, count in steps]
    parts += [_discretised(profile, spacing).self_compose(count) for profile, count in pieces]
    if composition.square:
        merged = Step(1.0, sensitivity(relation) / math.sqrt(composition.square))
        parts.append(_one_step(relation, merged, spacing))
    return reduce(lambda one, other: one.compose(other), parts)


@lru_cache(maxsize=128)
def _one_step(relation: Relation, step: Step, spacing: float) -> PrivacyLossDistribution:
    if step.rate < 1 and largest_loss(step, sensitivity(relation)) < _WIDEST:
        weights = (1 - step.rate, step.rate)
        return discretise(
            GaussianMixture(weights, 1 / step.multiplier, relation == "replace_one"), spacing
        )
    return privacy_loss_distribution.from_gaussian_mechanism(
        step.multiplier,
        sampling_prob=step.rate,
        value_discretization_interval=spacing,
        neighboring_relation=_NEIGHBOURS[relation],
    )
