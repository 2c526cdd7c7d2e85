"""``coverage``: simulate, fit, and count how often the truth was held."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from jax import random
from numpyro import handlers

from numpyro_dp import _validate
from numpyro_dp.diagnostics.coverage.methods import Fitted, Settings, fit_of, named
from numpyro_dp.diagnostics.coverage.posteriors import Posteriors, summarised
from numpyro_dp.diagnostics.coverage.result import CoverageResult
from numpyro_dp.diagnostics.coverage.simulation import simulation
from numpyro_dp.execution.keys import as_typed_keys
from numpyro_dp.execution.progress import steps_bar

# Folded into the key of a data set.
_DATA, _METHOD = 0, 1


def coverage(
    method: Callable[[Any], Any],
    model: Callable[..., Any],
    *args: Any,
    num_datasets: int = 20,
    rng_key: Any = None,
    reference: Callable[[Any], Any] | None = None,
    level: float = 0.95,
    num_warmup: int = 500,
    num_samples: int = 1000,
    num_steps: int | None = None,
    data_plate: str | None = None,
    progress_bar: bool = True,
    **kwargs: Any,
) -> CoverageResult:
    """Find out whether a method's intervals hold what they state, before any record is spent on it.

    Truths are drawn from the prior, outcomes from the model at the inputs given, and the method is
    run on them: how often do its intervals hold the truth, how wide are they, and where among its
    draws does the truth lie? Data set ``i`` depends on key, model and inputs only, so that methods
    can be compared on the same data sets.

    :param method: a function of the model that returns a kernel of this package or of NumPyro, a
        :class:`~numpyro_dp.LikelihoodRelease`, a :class:`~numpyro_dp.DPSVI` or a
        :class:`~numpyro_dp.VIPS`, such as ``functools.partial(ndp.DPNUTS, privacy=budget)``; or a
        function of ``(rng_key, *args, **kwargs)`` to posterior draws by site, shape (draws, ...).
    :param model: a NumPyro model with proper priors that observes its arguments as they are. One
        wrapped in ``numpyro.handlers.reparam`` is simulated as it is written.
    :param args: arguments of the model: inputs, which are used as they are, so that they must be
        *public or made up*, and a ``jax.ShapeDtypeStruct`` for what it observes. Values of that
        are refused beside inputs: whoever has them is about to give records.
    :param num_datasets: data sets.
    :param rng_key: a JAX key; everything follows from it. Default ``jax.random.key(0)``.
    :param reference: a method to compare with on the same data sets, such as
        ``numpyro.infer.NUTS``.
    :param level: what the central intervals state.
    :param num_warmup: warm-up draws of a chain.
    :param num_samples: draws of a chain, or from a guide.
    :param num_steps: private steps of :class:`~numpyro_dp.DPSVI`, and of
        :class:`~numpyro_dp.VIPS` where its guide has no number of its own.
    :param data_plate: name of the plate whose slices are the records, when several enclose the
        observations; ``"auto"`` takes each row for one, where no plate does.
    :param progress_bar: show a bar of data sets, which says from the second one on how much time is
        left; the first waits for the compiler.
    :param kwargs: keyword arguments of the model.
    :returns: the result; ``print`` it, or ``.plot()`` it.
    :raises UnsupportedModelError: the model has a flat prior, or observes what it computes; before
        anything runs.
    :raises ValueError: an argument is out of range, or of the wrong kind; and what the method
        itself raises, such as for a budget that resolves nothing.

    **Privacy.** No private record is touched if the inputs hold none. The method runs on simulated
    records with reproducible noise, charged to a ledger in memory that is thrown away: an
    accountant that the method holds gives its neighbouring relation and is never charged. Coverage
    is an average over the prior: it says nothing of one data set, and of a wrong model nothing.

    **References.** Talts, Betancourt, Simpson, Vehtari and Gelman, *Validating Bayesian Inference
    Algorithms with Simulation-Based Calibration* (2018), for the ranks.

    **Example**::

        >>> import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist, numpyro_dp as ndp
        >>> def model(y):
        ...     mean = numpyro.sample("mean", dist.Normal(0, 1))
        ...     with numpyro.plate("people", y.shape[0]):
        ...         numpyro.sample("y", dist.Normal(mean, 1), obs=y)
        >>> def exact(model):
        ...     def draws(rng_key, y):
        ...         precision = 1 + y.shape[0]
        ...         noise = jax.random.normal(rng_key, (1000,)) / precision**0.5
        ...         return {"mean": y.sum() / precision + noise}
        ...     return draws
        >>> found = ndp.coverage(exact, model, jnp.zeros(50), num_datasets=50, progress_bar=False)
        >>> print(*str(found).splitlines()[:4], sep=chr(10))
        exact: 95% intervals held 0.980 ± 0.020 of the truths (50 data sets of 50 records)
          inputs: as given, taken as public or made up; no ε covers them
          site  held              width     error
          mean  0.980 ± 0.020      0.54     0.151
    """
    num_datasets = _validate.positive_int("num_datasets", num_datasets)
    if not 0 < _validate.finite_float("level", level) < 1:
        raise ValueError(f"level must be in (0, 1), got {level!r}")
    for name, given in {"method": method, "model": model, "reference": reference}.items():
        if not callable(given) and not (name == "reference" and given is None):
            how = (
                ": a class with its options, as in coverage(functools.partial(DPNUTS, "
                "privacy=Budget(1.0, 1e-5)), model, *made_up), with jax.ShapeDtypeStruct in the "
                "place of outcomes (docs/howto/is-it-worth-having.md, in short)"
            )
            raise ValueError(
                f"{name} must be callable, got {_validate.shown(given)}{how * (name != 'model')}"
            )
    _validate.given(_validate.positive_int, num_steps=num_steps)
    settings = Settings(
        _validate.positive_int("num_warmup", num_warmup),
        _validate.positive_int("num_samples", num_samples),
        num_steps,
    )
    written: Any = model.fn if isinstance(model, handlers.reparam) else model
    source = simulation(written, args, kwargs, data_plate)
    methods = [each for each in (method, reference) if each is not None]
    made = [each(model) for each in methods]
    names = [named(*each) for each in zip(methods, made, strict=True)]
    fits = [fit_of(each, settings) for each in made]
    key = as_typed_keys(random.key(0) if rng_key is None else rng_key, 1)
    keys = [random.fold_in(key, i) for i in range(num_datasets)]
    truths: list[dict[str, np.ndarray]] = []
    alike: list[float] = []
    found: list[list[_Row]] = []
    with steps_bar(num_datasets, (), shown=progress_bar) as show:
        for done, each in enumerate(keys, 1):
            data = source.draw(random.fold_in(each, _DATA))
            fitted = [
                fit(random.fold_in(each, part), data.args, data.kwargs)
                for part, fit in enumerate(fits, _METHOD)
            ]
            if not truths:
                sites = _sites(source.model.latents, data.truth, fitted)
            truth = {name: data.truth[name] for name in sites}
            truths.append(truth)
            alike.append(data.alike)
            found.append([_Row(summarised(f.draws, truth, level), f.verdicts) for f in fitted])
            show(done)
    posteriors = [_posteriors(rows) for rows in zip(*found, strict=True)]
    return CoverageResult(
        method=names[0],
        level=level,
        num_records=source.model.num_records,
        shapes={name: value.shape for name, value in truths[0].items()},
        truths=np.stack([np.concatenate([np.ravel(x) for x in t.values()]) for t in truths]),
        fitted=posteriors[0],
        reference_name="" if reference is None else names[1],
        reference=None if reference is None else posteriors[1],
        alike=tuple(alike),
    )


class _Row(NamedTuple):
    """One method on one data set."""

    numbers: tuple[np.ndarray, ...]
    verdicts: tuple[str, ...]


def _posteriors(rows: tuple[_Row, ...]) -> Posteriors:
    tables = map(np.stack, zip(*(row.numbers for row in rows), strict=True))
    return Posteriors(*tables, tuple(row.verdicts for row in rows))


def _sites(
    latents: tuple[str, ...], truth: Mapping[str, np.ndarray], fitted: list[Fitted]
) -> list[str]:
    """All latents, and the deterministic sites that every method has draws of."""
    return [n for n in truth if n in latents or all(n in each.draws for each in fitted)]
