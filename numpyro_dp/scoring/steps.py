"""Where the next round asks: one Fisher-scoring step from the last round that is no blind alley.

Post-processing of released numbers, in float64 on the host.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.linalg import cholesky, eigvalsh, inv, norm, solve

from numpyro_dp.scoring.information import (
    Entries,
    Matrix,
    Vector,
    damped,
    held,
    site_means,
    symmetric,
    uncut,
)
from numpyro_dp.scoring.rounds import (
    Law,
    PriorMoments,
    Round,
    RoundSettings,
    pool,
    posterior,
)
from numpyro_dp.scoring.statistic import INFORMATION_SHARE, SCORE_SHARE

# How loose clips are, in units of their own noise, and of a record's typical score.
_SCORE_NOISE, _INFORMATION_NOISE, _TIGHTEST, _LOOSEST = 0.8, 0.4, 0.7, 10.0
_MISFIT = (1.0, 25.0)
# A step leads against a score, or too far, by this many of its noise sds.
_AGAINST = 2.0
# After a round in a blind alley, how much of the way to it is gone, at least and at most.
_SHORTENED = (0.1, 0.5)
# A step leapt where so many times as much is told along it as before, and records show at most this
# part of it. From one and a half times on, a release under a scale's wide prior was lost.
_GROWN, _QUIET = 3.0, 0.5
_TINY = 1e-12


def next_settings(
    rounds: Sequence[Round],
    prior: PriorMoments,
    num_records: int,
    signal: float,
    shares: Sequence[float],
) -> RoundSettings:
    """One Fisher-scoring step from the last round, or from the one before a blind alley.

    :param signal: μ of a Gaussian mechanism as private as all rounds and the histogram together.
    :param shares: of the squared privacy loss, of all rounds.
    """
    number = len(rounds)
    rounds, nearest = trusted(rounds)
    last = rounds[-1].at
    dim = len(last.u)
    found = _stepped(rounds, prior, num_records, last.u, nearest)
    # Once more, the rounds weighted by where that leads. Of outcomes that tell little far out, as
    # Bernoulli's, one that asked there can send the rest ever farther: not against its own score.
    again = _stepped(rounds, prior, num_records, found.to, nearest)
    ahead = solve(last.whitening.T, again.to - last.u)
    if rounds[-1].score @ ahead > -_AGAINST * rounds[-1].score_sd * norm(ahead):
        found = again
    typical = math.sqrt(dim / num_records)
    effective = min(3 * shares[number], sum(shares[: number + 1]))
    loose = math.sqrt(float(np.clip(found.misfit, *_MISFIT)))
    clip_norm = _SCORE_NOISE * signal * math.sqrt(effective * SCORE_SHARE) * loose
    clip_norm = max(_TIGHTEST * typical, min(clip_norm, _LOOSEST * typical * loose))
    bound = _INFORMATION_NOISE * signal * math.sqrt(effective * INFORMATION_SHARE / dim)
    bound = min(max(bound, clip_norm * typical), _LOOSEST * clip_norm * typical)
    # A tighter clip takes so much of the information. Whitened with what is left, each round's
    # scores would be larger than the last's, and clipped the more.
    cut = min(1.0, clip_norm / typical)
    information = (found.total - found.prior) / cut
    precision = information + prior.precision
    if prior.entries is not None:
        loosely = min(1.0, typical**2 / bound)
        suggested = found.prior - prior.precision
        information = prior.entries.evened(information, suggested, found.signal, loosely)
    of = None if prior.entries is None else prior.entries.of
    if (often := rounds[0].at.often) is not None:
        shown = min(last.information_bound, typical * last.clip_norm)
        heard = site_means(found.signal, prior.latents)
        # Noise alone is no column of so few records: each must be heard for itself.
        heard = np.where(rounds[0].at.guessed, np.minimum(heard, found.signal), heard)
        information = uncut(information, often, shown, heard, prior.entries)
    if (least := rounds[0].at.least) is not None:
        information = held(information, least, found.told / cut, prior.sd, prior.sites, of)
    whitening = inv(cholesky(information + prior.precision))
    return RoundSettings(found.to, whitening, precision, clip_norm, bound)


class _Step(NamedTuple):
    """Where a step leads **to**, the **total** precision there, what of it is **prior**, and the
    rounds' **misfit**, **signal** and what they **told** of each w, noise and all."""

    to: Vector
    total: Matrix
    prior: Matrix
    misfit: float
    signal: Vector
    told: Vector


def _stepped(
    rounds: Sequence[Round],
    prior: PriorMoments,
    num_records: int,
    centre: Vector,
    nearest: float,
) -> _Step:
    """One step from the last round, with all rounds as they speak of ``centre``.

    :param nearest: how far it may go, in units of the first round.
    """
    last = rounds[-1].at
    along = None if prior.entries is None else inv(prior.entries.of)
    pooled = pool(rounds, prior, num_records, centre, along=along)
    back, law = inv(last.whitening), Law(prior.mean, prior.precision)
    spread = float(np.clip(pooled.dispersion, 0.3, 10.0))
    noise = spread * pooled.information + pooled.noise
    mean, covariance = posterior(pooled, noise, law, last.whitening)
    if prior.entries is not None:
        law = _drawn_together(
            prior.entries,
            prior,
            last.whitening.T @ mean,
            last.whitening.T @ covariance @ last.whitening,
        )
        mean, _ = posterior(pooled, noise, law, last.whitening)
    total = back @ pooled.information @ back.T + law.precision
    step = last.whitening.T @ mean - last.u
    if math.isfinite(nearest):
        units = inv(cholesky(rounds[0].at.precision)).T
        least = float(eigvalsh(symmetric(units.T @ prior.precision @ units))[0])
        step = damped(step, total, units, nearest, max(least, _TINY))
    # One unit of information per record at most: far away, a score says where to go, and hardly
    # how far.
    length = math.sqrt(step @ total @ step / num_records)
    step *= min(1.0, 1 / max(length, _TINY))
    step = damped(step, total, np.diag(prior.sd), _farthest(rounds, prior.sd))
    return _Step(last.u + step, total, law.precision, pooled.misfit, pooled.signal, pooled.told)


def _drawn_together(entries: Entries, prior: PriorMoments, mean: Vector, covariance: Matrix) -> Law:
    """The prior with what groups say of each other: as near as most lie, the others may too."""
    near = entries.suggested(mean - prior.mean, covariance, prior.sd)
    return Law(prior.mean, prior.precision + near)


def _farthest(rounds: Sequence[Round], sd: Vector) -> float:
    """How many prior sds the next step may go: as wide as the prior is, and less after a leap.

    A step that went more than twice as far as it should leads to a score that points back by more
    than the one before pointed on: then half of its way, and twice as far with each after it.
    """
    widest = farthest = math.sqrt(len(sd))
    for one, other in pairwise(rounds):
        way = other.at.u - one.at.u
        on, back = (solve(each.at.whitening.T, way) for each in (one, other))
        doubt = _AGAINST * other.score_sd * norm(back)
        if -other.score @ back > max(doubt, one.score @ on):
            farthest = min(farthest, float(norm(way / sd))) / 2
        else:
            farthest = min(2 * farthest, widest)
    return farthest


def trusted(rounds: Sequence[Round]) -> tuple[list[Round], float]:
    """The rounds from which steps may go, and how far the next may, in units of the first.

    Left out is where the score points back beyond the round that the step came from: a blind alley,
    as where columns that are not centred made every outcome all but certain. Nothing is told there
    but the way back, and not how far. From there the next went to the other end, and so on: of two
    columns in natural units (logistic) intervals were 300 times as wide as the records' own.

    So is a leap to where the law scatters widely, and records do not. Much is told of scales there,
    by outcomes that nobody has: steps back are as short as that makes them, and each looser clip
    finds more of it. The scale of a count's own effect came to rest at three times what it was.
    """
    kept, nearest = [rounds[0]], math.inf
    root = cholesky(rounds[0].at.precision).T
    for other in rounds[1:]:
        one = kept[-1]
        way = other.at.u - one.at.u
        on, back = (solve(each.at.whitening.T, way) for each in (one, other))
        # Noise may say that less than nothing is told.
        beyond = -other.score @ back - max(back @ other.information @ back, 0.0)
        doubt = math.hypot(other.score_sd * norm(back), other.information_sd * (back @ back))
        ahead = one.score @ on / (one.at.clip_norm * max(norm(on), _TINY))
        if _leapt(one, other, on, back):
            nearest = min(nearest, float(norm(root @ way)) * _SHORTENED[1])
        elif ahead > 0 and beyond > _AGAINST * doubt:
            # Scores as shares of the largest that clipped ones may be: where a line between them is
            # nought.
            behind = -other.score @ back / (other.at.clip_norm * norm(back))
            part = float(np.clip(ahead / (ahead + behind), *_SHORTENED))
            nearest = min(nearest, float(norm(root @ way)) * part)
        else:
            kept.append(other)
            nearest *= 2
    return kept, nearest


def _leapt(one: Round, other: Round, on: Vector, back: Vector) -> bool:
    """Whether a step led to where far more is told than before, and records do not show it.

    :param on: the step in the coordinates of the round that it came from; **back**: of the other.
    """
    before, there = (
        (max(at @ r.information @ at, 0.0), r.information_sd * (at @ at))
        for r, at in ((one, on), (other, back))
    )
    shown, told = other.square + _AGAINST * other.square_sd, float(np.trace(other.information))
    grown = there[0] - _AGAINST * there[1] > _GROWN * sum(before)
    return grown and shown < _QUIET * told
