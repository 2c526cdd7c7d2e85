"""Log ratios as integers on a grid: two 32-bit limbs, exact sums, one comparison.

A record's influence on a sum of integers is exactly its integer. A float sum has no such bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32

_MIDDLE_BITS = 12
# Cells: what exceeds the first is cut to it, and what is public to the second, so that a cut sum
# still outweighs whatever is added to it.
_MOST_OF_RECORDS = 1 << 28
_MOST_PUBLIC = 1 << 27


class Fixed(NamedTuple):
    """A number ``high · cell + low · unit``; ``low`` is non-negative, and below a cell when small.

    Sums of a few numbers may be formed limb by limb; ``FixedPointGrid.nonnegative`` carries.
    """

    high: Int32[Array, "..."]
    low: Int32[Array, "..."]


@dataclass(frozen=True)
class FixedPointGrid:
    """A grid of log ratios.

    :param unit: nats of one integer.
    :param low_bits: a cell holds ``2**low_bits`` units; at most 28.
    """

    unit: float
    low_bits: int

    @property
    def cell(self) -> float:
        """Nats of one cell."""
        return self.unit * (1 << self.low_bits)

    @property
    def mask(self) -> int:
        """The largest low limb."""
        return (1 << self.low_bits) - 1

    def split(self, integer: Int32[Array, "..."]) -> Fixed:
        """A number of units as limbs."""
        return Fixed(integer >> self.low_bits, integer & self.mask)

    def total(self, blocks: Int32[Array, "blocks ..."]) -> Fixed:
        """The exact sum over the leading axis, cut to ±2^28 cells.

        :param blocks: sums of blocks, in units; fewer than ``2**(31 - low_bits)`` and 2^19 of them.
        """
        cells = blocks >> self.low_bits
        low = jnp.sum(blocks & self.mask, axis=0)
        middle = jnp.sum(cells & ((1 << _MIDDLE_BITS) - 1), axis=0) + (low >> self.low_bits)
        high = jnp.sum(cells >> _MIDDLE_BITS, axis=0) + (middle >> _MIDDLE_BITS)
        most = _MOST_OF_RECORDS >> _MIDDLE_BITS
        within = jnp.clip(high, -most, most)
        return Fixed(
            (within << _MIDDLE_BITS) + (middle & ((1 << _MIDDLE_BITS) - 1)), low & self.mask
        )

    def public(self, nats: Float[Array, "..."]) -> Fixed:
        """A public number, to float precision; NaN is as good as −∞."""
        cells = jnp.nan_to_num(nats, nan=-jnp.inf, posinf=jnp.inf, neginf=-jnp.inf) / self.cell
        cells = jnp.clip(cells, -_MOST_PUBLIC, _MOST_PUBLIC)
        whole = jnp.floor(cells)
        low = jnp.rint((cells - whole) * (1 << self.low_bits))
        return Fixed(whole.astype(jnp.int32), low.astype(jnp.int32))

    def nonnegative(self, *terms: Fixed) -> Bool[Array, "..."]:
        """Whether the sum of at most eight numbers is at least zero, exactly."""
        low = jnp.zeros((), jnp.uint32)
        high = jnp.zeros((), jnp.int32)
        for term in terms:
            low = low + term.low.astype(jnp.uint32)
            high = high + term.high
        return high + (low >> self.low_bits).astype(jnp.int32) >= 0
