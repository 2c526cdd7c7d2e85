"""Arrays that a caller's code names without being handed them.

A trace shows an array that enters the model's arithmetic. It cannot show a number that NumPy made
of one before: ``x.mean()`` of a global ``x`` is a plain constant by then. So the code is read too.
"""

import contextlib
import dis
import functools
import inspect
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, MethodType
from typing import Any

import jax
from numpyro.primitives import Messenger

from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.records import Layout

__all__ = ["require_handed"]

_BY_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME")
_BY_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD")
# Their code names nothing of the caller's, and an autoguide keeps a trace of made-up records.
_LIBRARIES = ("numpyro", "numpyro_dp")
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
    object whose method is called, and by the same rule the functions of its module and methods of
    its object that the code names. What these find by other ways (another object's attribute, a
    file, a library's state) stays unseen.

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
        yield from _shapes(bound)
        code, owner = _method(plain)
        if code is None or (code, id(owner)) in seen:
            continue
        seen.add((code, id(owner)))
        for name, value in _named(code, owner):
            if isinstance(value, MethodType) or _same_module(value, code):
                waiting.append(value)
            else:
                yield from _shapes([(name, value)])


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
    """A function and the object it is a method of, if its code is Python and the caller's."""
    if not isinstance(called, (FunctionType, MethodType)):
        called = getattr(called, "__call__", None)  # noqa: B004 - not to ask, but to read it
    function, owner = called, None
    if isinstance(called, MethodType):
        function, owner = called.__func__, called.__self__
    if not isinstance(function, FunctionType):
        return None, None
    library = function.__globals__.get("__name__", "").partition(".")[0] in _LIBRARIES
    return (None, None) if library else (function, owner)


def _same_module(value: Any, function: FunctionType) -> bool:
    return isinstance(value, FunctionType) and value.__globals__ is function.__globals__


def _shapes(named: list[tuple[str, Any]]) -> Iterator[tuple[str, tuple[int, ...]]]:
    for name, value in named:
        parts = jax.tree.leaves(value) if isinstance(value, (dict, list, tuple)) else [value]
        shapes = (getattr(part, "shape", None) for part in parts)
        yield from ((name, shape) for shape in shapes if isinstance(shape, tuple))


def _named(function: FunctionType, owner: Any) -> Iterator[tuple[str, Any]]:
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        # A cell is empty while its function is still being defined.
        with contextlib.suppress(ValueError):
            yield name, cell.cell_contents
    defaults = function.__defaults__ or ()
    parameters = code.co_varnames[: code.co_argcount]
    yield from zip(parameters[len(parameters) - len(defaults) :], defaults, strict=True)
    yield from (function.__kwdefaults__ or {}).items()
    for name in _loaded(code, _BY_GLOBAL):
        if name in function.__globals__:
            yield name, function.__globals__[name]
    if owner is not None:
        yield from _attributes(owner, _loaded(code, _BY_ATTRIBUTE))


def _attributes(owner: Any, names: list[str]) -> Iterator[tuple[str, Any]]:
    for name in names:
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
