"""DP-SGLD against exact answers: gradients, the stationary law, and the temperature it reports."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.infer.util import potential_energy

import numpyro_dp as ndp
from numpyro_dp.model.private_model import PrivateModel
from tests.models import logistic, normal_mean

NOISE_OFF = {"noise_multiplier": 0.0, "clip_norm": np.inf}


def bound(model, data, **arguments):
    kernel = ndp.DPSGLD(model, **arguments)
    return kernel.bind(PrivateModel(model, data), num_steps=100, relation="zero_out", delta=1e-5)


def test_without_noise_and_clipping_a_step_follows_the_gradient_of_potential_energy(records):
    data = (records["x"], records["y"])
    step = 1e-3
    kernel = bound(logistic, data, step_size=step, temperature=1e-12, **NOISE_OFF)
    z = {"w": jnp.array([0.3, -0.2, 0.1])}
    state = kernel.start(jax.random.key(0), z)
    moved = jax.jit(kernel.sample)(state, [jnp.asarray(a) for a in data]).z["w"] - z["w"]
    gradient = -jax.jit(jax.grad(lambda z: potential_energy(logistic, data, {}, z)))(z)["w"]
    np.testing.assert_allclose(moved * 2 / step, gradient, rtol=1e-4, atol=1e-3)


def stationary_variance(x, step, sampling_rate=1.0, power=1.0):
    """Exact variance of a coordinate of SGLD on ``normal_mean``, Langevin noise ``step`` in all.

    The chain is θ' = θ + (η/2)·g + noise with E g = -A(θ - m): its variance solves a linear
    equation, the variance of the Poisson batches included.
    """
    n = len(x)
    precision = 1 + power * n
    mean = power * x.sum(0) / precision
    contraction = (1 - step * precision / 2) ** 2
    batch = (step / 2) ** 2 * power**2 * (1 - sampling_rate) / sampling_rate
    residual = ((x - mean) ** 2).sum(0)
    return mean, (step + batch * residual) / (1 - contraction - batch * n)


@pytest.mark.parametrize(
    ("arguments", "sampling_rate"),
    [
        pytest.param(NOISE_OFF, 1.0, marks=pytest.mark.slow),
        pytest.param(NOISE_OFF, 0.5, marks=pytest.mark.slow),
        pytest.param({"noise_multiplier": 1.0, "clip_norm": 8.0}, 0.5, marks=pytest.mark.slow),
    ],
)
def test_stationary_mean_and_variance_are_exact(arguments, sampling_rate):
    # 64 chains of 400 steps, autocorrelation time about 2/(η·A/2) = 10 steps: the variance of a
    # coordinate is known to about 2 %, its mean to .02 sd. Bounds at 5 standard errors: false
    # alarm < 1e-5.
    x = np.random.default_rng(3).normal(1.0, 1.0, (40, 2)).astype(np.float32)
    step = 0.2 / 41 * 2
    kernel = ndp.DPSGLD(normal_mean, step_size=step, sampling_rate=sampling_rate, **arguments)
    mcmc = ndp.MCMC(
        kernel, num_warmup=100, num_samples=400, num_chains=64, secure=False, progress_bar=False
    )
    mcmc.run(jax.random.key(1), x)
    draws = mcmc.get_samples()["mu"]
    mean, variance = stationary_variance(x, step, sampling_rate)
    np.testing.assert_allclose(draws.mean(0), mean, atol=0.1 * np.sqrt(variance).max())
    np.testing.assert_allclose(draws.var(0), variance, rtol=0.1)
    correlation = np.corrcoef(np.asarray(draws).T)[0, 1]
    assert abs(correlation) < 0.1


@pytest.mark.slow
def test_likelihood_power_tempers_the_posterior():
    x = np.random.default_rng(3).normal(1.0, 1.0, (40, 2)).astype(np.float32)
    step = 0.4 / 11
    kernel = ndp.DPSGLD(normal_mean, step_size=step, likelihood_power=0.25, **NOISE_OFF)
    mcmc = ndp.MCMC(
        kernel, num_warmup=100, num_samples=500, num_chains=64, secure=False, progress_bar=False
    )
    mcmc.run(jax.random.key(1), x)
    mean, variance = stationary_variance(x, step, power=0.25)
    np.testing.assert_allclose(mcmc.get_samples()["mu"].mean(0), mean, atol=0.03)
    np.testing.assert_allclose(mcmc.get_samples()["mu"].var(0), variance, rtol=0.1)
    assert "tempered posterior" in " ".join(mcmc.privacy.full().split())


def test_a_raised_temperature_is_reported_and_true(records):
    data = (records["x"], records["y"])
    noisy = {"noise_multiplier": 4.0, "clip_norm": 1.0, "sampling_rate": 0.5}
    sd = 4.0 * 1.0 / 0.5
    free = bound(logistic, data, step_size=4 / sd**2, **noisy)
    assert free.facts().notes == ()
    hot = bound(logistic, data, step_size=9 * 4 / sd**2, **noisy)
    (note,) = hot.facts().notes
    assert "temperature 9 " in note
    assert f"{4 / sd**2:.3g}" in note


def test_schedules_are_followed():
    x = np.zeros((20, 1), np.float32)
    kernel = ndp.DPSGLD(normal_mean, step_size=lambda i: jnp.where(i < 5, 1e-3, 0.0), **NOISE_OFF)
    mcmc = ndp.MCMC(kernel, num_warmup=0, num_samples=10, progress_bar=False)
    mcmc.run(jax.random.key(0), x)
    moves = np.diff(mcmc.get_samples()["mu"][:, 0])
    assert np.all(moves[:4] != 0)
    assert np.all(moves[4:] == 0)


@pytest.mark.slow
@pytest.mark.parametrize("noise", [NOISE_OFF, {"noise_multiplier": 1.0, "clip_norm": 12.0}])
def test_a_preconditioner_changes_the_pace_and_not_the_target(noise):
    # Step η with metric G moves a coordinate like step η·G without: same exact law, coordinate by
    # coordinate. 64 chains of 1,500 steps; bounds at 5 standard errors, false alarm < 1e-5.
    x = np.random.default_rng(3).normal(1.0, 1.0, (40, 2)).astype(np.float32)
    step = 0.1 / 41 * 2
    kernel = ndp.DPSGLD(
        normal_mean,
        step_size=step,
        sampling_rate=0.5,
        preconditioner={"mu": np.array([1.0, 2.0])},
        **noise,
    )
    mcmc = ndp.MCMC(
        kernel, num_warmup=200, num_samples=1_500, num_chains=64, secure=False, progress_bar=False
    )
    mcmc.run(jax.random.key(1), x)
    draws = mcmc.get_samples()["mu"]
    for coordinate, pace in enumerate((1.0, 2.0)):
        mean, variance = stationary_variance(x, step * pace, 0.5)
        assert abs(draws[:, coordinate].mean() - mean[coordinate]) < 0.1 * np.sqrt(variance).max()
        np.testing.assert_allclose(draws[:, coordinate].var(), variance[coordinate], rtol=0.1)


@pytest.mark.parametrize(
    ("preconditioner", "message"),
    [
        ({"nu": 1.0}, "names nu"),
        ({"w": np.ones(4)}, "does not broadcast"),
        ({"w": [1.0, 0.0, 1.0]}, "positive"),
    ],
)
def test_bad_preconditioners_are_refused(records, preconditioner, message):
    arguments = {"noise_multiplier": 1.0, "clip_norm": 1.0, "sampling_rate": 0.5}
    with pytest.raises(ValueError, match=message):
        bound(
            logistic,
            (records["x"], records["y"]),
            step_size=1e-3,
            preconditioner=preconditioner,
            **arguments,
        )
