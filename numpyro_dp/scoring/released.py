"""A released likelihood: what is left of the records, to be sampled for ever."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax import random
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float
from numpyro import distributions as dist, handlers
from numpyro.distributions import biject_to
from numpyro.primitives import Messenger

from numpyro_dp import _validate
from numpyro_dp._whole_file import write_whole
from numpyro_dp.accounting import PrivacyReport
from numpyro_dp.accounting.report.facts import RunFacts
from numpyro_dp.families.one_gaussian import (
    APART_BELOW,
    MOST_BLURRED,
    blurred,
    closest,
    has_free_shares,
    overlap,
)
from numpyro_dp.families.outcome_laws import (
    asymmetric,
    heavy,
    may_scatter,
    of_classes,
    of_counts,
    of_several_numbers,
    scattered_gates,
)
from numpyro_dp.model.data_free import (
    pooled_latents,
    read_coordinates,
    read_latents,
    run_data_free,
)
from numpyro_dp.model.guided.chosen_outcomes import chosen_of
from numpyro_dp.model.names import quoted
from numpyro_dp.model.private_model import PrivateModel
from numpyro_dp.model.records import ArrayLeaf
from numpyro_dp.scoring.diagnostics import Diagnostics
from numpyro_dp.scoring.prior import bounded, ordered, shares, walks
from numpyro_dp.scoring.statistic import coordinate_names, unravelled
from numpyro_dp.scoring.verdicts.kinds import Kind
from numpyro_dp.scoring.verdicts.trust import Located

# Of 96 releases of two or three components (priors that swap 1 to 3 % of pairs) 59 ended farther
# apart and with larger shares, under no other note than of width: each latent lay within 3.0 of its
# own sds of the truth. Five lay up to 126 off under no other: one at .5, the others with shares
# below .08.
_FAR_APART, _LEAST_SHARE = 3.0, 0.1
_FACTOR, _AUXILIARY = "released_likelihood", "_released_latent"


class Numbers(Protocol):
    """What a likelihood exp(−½‖response − design·u‖²) of the unconstrained latents u holds."""

    @property
    def design(self) -> Any: ...

    @property
    def response(self) -> Any: ...


class _Watch(Messenger):
    """Remember the values of some sites, whatever is done to them, and their supports."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        self.names = names
        self.supports: dict[str, Any] = {}
        self.values: dict[str, Any] = {}

    def process_message(self, msg: dict[str, Any]) -> None:
        """A site may be reparametrised further out: its own support is seen here only."""
        if msg["type"] == "sample" and msg["name"] in self.names:
            self.supports[msg["name"]] = msg["fn"].support

    def postprocess_message(self, msg: dict[str, Any]) -> None:
        """By now it has a value."""
        if msg["type"] in ("sample", "deterministic") and msg["name"] in self.supports:
            self.values[msg["name"]] = msg["value"]


@dataclass(frozen=True, eq=False)
class ReleasedModel:
    """A NumPyro model without data: the user's global sites and the released likelihood.

    :param private_model: the split model, which holds no record.
    :param located: the likelihood of the unconstrained latents.
    """

    private_model: PrivateModel
    located: Numbers

    def __call__(self) -> None:
        """Sample the latents under the user's prior, with one factor for all records."""
        seen = _Watch(self.private_model.latents)
        with seen:
            run_data_free(self.private_model)
        numpyro.factor(_FACTOR, _log_likelihood(self.located, seen.supports, seen.values))


@dataclass(frozen=True, eq=False)
class ReleasedGuide:
    """A normal guide in closed form: the released likelihood under the prior's moments."""

    private_model: PrivateModel
    located: Located

    def __call__(self) -> dict[str, Any]:
        """Sample the latents; a guide as NumPyro's automatic ones are."""
        mean, covariance = jnp.asarray(self.located.mean), jnp.asarray(self.located.covariance)
        u = numpyro.sample(
            _AUXILIARY,
            dist.MultivariateNormal(mean, covariance),
            infer={"is_auxiliary": True},
        )
        model = self.private_model
        z = unravelled(model, u)
        values = model.constrain(z)
        for name, support in _supports(model, values).items():
            jacobian = biject_to(support).log_abs_det_jacobian(z[name], values[name])
            event_dim = jnp.ndim(values[name])
            numpyro.sample(name, dist.Delta(values[name], -jnp.sum(jacobian), event_dim=event_dim))
        return {name: values[name] for name in model.latents}


def _supports(model: PrivateModel, values: Mapping[str, Any]) -> dict[str, Any]:
    """Supports of the latents, which may depend on their values."""
    with handlers.block():
        body = handlers.seed(lambda: run_data_free(model), jax.random.key(0))
        trace = handlers.trace(handlers.substitute(body, data=dict(values))).get_trace()
    return {name: trace[name]["fn"].support for name in model.latents}


def _log_likelihood(
    located: Numbers, supports: Mapping[str, Any], values: Mapping[str, Any]
) -> Float[Array, ""]:
    """Of the latents, whose unconstrained values stand in a row in the order of their names."""
    free = {name: biject_to(support).inv(values[name]) for name, support in supports.items()}
    u = ravel_pytree({name: free[name] for name in sorted(free)})[0]
    response, design = jnp.asarray(located.response), jnp.asarray(located.design)
    gap = response.astype(u.dtype) - design.astype(u.dtype) @ u
    return -0.5 * jnp.sum(gap * gap)


def verdicts_of(model: PrivateModel, at: Located) -> tuple[str, ...]:
    """What the released numbers, and the kind of the model, say against a release."""
    kind = kind_of(model)
    if kind.mixture and not kind.apart:
        kind = kind._replace(found=_components_found(model, tuple(at.mean)))
    return at.verdicts(coordinate_names(model), read_coordinates(model), kind)


@lru_cache(maxsize=4)
def _components_found(model: PrivateModel, mean: tuple[float, ...]) -> str:
    """Whether components lie in the release as they did where rounds had found their mode."""
    gap, share = closest(model, unravelled(model, jnp.asarray(mean)))
    if not math.isfinite(gap):
        return ""
    clear = gap > _FAR_APART and share > _LEAST_SHARE
    right = "of 59 such releases, under no other note than of width, none was wrong"
    wrong = "others that lay so were wrong, by up to 126 sds, under no other note than of width"
    return (
        f"Here the closest two lie {gap:.1f} of their own sds apart, and the smallest share is "
        f"{share:.0%}: {right if clear else wrong}. "
    )


def kind_of(model: PrivateModel) -> Kind:
    """What verdicts hang on beside the released numbers."""
    mixture = has_free_shares(model)
    chosen = chosen_of(model)
    arrays = sorted({_entry_name(model.layout.arrays[i], e) for i, e in chosen.partial})
    near = _nearness(model) if mixture else {}
    return Kind(
        mixture=mixture,
        apart=mixture and not near,
        nearness="; ".join(text.format(share) for text, share in near.items() if share == share),
        unlike=() if chosen.places else chosen.told,
        itself=chosen.itself,
        partial=arrays,
        asked=chosen.asked,
        scattered=scattered_gates(model),
        several=() if chosen.itself or chosen.places else of_several_numbers(model),
        quantile=asymmetric(model),
        walks=walks(model),
        shares=shares(model),
        classes=of_classes(model),
        scatters=may_scatter(model),
        scales=bounded(model) if may_scatter(model) else (),
        counts=of_counts(model),
        heavy=heavy(model),
        learned=sorted(pooled_latents(model)),
        ordered=ordered(model),
    )


def _nearness(model: PrivateModel) -> dict[str, float]:
    """In what components of a mixture are not apart, with a share; NaN where it is not known."""
    swapped, close = overlap(model), blurred(model)
    told = (
        ("{:.1%} of pairs of its prior's draws swap two components", swapped, APART_BELOW),
        ("in {:.0%} of its prior's draws two lie within two of their own sds", close, MOST_BLURRED),
    )
    return {text: share for text, share, most in told if not share < most}


def _entry_name(array: ArrayLeaf, entry: int) -> str:
    """What an entry of a record's array is called; of a table its column."""
    return f"{array.name}[:, {entry}]" if len(array.shape) == 2 else array.name


@dataclass(frozen=True, eq=False)
class ReleasedLikelihood:
    """What :meth:`LikelihoodRelease.run` returns: a likelihood that holds no record.

    :param private_model: the user's model, split; it holds shapes and public values.
    :param located: the released numbers.
    :param facts: what the release says of itself.
    :param privacy: the privacy statement of the release.

    **Privacy.** Everything here is post-processing of what was charged: any prior, any
    parametrisation, any number of draws costs nothing more.

    **References**: see :class:`LikelihoodRelease`.

    **Example**: see :class:`~numpyro_dp.LikelihoodRelease` and :class:`~numpyro_dp.DPNUTS`.
    """

    private_model: PrivateModel
    located: Located
    facts: RunFacts
    privacy: PrivacyReport

    @property
    def model(self) -> Callable[[], None]:
        """An ordinary NumPyro model without arguments, for NUTS, SVI, ``Predictive``, handlers."""
        return ReleasedModel(self.private_model, self.located)

    def log_likelihood(self, values: Mapping[str, Any]) -> Float[Array, ""]:
        """The released log likelihood, up to a constant: for a model with another prior.

        In a NumPyro model of the same latents, ``numpyro.factor("records",
        released.log_likelihood({"w": w}))`` stands for all records.

        :param values: of every latent, by name, on its own support.
        :raises ValueError: for other names than the latents'.
        """
        latents = self.private_model.latents
        if set(values) != set(latents):
            raise ValueError(
                f"the likelihood is one of {quoted(sorted(latents))}, got "
                f"{quoted(sorted(values)) or 'none'}: give a value of each latent"
            )
        return _log_likelihood(self.located, _supports(self.private_model, values), values)

    @property
    def guide(self) -> Callable[[], dict[str, Any]]:
        """A normal approximation of its posterior, in closed form."""
        return ReleasedGuide(self.private_model, self.located)

    def get_samples(
        self, rng_key: Any = None, num_samples: int = 1000, *, group_by_chain: bool = False
    ) -> dict[str, Array]:
        """Draws from :attr:`guide`: latents, and deterministic sites that read no record.

        They are of an approximation, at once; for the posterior itself run NUTS on :attr:`model`.

        :param rng_key: a JAX key; default ``jax.random.key(0)``.
        :param num_samples: draws.
        :param group_by_chain: give each array a leading axis of one chain.
        :returns: one array a site, of shape (num_samples, ...).

        **Privacy.** Post-processing of what was released: free.
        """
        key = random.key(0) if rng_key is None else rng_key
        shape = _validate.positive_int("num_samples", num_samples), len(self.located.mean)
        root = np.linalg.cholesky(self.located.covariance)
        rows = self.located.mean + np.asarray(random.normal(key, shape), np.float64) @ root.T
        model = self.private_model

        def sites(u: Any) -> dict[str, Array]:
            z = unravelled(model, u)
            return {**model.constrain(z), **model.deterministics(z)}

        draws = jax.jit(jax.vmap(sites))(jnp.asarray(rows, jnp.result_type(float)))
        return jax.tree.map(lambda x: x[None], draws) if group_by_chain else draws

    @property
    def diagnostics(self) -> Diagnostics:
        """How far to trust it; ``print`` it."""
        at, read = self.located, read_latents(self.private_model)

        def by_site(row: np.ndarray) -> dict[str, np.ndarray]:
            sites = unravelled(self.private_model, np.asarray(row))
            return {name: np.asarray(x) for name, x in sites.items()}

        return Diagnostics(
            information=at.information,
            noise_sd=at.noise_sd,
            resolved=by_site(at.resolved),
            widened=by_site(at.widened),
            signal=by_site(at.signal),
            dispersion=at.dispersion,
            misfit=at.misfit,
            misfit_sd=at.misfit_sd,
            tail=at.tail,
            tail_sd=at.tail_sd,
            disagreement=at.disagreement,
            travelled=at.travelled,
            verdicts=verdicts_of(self.private_model, at),
            outside=at.outside.share,
            outside_sd=at.outside.noise_sd,
            unread=tuple(sorted({*self.private_model.structure.latents} - read)),
        )

    def save(self, path: str | Path) -> None:
        """Write the release and the public part of the model to a file; no record is in it.

        The file is whole or not there. The model function is stored by its name, as pickle does:
        define it in a module.
        """
        write_whole(path, pickle.dumps(self))

    @staticmethod
    def load(path: str | Path) -> ReleasedLikelihood:
        """Read what :meth:`save` wrote. As with any pickle: from trusted files only."""
        found = pickle.loads(Path(path).read_bytes())
        if not isinstance(found, ReleasedLikelihood):
            raise ValueError(
                f"{str(path)!r} holds a {type(found).__name__}, no released likelihood"
            )
        return found
