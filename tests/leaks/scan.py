"""Where a planted record, or a key that noise was made with, turns up.

One record holds ``PLANTED`` in every column, a number that nothing else is near. A run is
*watched*: what its caller holds afterwards, all that it printed, warned of, logged at DEBUG, wrote
to files and to JAX's compilation cache, and what it raised. ``leaks`` looks for the number on each
of these surfaces, as bytes of either precision and as text. A pattern of four bytes stands in a
megabyte of random ones by chance once in some 2,000 times.

What the caller's own frames and arrays hold is the caller's. While an exception of a charged run
travels, the frames that have ended hold nothing any more; those that have not are the caller's and
the method that was called, which holds its arguments and never a key. ``locals_left`` checks that.
"""

import contextlib
import gc
import io
import logging
import pickle
import re
import struct
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax._src.compilation_cache import decompress_executable

import numpyro_dp as ndp
from tests.arviz_groups import group_names
from tests.contract.surfaces import dataset_bytes, flatten

PLANTED = 12345.678
_TEXTS = ("12345.67", "12345.68", "12345.7", "1.235e+04", "1.23e+04")
_SINGLE = np.float32(PLANTED)
_NUMBERS = (_SINGLE, np.float64(_SINGLE), np.float64(PLANTED))
_PATTERNS = (
    *(number.tobytes() for number in _NUMBERS),
    # As pickles and databases write Python's numbers.
    *(number.tobytes()[::-1] for number in _NUMBERS),
    *(text.encode() for text in _TEXTS),
)
_OWN_PACKAGES = ("numpyro",)
# Where the walk ends: what all objects of a process share.
_SHARED = (types.ModuleType, types.BuiltinFunctionType, logging.Logger)
_CHANGING = re.compile(r"\.(time|created_at|versions|ledger|ledger_path)$")
_CLOCK = re.compile(
    r"0x[0-9a-f]+|\d+\.\d+(e-?\d+)?( sec| ms|s\b)|/\S+|line \d+|\d+T[\d:]+| +(?=\r|$)", re.M
)
# Whether JAX keeps a program follows from how long it took to compile.
_KEPT_OR_NOT = re.compile(r"persistent cache entry|took at least .* to compile")


@dataclass
class Watched:
    """What is left of a run.

    :param held: what the caller got or made, by name.
    :param folder: where its ledger is, and whatever else it wrote.
    """

    folder: Path
    held: dict[str, Any] = field(default_factory=dict)
    printed: str = ""
    warned: list[warnings.WarningMessage] = field(default_factory=list)
    logged: list[logging.LogRecord] = field(default_factory=list)
    raised: BaseException | None = None


class _Kept(logging.Handler):
    def __init__(self, into: list) -> None:
        super().__init__(logging.DEBUG)
        self.emit = into.append


def watch(act: Callable[[dict], None], folder: Path) -> Watched:
    """What ``act``, which puts into a dict what its caller holds, leaves behind."""
    seen, out = Watched(folder), io.StringIO()
    root = logging.getLogger()
    loggers = [each for each in logging.root.manager.loggerDict.values() if hasattr(each, "level")]
    levels = [(each, each.level) for each in (root, *loggers)]
    handler = _Kept(seen.logged)
    root.addHandler(handler)
    for each, _ in levels:
        each.setLevel(logging.DEBUG)
    try:
        with (
            warnings.catch_warnings(record=True) as seen.warned,
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(out),
        ):
            warnings.simplefilter("always")
            act(seen.held)
    except BaseException as error:
        seen.raised = error
    finally:
        root.removeHandler(handler)
        for each, level in levels:
            each.setLevel(level)
    seen.printed = out.getvalue()
    return seen


def forget_other_tests() -> None:
    """NumPyro keeps its last programs, and with them chains that tests ran by its own loop."""
    theirs = [each for name, each in list(sys.modules.items()) if name.startswith("numpyro.")]
    for function in [value for each in theirs for value in vars(each).values()]:
        if isinstance(function, types.FunctionType):
            vars(function).get("_cache", {}).clear()
    gc.collect()


@contextlib.contextmanager
def compilation_cache(folder: Path) -> Iterator[Path]:
    """JAX's persistent cache in a folder of its own, as a user switches it on."""
    from jax.experimental.compilation_cache import compilation_cache as cache

    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = [jax.config.values[name] for name in names]
    try:
        yield ndp.enable_compilation_cache(folder)
    finally:
        for name, value in zip(names, before, strict=True):
            jax.config.update(name, value)
        cache.reset_cache()


def _planted_bytes(content: bytes) -> bool:
    return any(pattern in content for pattern in _PATTERNS)


def planted(value: Any) -> bool:
    """Whether this one object, whatever it refers to, holds the planted number."""
    if isinstance(value, jax.Array):
        if isinstance(value, jax.core.Tracer) or value.is_deleted() or _is_key(value):
            return False
        return _planted_bytes(np.asarray(value).tobytes())
    if isinstance(value, (np.ndarray, np.generic)):
        return value.dtype != object and _planted_bytes(value.tobytes())
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _planted_bytes(bytes(value))
    if isinstance(value, str):
        return _planted_bytes(value.encode("utf-8", "surrogatepass"))
    if isinstance(value, float):
        return _planted_bytes(struct.pack("d", value))
    return isinstance(value, io.StringIO) and planted(value.getvalue())


def unmasking(value: Any) -> bool:
    """Whether this is a key of noise; a scrubbed one is zeros."""
    if isinstance(value, jax.core.Tracer) or not isinstance(value, jax.Array):
        return False
    known = not value.is_deleted() and _is_key(value) and str(value.dtype) == "key<cc20>"
    return known and bool(np.asarray(jax.random.key_data(value)).any())


def _is_key(value: jax.Array) -> bool:
    return jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key)


def places(root: Any, holds: Callable[[Any], bool] = planted) -> list[str]:
    """Ways from ``root`` to what ``holds``, by the types of what lies between.

    Everything that the garbage collector can reach is looked at (closures, caches, generators,
    slots, types and globals of the package), except modules and globals of other packages.
    """
    foreign = {
        id(vars(module))
        for name, module in list(sys.modules.items())
        if module is not None and not name.startswith(_OWN_PACKAGES)
    }
    seen: dict[int, Any] = {}
    hits, stack = [], [(root, type(root).__name__)]
    while stack:
        value, place = stack.pop()
        if id(value) in seen or id(value) in foreign or isinstance(value, _SHARED):
            continue
        # Kept, so that no other object gets its number meanwhile.
        seen[id(value)] = value
        if holds(value):
            hits.append(place)
            continue
        if isinstance(value, type) and not value.__module__.startswith(_OWN_PACKAGES):
            continue
        inside = gc.get_referents(value)
        if isinstance(value, np.ndarray) and value.dtype == object:
            inside = list(value.flat)
        stack += [(each, f"{place} > {type(each).__name__}") for each in inside]
    return hits


def package_globals() -> list[dict]:
    """Globals of this package and NumPyro, with all caches that functions keep."""
    return [vars(m) for name, m in list(sys.modules.items()) if name.startswith(_OWN_PACKAGES)]


def _pickles(held: dict) -> Iterator[tuple[str, bytes]]:
    for name, value in held.items():
        # What refuses to be pickled tells nothing that way.
        with contextlib.suppress(TypeError, AttributeError, pickle.PicklingError):
            yield name, pickle.dumps(value)


def _texts(held: dict) -> Iterator[tuple[str, str]]:
    for name, value in held.items():
        yield name, repr(value) + str(value)
        for form in ("full", "_repr_html_"):
            told = getattr(value, form, None)
            if callable(told):
                yield name, str(told())


def _groups(held: dict) -> Iterator[tuple[str, bytes]]:
    for name, value in held.items():
        if hasattr(value, "groups"):
            for group in group_names(value):
                yield from dataset_bytes(f"{name}.{group}", value[group]).items()


def _files(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        content = path.read_bytes()
        yield path.name, content
        if path.name.endswith("-cache"):
            yield f"{path.name}, unpacked", decompress_executable(content)


def chain(error: BaseException | None, handled: BaseException | None = None) -> list[BaseException]:
    """An exception and all that it was raised from or in the handling of."""
    found: list[BaseException] = []
    queue = [error]
    while queue:
        each = queue.pop()
        if each is None or each is handled or any(each is one for one in found):
            continue
        found.append(each)
        queue += [each.__cause__, each.__context__, *getattr(each, "exceptions", ())]
    return found


def leaks(seen: Watched) -> dict[str, list[str]]:
    """Places that hold the planted number, by surface; a clean run has none."""
    said = [(type(e).__name__, (e.args, vars(e), str(e))) for e in chain(seen.raised)]
    # How it is formatted is looked at too.
    logged = [(r.name, (r.getMessage(), r.args, r.msg, r.exc_text)) for r in seen.logged]
    warned = [(w.filename, (str(w.message), vars(w.message), w.source)) for w in seen.warned]
    named = {
        "reachable": seen.held.items(),
        "package": [("globals", package_globals())],
        "live arrays": [("an array on the device", each) for each in jax.live_arrays()],
        "printed": [("output", seen.printed)],
        "warnings": warned,
        "logs": logged,
        "files": _files(seen.folder),
        "pickles": _pickles(seen.held),
        "repr": _texts(seen.held),
        "arviz": _groups(seen.held),
        "exceptions": said,
    }
    found = {
        surface: [f"{name}: {place}" for name, value in items for place in places(value)]
        for surface, items in named.items()
    }
    return {surface: where for surface, where in found.items() if where}


def locals_left(raised: BaseException) -> list[str]:
    """Locals of frames that have ended, and keys of noise in those that have not."""
    found = []
    for error in chain(raised):
        trace = error.__traceback__
        own = True
        while trace is not None:
            frame, trace = trace.tb_frame, trace.tb_next
            inside = "numpyro_dp" in frame.f_globals.get("__name__", "")
            own = own and not inside
            if own:
                continue
            for name, value in frame.f_locals.items():
                place = f"{frame.f_code.co_qualname}.{name}"
                found += [f"{place}: {where}" for where in places(value, unmasking)]
                if not inside and places(value):
                    found.append(place)
    return found


def without_frames(seen: Watched) -> Watched:
    """The same with the frames of its exception let go: what they hold is ``locals_left``'s."""
    for error in chain(seen.raised):
        error.__traceback__ = None
    gc.collect()
    return seen


def flat(seen: Watched) -> dict[str, bytes]:
    """All that two runs on neighbouring data with equal noise must have in common."""
    found = {".printed": _CLOCK.sub("", _bars(seen.printed)).encode()}
    found[".warnings"] = repr([str(each.message) for each in seen.warned]).encode()
    said = [each.getMessage() for each in seen.logged]
    logged = [_CLOCK.sub("", each) for each in said if not _KEPT_OR_NOT.search(each)]
    found |= {f".logs[{k}]": text.encode() for k, text in enumerate(logged)}
    for name, value in seen.held.items():
        found |= flatten(f".{name}", value)
    found |= dict(_groups(seen.held))
    return {place: value for place, value in found.items() if not _CHANGING.search(place)}


def _bars(text: str) -> str:
    # tqdm prints elapsed time and speed in brackets.
    return re.sub(r"\[[^\]]*(it/s|s/it|\?)[^\]]*\]", "", text)


def differing(one: Watched, other: Watched) -> list[str]:
    """Places in which two watched runs differ."""
    first, second = flat(one), flat(other)
    return sorted(p for p in {*first, *second} if first.get(p) != second.get(p))
