"""The traced programs of a private model, judged: what reads a record, and what may not."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.model.checks.closures import unhanded
from numpyro_dp.model.jaxprs import (
    Program,
    Pruned,
    constants,
    fingerprint,
    primitives,
    prune,
    trace_program,
)
from numpyro_dp.model.messages import explained
from numpyro_dp.model.names import quoted
from numpyro_dp.model.plates import GuidedRowRun, RowRun, in_plate, run_whole, site_log_prob
from numpyro_dp.model.records import Layout
from numpyro_dp.model.structure import Structure, key_struct

_RANDOM = "random numbers or a latent of the private plate"


# Under vmap these see the whole batch, so a record's term would not be that record's alone.
_BATCHED_BY_THE_MODEL = {
    "custom_vmap_call",
    "pure_callback",
    "io_callback",
    "debug_callback",
    "ffi_call",
}


class GlobalPrograms(NamedTuple):
    """What a position alone decides: prior, constrained latents, deterministic sites.

    ``constrained`` and ``deterministic`` are the structures that the flat outputs unflatten to.
    """

    log_prior: Pruned
    constrain: Pruned
    constrained: dict[str, Any]
    deterministics: Pruned
    deterministic: dict[str, Any]
    dropped: tuple[str, ...]


class Labelled(NamedTuple):
    """A program with a name for each flat output and for each input after the position."""

    program: Program
    labels: tuple[tuple[str, str], ...]
    inputs: tuple[str, ...]

    @classmethod
    def of(cls, program: Program, inputs: tuple[str, ...]) -> "Labelled":
        """Label a program by the keys of its outputs, which are dictionaries of dictionaries."""
        paths = jax.tree_util.tree_flatten_with_path(program.out)[0]
        return cls(program, tuple((path[0].key, path[1].key) for path, _ in paths), inputs)

    def pruned(self, wanted: Callable[[tuple[str, str]], bool]) -> Pruned:
        """Keep the outputs whose (group, site) label is wanted."""
        return prune(self.program, [wanted(label) for label in self.labels])

    def reads(self, pruned: Pruned) -> list[str]:
        """Names of the record arguments (and ``""`` for the key) that a pruned program reads."""
        used = pruned.used[len(pruned.used) - len(self.inputs) :]
        return [name for name, needed in zip(self.inputs, used, strict=True) if needed]

    def differing(self, other: "Labelled") -> Iterator[tuple[str, str]]:
        """Yield the labels under which another trace of the same model computes something else."""
        for label in dict.fromkeys(self.labels):
            here, there = (each.pruned(lambda lb, t=label: lb == t) for each in (self, other))
            if fingerprint(here) != fingerprint(there):
                yield label


def _label(
    model: Callable[..., Any], layout: Layout, structure: Structure, plate: str, n: int
) -> Labelled:
    def parts(z: dict[str, Any], arrays: list[Any], key: jax.Array) -> dict[str, dict[str, Any]]:
        trace, _ = run_whole(model, layout.fill(arrays), key, unconstrained=z)
        samples = {k: s for k, s in trace.items() if s["type"] == "sample"}
        return {
            "constrained": {name: samples[name]["value"] for name in structure.latents},
            "deterministic": {
                k: s["value"] for k, s in trace.items() if s["type"] == "deterministic"
            },
            "prior": {k: site_log_prob(s) for k, s in samples.items() if not in_plate(s, plate)},
        }

    structs = layout.structs(n)
    with explained():
        program = trace_program(parts, structure.latents, structs, key_struct())
    return Labelled.of(program, (*(leaf.name for leaf in layout.arrays), ""))


def global_programs(
    model: Callable[..., Any],
    layout: Layout,
    structure: Structure,
    plate: str,
    num_records: int,
    *,
    private_size: bool,
) -> GlobalPrograms:
    """Trace the model on all rows and keep what no record reaches, or refuse by name."""
    rows = layout.rows
    whole = _label(model, layout, structure, plate, rows)
    for group in ("constrained", "prior"):
        pruned = whole.pruned(lambda label, g=group: label[0] == g)
        if whole.reads(pruned):
            _refuse_readers(whole, group, structure, plate)
    dropped = {*_record_readers(whole, "deterministic")}
    if private_size:
        for others in layout.other_rows():
            longer = _label(model, layout, structure, plate, others)
            dropped.update(_require_same(whole, longer, plate))
    kept = {k: v for k, v in whole.program.out["deterministic"].items() if k not in dropped}
    programs = GlobalPrograms(
        log_prior=whole.pruned(lambda label: label[0] == "prior"),
        constrain=whole.pruned(lambda label: label[0] == "constrained"),
        constrained=whole.program.out["constrained"],
        deterministics=whole.pruned(lambda lb: lb[0] == "deterministic" and lb[1] in kept),
        deterministic=kept,
        dropped=tuple(k for k in whole.program.out["deterministic"] if k in dropped),
    )
    for pruned in (programs.log_prior, programs.constrain, programs.deterministics):
        require_no_closure(pruned, layout, num_records, model)
    return programs


def _record_readers(whole: Labelled, group: str) -> dict[str, list[str]]:
    """Map each site of a group that reads a record (or the key) to what it reads."""
    names = dict.fromkeys(name for g, name in whole.labels if g == group)
    found = {
        name: whole.reads(whole.pruned(lambda label, n=name: label == (group, n))) for name in names
    }
    return {name: reads for name, reads in found.items() if reads}


def _refuse_readers(whole: Labelled, group: str, structure: Structure, plate: str) -> None:
    readers = _record_readers(whole, group)
    # All that one change puts right is named at once.
    latents = [
        name
        for each in ("constrained", "prior")
        for name in _record_readers(whole, each)
        if name in structure.latents
    ]
    for name, reads in readers.items():
        records = [r for r in reads if r]
        source = f"record argument(s) {quoted(records)}" if records else _RANDOM
        if group == "constrained":
            text = f"support of latent site `{name}` depends on {source}: give it public bounds"
        elif name in structure.latents:
            text = f"prior of latent site `{name}` depends on {source}: "
            text += "it is computed from everyone's data" if records else "it must be fixed"
        else:
            text = f"site `{name}` lies outside plate `{plate}` but depends on {source}: "
            text += "move it into the plate"
        if records and name in structure.latents:
            others = quoted([each for each in dict.fromkeys(latents) if each != name])
            likewise = f" (likewise at {others})" if others else ""
            text += f"; where the model uses their mean or spread, put a public number{likewise}"
        raise UnsupportedModelError(text)


def _require_same(whole: Labelled, longer: Labelled, plate: str) -> list[str]:
    """Compare programs at two numbers of records; returns the deterministic sites that differ."""
    dropped = []
    for group, name in whole.differing(longer):
        if group == "deterministic":
            dropped.append(name)
            continue
        what = "support" if group == "constrained" else "prior or factor"
        raise UnsupportedModelError(
            f"{what} of site `{name}` depends on the number of records in plate `{plate}`, which "
            "is private under add_remove: use a public constant instead"
        )
    return dropped


def record_program(
    run: RowRun | GuidedRowRun, layout: Layout, values: Mapping[str, Any], *, drawn: bool = False
) -> Pruned:
    """Trace a record's term at given values, on one row alone.

    Random numbers are refused, unless latents of the record are ``drawn``.
    """

    def term(values: dict[str, Any], arrays: list[Any], key: jax.Array) -> jax.Array:
        return run(values, layout.fill(arrays), key, 1)

    with explained(run.plate, 1, perhaps=lambda: unhanded(run.model, layout, run.num_records)):
        program = trace_program(term, dict(values), layout.structs(1), key_struct())
    pruned = prune(program)
    if np.shape(program.out) != ():
        raise UnsupportedModelError(
            f"the log likelihood of one record has shape {program.out.shape} instead of a single "
            "number: give batch dimensions inside a record a plate of their own"
        )
    require_one_record(pruned)
    if pruned.used[-1] and not drawn:
        raise UnsupportedModelError(
            "the model draws random numbers (`numpyro.prng_key`) while evaluating a record: make "
            "the noise a latent site or take it out"
        )
    return pruned


def require_one_record(pruned: Pruned) -> None:
    """Refuse what would see many records at once when the program is batched."""
    own_batching = sorted(set(primitives(pruned.jaxpr)) & _BATCHED_BY_THE_MODEL)
    if own_batching:
        raise UnsupportedModelError(
            f"the model uses {quoted(own_batching)} while evaluating a record: its rule for "
            "batches would see many records at once; write that part in plain JAX"
        )


def require_own_gradient(term: Pruned, layout: Layout, num_records: int, values: int) -> None:
    """Judge the gradient of a record's term too: a custom derivative is code of its own.

    :param term: the judged term.
    :param layout: the model's arguments.
    :param num_records: number of records.
    :param values: how many of the term's leading inputs gradients are taken in; the rest is data.
    """
    gradient, structs, _ = _gradient(term, values)
    try:
        program = trace_program(gradient, *structs)
    except (TypeError, ValueError, NotImplementedError):
        # Not differentiable, such as a loop of unknown length: kernels that need no gradient may
        # still run it, and the others meet the same error before they see a record.
        return
    _require_own(program, layout, num_records)


def require_own_curvature(term: Pruned, layout: Layout, num_records: int, values: int) -> None:
    """Judge the second derivatives as well, in which the rules of a custom derivative's parts run.

    :param term: the judged term.
    :param layout: the model's arguments.
    :param num_records: number of records.
    :param values: how many of the term's leading inputs derivatives are taken in.
    """
    gradient, structs, count = _gradient(term, values)

    def curvature(*inputs: Any) -> Any:
        def at(*leading: Any) -> Any:
            return gradient(*leading, *inputs[count:])

        return jax.jvp(at, inputs[:count], inputs[:count])[1]

    try:
        program = trace_program(curvature, *structs)
    except (TypeError, ValueError, NotImplementedError):
        # As for the gradient.
        return
    _require_own(program, layout, num_records)


def _gradient(
    term: Pruned, values: int
) -> tuple[Callable[..., Any], list[jax.ShapeDtypeStruct], int]:
    """Gradient in those of the leading inputs that a term reads, all it takes, and their number."""
    count = sum(term.used[:values])
    alone = term._replace(used=(True,) * len(term.jaxpr.invars))

    def gradient(*inputs: Any) -> Any:
        def at(*leading: Any) -> Any:
            return jnp.sum(alone([*leading, *inputs[count:]])[0])

        return jax.grad(at, argnums=tuple(range(count)))(*inputs[:count])

    avals: list[Any] = [variable.aval for variable in term.jaxpr.invars]
    return gradient, [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals], count


def _require_own(derivative: Program, layout: Layout, num_records: int) -> None:
    pruned = prune(derivative)
    if derivative.closed.jaxpr.effects:
        raise UnsupportedModelError(
            "a custom derivative of the model has side effects (`jax.debug.print` or a callback), "
            "which would show single records: take them out"
        )
    require_one_record(pruned)
    require_no_closure(pruned, layout, num_records)


def require_no_closure(
    pruned: Pruned,
    layout: Layout,
    num_records: int,
    function: Callable[..., Any] | None = None,
) -> None:
    """Refuse an array constant with one entry for each record, unless it is public.

    :param pruned: a program of the model.
    :param layout: the model's arguments.
    :param num_records: number of records.
    :param function: whose program it is: its code may have a name for the array.
    :raises UnsupportedModelError: with the array's shape and the remedy.
    """
    for constant in constants(pruned.jaxpr, pruned.consts):
        if num_records in np.shape(constant) and not layout.is_public(constant):
            cause = "" if function is None else unhanded(function, layout, num_records)
            raise UnsupportedModelError(
                f"the model closes over an array {np.shape(constant)}, which by its shape may hold "
                "records: pass it as an argument (wrapped in `numpyro_dp.public` if it holds "
                f"nothing private){cause}"
            )


def holds_longer(pruned: Pruned, layout: Layout) -> bool:
    """Whether a program has an array constant longer than the records that is not public."""
    return any(
        layout.is_longer(np.shape(constant)) and not layout.is_public(constant)
        for constant in constants(pruned.jaxpr, pruned.consts)
    )
