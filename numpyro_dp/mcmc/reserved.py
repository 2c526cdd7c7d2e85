"""Samples that were charged together with their warm-up, and not drawn yet."""

from __future__ import annotations

from typing import Any, NamedTuple

from numpyro_dp.accounting.events import DpEvent
from numpyro_dp.mcmc.kernel import BoundKernel
from numpyro_dp.mcmc.progress import steps_behind


class Reserved(NamedTuple):
    """What :meth:`numpyro_dp.MCMC.warmup` charged for the samples that it announces.

    - **event**: the whole charge, warm-up included.
    - **done**: private steps of the warm-up, over all chains.
    - **later**: private steps of the samples, over all chains.
    - **chains**: chains.
    - **plate**: the private plate.
    """

    event: DpEvent
    done: int
    later: int
    chains: int
    plate: str

    def covers(self, bound: BoundKernel, steps: int, chains: int, state: Any) -> bool:
        """Whether ``steps`` of ``bound`` from ``state`` on are those samples, or fewer of them."""
        if steps > self.later or (chains, bound.wall.plate) != (self.chains, self.plate):
            return False
        if steps_behind(state) * chains != self.done:
            return False
        return bound.event(self.done + self.later, start=0, num_chains=chains) == self.event
