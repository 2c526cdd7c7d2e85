"""How far a run is: steps behind a state, and the ε that the bar shows."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from numpyro_dp.accounting import Relation, privacy_curve
from numpyro_dp.accounting.events import ComposedDpEvent
from numpyro_dp.mcmc.kernel import BoundKernel

_EPSILON_POINTS = 20
# Far enough from where a 32-bit counter wraps for any run to finish.
_LAST_STEP = 1 << 30


def steps_behind(state: Any) -> int:
    """Private steps that every chain of ``state`` has behind it.

    :raises ValueError: when the chains disagree: a noise schedule would be charged for the steps
        of one and used at those of another.
    """
    counters = np.unique(np.asarray(state.i))
    if counters.size != 1:
        raise ValueError(
            f"post_warmup_state has chains with different step counters ({counters.tolist()}): "
            "resume from a state as a run has left it"
        )
    if not 0 <= counters[0] < _LAST_STEP:
        raise ValueError(
            f"post_warmup_state has the step counter {counters[0]}: resume from a state as a run "
            "has left it"
        )
    return int(counters[0])


@lru_cache(maxsize=64)
def epsilon_table(
    bound: BoundKernel,
    first: BoundKernel | None,
    steps: int,
    behind: int,
    num_chains: int,
    in_turn: bool,
    relation: Relation,
    delta: float,
) -> tuple[tuple[int, float], ...]:
    """ε after some 20 numbers of steps up to ``steps``: what the bar looks up.

    ``in_turn`` says that each chain ends before the next begins, which matters where the noise
    changes from step to step; ``first`` is the kernel whose one sample starts every chain.
    """
    each = steps // num_chains
    group = 1 if in_turn else num_chains
    total = steps // group
    counts = sorted({-(-total * k // _EPSILON_POINTS) for k in range(1, _EPSILON_POINTS + 1)})

    def epsilon(count: int) -> float:
        whole, rest = divmod(count * group, each) if in_turn else (0, count)
        parts = []
        if first is not None:
            before = first.steps_per_sample * num_chains
            parts.append(first.event(before, num_chains=num_chains))
        if whole:
            parts.append(bound.event(whole * each, start=behind, num_chains=whole))
        if rest:
            parts.append(bound.event(rest * group, start=behind, num_chains=group))
        return privacy_curve(ComposedDpEvent(parts), relation).epsilon(delta)

    return tuple((count * group, epsilon(count)) for count in counts)


def cents_up(epsilon: float) -> str:
    """ε in hundredths, rounded up: a bar shows no less than was spent."""
    return "∞" if epsilon == math.inf else f"{math.ceil(epsilon * 100 - 1e-9) / 100:.2f}"
