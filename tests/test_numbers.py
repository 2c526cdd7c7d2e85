"""Options given as NumPy's narrow numbers are Python's before anything is computed from them."""

import jax
import numpy as np
import numpyro.infer
import optax
import pytest
from numpyro.infer.autoguide import AutoDelta

import numpyro_dp as ndp
from numpyro_dp import _validate
from numpyro_dp.accounting.events import SelfComposedDpEvent
from tests.models import logistic

STEPS = 129


def steps_charged(accountant):
    """Steps in the ledger: the count of its one repeated event."""
    (entry,) = accountant.entries
    parts = getattr(entry.event, "events", [entry.event])
    return sum(part.count for part in parts if isinstance(part, SelfComposedDpEvent))


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (np.uint8(200), 200),
        (np.float16(0.1), float(np.float16(0.1))),
        ((np.int8(3), None), (3, None)),
        ({"w": np.uint8(7)}, {"w": 7}),
        (10**400, 10**400),
        ("barker", "barker"),
        (True, True),
    ],
)
def test_numbers_become_pythons(given, wanted):
    found = _validate.python_number(given)
    assert found == wanted
    assert type(found) is type(wanted)


def test_a_number_past_all_floats_is_refused_by_name():
    with pytest.raises(ValueError, match="epsilon must be a finite number"):
        ndp.Budget(10**400, 1e-6)


@pytest.mark.parametrize("chains", [2, np.uint8(2), np.int8(2)])
def test_all_chains_and_steps_are_charged(records, chains):
    accountant = ndp.Accountant()
    kernel = ndp.DPFastMH(
        logistic,
        step_size=0.05,
        lipschitz=1.5,
        max_move=0.1,
        steps_per_sample=type(chains)(2),
        accountant=accountant,
    )
    mcmc = ndp.MCMC(kernel, num_warmup=0, num_samples=STEPS, num_chains=chains, progress_bar=False)
    mcmc.run(jax.random.key(0), records["x"], records["y"])
    assert mcmc.last_state.i.tolist() == [2 * STEPS] * 2
    assert steps_charged(accountant) == 4 * STEPS


@pytest.mark.usefixtures("no_compilation_cache")
def test_a_run_in_plain_numpyro_is_charged_in_full(records):
    accountant = ndp.Accountant()
    kernel = ndp.DPSGLD(
        logistic,
        step_size=1e-4,
        clip_norm=np.uint8(2),
        noise_multiplier=np.uint8(4),
        num_steps=np.uint8(STEPS),
        accountant=accountant,
    )
    mcmc = numpyro.infer.MCMC(
        kernel,
        num_warmup=0,
        num_samples=STEPS,
        num_chains=2,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(0), records["x"], records["y"])
    assert steps_charged(accountant) == 2 * STEPS


@pytest.mark.parametrize("chains", [0, -1, 1.0, True, float("nan")])
def test_chains_that_are_no_number_of_chains_are_refused(chains):
    kernel = ndp.DPSGLD(logistic, step_size=1e-4, clip_norm=1.0, noise_multiplier=4.0)
    with pytest.raises(ValueError, match="num_chains must be a positive integer"):
        ndp.MCMC(kernel, num_warmup=0, num_samples=1, num_chains=chains)


@pytest.mark.parametrize("kind", [ndp.ObjectivePerturbation, ndp.OutputPerturbation])
def test_a_narrow_row_norm_costs_what_its_value_costs(kind, records):
    def fit(row_norm):
        estimator = kind(
            logistic, row_norm=row_norm, noise_multiplier=3.0, regularisation=50.0, secure=False
        )
        return estimator.run(jax.random.key(0), records["x"], records["y"])

    plain, narrow = fit(16.0), fit(np.uint8(16))
    assert narrow.privacy.epsilon == plain.privacy.epsilon
    assert narrow.privacy.events == plain.privacy.events
    for name, value in plain.params.items():
        np.testing.assert_array_equal(narrow.params[name], value)


def test_a_narrow_row_norm_of_a_posterior_draw_costs_what_its_value_costs(records):
    def cost(row_norm):
        accountant = ndp.Accountant()
        kernel = ndp.OPS(
            logistic,
            guarantee=ndp.StronglyLogConcave(row_norm=row_norm),
            likelihood_power=0.05,
            accountant=accountant,
        )
        mcmc = ndp.MCMC(kernel, num_warmup=0, num_samples=1, progress_bar=False)
        mcmc.run(jax.random.key(0), records["x"], records["y"])
        return accountant.epsilon(1e-5)

    assert cost(np.uint8(16)) == cost(16.0)


@pytest.mark.slow
def test_a_fit_takes_its_numbers_alike(records):
    def cost(number):
        accountant = ndp.Accountant()
        svi = ndp.DPSVI(
            logistic,
            AutoDelta(logistic),
            optax.sgd(1e-4),
            clip_norm=number(2),
            noise_multiplier=number(20),
            accountant=accountant,
        )
        svi.run(jax.random.key(0), number(100), records["x"], records["y"], progress_bar=False)
        return accountant.epsilon(1e-5)

    assert cost(np.uint8) == cost(int)
