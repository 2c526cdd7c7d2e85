"""Released draws as an ArviZ object that holds nothing private."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

from numpyro_dp.mcmc import MCMC

if TYPE_CHECKING:
    import xarray

__all__ = ["from_numpyro"]


def from_numpyro(
    mcmc: MCMC,
    *,
    coords: Mapping[str, Sequence] | None = None,
    dims: Mapping[str, Sequence[str]] | None = None,
) -> Any:
    """The draws of a private run for ArviZ, with the privacy statement in their attributes.

    The model is never evaluated: there is no ``log_likelihood``, ``observed_data``,
    ``constant_data``, ``lp`` or ``energy``, each of which would be an un-noised function of the
    records. Every dimension has a coordinate of its own name.

    :param mcmc: a :class:`~numpyro_dp.MCMC` that has run.
    :param coords: values of named dimensions; they must be public.
    :param dims: names of a site's dimensions after chain and draw.
    :returns: ``arviz.InferenceData`` with the groups ``posterior`` and, when extra fields were
        collected, ``sample_stats``.
    :raises ValueError: before the first run.
    :raises ImportError: when ArviZ is not installed.

    **Privacy.** Post-processing of released draws: free.
    """
    if not isinstance(mcmc, MCMC):
        raise ValueError(f"from_numpyro takes a numpyro_dp.MCMC, got {type(mcmc).__name__}")
    if mcmc.last_state is None:
        raise ValueError("nothing has run yet: call mcmc.run() first")
    arviz = _arviz()
    attributes = _attributes(mcmc)
    draws = mcmc.get_samples(group_by_chain=True)
    sites = draws if isinstance(draws, Mapping) else {mcmc.sampler.sample_field: draws}
    groups = {"posterior": _dataset(sites, coords or {}, dims or {}, attributes)}
    fields = mcmc.get_extra_fields(group_by_chain=True)
    if fields:
        groups["sample_stats"] = _dataset(fields, coords or {}, dims or {}, attributes)
    return arviz.InferenceData(**groups)


def _arviz() -> Any:
    try:
        return import_module("arviz")
    except ImportError as error:
        raise ImportError(
            "from_numpyro needs ArviZ: install it with pip install 'arviz>=0.23.4,<1'"
        ) from error


def _attributes(mcmc: MCMC) -> dict[str, Any]:
    report = mcmc.privacy
    return {
        "created_at": datetime.now(UTC).isoformat(),
        "inference_library": "numpyro_dp",
        "inference_library_version": version("numpyro_dp"),
        "numpyro_version": version("numpyro"),
        "jax_version": version("jax"),
        "tuning_steps": mcmc.num_warmup,
        "dp_epsilon": report.epsilon,
        "dp_delta": report.delta,
        "dp_relation": report.relation,
        "dp_unit": report.unit,
        "dp_conditions": "; ".join(report.conditions),
        "dp_statement": report.to_json(),
    }


def _dataset(
    arrays: Mapping[str, Any],
    coords: Mapping[str, Sequence],
    dims: Mapping[str, Sequence[str]],
    attributes: dict[str, Any],
) -> xarray.Dataset:
    import xarray

    variables, used = {}, {}
    for name, values in arrays.items():
        values = np.asarray(values)
        given = tuple(dims.get(name, ()))
        rest = given + tuple(f"{name}_dim_{k}" for k in range(len(given), values.ndim - 2))
        axes = ("chain", "draw", *rest)
        if len(axes) != values.ndim:
            raise ValueError(
                f"dims[{name!r}] names {len(given)} dimensions, the site has {values.ndim - 2}"
            )
        variables[name] = (axes, values)
        for axis, length in zip(axes, values.shape, strict=True):
            used.setdefault(axis, np.asarray(coords.get(axis, np.arange(length))))
    return xarray.Dataset(variables, coords=used, attrs=attributes)
