"""From a model and the layout of its arguments to judged programs, before any data is touched."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
from jaxtyping import Array
from numpyro.infer import init_to_uniform

from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.model.additivity import Subject, require_additive
from numpyro_dp.model.idle import without_idle_params
from numpyro_dp.model.jaxprs import Pruned
from numpyro_dp.model.messages import with_causes
from numpyro_dp.model.plates import RowRun
from numpyro_dp.model.programs import (
    GlobalPrograms,
    global_programs,
    require_no_closure,
    require_own_gradient,
    rows_program,
)
from numpyro_dp.model.records import Layout
from numpyro_dp.model.redaction import unnumbered
from numpyro_dp.model.structure import (
    Structure,
    choose_plate,
    enumeration_dim,
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
    """What tracing a specification gives."""

    plate: str
    num_records: int
    structure: Structure
    programs: GlobalPrograms
    term: Pruned


def split(spec: Spec) -> Parts:
    """Trace a specification and judge it; raises before any data could be touched."""
    return unnumbered(spec.private_size, _judge, spec)


def _judge(spec: Spec) -> Parts:
    model, layout = spec.model, spec.layout
    structure = read_structure(model, layout, init_to_uniform(), private_size=spec.private_size)
    structure = without_idle_params(structure, model, layout, init_to_uniform())
    with with_causes(structure, layout):
        return _parts(spec, structure)


def _parts(spec: Spec, structure: Structure) -> Parts:
    model, layout = spec.model, spec.layout
    plate, rows = choose_plate(structure, spec.data_plate)
    num_records = spec.num_records or rows
    require_supported_sites(structure, plate)
    if not layout.arrays:
        raise UnsupportedModelError(
            f"no argument holds records (plate `{plate}` has size {rows}): pass the data as "
            "arguments of the model, not by a closure"
        )
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
    term = rows_program(run, layout, programs.constrained, 1)
    require_no_closure(term, layout, num_records)
    require_own_gradient(term, layout, num_records, len(jax.tree.leaves(programs.constrained)))
    return Parts(plate, num_records, structure, programs, term)


def check_additive(spec: Spec, parts: Parts) -> None:
    """Refuse a model that is no sum over records, as far as made-up records can tell."""
    with with_causes(parts.structure, spec.layout):
        _require_sum(spec, parts)


def _require_sum(spec: Spec, parts: Parts) -> None:
    run = RowRun(spec.model, parts.plate, parts.num_records, enumeration_dim(parts.structure))
    latents = parts.structure.latents
    tree = jax.tree.structure(parts.programs.constrained)

    def on_rows(of: Callable[..., Any]) -> Callable[..., Any]:
        def run_on(values: dict[str, Any], rows: list[Array], keys: Array) -> Any:
            return of(values, spec.layout.fill(rows), keys[0], len(keys))

        return run_on

    require_additive(
        Subject(
            spec.layout,
            parts.plate,
            starts=[latents[name] for name in sorted(latents)],
            values=lambda z, _: jax.tree.unflatten(tree, parts.programs.constrain(z)),
            terms=on_rows(run.terms),
            outcomes=on_rows(run.outcomes),
        )
    )
