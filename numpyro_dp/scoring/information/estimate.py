"""The information matrix that all rounds together tell, with its noise."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.linalg import norm

from numpyro_dp.scoring.information.entries import Pattern, pattern
from numpyro_dp.scoring.information.matrices import Matrix, Vector, column, symmetric, traces

# A round older by one tells this much less of the information.
_AGEING = 0.7


class Estimate(NamedTuple):
    """Noisy information in the last round's coordinates.

    - **matrix**: the estimate.
    - **metrics**, **heeded**: of each round, shape (rounds, dim, dim), from which the noise of a
      direction follows; **noise**: its squared noise as it counts; **counts**: how much it counts,
      ``None`` where the estimate is no quotient.
    - **told**: which entries may be told.
    """

    matrix: Matrix
    metrics: np.ndarray
    heeded: np.ndarray
    noise: Vector
    counts: Vector | None
    told: Pattern

    @property
    def typical_sd(self) -> float:
        """Noise of an entry."""
        dim = len(self.matrix)
        return float(self._sds(traces(self.metrics) / dim, traces(self.heeded) / dim))

    def sds(self, directions: Matrix) -> Vector:
        """Noise of the information in the directions of the columns, of length 1."""
        along, heeded = (
            np.sum((each @ directions) * directions, axis=1) for each in (self.metrics, self.heeded)
        )
        return self._sds(along, heeded) * np.sqrt(self.told.share(directions))

    def _sds(self, along: np.ndarray, heeded: np.ndarray) -> Any:
        sds = np.sqrt(self.noise @ (along * heeded))
        return sds if self.counts is None else sds / (self.counts @ along**2)

    def between(self, one: Vector, others: Matrix) -> Vector:
        """Noise of what a direction and each of the columns, of length 1, have in common."""
        sums = np.stack([one[:, None] + others, one[:, None] - others])
        squares = np.sum(sums**2, axis=1)
        lengths = np.sqrt(np.maximum(squares, 1e-300))[:, None]
        return norm([self.sds(each) for each in sums / lengths] * squares, axis=0) / 4

    def signal(self, information: Matrix, directions: Matrix) -> Vector:
        """What is kept of the information in each direction over its noise; 0 in none."""
        directions = directions / np.maximum(norm(directions, axis=0), 1e-300)
        kept, sds = np.sum(information @ directions * directions, axis=0), self.sds(directions)
        return np.divide(kept, sds, where=sds > 0, out=np.zeros_like(kept))


def fitted_information(
    told: np.ndarray,
    sds: Vector,
    back: np.ndarray,
    away: Vector,
    num_records: int,
    entries: Pattern | None = None,
) -> Estimate:
    """Least squares over all rounds, each in its own coordinates; for locating.

    :param told: matrix of each round, shape (rounds, dim, dim); **sds**: noise of its entries.
    :param back: from the last round's coordinates to those of each, shape (rounds, dim, dim).
    :param entries: what may be told; by default all.
    """
    dim = back.shape[-1]
    entries = entries or pattern(None, np.eye(dim))
    # What a round says of elsewhere is off rather than noisy: it counts for less, and that is all.
    # As noise it would raise the floor of the information, and the rounds would stand still. Where
    # it told little and the last tells much, it is off by as much: else it would be sure of little.
    here = traces(back @ told[-1] @ back.mT) / dim
    typical = np.maximum(np.maximum(traces(told) / dim, sds), here)
    ages = np.arange(len(told))[::-1]
    off = typical**2 * np.minimum(away / num_records, 4.0)
    counts = _AGEING**ages / (sds**2 + off)
    found = _least_squares(told, back, counts, entries)
    metrics = back.mT @ back
    return Estimate(found, metrics, metrics, (counts * sds) ** 2, counts, entries)


def _least_squares(told: np.ndarray, back: np.ndarray, counts: Vector, entries: Pattern) -> Matrix:
    """The matrix X with the entries that may be told for which back·X·backᵀ is nearest ``told``."""
    back = back @ entries.frame
    forth = back.mT
    metrics = forth @ back
    right = entries.met * (forth @ told @ back * column(counts)).sum(0)

    def normal(x: Matrix) -> Matrix:
        return entries.met * (metrics @ x @ metrics * column(counts)).sum(0)

    # Conjugate gradients on matrices: as many unknowns as a symmetric matrix has entries.
    found = np.eye(len(right))
    residual = right - normal(found)
    direction, square = residual.copy(), float(np.sum(residual**2))
    enough = 1e-16 * float(np.sum(right**2))
    for _ in range(80):
        if square < enough:
            break
        image = normal(direction)
        step = square / float(np.sum(direction * image))
        found, residual = found + step * direction, residual - step * image
        square, before = float(np.sum(residual**2)), square
        direction = residual + square / before * direction
    return symmetric(entries.frame @ found @ entries.frame.T)


def weighted_information(
    told: np.ndarray,
    sds: Vector,
    frames: np.ndarray,
    weights: np.ndarray,
    entries: Pattern | None = None,
) -> Estimate:
    """The average with the weights that the scores have: both speak of the same rounds.

    In each direction those of that direction: of a small group rounds that clip its records speak
    with less noise, of scores and of information that are smaller than others'.

    :param frames: from each round's coordinates to those of the last, shape (rounds, dim, dim).
    :param weights: of the scores in these, which add up to 1, shape (rounds, dim, dim).
    """
    dim = frames.shape[-1]
    entries = entries or pattern(None, np.eye(dim))
    found = symmetric((weights @ frames @ told @ frames.mT).sum(0))
    if not entries.met.all():
        found = _least_squares(found[None], np.eye(dim)[None], np.ones(1), entries)
    metrics = frames @ frames.mT
    return Estimate(found, metrics, weights @ metrics @ weights.mT, sds**2, None, entries)
