"""The information matrix that all rounds together tell, and how much of it is noise."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.linalg import eigh, inv, norm
from scipy.optimize import brentq

Matrix = np.ndarray
Vector = np.ndarray

# A round older by one tells this much less of the information.
_AGEING = 0.7
_FLOOR, _LEAST_TARGET = 0.02, 0.02
# Least information that locates, in noise sds of a direction and roots of the dimension. Twice as
# much made 12 coordinates of 1,000 records up to half as wide, but took noise for what a column of
# 26 records in 6,000 tells: half as wide as the records' own, four of its own sds off.
_LEAST = 0.5
# Of what is told of a group over its noise, up to where it may be noise, and from where it is not.
_UNHEARD, _HEARD = 2.0, 5.0
# A rare level may have been cut to one part in so many. With 3 levels of 72 among 2,600 became 2.3
# times as wide in place of 2.0; with 5 columns in natural units 1.5 in place of 1.25.
_TIMES = 4.0
# Fewer groups suggest nothing of each other.
_SEVERAL = 4


class Pattern(NamedTuple):
    """Which entries of the information some record may tell; the others are nothing.

    - **met**: 1 where a record may touch both coordinates, else 0, shape (dim, dim).
    - **frame**: from these coordinates, scaled, to those of the last round, shape (dim, dim).
    """

    met: Matrix
    frame: Matrix

    @property
    def entries(self) -> float:
        """Numbers that the matrix has."""
        return float(self.met.sum() + len(self.met)) / 2

    @property
    def rows(self) -> float:
        """Entries of a row, on average."""
        return float(self.met.mean() * len(self.met))

    def share(self, directions: Matrix) -> Vector:
        """Of the noise of all entries, what is met in the directions of the columns, squared."""
        parts = (self.frame.T @ directions) ** 2
        parts = parts / np.maximum(parts.sum(0), 1e-300)
        return np.sum(parts * (self.met @ parts), axis=0)

    def noise(self, moment: Matrix) -> Matrix:
        """Twice the mean of N·moment·N, noise N having sd 1 on the diagonal."""
        moment = self.frame.T @ moment @ self.frame
        return self.frame @ (np.diag(self.met @ np.diag(moment)) + self.met * moment) @ self.frame.T


class Entries(NamedTuple):
    """What a model says of its information, for whatever records.

    - **met**: as in :class:`Pattern`, of some coordinates w.
    - **alike**: a number for each, the same of those that no record touches together and that are
      the same of other records, as groups' effects are.
    - **of**: w of the coordinates that rounds ask in, shape (dim, dim).
    - **latents**: which of the model's latents they are, shape (dim,).
    """

    met: Matrix
    alike: Vector
    of: Matrix
    latents: Vector

    @property
    def groups(self) -> Vector:
        """Those of the latents of which others are alike."""
        return self.latents[np.bincount(self.alike)[self.alike] > 1]

    def evened(
        self, information: Matrix, suggested: Matrix, signal: Vector, share: float
    ) -> Matrix:
        """With at least the average of those alike told of each, to whiten with.

        What is told of a group of few records is little, of each of them as much as of any other:
        in units of what is told, their scores would be many times as large as others', and clipped.
        Half of the average made large groups' intervals 5 % narrower, and small ones' were found up
        to 8 of their own sds off under wide priors.

        :param information: in the coordinates that rounds ask in, shape (dim, dim).
        :param suggested: precision that groups suggest of each other, in the same.
        :param signal: of each w, over its noise, shape (dim,).
        :param share: of the average, where clips are loose enough to let more of a record through.
        """
        back = inv(self.of)
        told, near = (np.diag(back.T @ each @ back) for each in (information, suggested))
        mean = np.bincount(self.alike, told) / np.maximum(np.bincount(self.alike), 1)
        lacking = np.maximum(share * mean[self.alike] - told, 0)
        lacking *= np.clip((signal - _UNHEARD) / (_HEARD - _UNHEARD), 0, 1)
        # What groups suggest keeps one that is unheard in sight. Where they lie close together it
        # is far more than is told of each, and would be what is whitened with.
        lacking += np.minimum(near, mean[self.alike] / 4)
        return information + (self.of.T * lacking) @ self.of

    def suggested(
        self, mean: Vector, covariance: Matrix, prior_sd: Vector
    ) -> tuple[Vector, Matrix]:
        """What those alike suggest of each other, as a normal law: its precision times mean, and
        its precision.

        :param mean: of the posterior less that of the prior; **covariance**: of the posterior.
        :param prior_sd: of the coordinates that rounds ask in.
        """
        found, variance = self.of @ mean, np.diag(self.of @ covariance @ self.of.T)
        widest = (self.of**2) @ prior_sd**2
        middle, precision = np.zeros_like(found), np.zeros_like(found)
        for kind in np.unique(self.alike):
            these = np.flatnonzero(self.alike == kind)
            number, most = len(these), widest[these].min()
            if number < _SEVERAL or widest[these].max() > 1.5 * most:
                continue
            between = 0.0
            for _ in range(10):
                weights = 1 / (variance[these] + between)
                centre = weights @ found[these] / weights.sum()
                excess = weights**2 @ ((found[these] - centre) ** 2 - variance[these])
                between = max(0.0, float(excess / (weights**2).sum()))
            between += math.sqrt(2 / (weights**2).sum())
            if between < most:
                middle[these], precision[these] = centre, 1 / between
        return self.of.T @ (precision * middle), (self.of.T * precision) @ self.of


def pattern(entries: Entries | None, whitening: Matrix) -> Pattern:
    """In the coordinates of a round.

    :param entries: ``None`` where every entry may be told.
    :param whitening: of the round.
    """
    dim = len(whitening)
    if entries is None:
        return Pattern(np.ones((dim, dim)), np.eye(dim))
    frame = whitening @ entries.of.T
    return Pattern(entries.met, frame * norm(inv(frame), axis=1))


def held(
    information: Matrix,
    least: Vector,
    told: Vector,
    sd: Vector,
    sites: Vector | None = None,
    of: Matrix | None = None,
) -> Matrix:
    """What to whiten with, of a rare level no less than its records' number says.

    A tight clip cuts records that are like few others, as of a rare category, and what they tell.
    Whitened with what is told, their scores would be larger in each round than in the last, and cut
    the more, without end. How rare they are was told before anything was clipped.

    :param information: in the coordinates that rounds ask in, shape (dim, dim).
    :param least: of each w, of what its latent's others are told on average, shape (dim,).
    :param told: of each w, with noise, shape (dim,): so many times as much may be cut, and what is
        less is in other units.
    :param sd: of the prior, in the coordinates that rounds ask in, shape (dim,).
    :param sites: a number for each w, the same of those of a latent; by default all are of one.
    :param of: w of the coordinates, as in :class:`Entries`; by default these themselves.
    """
    of = np.eye(len(sd)) if of is None else of
    back = inv(of)
    now = np.diag(back.T @ information @ back)
    # As one prior has it, entries of a latent are in the same units.
    unit = np.diag((of * sd**2) @ of.T)
    kept = np.minimum(least * site_means(now * unit, sites) / unit, _TIMES * told)
    lacking = np.maximum(kept - now, 0)
    return information + (of.T * lacking) @ of


def site_means(numbers: Vector, sites: Vector | None = None) -> Vector:
    """Of each number the mean of those of its latent, shape (dim,)."""
    sites = np.zeros(len(numbers), int) if sites is None else sites
    return (np.bincount(sites, numbers) / np.maximum(np.bincount(sites), 1))[sites]


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


def shrunk(
    found: Estimate, prior_precision: Matrix, precision: Matrix, *, final: bool
) -> tuple[Matrix, float, bool]:
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
    told = found.told
    # While rounds locate, as much may be noise as if all entries were told: with less of it left
    # out, they went astray under wide priors.
    rows = told.rows if final else dim
    shrinkage = min(
        1.0, found.typical_sd**2 * (told.entries - 1) / max(float(np.sum(gaps**2)), 1e-30)
    )
    sds = found.sds(vectors)
    standing_out = np.sqrt(np.maximum(0, 1 - 2 * rows * sds**2 / np.maximum(gaps**2, 1e-30)))
    kept = np.where(gaps < 0, 1.0, np.maximum(1 - shrinkage, standing_out))
    values, vectors = eigh(symmetric(level * target + (vectors * (kept * gaps)) @ vectors.T))
    if final:
        # A floor would invent information in directions that have none.
        floor = _FLOOR * level * np.minimum(1, np.sum(precision @ vectors * vectors, axis=0))
    else:
        floor = np.maximum(_LEAST * found.sds(vectors) * math.sqrt(rows), 0.01 * level)
    matrix = (vectors * np.maximum(values, floor)) @ vectors.T
    left = found.typical_sd * math.sqrt(1 - shrinkage)
    # Where nothing stands out of a small noise, the whitening was right. Most coordinates decide:
    # that of a rare level is noisier by far, and is named for itself.
    most = float(np.median(found.sds(np.eye(dim))))
    lost = shrinkage >= 1 and most * math.sqrt(rows) > level / 2
    return symmetric(matrix), left, lost


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


def symmetric(matrix: Matrix) -> Matrix:
    """Without what rounding made unlike."""
    return (matrix + matrix.T) / 2


def column(numbers: Any) -> np.ndarray:
    """A number for each round's matrix, shape (rounds, 1, 1)."""
    return np.asarray(numbers)[:, None, None]


def traces(matrices: np.ndarray) -> Vector:
    """Of each matrix."""
    return np.trace(matrices, axis1=1, axis2=2)
