"""What of the process is set otherwise while runs go on: its garbage collector, its BLAS."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager

from threadpoolctl import threadpool_limits

# Tracing a model makes millions of objects, of which most stay: at Python's own rate, one second in
# twenty of a first run goes to looking through all of them again.
_OBJECTS = 100_000

_LOCK = threading.Lock()
_runs = 0
_undo: tuple[Callable[[], None], ...] = ()


@contextmanager
def settings_of_runs() -> Generator[None]:
    """Set the process for a run, until the last of those that go on together ends.

    Garbage is collected after 100,000 new objects rather than 700. A collector that is switched
    off, or that the caller made rarer or sets meanwhile, stays as it is.

    BLAS has one thread. Its matrices have a row a latent, for which more gain little. Where cores
    are busy, or fewer than it counts, they wait for each other: eigenvectors of 64 coordinates took
    47 ms in place of .3, of 256 a second in place of 8 ms.
    """
    global _runs, _undo
    with _LOCK:
        _runs += 1
        if _runs == 1:
            _undo = _rare_collections(), _one_thread()
    try:
        yield
    finally:
        with _LOCK:
            _runs -= 1
            if _runs == 0:
                for each in _undo:
                    each()
                _undo = ()


def _rare_collections() -> Callable[[], None]:
    own = gc.get_threshold()
    if 0 < own[0] < _OBJECTS:
        gc.set_threshold(_OBJECTS, *own[1:])

    def undo() -> None:
        # A threshold that was set meanwhile is the caller's.
        if own[0] < _OBJECTS and gc.get_threshold()[0] == _OBJECTS:
            gc.set_threshold(*own)

    return undo


def _one_thread() -> Callable[[], None]:
    return threadpool_limits(1, user_api="blas").restore_original_limits
