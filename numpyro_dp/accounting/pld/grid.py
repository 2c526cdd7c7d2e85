"""The grid of losses on which steps are composed, and how many kinds of steps share one.

Fine against the loss of one step, or small sampling rates would be rounded up to several times
their cost, and coarse enough to stay quick.
"""

import math
from typing import NamedTuple

from numpyro_dp.accounting.pld.bound import Pieces

# Grid spacing over the standard deviation of one step's loss: the excess of ε is about its
# square over twelve.
_FINENESS = 1 / 32
_GROUPED_FINENESS = 1 / 4
_COARSEST = 2.0**-10
_MAX_POINTS = 1 << 21
# Wide losses make the transforms long.
_MAX_STEP_POINTS = 1 << 16
_MAX_MULTIPLIERS = 64


class Step(NamedTuple):
    """One Poisson-subsampled Gaussian release: sampling rate and noise over clip norm."""

    rate: float
    multiplier: float


Steps = tuple[tuple[Step, int], ...]


def spacing_of(
    steps: Steps, pieces: Pieces, shift: float, square: float, *, merged: bool, coarse: bool
) -> float:
    """Return the grid spacing, a power of two so that runs share their discretised steps.

    :param steps: sampled steps with their counts, as ``grouped`` returns them.
    :param pieces: profiles with their counts.
    :param shift: sensitivity of a clipped sum in clip norms.
    :param square: Σ μ² of the Gaussians without sampling.
    :param merged: whether ``grouped`` merged any.
    :param coarse: whether to use fewer points for the widest losses.
    """
    fineness = _GROUPED_FINENESS if merged else _FINENESS
    count = sum(n for _, n in (*steps, *pieces))
    variance = sum(n * loss_variance(step, shift) for step, n in steps)
    variance += sum(n * profile.variance for profile, n in pieces)
    spread = math.sqrt(variance + square)
    reach = 12 * spread + spread**2
    widest = max(largest_loss(step, shift) for step, _ in steps) if steps else 0.0
    widest = max([widest, *(profile.largest for profile, _ in pieces)])
    points = _MAX_STEP_POINTS // 8 if coarse else _MAX_STEP_POINTS
    wanted = max(fineness * math.sqrt(variance / count), reach / _MAX_POINTS, widest / points)
    spacing = min(wanted, max(_COARSEST, reach / 4096, widest / points))
    return 2.0 ** math.floor(math.log2(spacing))


def largest_loss(step: Step, shift: float) -> float:
    """Return about the largest loss of one step that has any mass: log(1 + q(e^x − 1))."""
    mu = shift / step.multiplier
    exponent = mu**2 / 2 + 9 * mu
    if exponent > 700:
        return max(exponent + math.log(step.rate), 1.0)
    return math.log1p(step.rate * math.expm1(exponent))


def loss_variance(step: Step, shift: float, cap: float = 2.0) -> float:
    """Return roughly the variance of one step's loss, q²(e^{μ²} − 1).

    At ``cap`` on μ² the rare large losses are left out.
    """
    square = (shift / step.multiplier) ** 2
    return min(step.rate**2 * math.expm1(min(square, cap)), square)


def grouped(steps: Steps) -> Steps:
    """Return some hundred multipliers at most, each rounded down: an upper bound on the loss.

    Neighbouring multipliers share the least of them until the cost added by that reaches its share
    of 1 % of the whole, so that the many quiet steps of a long schedule share most.
    """
    if len(steps) <= _MAX_MULTIPLIERS:
        return steps
    share = 0.009 / _MAX_MULTIPLIERS * sum(n * _cost(step) for step, n in steps)
    groups: list[list] = []
    excess = 0.0
    for step, count in steps:
        if groups and groups[-1][0].rate == step.rate:
            excess += count * (_cost(groups[-1][0]) - _cost(step))
            if excess <= share:
                groups[-1][1] += count
                continue
        groups.append([step, count])
        excess = 0.0
    return tuple((step, count) for step, count in groups)


def _cost(step: Step) -> float:
    return loss_variance(step, 1.0, cap=700.0)
