"""Gaussian noise on the integers: floor(Z), Z normal, drawn from an exact table.

An integer sum f plus floor(Z) is floor(f + Z): post-processing of the Gaussian mechanism, so
every Gaussian guarantee holds in the machine's own arithmetic. Float noise on a float sum has
no such guarantee (float32 normal draws take 2^23 values).
"""

import math
import warnings
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float32, Int32, UInt32

from numpyro_dp.mechanisms import alias

# Float32 holds every integer below this, so sums of non-negative integers compare exactly with it.
EXACT_FLOAT32 = 1 << 24
_LARGEST_RADIUS = 1 << 15
# The square root of 2^31, up to which squared norms are checked in uint32.
_LARGEST_RADIUS_OF_TWO = 46_340
_LARGEST_DIM = 4_000_000
_LEAST_SD = 1 << 5
_TABLE_ERROR = {8: 2.0**-49, 16: 2.0**-52}
_BITS = 128
_PI = Decimal("3.1415926535897932384626433832795028841971693993751058209749445923")


def _floored_gaussian_weights(sd: int, span: int) -> list[int]:
    """``round(2^63 P(floor|Z| = k))``, Z ~ N(0, sd²), for k < span·sd; k = 0 takes what is missing.

    128-bit fixed point: the density at the midpoints by two recurrences, times the midpoint series
    in Hermite polynomials. Integers and correctly rounded decimals only, hence the same bits on
    every platform.
    """
    context = Context(prec=60)
    one, square = 1 << _BITS, sd * sd

    def fixed(value: Decimal) -> int:
        return int(context.multiply(value, Decimal(one)).to_integral_value())

    inverse_square = context.divide(Decimal(1), Decimal(square))
    ratio = step = fixed(context.exp(-inverse_square))
    peak = context.divide(Decimal(2), context.sqrt(2 * _PI * square))
    mass = fixed(context.multiply(peak, context.exp(-inverse_square / 8)))
    shift = _BITS - alias.TOTAL_BITS
    weights = []
    for k in range(span * sd):
        t = ((2 * k + 1) ** 2 * one) // (4 * square)
        t2 = t * t >> _BITS
        t3 = t2 * t >> _BITS
        series = (t - one) // (24 * square)
        series += (t2 - 6 * t + 3 * one) // (1_920 * square**2)
        series += (t3 - 15 * t2 + 45 * t - 15 * one) // (322_560 * square**3)
        weight = mass + (mass * series >> _BITS)
        weights.append((weight + (1 << (shift - 1))) >> shift)
        mass = mass * ratio >> _BITS
        ratio = ratio * step >> _BITS
    weights[0] += (1 << alias.TOTAL_BITS) - sum(weights)
    return weights


@lru_cache(maxsize=16)
def noise_table(sd: int, span: int) -> alias.AliasTable:
    """The table of floor|Z|, Z ~ N(0, sd²), for values below ``span * sd``.

    :param sd: standard deviation in lattice units, a power of two of at least 32.
    :param span: last value in standard deviations, 8 or 16.

    **Privacy.** Total variation to the true law at most 2^-49 (span 8) or 2^-52 (span 16) a draw,
    the mass beyond the table included (it sits in cell 0).
    """
    return alias.build(_floored_gaussian_weights(sd, span))


class RecordLimit(NamedTuple):
    """What limits a record in one release: host numbers, or the current row of a schedule.

    :param squared: largest squared norm of a record's integer vector.
    :param cap: norm to which a record is shrunk before rounding, in lattice units.
    :param scale: size of a lattice unit, in units of the clipped sum.
    """

    squared: int | UInt32[Array, ""]
    cap: float | Float32[Array, ""]
    scale: float | Float32[Array, ""]


@dataclass(frozen=True)
class Lattice:
    """How a release is rounded and noised: host scalars only, fixed before data is seen.

    :param sd: standard deviation of one table draw, in lattice units.
    :param span: reach of the table in standard deviations.
    :param coarse: multiplier a of a second draw, the noise being a·k1 + k2; 0 for one draw.
    :param squared_bound: largest squared norm of a record's integer vector.
    :param cap: norm to which a record is shrunk before rounding, in lattice units.
    :param dither: whether rounding is made unbiased by a pseudo-random offset.
    :param scale: size of a lattice unit, in units of the clipped sum.
    """

    sd: int
    span: int
    coarse: int
    squared_bound: int
    cap: float
    dither: bool
    scale: float

    @property
    def bound(self) -> RecordLimit:
        """What limits a record."""
        return RecordLimit(self.squared_bound, self.cap, self.scale)

    @property
    def draws(self) -> int:
        """Table draws for each coordinate."""
        return 2 if self.coarse else 1

    @property
    def radius(self) -> int:
        """A bound on every coordinate of every record's integer vector."""
        return math.isqrt(self.squared_bound)

    @property
    def exact_rows(self) -> int:
        """How many records a float32 sum of their integers holds without rounding."""
        return (EXACT_FLOAT32 - 1) // max(self.radius, 1)

    @property
    def mean(self) -> float:
        """Mean of the floored noise, in lattice units."""
        return -(self.coarse + 1) / 2

    @property
    def tv(self) -> float:
        """Total variation of one coordinate's noise to its ideal law."""
        error = self.draws * _TABLE_ERROR[self.span]
        if self.coarse:
            # The grid of a·k1 shows through k2 by the first terms of a theta series.
            error += 2 * math.exp(-2 * (math.pi * self.sd) ** 2 / (1 + self.coarse**2))
        return error


def choose_lattice(
    *,
    dim: int,
    clip_norm: float,
    noise_multiplier: float,
    expected_batch: float,
    max_rows: int,
    fixed_rows: bool = True,
    precise: bool = False,
) -> Lattice:
    """The coarsest lattice whose rounding costs at most about 1 % of the signal.

    :param dim: coordinates of the released vector.
    :param clip_norm: bound on a record's norm, in the units of the sum.
    :param noise_multiplier: standard deviation of the noise over ``clip_norm``.
    :param expected_batch: expected number of records in a sum.
    :param max_rows: the most records a sum may hold; int32 is sized for it.
    :param fixed_rows: whether a record has the same row number in all neighbouring data sets; where
        records may be absent it has not, and a dither by row number would move with them.
    :param precise: use the table that reaches 16 standard deviations, for very long or wide runs.
    :raises ValueError: when no lattice is fine enough for this much noise in this many dimensions,
        or when the noise is too small to be told from none.
    """
    nm = noise_multiplier
    if nm < _LEAST_SD / _LARGEST_RADIUS:
        raise ValueError(
            f"noise_multiplier={nm:g} is below 2^-10, too little for any useful guarantee: raise "
            "it, or switch privacy off with noise_multiplier=0 and clip_norm=inf"
        )
    for_signal = nm * max(10 * math.sqrt(dim), 64)
    # Without dither the bias of rounding, up to half a unit a record, must drown in the noise.
    for_batch = 4 * math.sqrt(expected_batch) if fixed_rows else 16 * expected_batch
    need = max(for_signal, min(for_batch, 1 << 17), 1 << 10)
    base, span = (1 << 10, 16) if precise and need <= 1 << 17 else (1 << 12, 8)
    coarse = 1 << max(1, math.ceil(math.log2(need / base))) if need > base else 0
    if coarse > base // 8 or dim > _LARGEST_DIM:
        raise ValueError(
            f"noise_multiplier={nm:g} in {dim} dimensions is too much noise for the integer "
            "lattice (noise_multiplier·sqrt(dim) may be about 200,000 and dim 4,000,000 at most): "
            "use less noise (a larger budget, fewer steps or a smaller sampling_rate) or fewer "
            "parameters"
        )
    sd, coarse = _finest_that_fits(base, coarse, nm, max_rows, for_signal)
    dither = fixed_rows and 16 * expected_batch > sd * math.hypot(1, coarse)
    return _planned(sd, span, coarse, dither, dim, clip_norm, nm, max_rows)


def with_noise(
    lattice: Lattice, dim: int, clip_norm: float, noise_multiplier: float, max_rows: int
) -> Lattice:
    """The same tables and units of noise, for records bounded to another noise multiplier.

    :param lattice: the lattice of the largest multiplier of a schedule.
    :param dim, clip_norm, max_rows: as for ``choose_lattice``.
    :param noise_multiplier: a smaller multiplier.
    :raises ValueError: when records at this multiplier would be too long for the exact check.
    """
    total = lattice.sd * math.hypot(1, lattice.coarse)
    longest = _LARGEST_RADIUS_OF_TWO if lattice.coarse else _LARGEST_RADIUS
    if total / noise_multiplier > longest:
        raise ValueError(
            f"the noise schedule reaches from {total / longest:.3g} or more down to "
            f"{noise_multiplier:g}, too wide for one lattice: raise its least noise_multiplier"
        )
    return _planned(
        lattice.sd,
        lattice.span,
        lattice.coarse,
        lattice.dither,
        dim,
        clip_norm,
        noise_multiplier,
        max_rows,
    )


def _finest_that_fits(
    base: int, coarse: int, noise_multiplier: float, max_rows: int, for_signal: float
) -> tuple[int, int]:
    """The finest lattice whose records can be checked and whose sums cannot wrap around.

    Where both cannot be had, a lattice fine enough for the signal comes before sums that cannot
    wrap: wrapping needs nearly all records to point the same way.
    """
    chosen = None
    two = [(base, 1 << bit) for bit in range(coarse.bit_length() - 1, 0, -1)]
    one = [(1 << bit, 0) for bit in range(base.bit_length() - 1, 4, -1)]
    for sd, multiplier in two + one:
        total = sd * math.hypot(1, multiplier)
        if total / noise_multiplier > (_LARGEST_RADIUS_OF_TWO if multiplier else _LARGEST_RADIUS):
            continue
        if chosen is None or total >= for_signal:
            chosen = sd, multiplier
        if total < for_signal or total * (max_rows / noise_multiplier + 9) < 1 << 31:
            break
    return chosen or (_LEAST_SD, 0)


def _planned(
    sd: int,
    span: int,
    coarse: int,
    dither: bool,
    dim: int,
    clip_norm: float,
    noise_multiplier: float,
    max_rows: int,
) -> Lattice:
    variance = sd * sd * (coarse * coarse + 1)
    total_sd = math.sqrt(variance)
    squared_bound = int(Fraction(variance) / Fraction(noise_multiplier) ** 2)
    if squared_bound < 1.01 * EXACT_FLOAT32:
        # Just above the limit (noise_multiplier 1), a hair of radius buys the cheaper check.
        squared_bound = min(squared_bound, EXACT_FLOAT32 - 1)
    radius = math.sqrt(squared_bound)
    margin = 3.0 if radius >= 100 else 1.5
    if dither:
        cap = math.sqrt(max(squared_bound - dim / 6, 0.0)) - margin
    else:
        cap = radius - dim / (24 * radius) - margin
    if cap < 0.5 * radius:
        raise ValueError(
            f"{dim} dimensions at noise_multiplier={noise_multiplier:g} leave less than half of "
            "clip_norm after rounding: release fewer parameters at once or use less noise"
        )
    if max_rows * radius + 9 * total_sd >= 1 << 31:
        warnings.warn(
            f"a sum of {max_rows} records may wrap around in 32-bit integers if most point the "
            "same way (privacy is not affected; the sum would then be wrong): use a smaller "
            "sampling_rate where there is one",
            stacklevel=2,
        )
    return Lattice(
        sd=sd,
        span=span,
        coarse=coarse,
        squared_bound=squared_bound,
        cap=cap,
        dither=dither,
        scale=noise_multiplier * clip_norm / total_sd,
    )


def floor_noise(
    lattice: Lattice, first: UInt32[Array, " words"], second: UInt32[Array, " words"]
) -> Int32[Array, " dim"]:
    """Floored Gaussian noise in lattice units, from ``lattice.draws`` pairs a coordinate.

    :param lattice: the plan.
    :param first, second: independent uniform words, ``draws * dim`` of each.
    :returns: int32 noise that acts as floor(Z), Z of standard deviation ``sd * sqrt(coarse² + 1)``;
        its mean is ``lattice.mean``.
    """
    table = noise_table(lattice.sd, lattice.span)
    magnitude = alias.draw(table, first, second)
    # All ones when the free top bit is set: k or -1 - k, which is floor(Z) for Z of either sign.
    noise = magnitude ^ -(first >> 31).astype(jnp.int32)
    if not lattice.coarse:
        return noise
    dim = noise.shape[0] // 2
    return lattice.coarse * noise[:dim] + noise[dim:]
