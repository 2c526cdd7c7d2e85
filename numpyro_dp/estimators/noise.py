"""Secret vectors in float64, each within a stated distance of an ideal draw.

An ideal draw and ours are made from one uniform number, ours from its first 128 bits: they differ
by rounding, which the estimator counts into its gradient tolerance, except in rare cases that are
counted into total variation.
"""

import math
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Key
from scipy.special import ndtri
from scipy.stats import gamma

from numpyro_dp.mechanisms.random import word_pairs

# Relative error of a quantile, a hundred times what scipy documents.
_QUANTILE = 2.0**-42
# Below this, 128 bits of a uniform number no longer determine its logarithm so precisely.
_LEAST_UNIFORM = 2.0**-70
# Chance that the norm exceeds the bound from which the solver's count was computed.
_LONG = 2.0**-66


class TiltBounds(NamedTuple):
    """What is known of a drawn vector in advance.

    - **norm**: its largest norm.
    - **error**: its largest distance from the ideal draw.
    - **tv**: the chance that either fails.
    """

    norm: float
    error: float
    tv: float


class Gaussian(NamedTuple):
    """b ~ N(0, sd²I)."""

    sd: float

    def bounds(self, dim: int) -> TiltBounds:
        """Norm, rounding and failure probability of a draw.

        ‖b‖ exceeds sd(√dim + t) with probability at most exp(−t²/2) (Gaussian concentration).
        """
        norm = self.sd * (math.sqrt(dim) + math.sqrt(-2 * math.log(_LONG)))
        return TiltBounds(norm, self.sd * math.sqrt(dim) * 10 * _QUANTILE, _rare(dim) + _LONG)

    def draw(self, key: Key[Array, ""], dim: int) -> Float[np.ndarray, " dim"]:
        """One vector; ``key`` is used up."""
        return self.sd * _normals(key, dim)


class GammaNorm(NamedTuple):
    """b with density ∝ exp(−‖b‖/scale): a direction at random, a norm of law Gamma(dim, scale)."""

    scale: float

    def bounds(self, dim: int) -> TiltBounds:
        """Norm, rounding and failure probability of a draw."""
        norm = self.scale * float(gamma.isf(_LONG, dim)) * (1 + 1e-9)
        # A direction is lost in rounding only where a normal vector is shorter than 2^-20, which
        # in two dimensions or more happens with probability 2^-41 at most; in one it is a sign.
        return TiltBounds(norm, norm * 2.0**-30, 2 * _rare(dim) + _LONG + 2.0**-41)

    def draw(self, key: Key[Array, ""], dim: int) -> Float[np.ndarray, " dim"]:
        """One vector; ``key`` is used up."""
        towards, length = jax.random.split(key)
        direction = _normals(towards, dim)
        norm = -self.scale * float(np.log(_uniforms(length, dim)[0]).sum())
        return norm / float(np.linalg.norm(direction)) * direction


# A law of the random linear term b.
Tilt = Gaussian | GammaNorm

_words = jax.jit(word_pairs, static_argnums=1)


def _rare(dim: int) -> float:
    return dim * _LEAST_UNIFORM


def _uniforms(
    key: Key[Array, ""], n: int
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """``n`` numbers in (0, 1), each right to nearly all digits however small, and ``n`` signs."""
    words = [np.asarray(half, np.float64).reshape(3, n) for half in _words(key, 3 * n)]
    (first, third, fifth), (second, fourth, _) = words
    low = (third + (fourth + 0.5) * 2.0**-32) * 2.0**-32
    uniform = (first + (second + low) * 2.0**-32) * 2.0**-32
    return np.minimum(uniform, 1 - 2.0**-53), np.where(fifth < 2.0**31, -1.0, 1.0)


def _normals(key: Key[Array, ""], n: int) -> Float[np.ndarray, " n"]:
    uniform, sign = _uniforms(key, n)
    # The lower half only: there the quantile keeps all its digits far into the tail.
    return sign * -ndtri(uniform / 2)
