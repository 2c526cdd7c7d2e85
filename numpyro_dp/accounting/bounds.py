"""What is proved about one mechanism under one relation, in every form that composes.

A bound may know a pure ε, the shift of a Gaussian that is no better, Rényi divergences, or a
profile of a block of steps. Whoever composes takes the least ε that any of them gives. Constants
here have the relation in them already; only ``handlers`` makes bounds from events.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import expit, log_ndtr, ndtr, ndtri

from numpyro_dp.accounting.acceptance import (
    batch_family,
    noisy_barker_family,
    penalty_family,
    penalty_tail,
)
from numpyro_dp.accounting.binary import (
    BLOCK,
    Family,
    block_deltas,
    family_delta,
    family_renyi,
    ranged_family,
)
from numpyro_dp.accounting.mixtures import Mixture
from numpyro_dp.accounting.profiles import Profile
from numpyro_dp.accounting.renyi import ORDERS, Array, renyi_delta

__all__ = [
    "BatchBit",
    "Bound",
    "Concentrated",
    "DirectionalBit",
    "HalfNormalLoss",
    "NoisyBarker",
    "NoisyRatio",
    "Penalty",
    "Pieces",
    "PureLoss",
    "Ranged",
    "RenyiProfile",
]

Pieces = tuple[tuple[Profile, int], ...]

_UP = 1 + 1e-12
_PIECES = 256
_FINEST, _FINE, _COARSE = 5e-4, 8e-3, 4e-2
# ε beyond this is not resolved: what is left of δ there counts as infinite loss.
_FARTHEST = 600.0


class Bound:
    """Everything proved about one step of a mechanism; what is not proved is infinite."""

    @property
    def pure(self) -> float:
        """ε at which δ is zero."""
        return math.inf

    @property
    def shift(self) -> float:
        """Shift μ of a Gaussian pair that dominates the mechanism."""
        return math.inf

    def renyi(self) -> Array:
        """Rényi divergences of both orders of neighbours, at ``ORDERS``."""
        return np.full_like(ORDERS, math.inf)

    def quick_renyi(self) -> Array:
        """Divergences as cheap as a closed form, for runs of many different bounds."""
        return self.renyi()

    @property
    def variance(self) -> float:
        """Roughly the variance of the loss of one step; only first guesses rest on it."""
        return 2 * float(self.quick_renyi()[0])

    def pieces(self, count: int) -> Pieces | None:
        """Profiles with counts that ``count`` steps come to; None when there is none."""
        return None

    def delta(self, epsilon: float) -> float:
        """δ of a single step at ``epsilon`` ≥ 0."""
        return 1.0


class Bits(Bound):
    """Mechanisms that are no worse than a family of pairs of bits."""

    def family(self, step: float) -> Family:
        """Return the pairs, more of them for a smaller ``step``."""
        raise NotImplementedError

    def renyi(self) -> Array:
        """The supremum over the pairs, or a closed form where it is smaller."""
        return _bits_renyi(self)

    def quick_renyi(self) -> Array:
        """Closed forms alone."""
        return np.minimum(self.limit(), self.pure) * _UP

    def limit(self) -> Array:
        """Return closed-form Rényi divergences that hold as well."""
        if math.isfinite(self.shift):
            return ORDERS * self.shift**2 / 2
        return np.full_like(ORDERS, math.inf)

    def divergence(self) -> Array:
        """Return the divergence of the pairs, certified at every order."""
        return family_renyi(self.family(_FINE))

    def pieces(self, count: int) -> Pieces | None:
        """Blocks of adaptive steps, and one shorter block for the rest."""
        blocks, rest = divmod(count, BLOCK)
        found = ((Block(self, BLOCK), blocks), (Block(self, rest), 1))
        return tuple(piece for piece in found if piece[0].steps and piece[1])

    def delta(self, epsilon: float) -> float:
        """The largest over the pairs."""
        return family_delta(_family(self, _FINEST), epsilon)


@lru_cache(maxsize=32)
def _family(bits: Bits, step: float) -> Family:
    return bits.family(step)


@lru_cache(maxsize=256)
def _bits_renyi(bits: Bits) -> Array:
    return np.minimum(bits.divergence(), bits.quick_renyi()) * _UP


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
        return min(spacing * min(last, len(row) - 1), _FARTHEST)

    def deltas(self, epsilons: Array) -> tuple[Array, ...]:
        """Return δ read off chords, which lie above."""
        spacing, rows = _blocks(self.bits)
        row = rows[self.steps - 1]
        points = np.minimum(spacing * np.arange(len(row)), _FARTHEST + 100)
        return (np.interp(np.expm1(epsilons), np.expm1(points), row),)


def _logistic_shift(width: float) -> float:
    """Return 2Φ⁻¹(σ(width/2)): the Gaussian no better than losses that range over ``width``."""
    return -2 * float(ndtri(expit(-width / 2))) * _UP if width < 1400 else math.inf


@dataclass(frozen=True)
class Ranged(Bits):
    """Loss that ranges over ``width`` at most: Barker bits, exponential mechanism, exact draws.

    References: Dong, Durfee and Rogers, *Optimal Differential Privacy Composition for Exponential
    Mechanisms* (2020); privacy.md sections 4 and 6.
    """

    width: float

    @property
    def pure(self) -> float:
        """The width: the loss is zero somewhere within its range."""
        return self.width

    @property
    def shift(self) -> float:
        """2Φ⁻¹(σ(width/2))."""
        return _logistic_shift(self.width)

    def family(self, step: float) -> Family:
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
        return min(lost**2 / -math.expm1(-self.width) * _UP, 1.0)


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

    def family(self, step: float) -> Family:
        """Return the one pair of randomised response."""
        return Family(np.array([self.epsilon]), np.array([self.epsilon]), closed=True)


@dataclass(frozen=True)
class NoisyBarker(Bits):
    """Noisy Barker bit with term bound ``bound`` and noise ``sd`` (privacy.md section 4)."""

    bound: float
    sd: float

    @property
    def pure(self) -> float:
        """Noise is post-processed into the bit, which stays a Barker bit's equal at worst."""
        return self.bound

    @property
    def shift(self) -> float:
        """The lesser of the Gaussian of the noise and that of the bit."""
        return min(self.bound / self.sd, _logistic_shift(self.bound))

    def family(self, step: float) -> Family:
        """Return the certified pairs over all log ratios."""
        return noisy_barker_family(self.bound, self.sd, step)

    def limit(self) -> Array:
        """The lesser of both zCDP statements."""
        return ORDERS * min(self.bound**2 / 8, (self.bound / self.sd) ** 2 / 2)


@dataclass(frozen=True)
class Penalty(Bits):
    """Penalty bit with term bound ``bound`` and noise ``sd`` (privacy.md section 4)."""

    bound: float
    sd: float

    @property
    def shift(self) -> float:
        """Δ/s: the bit is computed from the noisy log ratio."""
        return self.bound / self.sd

    def family(self, step: float) -> Family:
        """Return the certified pairs over all log ratios, with infinite loss at the end."""
        return penalty_family(self.bound, self.sd, step)

    def divergence(self) -> Array:
        """Return the supremum, beyond the grid by its analytic bound."""
        family = self.family(_FINE)
        within = Family(family.up[:-1], family.down[:-1])
        return np.maximum(family_renyi(within), penalty_tail(self.bound, self.sd))


@dataclass(frozen=True)
class BatchBit(Bits):
    """Barker bit on a Poisson mini-batch (privacy.md section 5).

    Args:
        bound: cM.
        floor: λ/N.
        replace: whether a record is replaced by another, or by a null record.
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

    def family(self, step: float) -> Family:
        """Return the certified pairs over all log ratios and terms."""
        return batch_family(self.bound, self.floor, self.replace, 1.5 * max(step, 0.015))

    def limit(self) -> Array:
        """zCDP of a Barker bit with that bound."""
        return ORDERS * self.pure**2 / 8


@dataclass(frozen=True)
class NoisyRatio(Bound):
    """Mini-batch log ratio released with Gaussian noise; it has no Rényi divergence."""

    mixture: Mixture

    @property
    def variance(self) -> float:
        """That of the mixture."""
        return self.mixture.variance

    def pieces(self, count: int) -> Pieces:
        """The mixture itself."""
        return ((self.mixture, count),)


@dataclass(frozen=True)
class DirectionalBit(Bound):
    """Barker bit whose term is bounded by ``scale``·|Z|, Z standard normal and released."""

    scale: float

    def renyi(self) -> Array:
        """−log(1 − α(α − 1)·scale²/4) / (2(α − 1)), from D_α ≤ αΔ²/8 (privacy.md section 4)."""
        share = ORDERS * (ORDERS - 1) * self.scale**2 / 4
        inside = np.minimum(share, 1.0)
        with np.errstate(divide="ignore"):
            found = -np.log1p(-inside) / (2 * (ORDERS - 1))
        return found * _UP

    def pieces(self, count: int) -> Pieces:
        """The average of Barker profiles."""
        return ((DirectionalProfile(self.scale), count),)

    def delta(self, epsilon: float) -> float:
        """The average of Barker profiles."""
        return float(DirectionalProfile(self.scale).deltas(np.array([epsilon]))[0][0])


@dataclass(frozen=True)
class DirectionalProfile(Profile):
    """E over Z of the profile of a loss that ranges over ``scale``·|Z|."""

    scale: float

    @property
    def variance(self) -> float:
        """About that of losses uniform over the range."""
        return self.scale**2 / 3

    @property
    def largest(self) -> float:
        """Where a normal variable is beyond reach."""
        return min(_CELL_EDGES[-1] * self.scale, _FARTHEST)

    def deltas(self, epsilons: Array) -> tuple[Array, ...]:
        """Return the average over cells of |Z|, each at its upper edge, where δ is largest."""
        points = np.linspace(0.0, max(self.largest, float(epsilons[-1])), 1025)
        widths = self.scale * _CELL_EDGES[1:]
        excess = np.minimum(np.subtract.outer(points, widths) / 2, 0.0)
        found = (np.expm1(excess) ** 2 / -np.expm1(-widths)) @ _CELL_MASS + _BEYOND
        return (np.interp(np.expm1(epsilons), np.expm1(points), np.minimum(found * _UP, 1.0)),)


_CELL_EDGES: Array = np.linspace(0.0, 9.8, 2001)
_CELL_MASS: Array = 2 * (ndtr(-_CELL_EDGES[:-1]) - ndtr(-_CELL_EDGES[1:]))
_BEYOND = 2 * float(ndtr(-_CELL_EDGES[-1]))


@dataclass(frozen=True)
class Concentrated(Bound):
    """ρ-zCDP, which implies no Gaussian."""

    rho: float

    def renyi(self) -> Array:
        """ρα."""
        return ORDERS * self.rho * _UP


@dataclass(frozen=True)
class HalfNormalLoss(Bound):
    """Loss dominated by ``offset`` + μ²/2 + μ|N(0, 1)|: objective perturbation.

    Args:
        offset: log(1 + β/λ).
        mu: sensitivity over noise.
        sharp: whether the closed-form profile is proved too (zero-out and add/remove).

    References: privacy.md section 9; Redberg, Koskela and Wang (2023), Theorem 3.1.
    """

    offset: float
    mu: float
    sharp: bool

    def renyi(self) -> Array:
        """offset + μ²/2 + log(2e^{(α−1)²μ²/2}Φ((α − 1)μ)) / (α − 1)."""
        excess = ORDERS - 1
        tilt = excess * self.mu
        moment = math.log(2) + tilt**2 / 2 + log_ndtr(tilt)
        return (self.offset + self.mu**2 / 2 + moment / excess) * _UP

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
        return min(self.offset + self.mu**2 / 2 + 10 * self.mu, _FARTHEST)

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


@dataclass(frozen=True)
class RenyiProfile(Profile):
    """The best profile that Rényi divergences give; never a Gaussian.

    Args:
        divergences: of everything composed, at ``ORDERS``.
    """

    divergences: tuple[float, ...]

    @property
    def variance(self) -> float:
        """Twice the divergence of order one, as for a Gaussian."""
        return 2 * self.divergences[0]

    @property
    def largest(self) -> float:
        """ε at a δ of 1e-22."""
        found = np.array(self.divergences) - math.log(1e-22) / (ORDERS - 1)
        return min(float(found.min()), _FARTHEST)

    def deltas(self, epsilons: Array) -> tuple[Array, ...]:
        """Return the least δ over the orders."""
        return (renyi_delta(np.array(self.divergences), epsilons),)
