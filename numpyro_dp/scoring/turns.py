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

from numpyro_dp._quick_compile import lightly_jitted, quickly_jitted
from numpyro_dp.execution.processes import require_same
from numpyro_dp.execution.releases import Releases
from numpyro_dp.mechanisms import PrivateSum
from numpyro_dp.scoring.forecast import Forecast
from numpyro_dp.scoring.information import Vector
from numpyro_dp.scoring.prior import Directions
from numpyro_dp.scoring.rounds import (
    PriorMoments,
    Round,
    RoundSettings,
    next_settings,
)
from numpyro_dp.scoring.statistic import (
    FIRST_BIN,
    INFORMATION_SHARE,
    SCORE_SHARE,
    SQUARES_SHARE,
    TAIL_SHARE,
    RecordStatistic,
    RoundPosition,
    unpacked,
)

# A bin counts for less by this many noise sds the farther it is from the prior's scale, and a peak
# of fewer may be noise.
_FARTHER, _CLEAR = 0.05, 4.0


class BoundRelease(NamedTuple):
    """Every number of a release, fixed before a record is touched.

    - **prior**: of the coordinates that rounds ask in, which **directions** are.
    """

    statistic: RecordStatistic
    directions: Directions
    prior: PriorMoments
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
    whole = RoundSettings(prior.mean, np.diag(prior.sd), prior.precision, 1.0, 1.0)
    (noise_sd,) = _noise(bound.plan.sums[0], 1)
    settings = first_settings(prior, (yield Ask(0, whole, 0)), FIRST_BIN, noise_sd)
    noise = _noise(joint, len(shares))
    signal = float(np.mean([1 / (nm * math.sqrt(s)) for nm, s in zip(noise, shares, strict=True)]))
    rounds: list[Round] = []
    for step, share in enumerate(shares):
        released = yield Ask(1, settings, step)
        found = _read(settings, released, noise[step], share)
        # What no record adds to is noise alone.
        rounds.append(found if bound.statistic.has_tails else found._replace(tail=0.0))
        if step + 1 < len(shares):
            settings = next_settings(rounds, prior, bound.forecast.num_records, signal, shares)
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
    whitening = np.diag(prior.sd)
    return RoundSettings(prior.mean, whitening, prior.precision, clip_norm, clip_norm**2, clear)


def round_position(bound: BoundRelease, settings: RoundSettings) -> RoundPosition:
    """Where records are asked, and in which coordinates, as arrays."""
    clip, of = settings.clip_norm, bound.directions
    u, whitening = of.origin + of.basis @ settings.u, settings.whitening @ of.basis.T
    numbers = u, whitening / clip, settings.information_bound / clip**2
    leaves: list[Any] = [np.asarray(x, jnp.result_type(float)) for x in numbers]
    return RoundPosition(*leaves)


def _noise(each: PrivateSum, steps: int) -> list[float]:
    """Standard deviations of the noise of the first steps, from one small program."""
    return [float(sd) for sd in _noise_sds(each, steps)]


_noise_sds = quickly_jitted(
    lambda each, steps: [each.noise_sd(step) for step in range(steps)], static_argnums=(0, 1)
)


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
