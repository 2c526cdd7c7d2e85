"""Python's garbage collector, made to look less often while JAX traces and compiles."""

from __future__ import annotations

import gc
import threading
from collections.abc import Generator
from contextlib import contextmanager

# Tracing a model makes millions of objects, of which most stay: at Python's own rate, one second in
# twenty of a first run goes to looking through all of them again.
_OBJECTS = 100_000

_LOCK = threading.Lock()
_runs = 0
_before: tuple[int, int, int] | None = None


@contextmanager
def rare_collections() -> Generator[None]:
    """Collect garbage after 100,000 new objects rather than 700, until the last such run ends.

    A collector that is switched off, or that the caller made rarer, stays as it is.
    """
    global _runs, _before
    with _LOCK:
        _runs += 1
        own = gc.get_threshold()
        if _runs == 1 and 0 < own[0] < _OBJECTS:
            _before = own
            gc.set_threshold(_OBJECTS, *own[1:])
    try:
        yield
    finally:
        with _LOCK:
            _runs -= 1
            if _runs == 0 and _before is not None:
                # A threshold that was set meanwhile is the caller's.
                if gc.get_threshold()[0] == _OBJECTS:
                    gc.set_threshold(*_before)
                _before = None
