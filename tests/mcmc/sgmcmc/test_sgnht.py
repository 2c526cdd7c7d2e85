"""DP-SGNHT: the textbook step, a temperature kept in unknown noise, a thermostat of positions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.infer.util import potential_energy

import numpyro_dp as ndp
from numpyro_dp.mcmc.sgmcmc.momentum import momentum_between
from numpyro_dp.mcmc.sgmcmc.sgnht import Thermostat
from numpyro_dp.model.private_model import PrivateModel
from tests.mcmc.sgmcmc.simulate import simulate
from tests.models import logistic

NOISE_OFF = {"noise_multiplier": 0.0, "clip_norm": np.inf}
NOISY = {"noise_multiplier": 4.0, "clip_norm": 1.0, "sampling_rate": 0.5}


def bound(model, data, **arguments):
    kernel = ndp.DPSGNHT(model, **arguments)
    return kernel.bind(PrivateModel(model, data), num_steps=100, relation="zero_out", delta=1e-5)


def test_without_noise_a_step_is_the_textbooks(records):
    data = (records["x"], records["y"])
    eta, xi = 1e-4, 9.0
    kernel = bound(logistic, data, step_size=eta, diffusion=1.0, temperature=1e-14, **NOISE_OFF)
    w, p = jnp.array([0.3, -0.2, 0.1]), jnp.array([1.0, 0.5, -2.0])
    state = kernel.start(jax.random.key(0), {"w": w})
    assert state.thermostat == 1.0
    state = state._replace(momentum=p, thermostat=jnp.asarray(xi))
    after = jax.jit(kernel.sample)(state, [jnp.asarray(a) for a in data])
    gradient = -jax.jit(jax.grad(lambda z: potential_energy(logistic, data, {}, z)))({"w": w})["w"]
    h = eta**0.5
    momentum = p - h * xi * p + h * gradient
    np.testing.assert_allclose(after.momentum, momentum, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(after.z["w"], w + h * momentum, rtol=1e-5)
    warmed = xi + h * ((1 - h * xi / 2) * np.mean(momentum**2) - 1e-14)
    np.testing.assert_allclose(after.thermostat, warmed, rtol=1e-4)


SLOWLY = [pytest.param(*each, marks=pytest.mark.slow) for each in ((0.0, 0.0), (6.0, 40.0))]


@pytest.mark.parametrize(
    ("sd", "hidden"), [pytest.param(40.0, 0.0, marks=pytest.mark.slow), *SLOWLY]
)
def test_positions_keep_the_temperature_whatever_the_noise(sd, hidden):
    # Known privacy noise below and above what `diffusion` asks for, and noise it is not told of.
    # 256 chains of 1,500 steps of two coordinates in four, autocorrelation time at most 200
    # steps: a variance is known to 2.5 %, and 3 % are left for the thermostat's own fluctuation;
    # bounds at 4.5 standard errors, false alarm 3e-5.
    precision = jnp.full(4, 200.0)
    root = None if hidden == 0 else jnp.full(4, hidden)
    states = simulate(Thermostat(1e-4, 1.0, 5.0), precision, sd=sd, root=root, warmup=1_500)
    np.testing.assert_allclose(states.z["x"].var((0, 1)) * 200.0, 1.0, atol=0.14)
    noise = max(2 * 5.0 * 1e-2, 1e-4 * sd**2) + 1e-4 * hidden**2
    np.testing.assert_allclose(states.thermostat.mean(), noise / 2e-2, rtol=0.2)


def test_momentum_and_thermostat_are_functions_of_released_positions(records):
    # Bit for bit, replayed from the positions and the start alone.
    kernel = bound(logistic, (records["x"], records["y"]), step_size=1e-3, diffusion=9.0, **NOISY)
    leaves = [jnp.asarray(records["x"]), jnp.asarray(records["y"])]
    step = jax.jit(lambda state: kernel.sample(state, leaves))

    @jax.jit  # compiled like the step: dividing by a constant is rounded differently outside
    def replayed(before, after, thermostat):
        stride = jnp.sqrt(jnp.float32(1e-3))
        momentum = momentum_between(before, after, stride, jnp.nan)
        return momentum, kernel.integrator.warmed(thermostat, stride, momentum)

    state = kernel.start(jax.random.key(5), {"w": jnp.zeros(3)})
    thermostat = state.thermostat
    for _ in range(20):
        after = step(state)
        momentum, thermostat = replayed(state.z["w"], after.z["w"], thermostat)
        np.testing.assert_array_equal(after.momentum, momentum)
        np.testing.assert_array_equal(after.thermostat, thermostat)
        state = after


def test_notes_say_what_the_thermostat_does():
    sd = 8.0
    assert Thermostat(1e-4, 1.0, 1.0).notes(sd) == ()
    (answered,) = Thermostat(1e-2, 1.0, 1.0).notes(sd)
    assert f"friction of about {0.1 * sd**2 / 2:.3g}" in answered.text
    (hot,) = Thermostat(6 / sd**2, 1.0, 1.0).notes(sd)
    assert "temperature 3 " in hot.text
    with pytest.raises(ValueError, match="more than all of its momentum"):
        ndp.DPSGNHT(logistic, step_size=1.0, diffusion=1.1, **NOISY)
