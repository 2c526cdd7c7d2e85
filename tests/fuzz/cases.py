"""What is thrown at every public entry, and what must come of it.

A case is an entry, one or two of its arguments replaced by odd values, and records of an odd kind;
all of it follows from the case's number. Either it ends in a documented error and the ledger holds
no charge, or in a finite result whose report can be recomputed and is within its budget.
"""

import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from numpyro.infer.autoguide import AutoNormal

import numpyro_dp as ndp

BUDGET = ndp.Budget(2.0, 1e-5)
N = 40
DRAWS = {"w": np.random.default_rng(2).normal(size=(10, 2)).astype(np.float32)}
# What public docstrings name. A ValueError covers what the model layer refuses.
DOCUMENTED = (ValueError, ndp.BudgetExceededError, ndp.LedgerError)


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
# Cases from this number on, so that those before it stay what they were.
FIRST_CHECK = 100_000
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

# Odd values of an argument. Those of one kind are tried equally often.
VALUES: dict[str, list[Any]] = {
    "numbers": [0, -1, 1, 2, 0.5, 3.7, 1e-300, 1e300, -0.0, 10**30],
    "no numbers": [math.nan, math.inf, -math.inf, 1j],
    "of another type": [np.float16(0.5), np.int8(3), np.float64(2.0), np.array(1.5), True, False],
    "arrays": [np.ones(2), jnp.ones(()), jnp.zeros((0,)), [1.0], (1, 2)],
    "no values": [None, "", "people", "plain", b"x", {}, [], (), object(), len, int],
    "budgets": [ndp.Budget(0.1, 1e-6), ndp.Budget(50.0, 1e-3), BUDGET],
}


def _records(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    return rng.normal(size=(N, 2)).astype(np.float32), rng.integers(0, 2, N).astype(np.int32)


def _row(value: float) -> Callable[[Any, Any], tuple]:
    def changed(x, y):
        x = x.copy()
        x[3] = value
        return x, y

    return changed


# Records of an odd kind; shapes are shared wherever they can be, so that little is compiled.
DATA: dict[str, Callable[[Any, Any], tuple]] = {
    "NaN in one": _row(np.nan),
    "infinite": _row(np.inf),
    "huge": _row(3e38),
    "all NaN": lambda x, y: (np.full_like(x, np.nan), y),
    "zeros": lambda x, y: (np.zeros_like(x), y),
    "float16": lambda x, y: (x.astype(np.float16), y),
    "float64": lambda x, y: (x.astype(np.float64), y),
    "bool": lambda x, y: (x, y.astype(bool)),
    "int8": lambda x, y: (x, y.astype(np.int8)),
    "float outcome": lambda x, y: (x, y.astype(np.float32)),
    "outcome outside": lambda x, y: (x, y + 5),
    "negative outcome": lambda x, y: (x, -y),
    "integers": lambda x, y: (np.rint(x).astype(np.int32), y),
    "JAX": lambda x, y: (jnp.asarray(x), jnp.asarray(y)),
    "lists": lambda x, y: (x.tolist(), y.tolist()),
    "strings": lambda x, y: (x.astype(str), y),
    "objects": lambda x, y: (x.astype(object), y),
    "complex": lambda x, y: (x.astype(complex), y),
    "none": lambda x, y: (None, y),
    "no outcome": lambda x, y: (x,),
    "nothing": lambda x, y: (),
    "empty tree": lambda x, y: ({}, []),
    "no rows": lambda x, y: (x[:0], y[:0]),
    "one row": lambda x, y: (x[:1], y[:1]),
    "other lengths": lambda x, y: (x, y[:-1]),
    "one column": lambda x, y: (x[:, 0], y),
    "too many columns": lambda x, y: (np.concatenate([x, x], 1), y),
    "three dimensions": lambda x, y: (x[..., None], y),
    "a number": lambda x, y: (3.0, y),
}


class Case(NamedTuple):
    """One case, made from its number."""

    number: int
    entry: str
    options: dict[str, Any]
    data: str
    relation: str
    wide: bool


def case(number: int) -> Case:
    rng = np.random.default_rng([7, number])
    entries = ENTRIES if number < FIRST_CHECK else CHECKS
    names = [name for name, each in entries.items() for _ in range(each.weight)]
    entry = names[rng.integers(len(names))]
    options = {}
    for _ in range(rng.choice([0, 1, 2], p=[0.2, 0.6, 0.2])):
        pool = list(VALUES.values())[rng.integers(len(VALUES))]
        options[rng.choice(entries[entry].options)] = pool[rng.integers(len(pool))]
    data = "plain" if rng.random() < 0.6 and options else list(DATA)[rng.integers(len(DATA))]
    relation = str(rng.choice(["zero_out", "replace_one", "add_remove"], p=[0.7, 0.15, 0.15]))
    return Case(number, str(entry), {str(k): v for k, v in options.items()}, data, relation,
                bool(rng.random() < 0.1))  # fmt: skip


def tried(which: Case) -> str:
    """Run a case; what is wrong with how it ended, or an empty text."""
    accountant = ndp.Accountant(ndp.Budget(60.0, 1e-2), relation=which.relation)
    plain = _records(np.random.default_rng(1))
    data = plain if which.data == "plain" else DATA[which.data](*plain)
    with warnings.catch_warnings(), jax.enable_x64(which.wide):
        warnings.simplefilter("ignore")
        try:
            run = {**ENTRIES, **CHECKS}[which.entry].run
            found, report = run(dict(which.options), accountant, data)
        except DOCUMENTED as error:
            spent = "" if not accountant.entries else f"charged before {type(error).__name__}: "
            return f"{spent}{error}"[:200] if spent else ""
        except Exception as error:
            # A function of the user's own raises what it likes, while nothing is charged.
            own = any(callable(value) for value in which.options.values())
            if own and not accountant.entries:
                return ""
            spent = "charged, then " if accountant.entries else ""
            return f"{spent}{type(error).__name__}: {error}"[:200]
    return _wrong(found, report, accountant)


def _wrong(found: Any, report: Any, accountant: Any) -> str:
    if not all(np.all(np.isfinite(np.asarray(leaf))) for leaf in jax.tree.leaves(found)):
        return "the result is not finite"
    if report is None:
        return ""
    if not 0 <= report.epsilon < math.inf:
        # Privacy was switched off, as the documentation of tests says, and the report says so.
        return "" if "not differentially private" in str(report) else f"ε = {report.epsilon}"
    if not math.isclose(report.epsilon, report.recompute(), rel_tol=1e-9):
        return "the report is not what its events say"
    if accountant.entries and accountant.epsilon() > 60.0:
        return "the ledger is overspent"
    return ""
