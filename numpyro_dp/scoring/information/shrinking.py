"""How much of the information that rounds tell is noise, and how far a step may follow it."""

from __future__ import annotations

import math

import numpy as np
from numpy.linalg import eigh, inv, norm, solve
from scipy.optimize import brentq

from numpyro_dp.scoring.information.entries import Pattern, several
from numpyro_dp.scoring.information.estimate import Estimate
from numpyro_dp.scoring.information.matrices import Matrix, Vector, symmetric

_FLOOR, _LEAST_TARGET = 0.02, 0.02
# Least information that locates, in noise sds of a direction and roots of the dimension. Twice as
# much made 12 coordinates of 1,000 records up to half as wide, but took noise for what a column of
# 26 records in 6,000 tells: half as wide as the records' own, four of its own sds off.
_LEAST = 0.5
# A latent is told no less than this part of what all are.
_LOWEST = 0.1
_TINY = 1e-30


def shrunk(
    found: Estimate, prior_precision: Matrix, precision: Matrix, *, final: bool
) -> tuple[Matrix, float, bool, Pattern]:
    """The information shrunk towards what the whitening says, its noise, and whether it told any.

    Positive-part Stein shrinkage, with directions that stand out of the noise kept. Eigenvalues
    below the target are kept as they are: raising them would claim knowledge.

    :returns: last how much of the noise of each entry is left.
    """
    dim = len(found.matrix)
    target = np.eye(dim)
    if final:
        values, vectors = eigh(symmetric(target - prior_precision))
        target = (vectors * np.clip(values, _LEAST_TARGET, 1.0)) @ vectors.T
    level = max(float(np.trace(found.matrix) / np.trace(target)), found.typical_sd / math.sqrt(dim))
    target = level * _levelled(found, target)
    found = _with_all_groups(found)
    gaps, vectors = eigh(found.matrix - target)
    told = found.told
    # While rounds locate, as much may be noise as if all entries were told: with less of it left
    # out, they went astray under wide priors.
    rows = told.rows if final else dim
    shrinkage = min(
        1.0, found.typical_sd**2 * (told.entries - 1) / max(float(np.sum(gaps**2)), _TINY)
    )
    sds = found.sds(vectors)
    standing_out = np.sqrt(np.maximum(0, 1 - 2 * rows * sds**2 / np.maximum(gaps**2, _TINY)))
    kept = np.where(gaps < 0, 1.0, np.maximum(1 - shrinkage, standing_out))
    values, vectors = eigh(symmetric(target + (vectors * (kept * gaps)) @ vectors.T))
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
    return symmetric(matrix), left, lost, told


def _levelled(found: Estimate, target: Matrix) -> Matrix:
    """The target with each latent as far above or below it as is told of its entries on average.

    Where a scale has changed, all that it scales is told more or less, and the scale itself is not:
    at the level of all, its steps went twice as far as they should.
    """
    own, latents = found.told.own, found.told.latents
    back = inv(own)
    expected, heard = (np.diag(back @ each @ back.T) for each in (target, found.matrix))
    lengths = norm(back, axis=1)
    weights = (expected / (found.sds((back / lengths[:, None]).T) * lengths**2)) ** 2
    number = int(latents.max()) + 1
    whole = np.maximum(np.bincount(latents, weights, number), _TINY)
    levels = np.bincount(latents, weights * heard / expected, number) / whole
    common = max(float(levels @ whole / whole.sum()), _TINY)
    gaps = levels - common
    kept = np.maximum(0, 1 - 1 / np.maximum(whole * gaps**2, _TINY))
    roots = np.sqrt(np.maximum(1 + kept * gaps / common, _LOWEST))[latents]
    change = own @ (roots[:, None] * back)
    # Of latents that hang together closely, levels that differ by noise may say anything.
    values, vectors = eigh(symmetric(change @ target @ change.T))
    return (vectors * np.clip(values, _LOWEST * _LEAST_TARGET, 1 / _LOWEST)) @ vectors.T


def _with_all_groups(found: Estimate) -> Estimate:
    """What a column and each group have in common nearer to what it has with all groups.

    Where a column is not centred that is the same part of what each group is told, and the rest is
    little beside its noise. That noise, above all of small groups, was taken for ways in which the
    column's slope and the groups hang together: slopes beside 28 groups and columns in years were
    3 to 5 times as wide as NUTS's in place of 1.3 to 1.4, and fell short of them.
    """
    told = found.told
    scales = norm(inv(told.own), axis=1)
    frame = told.own * scales
    # Rows of length 1.
    back = inv(frame)
    whole, met = back @ found.matrix @ back.T, told.met.astype(float)
    for these, others in several(told.alike, told.met):
        each = scales[these]
        heard = np.maximum(np.diag(whole)[these], 0) * each
        total = max(float(heard @ each), _TINY)
        for other in others:
            sds = found.between(back[other], back[these].T)
            noise = float(sds @ sds)
            # Of all groups together it stays as told: where the level of all and a column trade,
            # little is left of far more.
            slope = float(whole[other, these] @ each) / total
            rest = whole[other, these] - slope * heard
            kept = max(0.0, 1 - noise / max(float(rest @ rest), _TINY))
            whole[other, these] = whole[these, other] = slope * heard + kept * rest
            # Noise of the rest, and of what is told of all groups and of each.
            of_slope = (heard * norm(each) / total) ** 2 + (slope * each) ** 2
            left = np.minimum(kept + (1 - kept) ** 2 * of_slope, 1)
            met[other, these] = met[these, other] = left
    matrix = symmetric(frame @ whole @ frame.T)
    return found._replace(matrix=matrix, told=told._replace(met=met))


def damped(
    step: Vector, total: Matrix, units: Matrix, farthest: float, least: float = 1.0
) -> Vector:
    """A step no longer than so many units, less along what is told little (Levenberg).

    Where parameters hang together, as a share of zeros and a rate, records tell which way and
    hardly how far: steps of several sds went to where nothing is told, and back.

    :param units: steps of length 1 in its columns, shape (dim, dim).
    :param least: what the prior tells of every direction, by default of units that are its sds.
    """
    ahead = solve(units, step)
    if not norm(ahead) > farthest:
        return step
    whole = symmetric(units.T @ total @ units)
    told, ways = eigh(whole)
    # Rounding may take away what the prior tells beside what records do.
    told = np.maximum(told, least)
    push = ways.T @ (whole @ ahead)

    def shortened(log: float) -> Vector:
        return push / (told + math.expm1(log))

    def beyond(log: float) -> float:
        return float(norm(shortened(log))) - farthest

    most = math.log1p(2 * float(norm(push)) / farthest)
    log = brentq(beyond, 0.0, most) if beyond(0.0) > 0 else 0.0
    return units @ (ways @ shortened(log))
