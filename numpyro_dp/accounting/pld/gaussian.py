"""The profile of one Gaussian against another, in closed form."""

import math

import numpy as np
from scipy.special import log_ndtr, ndtr

from numpyro_dp.accounting.pld.renyi import Array

# Closed forms are right to about twelve digits; rounding must not point downwards.
_UP = 1 + 1e-9


def gaussian_delta(epsilon: float, shift: float) -> float:
    """Return δ(ε) of N(shift, 1) against N(0, 1) (Balle and Wang 2018, Theorem 8)."""
    first = float(ndtr(shift / 2 - epsilon / shift))
    second = math.exp(epsilon + float(log_ndtr(-shift / 2 - epsilon / shift)))
    return min(max(first - second, 0.0) * _UP, 1.0)


def gaussian_deltas(epsilons: Array, shift: float) -> Array:
    """Return ``gaussian_delta`` at each of ``epsilons``."""
    if shift == 0:
        return np.zeros_like(epsilons)
    first = ndtr(shift / 2 - epsilons / shift)
    second = np.exp(epsilons + log_ndtr(-shift / 2 - epsilons / shift))
    return np.clip((first - second) * _UP + 1e-15 * first * (1 + epsilons), 0.0, 1.0)
