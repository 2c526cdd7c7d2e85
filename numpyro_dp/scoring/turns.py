"""A release round by round: where each asks follows from what the ones before it released."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from numpy.linalg import cholesky, inv

from numpyro_dp._quick_compile import lightly_jitted, quickly_jitted
from numpyro_dp.execution.processes import require_same
from numpyro_dp.execution.releases import Releases
from numpyro_dp.mechanisms import PrivateSum
from numpyro_dp.scoring.forecast import Forecast
from numpyro_dp.scoring.information import Matrix, Vector, site_means
from numpyro_dp.scoring.prior import Directions
from numpyro_dp.scoring.rounds import (
    PriorMoments,
    Round,
    RoundSettings,
)
from numpyro_dp.scoring.statistic import (
    BINS,
    BINS_SHARE,
    FIRST_BIN,
    GROUPS_SHARE,
    INFORMATION_SHARE,
    PARTS_SHARE,
    SCORE_SHARE,
    SQUARES_SHARE,
    TAIL_SHARE,
    RecordStatistic,
    RoundPosition,
    those_of_several,
    unpacked,
)
from numpyro_dp.scoring.steps import next_settings
from numpyro_dp.scoring.verdicts.outside import Outside

# A bin counts for less by this many noise sds the farther it is from the prior's scale, and a peak
# of fewer may be noise.
_FARTHER, _CLEAR = 0.05, 4.0
# Rarer than this, in noise sds, a kind may be as rare as one likes. What noise can hide, in its
# sds: what is kept, and where rounds begin. How unlike parts of one latent's entries may be:
# where a level was kept beside columns of other units, all became 5 to 25 times as wide.
_HEARD, _HIDDEN, _MOST_HIDDEN, _ALIKE = 2.0, 2.0, 5.0, 8.0
_TINY = 1e-30
# Where so large a share of outcomes lies far out, the first rounds are not asked where they lead;
# from .3 on, an Emax curve was arrived at in two of six releases for five.
_LOST, _SEARCHED = 0.85, 2


class BoundRelease(NamedTuple):
    """Every number of a release, fixed before a record is touched.

    - **prior**: of the coordinates that rounds ask in, which **directions** are.
    - **scatter**: a step in them along which outcomes scatter more widely.
    """

    statistic: RecordStatistic
    directions: Directions
    prior: PriorMoments
    scatter: Vector
    plan: Releases
    shares: tuple[float, ...]
    forecast: Forecast


class Ask(NamedTuple):
    """A release that is asked for.

    - **phase**: which of the plan's sums: 0 the histogram, 1 the joint one.
    - **settings**: where, and in which coordinates.
    - **step**: which release of that sum.
    """

    phase: int
    settings: RoundSettings
    step: int


def rounds_in_turn(bound: BoundRelease) -> Generator[Ask, np.ndarray, list[Round]]:
    """Ask for all releases, each where the ones before it point.

    :returns: what yields the releases that are asked for, is sent each as it came, in float64,
        and returns the rounds.
    """
    prior, shares = bound.prior, bound.shares
    joint = bound.plan.sums[1]
    whole = RoundSettings(prior.mean, _units(prior), prior.precision, 1.0, 1.0)
    (noise_sd,) = _noise(bound.plan.sums[0], 1)
    told, num_records = (yield Ask(0, whole, 0)), bound.forecast.num_records
    settings = first_settings(prior, told[:-1], noise_sd, num_records)
    outside = Outside(float(told[-1]) / num_records, noise_sd / num_records)
    settings = settings._replace(outside=outside)
    noise = _noise(joint, len(shares))
    signal = float(np.mean([1 / (nm * math.sqrt(s)) for nm, s in zip(noise, shares, strict=True)]))
    rounds: list[Round] = []
    for step, share in enumerate(shares):
        released = yield Ask(1, settings, step)
        found = _read(settings, released, noise[step], share)
        # What no record adds to is noise alone.
        rounds.append(found if bound.statistic.has_tails else found._replace(tail=0.0))
        if step + 1 < len(shares):
            settings = next_settings(rounds, prior, num_records, signal, shares)
        if step < _SEARCHED and found.tail > max(_LOST * num_records, _CLEAR * found.tail_sd):
            settings = _scattered(settings, found.at, bound.scatter, prior)
    return rounds


def released_rounds(
    bound: BoundRelease, noise_key: Any, outcome_key: Any, records: list, show: Callable[..., None]
) -> list[Round]:
    """Make all releases; they must be charged by now.

    :param records: leaves of the statistic's :meth:`RecordStatistic.numbered`.
    """
    turns, number = rounds_in_turn(bound), 0
    ask = next(turns)
    while True:
        each, at = bound.plan.sums[ask.phase], round_position(bound, ask.settings)
        keys = noise_key, outcome_key
        found = asked(bound.statistic, each, ask.phase, at, keys, number, records, ask.step)
        require_same(found)
        released = np.asarray(jax.block_until_ready(found), np.float64)
        number += 1
        show(number)
        try:
            ask = turns.send(released)
        except StopIteration as end:
            return end.value


def first_settings(
    prior: PriorMoments, released: Vector, noise_sd: float, num_records: int
) -> RoundSettings:
    """Ask at the prior's middle, in units of what records tell of each latent there.

    In those of the prior a column in years sets the clip norm, and with it the noise of all others:
    of 40 groups beside it, the information was taken for twenty times what it is, and half as much
    in each round after.

    :param released: noisy counts of sizes, a bin for each factor of two, and sums of each kind's
        parts of them and of whether it has one, in units of the prior; of groups, of which of them
        a record is.
    :param noise_sd: of an entry.
    """
    groups = those_of_several(np.unique(prior.alike, return_inverse=True)[1])
    released, of_groups = np.split(released, [len(released) - len(groups)])
    of_groups, group_sd = of_groups / math.sqrt(GROUPS_SHARE), noise_sd / math.sqrt(GROUPS_SHARE)
    if len(groups):
        kept = math.sqrt(1 - GROUPS_SHARE)
        released, noise_sd = released / kept, noise_sd / kept
    counts = released[:BINS] / math.sqrt(BINS_SHARE)
    sizes = np.arange(BINS) + FIRST_BIN + 0.5
    # Records lie on both sides of an edge, noise does not.
    pairs = counts[:-1] + counts[1:]
    of_pair = noise_sd * math.sqrt(2 / BINS_SHARE)
    at = int(np.argmax(pairs / of_pair - _FARTHER * np.abs(sizes[:-1] + 0.5)))
    size = 2.0 ** sizes[at + int(counts[at + 1] > counts[at])]
    units = _units(prior)
    if not pairs[at] > _CLEAR * of_pair:
        return RoundSettings(prior.mean, units, prior.precision, size, size**2, False)
    kinds, members = np.unique(prior.alike, return_inverse=True, return_counts=True)[1:]
    sites = np.zeros(len(members), int)
    sites[kinds] = 0 if prior.sites is None else prior.sites
    whole = math.sqrt(PARTS_SHARE) * num_records
    shares, often, seen, guessed = _shares(released[BINS:] / whole, noise_sd / whole, sites)
    of_each, guessed = (num_records * seen)[kinds], guessed[kinds]
    if len(groups):
        # So many groups as a record is of.
        several = max(float(of_groups.sum()) / num_records, 1.0)
        of_each[groups] = np.maximum(of_groups * several, _HEARD * group_sd)
        guessed[groups] = False
    told = (num_records * size**2 * shares / members)[kinds]
    whitening = units / np.sqrt(1 + told)[:, None]
    clip_norm = math.sqrt(np.sum(told / (1 + told)) / num_records)
    # Whitened scores of so few records are larger than the clip norm.
    rare = (often * len(told) < 1)[kinds]
    least = np.where(rare, np.minimum(told / site_means(told, prior.sites), 1) / 2, 0)
    precision = inv(whitening.T @ whitening)
    bound = clip_norm**2
    return RoundSettings(
        prior.mean, whitening, precision, clip_norm, bound, True, least, of_each, guessed
    )


def _scattered(
    ahead: RoundSettings, at: RoundSettings, step: Vector, prior: PriorMoments
) -> RoundSettings:
    """A step from here where outcomes scatter more widely, if what lies ahead is no such step.

    Where most lie farther out than the law has them, a clipped score says little but that the law
    is too narrow, and by how much not at all: from a ninth of the distance that outcomes lay at, a
    scale went to more than all of it in three rounds, and took five to come back.
    """
    if not (ahead.u - at.u) @ step < step @ step:
        return ahead
    # Of the rest they tell the less there.
    less = np.where(np.isclose(step, 0), np.exp(-np.abs(step).max()), 1.0)
    precision = less * (at.precision - prior.precision) * less[:, None] + prior.precision
    return at._replace(u=at.u + step, whitening=inv(cholesky(precision)), precision=precision)


def _shares(released: Vector, noise_sd: float, sites: Vector) -> tuple[Vector, ...]:
    """Each kind's share of squared sizes, and in what share of the records it has a part: 1 where
    that is not heard and 0 where it is known to be rare, or in the third as often as noise hides;
    last whether it is that, and no others are like it.

    Of what is too rare to be heard, as much as noise can hide: of parts as large as those of its
    latent's others, where these are alike; else of parts as large as any, and how often as may be.
    Rounds find their way from too much of it, and are led astray where it is kept.

    :param released: means of parts, and of whether there is one over the root of how many are.
    :param sites: a number for each kind, the same of those of a latent.
    """
    (parts, hidden), (met, noise_left) = (_apart(each, noise_sd) for each in np.split(released, 2))
    # The root of how many there are is what the second add up to.
    number, counted = max(float(met.sum()), 1.0), met > _HEARD * noise_left
    often = np.clip(met * number, noise_left, 1.0)
    large = np.minimum(np.maximum(parts, _HEARD * hidden) / often, 1.0)
    heard = counted & (parts > _HEARD * hidden)
    shares = np.where(heard, parts * large, min(_MOST_HIDDEN * hidden, 1.0))
    often = np.where(heard, often, 1.0)
    # Where 150 of 5,000 records, beside columns of other sizes, were taken for all, units grew as
    # the clip cut the more: an interval was 4 to 7 times as wide as NUTS's, now 2.2 to 3.6 times.
    most = min(_HIDDEN * noise_left * number, 1.0)
    seen, guessed = np.where(counted, often, most), ~counted
    for site in np.unique(sites[~heard]):
        others, rare = (each & (sites == site) for each in (counted, ~heard))
        if others.sum() > 1 and large[others].max() < _ALIKE * large[others].min():
            shares[rare], often[rare] = _HIDDEN * hidden * np.median(large[others]), 0.0
            seen[rare], guessed[rare] = most, False
    return shares, often, seen, guessed


def _units(prior: PriorMoments) -> Matrix:
    """From scores to those of each w in units of its prior, shape (dim, dim)."""
    of = np.eye(len(prior.sd)) if prior.entries is None else prior.entries.of
    return np.sqrt(np.diag((of * prior.sd**2) @ of.T))[:, None] * inv(of).T


def _apart(means: Vector, noise_sd: float) -> tuple[Vector, float]:
    """Without what differs by noise alone (James and Stein), and the noise that is left."""
    gaps = means - means.mean()
    noise = max(0, len(means) - 3) * noise_sd**2
    kept = max(0.0, 1 - noise / max(float(gaps @ gaps), _TINY))
    return means.mean() + kept * gaps, noise_sd * math.sqrt(kept + (1 - kept) / len(means))


def round_position(bound: BoundRelease, settings: RoundSettings) -> RoundPosition:
    """Where records are asked, and in which coordinates, as arrays."""
    clip, of = settings.clip_norm, bound.directions
    u, whitening = of.origin + of.basis @ settings.u, settings.whitening @ of.basis.T
    numbers = u, whitening / clip, settings.information_bound / clip**2
    leaves: list[Any] = [np.asarray(x, jnp.result_type(float)) for x in numbers]
    return RoundPosition(*leaves)


def _noise(each: PrivateSum, steps: int) -> list[float]:
    """Standard deviations of the noise of the first steps."""
    return [float(each.noise_sd(step)) for step in range(steps)]


def _read(settings: RoundSettings, released: np.ndarray, noise: float, share: float) -> Round:
    """A round's release in the units of its whitened coordinates."""
    dim, clip, bound = len(settings.u), settings.clip_norm, settings.information_bound
    score, packed, (square, expected, tail) = np.split(released, [dim, len(released) - 3])
    of_score, of_information = clip / math.sqrt(SCORE_SHARE), bound / math.sqrt(INFORMATION_SHARE)
    of_square = clip**2 / math.sqrt(SQUARES_SHARE / 2)
    return Round(
        at=settings,
        score=score * of_score,
        information=unpacked(packed, dim) * of_information,
        square=float(square) * of_square,
        expected=float(expected) * of_square,
        tail=float(tail) / math.sqrt(TAIL_SHARE),
        score_sd=noise * of_score,
        information_sd=noise * of_information,
        square_sd=noise * of_square,
        tail_sd=noise / math.sqrt(TAIL_SHARE),
        share=share,
    )


def one_release(
    statistic: RecordStatistic,
    private_sum: PrivateSum,
    phase: int,
    at: RoundPosition,
    noise_key: Any,
    outcome_key: Any,
    records: list,
    step: Any,
) -> Any:
    """What is asked for in one turn, noise and all."""
    vector = record_vector(statistic, phase, at, outcome_key)
    return private_sum.release(noise_key, vector, records, step)


def _numbered(
    statistic: RecordStatistic,
    private_sum: PrivateSum,
    phase: int,
    at: RoundPosition,
    keys: tuple[Any, Any],
    number: Any,
    records: list,
    step: Any,
) -> Any:
    noise_key, outcome_key = (random.fold_in(key, number) for key in keys)
    return one_release(statistic, private_sum, phase, at, noise_key, outcome_key, records, step)


def asked(statistic: RecordStatistic, private_sum: PrivateSum, phase: int, *given: Any) -> Any:
    """Make a release, by a program that was compiled as quickly as pays; see ``_numbered``."""
    once = phase == 0 and private_sum.num_records <= _FEW
    return (_at_once if once else _again)(statistic, private_sum, phase, *given)


# Of many records a slow program costs more than it saves. The other one reads them as quickly as
# one that takes three times as long to compile.
_FEW = 20_000
_at_once = quickly_jitted(_numbered, static_argnums=(0, 1, 2))
_again = lightly_jitted(_numbered, static_argnums=(0, 1, 2))


def record_vector(
    statistic: RecordStatistic, phase: int, at: RoundPosition, outcome_key: Any
) -> Callable[[list], Any]:
    """What one record adds to a release, as a function of its leaves."""
    return partial((statistic.sizes, statistic.joint)[phase], at, outcome_key)
