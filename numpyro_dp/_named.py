"""Arrays that a model's code names without being handed them.

A trace shows an array that enters the model's arithmetic. It cannot show a number that NumPy made
of one before: ``x.mean()`` of a global ``x`` is a plain constant by then. So the code is read too.
"""

import contextlib
import dis
import functools
import inspect
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any

import jax
from numpyro.primitives import Messenger

from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.records import Layout

__all__ = ["require_handed"]


def require_handed(function: Callable[..., Any], layout: Layout, num_records: int) -> None:
    """Refuse code that names an array with one row for each record, unless that is public.

    Functions of the same module that the code names are read as well; what they find by other ways
    (an attribute, a file, a library's state) stays unseen.

    Args:
        function: a model or a guide.
        layout: the model's arguments, some of them declared public.
        num_records: number of records.

    Raises:
        UnsupportedModelError: with the array's name and the remedy.
    """
    public = [array.shape for array in layout.public_arrays()]
    for name, shape in _arrays(function):
        if shape and shape[0] == num_records and shape not in public:
            raise UnsupportedModelError(
                f"the model's code names `{name}`, which holds {num_records} rows, one for each "
                "record, and is no argument: whatever is computed from it in there would be "
                "unprotected. Make it an argument of the model (wrapped in `numpyro_dp.public` if "
                "it holds nothing private)"
            )


def _arrays(function: Callable[..., Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    waiting: list[Any] = [function]
    seen: set[int] = set()
    while waiting:
        plain = _innermost(waiting.pop())
        if not isinstance(plain, FunctionType) or id(plain) in seen:
            continue
        seen.add(id(plain))
        for name, value in _named(plain):
            if isinstance(value, FunctionType) and value.__globals__ is plain.__globals__:
                waiting.append(value)
            else:
                parts = (
                    jax.tree.leaves(value) if isinstance(value, (dict, list, tuple)) else [value]
                )
                shapes = (getattr(part, "shape", None) for part in parts)
                yield from ((name, shape) for shape in shapes if isinstance(shape, tuple))


def _innermost(function: Any) -> Any:
    while True:
        inner = inspect.unwrap(function)
        if isinstance(inner, functools.partial):
            inner = inner.func
        elif isinstance(inner, Messenger):
            inner = inner.fn
        if inner is function:
            return inner
        function = inner


def _named(function: FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        # A cell is empty while its function is still being defined.
        with contextlib.suppress(ValueError):
            yield name, cell.cell_contents
    for name in sorted(set(_globals(function.__code__))):
        if name in function.__globals__:
            yield name, function.__globals__[name]


def _globals(code: CodeType) -> Iterator[str]:
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield step.argval
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _globals(inner)
