"""A lint for the likeliest mistake: code that names the records instead of taking its arguments.

A trace shows an array that enters the model's arithmetic. It cannot show a number that NumPy made
of one before: ``x.mean()`` of a global ``x`` is a plain constant by then. So the code is read too,
by name and shape alone. No claim rests on it; docs/limitations.md says what it does not see.
"""

import contextlib
import dis
import functools
import inspect
import sys
import warnings
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from numbers import Number
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpyro.distributions import Distribution
from numpyro.primitives import Messenger

from numpyro_dp.errors import UnsupportedModelError, caller
from numpyro_dp.model.names import quoted
from numpyro_dp.model.records import FixedLeaf, Layout

_OF_SHAPE = frozenset({"shape", "ndim", "dtype", "columns"})
_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "LOAD_SUPER_METHOD")
# They stand between a name and what is made of it, by version of Python.
_SILENT = ("CACHE", "PRECALL", "PUSH_NULL", "NOP", "RESUME")


class Loads(NamedTuple):
    """Names that are loaded, by where they are looked up."""

    variables: frozenset[str]
    cells: frozenset[str]
    parameters: frozenset[str]
    attributes: frozenset[str]


@lru_cache(maxsize=1024)
def loads(code: CodeType, by_shape: bool) -> Loads:
    """Read the names that a function, or one defined inside of it, loads.

    :param code: the function's code.
    :param by_shape: leave out names of which only a shape, type or length is asked.
    :returns: The names; whatever a newer Python writes otherwise counts as loaded.
    """
    steps = [s for s in dis.get_instructions(code) if s.opname not in _SILENT]
    found: set[tuple[str, str]] = set()
    for at, step in enumerate(steps):
        if "LOAD" not in step.opname or step.opname in ("LOAD_CONST", "LOAD_CLOSURE"):
            continue
        # Some instructions load two names at once.
        each = step.argval if isinstance(step.argval, tuple) else (step.argval,)
        if by_shape and _asks_for_shape(steps, at):
            each = each[:-1]
        found.update((_where(step.opname), str(name)) for name in each)
    # Cells are handed on to inner functions, which are read themselves.
    found -= {("parameters", name) for name in (*code.co_cellvars, *code.co_freevars)}
    for inner in (c for c in code.co_consts if isinstance(c, CodeType)):
        more = loads(inner, by_shape)._replace(parameters=frozenset())
        found.update((where, n) for where, names in more._asdict().items() for n in names)
    return Loads(*(frozenset(n for w, n in found if w == where) for where in Loads._fields))


def _where(opname: str) -> str:
    """Field of :class:`Loads` for what an instruction loads."""
    if opname in _ATTRIBUTE:
        return "attributes"
    return "cells" if "DEREF" in opname else "parameters" if "FAST" in opname else "variables"


def _asks_for_shape(steps: list[dis.Instruction], at: int) -> bool:
    """Whether what is loaded here is only asked for its shape: ``x.shape``, ``len(x)``."""
    if at + 1 == len(steps):
        return False
    after, first = steps[at + 1], at
    if after.opname in _ATTRIBUTE:
        return after.argval in _OF_SHAPE
    while first > 0 and steps[first].opname in _ATTRIBUTE:
        first -= 1
    called = after.opname.startswith("CALL") and after.arg == 1
    return called and first > 0 and steps[first - 1].argval == "len"


# Their objects hold made-up records: an autoguide keeps a trace of them.
_OURS = frozenset({"numpyro", "numpyro_dp"})
# Their objects hold what they were handed, such as an optimiser's schedule.
_OTHERS = frozenset(
    {"jax", "jaxlib", "jaxtyping", "numpy", "scipy", "optax", "chex", "flax", "haiku", "equinox"}
    | {"funsor", "dp_accounting", "pandas", "xarray", "sklearn", "arviz", "matplotlib"}
    | {"pytest", "_pytest"}
)
# Their code names nothing of the caller's.
_LIBRARIES = (_OURS | _OTHERS | sys.stdlib_module_names) - {"__main__"}
_PLAIN = (Number, str, bytes, type(None))
_LISTS = (dict, list, tuple, set, frozenset, deque, array)
# What runs where an object is called, or its elements are asked for; and where it is made.
_OF_OBJECTS, _OF_CLASSES = frozenset({"__call__", "__getitem__"}), frozenset({"__init__"})
_MODEL_REMEDY = (
    "Make it an argument of the model (wrapped in `numpyro_dp.public` if it holds nothing private)"
)

Named = tuple[str, Any]


def refuse_captured_arrays(
    function: Callable[..., Any],
    layout: Layout,
    num_records: int,
    arrays: Sequence[Any] = (),
    *,
    whose: str = "the model",
    remedy: str = _MODEL_REMEDY,
) -> bool:
    """Refuse code that names an array of one entry per record, or memory of a record argument.

    Where that number is private, an array of ten entries or more is refused, whatever the number
    is: a verdict that followed it would tell it. Otherwise a longer one only gets a warning, and
    one that is a public argument too is taken. Looked at are a function's globals, closures and
    default arguments, what a ``partial`` binds and a handler holds, attributes of objects, and the
    functions found there; of a library's code, only what it was handed. What is named for its
    ``shape``, ``ndim``, ``dtype``, ``columns`` or ``len`` alone passes, unless the number of
    records is private.

    :param function: a model, a guide or another function of the caller's.
    :param layout: the model's arguments, some of them declared public.
    :param num_records: number of records.
    :param arrays: the record arguments, where they are at hand.
    :param whose: what to call the function in a message.
    :param remedy: what to do about it.
    :returns: Whether something was warned of.
    :raises UnsupportedModelError: with the array's name and the remedy.
    """
    # A length tells the number of records where that is private.
    by_shape = layout.tells_length(num_records)
    warned: set[str] = set()
    for name, value in _named(function, by_shape):
        shape = _shape(value)
        if shape is None:
            continue
        of_all = any(layout.is_of_all(length, num_records) for length in shape)
        theirs = of_all or any(_shares_memory(value, each) for each in arrays)
        if not (theirs or layout.is_longer(shape)) or layout.is_public(value):
            continue
        # Without the shape: where the number of records is private, it may tell it.
        told = f"the code of {whose} names `{name}`, which may hold records and is no argument: "
        if theirs:
            raise UnsupportedModelError(
                f"{told}whatever is computed from it in there would be unprotected. {remedy}"
            )
        if name not in warned:
            warned.add(name)
            warnings.warn(f"{told}if it does, they are unprotected. {remedy}", stacklevel=caller())
    return bool(warned)


def unhanded(function: Callable[..., Any], layout: Layout, num_records: int) -> str:
    """What of a function's code may be why a model fails on its rows; empty where nothing is.

    By the same rule as :func:`refuse_captured_arrays`, which is asked of models that do not fail.
    """
    by_shape = layout.tells_length(num_records)
    names: set[str] = set()
    # What code names may be anything, and another message waits for this.
    with contextlib.suppress(Exception):
        for name, value in _named(function, by_shape):
            shape = _shape(value) or ()
            of_all = any(layout.is_of_all(length, num_records) for length in shape)
            if (of_all or layout.is_longer(shape)) and not layout.is_public(value):
                names.add(name)
    if not names:
        return ""
    each = "it" if len(names) == 1 else "each"
    cause = f"{quoted(sorted(names))}, which its code names"
    return f". Perhaps the cause is {cause}: make {each} an argument"


def require_all_handed(
    model: Callable[..., Any], layout: Layout, num_records: int, arrays: Sequence[Any] = ()
) -> bool:
    """Read a model, and the functions among its arguments that are not declared public.

    :returns: whether something was warned of in the model.
    :raises UnsupportedModelError: as :func:`refuse_captured_arrays`.
    """
    warned = refuse_captured_arrays(model, layout, num_records, arrays)
    for leaf in layout.leaves:
        if isinstance(leaf, FixedLeaf) and not leaf.declared and callable(leaf.value):
            whose = f"argument `{leaf.name}`"
            refuse_captured_arrays(leaf.value, layout, num_records, arrays, whose=whose)
    return warned


def _shape(value: Any) -> tuple[int, ...] | None:
    """Shape of an array or table; length of a list, unless of code or with named fields."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return None
    if isinstance(value, _LISTS):
        elements = value.values() if isinstance(value, dict) else value
        return None if any(map(callable, elements)) else (len(value),)
    # Asking may be an error of the object's own.
    with contextlib.suppress(Exception):
        if isinstance(shape := getattr(value, "shape", None), tuple):
            return shape
    return None


def _shares_memory(value: Any, record: Any) -> bool:
    """Whether two arrays, or a table and an array, are views of the same memory."""
    if _of(frozenset({"pandas"}), type(value).__module__):
        columns = dict(value.items()).values() if value.ndim == 2 else [value]
        return any(_shares_memory(column.values, record) for column in columns)
    both = isinstance(value, np.ndarray) and isinstance(record, np.ndarray)
    return value is record or (both and np.may_share_memory(_whole(value), _whole(record)))


def _whole(array: np.ndarray) -> np.ndarray:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _named(function: Any, by_shape: bool) -> Iterator[Named]:
    """Everything that a function reaches by name, other than for its shape alone."""
    waiting: list[tuple[Named, frozenset[str]]] = [(("", function), frozenset())]
    # With what they are of, lest what was made on the way give its address to something else.
    seen: dict[tuple[int, int, frozenset[str]], Any] = {}
    while waiting:
        (name, value), attributes = waiting.pop()
        owner, plain = None, value
        if isinstance(value, MethodType):
            owner, plain = value.__self__, value.__func__
        key = id(plain), id(owner), attributes
        if isinstance(value, _PLAIN) or key in seen:
            continue
        seen[key] = value
        if name:
            yield name, value
        if isinstance(plain, FunctionType):
            found = loads(plain.__code__, by_shape)
            attributes = found.attributes
            inside = [*_of_function(plain, found), *_attributes(owner, attributes)]
        else:
            inside = _held(name, value, attributes)
        waiting += [(each, attributes) for each in inside]


def _of_function(function: FunctionType, found: Loads) -> Iterator[Named]:
    """What the names of a function stand for; of a library's, all that it closes over."""
    library = _of(_LIBRARIES, function.__globals__.get("__name__"))
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        # A cell is empty while its function is still being defined.
        with contextlib.suppress(ValueError):
            if library or name in found.cells:
                yield name, cell.cell_contents
    if not library:
        yield from ((n, function.__globals__.get(n)) for n in sorted(found.variables))
        parameters = inspect.signature(function, follow_wrapped=False).parameters
        named = (found.parameters | found.cells) & {*parameters}
        yield from ((name, parameters[name].default) for name in sorted(named))
    # What a decorator keeps.
    yield "", getattr(function, "__wrapped__", None)


def _held(name: str, value: Any, attributes: frozenset[str]) -> Iterator[Named]:
    """What any other value holds, or calls."""
    if isinstance(value, functools.partial):
        yield "", value.func
        yield from ((f"argument {place}", each) for place, each in enumerate(value.args))
        yield from value.keywords.items()
    elif isinstance(value, _LISTS):
        yield from ((name, each) for each in (value.values() if isinstance(value, dict) else value))
    elif isinstance(value, Messenger):
        # Not what a handler has seen of earlier runs.
        yield from ((k, v) for k, v in vars(value).items() if k not in ("trace", "__wrapped__"))
    elif isinstance(value, Distribution):
        yield from ((name, each) for each in vars(value).values())
    elif _shape(value) is None:
        run = _OF_CLASSES if isinstance(value, type) else _OF_OBJECTS
        yield from _attributes(value, attributes | run)


def _attributes(owner: Any, names: frozenset[str]) -> Iterator[Named]:
    """Attributes of an object, a class or a module, and what it wraps; of a library's, its data."""
    kind = owner if isinstance(owner, type) else type(owner)
    module = owner.__name__ if isinstance(owner, ModuleType) else kind.__module__
    stored = getattr(owner, "__dict__", {})
    if _of(_LIBRARIES, module):
        data = frozenset() if isinstance(owner, (type, ModuleType)) else frozenset(stored)
        names = data if _of(_OTHERS, module) else data & names
    for name in sorted(names | {"__wrapped__"}):
        # As it is stored: no property is run, and none is made up.
        value = inspect.getattr_static(owner, name, None)
        if isinstance(value, (property, staticmethod, classmethod)):
            value = value.fget if isinstance(value, property) else value.__func__
        if isinstance(value, FunctionType) and name not in stored:
            value = MethodType(value, owner)
        yield ("" if name == "__wrapped__" else name), value


def _of(libraries: frozenset[str], module: Any) -> bool:
    return str(module).partition(".")[0] in libraries
