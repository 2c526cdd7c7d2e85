"""What a one-layer sigmoid belief network is made of, traced without a value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array
from numpyro.infer import init_to_uniform

from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.families.independence import require_independence
from numpyro_dp.families.sites import CLOSE, Prior, TracedOutputs, read_priors, record_sites
from numpyro_dp.model.guided.model import Outline
from numpyro_dp.model.messages import explained
from numpyro_dp.model.names import quoted
from numpyro_dp.model.plates import peeled, row_axis
from numpyro_dp.model.programs import require_no_closure, require_one_record
from numpyro_dp.model.structure import Structure, key_struct, read_structure

_FITS = (
    "known is one layer, `z ~ Bernoulli(logits=c)` and `x ~ Bernoulli(logits=z @ W.T + b)` in the "
    "private plate, W and b with Normal priors; `ConjugateGuide` takes mixtures, `DPSVI` any model "
    "whose discrete latents can be summed out"
)


class Network(NamedTuple):
    """A network's sites, sizes and priors.

    - **hidden**, **visible**: the sites of one record; **units**, **pixels** their sizes.
    - **weights**, **bias**, **base**: latent sites of W, b and c; **base** may be ``None``, where
      the hidden units' logits are the constants **logits**.
    - **turned**: W is (units, pixels) instead of (pixels, units).
    - **outcome**: from one record's arrays to its visible units.
    """

    hidden: str
    visible: str
    units: int
    pixels: int
    weights: str
    bias: str
    base: str | None
    logits: np.ndarray
    turned: bool
    priors: dict[str, Prior]
    outcome: Callable[[Sequence[Array]], Array]

    @property
    def spread(self) -> str | None:
        """Site of the weights' variances."""
        return self.priors[self.weights].scales_with

    @property
    def spread_rate(self) -> str | None:
        """Site of the rates of these."""
        return None if self.spread is None else self.priors[self.spread].rate_of


def read_network(model: Callable[..., Any], found: Outline) -> Network:
    """Trace one record and the priors; refuse what is no such network."""
    structure = read_structure(model, found.layout, init_to_uniform())
    hidden, visible = _sites(structure, found.plate)
    latents = dict(sorted(structure.latents.items()))
    shapes: dict[str, tuple[int, ...]] = {}

    def sites_of(values: dict[str, Any], arrays: list[Any], key: Array) -> Mapping[str, Any]:
        return record_sites(model, found, values, arrays, key)

    def row(values: dict[str, Any], arrays: list[Any], key: Array) -> dict[str, dict[str, Array]]:
        sites = sites_of(values, arrays, key)
        x, z = (_bernoulli(name, sites[name]) for name in (visible, hidden))
        shapes.update({visible: jnp.shape(x["value"]), hidden: jnp.shape(z["value"])})
        return {
            "row": {
                "logits": x["logits"].reshape(-1),
                "base": z["logits"].reshape(-1),
                "outcome": x["value"].reshape(-1),
            }
        }

    with explained(found.plate):
        jax.eval_shape(row, latents, found.layout.structs(1), key_struct())
    units = jax.ShapeDtypeStruct(shapes[hidden], jnp.zeros(()).dtype)
    # Inputs come sorted by name, as dictionaries do.
    told = TracedOutputs.of(found, row, dict(sorted({**latents, hidden: units}.items())))
    priors = read_priors(found, model, latents)
    ones = {name: jnp.ones(struct.shape, struct.dtype) for name, struct in latents.items()}

    def outcomes(arrays: list[Array]) -> Array:
        site = sites_of(ones, arrays, jax.random.key(0))[visible]
        return jnp.moveaxis(jnp.asarray(site["value"]), row_axis(site, found.plate), 0)

    require_independence(found, visible, outcomes)
    return _recognised(found, told, priors, (hidden, visible))


def _sites(structure: Structure, plate: str) -> tuple[str, str]:
    observed = structure.inside(plate, "observed", "factor")
    hidden = structure.inside(plate, "discrete")
    others = (
        *structure.inside(plate, "latent"),
        *structure.outside(plate, "observed", "factor", "discrete"),
        *(site.name for site in structure.of_kind("param")),
    )
    if len(observed) != 1 or len(hidden) != 1 or others:
        raise UnsupportedModelError(f"sites {quoted([*observed, *hidden, *others])}: {_FITS}")
    return hidden[0], observed[0]


def _bernoulli(name: str, site: Mapping[str, Any]) -> dict[str, Array]:
    (fn, kept, _), shape = peeled(site["fn"]), site["fn"].shape()
    known = isinstance(fn, dist.BernoulliLogits | dist.BernoulliProbs)
    if not known or kept is not True or site["scale"] is not None:
        raise UnsupportedModelError(
            f"site `{name}` is a {type(fn).__name__}, masked or weighted perhaps: {_FITS}"
        )
    logits = fn.logits if isinstance(fn, dist.BernoulliLogits) else _logit(fn.probs)
    value = jnp.broadcast_to(jnp.asarray(site["value"]), shape)
    return {"logits": jnp.broadcast_to(logits, shape), "value": value}


def _logit(probs: Any) -> Array:
    return jnp.log(probs) - jnp.log1p(-probs)


def _recognised(
    found: Outline, told: TracedOutputs, priors: dict[str, Prior], sites: tuple[str, str]
) -> Network:
    hidden, visible = sites
    units, pixels = told.shape("base")[0], told.shape("outcome")[0]
    used, records = told.reads("logits")
    base, other = told.reads("base")
    tables = [n for n in used if n != hidden and len(told.latents[n].shape) == 2]
    lines = [n for n in used if n != hidden and told.latents[n].shape == (pixels,)]
    strange = [*records, *other, *(n for n in base if told.latents[n].shape != (units,))]
    if len(tables) != 1 or len(lines) != 1 or len(used) != 3 or len(base) > 1 or strange:
        raise UnsupportedModelError(
            f"logits of site `{visible}` depend on {quoted([*used, *records])} and those of "
            f"`{hidden}` on {quoted([*base, *other]) or 'nothing'}: {_FITS}"
        )
    (weights,), (bias,) = tables, lines
    turned = told.latents[weights].shape == (units, pixels) and units != pixels
    _require_linear(told, visible, (hidden, weights, bias), turned)
    if base:
        probe = jnp.linspace(-1.0, 1.0, units)
        if not np.allclose(told.at("base", {base[0]: probe}), probe, atol=CLOSE):
            raise UnsupportedModelError(f"logits of `{hidden}` are not `{base[0]}`: {_FITS}")
    _require_priors(priors, weights, (bias, *base))
    outcome = told.pruned("outcome")
    if told.reads("outcome")[0] or outcome.used[-1]:
        raise UnsupportedModelError(f"site `{visible}` observes a value made of latents: {_FITS}")
    require_one_record(outcome)
    # Of all parts: hidden logits are taken for public constants.
    everything = told.labelled.pruned(lambda _: True)
    require_no_closure(everything, found.layout, found.num_records)
    blanks = [None] * len(told.latents)
    return Network(
        hidden=hidden,
        visible=visible,
        units=units,
        pixels=pixels,
        weights=weights,
        bias=bias,
        base=base[0] if base else None,
        logits=np.zeros(units) if base else told.at("base", {}),
        turned=turned,
        priors=priors,
        outcome=lambda record: outcome([*blanks, *record])[0],
    )


def _require_linear(
    told: TracedOutputs, visible: str, names: tuple[str, str, str], turned: bool
) -> None:
    """Compare the logits with W z + b at made-up values; what is released does not rest on it."""
    rng = np.random.default_rng(0)
    for _ in range(2):
        values = {n: _drawn(rng, told.latents[n]) for n in names}
        z, w, b = (values[n] for n in names)
        table = w.T if turned else w
        expected = table @ z.reshape(-1) + b
        if not np.allclose(told.at("logits", values), expected, atol=10 * CLOSE):
            raise UnsupportedModelError(
                f"logits of site `{visible}` are not `{names[1]}` times `{names[0]}` plus "
                f"`{names[2]}`: {_FITS}"
            )


def _drawn(rng: np.random.Generator, struct: jax.ShapeDtypeStruct) -> np.ndarray:
    return rng.normal(size=struct.shape).astype(struct.dtype)


def _require_priors(priors: dict[str, Prior], weights: str, normal: Sequence[str]) -> None:
    law = priors[weights]
    known = {weights, *normal}
    for name in normal:
        if priors[name].kind != "Normal" or priors[name].scales_with is not None:
            raise UnsupportedModelError(
                f"prior of `{name}` is no Normal with public scale: {_FITS}"
            )
    if law.kind != "Normal":
        raise UnsupportedModelError(f"prior of `{weights}` is {law.kind}: {_FITS}")
    if law.scales_with is not None:
        spread = priors[law.scales_with]
        known |= {law.scales_with, *([spread.rate_of] if spread.rate_of else [])}
        rate = priors.get(spread.rate_of or "")
        own = law.entry is not None and np.array_equal(law.entry, np.arange(law.entry.size))
        if not own or spread.kind != "InverseGamma" or (rate and rate.kind != "Gamma"):
            raise UnsupportedModelError(
                f"variances `{law.scales_with}` of `{weights}` are not one InverseGamma each (of "
                "public rate, or of a rate with a Gamma prior, which makes the weights "
                f"three-parameter beta normal): {_FITS}"
            )
    spare = sorted(set(priors) - known)
    if spare:
        raise UnsupportedModelError(
            f"latent site(s) {quoted(spare)} are not of the network: {_FITS}"
        )
