"""Acceptance tests: from a log ratio, private up to one bound for each record, to one accept bit.

A test is the grid on which it decides, the largest integer that a record may contribute, and the
noise. Each decides by ``log ratio + public terms + noise ≥ 0`` in integers, so that a record's
influence is exactly its integer and the law of the noise is exactly a table's.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Self

from jax import random
from jaxtyping import Array, Bool, Float, Key

from numpyro_dp import _validate
from numpyro_dp.accounting import events
from numpyro_dp.mechanisms.accept.fixed_point import Fixed, FixedPointGrid
from numpyro_dp.mechanisms.accept.tables import TABLE_TV, exponential, logistic
from numpyro_dp.mechanisms.lattice import Lattice, choose_lattice, floor_noise
from numpyro_dp.mechanisms.random import word_pairs

_LEAST_CELL = 2.0**-10
_FINEST_UNIT = 2.0**-28
_MOST_BOUND = 2.0**10
_MOST_NOISE = 64.0
# So many records that the lattice is as fine as its table allows.
_AS_FINE_AS_CAN_BE = 1e10


@dataclass(frozen=True)
class AcceptanceTest(ABC):
    """One way to accept; frozen, fixed before any data is seen.

    :param grid: where log ratios live.
    :param largest: the largest absolute value, in units, of one record's integer.
    """

    grid: FixedPointGrid
    largest: int

    @property
    def tv(self) -> float:
        """Total variation of one decision to the ideal one."""
        return TABLE_TV

    @abstractmethod
    def threshold(self, key: Key[Array, ""]) -> Fixed:
        """What is added to a log ratio before its sign decides, drawn from an exact table."""

    def decide(
        self, key: Key[Array, ""], log_ratio: Fixed, public: Float[Array, ""]
    ) -> Bool[Array, ""]:
        """Accept or not; ``log_ratio`` is the exact sum over records, ``public`` the rest."""
        return self.grid.nonnegative(log_ratio, self.grid.public(public), self.threshold(key))

    @abstractmethod
    def event(self, bound: float) -> events.DpEvent:
        """What one decision costs whose records are bounded by ``bound`` nats."""

    @abstractmethod
    def rho(self, largest: int) -> float:
        """zCDP of one decision whose records are bounded by ``largest`` units."""


def _width_bits(unit: float) -> int:
    """Bits of a cell whose width is between 2^-10 and 2^-9 nats."""
    return max(0, math.ceil(math.log2(_LEAST_CELL / unit)))


def fine_grid(bound: float, resolution: int) -> tuple[FixedPointGrid, int]:
    """A grid on which a Barker decision with records up to ``largest`` units costs ``bound``.

    :param bound: largest term of one record, in nats, in (0, 1024].
    :param resolution: integers that a record's term should span, at most.
    :returns: The grid, and the largest integer of a record: e^w · largest · unit ≤ bound, w the
        width of a cell, which pays for the straight pieces of the logistic table.
    :raises ValueError: for bounds outside the range.
    """
    if not 0 < bound <= _MOST_BOUND:
        raise ValueError(
            f"the bound on one record's log ratio must lie in (0, {_MOST_BOUND:g}] nats, got "
            f"{bound:g}: shorten the moves or give a smaller record bound"
        )
    resolution = max(resolution, math.ceil(bound / _LEAST_CELL))
    # Finer units than this would buy nothing, and wider sums.
    resolution = min(resolution, math.ceil(bound / _FINEST_UNIT))
    low_bits = _width_bits(bound / resolution)
    unit = bound / resolution
    return FixedPointGrid(
        unit * math.exp(-unit * (1 << low_bits)) * (1 - 1e-12), low_bits
    ), resolution


@dataclass(frozen=True)
class Barker(AcceptanceTest):
    """Accept with probability σ(l), exactly, from a logistic table.

    Made by :meth:`create`.

    **Privacy.** With records' integers at most ``largest``, the log odds of the bit move by at most
    the bound it was made for when one record becomes null: ``BarkerBit(bound)``.
    """

    @classmethod
    def create(cls, bound: float, resolution: int = 1 << 17) -> Barker:
        """A test for records bounded by ``bound`` nats."""
        return cls(*fine_grid(bound, resolution))

    def threshold(self, key: Key[Array, ""]) -> Fixed:
        return logistic(self.grid, key)

    def event(self, bound: float) -> events.DpEvent:
        return bit_event("barker", bound, None)

    def rho(self, largest: int) -> float:
        shift = largest * self.grid.unit * math.exp(self.grid.cell)
        return shift**2 / 8 * (1 + 1e-9)


@dataclass(frozen=True)
class Metropolis(AcceptanceTest):
    """Accept with probability min(1, e^l): no noise and no privacy, for tests and comparison.

    **Privacy.** None. A rejection is impossible for some data and possible for their neighbours.
    """

    def threshold(self, key: Key[Array, ""]) -> Fixed:
        return exponential(self.grid, key)

    def event(self, bound: float) -> events.DpEvent:
        return events.NonPrivateDpEvent()

    def rho(self, largest: int) -> float:
        return math.inf


@dataclass(frozen=True)
class _Noised(AcceptanceTest):
    """Gaussian noise on the integers of the log ratio, before a rule that is post-processing."""

    noise_sd: float
    lattice: Lattice

    @classmethod
    def create(cls, bound: float, noise_sd: float) -> Self:
        """A test for records bounded by ``bound`` nats, with noise of ``noise_sd`` nats."""
        _validate.positive("noise_scale", noise_sd)
        if noise_sd > _MOST_NOISE:
            raise ValueError(
                f"noise_scale={noise_sd:g} nats would hardly ever accept: give at most "
                f"{_MOST_NOISE:g}"
            )
        lattice = choose_lattice(
            dim=1,
            clip_norm=bound,
            noise_multiplier=noise_sd / bound,
            expected_batch=_AS_FINE_AS_CAN_BE,
            max_rows=1,
            precise=True,
        )
        total_sd = lattice.sd * math.hypot(1, lattice.coarse)
        # A hair more noise, so that penalty and floor together are a whole number of units.
        noise_sd = (2 * math.ceil(noise_sd * total_sd / 2) + 1) / total_sd
        unit = noise_sd / total_sd
        grid = FixedPointGrid(unit, _width_bits(unit))
        # Twice the error of a linear interpolation between exact values, see the test's events.
        usable = bound * (1 - 1e-9) - grid.cell**2 / 3
        largest = min(lattice.radius, math.floor(usable / unit))
        if largest < 1:
            raise ValueError(
                f"a bound of {bound:g} nats on one record is too small for noise_scale="
                f"{noise_sd:g}: use less noise, or acceptance='barker', which needs none"
            )
        return cls(grid, largest, noise_sd, lattice)

    @property
    def tv(self) -> float:
        """Total variation of one decision: the Gaussian's and the threshold's tables."""
        return self.lattice.tv + TABLE_TV

    def rho(self, largest: int) -> float:
        """zCDP of the noisy log ratio itself."""
        return (largest * self.grid.unit / self.noise_sd) ** 2 / 2 * (1 + 1e-9)

    def _noise(self, key: Key[Array, ""]) -> Fixed:
        """Floored noise of mean −s²/2."""
        words = word_pairs(key, self.lattice.draws)
        shift = -(self.noise_sd**2) / 2 / self.grid.unit - self.lattice.mean
        return self.grid.split(floor_noise(self.lattice, *words)[0] + round(shift))

    def decide(
        self, key: Key[Array, ""], log_ratio: Fixed, public: Float[Array, ""]
    ) -> Bool[Array, ""]:
        noise_key, threshold_key = random.split(key)
        added = self.grid.public(public), self._noise(noise_key), self.threshold(threshold_key)
        return self.grid.nonnegative(log_ratio, *added)


@dataclass(frozen=True)
class Penalty(_Noised):
    """Accept with probability E min(1, e^{l + N(−s²/2, s²)}).

    **Privacy.** The noisy log ratio is a Gaussian release of shift bound/s and the rest
    post-processing. The bit itself is that of the rule at a log ratio off by at most w²/8, w the
    width of a cell, for which the largest integer leaves room: ``PenaltyBit(bound, s)``.
    """

    def threshold(self, key: Key[Array, ""]) -> Fixed:
        return exponential(self.grid, key)

    def event(self, bound: float) -> events.DpEvent:
        return bit_event("penalty", bound, self.noise_sd)


@dataclass(frozen=True)
class NoisyBarker(_Noised):
    """Accept with probability E σ(l + N(−s²/2, s²)).

    **Privacy.** As for the penalty rule, and never more than a Barker bit: ``NoisyBarkerBit(bound,
    s)``.
    """

    def threshold(self, key: Key[Array, ""]) -> Fixed:
        return logistic(self.grid, key)

    def event(self, bound: float) -> events.DpEvent:
        return bit_event("noisy_barker", bound, self.noise_sd)


def bit_event(rule: str, bound: float, noise_sd: float | None) -> events.DpEvent:
    """What one decision by ``rule`` costs whose records are bounded by ``bound`` nats."""
    if rule == "barker":
        return events.BarkerBit(bound)
    if not noise_sd:
        return events.NonPrivateDpEvent()
    return {"penalty": events.PenaltyBit, "noisy_barker": events.NoisyBarkerBit}[rule](
        bound, noise_sd
    )


def acceptance_test(
    rule: str, bound: float, noise_sd: float | None, resolution: int = 1 << 17
) -> AcceptanceTest:
    """The test called ``rule`` for records bounded by ``bound`` nats.

    :param rule: ``"barker"``, ``"noisy_barker"`` or ``"penalty"``.
    :param bound: largest term of one record, in nats.
    :param noise_sd: standard deviation of the noise in nats; ``None`` for ``"barker"``; 0 with
        ``"penalty"`` is the Metropolis rule, which is not private.
    :param resolution: integers that a record's term spans, for ``"barker"``.
    """
    if rule == "barker":
        return Barker.create(bound, resolution)
    if rule == "penalty" and noise_sd == 0:
        return Metropolis(*fine_grid(bound, resolution))
    if noise_sd is None:
        raise ValueError(f"acceptance={rule!r} needs noise: give noise_scale=, in nats")
    return {"penalty": Penalty, "noisy_barker": NoisyBarker}[rule].create(bound, noise_sd)
