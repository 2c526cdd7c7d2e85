"""Arrays that a caller's code names without being handed them.

A trace shows an array that enters the model's arithmetic. It cannot show a number that NumPy made
of one before: ``x.mean()`` of a global ``x`` is a plain constant by then. So the code is read too.
"""

import contextlib
import dis
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FunctionType, MethodType
from typing import Any

import jax
from numpyro.primitives import Messenger

from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.records import Layout

__all__ = ["require_handed"]

_BY_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME")
_BY_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD")
# Their code names nothing of the caller's: only what they were handed, and hold, is looked for.
_LIBRARIES = ("numpyro", "numpyro_dp", "jax", "numpy", "scipy", "optax", "flax")
# Their objects hold made-up records: an autoguide keeps a trace of them.
_OURS = ("numpyro", "numpyro_dp")
_MODEL_REMEDY = (
    "Make it an argument of the model (wrapped in `numpyro_dp.public` if it holds nothing private)"
)


def require_handed(
    function: Callable[..., Any],
    layout: Layout,
    num_records: int,
    *,
    whose: str = "the model",
    remedy: str = _MODEL_REMEDY,
) -> None:
    """Refuse code that names an array with one row for each record, unless that is public.

    Looked at are globals, closures, default arguments, what a ``partial`` binds, attributes of the
    object whose method is called, and by the same rule the functions that closures, defaults,
    partials and the object hold, those of its own module that the code names, and those that an
    optimiser or a wrapper of a library was handed. What these find by other ways (a global of
    another module's functions, another object's attribute, a file) stays unseen.

    Args:
        function: a model, a guide or another function of the caller's.
        layout: the model's arguments, some of them declared public.
        num_records: number of records.
        whose: what to call the function in a message.
        remedy: what to do about it.

    Raises:
        UnsupportedModelError: with the array's name and the remedy.
    """
    public = [array.shape for array in layout.public_arrays()]
    for name, shape in _arrays(function):
        if shape and shape[0] == num_records and shape not in public:
            raise UnsupportedModelError(
                f"the code of {whose} names `{name}`, which holds one row for each record and is "
                "no argument: whatever is computed from it in there would be unprotected. "
                f"{remedy}"
            )


def _arrays(function: Callable[..., Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    waiting: list[Any] = [function]
    seen: set[Any] = set()
    while waiting:
        plain, bound = _innermost(waiting.pop())
        held, named = bound, []
        code, owner = _method(plain)
        if code is not None and (code, id(owner)) not in seen:
            seen.add((code, id(owner)))
            held = [*bound, *_cells(code)]
            if not _of(_LIBRARIES, code):
                held += [*_defaults(code), *_attributes(owner, code)]
                named = list(_globals(code))
            elif not _of(_OURS, code):
                held += getattr(owner, "__dict__", {}).items()
        for name, value in _leaves(held):
            if _function_of(value) is None:
                yield from _shape(name, value)
            else:
                waiting.append(value)
        for name, value in _leaves(named):
            if _of_module(value, code) or isinstance(value, functools.partial):
                waiting.append(value)
            else:
                yield from _shape(name, value)


def _innermost(function: Any) -> tuple[Any, list[tuple[str, Any]]]:
    """What wrappers, handlers and partials call in the end, and what the partials bind."""
    bound: list[tuple[str, Any]] = []
    while True:
        inner = inspect.unwrap(function)
        if isinstance(inner, functools.partial):
            bound += [(f"argument {place}", value) for place, value in enumerate(inner.args)]
            bound += inner.keywords.items()
            inner = inner.func
        elif isinstance(inner, Messenger):
            inner = inner.fn
        if inner is function:
            return inner, bound
        function = inner


def _method(called: Any) -> tuple[FunctionType | None, Any]:
    """A function and the object it is a method of, if it is written in Python."""
    if not isinstance(called, (FunctionType, MethodType)):
        called = getattr(called, "__call__", None)  # noqa: B004 - not to ask, but to read it
    function, owner = called, None
    if isinstance(called, MethodType):
        function, owner = called.__func__, called.__self__
    return (function, owner) if isinstance(function, FunctionType) else (None, None)


def _function_of(value: Any) -> FunctionType | None:
    return _method(_innermost(value)[0])[0]


def _of(libraries: tuple[str, ...], function: FunctionType) -> bool:
    return function.__globals__.get("__name__", "").partition(".")[0] in libraries


def _of_module(value: Any, function: FunctionType | None) -> bool:
    callee = _function_of(value)
    both = callee is not None and function is not None
    return both and callee.__globals__ is function.__globals__


def _leaves(named: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    waiting, seen = list(named), set()
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, (dict, list, tuple)):
            # By hand: of keys that do not sort JAX makes an error, of a cycle no end.
            if id(value) not in seen:
                seen.add(id(value))
                parts = value.values() if isinstance(value, dict) else value
                waiting += [(name, part) for part in parts]
        else:
            # Not asked for elements: JAX warns of iterators.
            parts = jax.tree.leaves(value, is_leaf=lambda part: isinstance(part, Iterator))
            yield from ((name, part) for part in (value, *parts))


def _shape(name: str, value: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):
        yield name, shape


def _cells(function: FunctionType) -> Iterator[tuple[str, Any]]:
    names, cells = function.__code__.co_freevars, function.__closure__ or ()
    for name, cell in zip(names, cells, strict=True):
        # A cell is empty while its function is still being defined.
        with contextlib.suppress(ValueError):
            yield name, cell.cell_contents


def _defaults(function: FunctionType) -> Iterator[tuple[str, Any]]:
    code, defaults = function.__code__, function.__defaults__ or ()
    parameters = code.co_varnames[: code.co_argcount]
    yield from zip(parameters[len(parameters) - len(defaults) :], defaults, strict=True)
    yield from (function.__kwdefaults__ or {}).items()


def _globals(function: FunctionType) -> Iterator[tuple[str, Any]]:
    for name in _loaded(function.__code__, _BY_GLOBAL):
        if name in function.__globals__:
            yield name, function.__globals__[name]


def _attributes(owner: Any, function: FunctionType) -> Iterator[tuple[str, Any]]:
    if owner is None:
        return
    for name in _loaded(function.__code__, _BY_ATTRIBUTE):
        # Found without running a property, which is read like the method it is.
        value = inspect.getattr_static(owner, name, None)
        if isinstance(value, property):
            value = value.fget
        if isinstance(value, FunctionType) and name not in getattr(owner, "__dict__", {}):
            value = MethodType(value, owner)
        yield name, value


def _loaded(code: CodeType, by: tuple[str, ...]) -> list[str]:
    """Names that a function, or one defined inside of it, loads in one of some ways."""
    names = {step.argval for step in dis.get_instructions(code) if step.opname in by}
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            names.update(_loaded(inner, by))
    return sorted(names)
