"""What the one observed site of a record is made of, traced without values.

A linear predictor is found behind the distribution's parameter (``exp`` of it for a rate, the
logistic function of it for a probability) and proved affine by dead-code elimination: the program
of its gradient must not read the position.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.core import eval_jaxpr
from jax.extend import core as jax_core

from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.families.hinge import HuberHinge
from numpyro_dp.families.sites import record_sites
from numpyro_dp.model.jaxprs import Program, Pruned, prune, trace_program
from numpyro_dp.model.messages import explained
from numpyro_dp.model.names import quoted
from numpyro_dp.model.plates import RowRun, peeled
from numpyro_dp.model.private_model import PrivateModel
from numpyro_dp.model.programs import require_no_closure
from numpyro_dp.model.structure import key_struct

FITS = "DPSGLD and DPSVI, which clip every record's gradient, fit any model"
_RESHAPES = ("reshape", "broadcast_in_dim", "squeeze", "convert_element_type", "copy")
_CALLS = ("jit", "pjit")


class OutcomeParts(NamedTuple):
    """One record's outcome: programs of the record's arrays, none of which reads the position.

    ``row`` is the gradient of the predictor, ``offset`` the predictor at zero. ``trials`` is the
    total count of (negative) binomial outcomes, else 1.
    """

    row: Pruned
    offset: Pruned
    outcome: Pruned
    trials: Pruned
    kept: Pruned


class Anatomy(NamedTuple):
    """What :func:`dissect` finds: family, programs, and the constants of the observed site."""

    site: str
    family: str
    parts: OutcomeParts
    weight: float
    noise_scale: float
    trials: float | None


class _Found(NamedTuple):
    parameter: Any
    outcome: Any
    trials: Any
    kept: Any
    weight: Any
    noise_scale: Any


class _Family(NamedTuple):
    """How a distribution holds its predictor: parameter, and the function in front of it."""

    family: str
    parameter: str
    link: str | None


_FAMILIES: Mapping[type, _Family] = {
    dist.BernoulliLogits: _Family("bernoulli", "logits", None),
    dist.BernoulliProbs: _Family("bernoulli", "probs", "logistic"),
    dist.BinomialLogits: _Family("binomial", "logits", None),
    dist.BinomialProbs: _Family("binomial", "probs", "logistic"),
    dist.NegativeBinomialLogits: _Family("negative_binomial", "logits", None),
    dist.NegativeBinomialProbs: _Family("negative_binomial", "probs", "logistic"),
    dist.Poisson: _Family("poisson", "rate", "exp"),
    HuberHinge: _Family("hinge", "score", None),
    dist.Normal: _Family("normal", "loc", None),
}
# A hinge's width is its scale.
_SCALES = {"normal": "scale", "hinge": "width"}
_COUNTED = ("binomial", "negative_binomial")
_LINK_REMEDY = {
    "logistic": "give `logits=` (or `probs=jax.nn.sigmoid(...)`)",
    "exp": "give the rate as `jnp.exp(...)`",
}


def dissect(model: PrivateModel) -> Anatomy:
    """Find the linear predictor of the model's one outcome, or refuse by site and cause."""
    site = _only_site(model)
    structure, layout = model.structure, model.layout
    unravel, struct = flat_position(model)
    program, family = _overheard(model, site, unravel, struct)
    structs = layout.structs(1)
    wanted = {name: [k == i for k in range(6)] for i, name in enumerate(_Found._fields)}
    pruned = {name: prune(program, mask) for name, mask in wanted.items()}
    for name, what in _CONSTANTS.items():
        if any(pruned[name].used):
            raise UnsupportedModelError(f"site `{site}` {what}; {FITS}")
    for name, what in _DATA_ONLY.items():
        if pruned[name].used[0] or pruned[name].used[-1]:
            named = quoted(sorted(structure.latents))
            raise UnsupportedModelError(f"site `{site}` {what} ({named}): {FITS}")
    predictor = _predictor(site, family, program.closed)
    row, offset = _affine(site, predictor, struct, structs)
    programs = OutcomeParts(row, offset, pruned["outcome"], pruned["trials"], pruned["kept"])
    for each in programs:
        require_no_closure(each, layout, model.num_records)
    fixed = not any(pruned["trials"].used)
    return Anatomy(
        site=site,
        family=family.family,
        parts=programs,
        weight=_constant(pruned["weight"]),
        noise_scale=_constant(pruned["noise_scale"]),
        trials=_constant(pruned["trials"]) if fixed else None,
    )


def _overheard(
    model: PrivateModel, site: str, unravel: Callable[[Any], dict], struct: Any
) -> tuple[Program, _Family]:
    """What the outcome is sampled from, as a program of position, one record's arrays and a key."""
    kinds: list[_Family] = []

    def parts(position: Any, arrays: list[Any], key: jax.Array) -> _Found:
        heard = record_sites(model.function, model, model.constrain(unravel(position)), arrays, key)
        family, found = _read(site, heard[site])
        kinds.append(family)
        return found

    with explained(model.plate):
        program = trace_program(parts, struct, model.layout.structs(1), key_struct())
    return program, kinds[-1]


def constant_slopes(model: PrivateModel) -> dict[str, np.ndarray]:
    """Gradient of the predictor in each latent site for which it is the same in every record.

    An intercept is such a site; a site that the predictor does not read has a gradient of zero.
    """
    site, latents = _only_site(model), model.structure.latents
    # By site: cut out of a flat vector, the gradients could not be told apart.
    struct = {n: jax.ShapeDtypeStruct(s.shape, s.dtype) for n, s in sorted(latents.items())}
    program, family = _overheard(model, site, lambda position: position, struct)
    structs = model.layout.structs(1)
    predictor = _predictor(site, family, program.closed)
    with explained():
        slopes = trace_program(jax.grad(predictor), struct, structs, key_struct())
    found = {}
    for k, name in enumerate(struct):
        pruned = prune(slopes, [j == k for j in range(len(struct))])
        if not any(pruned.used):
            found[name] = np.asarray(pruned([])[0])
    return found


_CONSTANTS = {
    "weight": "has a weight (`handlers.scale`) that depends on the parameters or on the record: "
    "give it a public number",
    "noise_scale": "has a noise scale that is not a known constant: fix it to a public number",
}
_DATA_ONLY = {
    "outcome": "observes a value that depends on the parameters",
    "trials": "has a number of trials that depends on the parameters",
    "kept": "has a mask that depends on the parameters",
}


def flat_position(model: PrivateModel) -> tuple[Callable[[Any], dict], jax.ShapeDtypeStruct]:
    """How a flat unconstrained vector becomes a position, and its abstract shape."""
    latents = model.structure.latents
    names = sorted(latents)
    sizes = [int(np.prod(latents[name].shape)) for name in names]
    ends = np.cumsum(sizes).tolist()

    def unravel(flat: Any) -> dict:
        return {
            name: flat[end - size : end].reshape(latents[name].shape).astype(latents[name].dtype)
            for name, size, end in zip(names, sizes, ends, strict=True)
        }

    dtype = jnp.result_type(*(latents[name].dtype for name in names))
    return unravel, jax.ShapeDtypeStruct((ends[-1],), dtype)


def _only_site(model: PrivateModel) -> str:
    inside = partial(model.structure.inside, model.plate)
    for name in inside("factor"):
        raise UnsupportedModelError(
            f"`numpyro.factor` site `{name}` in plate `{model.plate}` is no likelihood that is "
            "known to be convex: write it as a Bernoulli, binomial, Poisson or normal observation "
            f"of a linear predictor, a hinge loss as numpyro_dp.HuberHinge; {FITS}"
        )
    for name in inside("discrete"):
        raise UnsupportedModelError(
            f"discrete latent site `{name}` makes each record's likelihood a mixture, which is "
            f"not log-concave: {FITS}"
        )
    names = inside("observed")
    if len(names) != 1:
        raise UnsupportedModelError(
            f"sites {quoted(names)} all observe a record: a generalised linear model has one "
            f"outcome; {FITS}"
        )
    return names[0]


def _read(site: str, heard: Mapping[str, Any]) -> tuple[_Family, _Found]:
    (fn, kept, _), value = peeled(heard["fn"]), heard["value"]
    family = _FAMILIES.get(type(fn))
    if family is None:
        raise UnsupportedModelError(
            f"site `{site}` observes a {type(fn).__name__}: known as a generalised linear model "
            "are Bernoulli, Binomial, NegativeBinomial, Poisson, Normal (with a constant scale) "
            f"and HuberHinge of a linear predictor; {FITS}"
        )
    parameter = getattr(fn, family.parameter)
    trials = fn.total_count if family.family in _COUNTED else 1
    noise_scale = getattr(fn, _SCALES[family.family]) if family.family in _SCALES else 1
    if any(jnp.size(each) != 1 for each in (parameter, value, trials, kept)):
        raise UnsupportedModelError(
            f"site `{site}` has several outcomes in one record: a generalised linear model has "
            f"one; {FITS}"
        )
    weight = 1.0 if heard["scale"] is None else heard["scale"]
    found = _Found(parameter, value, trials, kept, weight, noise_scale)
    return family, _Found(*(jnp.reshape(jnp.asarray(each), ()) for each in found))


def _constant(pruned: Pruned) -> float:
    return float(pruned([])[0])


Predictor = Callable[[Any, Sequence[Any], Any], Any]


def _predictor(site: str, family: _Family, closed: jax_core.ClosedJaxpr) -> Predictor:
    """The linear predictor as a function of the position, arrays and key."""
    found = (
        partial(_evaluate, closed.jaxpr, closed.consts, closed.jaxpr.outvars[:1])
        if family.link is None
        else _behind(family.link, closed.jaxpr, closed.consts, closed.jaxpr.outvars[0])
    )
    if found is None:
        raise UnsupportedModelError(
            f"site `{site}`: no linear predictor is found behind its `{family.parameter}`: "
            f"{_LINK_REMEDY[family.link or '']} of a linear predictor; {FITS}"
        )

    def predictor(position: Any, arrays: Sequence[Any], key: Any) -> Any:
        return jnp.reshape(found(*jax.tree.leaves(position), *arrays, key)[0], ())

    return predictor


def _evaluate(jaxpr: Any, consts: Sequence[Any], outvars: Sequence[Any], *inputs: Any) -> list[Any]:
    names = jaxpr.debug_info.with_unknown_names()
    return eval_jaxpr(jaxpr.replace(outvars=list(outvars), debug_info=names), consts, *inputs)


def _behind(
    link: str, jaxpr: Any, consts: Sequence[Any], wanted: Any
) -> Callable[..., list[Any]] | None:
    """What the primitive ``link`` was applied to, to give the single number ``wanted``."""
    producers = {out: equation for equation in jaxpr.eqns for out in equation.outvars}
    equation = None if isinstance(wanted, jax_core.Literal) else producers.get(wanted)
    if equation is None:
        return None
    name = equation.primitive.name
    if name == link:
        return partial(_evaluate, jaxpr, consts, equation.invars[:1])
    if name in _RESHAPES and equation.invars[0].aval.size == 1:
        return _behind(link, jaxpr, consts, equation.invars[0])
    if name not in _CALLS:
        return None
    inner = equation.params["jaxpr"]
    place = equation.outvars.index(wanted)
    inside = _behind(link, inner.jaxpr, inner.consts, inner.jaxpr.outvars[place])
    if inside is None:
        return None
    arguments = partial(_evaluate, jaxpr, consts, equation.invars)
    return lambda *inputs: inside(*arguments(*inputs))


def _affine(
    site: str, predictor: Predictor, struct: jax.ShapeDtypeStruct, structs: Sequence[Any]
) -> tuple[Pruned, Pruned]:
    """Programs of the row and the offset; the first must not read the position."""
    with explained():
        gradient = trace_program(jax.grad(predictor), struct, list(structs), key_struct())
        at_zero = trace_program(
            lambda position, arrays, key: predictor(jnp.zeros_like(position), arrays, key),
            struct,
            list(structs),
            key_struct(),
        )
    row, offset = prune(gradient), prune(at_zero)
    if row.used[0] or row.used[-1] or offset.used[-1]:
        raise UnsupportedModelError(
            f"the predictor of site `{site}` is not provably linear in the unconstrained "
            "parameters: products of parameters, constrained coefficients, non-linear functions "
            f"and clipped predictors are not; {FITS}"
        )
    return row, offset


def record_likelihood(model: PrivateModel) -> Callable[[Any, Sequence[Any]], Any]:
    """Log likelihood of one record at a flat position, without NumPyro's check of the outcome."""
    run = RowRun(model.function, model.plate, model.num_records, 0)
    unravel, _ = flat_position(model)

    def log_likelihood(position: Any, record: Sequence[Any]) -> Any:
        # Made-up outcomes need not lie in their support, and constants of the outcome cancel.
        with dist.distribution.validation_enabled(False):
            arguments = model.layout.fill(list(record))
            return run(model.constrain(unravel(position)), arguments, jax.random.key(0), 1)

    return log_likelihood
