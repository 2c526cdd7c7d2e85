"""The progress bar: steps done, and the ε reached by then."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from functools import lru_cache

import jax
import tqdm.auto

from numpyro_dp.accounting import Relation, privacy_curve, rounded_up
from numpyro_dp.svi.fit import Carry
from numpyro_dp.svi.plan import Plan

__all__ = ["bar"]

_EPSILON_POINTS = 20


@contextlib.contextmanager
def bar(
    plan: Plan, num_steps: int, relation: Relation, delta: float, *, shown: bool
) -> Generator[Callable[[int, Carry], None]]:
    """Yield what shows a number of steps done, with the ε reached by then."""
    if not shown:
        yield lambda done, carry: None
        return
    table = _epsilon_table(plan, num_steps, relation, delta)
    with tqdm.auto.tqdm(total=num_steps, mininterval=0) as shown_bar:

        def show(done: int, carry: Carry) -> None:
            jax.block_until_ready(carry.i)
            reached = next(epsilon for count, epsilon in table if done <= count)
            text = f"ε={rounded_up(reached)} of {rounded_up(table[-1][1])} charged"
            shown_bar.set_postfix_str(text, refresh=False)
            shown_bar.update(done - shown_bar.n)

        yield show


@lru_cache(maxsize=64)
def _epsilon_table(
    plan: Plan, num_steps: int, relation: Relation, delta: float
) -> tuple[tuple[int, float], ...]:
    """ε after some 20 numbers of steps up to all of them: what the bar looks up."""
    counts = sorted({-(-num_steps * k // _EPSILON_POINTS) for k in range(1, _EPSILON_POINTS + 1)})
    return tuple(
        (
            count,
            privacy_curve(plan.event(count, finished=count == num_steps), relation).epsilon(delta),
        )
        for count in counts
    )
