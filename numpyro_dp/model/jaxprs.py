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


def _inner_jaxprs(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (jax_core.ClosedJaxpr, jax_core.Jaxpr)):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from _inner_jaxprs(value)
