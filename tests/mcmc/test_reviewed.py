"""Holes that a hostile review found; each test is one of its attacks."""

import os
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import numpyro_dp as ndp
from numpyro_dp.accounting import rounded_up
from numpyro_dp.model.records import as_records, read_arguments
from tests.models import logistic, normal_mean

OPTIONS = {"num_warmup": 0, "num_samples": 3, "progress_bar": False}
HALF = {"step_size": 1e-3, "sampling_rate": 0.5, "clip_norm": 1.0}


@pytest.fixture
def data(records):
    return records["x"], records["y"]


def kernel(**changes):
    return ndp.DPSGLD(logistic, **{**HALF, "noise_multiplier": 2.0, **changes})


def test_a_model_with_its_own_batching_rule_is_refused():
    @jax.custom_batching.custom_vmap
    def mean(v):
        return v

    @mean.def_vmap
    def _(size, batched, v):
        return jnp.broadcast_to(v.mean(0), v.shape), True

    def model(x):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("x", dist.Normal(mu, 1), obs=mean(x))

    with pytest.raises(ndp.UnsupportedModelError, match="batches would see many records"):
        ndp.MCMC(ndp.DPSGLD(model, noise_multiplier=1.0, **HALF), **OPTIONS).run(
            jax.random.key(0), np.zeros(40, np.float32)
        )


def test_a_model_that_calls_the_host_is_refused():
    def model(x):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        with numpyro.plate("people", x.shape[0]):
            shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
            seen = jax.pure_callback(lambda v: v, shape, x, vmap_method="expand_dims")
            numpyro.sample("x", dist.Normal(mu, 1), obs=jax.lax.stop_gradient(seen))

    with pytest.raises(ndp.UnsupportedModelError):
        ndp.MCMC(ndp.DPSGLD(model, noise_multiplier=1.0, **HALF), **OPTIONS).run(
            jax.random.key(0), np.zeros(40, np.float32)
        )


@pytest.mark.parametrize("secure", [True, False])
def test_a_transformation_over_the_records_is_refused(data, secure):
    accountant = ndp.Accountant()
    mcmc = ndp.MCMC(kernel(accountant=accountant), secure=secure, **OPTIONS)
    both = jnp.stack([data[0], data[0]])
    with pytest.raises(ValueError, match="inside a JAX transformation"):
        jax.vmap(lambda x: mcmc.run(jax.random.key(0), x, data[1]))(both)
    assert accountant.entries == ()


def test_a_schedule_that_changes_its_mind_is_asked_once(data):
    answers = iter([8.0] * 3 + [0.5] * 1000)
    accountant = ndp.Accountant()
    changing = kernel(noise_multiplier=lambda step: next(answers), accountant=accountant)
    mcmc = ndp.MCMC(changing, **OPTIONS)
    mcmc.run(jax.random.key(0), *data)
    assert mcmc._bound.private_sum.schedule == (8.0, 8.0, 8.0)
    mcmc.run(jax.random.key(0), *data)
    assert mcmc._bound.private_sum.schedule == (8.0, 8.0, 8.0)


@pytest.mark.usefixtures("no_compilation_cache")
def test_a_state_cannot_be_stepped_by_a_kernel_that_was_not_charged(data):
    accountant = ndp.Accountant()
    charged = kernel(noise_multiplier=8.0, num_steps=20, accountant=accountant)
    quiet = kernel(noise_multiplier=0.5, num_steps=20, accountant=accountant)
    arguments = tuple(jnp.asarray(a) for a in data)
    state = charged.init(jax.random.key(0), 0, None, arguments, {})
    assert np.isfinite(charged.sample(state, arguments, {}).z["w"]).all()
    assert np.isnan(quiet.sample(state, arguments, {}).z["w"]).all()


def test_a_foreign_state_and_given_positions_are_named_in_the_report(data):
    first = ndp.MCMC(kernel(), **OPTIONS)
    first.run(jax.random.key(0), *data)
    assert "did not compute" not in first.privacy.full()
    first.post_warmup_state = first.last_state
    first.run(jax.random.key(0), *data)
    assert "did not compute" not in first.privacy.full()
    second = ndp.MCMC(kernel(), **OPTIONS)
    second.post_warmup_state = first.last_state
    second.run(jax.random.key(0), *data)
    assert "did not compute" in " ".join(second.privacy.full().split())
    third = ndp.MCMC(kernel(), **OPTIONS)
    third.run(jax.random.key(0), *data, init_params={"w": np.zeros(3)})
    assert "given as init_params" in " ".join(third.privacy.full().split())


def test_the_condition_of_a_run_cannot_be_taken_off(data):
    mcmc = ndp.MCMC(kernel(), secure=False, **OPTIONS)
    with pytest.raises(AttributeError):
        mcmc.secure = True


def test_a_pickle_under_add_remove_does_not_tell_the_number_of_records(data):
    accountant = ndp.Accountant(relation="add_remove")
    mcmc = ndp.MCMC(kernel(accountant=accountant, max_records=1_000), **OPTIONS)
    mcmc.run(jax.random.key(0), *data)
    copy = pickle.loads(pickle.dumps(mcmc))
    assert copy._bound is None
    assert copy.privacy.num_records is None
    ndp.from_numpyro(mcmc, prior={"w": np.zeros((400, 3))})


def test_a_budget_in_memory_does_not_survive_a_fork(monkeypatch):
    accountant = ndp.Accountant(ndp.Budget(1.0, 1e-5))
    accountant.charge(ndp.events.GaussianDpEvent(20.0), label="parent")
    # A fork changes nothing that the child can see but its process number.
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(ndp.LedgerError, match="fork"):
        accountant.charge(ndp.events.GaussianDpEvent(20.0), label="child")


def test_printed_bounds_are_rounded_up(data):
    for value in (1.12731, 0.50491, 9.99991, 1e-9, 123456.7):
        assert float(rounded_up(value)) >= value
    mcmc = ndp.MCMC(kernel(), **OPTIONS)
    mcmc.run(jax.random.key(0), *data)
    shown = mcmc.privacy.full().split("ε = ")[1].split()[0]
    assert float(shown) >= mcmc.privacy.epsilon


@pytest.mark.parametrize("counter", [-1, 2**31 - 1])
def test_counters_near_their_limits_are_refused(data, counter):
    mcmc = ndp.MCMC(kernel(noise_multiplier=lambda t: 2.0 + t), **OPTIONS)
    mcmc.run(jax.random.key(0), *data)
    mcmc.post_warmup_state = mcmc.last_state._replace(i=jnp.asarray(counter, jnp.int32))
    with pytest.raises(ValueError, match="step counter"):
        mcmc.run(jax.random.key(0), *data)


def test_a_refused_charge_counts_no_steps(data):
    accountant = ndp.Accountant(ndp.Budget(0.5, 1e-5))
    first = kernel(noise_multiplier=20.0)
    mcmc = ndp.MCMC(
        kernel(noise_multiplier=20.0, init_kernel=first, accountant=accountant), **OPTIONS
    )
    mcmc.run(jax.random.key(0), *data)
    steps = mcmc.privacy.steps
    for noise in (8.0, 15.0, 30.0):
        while accountant.fits(other := ndp.events.GaussianDpEvent(noise)):
            accountant.charge(other, label="all that is left")
    with pytest.raises(ndp.BudgetExceededError):
        mcmc.run(jax.random.key(0), *data)
    assert mcmc.privacy.steps == steps


@pytest.mark.parametrize("large", [0, 1 << 60], ids=["large pages", "as JAX takes them"])
def test_a_number_past_single_precision_is_not_spoken_of(monkeypatch, large):
    """NumPy's warning would tell of a record before any charge, and stop a run that is strict."""
    monkeypatch.setattr("numpyro_dp._arrays.LARGE", large)
    x = np.array([[0.0, 1.0], [1e300, -1e300], [np.nan, 2.0]])
    (rows,) = as_records(*read_arguments(normal_mean, (x,), {}))
    np.testing.assert_array_equal(rows, [[0, 1], [np.inf, -np.inf], [np.nan, 2]])
