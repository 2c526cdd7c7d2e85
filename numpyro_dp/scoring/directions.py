"""The directions of the latents that rounds ask about: those that records can tell apart."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from numpyro_dp.scoring.information import Matrix, Vector
from numpyro_dp.scoring.rounds import PriorMoments


class Directions(NamedTuple):
    """Coordinates v of what records tell of the unconstrained latents, u = origin + basis · v.

    - **origin**: shape (dim,); **basis**: shape (dim, directions).
    - **inverse**: from u less its origin to v, shape (directions, dim).
    - **silent**: prior covariance of what u is made of beside that, shape (dim, dim).
    """

    origin: Vector
    basis: Matrix
    inverse: Matrix
    silent: Matrix


def every_direction(dim: int) -> Directions:
    """v is u."""
    return Directions(np.zeros(dim), np.eye(dim), np.eye(dim), np.zeros((dim, dim)))


def heard_directions(prior: PriorMoments, silent: Matrix) -> tuple[Directions, PriorMoments]:
    """What is orthogonal, in units of the prior, to directions that no record tells; its prior.

    Information there is exactly nothing, where rounds would find noise, and take it for knowledge:
    with many coordinates it made intervals of sums' parts three times too narrow.

    :param prior: of the latents.
    :param silent: orthonormal rows in units of the prior, shape (number, dim).
    """
    dim, number = len(prior.sd), len(silent)
    if not number:
        return every_direction(dim), prior
    # The rows after the first span what these leave; coordinates that these do not touch stay.
    basis = np.linalg.qr(silent.T, mode="complete")[0][:, number:]
    untold = prior.sd[:, None] * (silent.T @ silent) * prior.sd
    found = Directions(prior.mean, prior.sd[:, None] * basis, basis.T / prior.sd, untold)
    return found, PriorMoments(np.zeros(dim - number), np.ones(dim - number))
