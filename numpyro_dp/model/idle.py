"""Parameters that hold no value: what is left of a network whose weights all have a prior."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array
from numpyro.contrib.module import ParamShape
from numpyro.primitives import Messenger

from numpyro_dp.model.jaxprs import Program, prune, trace_program
from numpyro_dp.model.plates import run_whole, site_log_prob
from numpyro_dp.model.records import Layout
from numpyro_dp.model.structure import Structure, explained, key_struct


def without_idle_params(
    structure: Structure, model: Callable[..., Any], layout: Layout, strategy: Callable[..., Any]
) -> Structure:
    """Leave out param sites that hold no value, as in ``random_flax_module`` and its kin.

    These put draws from a prior in the place of all that was declared a parameter: what stays at
    the site are placeholders, or a start that nothing reads.
    """
    names = sorted(site.name for site in structure.of_kind("param"))
    if not names:
        return structure
    placeholders: set[str] = set()

    def parts(marks: dict[str, Array], key: Array, arrays: list[Any]) -> tuple[Any, Any]:
        marked = _Marked(model, marks)
        trace, _ = run_whole(marked, layout.fill(arrays), key, strategy=strategy)
        starts = {name: trace[name]["value"] for name in names}
        placeholders.update(name for name in names if _is_placeholder(starts[name]))
        sites = [site for site in trace.values() if site["type"] == "sample"]
        made = [s["value"] for s in trace.values() if s["type"] in ("sample", "deterministic")]
        return starts, (made, [site_log_prob(site) for site in sites])

    marks = {name: jax.ShapeDtypeStruct((), jnp.float32) for name in names}
    with explained():
        program = trace_program(
            parts, marks, key_struct(), [leaf.struct() for leaf in layout.arrays]
        )
    idle = placeholders | _unread(program, names)
    return structure._replace(sites=tuple(s for s in structure.sites if s.name not in idle))


class _Marked(Messenger):
    """Add a mark of its own to what each param site returns: who reads it, reads the mark."""

    def __init__(self, fn: Callable[..., Any], marks: Mapping[str, Array]) -> None:
        super().__init__(fn)
        self.marks = marks

    def postprocess_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "param" and msg["value"] is not None:
            mark = self.marks[msg["name"]]
            msg["value"] = jax.tree.map(lambda leaf: leaf + mark, msg["value"])


def _unread(program: Program, names: list[str]) -> set[str]:
    """Params whose mark nothing reads, and that were not drawn: a network may keep its own copy."""
    starts, made = program.out
    start_leaves = [name for name in names for _ in jax.tree.leaves(starts[name])]
    others = [False] * len(jax.tree.leaves(made))
    read = prune(program, [False] * len(start_leaves) + [True] * len(others)).used
    unread = {name for name, used in zip(names, read, strict=False) if not used}
    key = len(names)
    return {
        name
        for name in unread
        if not prune(program, [each == name for each in start_leaves] + others).used[key]
    }


def _is_placeholder(value: Any) -> bool:
    leaves = jax.tree.leaves(value, is_leaf=lambda leaf: isinstance(leaf, ParamShape))
    return bool(leaves) and all(isinstance(leaf, ParamShape) for leaf in leaves)
