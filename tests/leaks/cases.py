"""Every algorithm of the package as one small run whose caller keeps all that there is to keep."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import numpyro
import pytest
from numpyro.infer.autoguide import AutoDelta, AutoNormal

import numpyro_dp as ndp
from tests.contract.kernels import KERNELS, make, warmup
from tests.models import logistic, logistic_of_rows
from tests.svi.vips.test_vips_surfaces import CASES as GUIDES

KEY, BUDGET = jax.random.key(5), ndp.Budget(12.0, 1e-5)
# The row that differs between data sets.
ROW = 7


@dataclass(frozen=True)
class Case:
    """An algorithm.

    :param run: makes a run: what the caller holds goes into its first argument, as soon as there
        is any; further ones are the ledger, ``secure`` and the records.
    :param arrays: the records.
    :param nothing: a row that adds nothing to any release, as one of NaN does; ``None`` where
        there is none.
    :param planted: which of the arrays has the row that is changed.
    """

    run: Callable[..., None]
    arrays: tuple[np.ndarray, ...]
    nothing: float | None = 0.0
    planted: int = 0

    def with_row(self, value: float) -> tuple[np.ndarray, ...]:
        """The records, one row of which holds a number in every column of one array."""
        arrays = [array.copy() for array in self.arrays]
        arrays[self.planted] = arrays[self.planted].astype(np.float32)
        arrays[self.planted][ROW] = value
        return tuple(arrays)


def _finished(held: dict, mcmc: ndp.MCMC) -> None:
    held |= {
        "samples": mcmc.get_samples(),
        "extra": mcmc.get_extra_fields(),
        "last_state": mcmc.last_state,
        "warmup_state": mcmc.post_warmup_state,
        "report": mcmc.privacy,
        "idata": ndp.from_numpyro(mcmc),
    }
    mcmc.print_summary()
    print(mcmc.privacy)


def _kernel(
    name: str, model: Callable[..., None] = logistic, **changes: Any
) -> Callable[..., None]:
    def run(held: dict, accountant: Any, secure: bool, *arrays: np.ndarray) -> None:
        steps = warmup(name, 4)
        kernel = held["kernel"] = make(name, model, accountant=accountant, **changes)
        options = {"num_warmup": steps, "num_samples": 4, "num_chains": 2, "secure": secure}
        mcmc = held["mcmc"] = ndp.MCMC(kernel, **options)
        if steps:
            mcmc.warmup(KEY, *arrays, extra_fields=("i", "z.w"), collect_warmup=True)
        mcmc.run(KEY, *arrays, extra_fields=("i", "z.w"))
        _finished(held, mcmc)

    return run


class _Store:
    def __init__(self, *arrays: np.ndarray) -> None:
        self.arrays = arrays

    def __len__(self) -> int:
        return len(self.arrays[0])

    def __getitems__(self, rows: np.ndarray) -> list[tuple[np.ndarray, ...]]:
        return [tuple(array[row] for array in self.arrays) for row in rows]


def _stored(held: dict, accountant: Any, secure: bool, *arrays: np.ndarray) -> None:
    store = _Store(*arrays)
    sources = (
        ndp.RecordSource(store, shape=array.shape[1:], dtype=array.dtype, field=field)
        for field, array in enumerate(arrays)
    )
    _kernel("DPSGLD")(held, accountant, secure, *sources)


def _nuts(held: dict, accountant: Any, secure: bool, *arrays: np.ndarray) -> None:
    kernel = held["kernel"] = ndp.DPNUTS(
        logistic, privacy=BUDGET, accountant=accountant, allow_unresolved=True
    )
    mcmc = held["mcmc"] = ndp.MCMC(kernel, num_warmup=4, num_samples=4, secure=secure)
    mcmc.run(KEY, *arrays, extra_fields=("energy", "potential_energy"))
    held["released"] = mcmc.released
    _finished(held, mcmc)


def _clipping(held: dict, accountant: Any, secure: bool, *arrays: np.ndarray) -> None:
    kernel = make("DPFastMH", logistic)
    chain = {"num_warmup": 0, "num_samples": 4, "progress_bar": False, "secure": secure}
    mcmc = held["mcmc"] = ndp.MCMC(kernel, **chain)
    mcmc.run(KEY, *arrays)
    options = {"noise_multiplier": 2.0, "accountant": accountant, "secure": secure}
    held["found"] = ndp.clipping_rate(KEY, mcmc, *arrays, **options)


def _svi(guide: type, *optim: Any, **options: Any) -> Callable[..., None]:
    def run(held: dict, accountant: Any, secure: bool, *arrays: np.ndarray) -> None:
        made = held["guide"] = guide(logistic)
        settings = {**options, "accountant": accountant, "secure": secure}
        svi = held["svi"] = ndp.DPSVI(logistic, made, *optim, **settings)
        held["result"] = svi.run(KEY, 6, *arrays)
        held["report"] = held["result"].privacy
        held["draws"] = held["result"].get_samples(num_samples=3)
        held["idata"] = ndp.from_numpyro(held["result"])
        print(held["result"].privacy)

    return run


def _vips(name: str) -> Case:
    guide, arrays, options = GUIDES[name]

    def run(held: dict, accountant: Any, secure: bool, *arrays: np.ndarray) -> None:
        made = held["guide"] = type(guide)(guide.model, **options)
        settings = {"noise_multiplier": 4.0, "accountant": accountant, "secure": secure}
        vips = held["vips"] = ndp.VIPS(guide.model, made, **settings)
        result = held["result"] = vips.run(KEY, 4, *arrays)
        held["report"], held["idata"] = result.privacy, ndp.from_numpyro(result)
        print(result.privacy, vips.forecast(4, *arrays))

    return Case(run, arrays, nothing=None, planted=len(arrays) - 1)


def _release(held: dict, accountant: Any, secure: bool, *arrays: np.ndarray) -> None:
    settings = {"privacy": BUDGET, "accountant": accountant, "allow_unresolved": True}
    release = held["release"] = ndp.LikelihoodRelease(logistic, secure=secure, **settings)
    print(release.forecast(*arrays))
    held["released"] = release.run(KEY, *arrays)
    held["model"], held["report"] = held["released"].model, held["released"].privacy
    print(held["released"], held["released"].privacy)


def _estimator(constructor: type) -> Callable[..., None]:
    def run(held: dict, accountant: Any, secure: bool, *arrays: np.ndarray) -> None:
        settings = {"noise_multiplier": 3.0, "accountant": accountant, "secure": secure}
        made = held["estimator"] = constructor(logistic, row_norm=1.0, **settings)
        result = held["result"] = made.run(KEY, *arrays)
        held["samples"], held["report"] = result.get_samples(), result.privacy
        held["idata"] = ndp.from_numpyro(result)
        print(result.privacy)

    return run


def _centre(held: dict, accountant: Any, secure: bool, x: np.ndarray, _: Any) -> None:
    settings = {"noise_multiplier": 3.0, "accountant": accountant, "secure": secure}
    made = held["centre"] = ndp.PrivateCentre(row_norm=2.0, **settings)
    held["found"] = made.run(KEY, x)
    print(held["found"].privacy)


def _missing(held: dict, accountant: Any, secure: bool, *arrays: np.ndarray) -> None:
    settings = {"noise_multiplier": 3.0, "accountant": accountant, "secure": secure}
    held["found"] = ndp.count_missing(KEY, *arrays, **settings)
    print(held["found"].privacy)


def _check(ask: Callable[..., Any], **options: Any) -> Callable[..., None]:
    def run(held: dict, accountant: Any, secure: bool, *arrays: np.ndarray) -> None:
        settings = {"noise_multiplier": 3.0, "accountant": accountant, "secure": secure, **options}
        held["found"] = ask(KEY, logistic, _DRAWS, *arrays, **settings)
        held["report"], held["idata"] = held["found"].privacy, held["found"].to_inference_data()
        print(held["found"], held["report"])

    return run


def _records(size: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(20)
    x = np.concatenate([np.ones((size, 1)), rng.uniform(-1, 1, (size, 2))], axis=1)
    y = rng.random(size) < 1 / (1 + np.exp(-x @ np.array([0.3, -1.0, 1.5])))
    return x.astype(np.float32), y.astype(np.int32)


# No other test has as many, nor has another case of the same programs: each one is compiled within
# its case, into the cache that is looked at.
_X_Y, _FEWER, _MORE = _records(404), _records(403), _records(405)
_DRAWS = {"w": np.random.default_rng(21).normal(0, 1, (20, 3)).astype(np.float32)}
_SGD = numpyro.optim.SGD(1e-3)
# Of what asks how long a record's score is, zero is one answer and a broken record none.
CASES = {
    **{name: Case(_kernel(name), _X_Y, np.inf if "adapted" in name else 0.0) for name in KERNELS},
    # As many as the records, which are a few more than those of the contract.
    "DPFastMH mini-batch": Case(_kernel("DPFastMH mini-batch", batch_size=404), _X_Y),
    "DPSGLD of rows": Case(_kernel("DPSGLD", logistic_of_rows, data_plate="auto"), _records(406)),
    "DPNUTS": Case(_nuts, _X_Y, np.inf),
    "DPSVI": Case(_svi(AutoDelta, _SGD, clip_norm=1.0, noise_multiplier=5.0), _X_Y),
    "DPSVI adapted": Case(_svi(AutoNormal, privacy=BUDGET), _X_Y, np.inf),
    "LikelihoodRelease": Case(_release, _FEWER, np.inf),
    "ObjectivePerturbation": Case(_estimator(ndp.ObjectivePerturbation), _X_Y),
    "OutputPerturbation": Case(_estimator(ndp.OutputPerturbation), _FEWER),
    "PrivateCentre": Case(_centre, _X_Y),
    "clipping_rate": Case(_clipping, _MORE, np.inf),
    "count_missing": Case(_missing, _X_Y, np.inf),
    "private_accuracy": Case(_check(ndp.private_accuracy), _X_Y, np.inf),
    "private_calibration_curve": Case(_check(ndp.private_calibration_curve, bins=4), _X_Y, np.inf),
    "private_log_predictive_density": Case(
        _check(ndp.private_log_predictive_density), _X_Y, np.inf
    ),
    "private_posterior_predictive_check": Case(
        _check(ndp.private_posterior_predictive_check), _X_Y, np.inf
    ),
    "RecordSource": Case(_stored, _FEWER),
    **{f"VIPS {name}": _vips(name) for name in GUIDES},
}
_QUICK = ("count_missing",)
NAMES = [pytest.param(name, marks=() if name in _QUICK else pytest.mark.slow) for name in CASES]
# What VIPS shows of two others' data is compared in tests/svi/vips/test_vips_surfaces.py.
WITH_NEIGHBOURS = [each for each in NAMES if CASES[each.values[0]].nothing is not None]
