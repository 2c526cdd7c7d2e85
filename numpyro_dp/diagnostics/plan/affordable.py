"""How many steps some values of ε would buy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from numpyro_dp.accounting import privacy_curve
from numpyro_dp.diagnostics.plan.subject import PlannedRun

_EPSILONS = (0.1, 0.5, 1.0, 2.0, 5.0)
# Marks where those are too far off to say anything: in multiples of the plan's own ε.
_MULTIPLES = (0.25, 0.5, 1.0, 2.0, 4.0)


def affordable(studied: PlannedRun, own: float) -> tuple[tuple[float, int], ...]:
    """About how many steps stay below some marks of ε, between a 16th and 16 times those planned.

    The marks are usual ones, or multiples of the plan's own ε where fewer than two of those are
    reached. ε is computed at five counts and interpolated in logarithms; figures are rounded down.
    """
    chains, counts, epsilons = studied.num_chains, [], []
    for factor in (1 / 16, 1 / 4, 1, 4, 16):
        count = chains * max(round(factor * studied.num_steps / chains), 1)
        if counts and count == counts[-1]:
            continue
        curve = privacy_curve(studied.event(count), studied.relation, coarse=True)
        epsilon = curve.epsilon(studied.delta)
        # Through so much noise as makes ε zero, δ alone pays, and there is no logarithm.
        if 0 < epsilon < math.inf:
            counts.append(count)
            epsilons.append(epsilon)
    found = []
    for mark in _marks(epsilons, own):
        at = np.exp(np.interp(math.log(mark), np.log(epsilons), np.log(counts)))
        found.append((mark, max(int(0.97 * at) // chains * chains, counts[0])))
    return tuple(found)


def _marks(epsilons: Sequence[float], own: float) -> list[float]:
    """Marks of ε from the first to the last of some increasing ones."""
    if not epsilons:
        return []

    def reached(marks: Iterable[float]) -> list[float]:
        return [mark for mark in marks if epsilons[0] <= mark <= epsilons[-1]]

    usual = reached(_EPSILONS)
    if len(usual) > 1:
        return usual
    return reached(float(f"{multiple * own:.3g}") for multiple in _MULTIPLES)
