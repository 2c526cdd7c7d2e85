"""The progress bar: steps done, and the ε reached by then."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from functools import lru_cache
from typing import Protocol

import tqdm.auto

from numpyro_dp.accounting import Relation, privacy_curve, rounded_up
from numpyro_dp.accounting.events import DpEvent

_EPSILON_POINTS = 20


class Costed(Protocol):
    """A run's releases, fixed and hashable."""

    def cost(self, done: int, num_steps: int) -> DpEvent:
        """What the first ``done`` of a run's ``num_steps`` steps cost."""
        ...

    def __hash__(self) -> int: ...


@contextlib.contextmanager
def steps_bar(
    plan: Costed, num_steps: int, relation: Relation, delta: float, shown: bool
) -> Generator[Callable[[int], None]]:
    """Yield what shows a number of steps done, with the ε reached by then."""
    if not shown:
        yield lambda done: None
        return
    table = _epsilon_table(plan, num_steps, relation, delta)
    with tqdm.auto.tqdm(total=num_steps, mininterval=0) as shown_bar:

        def show(done: int) -> None:
            reached = next(epsilon for count, epsilon in table if done <= count)
            text = f"ε={rounded_up(reached)} of {rounded_up(table[-1][1])} charged"
            shown_bar.set_postfix_str(text, refresh=False)
            shown_bar.update(done - shown_bar.n)

        yield show


@lru_cache(maxsize=64)
def _epsilon_table(
    plan: Costed, num_steps: int, relation: Relation, delta: float
) -> tuple[tuple[int, float], ...]:
    """ε after some 20 numbers of steps up to all of them: what the bar looks up."""
    counts = sorted({-(-num_steps * k // _EPSILON_POINTS) for k in range(1, _EPSILON_POINTS + 1)})
    return tuple(
        (count, privacy_curve(plan.cost(count, num_steps), relation).epsilon(delta))
        for count in counts
    )
