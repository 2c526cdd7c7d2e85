"""Which names a function's code loads, other than to ask for a shape."""

import dis
from functools import lru_cache
from types import CodeType
from typing import NamedTuple

__all__ = ["Loads", "loads"]

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

    Args:
        code: the function's code.
        by_shape: leave out names of which only a shape, type or length is asked.

    Returns:
        The names; whatever a newer Python writes otherwise counts as loaded.
    """
    steps = [s for s in dis.get_instructions(code) if s.opname not in _SILENT]
    found: tuple[set[str], ...] = set(), set(), set(), set()
    for at, step in enumerate(steps):
        if "LOAD" not in step.opname or step.opname in ("LOAD_CONST", "LOAD_CLOSURE"):
            continue
        # Some instructions load two names at once.
        each = step.argval if isinstance(step.argval, tuple) else (step.argval,)
        if by_shape and _asks_for_shape(steps, at):
            each = each[:-1]
        found[_where(step.opname)].update(map(str, each))
    # Cells are handed on to inner functions, which are read themselves.
    found[2].difference_update(code.co_cellvars, code.co_freevars)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            more = loads(inner, by_shape)
            found[0].update(more.variables)
            found[1].update(more.cells)
            found[3].update(more.attributes)
    return Loads(*map(frozenset, found))


def _where(opname: str) -> int:
    """Place among :class:`Loads` of what an instruction loads."""
    if opname in _ATTRIBUTE:
        return 3
    return 1 if "DEREF" in opname else 2 if "FAST" in opname else 0


def _asks_for_shape(steps: list[dis.Instruction], at: int) -> bool:
    """Whether what is loaded here is only asked for its shape: ``x.shape``, ``len(x)``."""
    after = steps[at + 1] if at + 1 < len(steps) else None
    if after is None:
        return False
    if after.opname in _ATTRIBUTE:
        return after.argval in _OF_SHAPE
    first = at
    while first > 0 and steps[first].opname in _ATTRIBUTE:
        first -= 1
    asked = steps[first - 1] if first > 0 else None
    called = after.opname.startswith("CALL") and after.arg == 1
    return called and asked is not None and asked.argval == "len"
