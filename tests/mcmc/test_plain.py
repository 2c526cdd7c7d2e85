"""Private kernels in plain ``numpyro.infer.MCMC``: charged in ``init``, metered, never resumed."""

import warnings

import jax
import numpy as np
import numpyro
import pytest

import numpyro_dp as ndp
from tests.contract.kernels import GRADIENT, make
from tests.models import logistic

pytestmark = [
    pytest.mark.parametrize("name", GRADIENT),
    pytest.mark.usefixtures("no_compilation_cache"),
]


@pytest.fixture
def data(records):
    return records["x"], records["y"]


def plain(kernel, *, num_warmup=3, num_samples=5, **options):
    options = {"progress_bar": False, "jit_model_args": True, **options}
    return numpyro.infer.MCMC(kernel, num_warmup=num_warmup, num_samples=num_samples, **options)


def charged_steps(accountant):
    return [entry.event.events[0].count for entry in accountant.entries]


def metered(name, **changes):
    """A kernel with a ledger and 8 steps, and the ledger."""
    accountant = ndp.Accountant()
    return make(name, logistic, **{"num_steps": 8, "accountant": accountant, **changes}), accountant


@pytest.mark.parametrize(
    ("chains", "method", "charges"),
    [
        pytest.param(1, "sequential", [8], marks=pytest.mark.slow),
        pytest.param(2, "sequential", [8, 8], marks=pytest.mark.slow),
        (2, "vectorized", [16]),
    ],
)
def test_a_chain_takes_the_steps_it_was_charged_and_no_more(name, data, chains, method, charges):
    kernel, accountant = metered(name)
    mcmc = plain(kernel, num_warmup=3, num_samples=9, num_chains=chains, chain_method=method)
    mcmc.run(jax.random.key(0), *data, extra_fields=("i",))
    assert charged_steps(accountant) == charges
    draws = mcmc.get_samples(group_by_chain=True)["w"]
    assert draws.shape == (chains, 9, 3)
    assert np.isfinite(draws[:, :5]).all()
    assert len(np.unique(draws[:, :5, 0])) == chains * 5
    assert np.isnan(draws[:, 5:]).all()
    counted = mcmc.get_extra_fields(group_by_chain=True)["i"]
    np.testing.assert_array_equal(counted[:, :5], np.tile([4, 5, 6, 7, 8], (chains, 1)))
    words = jax.random.key_data(mcmc.last_state.inner.rng_key)
    assert words.shape[-1] == 8
    assert not np.asarray(words).any()


@pytest.mark.parametrize("chains", [1, 2])
def test_the_charge_is_made_before_init_returns(name, data, chains):
    kernel, accountant = metered(name)
    keys = jax.random.split(jax.random.key(0), chains) if chains > 1 else jax.random.key(0)
    kernel.init(keys, 3, None, data, {})
    assert charged_steps(accountant) == [8 * chains]


def test_steps_per_sample_spend_the_meter(name, data):
    kernel, accountant = metered(name, steps_per_sample=3)
    state, draws = kernel.init(jax.random.key(0), 0, None, data, {}), []
    step = jax.jit(lambda state: kernel.sample(state, data, {}))
    for _ in range(4):
        state = step(state)
        draws.append(state.z["w"])
    # 3 + 3 of 8 steps fit; a third draw would need the ninth.
    np.testing.assert_array_equal(np.isfinite(draws).all(-1), [True, True, False, False])
    assert charged_steps(accountant) == [8]


def test_records_are_not_read_after_num_steps(name, data):
    kernel, _ = metered(name, num_steps=2)
    keys = jax.random.split(jax.random.key(0))
    step = jax.jit(lambda state, x, y: kernel.sample(state, (x, y), {}))
    text = step.lower(kernel.init(keys, 0, None, data, {}), *data).as_text()
    # A branch, not a select: the other side of a select would read them all the same.
    assert "stablehlo.case" in text or "stablehlo.if" in text


@pytest.mark.parametrize(
    ("chains", "method", "seed"),
    [
        (1, "sequential", jax.random.key),
        pytest.param(2, "vectorized", jax.random.PRNGKey, marks=pytest.mark.slow),
        pytest.param(2, "sequential", jax.random.key, marks=pytest.mark.slow),
        pytest.param(1, "sequential", jax.random.PRNGKey, marks=pytest.mark.slow),
    ],
)
def test_resuming_gives_only_nan(name, data, chains, method, seed):
    kernel, _ = metered(name, num_steps=50)
    mcmc = plain(kernel, num_chains=chains, chain_method=method)
    mcmc.warmup(seed(0), *data)
    assert np.isfinite(mcmc.post_warmup_state.z["w"]).all()
    mcmc.run(seed(1), *data)
    assert np.isnan(mcmc.get_samples()["w"]).all()


@pytest.mark.parametrize("chains", [1, 2])
def test_resuming_with_the_states_own_key_is_refused(name, data, chains):
    # NumPyro's documentation does so. It would let two runs on two data sets share their noise,
    # whose difference then shows the records' gradients bare.
    kernel, accountant = metered(name)
    keys = jax.random.split(jax.random.key(0), chains) if chains > 1 else jax.random.key(0)
    mcmc = plain(kernel, num_chains=chains, chain_method="vectorized")
    mcmc.post_warmup_state = kernel.init(keys, 0, None, data, {})
    with pytest.raises(ValueError, match=r"same noise: use numpyro_dp\.MCMC"):
        mcmc.run(mcmc.post_warmup_state.rng_key, *data)
    assert charged_steps(accountant) == [8 * chains]


def test_runs_under_one_key_have_noise_of_their_own(name, data):
    kernel, _ = metered(name)
    keys = jax.random.split(jax.random.key(0))
    starts = [kernel.init(keys, 0, None, data, {}) for _ in range(2)]
    words = np.concatenate([jax.random.key_data(start.inner.rng_key) for start in starts])
    assert len(np.unique(words, axis=0)) == 4
    np.testing.assert_array_equal(starts[0].z["w"], starts[1].z["w"])


def test_a_budget_too_small_refuses_before_the_first_step(name, data):
    accountant = ndp.Accountant(ndp.Budget(0.5, 1e-6))
    kernel, _ = metered(name, num_steps=8, noise_multiplier=0.5, accountant=accountant)
    mcmc = plain(kernel)
    with pytest.raises(ndp.BudgetExceededError):
        mcmc.run(jax.random.key(0), *data)
    assert accountant.entries == ()
    assert mcmc.last_state is None


@pytest.mark.parametrize("missing", ["num_steps", "accountant"])
def test_without_meter_or_ledger_it_is_refused_with_the_remedy(name, data, missing):
    kernel, accountant = metered(name, **{missing: None})
    with pytest.raises(ValueError, match=r"(?s)numpyro_dp\.MCMC.*num_steps= .*accountant="):
        plain(kernel).run(jax.random.key(0), *data)
    assert accountant.entries == ()


def test_traced_starts_are_refused_with_the_remedy(name, data):
    kernel, accountant = metered(name)
    remedy = r"use numpyro_dp\.MCMC, or 'sequential'"
    with pytest.raises(ValueError, match=remedy):
        plain(kernel, num_chains=2, chain_method=jax.vmap).run(jax.random.key(0), *data)
    # With one device NumPyro replaces "parallel" by "sequential", so pmap itself is called.
    start = jax.pmap(lambda key: kernel.init(key, 3, None, data, {}))
    with pytest.raises(ValueError, match=remedy):
        start(jax.random.split(jax.random.key(0), 1))
    assert accountant.entries == ()


def test_a_compilation_cache_is_warned_of(name, data, tmp_path):
    kernel, _ = metered(name)
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    with pytest.warns(UserWarning, match="jit_model_args=True"):
        kernel.init(jax.random.key(0), 3, None, data, {})
    jax.config.update("jax_compilation_cache_dir", None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernel.init(jax.random.key(0), 3, None, data, {})
