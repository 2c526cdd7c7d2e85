"""The evidence lower bound, traced and judged: a part that reads no record, and one term each."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from numpyro import handlers
from numpyro.distributions import biject_to, constraints
from numpyro.util import check_model_guide_match

from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.model.checks.additivity import Subject, require_additive
from numpyro_dp.model.jaxprs import Program, Pruned, fingerprint, prune, trace_program
from numpyro_dp.model.messages import explained
from numpyro_dp.model.names import quoted
from numpyro_dp.model.plates import GuidedRowRun, RowRun, WholePlates, in_plate, site_log_prob
from numpyro_dp.model.programs import (
    Labelled,
    record_program,
    require_no_closure,
    require_own_gradient,
)
from numpyro_dp.model.records import Layout
from numpyro_dp.model.structure import Structure, enumeration_dim, key_struct

Sites = OrderedDict[str, dict[str, Any]]
Traces = tuple[Sites, Sites]


class ModelAndGuide(NamedTuple):
    """A model and its guide, as they meet their arguments."""

    model: Callable[..., Any]
    guide: Callable[..., Any]
    layout: Layout
    structure: Structure
    plate: str
    num_records: int

    @property
    def local(self) -> tuple[str, ...]:
        """Latent sites that each record has of its own, drawn by the guide."""
        return self.structure.inside(self.plate, "latent")

    @property
    def guided(self) -> GuidedRowRun:
        """How the pair is run on a few rows whose own latents the guide draws."""
        return GuidedRowRun(self.model, self.guide, self.plate, self.num_records)

    @property
    def rows(self) -> RowRun | GuidedRowRun:
        """How a few rows are run: with the guide only where these have latents of their own."""
        if self.local:
            return self.guided
        enum_dim = enumeration_dim(self.structure)
        return RowRun(self.model, self.plate, self.num_records, enum_dim)

    def run(self, values: Mapping[str, Any], key: jax.Array, arrays: list[Any]) -> Traces:
        """Traces of guide and model on all records, as NumPyro's ``Trace_ELBO`` makes them."""
        args, kwargs = self.layout.fill(arrays)
        model_key, guide_key = jax.random.split(key)

        def trace(fn: Callable[..., Any]) -> Sites:
            return handlers.trace(handlers.substitute(fn, data=dict(values))).get_trace(
                *args, **kwargs
            )

        guide_trace = trace(handlers.seed(WholePlates(self.guide), guide_key))
        replayed = handlers.replay(handlers.seed(WholePlates(self.model), model_key), guide_trace)
        return guide_trace, trace(replayed)


class TracedElbo(NamedTuple):
    """What tracing a model with its guide gives; every program takes constrained parameters.

    - **params**, **constrained**: shapes of the parameters, unconstrained and on their supports.
    - **transforms**: from the unconstrained parameters to their own supports.
    - **latent**, **deterministics**: the global latents that the guide draws from a key, and the
      deterministic sites that read no record; with the structures they unflatten to.
    - **prior**, **guide**: log densities of the sites outside the plate.
    - **term**: a record's term, from parameters and latents, and (for latents of its own) a key.
    """

    params: dict[str, jax.ShapeDtypeStruct]
    constrained: dict[str, Any]
    transforms: dict[str, Any]
    latent: Pruned
    latents: dict[str, Any]
    deterministics: Pruned
    deterministic: dict[str, Any]
    prior: Pruned
    guide: Pruned
    term: Pruned


def trace_bound(pair: ModelAndGuide, private_size: bool) -> TracedElbo:
    """Trace a pair and judge it; raises before any data could be touched."""
    rows = pair.layout.rows
    starts, transforms = _parameters(pair, rows)
    params = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), starts.out)
    whole = _label(pair, params, transforms, rows)
    for group in ("latent", "prior", "guide"):
        _refuse_readers(whole, group, pair)
    out = whole.program.out
    dropped = [name for name in out["deterministic"] if _reads(whole, "deterministic", name)]
    if private_size:
        for others in pair.layout.other_rows():
            _require_same_start(starts, _parameters(pair, others)[0], pair.plate)
            longer = _label(pair, params, transforms, others)
            dropped += _require_same(whole, longer, pair.plate)
    kept = {k: v for k, v in out["deterministic"].items() if k not in dropped}
    values = {**_constrained(params, transforms), **out["latent"]}
    bound = TracedElbo(
        params=params,
        constrained=_constrained(params, transforms),
        transforms=transforms,
        latent=whole.pruned(lambda label: label[0] == "latent"),
        latents=out["latent"],
        deterministics=whole.pruned(lambda lb: lb[0] == "deterministic" and lb[1] in kept),
        deterministic=kept,
        prior=whole.pruned(lambda label: label[0] == "prior"),
        guide=whole.pruned(lambda label: label[0] == "guide"),
        term=_term(pair, values),
    )
    for program in (bound.latent, bound.deterministics, bound.prior, bound.guide, bound.term):
        require_no_closure(program, pair.layout, pair.num_records)
    require_own_gradient(bound.term, pair.layout, pair.num_records, len(jax.tree.leaves(values)))
    return bound


def _parameters(pair: ModelAndGuide, rows: int) -> tuple[Program, dict[str, Any]]:
    """Unconstrained starts and transforms of all parameters; refuses those of single records."""
    supports: dict[str, Any] = {}
    inside: set[str] = set()

    def outline(key: jax.Array, arrays: list[Any]) -> dict[str, jax.Array]:
        guide_trace, model_trace = pair.run({}, key, arrays)
        _require_match(pair, guide_trace, model_trace)
        sites = {k: s for t in (model_trace, guide_trace) for k, s in t.items()}
        values = {}
        for name, site in sites.items():
            if site["type"] == "mutable":
                raise UnsupportedModelError(
                    f"mutable site `{name}` carries records from one batch to the next: take it "
                    "out (no batch norm)"
                )
            if site["type"] == "param":
                supports[name] = biject_to(site["kwargs"].get("constraint", constraints.real))
                values[name] = jax.tree.map(jnp.asarray, supports[name].inv(site["value"]))
                if in_plate(site, pair.plate):
                    inside.add(name)
        return values

    arrays = pair.layout.structs(rows)
    with explained():
        program = trace_program(outline, key_struct(), arrays)
    # Three, of the few rows of a comparison, is the length of many a parameter.
    one_each = {pair.layout.rows} & {rows}
    for name, tree in program.out.items():
        shapes = [tuple(leaf.shape) for leaf in jax.tree.leaves(tree)]
        listed = [shape for shape in shapes if name in inside or one_each & {*shape}]
        if listed:
            raise UnsupportedModelError(
                f"parameter `{name}` {listed[0]} has an entry for each record of plate "
                f"`{pair.plate}`, which would be a release about each person alone: compute a "
                "record's part of the guide from the record by shared parameters (an amortised "
                "guide), or marginalise its latents"
            )
    require_no_closure(prune(program), pair.layout, pair.num_records)
    return program, supports


def _require_same_start(here: Program, there: Program, plate: str) -> None:
    """Compare what parameters start from on another number of records."""
    if fingerprint(prune(here)) != fingerprint(prune(there)):
        raise UnsupportedModelError(
            "the shape or starting value of a parameter depends on the number of records in plate "
            f"`{plate}`, which is private under add_remove: use a public constant instead"
        )


def _require_match(
    pair: ModelAndGuide, guide_trace: dict[str, Any], model_trace: dict[str, Any]
) -> None:
    """Every latent needs a law in the guide, inside the plate exactly where the model has it."""
    for site in pair.structure.of_kind("latent"):
        drawn = guide_trace.get(site.name)
        if drawn is None or drawn["type"] != "sample":
            raise UnsupportedModelError(
                f"the guide has no site `{site.name}`, a latent of the model: give it a law there"
            )
        if site.inside(pair.plate) != in_plate(drawn, pair.plate):
            where = "inside" if site.inside(pair.plate) else "outside"
            raise UnsupportedModelError(
                f"site `{site.name}` lies {where} plate `{pair.plate}` in the model but not in "
                "the guide: put it there too"
            )
    summed = {s.name for s in pair.structure.of_kind("discrete")}
    check_model_guide_match(
        {name: site for name, site in model_trace.items() if name not in summed}, guide_trace
    )


def _constrained(params: Mapping[str, Any], transforms: Mapping[str, Any]) -> dict[str, Any]:
    def constrain(values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: transforms[name](value) for name, value in values.items()}

    return jax.eval_shape(constrain, dict(params))


def _label(
    pair: ModelAndGuide, params: Mapping[str, Any], transforms: Mapping[str, Any], rows: int
) -> Labelled:
    """Everything outside the plate, on all records and without a value, a name for each output."""
    summed = {s.name for s in pair.structure.of_kind("discrete")}

    def parts(values: dict[str, Any], key: jax.Array, arrays: list[Any]) -> dict[str, Any]:
        traces = pair.run(values, key, arrays)
        guide, model = (
            {
                name: site
                for name, site in sites.items()
                if site["type"] == "sample" and not in_plate(site, pair.plate)
            }
            for sites in traces
        )
        return {
            "latent": {
                k: s["value"] for k, s in model.items() if not s["is_observed"] and k not in summed
            },
            "deterministic": {
                k: s["value"] for k, s in traces[1].items() if s["type"] == "deterministic"
            },
            "prior": {k: site_log_prob(s) for k, s in model.items()},
            "guide": {k: site_log_prob(s) for k, s in guide.items()},
        }

    structs = pair.layout.structs(rows)
    with explained():
        program = trace_program(parts, _constrained(params, transforms), key_struct(), structs)
    return Labelled.of(program, ("", *(leaf.name for leaf in pair.layout.arrays)))


def _reads(whole: Labelled, group: str, name: str) -> list[str]:
    """Record arguments that one output reads; the key is the guide's own randomness."""
    return [r for r in whole.reads(whole.pruned(lambda label: label == (group, name))) if r]


def _refuse_readers(whole: Labelled, group: str, pair: ModelAndGuide) -> None:
    if not any(whole.reads(whole.pruned(lambda label: label[0] == group))):
        return
    for name in whole.program.out[group]:
        reads = _reads(whole, group, name)
        if reads and group == "prior":
            raise UnsupportedModelError(
                f"site `{name}` lies outside plate `{pair.plate}` but depends on record "
                f"argument(s) {quoted(reads)}: move it into the plate, or give it public constants"
            )
        if reads:
            raise UnsupportedModelError(
                f"the guide of site `{name}`, outside plate `{pair.plate}`, depends on record "
                f"argument(s) {quoted(reads)}: let parameters alone decide it"
            )


def _require_same(whole: Labelled, longer: Labelled, plate: str) -> list[str]:
    """Compare programs at two numbers of records; returns deterministic sites that differ."""
    dropped = []
    for group, name in whole.differing(longer):
        if group != "deterministic":
            raise UnsupportedModelError(
                f"model or guide at site `{name}` depends on the number of records in plate "
                f"`{plate}`, which is private under add_remove: use a public constant instead"
            )
        dropped.append(name)
    return dropped


def _term(pair: ModelAndGuide, values: Mapping[str, Any]) -> Pruned:
    """A record's term, traced on one row alone."""
    discrete = pair.structure.of_kind("discrete")
    if pair.local and discrete:
        raise UnsupportedModelError(
            f"records have continuous latents ({quoted(pair.local)}) and discrete ones "
            f"({quoted([s.name for s in discrete])}): marginalise the discrete ones by hand"
        )
    return record_program(pair.rows, pair.layout, values, drawn=bool(pair.local))


def check_sum(pair: ModelAndGuide, bound: TracedElbo) -> None:
    """Refuse a pair whose bound is no sum over records, as far as made-up records can tell.

    For pairs whose model cannot be split by itself, which would be checked.

    :raises UnsupportedModelError: when records change each other's terms.
    """
    starts, tree = jax.tree.flatten(bound.params)

    def values(position: list[jax.Array], key: jax.Array) -> dict[str, Any]:
        params = jax.tree.unflatten(tree, position)
        constrained = {k: bound.transforms[k](value) for k, value in params.items()}
        drawn = bound.latent([*jax.tree.leaves(constrained), key])
        return {**constrained, **jax.tree.unflatten(jax.tree.structure(bound.latents), drawn)}

    own = partial(_own_latents, pair) if pair.local else None
    require_additive(Subject.of(pair.rows, pair.layout, starts, values, own))


def _own_latents(
    pair: ModelAndGuide, values: dict[str, Any], rows: list[jax.Array], keys: jax.Array
) -> dict[str, jax.Array]:
    """Each row's own latents side by side, drawn as when it is alone."""
    guided = pair.guided
    each: list[dict[str, Any]] = []
    axes: dict[str, int] = {}
    for i in range(len(keys)):
        row = pair.layout.fill([a[i : i + 1] for a in rows])
        drawn, axes = guided.drawn(values, row, keys[i], 1)
        each.append(drawn)
    return {name: jnp.concatenate([d[name] for d in each], axes[name]) for name in each[0]}
