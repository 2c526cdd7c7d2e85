"""What the steps of several chains cost, in the order in which their bar counts them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from numpyro_dp.accounting import Relation
from numpyro_dp.accounting.events import ComposedDpEvent, DpEvent
from numpyro_dp.execution.account import Charge
from numpyro_dp.execution.progress import EpsilonTable, epsilon_table
from numpyro_dp.mcmc.first import First
from numpyro_dp.mcmc.kernel import BoundKernel
from numpyro_dp.mcmc.reserved import Reserved


@dataclass(frozen=True)
class ChainsCost:
    """The steps of a run, ``group`` of them at a time.

    :param bound: the bound kernel.
    :param first: releases from which the chains start, or ``None``.
    :param each: steps of a chain.
    :param behind: steps that each chain has behind it.
    :param num_chains: chains.
    :param in_turn: whether each chain ends before the next begins, which matters where the noise
        changes from step to step.
    """

    bound: BoundKernel
    first: First | None
    each: int
    behind: int
    num_chains: int
    in_turn: bool

    @property
    def group(self) -> int:
        """Steps that are taken side by side."""
        return 1 if self.in_turn else self.num_chains

    def cost(self, done: int, num_steps: int) -> DpEvent:
        """What the first ``done`` groups cost."""
        whole, rest = divmod(done, self.each) if self.in_turn else (0, done)
        parts = [] if self.first is None else [self.first.event]
        if whole:
            steps = whole * self.each
            parts.append(self.bound.event(steps, start=self.behind, num_chains=whole))
        if rest:
            steps = rest * self.group
            parts.append(self.bound.event(steps, start=self.behind, num_chains=self.group))
        return ComposedDpEvent(parts)

    @property
    def steps(self) -> int:
        """Steps of all chains."""
        return self.each * self.num_chains

    @property
    def event(self) -> DpEvent:
        """What the steps of all chains cost."""
        return self.bound.event(self.steps, start=self.behind, num_chains=self.num_chains)

    def charge(self, label: str, warmup: int) -> Charge:
        """All that is charged for.

        :param label: name of the kernel.
        :param warmup: steps of a chain that are warm-up.
        """
        facts, first, event = self.bound.facts(), self.first, self.event
        steps, conditions = self.steps, facts.conditions
        distance = facts.overflow_delta * steps
        if first is not None:
            event, label = ComposedDpEvent([first.event, event]), label + first.label
            conditions, distance = first.conditions + conditions, first.total_variation + distance
            steps += first.steps
        return Charge(
            event,
            steps,
            distance,
            label=label,
            warmup_steps=min(warmup, self.each) * self.num_chains,
            conditions=conditions,
        )

    def reserved(self, now: int, later: int) -> Reserved | None:
        """What is charged for and comes after the first ``now`` steps of all chains."""
        if not later:
            return None
        bound = self.bound
        shared = self.num_chains, bound.private_model.plate, bound.facts().conditions
        return Reserved(self.event, now, later, *shared)

    def table(self, relation: Relation, delta: float, shown: bool) -> EpsilonTable:
        """ε by number of steps, over all chains."""
        groups = self.steps // self.group
        found = epsilon_table(self, groups, relation, delta, shown)
        return tuple((count * self.group, epsilon) for count, epsilon in found)


def cents_up(epsilon: float) -> str:
    """ε in hundredths, rounded up: a bar shows no less than was spent."""
    return "∞" if epsilon == math.inf else f"{math.ceil(epsilon * 100 - 1e-9) / 100:.2f}"
