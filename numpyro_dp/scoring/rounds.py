"""The rounds of private Fisher scoring: what each released, and what follows from all of them.

Everything here is post-processing of released numbers, in float64 on the host. Scores of a round
are sums over records in the coordinates that the rounds before it gave; in *whitened* coordinates
the information is about the identity, and every direction costs the same noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.linalg import cholesky, eigh, inv, norm, solve

from numpyro_dp.scoring.statistic import INFORMATION_SHARE, SCORE_SHARE, TAIL

Matrix = np.ndarray
Vector = np.ndarray

# Of the squared privacy loss, for the histogram that gives the first clip norm: so much, and more
# where a bin's noise would be more than a tenth of the records.
_HISTOGRAM, _MOST_HISTOGRAM, _TENTH = 0.04, 0.25, 10.0
# A bin counts for less by this many noise sds the farther it is from the prior's scale, and a peak
# of fewer may be noise.
_FARTHER, _CLEAR = 0.05, 4.0
# How loose clips are, in units of their own noise, and of a record's typical score.
_SCORE_NOISE, _INFORMATION_NOISE, _TIGHTEST, _LOOSEST = 0.8, 0.4, 0.7, 10.0
_MISFIT = (1.0, 25.0)
# A round older by one tells this much less of the information.
_AGEING = 0.7
_FLOOR, _LEAST_TARGET = 0.02, 0.02


class PriorMoments(NamedTuple):
    """Independent normals with the location and spread of the model's prior.

    - **mean**, **sd**: of unconstrained coordinates, shape (dim,).
    """

    mean: Vector
    sd: Vector

    @property
    def precision(self) -> Matrix:
        """As a matrix, shape (dim, dim)."""
        return np.diag(self.sd**-2.0)


class RoundSettings(NamedTuple):
    """Where a round asks and how tightly it clips.

    - **u**: unconstrained position, shape (dim,).
    - **whitening**: W, from scores to scores in whitened coordinates, shape (dim, dim).
    - **clip_norm**: C, bound on a record's whitened score.
    - **information_bound**: bound on a record's whitened information (Frobenius).
    - **clear**: whether the clip norm is no guess; of a first round it may be.
    """

    u: Vector
    whitening: Matrix
    clip_norm: float
    information_bound: float
    clear: bool = True


class Round(NamedTuple):
    """What one round released, in its own whitened coordinates.

    - **at**: its settings.
    - **score**: sum of clipped scores; **information**: of the records' information.
    - **square**, **expected**: sums of squared clipped scores, and of what the model expects of
      them.
    - **tail**: records that are far out, less how many the model expects.
    - **score_sd**, **information_sd**, **square_sd**, **tail_sd**: noise of an entry.
    - **share**: of the squared privacy loss.
    """

    at: RoundSettings
    score: Vector
    information: Matrix
    square: float
    expected: float
    tail: float
    score_sd: float
    information_sd: float
    square_sd: float
    tail_sd: float
    share: float


class Pooled(NamedTuple):
    """All rounds as one Gaussian statement t ~ N(A x, V) about whitened coordinates x.

    - **information**: A; **noise**: V without what the records themselves vary.
    - **response**: t.
    - **dispersion**: ρ, how much more squared scores are than the information says.
    - **misfit**: how much more than the model expects of them; **misfit_sd**: its noise.
    - **tail**: share of the records that is far out beyond what the model expects; **tail_sd**: its
      noise, and that of drawing records.
    - **information_sd**: noise left in an entry of A.
    - **signal**: information on each coordinate, the others being known, over its noise.
    - **unresolved**: whether A tells from its target nothing but noise.
    - **middle**: average position of the rounds.
    - **weights**: of the rounds; **curvature**: their allowance for a score that bends.
    """

    information: Matrix
    noise: Matrix
    response: Vector
    dispersion: float
    misfit: float
    misfit_sd: float
    tail: float
    tail_sd: float
    information_sd: float
    signal: Vector
    unresolved: bool
    middle: Vector
    weights: Vector
    curvature: Vector


def histogram_share(num_records: int, signal: float) -> float:
    """Of the squared privacy loss, what the histogram takes.

    :param signal: μ of a Gaussian mechanism as private as the whole release.
    """
    needed = (_TENTH / (num_records * signal)) ** 2
    return min(max(_HISTOGRAM, needed), _MOST_HISTOGRAM)


def geometric_shares(
    num_rounds: int, histogram: float, ratio: float | None = None
) -> tuple[float, ...]:
    """Shares of the squared privacy loss, growing by round; the histogram takes the rest.

    Many rounds find a far posterior; few leave more to each, which small budgets need.

    :param ratio: of the shares of two rounds; by default what suits a release of its own.
    """
    if ratio is None:
        ratio = 1.1 if num_rounds <= 8 else 1.25 if num_rounds <= 12 else 1.2
    weights = ratio ** np.arange(num_rounds)
    return tuple(float(w) for w in (1 - histogram) * weights / weights.sum())


def first_settings(
    prior: PriorMoments, histogram: Vector, first_bin: int, noise_sd: float
) -> RoundSettings:
    """Ask at the prior's middle, in its units, and clip at the commonest size.

    :param histogram: noisy counts of sizes, a bin for each factor of two.
    :param first_bin: exponent of the first bin's lower end.
    :param noise_sd: of a count.
    """
    sizes = np.arange(len(histogram)) + first_bin + 0.5
    # Records lie on both sides of an edge, noise does not.
    pairs = histogram[:-1] + histogram[1:]
    farther = _FARTHER * np.abs(sizes[:-1] + 0.5)
    at = int(np.argmax(pairs / (math.sqrt(2) * noise_sd) - farther))
    clip_norm = 2.0 ** sizes[at + int(histogram[at + 1] > histogram[at])]
    clear = bool(pairs[at] > _CLEAR * math.sqrt(2) * noise_sd)
    return RoundSettings(prior.mean, np.diag(prior.sd), clip_norm, clip_norm**2, clear)


def next_settings(
    rounds: Sequence[Round],
    prior: PriorMoments,
    num_records: int,
    signal: float,
    shares: Sequence[float],
) -> RoundSettings:
    """Where the next round asks: one Fisher-scoring step from the last, with all rounds' scores.

    :param signal: μ of a Gaussian mechanism as private as all rounds and the histogram together.
    :param shares: of the squared privacy loss, of all rounds.
    """
    last = rounds[-1].at
    dim, number = len(last.u), len(rounds)
    back, target = inv(last.whitening), last.u
    for _ in range(2):
        pooled = pool(rounds, prior, num_records, target)
        total = back @ pooled.information @ back.T + prior.precision
        spread = float(np.clip(pooled.dispersion, 0.3, 10.0))
        noise = spread * pooled.information + pooled.noise
        mean = posterior(pooled, noise, prior, last.whitening)[0]
        step = last.whitening.T @ mean - last.u
        # One unit of information per record at most: far away, a score says where to go, and
        # hardly how far.
        length = math.sqrt(step @ total @ step / num_records)
        target = last.u + step * min(1.0, 1 / max(length, 1e-12))
    typical = math.sqrt(dim / num_records)
    effective = min(3 * shares[number], sum(shares[: number + 1]))
    loose = math.sqrt(float(np.clip(pooled.misfit, *_MISFIT)))
    clip_norm = _SCORE_NOISE * signal * math.sqrt(effective * SCORE_SHARE) * loose
    clip_norm = max(_TIGHTEST * typical, min(clip_norm, _LOOSEST * typical * loose))
    bound = _INFORMATION_NOISE * signal * math.sqrt(effective * INFORMATION_SHARE / dim)
    bound = min(max(bound, clip_norm * typical), _LOOSEST * clip_norm * typical)
    return RoundSettings(target, inv(cholesky(total)), clip_norm, bound)


def pool(
    rounds: Sequence[Round],
    prior: PriorMoments,
    num_records: int,
    centre: Vector,
    *,
    final: bool = False,
) -> Pooled:
    """All rounds as one statement, in the whitened coordinates of the last.

    :param centre: where the posterior is thought to lie, unconstrained. A score bends on its way
        there, which counts as noise of rounds that asked from farther away.
    :param final: pool the information with the same weights as the scores, and leave nothing out
        of the noise; else only what locates.
    """
    whitening, dim = rounds[-1].at.whitening, len(centre)
    inward = np.array([r.at.whitening for r in rounds])
    outward = inv(inward)
    places = np.array([r.at.u for r in rounds]) @ outward[-1]
    away = np.sum((places - centre @ outward[-1]) ** 2, axis=1)
    curvature = away**2 / num_records * min(1.0, 2 / math.sqrt(dim))
    frames = whitening @ outward
    private = _column([r.score_sd**2 for r in rounds]) * (frames @ frames.mT)
    precisions = inv(private + _column(curvature) * np.eye(dim))
    whole = _symmetric(inv(precisions.sum(0)))
    weights = _traces(whole @ precisions) / dim
    if final:
        found = _weighted_information(rounds, frames, private, curvature)
    else:
        found = _fitted_information(rounds, inward @ outward[-1], away, num_records)
    information, left, unresolved = _shrunk(found, prior, whitening, final=final)
    scores = (frames @ np.array([r.score for r in rounds])[..., None])[..., 0]
    response = whole @ _applied(precisions, scores + places @ information.T)
    noise = whole
    if not final:
        between = (precisions @ private @ precisions).sum(0)
        noise = _symmetric(whole @ between @ whole)
    told = weights * np.array([r.share / r.at.clip_norm**2 for r in rounds])
    square = float(told @ [r.square for r in rounds])
    expected = float(told @ [r.expected for r in rounds])
    traces = float(told @ _traces(np.array([r.information for r in rounds])))
    least = float(norm(told * [r.square_sd for r in rounds]))
    misfit = float(np.clip(square / max(expected, least, 1e-12), 0.1, 30.0))
    heard = weights * np.array([r.share for r in rounds])
    heard /= heard.sum() * num_records
    chance = TAIL * (1 - TAIL) / num_records
    return Pooled(
        information,
        noise,
        response,
        float(np.clip(square / max(traces, least, 1e-12), 0.1, 30.0)),
        misfit,
        least * math.hypot(1, misfit) / max(expected, least, 1e-12),
        float(heard @ [r.tail for r in rounds]),
        math.hypot(norm(heard * [r.tail_sd for r in rounds]), math.sqrt(chance)),
        left,
        np.sum(outward[-1] @ information * outward[-1], axis=1) / found.sds(outward[-1].T),
        unresolved,
        whole @ _applied(precisions, places),
        weights,
        curvature,
    )


def posterior(
    pooled: Pooled, noise: Matrix, prior: PriorMoments, whitening: Matrix
) -> tuple[Vector, Matrix]:
    """Mean and covariance, in whitened coordinates, of the prior given t ~ N(A x, noise)."""
    gain = solve(noise, pooled.information)
    precision = whitening @ prior.precision @ whitening.T
    covariance = inv(_symmetric(pooled.information @ gain) + precision)
    pull = gain.T @ pooled.response + precision @ (inv(whitening).T @ prior.mean)
    return covariance @ pull, _symmetric(covariance)


class _Estimate(NamedTuple):
    """Noisy information in the last round's coordinates.

    - **matrix**: the estimate; **typical_sd**: noise of an entry.
    - **metrics**, **spread**: of each round, shapes (rounds, dim, dim) and (rounds,), from which
      the noise of a direction follows; **inverse**: whether precisions do.
    """

    matrix: Matrix
    typical_sd: float
    metrics: np.ndarray
    spread: Vector
    inverse: bool

    def sds(self, directions: Matrix) -> Vector:
        """Noise of the information in the directions of the columns."""
        along = np.sum((self.metrics @ directions) * directions, axis=1)
        variances = self.spread @ along**2
        return np.sqrt(1 / variances if self.inverse else variances)


def _fitted_information(
    rounds: Sequence[Round], back: np.ndarray, away: Vector, num_records: int
) -> _Estimate:
    """Least squares over all rounds, each in its own coordinates; for locating.

    :param back: from the last round's coordinates to those of each, shape (rounds, dim, dim).
    """
    told, dim = np.array([r.information for r in rounds]), back.shape[-1]
    sds = np.array([r.information_sd for r in rounds])
    typical = np.maximum(_traces(told) / dim, sds)
    ages = np.arange(len(rounds))[::-1]
    variances = (sds**2 + typical**2 * np.minimum(away / num_records, 4.0)) / _AGEING**ages
    forth = back.mT
    metrics, spread = forth @ back, 1 / variances
    right = (forth @ told @ back * _column(spread)).sum(0)

    def normal(x: Matrix) -> Matrix:
        return (metrics @ x @ metrics * _column(spread)).sum(0)

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
    even = float(np.sum((_traces(metrics) / dim) ** 2 * spread))
    return _Estimate(_symmetric(found), 1 / math.sqrt(even), metrics, spread, inverse=True)


def _weighted_information(
    rounds: Sequence[Round], frames: np.ndarray, private: np.ndarray, curvature: Vector
) -> _Estimate:
    """The average with the weights that the scores have: both speak of the same rounds."""
    dim = frames.shape[-1]
    even = dim / (_traces(private) + curvature * dim)
    weights = even / even.sum()
    told = np.array([r.information for r in rounds])
    found = (_column(weights) * (frames @ told @ frames.mT)).sum(0)
    metrics = frames @ frames.mT
    sds = weights * np.array([r.information_sd for r in rounds])
    typical = float(norm(sds * _traces(metrics) / dim))
    return _Estimate(_symmetric(found), typical, metrics, sds**2, inverse=False)


def _shrunk(
    found: _Estimate, prior: PriorMoments, whitening: Matrix, *, final: bool
) -> tuple[Matrix, float, bool]:
    """The information shrunk towards what the whitening says, its noise, and whether it told any.

    Positive-part Stein shrinkage, with directions that stand out of the noise kept. Eigenvalues
    below the target are kept as they are: raising them would claim knowledge.
    """
    dim = len(found.matrix)
    target = np.eye(dim)
    if final:
        values, vectors = eigh(_symmetric(target - whitening @ prior.precision @ whitening.T))
        target = (vectors * np.clip(values, _LEAST_TARGET, 1.0)) @ vectors.T
    level = max(float(np.trace(found.matrix) / np.trace(target)), found.typical_sd / math.sqrt(dim))
    gaps, vectors = eigh(found.matrix - level * target)
    entries = dim * (dim + 1) / 2 - 1
    shrinkage = min(1.0, found.typical_sd**2 * entries / max(float(np.sum(gaps**2)), 1e-30))
    sds = found.sds(vectors)
    standing_out = np.sqrt(np.maximum(0, 1 - 2 * dim * sds**2 / np.maximum(gaps**2, 1e-30)))
    kept = np.where(gaps < 0, 1.0, np.maximum(1 - shrinkage, standing_out))
    values, vectors = eigh(_symmetric(level * target + (vectors * (kept * gaps)) @ vectors.T))
    if final:
        # A floor would invent information in directions that have none.
        floor = np.full(dim, _FLOOR * level)
    else:
        floor = np.maximum(0.5 * found.sds(vectors) * math.sqrt(dim), 0.01 * level)
    matrix = (vectors * np.maximum(values, floor)) @ vectors.T
    left = found.typical_sd * math.sqrt(1 - shrinkage)
    # Where nothing stands out of a small noise, the whitening was right.
    lost = shrinkage >= 1 and found.typical_sd * math.sqrt(dim) > level / 2
    return _symmetric(matrix), left, lost


def _symmetric(matrix: Matrix) -> Matrix:
    return (matrix + matrix.T) / 2


def _column(numbers: Any) -> np.ndarray:
    """A number for each round's matrix, shape (rounds, 1, 1)."""
    return np.asarray(numbers)[:, None, None]


def _traces(matrices: np.ndarray) -> Vector:
    return np.trace(matrices, axis1=1, axis2=2)


def _applied(matrices: np.ndarray, vectors: Matrix) -> Vector:
    """The sum over rounds of matrix times vector, ``vectors`` of shape (rounds, dim)."""
    return np.einsum("rij,rj->i", matrices, vectors)
