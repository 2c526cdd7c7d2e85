"""Which plate is private, and whether the sites around it have the shape that privacy needs."""

from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from numpyro.distributions import biject_to

from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.model.jaxprs import prune, trace_program
from numpyro_dp.model.messages import (
    Shapes,
    arrays_of,
    explained,
    misfits,
    quoted,
    require_outcomes_fit,
    site_shapes,
)
from numpyro_dp.model.plates import run_whole, site_log_prob, subsampling_message
from numpyro_dp.model.records import Layout

# In the place of a plate's name: where no plate encloses the outcome, one of all rows is put there.
AUTO, RECORDS = "auto", "records"
_MADE_UP_ROWS = (
    " (of made-up rows, since their number is private under add_remove; where the model takes it "
    "from a constant: use `x.shape[0]` of a record argument)"
)


class Site(NamedTuple):
    """What a trace says of one site, without values: ``plates`` holds (name, dim, size).

    ``outcomes`` are names of the arguments that an observed value is computed from.
    """

    name: str
    kind: str
    plates: tuple[tuple[str, int, int], ...]
    uses_arrays: bool = False
    enumerable: bool = False
    shapes: Shapes | None = None
    outcomes: tuple[str, ...] = ()

    def inside(self, plate: str) -> bool:
        """Say whether the site lies inside the named plate."""
        return any(name == plate for name, _, _ in self.plates)


class Structure(NamedTuple):
    """The sites of a model on all its records, its plates, and the shapes of its latents.

    ``arrays`` are names of the record arguments, and the rows of each.
    """

    sites: tuple[Site, ...]
    plates: dict[str, tuple[int, int | None]]
    latents: dict[str, jax.ShapeDtypeStruct]
    arrays: tuple[tuple[str, int], ...]

    @property
    def outcomes(self) -> tuple[str, ...]:
        """Names of the arguments that observed values are computed from."""
        return tuple(name for site in self.sites for name in site.outcomes)

    def of_kind(self, *kinds: str) -> tuple[Site, ...]:
        """Return the sites of the given kinds in the order of the model."""
        return tuple(site for site in self.sites if site.kind in kinds)

    def inside(self, plate: str, *kinds: str) -> tuple[str, ...]:
        """Names of the sites of the given kinds in the named plate."""
        return tuple(site.name for site in self.of_kind(*kinds) if site.inside(plate))

    def outside(self, plate: str, *kinds: str) -> tuple[str, ...]:
        """Names of the sites of the given kinds that no record has of its own."""
        return tuple(site.name for site in self.of_kind(*kinds) if not site.inside(plate))


def read_structure(
    model: Callable[..., Any],
    layout: Layout,
    strategy: Callable[..., Any],
    rows: int | None = None,
    *,
    private_size: bool = False,
) -> Structure:
    """Trace the model on all records (or ``rows``), without a value; describe every site.

    ``private_size``: the layout has a made-up number of rows, and a message says so.
    """
    given = f" ({arrays_of(layout)})" if rows is None else ""
    if private_size:
        given = _MADE_UP_ROWS
    found: list[tuple[list[Site], dict[str, tuple[int, int | None]]]] = []

    def outline(arrays: list[Any], key: jax.Array) -> tuple[dict[str, Any], ...]:
        trace, sizes = run_whole(model, layout.fill(arrays), key, strategy=strategy)
        sites = [_describe(name, site) for name, site in trace.items()]
        found.append(([s for s in sites if s is not None], sizes))
        latents = {s.name: _unconstrain(trace[s.name]) for s in sites if s and s.kind == "latent"}
        terms = {
            s.name: site_log_prob(trace[s.name])
            for s in sites
            if s and s.kind in ("observed", "factor")
        }
        outcomes = {name: trace[name]["value"] for name in terms}
        return terms, latents, outcomes

    structs = layout.structs(rows)
    with explained(given=given, perhaps=lambda: misfits(model, layout)):
        program = trace_program(outline, structs, key_struct())
    if program.closed.jaxpr.effects:
        raise UnsupportedModelError(
            "the model has side effects (`jax.debug.print` or a callback), which would show "
            "single records: take them out"
        )
    terms, latents, _ = program.out
    sites, sizes = found[-1]
    # Outputs lie side by side: terms, latents, outcomes; those of equal names in equal order.
    total, names = len(jax.tree.leaves(program.out)), sorted(terms)

    def use(first: int) -> dict[str, tuple[bool, ...]]:
        masks = {name: [j == first + i for j in range(total)] for i, name in enumerate(names)}
        return {name: prune(program, mask).used[: len(structs)] for name, mask in masks.items()}

    uses, shown = use(0), use(len(terms) + len(latents))
    arguments = [leaf.name for leaf in layout.arrays]
    marked = tuple(
        s._replace(
            uses_arrays=any(uses.get(s.name, ())),
            outcomes=tuple(compress(arguments, shown.get(s.name, ()))),
        )
        for s in sites
    )
    rows_of = tuple((name, s.shape[0]) for name, s in zip(arguments, structs, strict=True))
    return Structure(marked, sizes, latents, rows_of)


def key_struct() -> jax.ShapeDtypeStruct:
    """Return the abstract key that programs are traced with."""
    return jax.eval_shape(lambda: jax.random.key(0))


def _unconstrain(site: Mapping[str, Any]) -> jax.Array:
    return biject_to(site["fn"].support).inv(jnp.asarray(site["value"]))


def _describe(name: str, site: Mapping[str, Any]) -> Site | None:
    if site["type"] == "plate":
        return None
    plates = tuple((f.name, f.dim, f.size) for f in site.get("cond_indep_stack", ()))
    if site["type"] != "sample":
        return Site(name, site["type"], plates)
    if site["is_observed"]:
        auxiliary = site["infer"].get("is_auxiliary", False)
        return Site(name, "factor" if auxiliary else "observed", plates, shapes=site_shapes(site))
    if site["fn"].support.is_discrete:
        enumerable = site["fn"].has_enumerate_support
        return Site(name, "discrete", plates, enumerable=enumerable, shapes=site_shapes(site))
    return Site(name, "latent", plates)


def choose_plate(structure: Structure, data_plate: str | None) -> tuple[str, int]:
    """Return the name and size of the plate whose slices are the records, or refuse."""
    observed = _judged_sites(structure)
    sizes = {name: size for s in structure.sites for name, _, size in s.plates}
    enclosing = [p for p in sizes if all(site.inside(p) for site in observed)]
    if data_plate not in (None, AUTO):
        plate = _named_plate(data_plate, sizes, observed)
    elif len(enclosing) == 1:
        plate = enclosing[0]
    elif enclosing:
        described = " and ".join(f"`{p}` ({sizes[p]})" for p in enclosing)
        raise UnsupportedModelError(
            f"plates {described} all enclose the observations: say which holds one person per "
            "slice with `data_plate=`"
        )
    else:
        plate = _only_plate(structure, sizes, observed)
    for site in observed:
        if site.kind == "observed" and site.shapes and site.inside(plate):
            first = next(dim for name, dim, _ in site.plates if name == plate)
            others = [dim for name, dim, _ in site.plates if name != plate]
            require_outcomes_fit(site.name, site.shapes, [first, *others], plate)
    for name, (size, subsample_size) in structure.plates.items():
        if name != plate and subsample_size not in (None, size):
            raise UnsupportedModelError(subsampling_message(name, size, subsample_size))
    return plate, sizes[plate]


def _judged_sites(structure: Structure) -> tuple[Site, ...]:
    """The sites that say where the data are: observed ones that read an array."""
    observed = structure.of_kind("observed") or structure.of_kind("factor")
    if not observed:
        raise UnsupportedModelError(
            "the model has no observed site: pass the outcome (with `y=None` the model draws it)"
        )
    # Soft constraints and penalties on the latents are observed too, outside every plate.
    return tuple(site for site in observed if site.uses_arrays) or observed


def sites_of_rows(structure: Structure) -> tuple[str, ...]:
    """Names of the sites that read a record argument: those that a plate of all rows goes round."""
    sites = structure.of_kind("observed", "factor")
    return tuple(site.name for site in sites if site.uses_arrays)


def why_not_rows(structure: Structure) -> str | None:
    """Why no plate of all rows goes round what reads them, and what to do; ``None`` if one does."""
    judged = sites_of_rows(structure)
    if not judged:
        return "no observed site reads a record argument: pass the data as arguments of the model"
    rows = structure.arrays[0][1]
    unlike = [name for name, length in structure.arrays if length != rows]
    if unlike:
        return (
            f"argument(s) {quoted(unlike)} have other rows than `{structure.arrays[0][0]}`: wrap "
            "what holds nothing private in `numpyro_dp.public`, give the rest one row a record"
        )
    if RECORDS in {*structure.plates, *(site.name for site in structure.sites)}:
        return f"the model has a site or plate `{RECORDS}` of its own: give it another name"
    local = [name for name, law in structure.latents.items() if rows in law.shape and rows > 1]
    if local:
        return f"latent site(s) {quoted(local)} have an entry for each of {rows} rows"
    for site in structure.sites:
        if site.name in judged and site.shapes is not None:
            batch = tuple(jnp.broadcast_shapes(*site.shapes.batches))
            if batch != (rows,):
                remedy = _to_rows(batch, site.shapes.law, rows)
                return f"site `{site.name}` has batch shape {batch}: {remedy}"
    return None


def _to_rows(batch: tuple[int, ...], law: tuple[int, ...], rows: int) -> str:
    """What makes a batch shape, which the law may have in part, one of a number for each row."""
    own = batch[1:]
    if not batch:
        return "a record needs a term of its own, so leave out the sum or mean over the rows"
    if batch[0] == rows and rows not in own:
        expanded = "" if len(law) >= len(own) else f".expand({list(own)})"
        return (
            "where the other axes are a record's own, end its distribution in "
            f"`{expanded}.to_event({len(own)})`"
        )
    return "a record needs one term of its own, from its own row"


def _named_plate(plate: str, sizes: Mapping[str, int], observed: Sequence[Site]) -> str:
    if plate not in sizes:
        known = quoted(sorted(sizes)) or "none"
        raise UnsupportedModelError(
            f"`data_plate={plate!r}` names no plate of the model (its plates: {known}): use one "
            "of these names"
        )
    if not any(site.inside(plate) for site in observed):
        raise UnsupportedModelError(
            f"`data_plate={plate!r}` encloses no observed site (observed: "
            f"{quoted([s.name for s in observed])}): name the plate of the outcome"
        )
    return plate


def _only_plate(structure: Structure, sizes: Mapping[str, int], observed: Sequence[Site]) -> str:
    used = [p for p in sizes if any(site.inside(p) for site in observed)]
    names = quoted([site.name for site in observed])
    if not used:
        offered = ""
        if not structure.arrays:
            offered = ". Counts of many people are one row a person (docs/howto/models-by-name.md)"
        elif why_not_rows(structure) is None:
            offered = '; where each row is another person, `data_plate="auto"` does that'
        raise UnsupportedModelError(
            f"no plate encloses observed site(s) {names}: write `with numpyro.plate("
            f'"data", {_record_count(structure)}):` around them, one slice per person{offered}'
        )
    if len(used) > 1:
        persons = (
            ""
            if len({sizes[p] for p in used}) > 1
            else (
                "put them into one plate where they are of the same persons, one slice per person; "
                "otherwise "
            )
        )
        raise UnsupportedModelError(
            f"no single plate encloses the observed sites {names} (plates {quoted(used)}): "
            f"{persons}concatenate the groups' records into one array with one plate around it, "
            "hand in each record's group as an array of whole numbers, and index by it, as in "
            "`dist.Normal(mean[group], 1)`"
        )
    return used[0]


def _record_count(structure: Structure) -> str:
    """Code for the number of records: rows of the first argument as long as the outcome."""
    lengths = [rows for name, rows in structure.arrays if name in structure.outcomes]
    names = [name for name, rows in structure.arrays if rows in lengths[:1]]
    return f"{(*names, 'x')[0]}.shape[0]"


def require_private_size(
    structure: Structure, read_longer: Callable[[], Structure], plate: str, data_plate: str | None
) -> None:
    """Refuse a plate of constant size, or latents whose shape tells the number of records.

    ``read_longer`` reads the structure on one record more.
    """
    _, size = choose_plate(structure, data_plate)
    try:
        longer = read_longer()
        from_shape = choose_plate(longer, data_plate) == (plate, size + 1)
    except UnsupportedModelError as error:
        raise UnsupportedModelError(_constant_size_message(plate)) from error
    if not from_shape:
        raise UnsupportedModelError(_constant_size_message(plate))
    names = sorted({*structure.latents, *longer.latents})
    changed = [n for n in names if structure.latents.get(n) != longer.latents.get(n)]
    if changed:
        raise UnsupportedModelError(
            f"the shape of latent site(s) {quoted(changed)} depends on the number of records, "
            "which is private under add_remove: use a public constant"
        )


def _constant_size_message(plate: str) -> str:
    return (
        f"the number of records is private under add_remove, but plate `{plate}` (or an array in "
        "it) takes its size from a constant: use `x.shape[0]` of a record argument"
    )


def require_supported_sites(structure: Structure, plate: str, *, variational: bool = False) -> None:
    """Refuse latents, parameters and state that cannot be kept apart from the records.

    ``variational`` is for models with a guide, which may hold parameters and a record's latents.
    """
    missing = [
        name.removesuffix("_unobserved")
        for name in structure.inside(plate, "latent", "discrete")
        if name.endswith("_unobserved")
    ]
    local = structure.inside(plate, "latent")
    if missing:
        raise UnsupportedModelError(
            f"`obs_mask` at site(s) {quoted(missing)} draws a latent a record: use `handlers.mask`"
        )
    if local and not variational:
        raise UnsupportedModelError(
            f"continuous latent site(s) {quoted(local)} inside plate `{plate}`: each record has "
            "one. Integrate it out (`NegativeBinomial2` for counts; a person's effect: "
            "docs/howto/choose-the-unit.md; an ability: docs/howto/models-by-name.md; an input: "
            "docs/howto/fit-your-model.md), or `DPSVI` with a local guide. If a "
            "slice is a group, give each member one"
        )
    for site in structure.of_kind("discrete"):
        if not site.inside(plate):
            raise UnsupportedModelError(
                f"discrete latent site `{site.name}` outside plate `{plate}`: summing it out "
                "makes records dependent; marginalise it by hand or use a continuous relaxation"
            )
        if not site.enumerable:
            raise UnsupportedModelError(
                f"discrete latent site `{site.name}` inside plate `{plate}` has infinite support "
                "and cannot be summed out: marginalise it by hand or truncate it"
            )
    for site in structure.of_kind("mutable"):
        raise UnsupportedModelError(
            f"mutable site `{site.name}`: state that is updated from batch to batch carries "
            "records from one to the next; take it out (no batch norm)"
        )
    if variational:
        return
    for site in structure.of_kind("param"):
        raise UnsupportedModelError(
            f"param site `{site.name}` in a model for MCMC: give it a prior (every one of a "
            "network's parameters: `random_flax_module`, `random_eqx_module`), or use `DPSVI`, "
            "which takes params"
        )
    if not structure.of_kind("latent"):
        raise UnsupportedModelError(
            "the model has no continuous latent site: there is no posterior to sample; give its "
            "unknowns a prior with `numpyro.sample`"
        )


def enumeration_dim(structure: Structure) -> int:
    """Return the first dimension free for enumeration, or 0 when no site is summed out."""
    if not structure.of_kind("discrete"):
        return 0
    try:
        import funsor  # noqa: F401
    except ImportError as error:
        raise UnsupportedModelError(
            f"discrete latent site(s) {quoted([s.name for s in structure.of_kind('discrete')])} "
            "are summed out by funsor, which is not installed: `pip install funsor`"
        ) from error
    depth = max((-dim for s in structure.sites for _, dim, _ in s.plates), default=0)
    return -depth - 1
