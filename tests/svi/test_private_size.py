"""A fit whose number of records is private is refused without a word of that number."""

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
