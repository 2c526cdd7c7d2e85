"""The one outcome of a record: which array it is, and its classes where it is one of a few."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import random
from jaxtyping import Array, Bool, Float

from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.families.synthetic_records import observed_sites, place_of
from numpyro_dp.model.jaxprs import Pruned, fingerprint, prune, trace_program
from numpyro_dp.model.messages import explained
from numpyro_dp.model.names import quoted
from numpyro_dp.model.plates import peeled
from numpyro_dp.model.private_model import PrivateModel
from numpyro_dp.model.programs import require_no_closure, require_one_record

_BINARY = (dist.BernoulliLogits, dist.BernoulliProbs)
_CLASSES = (dist.CategoricalLogits, dist.CategoricalProbs)

RecordFunction = Callable[..., Any]


class Outcome(NamedTuple):
    """What a record's one site observes.

    - **site**: its name.
    - **place**: the record array that it is, as it is.
    - **classes**: how many values it may take, counted from 0; ``None`` where it is not one of a
      few classes.
    """

    site: str
    place: int
    classes: int | None

    def value(self, record: list[Array]) -> Array:
        """The outcome of one record, without the axis of records; one number has no axis."""
        found = record[self.place][0]
        return jnp.reshape(found, ()) if found.size == 1 else found

    def with_class(self, record: list[Array], number: Any) -> list[Array]:
        """The record with another class for its outcome."""
        leaf = record[self.place]
        changed = list(record)
        changed[self.place] = jnp.broadcast_to(number, leaf.shape).astype(leaf.dtype)
        return changed


def outcome_of(model: PrivateModel) -> Outcome:
    """Find the outcome of a record, without a value.

    :raises UnsupportedModelError: a record has several observed sites, or one that is masked,
        weighted, or computed from arguments.
    """
    names = model.structure.inside(model.plate, "observed", "factor")
    if len(names) != 1:
        raise UnsupportedModelError(
            f"sites {quoted(names)} all observe a record: this check is of one outcome. Ask of "
            "one at a time, by a model of that part alone: it takes the same posterior_samples. "
            "Where a mask leaves records out, write that model without the mask, and give "
            "private_posterior_predictive_check statistics= that are 0 for them. "
            "private_log_predictive_density takes all outcomes together, to compare two models"
        )
    found: list[Outcome] = []

    def look(values: dict, record: list) -> None:
        (site,) = observed_sites(model, values, record, random.key(0))
        found.append(_read(site, record))

    with explained(model.plate):
        jax.eval_shape(look, model.programs.constrained, model.layout.structs(1))
    return found[-1]


def _read(site: dict[str, Any], record: list[Any]) -> Outcome:
    name, place = site["name"], place_of(site, record)
    fn, kept, _ = peeled(site["fn"])
    if kept is not True or site["scale"] is not None:
        raise UnsupportedModelError(
            f"site `{name}` is masked or weighted (`handlers.mask`, `handlers.scale`), and which "
            "records count would be private: leave those records out beforehand, by a rule that "
            "looks at each record alone"
        )
    if place is None or site["intermediates"]:
        raise UnsupportedModelError(
            f"what site `{name}` observes is computed from arguments: this check needs an outcome "
            'that is an argument as it is, such as `numpyro.sample("y", ..., obs=y)`. Compute it '
            "before the model is called"
        )
    return Outcome(name, place, _classes(fn) if record[place].size == 1 else None)


def _classes(fn: Any) -> int | None:
    if isinstance(fn, _BINARY):
        return 2
    if isinstance(fn, _CLASSES):
        law = fn.logits if isinstance(fn, dist.CategoricalLogits) else fn.probs
        return int(law.shape[-1])
    return None


class Observed(NamedTuple):
    """All that a model observes of a record.

    - **masked**: it leaves some outcomes out by ``handlers.mask``.
    - **discrete**: no outcome has a density above 1.
    """

    masked: bool
    discrete: bool


def observed_of(model: PrivateModel) -> Observed:
    """Look at a model's outcomes, without a value."""
    found: list[tuple[bool, bool]] = []

    def look(values: dict, record: list) -> None:
        for site in observed_sites(model, values, record, random.key(0)):
            fn, kept, _ = peeled(site["fn"])
            found.append((kept is not True, fn.support.is_discrete))

    with explained(model.plate):
        jax.eval_shape(look, model.programs.constrained, model.layout.structs(1))
    masked, discrete = zip(*found, strict=True)
    return Observed(any(masked), all(discrete))


def holds_numbers(record: list[Array]) -> Bool[Array, ""]:
    """Whether all that a record holds is finite.

    What a model makes of NaN does not always show it: compiled, a Bernoulli outcome of NaN logits
    has log probability 0 where it is 0.
    """
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in record]))


def log_likelihoods(
    model: PrivateModel, draws: dict[str, Array], record: list[Array]
) -> Float[Array, " draws"]:
    """Log likelihood of one record at each of some draws of the constrained latents."""

    def at(values: dict[str, Array]) -> Array:
        (value,) = model.term([*jax.tree.leaves(values), *record])
        return value

    return jax.vmap(at)(draws)


def class_probabilities(
    model: PrivateModel, outcome: Outcome, draws: dict[str, Array], record: list[Array]
) -> Float[Array, "draws classes"]:
    """Probability of each class of a record's outcome, at each of some draws."""

    def of_class(number: Array) -> Array:
        return log_likelihoods(model, draws, outcome.with_class(record, number))

    return jnp.exp(jax.vmap(of_class, out_axes=1)(jnp.arange(outcome.classes)))


class OfOneRecord(NamedTuple):
    """A function of one record that was judged.

    - **program**: what is left of it.
    - **out**: shape of what it returns.
    """

    program: Pruned
    out: Any

    @property
    def computes(self) -> Hashable:
        """Equal to another's only if both compute the same."""
        return fingerprint(self.program)


def require_of_one_record(
    model: PrivateModel, name: str, function: RecordFunction, *structs: Any
) -> OfOneRecord:
    """Refuse a function of one record that could see another, or show one.

    Only the program that is returned was judged: another trace may do other things, and what is
    dead here runs there.

    :param name: what it is called in a message.
    :param function: of the arrays of one record, each with a leading axis of 1.
    :param structs: shapes of what else it takes, none of it private.
    :returns: What is left of it, and the shape of what it returns.
    :raises UnsupportedModelError: it has side effects, its own rule for batches, or names an array
        of one entry for each record.
    """
    program = trace_program(function, model.layout.structs(1), *structs)
    if program.closed.jaxpr.effects:
        raise UnsupportedModelError(
            f"{name} has side effects (`jax.debug.print` or a callback), which would show single "
            "records: take them out"
        )
    pruned = prune(program)
    require_one_record(pruned)
    require_no_closure(pruned, model.layout, model.num_records)
    return OfOneRecord(pruned, program.out)
