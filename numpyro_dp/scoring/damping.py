"""How far a step of a round may go: shorter along what records tell little of."""

from __future__ import annotations

import math

import numpy as np
from numpy.linalg import eigh, norm
from scipy.optimize import brentq

from numpyro_dp.scoring.information import Matrix, Vector, symmetric


def damped(step: Vector, total: Matrix, sd: Vector, farthest: float) -> Vector:
    """A step no longer than so many prior sds, less along what is told little (Levenberg).

    Where parameters hang together, as a share of zeros and a rate, records tell which way and
    hardly how far: steps of several sds went to where nothing is told, and back.
    """
    if not norm(step / sd) > farthest:
        return step
    told, ways = eigh(symmetric(total * np.outer(sd, sd)))
    # The prior tells 1 of every direction; rounding may take it away beside what records tell.
    told = np.maximum(told, 1.0)
    push = ways.T @ (sd * (total @ step))

    def shortened(log: float) -> Vector:
        return push / (told + math.expm1(log))

    def beyond(log: float) -> float:
        return float(norm(shortened(log))) - farthest

    most = math.log1p(2 * float(norm(push)) / farthest)
    log = brentq(beyond, 0.0, most) if beyond(0.0) > 0 else 0.0
    return sd * (ways @ shortened(log))
