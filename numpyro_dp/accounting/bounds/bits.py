"""What is proved about one released bit, or about losses that are no worse than one.

Every mechanism here is bounded by a family of pairs of bits; ``binary`` composes them.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import erfinv, expit, ndtri
from scipy.stats import poisson

from numpyro_dp.accounting import events
from numpyro_dp.accounting.bounds.accept_families import (
    batch_family,
    last_count,
    noisy_barker_family,
    penalty_family,
    penalty_tail,
)
from numpyro_dp.accounting.bounds.binary import (
    BLOCK,
    PairFamily,
    block_deltas,
    family_delta,
    family_renyi,
    ranged_family,
)
from numpyro_dp.accounting.bounds.proved import Proved, of_bound, proves
from numpyro_dp.accounting.pld.bound import UP, Bound, Pieces
from numpyro_dp.accounting.pld.mixtures import GaussianMixture
from numpyro_dp.accounting.pld.profiles import FARTHEST, Profile
from numpyro_dp.accounting.pld.renyi import ORDERS, Array
from numpyro_dp.accounting.relation import Relation, sensitivity

_PIECES = 256
_FINEST, _FINE, _COARSE = 5e-4, 8e-3, 4e-2
# Losses beyond this are left to closed forms: chances of the rarer outcome lose their digits.
_WIDEST = 30.0
# More noise, or more draws of one record, than a table of all outcomes is made for.
_MOST_NOISE = 20.0
_MOST_DRAWS = 400.0
# Draws of one record beyond this chance are left out and charged as total variation.
_RAREST = 1e-22


class Bits(Bound, ABC):
    """Mechanisms that are no worse than a family of pairs of bits."""

    @abstractmethod
    def family(self, step: float) -> PairFamily:
        """Return the pairs, more of them for a smaller ``step``."""

    def renyi(self) -> Array:
        """The supremum over the pairs, or a closed form where it is smaller."""
        return _bits_renyi(self)

    def quick_renyi(self) -> Array:
        """Closed forms alone."""
        return np.minimum(self.limit(), self.pure) * UP

    def limit(self) -> Array:
        """Return closed-form Rényi divergences that hold as well."""
        if math.isfinite(self.shift):
            return ORDERS * self.shift**2 / 2
        return np.full_like(ORDERS, math.inf)

    def divergence(self) -> Array:
        """Return the divergence of the pairs, certified at every order."""
        return family_renyi(self.family(_FINE))

    @property
    def resolved(self) -> bool:
        """Whether a grid of losses says more than closed forms do; wide ones need none."""
        up = self.family(_COARSE).up
        return float(up[np.isfinite(up)].max()) <= _WIDEST

    def pieces(self, count: int) -> Pieces | None:
        """Blocks of adaptive steps, and one shorter block for the rest."""
        if not self.resolved:
            return None
        blocks, rest = divmod(count, BLOCK)
        found = ((Block(self, BLOCK), blocks), (Block(self, rest), 1))
        return tuple(piece for piece in found if piece[0].steps and piece[1])

    def delta(self, epsilon: float) -> float:
        """The largest over the pairs."""
        return family_delta(_family(self, _FINEST), epsilon)


@lru_cache(maxsize=32)
def _family(bits: Bits, step: float) -> PairFamily:
    return bits.family(step)


@lru_cache(maxsize=256)
def _bits_renyi(bits: Bits) -> Array:
    return np.minimum(bits.divergence(), bits.quick_renyi()) * UP


@lru_cache(maxsize=128)
def _blocks(bits: Bits) -> tuple[float, Array]:
    return block_deltas(bits.family(_COARSE), BLOCK)


@dataclass(frozen=True)
class Block(Profile):
    """The profile of ``steps`` adaptive steps of a bit."""

    bits: Bits
    steps: int

    @property
    def variance(self) -> float:
        """Variance of the loss of all the steps."""
        return self.steps * (8 * _blocks(self.bits)[0]) ** 2

    @property
    def largest(self) -> float:
        """Where the grid of the block ends, or is negligible."""
        spacing, rows = _blocks(self.bits)
        row = rows[self.steps - 1]
        last = int(np.searchsorted(-row, -1e-22))
        return min(spacing * min(last, len(row) - 1), FARTHEST)

    def deltas(self, epsilons: Array) -> tuple[Array, ...]:
        """Return δ read off chords, which lie above."""
        spacing, rows = _blocks(self.bits)
        row = rows[self.steps - 1]
        points = np.minimum(spacing * np.arange(len(row)), FARTHEST + 100)
        return (np.interp(np.expm1(epsilons), np.expm1(points), row),)


def _logistic_shift(width: float) -> float:
    """Return 2Φ⁻¹(σ(width/2)): the Gaussian no better than losses that range over ``width``."""
    if width >= 1400:
        return math.inf
    if width < 1:
        # The same in digits that a small width keeps.
        return 2 * math.sqrt(2) * float(erfinv(math.tanh(width / 4))) * UP
    return -2 * float(ndtri(expit(-width / 2))) * UP


@dataclass(frozen=True)
class Ranged(Bits):
    """Loss that ranges over ``width`` at most: Barker bits, exponential mechanism, exact draws.

    **References.** Dong, Durfee and Rogers, *Optimal Differential Privacy Composition for
    Exponential Mechanisms* (2020); *Events* (docs/reference/events.md).
    """

    width: float
    exact = True

    @property
    def pure(self) -> float:
        """The width: the loss is zero somewhere within its range."""
        return self.width

    @property
    def shift(self) -> float:
        """2Φ⁻¹(σ(width/2))."""
        return _logistic_shift(self.width)

    def family(self, step: float) -> PairFamily:
        """Return pairs whose losses differ by the width."""
        return ranged_family(self.width, _PIECES)

    def limit(self) -> Array:
        """zCDP with ρ = width²/8."""
        return ORDERS * self.width**2 / 8

    def delta(self, epsilon: float) -> float:
        """(1 − e^{(ε − w)/2})² / (1 − e^{−w}) below w."""
        if epsilon >= self.width:
            return 0.0
        lost = math.expm1((epsilon - self.width) / 2)
        return min(lost**2 / -math.expm1(-self.width) * UP, 1.0)


@dataclass(frozen=True)
class PureLoss(Bits):
    """Loss of at most ``epsilon`` in absolute value, nothing more known."""

    epsilon: float

    @property
    def pure(self) -> float:
        """ε."""
        return self.epsilon

    @property
    def shift(self) -> float:
        """2Φ⁻¹(σ(ε)): randomised response is the worst case."""
        return _logistic_shift(2 * self.epsilon)

    def family(self, step: float) -> PairFamily:
        """Return the one pair of randomised response."""
        return PairFamily(np.array([self.epsilon]), np.array([self.epsilon]), closed=True)


@dataclass(frozen=True)
class NoisyBarkerLoss(Bits):
    """Noisy Barker bit with term bound ``bound`` and noise ``sd``, as in *Events*."""

    bound: float
    sd: float
    exact = True

    @property
    def pure(self) -> float:
        """Noise is post-processed into the bit, which stays a Barker bit's equal at worst."""
        return self.bound

    @property
    def shift(self) -> float:
        """The lesser of the Gaussian of the noise and that of the bit."""
        return min(self.bound / self.sd, _logistic_shift(self.bound))

    @property
    def resolved(self) -> bool:
        """Not with noise so large that tables of the bit would be."""
        return self.sd <= _MOST_NOISE and self.bound <= _WIDEST

    def divergence(self) -> Array:
        """Return the divergence of the pairs, or closed forms where those are not resolved."""
        return super().divergence() if self.resolved else self.quick_renyi()

    def delta(self, epsilon: float) -> float:
        """The largest over the pairs, or of a Barker bit with the same bound."""
        barker = Ranged(self.bound).delta(epsilon)
        return min(super().delta(epsilon), barker) if self.resolved else barker

    def family(self, step: float) -> PairFamily:
        """Return the certified pairs over all log ratios."""
        return noisy_barker_family(self.bound, self.sd, step)

    def limit(self) -> Array:
        """The lesser of both zCDP statements."""
        return ORDERS * min(self.bound**2 / 8, (self.bound / self.sd) ** 2 / 2)


@dataclass(frozen=True)
class PenaltyLoss(Bits):
    """Penalty bit with term bound ``bound`` and noise ``sd``, as in *Events*."""

    bound: float
    sd: float

    @property
    def shift(self) -> float:
        """Δ/s: the bit is computed from the noisy log ratio."""
        return self.bound / self.sd

    def family(self, step: float) -> PairFamily:
        """Return the certified pairs over all log ratios, with infinite loss at the end."""
        return penalty_family(self.bound, self.sd, step)

    def divergence(self) -> Array:
        """Return the supremum, beyond the grid by its analytic bound."""
        family = self.family(_FINE)
        within = PairFamily(family.up[:-1], family.down[:-1])
        return np.maximum(family_renyi(within), penalty_tail(self.bound, self.sd))


@dataclass(frozen=True)
class BatchBit(Bits):
    """Barker bit on a Poisson mini-batch, as in *Events*.

    :param bound: cM.
    :param floor: λ/N.
    :param replace: whether a record is replaced by another, or by a null record.
    """

    bound: float
    floor: float
    replace: bool

    @property
    def pure(self) -> float:
        """cM(1 + NcM/λ), or cM(2 + NcM/λ) for a replaced record."""
        return self.bound * ((2 if self.replace else 1) + self.bound / self.floor)

    @property
    def shift(self) -> float:
        """The Gaussian of a Barker bit with that bound."""
        return _logistic_shift(self.pure)

    def family(self, step: float) -> PairFamily:
        """Return the certified pairs over all log ratios and terms, or those of the width alone."""
        if self.pure > _WIDEST or self.floor > _MOST_DRAWS:
            return ranged_family(self.pure, _PIECES)
        return batch_family(self.bound, self.floor, self.replace, 1.5 * max(step, 0.015))

    def limit(self) -> Array:
        """zCDP of a Barker bit with that bound."""
        return ORDERS * self.pure**2 / 8


@dataclass(frozen=True)
class NoisyRatio(Bound):
    """Mini-batch log ratio released with Gaussian noise; it has no Rényi divergence."""

    mixture: GaussianMixture

    @property
    def variance(self) -> float:
        """That of the mixture."""
        return self.mixture.variance

    def pieces(self, count: int) -> Pieces:
        """The mixture itself."""
        return ((self.mixture, count),)


def _ranged(width: float, relation: Relation) -> Proved:
    return Proved() if width == 0 else of_bound(Ranged(sensitivity(relation) * width))


@proves(events.BarkerBit)
def _barker(event: events.BarkerBit, relation: Relation) -> Proved:
    return _ranged(event.log_ratio_bound, relation)


@proves(events.MultiCandidateBit)
def _multi_candidate(event: events.MultiCandidateBit, relation: Relation) -> Proved:
    return _ranged(event.log_ratio_range, relation)


@proves(events.PosteriorDraw)
def _posterior(event: events.PosteriorDraw, relation: Relation) -> Proved:
    return _ranged(event.log_likelihood_range, relation)


@proves(events.NoisyBarkerBit)
def _noisy_barker(event: events.NoisyBarkerBit, relation: Relation) -> Proved:
    if event.log_ratio_bound == 0:
        return Proved()
    return of_bound(NoisyBarkerLoss(sensitivity(relation) * event.log_ratio_bound, event.noise_sd))


@proves(events.PenaltyBit)
def _penalty(event: events.PenaltyBit, relation: Relation) -> Proved:
    if event.log_ratio_bound == 0:
        return Proved()
    return of_bound(PenaltyLoss(sensitivity(relation) * event.log_ratio_bound, event.noise_sd))


@proves(events.MinibatchBit)
def _minibatch(event: events.MinibatchBit, relation: Relation) -> Proved:
    if relation == "add_remove":
        raise ValueError(
            "mini-batch accept bits have no statement under add_remove: their rates use the number "
            "of records, which is private there. Use zero_out or replace_one"
        )
    bound = event.lipschitz * event.max_move
    draws = event.expected_batch / event.num_records
    # A difference of close numbers, less than its rounding.
    floor = draws - bound - 2.0**-50 * draws
    replaced = relation == "replace_one"
    if event.acceptance == "barker":
        return of_bound(BatchBit(bound, floor, replaced))
    mean = floor + bound
    if mean > _MOST_DRAWS:
        raise ValueError(
            f"a mini-batch that draws every record {mean:.3g} times on average is not stated: "
            "lower expected_batch, or use the full batch (PenaltyBit, NoisyBarkerBit)"
        )
    last = last_count(mean, _RAREST)
    weights = poisson.pmf(range(last + 1), mean)
    shift = math.log1p(bound / floor) / event.noise_sd
    # What is left out goes with no draw at all; total variation pays for it.
    weights[0] += max(1.0 - float(weights.sum()), 0.0)
    mixture = GaussianMixture(tuple(weights.tolist()), shift, replaced)
    return Proved(bounds={NoisyRatio(mixture): 1}, distances=(float(poisson.sf(last, mean)),))
