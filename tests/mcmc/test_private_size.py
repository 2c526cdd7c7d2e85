"""``relation="add_remove"``: the number of records is private, and nothing says what it is."""

import io
import json
import pickle
import re
import warnings
from contextlib import redirect_stderr, redirect_stdout

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import numpyro.infer
import pytest
from numpyro.infer import init_to_value

import numpyro_dp as ndp
from tests.arviz_groups import group_names
from tests.models import logistic

# A number that no clock, version, ε or shape contains by chance: five digits, a prime.
N = 30_011
NUMBER = re.compile(r"(?<!\d)30[,_ ]?011(?!\d)")
OPTIONS = {"num_warmup": 2, "num_samples": 4, "num_chains": 2, "progress_bar": False}


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(4)
    x = rng.uniform(-1, 1, (N, 2)).astype(np.float32)
    return x, (rng.random(N) < 0.5).astype(np.int32)


def kernel(model=logistic, **changes):
    arguments = {
        "step_size": 1e-4,
        "sampling_rate": 1e-3,
        "max_records": 40_000,
        "clip_norm": 1.0,
        "noise_multiplier": 2.0,
        "accountant": ndp.Accountant(ndp.Budget(1.5, 1e-6), relation="add_remove"),
        **changes,
    }
    return ndp.DPSGLD(model, **arguments)


@pytest.fixture(scope="module")
def run(data):
    """A finished run, and everything it printed."""
    out = io.StringIO()
    mcmc = ndp.MCMC(kernel(), **{**OPTIONS, "progress_bar": True})
    with redirect_stdout(out), redirect_stderr(out):
        mcmc.run(jax.random.key(0), *data)
        mcmc.print_summary()
    return mcmc, out.getvalue()


def test_no_text_of_a_run_holds_the_number(run):
    mcmc, printed = run
    report, ledger = mcmc.privacy, mcmc.sampler.accountant
    idata = ndp.from_numpyro(mcmc)
    texts = {
        "printed": printed,
        "str": str(report),
        "full": report.full(),
        "repr": repr(report),
        "json": report.to_json(),
        "html": report._repr_html_(),
        "markdown": report.to_markdown(),
        "registry": json.dumps(report.to_registry()),
        "ledger": str(ledger.report()),
        "ledger html": ledger.report()._repr_html_(),
        "entries": repr(ledger.entries),
        "kernel": repr(mcmc.sampler),
        "bound": repr(mcmc._bound.private_model),
        **{f"idata {group}": repr(idata[group].attrs) for group in group_names(idata)},
    }
    found = [place for place, text in texts.items() if NUMBER.search(text)]
    assert found == []
    assert report.num_records is None
    assert report.relation == "add_remove"
    assert all(str(N) not in str(leaf.shape) for leaf in jax.tree.leaves(mcmc._states))


@pytest.mark.slow
def test_the_search_would_find_the_number(data):
    # Under zero_out the number is public and stated: the search above is not blind.
    public = ndp.MCMC(kernel(accountant=None, max_records=None), **OPTIONS)
    public.run(jax.random.key(0), *data)
    assert NUMBER.search(public.privacy.full())
    assert NUMBER.search(public.privacy.to_json())
    assert NUMBER.search(repr(ndp.from_numpyro(public).posterior.attrs))


def refused(error, *args, options=OPTIONS, **changes):
    """The message of the refusal, which must come before any charge and tell no number."""
    built = kernel(**changes)
    mcmc = ndp.MCMC(built, **options)
    with pytest.raises(error) as caught:
        mcmc.run(jax.random.key(0), *args)
    assert built.accountant.entries == ()
    assert mcmc.last_state is None
    text = str(caught.value)
    assert not NUMBER.search(text), text
    return str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"sampling_rate": None, "batch_size": 30},
        {"sampling_rate": None},
        {"sampling_rate": 1.0},
        {"max_records": None},
    ],
    ids=["batch size", "full batch", "rate 1", "no bound"],
)
def test_rate_and_bound_must_be_public(data, changes):
    message = refused(ValueError, *data, **changes)
    assert "sampling_rate= below 1" in message
    assert "max_records=" in message


def test_other_refusals_do_not_tell_the_number_either(data):
    x, y = data
    refused(ValueError, x, y, max_records=N - 1)
    ledger = ndp.Accountant(ndp.Budget(1e-3, 1e-6), relation="add_remove")
    refused(ndp.BudgetExceededError, x, y, noise_multiplier=0.5, accountant=ledger)


def by_size(scale):
    def model(x, y):
        sd = scale(x.shape[0])
        w = numpyro.sample("w", dist.Normal(0, sd).expand([2]).to_event(1))
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    return model


def test_a_prior_that_depends_on_the_number_is_refused(data):
    message = refused(ndp.UnsupportedModelError, *data, model=by_size(lambda n: n**-0.5))
    assert "`w`" in message
    assert "private under add_remove" in message
    ndp.MCMC(kernel(by_size(lambda _: 1.0)), **OPTIONS).run(jax.random.key(0), *data)


def test_a_constant_plate_is_refused_without_its_size(data):
    def model(x, y):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        with numpyro.plate("people", N):
            numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    assert "constant" in refused(ndp.UnsupportedModelError, *data, model=model)


def test_arguments_of_unequal_length_are_refused_without_the_number(data):
    x, y = data
    refused(ndp.UnsupportedModelError, x, y[:-1])


def test_records_as_a_list_are_refused_without_the_number(data):
    x, y = data
    refused(ndp.UnsupportedModelError, x, y.tolist())
    refused(ndp.UnsupportedModelError, x, list(y))


@pytest.mark.usefixtures("no_compilation_cache")
@pytest.mark.parametrize("driver", ["numpyro_dp", "numpyro", "plan"])
def test_a_start_that_does_not_fit_is_refused_without_the_number(driver, data):
    strategy = init_to_value(values={"w": np.zeros(3, np.float32)})
    changed = kernel(init_strategy=strategy, num_steps=6)
    options = {**OPTIONS, "chain_method": "vectorized"}
    key = jax.random.key(0)
    calls = {
        "numpyro_dp": lambda: ndp.MCMC(changed, **options).run(key, *data),
        "numpyro": lambda: numpyro.infer.MCMC(changed, **options).run(key, *data),
        "plan": lambda: ndp.plan(changed, *data, num_steps=6),
    }
    with pytest.raises(ValueError, match="shape") as caught:
        calls[driver]()
    assert not NUMBER.search(str(caught.value)), str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    assert not changed.accountant.entries


def test_a_deterministic_site_that_tells_the_number_is_dropped(data):
    def model(x, y):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        numpyro.deterministic("size", w * x.shape[0])
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    mcmc = ndp.MCMC(kernel(model), **OPTIONS)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mcmc.run(jax.random.key(0), *data)
    assert set(mcmc.get_samples()) == {"w"}
    assert any("`size`" in str(w.message) for w in caught)
    assert not NUMBER.search("".join(str(w.message) for w in caught))


def test_a_pickle_does_not_spell_the_number_out(run):
    # Neither as text nor as the little-endian integer that pickle writes.
    pickled = pickle.dumps(run[0].__getstate__()["_states"])
    assert str(N).encode() not in pickled
    assert N.to_bytes(4, "little") not in pickled
