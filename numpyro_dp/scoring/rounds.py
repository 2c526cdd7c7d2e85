"""The rounds of private Fisher scoring: what each released, and what all of them say.

Everything here is post-processing of released numbers, in float64 on the host. Scores of a round
are sums over records in the coordinates that the rounds before it gave; in *whitened* coordinates
the information is about the identity, and every direction costs the same noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.linalg import inv, norm, solve

from numpyro_dp.scoring.information import (
    Entries,
    Matrix,
    Pattern,
    Vector,
    column,
    fitted_information,
    pattern,
    shrunk,
    symmetric,
    traces,
    weighted_information,
)
from numpyro_dp.scoring.verdicts.outside import Outside

# Squared error of a score along the way to the posterior, over the way's squared length and the
# change of information on it: 1/4 of all of it where it changes evenly. Of rare outcomes (logistic,
# 1 to 4 % of 6,000 to 20,000) .1 to 1 lost the bias of 2 to 11 own sds that there was without.
_BEND = 1 / 12
# Where it asked at more units of information per record than this, it says nothing.
_FARTHEST = 30.0
# Variance of whether a record is far out where the model fits: about the share of outcomes that
# are, of a normal law .015 and of an exponential one .04.
_FAR_BY_CHANCE = 0.03


class PriorMoments(NamedTuple):
    """Independent normals with the location and spread of the model's prior.

    - **mean**, **sd**: of unconstrained coordinates, shape (dim,).
    - **entries**: which of the information may be told; ``None`` if all.
    - **sites**: a number for each, the same of those of a latent, groups' effects apart; ``None``
      where all are of one. Of the coordinates w, where there are **entries**.
    """

    mean: Vector
    sd: Vector
    entries: Entries | None = None
    sites: Vector | None = None

    @property
    def precision(self) -> Matrix:
        """As a matrix, shape (dim, dim)."""
        return np.diag(self.sd**-2.0)

    @property
    def alike(self) -> Vector:
        """A number for each w, the same of those of which records tell alike, as of groups."""
        return np.arange(len(self.sd)) if self.entries is None else self.entries.alike

    @property
    def latents(self) -> Vector:
        """A number for each w from 0, the same of those of a latent."""
        sites = np.zeros(len(self.sd), int) if self.sites is None else self.sites
        groups = np.bincount(self.alike)[self.alike] > 1
        each = np.where(groups, np.max(sites) + 1 + self.alike, sites)
        return np.unique(each, return_inverse=True)[1]


class Law(NamedTuple):
    """A normal law of the coordinates: **mean**, shape (dim,), and **precision**, (dim, dim)."""

    mean: Vector
    precision: Matrix


class RoundSettings(NamedTuple):
    """Where a round asks and how tightly it clips.

    - **u**: unconstrained position, shape (dim,).
    - **whitening**: W, from scores to scores in whitened coordinates, shape (dim, dim).
    - **precision**: of the posterior as told so far, for distances, shape (dim, dim).
    - **clip_norm**: C, bound on a record's whitened score.
    - **information_bound**: bound on a record's whitened information (Frobenius).
    - **clear**: whether the clip norm is no guess; of a first round it may be.
    - **least**: of a first round that is no guess, that of
      :func:`~numpyro_dp.scoring.information.held`; **often**: in how many records each w has a
      part; **guessed**: of which w that is the most that noise hides; **outside**: how many records
      show what their law cannot have.
    """

    u: Vector
    whitening: Matrix
    precision: Matrix
    clip_norm: float
    information_bound: float
    clear: bool = True
    least: Vector | None = None
    often: Vector | None = None
    guessed: Vector | bool = False
    outside: Outside = Outside()


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
    - **told**: the same with its noise, in units of the coordinate.
    - **unresolved**: whether A tells from its target nothing but noise.
    - **middle**: average position of the rounds.
    - **weights**: of the rounds; **curvature**: their allowance for a score that bends.
    - **entries**: which of the information may be told.
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
    told: Vector
    unresolved: bool
    middle: Vector
    weights: Vector
    curvature: Vector
    entries: Pattern


def pool(
    rounds: Sequence[Round],
    prior: PriorMoments,
    num_records: int,
    centre: Vector,
    *,
    final: bool = False,
    along: Matrix | None = None,
) -> Pooled:
    """All rounds as one statement, in the whitened coordinates of the last.

    :param centre: where the posterior is thought to lie, unconstrained. A score bends on its way
        there, which counts as noise of rounds that asked from farther away.
    :param final: pool the information with the same weights as the scores, and leave nothing out
        of the noise; else only what locates.
    :param along: columns whose signal is told; by default the coordinates themselves.
    """
    whitening, dim = rounds[-1].at.whitening, len(centre)
    inward = np.array([r.at.whitening for r in rounds])
    outward = inv(inward)
    places = np.array([r.at.u for r in rounds]) @ outward[-1]
    gaps = np.array([r.at.u for r in rounds]) - centre
    away = np.sum((gaps @ rounds[-1].at.precision) * gaps, axis=1)
    frames = whitening @ outward
    squared = frames @ frames.mT
    private = column([r.score_sd**2 for r in rounds]) * squared
    informations = np.array([r.information for r in rounds])
    sds = np.array([r.information_sd for r in rounds])
    told = traces(frames @ informations @ frames.mT) / dim
    unsure = sds * norm(squared, axis=(1, 2)) / dim
    curvature = _curvature(away, told, unsure, num_records) * min(1.0, 2 / math.sqrt(dim))
    precisions = inv(private + column(curvature) * np.eye(dim))
    whole = symmetric(inv(precisions.sum(0)))
    weights = traces(whole @ precisions) / dim
    entries = pattern(prior.entries, whitening, prior.latents)
    if final:
        found = weighted_information(informations, sds, frames, whole @ precisions, entries)
    else:
        back = inward @ outward[-1]
        found = fitted_information(informations, sds, back, away, num_records, entries)
    in_prior = whitening @ prior.precision @ whitening.T
    so_far = whitening @ rounds[-1].at.precision @ whitening.T
    information, left, unresolved, entries = shrunk(found, in_prior, so_far, final=final)
    scores = (frames @ np.array([r.score for r in rounds])[..., None])[..., 0]
    response = whole @ _applied(precisions, scores + places @ information.T)
    noise = whole
    if not final:
        between = (precisions @ private @ precisions).sum(0)
        noise = symmetric(whole @ between @ whole)
    heeded = weights * np.array([r.share / r.at.clip_norm**2 for r in rounds])
    square = float(heeded @ [r.square for r in rounds])
    expected = float(heeded @ [r.expected for r in rounds])
    traced = float(heeded @ traces(informations))
    least = float(norm(heeded * [r.square_sd for r in rounds]))
    misfit = float(np.clip(square / max(expected, least, 1e-12), 0.1, 30.0))
    counted = weights * np.array([r.share for r in rounds])
    counted /= counted.sum() * num_records
    chance = _FAR_BY_CHANCE / num_records
    ways = outward[-1].T if along is None else outward[-1].T @ along
    return Pooled(
        information,
        noise,
        response,
        float(np.clip(square / max(traced, least, 1e-12), 0.1, 30.0)),
        misfit,
        least * math.hypot(1, misfit) / max(expected, least, 1e-12),
        float(counted @ [r.tail for r in rounds]),
        math.hypot(norm(counted * [r.tail_sd for r in rounds]), math.sqrt(chance)),
        left,
        found.signal(information if final else found.matrix, ways),
        np.sum(ways * (found.matrix @ ways), axis=0),
        unresolved,
        whole @ _applied(precisions, places),
        weights,
        curvature,
        entries,
    )


def _curvature(away: Vector, told: Vector, unsure: Vector, num_records: int) -> Vector:
    """Squared error of each round's score where it asked from far away, in whitened coordinates.

    A score bends by its squared way over the root of the records where all of them speak. Of rare
    outcomes few do, and the information changes on the way: what it changes is seen.

    :param away: squared distance of each round.
    :param told: mean information of a direction in each.
    :param unsure: its noise.
    """
    near = 1 / (unsure**2 * (1 + away))
    changed = (told - near @ told / near.sum()) ** 2 - unsure**2
    # Beyond one unit of information per record it says nothing of how far. With less of this, a
    # scale went to twice what the last round said, and took five rounds to come back.
    bent = away**2 / num_records * np.exp(np.minimum(away / num_records, _FARTHEST))
    return np.maximum(bent, _BEND * away * np.maximum(changed, 0))


def posterior(
    pooled: Pooled, noise: Matrix, prior: PriorMoments | Law, whitening: Matrix
) -> tuple[Vector, Matrix]:
    """Mean and covariance, in whitened coordinates, of the prior given t ~ N(A x, noise)."""
    gain = solve(noise, pooled.information)
    precision = whitening @ prior.precision @ whitening.T
    covariance = inv(symmetric(pooled.information @ gain) + precision)
    pull = gain.T @ pooled.response + precision @ (inv(whitening).T @ prior.mean)
    return covariance @ pull, symmetric(covariance)


def _applied(matrices: np.ndarray, vectors: Matrix) -> Vector:
    """The sum over rounds of matrix times vector, ``vectors`` of shape (rounds, dim)."""
    return np.einsum("rij,rj->i", matrices, vectors)
