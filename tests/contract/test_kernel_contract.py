"""What every private kernel must do, whatever its algorithm."""

import pickle
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import numpyro_dp as ndp
from numpyro_dp.mcmc.sgmcmc.sghmc import FrictionDynamics
from tests.contract.kernels import (
    GRADIENT,
    KERNELS,
    NAMES,
    WARMING_UP,
    charged_steps,
    make,
    neighbours,
    repeats,
    warmup,
)
from tests.contract.surfaces import leaks, surfaces
from tests.models import logistic

every_kernel = pytest.mark.parametrize("name", NAMES)
BUDGET = ndp.Budget(50.0, 1e-5)


def run(kernel, data, *, seed=0, **options):
    steps = 4 if kernel.takes_warmup else 0
    options = {"num_warmup": steps, "num_samples": 8, "progress_bar": False, **options}
    mcmc = ndp.MCMC(kernel, **options)
    mcmc.run(jax.random.key(seed), *data)
    return mcmc


@pytest.fixture
def data(records):
    return records["x"], records["y"]


@every_kernel
@pytest.mark.parametrize("method", ["sequential", "vectorized"])
@pytest.mark.parametrize("chains", [1, 2])
def test_every_data_touching_step_is_charged(name, data, method, chains):
    accountant = ndp.Accountant()
    kernel = make(name, logistic, accountant=accountant, steps_per_sample=2)
    mcmc = run(kernel, data, num_chains=chains, chain_method=method)
    steps = (warmup(name, 4) + 8) * 2
    assert sum(charged_steps(accountant)) == steps * chains
    np.testing.assert_array_equal(mcmc.last_state.i, np.full(mcmc.last_state.i.shape, steps))
    assert mcmc.get_samples(group_by_chain=True)["w"].shape == (chains, 8, 3)


@pytest.mark.parametrize("name", WARMING_UP)
def test_charges_of_warmup_run_and_resume(name, data):
    accountant = ndp.Accountant()
    mcmc = ndp.MCMC(
        make(name, logistic, accountant=accountant), num_warmup=4, num_samples=8, thinning=2
    )
    mcmc.warmup(jax.random.key(0), *data)
    assert sum(charged_steps(accountant)) == 12
    mcmc.run(jax.random.key(0), *data)
    assert sum(charged_steps(accountant)) == 12
    assert len(accountant.entries) == 1
    mcmc.post_warmup_state = mcmc.last_state
    mcmc.run(jax.random.key(0), *data)
    assert sum(charged_steps(accountant)) == 20
    assert mcmc.last_state.i == 20
    assert mcmc.get_samples()["w"].shape == (4, 3)


@pytest.mark.parametrize("name", WARMING_UP)
def test_warmup_and_run_together_cost_the_budget(name, data):
    budget = ndp.Budget(2.0, 1e-5)
    accountant = ndp.Accountant(budget)
    kernel = make(name, logistic, privacy=budget, accountant=accountant, **KERNELS[name].calibrated)
    mcmc = ndp.MCMC(kernel, num_warmup=4, num_samples=8, num_chains=2, progress_bar=False)
    mcmc.warmup(jax.random.key(0), *data)
    assert 1.98 < mcmc.privacy.epsilon <= 2.0
    mcmc.run(jax.random.key(0), *data)
    assert 1.98 < mcmc.privacy.epsilon == accountant.epsilon() <= 2.0
    assert mcmc.privacy.delta == 1e-5


@every_kernel
def test_resuming_under_one_key_draws_fresh_noise(name, data):
    mcmc = ndp.MCMC(
        make(name, logistic), num_warmup=0, num_samples=24, secure=False, progress_bar=False
    )
    moves = []
    for _ in range(2):
        mcmc.run(jax.random.PRNGKey(0), *data)
        moves.append(np.diff(mcmc.get_samples()["w"], axis=0))
        mcmc.post_warmup_state = mcmc.last_state
    assert not repeats(*moves)


@every_kernel
def test_secure_runs_never_repeat(name, data):
    draws = [run(make(name, logistic), data).get_samples()["w"] for _ in range(2)]
    assert np.abs(draws[0] - draws[1]).max() > 0


@every_kernel
def test_insecure_runs_repeat_and_a_budget_refuses_them(name, data):
    kernel = make(name, logistic)
    one, two = (run(kernel, data, secure=False).get_samples()["w"] for _ in range(2))
    np.testing.assert_array_equal(one, two)
    accountant = ndp.Accountant(BUDGET)
    with pytest.raises(ndp.BudgetExceededError, match="allow_conditional"):
        run(make(name, logistic, accountant=accountant), data, secure=False)
    assert accountant.entries == ()
    lenient = ndp.Accountant(BUDGET, allow_conditional=True)
    mcmc = run(make(name, logistic, accountant=lenient), data, secure=False)
    assert "is secret, random and used once" in " ".join(mcmc.privacy.full().split())
    assert lenient.epsilon() == np.inf


@pytest.mark.parametrize("name", GRADIENT)
def test_a_new_budget_means_new_noise(name, data):
    mcmc = run(make(name, logistic, noise_multiplier=1.0), data, num_samples=200)
    quiet = np.diff(mcmc.get_samples()["w"], axis=0).std()
    mcmc.sampler = make(name, logistic, noise_multiplier=1000.0)
    mcmc.run(jax.random.key(0), *data)
    loud = np.diff(mcmc.get_samples()["w"], axis=0).std()
    # Fisher scoring takes shorter steps where there is more noise, all others longer ones.
    assert max(loud / quiet, quiet / loud) > 20


@every_kernel
def test_equal_runs_share_one_compilation(name, data, caplog):
    run(make(name, logistic), data)
    with jax.log_compiles(), caplog.at_level("WARNING", logger="jax"):
        run(make(name, logistic), data)
    assert not [r for r in caplog.records if "Finished XLA compilation of jit(_chunk)" in r.message]


@every_kernel
def test_the_kernel_is_frozen_and_hides_its_model(name, data):
    kernel = make(name, logistic)
    assert kernel.model is None
    with pytest.raises(AttributeError):
        kernel.steps_per_sample = 5
    mcmc = run(kernel, data)
    assert mcmc.sampler is kernel


@every_kernel
def test_nothing_but_released_draws_differs_between_neighbours(name, records):
    settings = KERNELS[name].exposed
    one, other = (surfaces(make(name, logistic, **settings), d) for d in neighbours(records))
    assert leaks(one, other) == []
    released = [p for p in one if p.startswith(".samples") and one[p] != other[p]]
    assert released, "the neighbours were not told apart at all: the walk shows nothing"


@every_kernel
def test_pickles_hold_neither_records_nor_keys(name, data):
    mcmc = run(make(name, logistic), data, secure=False)
    pickled = pickle.dumps(mcmc)
    for row in range(0, 400, 50):
        assert data[0][row : row + 4].tobytes() not in pickled
    key = np.asarray(jax.random.key_data(mcmc.last_state.rng_key))
    assert not key.any()
    copy = pickle.loads(pickled)
    np.testing.assert_array_equal(copy.get_samples()["w"], mcmc.get_samples()["w"])
    assert copy.privacy.epsilon == mcmc.privacy.epsilon


@every_kernel
@pytest.mark.parametrize("field", ["rng_key", "potential_energy", "z.nothing"])
def test_secret_and_unknown_fields_are_refused_before_any_charge(name, data, field):
    accountant = ndp.Accountant()
    mcmc = ndp.MCMC(
        make(name, logistic, accountant=accountant), num_warmup=warmup(name, 1), num_samples=2
    )
    with pytest.raises(ValueError, match="extra_fields"):
        mcmc.run(jax.random.key(0), *data, extra_fields=(field,))
    assert accountant.entries == ()


@every_kernel
def test_a_run_inside_a_transformation_is_refused(name, data):
    mcmc = ndp.MCMC(
        make(name, logistic), num_warmup=warmup(name, 1), num_samples=2, progress_bar=False
    )
    for traced in (
        jax.jit(lambda key: mcmc.run(key, *data)),
        jax.jit(lambda _: mcmc.run(jax.random.key(0), *data)),
    ):
        with pytest.raises(ValueError, match="inside a JAX transformation"):
            traced(jax.random.key(0))
    with pytest.raises(ValueError, match="inside a JAX transformation"):
        jax.vmap(lambda key: mcmc.run(key, *data))(jax.random.split(jax.random.key(0)))


@every_kernel
def test_two_threads_cannot_share_one_object(name, data):
    mcmc = ndp.MCMC(
        make(name, logistic), num_warmup=warmup(name, 1), num_samples=2, progress_bar=False
    )
    with mcmc._account._lock, pytest.raises(RuntimeError, match="another thread"):
        mcmc.run(jax.random.key(0), *data)
    assert isinstance(mcmc._account._lock, type(threading.Lock()))


@every_kernel
def test_plain_numpyro_is_refused_by_name(name, data):
    import numpyro

    mcmc = numpyro.infer.MCMC(make(name, logistic), num_warmup=warmup(name, 1), num_samples=2)
    with pytest.raises(ValueError, match=r"numpyro_dp\.MCMC"):
        mcmc.run(jax.random.key(0), *data)


@pytest.mark.slow
@every_kernel
def test_float64_runs(name, data):
    with jax.enable_x64(True):
        mcmc = run(make(name, logistic), (data[0].astype(float), data[1]))
        assert mcmc.get_samples()["w"].dtype == jnp.float64


@every_kernel
def test_broken_records_contribute_nothing(name, records):
    x, y = records["x"].copy(), records["y"]
    broken = x.copy()
    broken[3], broken[11], broken[19] = np.nan, np.inf, -np.inf
    rest = np.delete(np.arange(400), [3, 11, 19])
    zeros = x.copy()
    zeros[[3, 11, 19]] = 0.0
    assert np.isfinite(broken[rest]).all()
    draws = [
        run(make(name, logistic, **KERNELS[name].exposed), (d, y), secure=False).get_samples()["w"]
        for d in (broken, zeros)
    ]
    np.testing.assert_array_equal(draws[0], draws[1])


def test_a_state_field_that_no_kernel_declares_is_refused_before_a_charge(records, monkeypatch):
    monkeypatch.setattr(FrictionDynamics, "derived", ())
    accountant = ndp.Accountant(ndp.Budget(1.0, 1e-5))
    kernel = ndp.DPSGHMC(
        logistic, friction=1.0, step_size=1e-3, clip_norm=1.0, noise_multiplier=50.0,
        accountant=accountant,
    )  # fmt: skip
    mcmc = ndp.MCMC(kernel, num_warmup=0, num_samples=2, progress_bar=False)
    with pytest.raises(ValueError, match="field 'momentum'"):
        mcmc.run(jax.random.key(0), records["x"], records["y"])
    assert accountant.entries == ()


def test_the_report_names_what_follows_from_released_values(records):
    kernel = ndp.DPSGNHT(
        logistic, diffusion=1.0, step_size=1e-3, clip_norm=1.0, noise_multiplier=50.0
    )
    mcmc = ndp.MCMC(kernel, num_warmup=0, num_samples=2, progress_bar=False)
    mcmc.run(jax.random.key(0), records["x"], records["y"])
    assert "what follows from it alone: momentum, thermostat" in mcmc.privacy.released
