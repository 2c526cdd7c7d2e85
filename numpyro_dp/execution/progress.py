"""The progress bar: steps done, the ε reached by then, and the time left once all is compiled."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Generator
from functools import cache, lru_cache
from typing import Any, Protocol

import tqdm.auto
from jax import monitoring

from numpyro_dp._shards import several_processes
from numpyro_dp.accounting import Relation, privacy_curve, rounded_up
from numpyro_dp.accounting.events import DpEvent
from numpyro_dp.execution.processes import is_first

_EPSILON_POINTS = 20

# Numbers of steps, ascending up to all of them, and the ε reached by then.
EpsilonTable = tuple[tuple[int, float], ...]


class Costed(Protocol):
    """A run's releases, fixed and hashable."""

    def cost(self, done: int, num_steps: int) -> DpEvent:
        """What the first ``done`` of a run's ``num_steps`` steps cost."""
        ...

    def __hash__(self) -> int: ...


@contextlib.contextmanager
def steps_bar(
    total: int,
    table: EpsilonTable,
    *,
    shown: bool,
    form: Callable[[float], str] = rounded_up,
    leave: bool = True,
) -> Generator[Callable[..., None]]:
    """Yield what shows a number of steps done, with the ε reached by then.

    It says "compiling" while XLA compiles what the first step waits for. The time of steps that
    waited for a program tells nothing of those to come: neither rate nor time left counts it.

    :param total: steps of the bar.
    :param table: of :func:`epsilon_table`; without one the bar shows no ε.
    :param shown: whether there is a bar, of several processes in the first one alone; none where
        tqdm is switched off (``TQDM_DISABLE=1``) either.
    :param form: how ε is written, never too small.
    :param leave: whether it stands when all is done; one of what only prepares a run does not.

    No failure of the bar ends what it shows.
    """
    bar = _bar(total, leave) if shown and is_first() else None
    if bar is None:
        yield lambda *_, **__: None
        return
    with _watched(bar) as watch:

        def show(
            done: int,
            reached: int | None = None,
            phase: str | None = None,
            told: Callable[[], str] = str,
        ) -> None:
            with _harmless():
                write(done, done if reached is None else reached, phase, told())

        def write(done: int, steps: int, phase: str | None, told: str) -> None:
            watch.step(done)
            bar.set_description(phase, refresh=False)
            # Rounded up to the next point of the table: the bar never shows less than was spent.
            epsilon = next((epsilon for count, epsilon in table if steps <= count), None)
            text = "" if epsilon is None else f"ε={form(epsilon)} of {form(table[-1][1])} charged"
            bar.set_postfix_str(", ".join(filter(None, (text, told))), refresh=False)
            bar.update(done - bar.n)

        try:
            yield show
        finally:
            with _harmless():
                bar.close()


def _harmless() -> contextlib.AbstractContextManager[None]:
    # A run is charged by the time that a bar is drawn: a closed pipe, a notebook's widget or a
    # tqdm with other attributes would cost its result. Ctrl-C is no Exception and still ends it.
    return contextlib.suppress(Exception)


def _bar(total: int, leave: bool) -> Any:
    with _harmless():
        # Without smoothing: the rate is of all steps that count. Each call is shown, however long
        # the one before took.
        bar = tqdm.auto.tqdm(total=total, mininterval=0, miniters=1, smoothing=0, leave=leave)
        # One that is disabled has neither rate nor start.
        return None if bar.disable else bar
    return None


class _Watch:
    """Leaves out of a bar's rate what was waited for, and says that while nothing was done yet."""

    def __init__(self, bar: Any) -> None:
        self._bar, self._waited, self._last = bar, 0.0, time.time()
        self._said = False

    def compiling(self, seconds: float) -> None:
        """A program is being compiled, or was for so many seconds."""
        self._waited += seconds
        if not self._said and self._bar.n == 0:
            self._bar.set_description("compiling")
        self._said = True

    def step(self, done: int) -> None:
        """Steps up to ``done`` are made."""
        now = time.time()
        took = now - self._last
        # Of a step that is far more than what it waited for, as a fit is, the rest is counted.
        if 2 * self._waited > took:
            self._bar.start_t += took
            self._bar.initial += done - self._bar.n
        else:
            self._bar.start_t += self._waited
        self._waited, self._last = 0.0, now


_WATCHES = threading.local()


@contextlib.contextmanager
def _watched(bar: Any) -> Generator[_Watch]:
    _listen()
    outer = getattr(_WATCHES, "inmost", None)
    _WATCHES.inmost = _Watch(bar)
    try:
        yield _WATCHES.inmost
    finally:
        _WATCHES.inmost = outer


@cache
def _listen() -> None:
    monitoring.register_event_duration_secs_listener(_heard)


def _heard(event: str, duration_secs: float, **__: Any) -> None:
    # Tracing is over before XLA begins, and it is XLA that takes the time.
    watch = getattr(_WATCHES, "inmost", None)
    if watch is not None and event.startswith("/jax/core/compile/"):
        with _harmless():
            watch.compiling(duration_secs)


def pieces(for_bar: int, without: int, shown: bool) -> int:
    """In how many pieces a loop runs; the same in all processes, whichever shows a bar.

    :param for_bar: where a bar is shown; ``without`` where none is.
    """
    return for_bar if shown or several_processes() else without


def epsilon_table(
    run: Costed, num_steps: int, relation: Relation, delta: float, shown: bool
) -> EpsilonTable:
    """ε after some 20 numbers of steps up to all of them: what the bar looks up.

    :param shown: whether there is a bar; the table of none is empty.
    """
    return _table(run, num_steps, relation, delta) if shown and num_steps else ()


@lru_cache(maxsize=64)
def _table(run: Costed, num_steps: int, relation: Relation, delta: float) -> EpsilonTable:
    counts = sorted({-(-num_steps * k // _EPSILON_POINTS) for k in range(1, _EPSILON_POINTS + 1)})
    return tuple(
        (count, privacy_curve(run.cost(count, num_steps), relation).epsilon(delta))
        for count in counts
    )
