"""Arrays that a caller's code names without being handed them.

A trace shows an array that enters the model's arithmetic. It cannot show a number that NumPy made
of one before: ``x.mean()`` of a global ``x`` is a plain constant by then. So the code is read too.
"""

import contextlib
import dis
import functools
import inspect
import sys
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from numbers import Number
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import jax
from numpyro.primitives import Messenger

from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.records import FixedLeaf, Layout

__all__ = ["require_arguments_handed", "require_handed"]

_BY_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME")
_BY_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD")
# Their objects hold made-up records: an autoguide keeps a trace of them.
_OURS = frozenset({"numpyro", "numpyro_dp"})
# Their code names nothing of the caller's: only what they were handed, and hold, is looked for.
_LIBRARIES = (
    _OURS
    | sys.stdlib_module_names
    | {"jax", "jaxlib", "jaxtyping", "numpy", "scipy", "optax", "chex", "flax", "haiku", "equinox"}
    | {"funsor", "dp_accounting", "pandas", "xarray", "sklearn", "arviz", "matplotlib"}
) - {"__main__"}
_FUNCTIONS = (FunctionType, MethodType, functools.partial, property, staticmethod, classmethod)
# What a handler calls, which is read by itself, and what it has seen of earlier runs.
_NOT_OPTIONS = ("fn", "trace", "__wrapped__")
_PLAIN = (Number, str, bytes, type(None))
_LISTS = (dict, list, tuple, set, frozenset, deque, array)
# What runs where an object's elements or its number are asked for.
_OPERATORS = ("__getitem__", "__iter__", "__len__", "__array__", "__float__")
# What runs when an object of a class is made, or called.
_WHEN_MADE = ("__new__", "__init__", "__post_init__", "__call__")
_MODEL_REMEDY = (
    "Make it an argument of the model (wrapped in `numpyro_dp.public` if it holds nothing private)"
)

Named = tuple[str, Any]


def require_handed(
    function: Callable[..., Any],
    layout: Layout,
    num_records: int,
    *,
    whose: str = "the model",
    remedy: str = _MODEL_REMEDY,
) -> None:
    """Refuse code that names an array that may hold records, unless that is public.

    What may is told by shape: see :meth:`~numpyro_dp.records.Layout.resembles_records`.

    Looked at are the code's globals, closures and default arguments, what a ``partial`` binds and a
    handler holds, attributes (of the object whose method is called, and of objects, classes and
    modules that the code names), lists, sets and tables; and by the same rule the functions found
    there. Of a library's code, such as an optimiser, only what it was handed is read. What code
    finds by other ways (a file, a name put together at run time) stays unseen.

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
    for name, shape, words in _shapes(function):
        if shape in public:
            continue
        # A vocabulary may well be longer than the table of records.
        if num_records in shape if words else layout.resembles_records(shape, num_records):
            # Without the shape: where the number of records is private, it may tell it.
            raise UnsupportedModelError(
                f"the code of {whose} names `{name}`, which by its shape may hold records and is "
                "no argument: whatever is computed from it in there would be unprotected. "
                f"{remedy}"
            )


def require_arguments_handed(layout: Layout, num_records: int) -> None:
    """Read the functions among a model's arguments, unless they are declared public.

    Args:
        layout: the model's arguments.
        num_records: number of records.

    Raises:
        UnsupportedModelError: as :func:`require_handed`.
    """
    for leaf in layout.leaves:
        if isinstance(leaf, FixedLeaf) and not leaf.declared and callable(leaf.value):
            require_handed(leaf.value, layout, num_records, whose=f"argument `{leaf.name}`")


def _shapes(function: Callable[..., Any]) -> Iterator[tuple[str, tuple[int, ...], bool]]:
    """Shapes of all arrays and lists that a function reaches by name; whether they hold words."""
    waiting: list[Any] = [function]
    seen: set[Any] = set()
    # Kept, so that none made on the way gets the address of one that is gone.
    met: dict[int, Any] = {}
    while waiting:
        given = waiting.pop()
        if id(given) in met:
            continue
        met[id(given)] = given
        plain, held = _innermost(given)
        code, owner = _method(plain)
        attributes: list[str] = []
        if code is not None and (code, id(owner)) not in seen:
            seen.add((code, id(owner)))
            held += _cells(code)
            if not _of(_LIBRARIES, code.__globals__.get("__name__", "")):
                attributes = _loaded(code.__code__, _BY_ATTRIBUTE)
                held += [*_defaults(code), *_globals(code), *_attributes(owner, attributes)]
            elif not _of(_OURS, code.__globals__.get("__name__", "")):
                held += getattr(owner, "__dict__", {}).items()
        for name, value in _parts(held, attributes):
            if _method(_innermost(value)[0])[0] is not None or isinstance(value, _FUNCTIONS):
                waiting.append(value)
            shape = _asked(value, "shape")
            if isinstance(shape, tuple):
                yield name, shape, getattr(_asked(value, "dtype"), "kind", "") in ("S", "U")
            elif isinstance(value, _LISTS):
                elements = list(value.values() if isinstance(value, dict) else value)
                words = all(isinstance(element, (str, bytes)) for element in elements)
                yield name, (len(elements),) if _rows(elements) else (), words


def _rows(elements: list[Any]) -> bool:
    """Whether each element of a list may be a record: a value, some values, an array, an object."""
    return not any(callable(each) or isinstance(each, ModuleType) for each in elements)


def _innermost(function: Any) -> tuple[Any, list[Named]]:
    """What wrappers, handlers and partials call in the end, and what these hold besides."""
    held: list[Named] = []
    seen: list[Any] = []
    while not any(function is each for each in seen):
        seen.append(function)
        if isinstance(function, functools.partial):
            held += [(f"argument {place}", value) for place, value in enumerate(function.args)]
            held += function.keywords.items()
            function = function.func
        elif isinstance(function, Messenger):
            # Before its `__wrapped__`, which leaves out what the handler does.
            held += ((k, v) for k, v in vars(function).items() if k not in _NOT_OPTIONS)
            function = function.fn
        elif isinstance(function, property):
            function = function.fget
        elif isinstance(function, (staticmethod, classmethod)):
            function = function.__func__
        else:
            # As it is stored: an object that makes up attributes would make up this one for ever.
            function = inspect.getattr_static(function, "__wrapped__", function)
    return function, held


def _method(called: Any) -> tuple[FunctionType | None, Any]:
    """A function and the object it is a method of, if it is written in Python."""
    if not isinstance(called, (FunctionType, MethodType)):
        called = _asked(called, "__call__")
    function, owner = called, None
    if isinstance(called, MethodType):
        function, owner = called.__func__, called.__self__
    return (function, owner) if isinstance(function, FunctionType) else (None, None)


def _asked(value: Any, name: str) -> Any:
    """An attribute, or ``None`` where asking for it is an error of the object's own."""
    try:
        return getattr(value, name, None)
    except Exception:
        return None


def _of(libraries: Iterable[str], module: Any) -> bool:
    return str(module).partition(".")[0] in libraries


def _parts(named: list[Named], attributes: list[str]) -> Iterator[Named]:
    """Each value, what lists and trees hold, and the attributes of objects and classes."""
    waiting = list(named)
    seen: dict[int, Any] = {}
    while waiting:
        name, value = waiting.pop()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        yield name, value
        if isinstance(value, _LISTS):
            # By hand: of keys that do not sort JAX makes an error, of a cycle no end.
            elements = value.values() if isinstance(value, dict) else value
            waiting += [(name, part) for part in elements if not isinstance(part, _PLAIN)]
        elif isinstance(value, type):
            if not _of(_LIBRARIES, value.__module__):
                waiting += _attributes(value, [*_WHEN_MADE, *attributes])
        elif not isinstance(value, _PLAIN) and not isinstance(_asked(value, "shape"), tuple):
            waiting += _attributes(value, [*attributes, *_OPERATORS])
            waiting += [(name, leaf) for leaf in _leaves(value)]


def _leaves(value: Any) -> list[Any]:
    """What a table of any kind (a file of arrays, say), or a tree that JAX knows, holds."""
    try:
        if isinstance(value, Mapping):
            return list(value.values())
        # Not asked for elements: JAX warns of iterators.
        return jax.tree.leaves(value, is_leaf=lambda part: isinstance(part, Iterator))
    except Exception:
        # Of one with keys that do not sort, say.
        return list(getattr(value, "__dict__", {}).values())


def _cells(function: FunctionType) -> Iterator[Named]:
    names, cells = function.__code__.co_freevars, function.__closure__ or ()
    for name, cell in zip(names, cells, strict=True):
        # A cell is empty while its function is still being defined.
        with contextlib.suppress(ValueError):
            yield name, cell.cell_contents


def _defaults(function: FunctionType) -> Iterator[Named]:
    code, defaults = function.__code__, function.__defaults__ or ()
    parameters = code.co_varnames[: code.co_argcount]
    yield from zip(parameters[len(parameters) - len(defaults) :], defaults, strict=True)
    yield from (function.__kwdefaults__ or {}).items()


def _globals(function: FunctionType) -> Iterator[Named]:
    for name in _loaded(function.__code__, _BY_GLOBAL):
        if name in function.__globals__:
            yield name, function.__globals__[name]


def _attributes(owner: Any, names: list[str]) -> Iterator[Named]:
    if owner is None or isinstance(owner, FunctionType):
        return
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
