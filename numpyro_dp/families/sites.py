"""A model's priors and its one observed site as programs, traced without a value.

Distributions are told by their type, and what their parameters depend on by dead-code elimination.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array
from numpyro import handlers
from numpyro.infer import init_to_sample

from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.model.guided.model import Outline
from numpyro_dp.model.jaxprs import Pruned, trace_program
from numpyro_dp.model.messages import explained
from numpyro_dp.model.names import quoted
from numpyro_dp.model.plates import Trace, in_plate, peeled, row_sites, run_whole
from numpyro_dp.model.private_model import PrivateModel
from numpyro_dp.model.programs import Labelled, require_no_closure
from numpyro_dp.model.structure import key_struct

FITS = (
    "`PolyaGammaGuide` takes Bernoulli, binomial and negative binomial outcomes of linear logits, "
    "`DPSVI` any model"
)
_PRIORS: Mapping[type, tuple[str, ...]] = {
    dist.Beta: ("concentration1", "concentration0"),
    dist.Uniform: ("low", "high"),
    dist.Dirichlet: ("concentration",),
    dist.Gamma: ("concentration", "rate"),
    dist.Exponential: ("rate",),
    dist.InverseGamma: ("concentration", "rate"),
    dist.Normal: ("loc", "scale"),
}
_OUTCOMES: Mapping[type, tuple[str, tuple[str, ...]]] = {
    dist.BernoulliProbs: ("bernoulli", ("probs",)),
    dist.BinomialProbs: ("binomial", ("probs", "total_count")),
    dist.CategoricalProbs: ("categorical", ("probs",)),
    dist.Poisson: ("poisson", ("rate",)),
    dist.Normal: ("normal", ("loc", "scale")),
}
# How close is equal, at made-up values.
CLOSE = 1e-3


class Prior(NamedTuple):
    """The law of one latent site; ``params`` are constants of the site's shape.

    ``scales_with`` names the variance (or precision) that scales the law of a normal latent, whose
    variance is ``ratio`` times entry ``entry`` of it. ``rate_of`` names the latent that is the rate
    of an inverse-gamma law.
    """

    kind: str
    shape: tuple[int, ...]
    event_dim: int
    params: dict[str, np.ndarray]
    scales_with: str | None = None
    entry: np.ndarray | None = None
    power: int = 1
    rate_of: str | None = None


class TracedOutputs(NamedTuple):
    """Programs of one trace, each asked for by name."""

    labelled: Labelled
    latents: dict[str, jax.ShapeDtypeStruct]

    @classmethod
    def of(
        cls,
        found: Outline,
        part: Callable[..., Any],
        latents: dict[str, jax.ShapeDtypeStruct],
        rows: int | None = 1,
    ) -> TracedOutputs:
        """Trace a part of the model at latents, one record (or all of them) and a key."""
        with explained(None if rows is None else found.plate):
            program = trace_program(part, latents, found.layout.structs(rows), key_struct())
        names = (*(leaf.name for leaf in found.layout.arrays), "")
        return cls(Labelled.of(program, names), latents)

    def reads(self, name: str) -> tuple[list[str], list[str]]:
        """Latents and record arguments that an output depends on."""
        pruned = self.pruned(name)
        of_latents = [n for n, used in zip(self.latents, pruned.used, strict=False) if used]
        return of_latents, [r or "random numbers" for r in self.labelled.reads(pruned)]

    def pruned(self, name: str) -> Pruned:
        return self.labelled.pruned(lambda label: label[1] == name)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of an output."""
        leaves = jax.tree.leaves(self.labelled.program.out)
        labels = [label[1] for label in self.labelled.labels]
        return tuple(leaves[labels.index(name)].shape)

    def at(self, name: str, latents: Mapping[str, Any]) -> np.ndarray:
        """Value of an output that reads no record."""
        return np.asarray(self.pruned(name)([latents.get(n) for n in self.latents])[0])

    def constant(self, site: str, name: str) -> np.ndarray:
        """Value of an output that is a public constant, or a refusal."""
        latents, records = self.reads(name)
        if latents or records:
            raise UnsupportedModelError(
                f"`{name}` of site `{site}` depends on {quoted([*latents, *records])}: a "
                f"conjugate family needs a public constant there; {FITS}"
            )
        return self.at(name, {})


def record_sites(
    model: Callable[..., Any],
    found: Outline | PrivateModel,
    values: Mapping[str, Any],
    arrays: Sequence[Any],
    key: Array,
) -> Trace:
    """Sites of the private plate as some records alone have them, constrained latents given."""
    arguments, rows = found.layout.fill(arrays), len(arrays[0])
    return row_sites(model, found.plate, found.num_records, values, arguments, key, rows)


def latent_sites(
    model: Callable[..., Any],
    arguments: tuple[tuple, dict],
    key: Array,
    values: Mapping[str, Any] | None = None,
) -> Trace:
    """Latent sites of a model on all its records, at given values or at draws from the prior."""
    # A check of values would be one of records, or of made-up ones that need not pass it.
    with handlers.block(), dist.distribution.validation_enabled(False):
        strategy = init_to_sample if values is None else lambda site: values.get(site["name"])
        trace, _ = run_whole(model, arguments, key, strategy=strategy)
    sampled = {name: site for name, site in trace.items() if site["type"] == "sample"}
    return {name: site for name, site in sampled.items() if not site["is_observed"]}


def find_sites(model: PrivateModel) -> tuple[str, str | None]:
    """The observed site, and the discrete latent that says which component a record is of."""
    structure = model.structure
    outside = structure.outside(model.plate, "observed", "factor")
    observed = structure.inside(model.plate, "observed")
    factors = structure.inside(model.plate, "factor")
    mixed = (
        *structure.inside(model.plate, "discrete"),
        *structure.outside(model.plate, "discrete"),
    )
    if outside or factors or len(observed) != 1 or len(mixed) > 1:
        raise UnsupportedModelError(
            f"sites {quoted([*outside, *observed, *factors, *mixed])}: a conjugate family has one "
            "observed site, in the private plate, and at most one discrete latent a record; "
            f"{FITS}"
        )
    return observed[0], mixed[0] if mixed else None


def observe(
    model: PrivateModel,
    site: str,
    mixed: str | None,
    values: Mapping[str, Any],
    arrays: list[Any],
    key: Array,
) -> tuple[str, dict[str, Any]]:
    """Family and parameters of the observed site on one record, constrained latents given."""

    def run(extra: Mapping[str, Any]) -> Trace:
        return record_sites(model.function, model, {**values, **extra}, arrays, key)

    if mixed is None:
        return _parameters(site, run({})[site])
    law = run({})[mixed]
    kind, told = _parameters(mixed, law)
    if kind != "categorical" or told["outcome"].size != 1:
        raise UnsupportedModelError(
            f"discrete latent site `{mixed}` is no single `Categorical(probs=...)`: {FITS}"
        )
    shape, weights = jnp.shape(law["value"]), told["probs"].reshape(-1)

    def component(k: Array) -> dict[str, Any]:
        kind, parts = _parameters(site, run({mixed: jnp.broadcast_to(k, shape)})[site])
        if kind != "normal":
            raise UnsupportedModelError(
                f"site `{site}` is {kind} given `{mixed}`: known are mixtures of normals; {FITS}"
            )
        return parts

    parts = jax.vmap(component)(jnp.arange(weights.size))
    return "mixture", {**parts, "outcome": parts["outcome"][0], "weights": weights}


def _parameters(site: str, heard: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    if heard["scale"] is not None:
        raise UnsupportedModelError(
            f"site `{site}` has a weight (`handlers.scale`): a conjugate guide counts each record "
            f"once; {FITS}"
        )
    fn = _unwrapped(site, heard["fn"])
    shape = heard["fn"].shape()
    outcome = jnp.broadcast_to(jnp.asarray(heard["value"]), shape).reshape(-1)
    if isinstance(fn, dist.MixtureSameFamily):
        return "mixture", {"outcome": outcome, **_mixture(site, fn, outcome.size)}
    if type(fn) not in _OUTCOMES:
        raise UnsupportedModelError(
            f"site `{site}` is a {type(fn).__name__}: conjugate families are known for Bernoulli, "
            "Binomial and Categorical with `probs=`, Poisson, Normal, and mixtures of normals; "
            f"{FITS}"
        )
    kind, names = _OUTCOMES[type(fn)]
    event = fn.probs.shape[-1:] if kind == "categorical" else ()
    parts = {n: jnp.broadcast_to(getattr(fn, n), (*shape, *event)) for n in names}
    return kind, {
        "outcome": outcome,
        **{n: v.reshape((outcome.size, *event)) for n, v in parts.items()},
    }


def _mixture(site: str, fn: Any, size: int) -> dict[str, Any]:
    weights, parts = fn.mixing_distribution, fn.component_distribution
    normal = _unwrapped(site, parts)
    count = fn.mixture_size
    per_record = int(np.prod(parts.event_shape))
    if type(weights) is not dist.CategoricalProbs or type(normal) is not dist.Normal:
        raise UnsupportedModelError(
            f"site `{site}` mixes {type(normal).__name__} components by "
            f"{type(weights).__name__}: known are normals (with diagonal scales) and "
            f"`Categorical(probs=...)`; {FITS}"
        )
    if per_record != size or np.prod(weights.probs.shape) != count:
        raise UnsupportedModelError(
            f"site `{site}` holds several mixtures in one record: give the components an event "
            f"dimension (`.to_event(1)`) so that one component explains a record; {FITS}"
        )
    shape = parts.batch_shape + parts.event_shape
    loc, scale = (
        jnp.broadcast_to(x, shape).reshape(count, size) for x in (normal.loc, normal.scale)
    )
    return {"weights": weights.probs.reshape(-1), "loc": loc, "scale": scale}


def _unwrapped(site: str, fn: Any) -> Any:
    bare = peeled(fn)
    if bare.kept is not True:
        raise UnsupportedModelError(
            f"site `{site}` is masked: a conjugate guide counts every record in full; {FITS}"
        )
    return bare.fn


def read_priors(
    found: Outline, model: Callable[..., Any], latents: dict[str, jax.ShapeDtypeStruct]
) -> dict[str, Prior]:
    """The law of each latent, or a refusal by site and cause."""
    kinds: dict[str, tuple[type, int]] = {}

    def laws(values: dict[str, Any], arrays: list[Any], key: Array) -> dict[str, Any]:
        trace = latent_sites(model, found.layout.fill(arrays), key, values)
        out = {}
        for name, struct in latents.items():
            site = trace[name]
            fn = _unwrapped(name, site["fn"])
            known = next((k for k in _PRIORS if isinstance(fn, k)), None)
            if known is None or site["scale"] is not None or in_plate(site, found.plate):
                raise UnsupportedModelError(
                    f"latent site `{name}` has a {type(fn).__name__} prior: conjugate priors are "
                    f"{', '.join(k.__name__ for k in _PRIORS)}, without a weight"
                    f"{_in_place_of(name, fn)}; {FITS}"
                )
            kinds[name] = known, site["fn"].event_dim
            out |= {
                (name, p): jnp.broadcast_to(getattr(fn, p), struct.shape) for p in _PRIORS[known]
            }
        return {name: {p: v for (n, p), v in out.items() if n == name} for name in latents}

    every = TracedOutputs.of(found, laws, latents, rows=None).labelled
    # A statistic computed from records elsewhere would pass for a public constant.
    require_no_closure(every.pruned(lambda _: True), found.layout, found.num_records)
    priors = {}
    for name, struct in latents.items():
        own = tuple((g, p) if g == name else ("", "") for g, p in every.labels)
        told = TracedOutputs(every._replace(labels=own), latents)
        known, event_dim = kinds[name]
        priors[name] = _prior(name, known, struct.shape, event_dim, told)
    for name, prior in priors.items():
        if prior.scales_with is not None:
            other = priors[prior.scales_with].kind
            if (other, prior.power) not in (("InverseGamma", 1), ("Gamma", -1)):
                raise UnsupportedModelError(
                    f"prior scale of latent site `{name}` depends on `{prior.scales_with}` "
                    f"({other}): conjugate are a multiple of the root of an InverseGamma variance, "
                    f"and of the inverse root of a Gamma precision; {FITS}"
                )
    return priors


def _in_place_of(name: str, fn: dist.Distribution) -> str:
    """What to write for a scale, which most people give a half-normal law or the like."""
    if fn.support is not dist.constraints.positive:
        return ""
    return (
        f". If `{name}` is the scale of an outcome, put an InverseGamma prior on the variance: "
        '`variance = numpyro.sample("variance", dist.InverseGamma(2, 1))`, and '
        f"`jnp.sqrt(variance)` in the place of `{name}`"
    )


def _prior(
    name: str, known: type, shape: tuple[int, ...], event_dim: int, told: TracedOutputs
) -> Prior:
    others = told.reads("scale")[0] if known is dist.Normal else []
    root = root_of(told, "scale", others[0]) if len(others) == 1 else None
    if root is not None:
        params = {"loc": told.constant(name, "loc"), "ratio": root.factor}
        entry = root.index.reshape(-1)
        return Prior("Normal", shape, event_dim, params, others[0], entry, root.power)
    others = told.reads("rate")[0] if known is dist.InverseGamma else []
    if len(others) == 1 and told.latents[others[0]].shape == shape:
        probe = jnp.linspace(0.3, 3.0, int(np.prod(shape))).reshape(shape)
        if np.allclose(told.at("rate", {others[0]: probe}), probe, rtol=CLOSE):
            constant = {"concentration": told.constant(name, "concentration")}
            return Prior("InverseGamma", shape, event_dim, constant, rate_of=others[0])
    params = {p: told.constant(name, p) for p in _PRIORS[known]}
    if known is dist.Uniform:
        if np.any(params["low"] != 0) or np.any(params["high"] != 1):
            raise UnsupportedModelError(
                f"latent site `{name}` is uniform on another interval than (0, 1): use a Beta "
                f"prior; {FITS}"
            )
        ones = np.ones(shape)
        return Prior("Beta", shape, event_dim, {"concentration1": ones, "concentration0": ones})
    if known is dist.Exponential:
        params["concentration"] = np.ones(shape)
        known = dist.Gamma
    return Prior(known.__name__, shape, event_dim, params)


class Root(NamedTuple):
    """A scale whose square is ``factor * latent[index] ** power``."""

    factor: np.ndarray
    index: np.ndarray
    power: int


def root_of(told: TracedOutputs, name: str, latent: str) -> Root | None:
    """Recognise a scale as the root of (the inverse of) a latent, at made-up values of it."""
    struct = told.latents[latent]
    pruned, place = told.pruned(name), list(told.latents).index(latent)

    def log_square(logarithm: Array) -> Array:
        value = jnp.exp(logarithm).reshape(struct.shape)
        (scale,) = pruned([value if k == place else None for k in range(place + 1)])
        return 2 * jnp.log(scale).reshape(-1)

    size = int(np.prod(struct.shape))
    code = 1 + np.arange(size) / size
    shifts = (0.0, 1.0, -0.7)
    base = np.linspace(-0.5, 0.9, size)
    logarithms = [base + shift * code for shift in shifts]
    seen = [np.asarray(log_square(jnp.asarray(u, struct.dtype)), float) for u in logarithms]
    # Every entry moves by a step of its own, which tells entry and power; the third probe judges.
    moved = seen[1] - seen[0]
    index = np.clip(np.rint((np.abs(moved) - 1) * size), 0, size - 1).astype(int)
    powers = np.unique(np.sign(moved))
    if len(powers) != 1 or powers[0] == 0 or not np.isfinite(moved).all():
        return None
    rests = [s - powers[0] * u[index] for s, u in zip(seen, logarithms, strict=True)]
    if not all(np.allclose(rest, rests[0], atol=CLOSE) for rest in rests):
        return None
    shape = told.shape(name)
    return Root(np.exp(rests[0]).reshape(shape), index.reshape(shape), int(powers[0]))
