"""A fit whose number of records is private is refused without a word of that number."""

import pickle
import pickletools
import re

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.autoguide import AutoNormal

import numpyro_dp as ndp
from tests.models import logistic

N = 30_011
NUMBER = re.compile(r"30[,_ ]?011")


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(4)
    x = rng.uniform(-1, 1, (N, 2)).astype(np.float32)
    return x, (rng.random(N) < 0.5).astype(np.int32)


def fit(model, guide=None, **changes):
    options = {"sampling_rate": 1e-3, "max_records": 40_000, "noise_multiplier": 2.0, **changes}
    ledger = ndp.Accountant(ndp.Budget(1.5, 1e-6), relation="add_remove")
    guide = AutoNormal(model) if guide is None else guide
    optim = numpyro.optim.Adam(0.1)
    return ndp.DPSVI(model, guide, optim, clip_norm=1.0, accountant=ledger, **options)


def three_columns(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def by_size(x, y):
    w = numpyro.sample("w", dist.Normal(0, x.shape[0] ** -0.5).expand([2]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def guide_of_wrong_shape(x, y):
    numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[0]]).to_event(1))


CASES = {
    "columns": (three_columns, None, {}, lambda x, y: (x, y)),
    "prior": (by_size, None, {}, lambda x, y: (x, y)),
    "guide": (logistic, guide_of_wrong_shape, {}, lambda x, y: (x, y)),
    "lengths": (logistic, None, {}, lambda x, y: (x, y[:-1])),
    "list": (logistic, None, {}, lambda x, y: (x, y.tolist())),
    "bound": (logistic, None, {"max_records": N - 1}, lambda x, y: (x, y)),
}


# Starting values need no bound on the number.
REFUSED = [(n, m) for n in CASES for m in ("init", "run", "plan") if (n, m) != ("bound", "init")]


@pytest.mark.parametrize(("name", "method"), REFUSED)
def test_refusals_do_not_tell_the_number(name, method, data):
    model, guide, options, changed = CASES[name]
    svi, arguments = fit(model, guide, **options), changed(*data)
    calls = {
        "init": lambda: svi.init(jax.random.key(0), *arguments),
        "run": lambda: svi.run(jax.random.key(0), 2, *arguments, progress_bar=False),
        "plan": lambda: ndp.plan(svi, *arguments, num_steps=2),
    }
    with pytest.raises((ValueError, TypeError)) as caught:
        calls[method]()
    error = caught.value
    assert not NUMBER.search(str(error)), str(error)
    assert error.__cause__ is None
    assert error.__context__ is None


ROWS = 2137


def mean(x):
    mu = numpyro.sample("mu", dist.Normal(0, 10))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("x", dist.Normal(mu, 1), obs=x)


def start_by_size(x):
    numpyro.sample("mu", dist.Normal(numpyro.param("loc", 1.0 * x.shape[0]), 1.0))


def drawn_start_by_size(x):
    start = numpyro.param("loc", lambda key: jax.random.normal(key) / x.shape[0])
    numpyro.sample("mu", dist.Normal(start, 1.0))


def shape_by_size(x):
    many = numpyro.param("many", np.zeros(x.shape[0] // 2))
    numpyro.sample("mu", dist.Normal(many.sum(), 1.0))


def shape_by_steps_of_size(x):
    # The same at a record more, so that no comparison of neighbouring sizes shows it.
    many = numpyro.param("many", np.zeros(1 + x.shape[0] // 1000))
    numpyro.sample("mu", dist.Normal(many.sum(), 1.0))


def capped(x):
    mu = numpyro.sample("mu", dist.Normal(0, float(min(x.shape[0], 100))))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("x", dist.Normal(mu, 1), obs=x)


# Fewer than ten entries: more might be records, whose number nobody may look at.
WORDS = ["a", "b"] * 4 + ["c"]


def wordy(x):
    mu = numpyro.sample("mu", dist.Normal(0, float(len(set(WORDS)))))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("x", dist.Normal(mu, 1), obs=x)


def numbers(rows=ROWS):
    return np.random.default_rng(0).normal(size=rows).astype(np.float32)


@pytest.mark.parametrize(
    "guide", [start_by_size, drawn_start_by_size, shape_by_size, shape_by_steps_of_size]
)
def test_starting_values_may_not_tell_the_number(guide):
    svi = fit(mean, guide)
    with pytest.raises(ndp.UnsupportedModelError, match=r"parameter depends on the number"):
        svi.run(jax.random.key(0), 1, numbers(), progress_bar=False)


def test_a_prior_that_is_capped_by_the_number_is_refused():
    with pytest.raises(ndp.UnsupportedModelError, match="depends on the number of records"):
        fit(capped).run(jax.random.key(0), 1, numbers(), progress_bar=False)


@pytest.fixture(scope="module")
def fitted():
    svi = fit(wordy)
    return svi, svi.run(jax.random.key(0), 1, numbers(), progress_bar=False)


def test_after_the_charge_nothing_is_judged_again(fitted):
    result = fitted[1]
    copy = pickle.loads(pickle.dumps(result))
    assert copy.get_samples(num_samples=3)["mu"].shape == (3,)
    # Of a wall that comes from a pickle any number of records is taken.
    split = pickle.loads(pickle.dumps(result.target.private_model))
    assert len(split.records((numbers(60),))[0]) == 60


def by_hand(x):
    numpyro.sample("mu", dist.Normal(numpyro.param("loc", 0.5), 1.0))


@pytest.mark.parametrize(
    "guide",
    [None, pytest.param(by_hand, marks=pytest.mark.slow)],
    ids=["autoguide", "by hand"],
)
def test_neither_result_nor_guide_keeps_the_number(guide, fitted):
    svi, result = fitted
    if guide is not None:
        svi = fit(mean, guide)
        result = svi.run(jax.random.key(0), 1, numbers(), progress_bar=False)
    target = result.target
    assert target.num_records == target.private_model.num_records != ROWS
    kept = pickletools.genops(pickle.dumps((result, svi.guide)))
    assert ROWS not in [argument for _, argument, _ in kept]
    copy = pickle.loads(pickle.dumps(result))
    assert copy.get_samples(num_samples=3)["mu"].shape == (3,)
    assert ROWS not in numbers_within(svi.guide.__dict__ if guide is None else {})


def numbers_within(value, depth=6):
    """Every integer and array length that an object's attributes lead to."""
    if depth == 0:
        return set()
    if isinstance(value, int):
        return {value}
    if hasattr(value, "shape") and isinstance(value.shape, tuple):
        return set(value.shape)
    parts = value.values() if isinstance(value, dict) else value
    if not isinstance(parts, (list, tuple, type({}.values()))):
        parts = getattr(value, "__dict__", {}).values()
    return set().union(*(numbers_within(part, depth - 1) for part in parts))
