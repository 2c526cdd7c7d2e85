"""Dead-code elimination as a judge: which inputs does an output of a traced program use?

The only module that touches JAX's semi-private jaxpr tools, so that a change there breaks one
file and its tests.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.core import eval_jaxpr
from jax.extend import core as jax_core
from jax.interpreters import partial_eval

# Where two values are multiplied, and which operands of a choice are values.
_FACTORS = {"mul", "div", "dot_general", "pow"}
_CHOICES = {"gather": slice(1), "dynamic_slice": slice(1)}
_VALUES = _CHOICES | {"select_n": slice(1, None)}


class Program(NamedTuple):
    """A function traced without values: its jaxpr and the shapes of what it returns."""

    closed: jax_core.ClosedJaxpr
    out: Any

    def __call__(self, flat_inputs: Sequence[Any]) -> list[Any]:
        """Evaluate at flat inputs; returns the flat outputs."""
        return eval_jaxpr(self.closed.jaxpr, self.closed.consts, *flat_inputs)


class Pruned(NamedTuple):
    """What is left of a program when only some outputs are wanted, and the inputs it still uses."""

    jaxpr: jax_core.Jaxpr
    consts: tuple[Any, ...]
    used: tuple[bool, ...]

    def __call__(self, flat_inputs: Sequence[Any]) -> list[Any]:
        """Evaluate at the leading inputs of the program; unused ones may be missing at the end."""
        used = [x for x, needed in zip(flat_inputs, self.used, strict=False) if needed]
        return eval_jaxpr(self.jaxpr, self.consts, *used)

    @property
    def out_shapes(self) -> list[tuple[int, ...]]:
        """Shapes of what it returns."""
        return [tuple(getattr(out.aval, "shape", ())) for out in self.jaxpr.outvars]


def trace_program(function: Callable[..., Any], *structs: Any) -> Program:
    """Trace a function of pytrees at abstract inputs; no value of any input exists."""
    closed, out = jax.make_jaxpr(function, return_shape=True)(*structs)
    return Program(closed, out)


def prune(program: Program, wanted: Sequence[bool] | None = None) -> Pruned:
    """Drop every equation, constant and input that the wanted flat outputs (all) do not need."""
    kept_outputs = [True] * len(program.closed.jaxpr.outvars) if wanted is None else list(wanted)
    jaxpr, used_consts, used = partial_eval.dce_jaxpr_consts(program.closed.jaxpr, kept_outputs)
    kept = [c for c, needed in zip(program.closed.consts, used_consts, strict=True) if needed]
    return Pruned(jaxpr, tuple(kept), tuple(used))


def constants(jaxpr: jax_core.Jaxpr, consts: Sequence[Any]) -> Iterator[np.ndarray | jax.Array]:
    """Yield every array that a jaxpr closes over, at any depth, literals included."""
    yield from (c for c in consts if hasattr(c, "shape"))
    for equation in jaxpr.eqns:
        for atom in equation.invars:
            if isinstance(atom, jax_core.Literal) and hasattr(atom.val, "shape"):
                yield atom.val
        for inner in _inner_jaxprs(equation.params.values()):
            if isinstance(inner, jax_core.ClosedJaxpr):
                yield from constants(inner.jaxpr, inner.consts)
            else:
                yield from constants(inner, ())


def primitives(jaxpr: jax_core.Jaxpr) -> Iterator[str]:
    """Yield the name of every primitive in a jaxpr, at any depth."""
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for inner in _inner_jaxprs(equation.params.values()):
            yield from primitives(inner.jaxpr if isinstance(inner, jax_core.ClosedJaxpr) else inner)


def fingerprint(pruned: Pruned) -> tuple[str, tuple[Any, ...]]:
    """Return a value that is equal for two pruned programs only if they compute the same."""
    # Printed jaxprs name the Python functions behind custom derivatives by address.
    text = re.sub(r"0x[0-9a-f]+", "0x", str(pruned.jaxpr))
    arrays = tuple(
        (np.shape(c), str(np.asarray(c).dtype), np.asarray(c).tobytes())
        for c in constants(pruned.jaxpr, pruned.consts)
    )
    return text, arrays


class _Reads(NamedTuple):
    """Names of the inputs that a value depends on, and places of unnamed ones among them.

    What only chooses an entry, as an index or a condition, does not count but in **all_unnamed**.
    Of indices of several axes **parts** are the places of each.
    """

    names: frozenset[str] = frozenset()
    unnamed: frozenset[int] = frozenset()
    all_unnamed: frozenset[int] = frozenset()
    parts: tuple[frozenset[int], ...] = ()


def products(pruned: Pruned, names: Sequence[str]) -> set[frozenset[str]]:
    """Sets of names of leading inputs that are multiplied before any later input is read.

    A factor may be chosen by a later input, as ``z[group]`` is. Loops are not looked into.

    :param names: of the leading inputs.
    """
    return _met(pruned, names).products


class Choices(NamedTuple):
    """What later inputs choose.

    - **names**: of leading inputs of which they choose entries, as in ``a[group]``.
    - **sizes**: how many entries there are to choose from, by the place of a later input that is
      an index as it is.
    """

    names: set[str]
    sizes: dict[int, int]


def choices(pruned: Pruned, names: Sequence[str]) -> Choices:
    """What the inputs behind the leading ones choose; loops are not looked into.

    :param names: of the leading inputs.
    """
    return _met(pruned, names).choices


class _Met(NamedTuple):
    products: set[frozenset[str]]
    choices: Choices


def _met(pruned: Pruned, names: Sequence[str]) -> _Met:
    later = [frozenset({k - len(names)}) for k in range(len(pruned.used))]
    reads = [
        _Reads(frozenset({names[k]})) if k < len(names) else _Reads(frozenset(), later[k], later[k])
        for k, used in enumerate(pruned.used)
        if used
    ]
    found = _Met(set(), Choices(set(), {}))
    _follow(pruned.jaxpr, reads, found)
    return found


def _follow(jaxpr: Any, inputs: Sequence[_Reads], found: _Met) -> list[_Reads]:
    """What each output of a jaxpr reads; what is met on the way is added to ``found``."""
    known = dict(zip(jaxpr.invars, inputs, strict=True))

    def read(atom: Any) -> _Reads:
        return _Reads() if isinstance(atom, jax_core.Literal) else known.get(atom, _Reads())

    for equation in jaxpr.eqns:
        operands, name = [read(atom) for atom in equation.invars], equation.primitive.name
        inner = _called(equation, len(operands))
        if inner is not None:
            outputs = _follow(inner, operands, found)
        else:
            if name in _FACTORS and all(o.names and not o.unnamed for o in operands[:2]):
                found.products.add(operands[0].names | operands[1].names)
            if name in _CHOICES:
                _add_choice(equation, operands, found.choices)
            counted = operands[_VALUES[name]] if name in _VALUES else operands
            merged = _Reads(
                names=frozenset().union(*(o.names for o in operands)),
                unnamed=frozenset().union(*(o.unnamed for o in counted)),
                all_unnamed=frozenset().union(*(o.all_unnamed for o in operands)),
                parts=_parts(equation, operands),
            )
            outputs = [merged] * len(equation.outvars)
        known.update(zip(equation.outvars, outputs, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _add_choice(equation: Any, operands: Sequence[_Reads], found: Choices) -> None:
    if any(index.all_unnamed for index in operands[1:]):
        found.names.update(operands[0].names)
    shape = equation.invars[0].aval.shape
    numbers = equation.params.get("dimension_numbers")
    axes = getattr(numbers, "start_index_map", ())
    parts = operands[1].parts if equation.primitive.name == "gather" else ()
    if len(parts) == len(axes) > 1:
        each = [(k, shape[axis]) for axis, part in zip(axes, parts, strict=True) for k in part]
    else:
        # Of several axes the longest: another index of a pair is as a rule a number.
        places = frozenset().union(*(index.unnamed for index in operands[1:]))
        each = [(place, max(shape, default=1)) for place in places]
    for place, size in each:
        found.sizes[place] = min(size, found.sizes.get(place, size))


def _parts(equation: Any, operands: Sequence[_Reads]) -> tuple[frozenset[int], ...]:
    """Places of what is put beside each other, number by number, as indices of several axes are."""
    last = equation.params.get("dimension") == len(equation.outvars[0].aval.shape) - 1
    if equation.primitive.name != "concatenate" or not last:
        return ()
    if any(atom.aval.shape[-1] != 1 for atom in equation.invars):
        return ()
    return tuple(each.unnamed for each in operands)


def _called(equation: Any, operands: int) -> Any | None:
    """The jaxpr of a call that hands on its operands one by one; ``None`` for anything else."""
    if equation.primitive.name in ("scan", "while", "cond"):
        return None
    for inner in _inner_jaxprs(equation.params.values()):
        jaxpr = inner.jaxpr if isinstance(inner, jax_core.ClosedJaxpr) else inner
        if len(jaxpr.invars) == operands and len(jaxpr.outvars) == len(equation.outvars):
            return jaxpr
    return None


def _inner_jaxprs(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (jax_core.ClosedJaxpr, jax_core.Jaxpr)):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from _inner_jaxprs(value)
