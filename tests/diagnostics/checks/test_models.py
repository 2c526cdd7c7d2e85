"""Models that are split in less plain ways, and both precisions."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import numpyro_dp as ndp
from tests.diagnostics.checks.setting import CHECKS, DRAWS, OPTIONS, X, Y, logistic

pytestmark = pytest.mark.slow
KEY = jax.random.key(2)
QUIET = {"noise_multiplier": 0.01, "secure": False}


def mixture(y):
    places = numpyro.sample("places", dist.Normal(0, 5).expand([2]).to_event(1))
    with numpyro.plate("people", y.shape[0]):
        kind = numpyro.sample("kind", dist.Bernoulli(0.3))
        numpyro.sample("y", dist.Normal(places[kind], 1), obs=y)


def test_a_latent_of_each_record_is_summed_out_and_redrawn():
    """Density to the last digits that noise leaves; means within five errors of 64 replicates."""
    rng = np.random.default_rng(0)
    kind = rng.random(1_000) < 0.3
    y = (np.where(kind, 2.0, -1.0) + rng.normal(size=1_000)).astype(np.float32)
    draws = {"places": np.tile(np.float32([-1, 2]), (20, 1))}
    found = ndp.private_log_predictive_density(KEY, mixture, draws, y, bounds=(-8, 0), **QUIET)
    part = np.exp(-0.5 * (y[:, None] - np.array([-1.0, 2.0])) ** 2) / np.sqrt(2 * np.pi)
    exact = np.log(part @ np.array([0.7, 0.3]))
    assert found.estimate == pytest.approx(np.clip(exact, -8, 0).mean(), abs=2e-3)
    checked = ndp.private_posterior_predictive_check(
        KEY, mixture, draws, y, outcome_range=(-6, 7), **QUIET
    )
    error = np.sqrt(1 + 0.21 * 9) / np.sqrt(64 * 1_000)
    assert checked["mean"].expected == pytest.approx(-0.1, abs=5 * error)
    assert checked["mean"].observed == pytest.approx(y.mean(), abs=0.02)
    assert checked["mean"].posterior_sd < 0.05


def by_group(x, y, group, cuts):
    w = numpyro.sample("w", dist.Normal(0, 3).expand([2]).to_event(1))
    effects = numpyro.sample("effects", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("people", x.shape[0], subsample_size=50) as rows:
        logits = x[rows] @ w + effects[group[rows]] + cuts.sum()
        numpyro.sample("y", dist.Bernoulli(logits=logits), obs=numpyro.subsample(y, 0))


def test_subsampled_plates_groups_and_public_arguments_work_as_written():
    group = np.arange(len(Y)) % 3
    draws = {**DRAWS, "effects": np.zeros((20, 3), np.float32)}
    args = X, Y, group, ndp.public(np.zeros(2, np.float32))
    for name, check in CHECKS.items():
        options = {**OPTIONS[name], **QUIET}
        same = check(KEY, logistic, DRAWS, X, Y, **options)
        found = check(KEY, by_group, draws, *args, **options)
        assert str(found).split("\n")[:-1] == str(same).split("\n")[:-1]
        assert any("cuts" in each for each in found.privacy.assumed_public)


def heights(x, y):
    w = numpyro.sample("w", dist.Normal(0, 3).expand([2]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, 1), obs=y)


@pytest.mark.parametrize("name", CHECKS)
def test_both_precisions_find_the_same(name):
    """To what rounding leaves of a record's vector."""

    def asked():
        return CHECKS[name](KEY, logistic, DRAWS, X, Y, **OPTIONS[name], **QUIET)

    single = asked()
    with jax.enable_x64(True):
        double = asked()
    for found in (single, double):
        assert "nan" not in str(found)
    told = {"calibration": "observed", "predictive": None}.get(name, "estimate")
    values = [
        each["mean"].difference if told is None else getattr(each, told)
        for each in (single, double)
    ]
    np.testing.assert_allclose(values[0], values[1], atol=2e-3)


def test_replicates_of_continuous_outcomes_in_double_precision():
    y = (X @ np.array([0.3, 1.2]) + np.random.default_rng(0).normal(size=len(Y))).astype(float)
    with jax.enable_x64(True):
        found = ndp.private_posterior_predictive_check(
            KEY, heights, DRAWS, X.astype(float), y, outcome_range=(-6, 6), **QUIET
        )
        low, high = ndp.private_log_predictive_density(
            KEY, heights, DRAWS, X.astype(float), y, **QUIET
        ).bounds
    assert found["mean"].observed == pytest.approx(y.mean(), abs=2e-3)
    assert found["mean"].p_value == pytest.approx(0.5, abs=0.499)
    assert low < -5 < -1 < high < 0


def test_a_model_under_reparam_is_asked_by_its_own_latents():
    loc = numpyro.handlers.reparam(logistic, config={"w": numpyro.infer.reparam.LocScaleReparam(0)})
    found = ndp.private_accuracy(KEY, loc, {"w_decentered": DRAWS["w"] / 3}, X, Y, **QUIET)
    same = ndp.private_accuracy(KEY, logistic, DRAWS, X, Y, **QUIET)
    assert found.estimate == pytest.approx(same.estimate, abs=5e-3)
    with pytest.raises(ValueError, match="w_decentered"):
        ndp.private_accuracy(KEY, loc, DRAWS, X, Y, **QUIET)


def test_draws_of_a_private_run_are_taken_as_they_come():
    """From fit to check on one ledger, on other people."""
    ledger = ndp.Accountant(ndp.Budget(6.0, 1e-5))
    kernel = ndp.DPSGLD(
        logistic, step_size=1e-3, clip_norm=2.0, noise_multiplier=9.0, accountant=ledger
    )
    mcmc = ndp.MCMC(kernel, num_warmup=5, num_samples=20, progress_bar=False)
    mcmc.run(KEY, X[:200], Y[:200])
    found = ndp.private_accuracy(
        KEY, logistic, mcmc, X[200:], Y[200:], noise_multiplier=2.0, accountant=ledger
    )
    assert [entry.label for entry in ledger.entries] == ["DPSGLD", "private_accuracy"]
    assert jnp.isfinite(found.estimate)
