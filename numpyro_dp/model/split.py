"""From a model and the layout of its arguments to judged programs, before any data is touched."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array
from numpyro.contrib.module import ParamShape
from numpyro.infer import init_to_uniform
from numpyro.primitives import Messenger

from numpyro_dp.errors import redacted
from numpyro_dp.model.checks.additivity import Subject, require_additive
from numpyro_dp.model.jaxprs import Program, Pruned, prune, trace_program
from numpyro_dp.model.messages import explained, with_causes
from numpyro_dp.model.plates import RowRun, run_whole, site_log_prob
from numpyro_dp.model.programs import (
    GlobalPrograms,
    global_programs,
    record_program,
    require_no_closure,
    require_own_gradient,
)
from numpyro_dp.model.records import Layout
from numpyro_dp.model.rows_plate import read_with_plate
from numpyro_dp.model.structure import (
    Structure,
    choose_plate,
    enumeration_dim,
    key_struct,
    read_structure,
    require_private_size,
    require_supported_sites,
)

Model = Callable[..., Any]


class Spec(NamedTuple):
    """Everything that decides a private model, hashable and comparable by value.

    ``num_records`` is given where it is private: the layout then has another, public number.
    """

    model: Model
    layout: Layout
    data_plate: str | None
    private_size: bool
    x64: bool
    num_records: int | None = None


class Parts(NamedTuple):
    """What tracing a specification gives; ``model`` is what was judged."""

    model: Model
    plate: str
    num_records: int
    structure: Structure
    programs: GlobalPrograms
    term: Pruned
    run: RowRun


def split(spec: Spec) -> Parts:
    """Trace a specification and judge it; raises before any data could be touched."""
    return redacted(spec.private_size, _judge, spec)


def _judge(spec: Spec) -> Parts:
    layout = spec.layout
    model, structure = read_with_plate(spec.model, layout, spec.data_plate, spec.private_size)
    structure = _without_idle_params(structure, model, layout, init_to_uniform())
    with with_causes(structure, layout):
        return _parts(spec._replace(model=model), structure)


def _parts(spec: Spec, structure: Structure) -> Parts:
    model, layout = spec.model, spec.layout
    plate, rows = choose_plate(structure, spec.data_plate)
    num_records = spec.num_records or rows
    require_supported_sites(structure, plate)
    layout.require_records(rows, plate, structure.outcomes)
    layout.require_no_listed_data(num_records)
    if spec.private_size:
        require_private_size(
            structure,
            partial(read_structure, model, layout, init_to_uniform(), rows=rows + 1),
            plate,
            spec.data_plate,
        )
    programs = global_programs(
        model, layout, structure, plate, num_records, private_size=spec.private_size
    )
    run = RowRun(model, plate, num_records, enumeration_dim(structure))
    term = record_program(run, layout, programs.constrained)
    require_no_closure(term, layout, num_records, model)
    require_own_gradient(term, layout, num_records, len(jax.tree.leaves(programs.constrained)))
    return Parts(model, plate, num_records, structure, programs, term, run)


def check_additive(spec: Spec, parts: Parts) -> None:
    """Refuse a model that is no sum over records, as far as made-up records can tell."""
    latents = parts.structure.latents
    tree = jax.tree.structure(parts.programs.constrained)
    with with_causes(parts.structure, spec.layout):
        require_additive(
            Subject.of(
                parts.run,
                spec.layout,
                starts=[latents[name] for name in sorted(latents)],
                values=lambda z, _: jax.tree.unflatten(tree, parts.programs.constrain(z)),
            )
        )


def _without_idle_params(
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
        program = trace_program(parts, marks, key_struct(), layout.structs())
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
