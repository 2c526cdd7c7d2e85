"""From Rényi divergences to ε and δ: the one conversion that everything here uses.

Mironov, *Rényi Differential Privacy* (2017), composes divergences by adding them; Canonne, Kamath
and Steinke, *The Discrete Gaussian for Differential Privacy* (2020), Proposition 12, turn the sum
into δ = e^{(α − 1)(D − ε)} (1 − 1/α)^α / (α − 1). Every order gives a valid bound, so a grid of
orders costs tightness only.
"""

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]

# Neighbours differ by 3 %, which costs about 1e-4 of ε.
ORDERS: Array = 1.0 + np.geomspace(1e-2, 1e6, 601)
_LOG_WEIGHT: Array = np.log1p(-1 / ORDERS) * ORDERS - np.log(ORDERS - 1)


def renyi_epsilon(divergences: Array, delta: float) -> float:
    """Return the least ε at ``delta`` that divergences at ``ORDERS`` certify; infinite if none."""
    found = divergences + (_LOG_WEIGHT - math.log(delta)) / (ORDERS - 1)
    return max(float(found.min()), 0.0)


def renyi_delta(divergences: Array, epsilons: Array) -> Array:
    """Return, for each ε ≥ 0, the least δ that divergences at ``ORDERS`` certify."""
    finite = np.isfinite(divergences)
    if not finite.any():
        return np.ones_like(epsilons)
    slope = ORDERS[finite] - 1
    start = slope * divergences[finite] + _LOG_WEIGHT[finite]
    blocks = np.array_split(epsilons, max(1, len(epsilons) // 512))
    least = [(start - np.multiply.outer(block, slope)).min(axis=1) for block in blocks]
    return np.exp(np.minimum(np.concatenate(least), 0.0))
