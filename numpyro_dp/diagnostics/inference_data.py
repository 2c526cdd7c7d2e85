"""Released draws as an ArviZ object that holds nothing private."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import ArrayLike

from numpyro_dp.accounting import PrivacyReport
from numpyro_dp.estimators import EstimatorResult
from numpyro_dp.mcmc import MCMC
from numpyro_dp.mcmc.sgmcmc.integrator import in_one_line
from numpyro_dp.scoring.released import ReleasedLikelihood
from numpyro_dp.svi import CentredInputs, DPSVIRunResult

if TYPE_CHECKING:
    import xarray

# Arrays by group and site, and the attributes of every group.
_Groups = tuple[dict[str, Any], dict[str, Any]]

_APPROXIMATE = (
    "draws of a normal approximation in closed form; those of the posterior are NUTS's on .model"
)
_SAMPLE_DIMS = ("chain", "draw")
_SETTINGS = ("clip_norm", "noise_multiplier", "sampling_rate", "steps", "num_chains")


def from_numpyro(
    mcmc: MCMC | EstimatorResult | DPSVIRunResult | ReleasedLikelihood,
    *,
    coords: Mapping[str, Sequence] | None = None,
    dims: Mapping[str, Sequence[str]] | None = None,
    warmup_posterior: Mapping[str, ArrayLike] | None = None,
    prior: Mapping[str, ArrayLike] | None = None,
    predictions: Mapping[str, ArrayLike] | None = None,
) -> Any:
    """The draws of a private run for ArviZ, with the privacy statement in their attributes.

    The model is never evaluated: there is no ``log_likelihood``, ``observed_data``,
    ``constant_data``, ``lp`` or ``energy``, each of which would be an un-noised function of the
    records, and no ``sampling_time``. So ``az.loo`` and ``az.waic`` say "log likelihood not found
    in inference data object"; on people held out ``private_log_predictive_density`` answers, for a
    charge. Every dimension has a coordinate of its own name. A ``/`` in a site's name (from
    ``numpyro.handlers.scope``) becomes a dot: netCDF and ``DataTree`` keep it for groups.

    :param mcmc: a :class:`~numpyro_dp.MCMC` that has run; or what an estimator returned, which is
        one chain of one draw; or what :meth:`numpyro_dp.DPSVI.run` or :meth:`numpyro_dp.VIPS.run`
        returned, of whose guide 1,000 draws are taken as one chain; or a
        :class:`~numpyro_dp.ReleasedLikelihood`, of whose normal approximation they are taken.
        There are no losses to export.
    :param coords: values of named dimensions; they must be public.
    :param dims: names of a site's dimensions after chain and draw.
    :param warmup_posterior: ``mcmc.get_samples(group_by_chain=True)``, taken between
        ``mcmc.warmup(..., collect_warmup=True)`` and ``mcmc.run``: one array a site, of shape
        (chains, warm-up draws, ...).
    :param prior: what ``Predictive(model, num_samples=...)`` returned *at public inputs*: one array
        a site, of shape (draws, ...). Sites that the posterior lacks go to ``prior_predictive``.
    :param predictions: what ``Predictive(model, mcmc.get_samples())`` returned *at public inputs*:
        one array a site, of shape (chains · draws, ...).
    :returns: an ``xarray.DataTree`` with ArviZ 1, ``arviz.InferenceData`` with ArviZ 0.23: the
        group ``posterior``, ``sample_stats`` when extra fields were collected, and those given.
    :raises ValueError: before the first run, and for arrays that do not have the shapes above.

    **Privacy.** Post-processing of released draws: free. ``coords``, ``prior`` and ``predictions``
    are copied as they are, so they must come from public values; ``prior`` and ``predictions`` with
    one entry for each record are refused, since they were evaluated at the records.

    **References.** Kumar, Carroll, Hartikainen and Martin, *ArviZ, a unified library for
    exploratory analysis of Bayesian models in Python* (2019), for the groups; *Inspect a private
    posterior in ArviZ* (docs/howto/inspect-in-arviz.md).

    **Example**::

        >>> import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist
        >>> import numpyro_dp as ndp
        >>> def model(x):
        ...     mu = numpyro.sample("mu", dist.Normal(0, 1))
        ...     with numpyro.plate("people", x.shape[0]):
        ...         numpyro.sample("x", dist.Normal(mu, 1), obs=x)
        >>> kernel = ndp.DPSGLD(model, step_size=1e-3, batch_size=50, clip_norm=2.0,
        ...                     noise_multiplier=2.0)
        >>> mcmc = ndp.MCMC(kernel, num_warmup=5, num_samples=10, progress_bar=False)
        >>> mcmc.run(jax.random.key(0), jnp.linspace(-1.0, 3.0, 500))
        >>> idata = ndp.from_numpyro(mcmc)
        >>> dict(idata.posterior["mu"].sizes), idata.posterior.attrs["dp_relation"]
        ({'chain': 1, 'draw': 10}, 'zero_out')
    """
    given = warmup_posterior or {}, prior or {}, predictions or {}
    if isinstance(mcmc, (EstimatorResult, DPSVIRunResult, ReleasedLikelihood)):
        groups, attributes = _of_result(mcmc, *given)
    elif isinstance(mcmc, MCMC):
        groups, attributes = _of_draws(mcmc, *given)
    else:
        raise ValueError(_without_draws(mcmc))
    datasets = {
        group: dataset_of(arrays, coords or {}, dims or {}, attributes)
        for group, arrays in groups.items()
        if arrays
    }
    return assembled(datasets)


def _without_draws(given: Any) -> str:
    taken = (
        "from_numpyro takes a numpyro_dp.MCMC, a ReleasedLikelihood, or what an estimator, "
        f"DPSVI.run or VIPS.run returned, got {type(given).__name__}"
    )
    if hasattr(given, "to_inference_data"):
        return f"{taken}: call its own .to_inference_data()"
    if isinstance(given, CentredInputs):
        return f"{taken}: it holds no draws; give the result of a run on the centred inputs"
    return taken


def assembled(datasets: dict[str, xarray.Dataset]) -> Any:
    """The groups as what the installed ArviZ works with."""
    arviz: Any = import_module("arviz")
    # ArviZ 1 still answers to the name InferenceData, with a placeholder: only the version tells.
    if int(arviz.__version__.split(".")[0]) == 0:
        return arviz.InferenceData(**datasets)
    import xarray

    for dataset in datasets.values():
        dataset.attrs |= {
            "creation_library": "numpyro_dp",
            "creation_library_version": version("numpyro_dp"),
            "creation_library_language": "Python",
            "sample_dims": list(_SAMPLE_DIMS),
        }
    return xarray.DataTree.from_dict(datasets)


@dataclass(frozen=True)
class _Given:
    """Brings arrays that the caller made to the shape (chains, draws, ...)."""

    mcmc: MCMC
    num_records: int | None  # None where it is private

    @property
    def kept(self) -> int:
        return self.mcmc.num_samples // self.mcmc.thinning

    def warmup(self, arrays: Mapping[str, ArrayLike]) -> dict[str, np.ndarray]:
        expected = (self.mcmc.num_chains, self.mcmc.num_warmup // self.mcmc.thinning)
        for name, values in arrays.items():
            if np.shape(values)[:2] != expected:
                raise ValueError(
                    f"warmup_posterior[{name!r}] has leading axes {np.shape(values)[:2]}, not "
                    f"(chains, warm-up draws) = {expected}: pass "
                    "mcmc.get_samples(group_by_chain=True) as it is after "
                    "mcmc.warmup(..., collect_warmup=True)"
                )
        return {name: np.asarray(values) for name, values in arrays.items()}

    def prior(
        self, arrays: Mapping[str, ArrayLike], sites: Mapping[str, Any]
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        draws = {name: np.asarray(values)[np.newaxis] for name, values in arrays.items()}
        for name, values in draws.items():
            self._check_public("prior", name, values)
        latent = {name: values for name, values in draws.items() if name in sites}
        rest = {name: values for name, values in draws.items() if name not in sites}
        return latent, rest

    def predictions(self, arrays: Mapping[str, ArrayLike]) -> dict[str, np.ndarray]:
        chains, grouped = self.mcmc.num_chains, {}
        for name, values in arrays.items():
            values = np.asarray(values)
            if values.shape[:1] != (chains * self.kept,):
                raise ValueError(
                    f"predictions[{name!r}] has leading axis {values.shape[:1]}, not chains · draws"
                    f" = {chains * self.kept}: pass what Predictive(model, mcmc.get_samples()) "
                    "returned"
                )
            grouped[name] = values.reshape(chains, self.kept, *values.shape[1:])
            self._check_public("predictions", name, grouped[name])
        return grouped

    def _check_public(self, group: str, name: str, values: np.ndarray) -> None:
        # Fails closed: that a public test set has as many rows as there are records is rare, an
        # in-sample predictive handed over by habit is not.
        if self.num_records in values.shape[2:]:
            raise ValueError(
                f"{group}[{name!r}] has one entry for each record, as if it had been evaluated at "
                "the records, which are private: evaluate it at public inputs, fewer or more of "
                "them than there are records, or leave this site out"
            )


def _of_draws(
    mcmc: MCMC,
    warmup_posterior: Mapping[str, ArrayLike],
    prior: Mapping[str, ArrayLike],
    predictions: Mapping[str, ArrayLike],
) -> _Groups:
    described = mcmc._described
    if described is None or mcmc.last_state is None:
        raise ValueError("nothing has run yet: call mcmc.run() first")
    warmup_steps = mcmc.num_warmup * described.steps_per_sample
    if np.all(np.asarray(mcmc.last_state.i) == warmup_steps):
        raise ValueError(
            "only the warm-up has run, and there are no posterior draws yet: call mcmc.run() first"
        )
    sites = mcmc.get_samples(group_by_chain=True)
    given = _Given(mcmc, described.facts.num_records)
    latent, observable = given.prior(prior, sites)
    groups = {
        "posterior": sites,
        "sample_stats": _by_leaf(mcmc.get_extra_fields(group_by_chain=True)),
        "warmup_posterior": given.warmup(warmup_posterior),
        "prior": latent,
        "prior_predictive": observable,
        "predictions": given.predictions(predictions),
    }
    # Chains of draws, also where one release serves all.
    settings = {"kernel": type(mcmc.sampler).__name__, "num_chains": mcmc.num_chains}
    settings |= {"thinning": mcmc.thinning}
    attributes = _attributes(mcmc.privacy, settings, mcmc.num_warmup)
    return groups, {**attributes, "dp_notes": _of_a_file(described.in_short)}


def _of_result(
    result: EstimatorResult | DPSVIRunResult | ReleasedLikelihood,
    *given: Mapping[str, ArrayLike],
) -> _Groups:
    if any(given):
        raise ValueError(
            "warmup_posterior, prior and predictions are for MCMC: leave them out for an estimate, "
            "a released likelihood or a variational posterior"
        )
    said = in_one_line(result.privacy.notes, ())
    if isinstance(result, DPSVIRunResult):
        made = {"guide": result.guide_name}
    elif isinstance(result, ReleasedLikelihood):
        made = {"guide": "normal approximation"}
        said = "; ".join(filter(None, [said, _APPROXIMATE]))
    else:
        made = {"estimator": result.privacy.events[-1][0]}
    groups = {"posterior": result.get_samples(group_by_chain=True)}
    return groups, {**_attributes(result.privacy, made, 0), "dp_notes": _of_a_file(said)}


def _of_a_file(notes: str) -> str:
    """Which has no ``.privacy``: there the notes stand in the statement."""
    return notes.replace("see .privacy", "see dp_statement")


def _by_leaf(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Arrays under their names; those of a field that holds several as ``field.name``."""
    found = {}
    for name, value in fields.items():
        for path, leaf in jax.tree_util.tree_leaves_with_path(value):
            found[".".join([name, *(str(getattr(key, "name", key)) for key in path)])] = leaf
    return found


def _attributes(
    report: PrivacyReport, settings: Mapping[str, Any], tuning_steps: int
) -> dict[str, Any]:
    # Read back from the statement, where numbers that JSON cannot write are already words.
    readable = json.loads(report.to_json())
    settings = {name: readable[name] for name in _SETTINGS} | dict(settings)
    return {
        "created_at": datetime.now(UTC).isoformat(),
        "inference_library": "numpyro_dp",
        "inference_library_version": version("numpyro_dp"),
        "inference_library_settings": json.dumps(settings),
        "numpyro_version": version("numpyro"),
        "jax_version": version("jax"),
        "tuning_steps": tuning_steps,
        **privacy_attributes(report),
    }


def privacy_attributes(report: PrivacyReport) -> dict[str, Any]:
    """A privacy statement, as attributes of a group."""
    return {
        "dp_epsilon": report.epsilon,
        "dp_delta": report.delta,
        "dp_relation": report.relation,
        "dp_unit": report.unit,
        "dp_conditions": "; ".join(report.conditions),
        "dp_statement": report.to_json(),
    }


def dataset_of(
    arrays: Mapping[str, Any],
    coords: Mapping[str, Sequence],
    dims: Mapping[str, Sequence[str]],
    attributes: dict[str, Any],
) -> xarray.Dataset:
    import xarray

    variables, used = {}, {}
    for site, values in arrays.items():
        values = np.asarray(values)
        name = site.replace("/", ".")
        if name in variables:
            raise ValueError(
                f"two sites would both be called {name!r}, since '/' becomes a dot: rename one"
            )
        given = tuple(dims.get(site, ()))
        rest = given + tuple(f"{name}_dim_{k}" for k in range(len(given), values.ndim - 2))
        axes = (*_SAMPLE_DIMS, *rest)
        if len(axes) != values.ndim:
            raise ValueError(
                f"dims[{site!r}] names {len(given)} dimensions, the site has {values.ndim - 2}"
            )
        variables[name] = (axes, values)
        for axis, length in zip(axes, values.shape, strict=True):
            labels = np.asarray(coords.get(axis, np.arange(length)))
            if labels.shape != (length,):
                raise ValueError(
                    f"coords[{axis!r}] holds {labels.size} values, but that dimension of site "
                    f"{site!r} has {length}"
                )
            used[axis] = labels
    return xarray.Dataset(variables, coords=used, attrs=attributes)
