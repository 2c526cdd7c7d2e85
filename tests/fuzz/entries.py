"""Every public entry, called with the options of a case."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from numpyro.infer.autoguide import AutoDelta, AutoNormal

import numpyro_dp as ndp

BUDGET = ndp.Budget(2.0, 1e-5)
DRAWS = {"w": np.random.default_rng(2).normal(size=(10, 2)).astype(np.float32)}


def logistic(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def coins(x, y=None):
    p = numpyro.sample("p", dist.Beta(1, 1))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(p), obs=y)


class Entry(NamedTuple):
    """A public entry.

    - **options**: names of what is replaced in ``make``.
    - **run**: from a call's options, an accountant and the data to a result with a report.
    - **weight**: how often it is tried.
    """

    options: tuple[str, ...]
    run: Callable[..., Any]
    weight: int = 4


_SIZES = ("num_warmup", "num_samples", "num_chains")


def chain(kernel: Callable[..., Any], warmup: int = 2, **settings: Any) -> Callable[..., Any]:
    def run(options, accountant, data):
        sizes = {"num_warmup": warmup, "num_samples": 4}
        sizes |= {name: options.pop(name) for name in _SIZES if name in options}
        made = kernel(logistic, **settings | {"accountant": accountant} | options)
        mcmc = ndp.MCMC(made, progress_bar=False, **sizes)
        mcmc.run(jax.random.key(0), *data)
        return mcmc.get_samples(), mcmc.privacy

    return run


def fit(options, accountant, data):
    steps = options.pop("num_steps", 3)
    settings = {"clip_norm": 1.0, "privacy": BUDGET, "accountant": accountant} | options
    svi = ndp.DPSVI(logistic, AutoNormal(logistic), optax.sgd(0.01), **settings)
    result = svi.run(jax.random.key(0), steps, *data, progress_bar=False)
    return result.params, result.privacy


def statistics(options, accountant, data):
    steps = options.pop("num_steps", 3)
    settings = {"privacy": BUDGET, "accountant": accountant} | options
    vips = ndp.VIPS(coins, ndp.guides.ConjugateGuide(coins), **settings)
    result = vips.run(jax.random.key(0), steps, *data, progress_bar=False)
    return result.params, result.privacy


def estimate(kind: Callable[..., Any]) -> Callable[..., Any]:
    def run(options, accountant, data):
        settings = {"row_norm": 1.0, "privacy": BUDGET, "accountant": accountant} | options
        result = kind(logistic, **settings).run(jax.random.key(0), *data)
        return result.params, result.privacy

    return run


def centre(options, accountant, data):
    settings = {"row_norm": 1.0, "privacy": BUDGET, "accountant": accountant} | options
    found = ndp.PrivateCentre(**settings).run(jax.random.key(0), data[0] if data else None)
    return found.shift, found.privacy


def missing(options, accountant, data):
    settings = {"privacy": BUDGET, "accountant": accountant} | options
    found = ndp.count_missing(jax.random.key(0), *data, **settings)
    return found.count, found.privacy


def release(options, accountant, data):
    settings = {"privacy": BUDGET, "accountant": accountant, "num_rounds": 2} | options
    found = ndp.LikelihoodRelease(logistic, **settings).run(
        jax.random.key(0), *data, progress_bar=False
    )
    return found.diagnostics.disagreement, found.privacy


def ledger(options, accountant, data):
    settings = {"epsilon": 1.0, "delta": 1e-5} | options
    own = ndp.Accountant(ndp.Budget(settings["epsilon"], settings["delta"]))
    assert 0 < own.remaining() <= own.budget.epsilon
    return own.remaining(), None


def calibrated(options, accountant, data):
    settings = {"epsilon": 1.0, "delta": 1e-5, "relation": "zero_out"} | options
    budget = ndp.Budget(settings["epsilon"], settings["delta"])
    noise = ndp.calibrate(ndp.events.GaussianDpEvent, budget, settings["relation"])
    assert noise > 0
    return noise, None


def asked(check: Callable[..., Any], **settings: Any) -> Callable[..., Any]:
    def run(options, accountant, data):
        draws = options.pop("posterior_samples", DRAWS)
        paid = {"privacy": BUDGET, "accountant": accountant, "allow_unresolved": True}
        found = check(jax.random.key(0), logistic, draws, *data, **paid | settings | options)
        assert "ε=" in str(found)
        return getattr(found, "estimate", 0.0), found.privacy

    return run


_NOISE = ("privacy", "noise_multiplier", "accountant", "data_plate")
_SUMS = (*_NOISE, "clip_norm", "batch_size", "sampling_rate", "microbatch_size", "max_records")
_CHAIN = ("num_warmup", "num_samples", "num_chains", "steps_per_sample", "init_strategy")
_GRADIENT = {"step_size": 1e-3, "clip_norm": 1.0, "privacy": BUDGET}
_WALK = {"step_size": 0.1, "lipschitz": 1.0, "max_move": 0.2}
ENTRIES = {
    "DPSGLD": Entry(
        (*_SUMS, *_CHAIN, "step_size", "likelihood_power", "adaptation", "dense_mass"),
        chain(ndp.DPSGLD, **_GRADIENT),
        8,
    ),
    "DPSGHMC": Entry(
        (*_SUMS, "step_size", "friction", "temperature"), chain(ndp.DPSGHMC, **_GRADIENT)
    ),
    "DPSGNHT": Entry((*_SUMS, "step_size", "diffusion"), chain(ndp.DPSGNHT, **_GRADIENT)),
    "DPSGFS": Entry((*_SUMS, "step_size", "likelihood_power"), chain(ndp.DPSGFS, **_GRADIENT)),
    "DPFastMH": Entry(
        (
            *_NOISE[2:],
            *_CHAIN,
            "step_size",
            "lipschitz",
            "max_move",
            "smoothness",
            "record_bound",
            "likelihood_power",
            "acceptance",
            "noise_scale",
            "num_candidates",
            "batch_size",
        ),
        chain(ndp.DPFastMH, **_WALK),
        8,
    ),
    "DPPenaltyMH": Entry(
        ("privacy", "noise_scale", "lipschitz"), chain(ndp.DPPenaltyMH, **_WALK, noise_scale=2.0)
    ),
    "DPBarkerMH": Entry(("lipschitz", "batch_size", "step_size"), chain(ndp.DPBarkerMH, **_WALK)),
    "DPNUTS": Entry(
        ("privacy", "num_rounds", "allow_unresolved", "target_accept_prob", "max_tree_depth"),
        chain(ndp.DPNUTS, privacy=BUDGET, num_rounds=2),
        2,
    ),
    "OPS": Entry(
        ("privacy", "likelihood_power", "max_records", "num_warmup", "num_samples"),
        chain(ndp.OPS, guarantee=ndp.StronglyLogConcave(row_norm=1.0), warmup=0),
        2,
    ),
    "DPSVI": Entry(
        (*_SUMS, "num_steps", "clip", "scale", "curvature_clip", "average", "elbo", "adaptation"),
        fit,
        6,
    ),
    "VIPS": Entry(
        (*_NOISE, "clip_norm", "batch_size", "sampling_rate", "microbatch_size", "num_steps"),
        statistics,
    ),
    "OutputPerturbation": Entry(
        (
            *_NOISE,
            "row_norm",
            "regularisation",
            "gradient_tolerance",
            "max_iterations",
            "huber",
            "max_trials",
            "predictor_bounds",
            "max_count",
            "max_records",
        ),
        estimate(ndp.OutputPerturbation),
    ),
    "ObjectivePerturbation": Entry(
        (*_NOISE, "row_norm", "regularisation", "noise", "huber", "max_iterations"),
        estimate(ndp.ObjectivePerturbation),
    ),
    "PrivateCentre": Entry((*_NOISE[:3], "row_norm", "intercept"), centre),
    "count_missing": Entry(_NOISE[:3], missing),
    "LikelihoodRelease": Entry(
        ("privacy", "num_rounds", "allow_unresolved", "data_plate"), release, 1
    ),
    "Accountant": Entry(("epsilon", "delta"), ledger),
    "calibrate": Entry(("epsilon", "delta", "relation"), calibrated),
}

_CHECK = (*_NOISE, "posterior_samples", "allow_unresolved", "secure")
CHECKS = {
    "private_log_predictive_density": Entry(
        (*_CHECK, "bounds"), asked(ndp.private_log_predictive_density)
    ),
    "private_accuracy": Entry(_CHECK, asked(ndp.private_accuracy)),
    "private_calibration_curve": Entry(
        (*_CHECK, "bins"), asked(ndp.private_calibration_curve, bins=2)
    ),
    "private_posterior_predictive_check": Entry(
        (*_CHECK, "statistics", "outcome_range"), asked(ndp.private_posterior_predictive_check)
    ),
}


def adapted_fit(options, accountant, data):
    paid = {"privacy": BUDGET, "accountant": accountant, "allow_unresolved": True}
    steps = options.pop("num_steps", 3)
    svi = ndp.DPSVI(logistic, AutoNormal(logistic), **paid | options)
    result = svi.run(jax.random.key(0), steps, *data, progress_bar=False)
    return result.params, result.privacy


def clipped(options, accountant, data):
    mcmc = ndp.MCMC(ndp.DPFastMH(logistic, **_WALK, privacy=BUDGET), num_warmup=0, num_samples=4,
                    progress_bar=False)  # fmt: skip
    mcmc.run(jax.random.key(0), *data)
    settings = {"privacy": BUDGET, "accountant": accountant, "num_moves": 8} | options
    found = ndp.clipping_rate(jax.random.key(0), mcmc, *data, **settings)
    return found.rate, found.privacy


def planned(options, accountant, data):
    settings = {"num_steps": 10} | options
    return str(ndp.plan(ndp.DPSGLD(logistic, **_GRADIENT), *data, **settings)) and 0.0, None


def loud(options, accountant, data):
    own, other = ndp.loudest_pair(logistic, *data, **options)
    assert len(own) == len(other) == len(data)
    return 0.0, None


def attacked(options, accountant, data):
    kernel = ndp.DPSGLD(logistic, **_GRADIENT)
    settings = {"num_chains": 100, "progress_bar": False} | options
    pair = ndp.loudest_pair(logistic, *data)
    return ndp.audit(kernel, jax.random.key(0), *pair, **settings).epsilon_lower, None


def attacked_once(options, accountant, data):
    svi = ndp.DPSVI(logistic, AutoDelta(logistic), optax.sgd(0.1), clip_norm=1.0, privacy=BUDGET)
    data = tuple(np.tile(each, (5,) + (1,) * (np.ndim(each) - 1)) for each in data)
    return ndp.audit_one_run(svi, jax.random.key(0), *data, **options).epsilon_lower, None


def covered(options, accountant, data):
    def method(model):
        return ndp.DPSGLD(model, **_GRADIENT)

    settings = {"num_datasets": 2, "num_warmup": 2, "num_samples": 4, "progress_bar": False}
    x, y = data
    outcomes = jax.ShapeDtypeStruct(np.shape(y), np.asarray(y).dtype)
    found = ndp.coverage(method, logistic, x, outcomes, **settings | options)
    return str(found) and 0.0, None


_ADAPTED = {"privacy": ndp.Budget(20.0, 1e-4)}
OTHERS = {
    "adapted DPSGLD": Entry(
        (*_NOISE, *_CHAIN, "adaptation", "dense_mass", "temperature"),
        chain(ndp.DPSGLD, **_ADAPTED),
    ),
    "adapted DPFastMH": Entry(
        ("privacy", "accountant", *_CHAIN[:4], "adaptation", "dense_mass", "likelihood_power"),
        chain(ndp.DPFastMH, **_ADAPTED),
    ),
    "adapted DPSVI": Entry((*_NOISE, "num_steps", "adaptation", "clip", "scale"), adapted_fit),
    "clipping_rate": Entry((*_NOISE[:3], "num_moves", "positions", "secure"), clipped, 1),
    "plan": Entry(("num_steps", "privacy", "num_chains", "inputs"), planned, 1),
    "loudest_pair": Entry(("clip_norm", "max_move", "relation", "data_plate"), loud, 2),
    "audit": Entry(
        (
            "num_samples",
            "num_steps",
            "num_chains",
            "init_params",
            "score",
            "relation",
            "delta",
            "confidence",
        ),
        attacked,
        2,
    ),
    "audit_one_run": Entry(("num_steps", "guesses", "delta", "confidence"), attacked_once, 1),
    "coverage": Entry(
        ("num_datasets", "rng_key", "reference", "level", "num_warmup", "num_samples", "num_steps"),
        covered,
        1,
    ),
}
