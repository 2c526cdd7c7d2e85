"""The information matrix that all rounds together tell, and how much of it is noise."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.linalg import eigh

Matrix = np.ndarray
Vector = np.ndarray

# A round older by one tells this much less of the information.
_AGEING = 0.7
_FLOOR, _LEAST_TARGET = 0.02, 0.02
# Least information that locates, in noise sds of a direction and roots of the dimension. Twice as
# much made 12 coordinates of 1,000 records up to half as wide, but took noise for what a column of
# 26 records in 6,000 tells: half as wide as the records' own, four of its own sds off.
_LEAST = 0.5


class Estimate(NamedTuple):
    """Noisy information in the last round's coordinates.

    - **matrix**: the estimate.
    - **metrics**: of each round, shape (rounds, dim, dim), from which the noise of a direction
      follows; **noise**: its squared noise as it counts; **counts**: how much it counts, ``None``
      where the estimate is no quotient.
    """

    matrix: Matrix
    metrics: np.ndarray
    noise: Vector
    counts: Vector | None

    @property
    def typical_sd(self) -> float:
        """Noise of an entry."""
        return float(self._sds(traces(self.metrics) / len(self.matrix)))

    def sds(self, directions: Matrix) -> Vector:
        """Noise of the information in the directions of the columns."""
        return self._sds(np.sum((self.metrics @ directions) * directions, axis=1))

    def _sds(self, along: np.ndarray) -> Any:
        sds = np.sqrt(self.noise @ along**2)
        return sds if self.counts is None else sds / (self.counts @ along**2)

    def signal(self, information: Matrix, directions: Matrix) -> Vector:
        """What is kept of the information in each direction over its noise; 0 in none."""
        kept, sds = np.sum(information @ directions * directions, axis=0), self.sds(directions)
        return np.divide(kept, sds, where=sds > 0, out=np.zeros_like(kept))


def fitted_information(
    told: np.ndarray, sds: Vector, back: np.ndarray, away: Vector, num_records: int
) -> Estimate:
    """Least squares over all rounds, each in its own coordinates; for locating.

    :param told: matrix of each round, shape (rounds, dim, dim); **sds**: noise of its entries.
    :param back: from the last round's coordinates to those of each, shape (rounds, dim, dim).
    """
    dim = back.shape[-1]
    # What a round says of elsewhere is off rather than noisy: it counts for less, and that is all.
    # As noise it would raise the floor of the information, and the rounds would stand still. Where
    # it told little and the last tells much, it is off by as much: else it would be sure of little.
    here = traces(back @ told[-1] @ back.mT) / dim
    typical = np.maximum(np.maximum(traces(told) / dim, sds), here)
    ages = np.arange(len(told))[::-1]
    off = typical**2 * np.minimum(away / num_records, 4.0)
    counts = _AGEING**ages / (sds**2 + off)
    forth = back.mT
    metrics = forth @ back
    right = (forth @ told @ back * column(counts)).sum(0)

    def normal(x: Matrix) -> Matrix:
        return (metrics @ x @ metrics * column(counts)).sum(0)

    # Conjugate gradients on matrices: as many unknowns as a symmetric matrix has entries.
    found = np.eye(dim)
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
    return Estimate(symmetric(found), metrics, (counts * sds) ** 2, counts)


def weighted_information(
    told: np.ndarray, sds: Vector, frames: np.ndarray, private: np.ndarray, curvature: Vector
) -> Estimate:
    """The average with the weights that the scores have: both speak of the same rounds."""
    dim = frames.shape[-1]
    even = dim / (traces(private) + curvature * dim)
    weights = even / even.sum()
    found = (column(weights) * (frames @ told @ frames.mT)).sum(0)
    return Estimate(symmetric(found), frames @ frames.mT, (weights * sds) ** 2, None)


def shrunk(found: Estimate, prior_precision: Matrix, *, final: bool) -> tuple[Matrix, float, bool]:
    """The information shrunk towards what the whitening says, its noise, and whether it told any.

    Positive-part Stein shrinkage, with directions that stand out of the noise kept. Eigenvalues
    below the target are kept as they are: raising them would claim knowledge.
    """
    dim = len(found.matrix)
    target = np.eye(dim)
    if final:
        values, vectors = eigh(symmetric(target - prior_precision))
        target = (vectors * np.clip(values, _LEAST_TARGET, 1.0)) @ vectors.T
    level = max(float(np.trace(found.matrix) / np.trace(target)), found.typical_sd / math.sqrt(dim))
    gaps, vectors = eigh(found.matrix - level * target)
    entries = dim * (dim + 1) / 2 - 1
    shrinkage = min(1.0, found.typical_sd**2 * entries / max(float(np.sum(gaps**2)), 1e-30))
    sds = found.sds(vectors)
    standing_out = np.sqrt(np.maximum(0, 1 - 2 * dim * sds**2 / np.maximum(gaps**2, 1e-30)))
    kept = np.where(gaps < 0, 1.0, np.maximum(1 - shrinkage, standing_out))
    values, vectors = eigh(symmetric(level * target + (vectors * (kept * gaps)) @ vectors.T))
    if final:
        # A floor would invent information in directions that have none.
        floor = np.full(dim, _FLOOR * level)
    else:
        floor = np.maximum(_LEAST * found.sds(vectors) * math.sqrt(dim), 0.01 * level)
    matrix = (vectors * np.maximum(values, floor)) @ vectors.T
    left = found.typical_sd * math.sqrt(1 - shrinkage)
    # Where nothing stands out of a small noise, the whitening was right. Most coordinates decide:
    # that of a rare level is noisier by far, and is named for itself.
    most = float(np.median(found.sds(np.eye(dim))))
    lost = shrinkage >= 1 and most * math.sqrt(dim) > level / 2
    return symmetric(matrix), left, lost


def symmetric(matrix: Matrix) -> Matrix:
    """Without what rounding made unlike."""
    return (matrix + matrix.T) / 2


def column(numbers: Any) -> np.ndarray:
    """A number for each round's matrix, shape (rounds, 1, 1)."""
    return np.asarray(numbers)[:, None, None]


def traces(matrices: np.ndarray) -> Vector:
    """Of each matrix."""
    return np.trace(matrices, axis1=1, axis2=2)
