"""One float64 vector released on the integer lattice.

The vector is rounded to integers and floor(Z), Z ~ N(0, K²), is added to them: floor(q + Z) is
post-processing of the Gaussian mechanism on q. Rounding moves the vector by little more than a
unit and a half a coordinate, which the caller counts into its sensitivity.
"""

import math
from dataclasses import dataclass
from functools import partial

import jax
import numpy as np
from jaxtyping import Array, Float, Int32, Int64, Key

from numpyro_dp.mechanisms.lattice import Lattice, floor_noise
from numpyro_dp.mechanisms.random import word_pairs

# The finest that two table draws allow: the rounding of the vector then drowns in the noise.
_SD, _SPAN, _COARSE = 1 << 12, 8, 1 << 9
_UNITS = _SD * math.hypot(1, _COARSE)


@dataclass(frozen=True)
class LatticeOutput:
    """Gaussian noise of standard deviation ``noise_sd`` for vectors of ``dim`` coordinates.

    **Privacy.** The noise is exactly floored Gaussian up to ``tv``; the vector is moved by at most
    ``rounding`` in norm before it.
    """

    noise_sd: float
    dim: int

    @property
    def scale(self) -> float:
        """Size of a lattice unit."""
        return self.noise_sd / _UNITS

    @property
    def rounding(self) -> float:
        """How far rounding can move a vector, in norm, the division by ``scale`` included."""
        # Half a unit, and relative 2^-53 of at most 2^52 units each by difference and quotient.
        return 1.51 * math.sqrt(self.dim) * self.scale

    @property
    def tv(self) -> float:
        """Total variation of the noise to its ideal law."""
        return self.dim * self._lattice.tv

    @property
    def _lattice(self) -> Lattice:
        return Lattice(
            sd=_SD,
            span=_SPAN,
            coarse=_COARSE,
            squared_bound=0,
            cap=0.0,
            dither=False,
            # The unit is applied on the host: one program serves every size of the noise.
            scale=1.0,
        )

    def release(
        self,
        key: Key[Array, ""],
        value: Float[np.ndarray, " dim"],
        middle: Float[np.ndarray, " dim"] | float = 0.0,
    ) -> Float[np.ndarray, " dim"]:
        """The vector with noise; ``key`` is used up.

        :param middle: public; of a box 2^32 standard deviations wide to which the vector is cut.
        """
        noise = np.asarray(_noise(self._lattice, self.dim, key), np.int64)
        integers = self.integers(value, middle) + noise
        return middle + (integers - self._lattice.mean) * self.scale

    def integers(
        self, value: Float[np.ndarray, " dim"], middle: Float[np.ndarray, " dim"] | float = 0.0
    ) -> Int64[np.ndarray, " dim"]:
        """The vector in lattice units from ``middle``, before noise."""
        # Cutting to a box is a contraction; it keeps integers that float64 holds. Under a tight
        # prior the noise is so fine that a box round zero may not reach the prior's middle.
        units = np.clip((value - middle) / self.scale, -(2.0**52), 2.0**52)
        return np.rint(units).astype(np.int64)


@partial(jax.jit, static_argnums=(0, 1))
def _noise(lattice: Lattice, dim: int, key: Key[Array, ""]) -> Int32[Array, " dim"]:
    return floor_noise(lattice, *word_pairs(key, lattice.draws * dim))
