"""How far a run is: steps behind a state, and the ε that the bar shows."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from numpyro_dp.accounting import Relation, privacy_curve
from numpyro_dp.mcmc.kernel import BoundKernel

__all__ = ["epsilon_table", "steps_behind"]

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
    steps: int,
    behind: int,
    num_chains: int,
    relation: Relation,
    delta: float,
) -> tuple[tuple[int, float], ...]:
    """ε after some 20 numbers of steps up to ``steps``: what the bar looks up."""
    each = steps // num_chains
    counts = sorted({-(-each * k // _EPSILON_POINTS) for k in range(1, _EPSILON_POINTS + 1)})
    return tuple(
        (
            count * num_chains,
            privacy_curve(
                bound.event(count * num_chains, start=behind, num_chains=num_chains), relation
            ).epsilon(delta),
        )
        for count in counts
    )
