"""Steps behind a state, and samples that were charged together with their warm-up."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from numpyro_dp.accounting.events import DpEvent
from numpyro_dp.mcmc.kernel import BoundKernel

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


class Reserved(NamedTuple):
    """What :meth:`numpyro_dp.MCMC.warmup` charged for the samples that it announces.

    - **event**: the whole charge, warm-up included.
    - **done**: private steps of the warm-up, over all chains.
    - **later**: private steps of the samples, over all chains.
    - **chains**: chains.
    - **plate**: the private plate.
    - **conditions**: what the charge depends on.
    """

    event: DpEvent
    done: int
    later: int
    chains: int
    plate: str
    conditions: tuple[str, ...]

    def covers(self, bound: BoundKernel, steps: int, chains: int, state: Any) -> bool:
        """Whether ``steps`` of ``bound`` from ``state`` on are those samples, or fewer of them."""
        if steps > self.later or (chains, bound.private_model.plate) != (self.chains, self.plate):
            return False
        if steps_behind(state) * chains != self.done:
            return False
        if bound.facts().conditions != self.conditions:
            return False  # Events alone do not tell what they depend on.
        return bound.event(self.done + self.later, start=0, num_chains=chains) == self.event
