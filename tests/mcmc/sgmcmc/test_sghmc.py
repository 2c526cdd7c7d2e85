"""DP-SGHMC: the textbook step, exact stationary laws, and a momentum that positions show."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpyro.infer.util import potential_energy

import numpyro_dp as ndp
from numpyro_dp.mcmc.sgmcmc.momentum import momentum_between
from numpyro_dp.mcmc.sgmcmc.sghmc import FrictionDynamics
from numpyro_dp.model.private_model import PrivateModel
from tests.mcmc.sgmcmc.simulate import simulate
from tests.models import logistic, normal_mean

NOISE_OFF = {"noise_multiplier": 0.0, "clip_norm": np.inf}
NOISY = {"noise_multiplier": 4.0, "clip_norm": 1.0, "sampling_rate": 0.5}


def bound(model, data, **arguments):
    kernel = ndp.DPSGHMC(model, **arguments)
    return kernel.bind(PrivateModel(model, data), num_steps=100, relation="zero_out", delta=1e-5)


def test_without_noise_a_step_is_the_textbooks(records):
    data = (records["x"], records["y"])
    eta, friction = 1e-3, 9.0
    kernel = bound(logistic, data, step_size=eta, friction=friction, temperature=1e-14, **NOISE_OFF)
    w, p = jnp.array([0.3, -0.2, 0.1]), jnp.array([1.0, 0.5, -2.0])
    state = kernel.start(jax.random.key(0), {"w": w})._replace(momentum=p)
    after = jax.jit(kernel.sample)(state, [jnp.asarray(a) for a in data])
    gradient = -jax.jit(jax.grad(lambda z: potential_energy(logistic, data, {}, z)))({"w": w})["w"]
    h = eta**0.5
    momentum = p - h * friction * p + h * gradient
    np.testing.assert_allclose(after.momentum, momentum, rtol=2e-4, atol=2e-4)
    np.testing.assert_allclose(after.z["w"], w + h * momentum, rtol=1e-5)
    # Gradient descent with momentum: learning rate η, momentum 1 - hA.
    velocity = (1 - h * friction) * (h * p) + eta * gradient
    np.testing.assert_allclose(after.z["w"] - w, velocity, rtol=2e-3)


def exact(precision, eta, lost, variance):
    """Stationary variances of position and momentum: θ is a second-order autoregression."""
    k = eta * precision
    first, second = 2 - lost - k, -(1 - lost)
    position = (1 - second) * eta * variance / ((1 + second) * ((1 - second) ** 2 - first**2))
    correlation = first / (1 - second)
    return position, 2 * position * (1 - correlation) / eta


SLOWLY = [pytest.param(*each, marks=pytest.mark.slow) for each in ((5.0, 0.0), (100.0, 0.0))]


@pytest.mark.parametrize(
    ("friction", "sd"), [(5.0, 6.0), pytest.param(5.0, 30.0, marks=pytest.mark.slow), *SLOWLY]
)
def test_stationary_variances_are_exact(friction, sd):
    # 256 chains of 1,500 steps and an autocorrelation time of at most 200 steps (some 1,900
    # independent draws a coordinate, two coordinates): a variance is known to 2.5 %. Bounds at 5
    # standard errors, false alarm 1e-5. At sd = 30 the privacy noise is more than friction asks.
    eta, precision = 1e-4, jnp.array([100.0, 400.0])
    lost = eta**0.5 * friction
    states = simulate(FrictionDynamics(eta, 1.0, friction), precision, sd=sd)
    variance = max(2 * lost, eta * sd**2)
    position, momentum = exact(np.asarray(precision), eta, lost, variance)
    np.testing.assert_allclose(states.z["x"].var((0, 1)), position, rtol=0.13)
    np.testing.assert_allclose(states.momentum.var((0, 1)), momentum, rtol=0.13)
    if sd <= 6.0 and friction == 5.0:
        # What the posterior and unit masses ask for; friction multiplied by η in place of its
        # root would give 20 and more.
        np.testing.assert_allclose(position * precision, 1, atol=0.02)
        np.testing.assert_allclose(states.momentum.var((0, 1)), 1, atol=0.15)


@pytest.mark.slow
def test_full_friction_is_dp_sgld_at_twice_the_step():
    eta, precision = 1e-3, jnp.array([50.0])
    states = simulate(FrictionDynamics(eta, 1.0, eta**-0.5), precision, steps=500)
    contraction = (1 - eta * 50.0) ** 2
    # 256 chains, autocorrelation time 40 steps: 3,200 draws, a variance to 2.5 %.
    np.testing.assert_allclose(states.z["x"].var(), 2 * eta / (1 - contraction), rtol=0.13)


def test_the_momentum_is_what_two_released_positions_show(records):
    # Bit for bit: nothing but released positions is in it.
    kernel = bound(
        logistic, (records["x"], records["y"]), step_size=1e-3, friction=9.0,
        preconditioner={"w": np.array([1.0, 2.0, 0.5])}, **NOISY,
    )  # fmt: skip
    leaves = [jnp.asarray(records["x"]), jnp.asarray(records["y"])]
    step = jax.jit(lambda state: kernel.sample(state, leaves))
    state = kernel.start(jax.random.key(5), {"w": jnp.zeros(3)})

    @jax.jit  # compiled like the step: dividing by a constant is rounded differently outside
    def replayed(before, after):
        pace = jnp.sqrt(jnp.float32(1e-3)) * jnp.sqrt(jnp.array([1.0, 2.0, 0.5], jnp.float32))
        return momentum_between(before, after, pace, jnp.nan)

    for _ in range(20):
        after = step(state)
        np.testing.assert_array_equal(after.momentum, replayed(state.z["w"], after.z["w"]))
        state = after


def test_a_raised_temperature_is_reported():
    sd, friction = 8.0, 2.0
    free = (2 * friction / sd**2) ** 2
    assert FrictionDynamics(free, 1.0, friction).notes(sd) == ()
    (note,) = FrictionDynamics(9 * free, 1.0, friction).notes(sd)
    assert "temperature 3 " in note.text
    # 0.00390625, rounded down.
    assert "at most 0.0039 at this friction" in note.text
    assert FrictionDynamics(optax.cosine_decay_schedule(1.0, 100), 1.0, friction).notes(sd) == ()


def test_an_optax_schedule_is_followed_to_its_end():
    schedule = optax.cosine_decay_schedule(1e-3, 500)
    states = simulate(
        FrictionDynamics(schedule, 1.0, 5.0), jnp.array([100.0]), chains=4, warmup=0, steps=600
    )
    moves = np.abs(np.diff(states.z["x"][:, 0, 0]))
    assert moves[:100].mean() > 10 * moves[480:498].mean() > 0
    # A step of zero moves nothing, and leaves a finite momentum behind.
    assert np.all(moves[500:] == 0)
    assert np.all(np.isfinite(states.momentum))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"friction": 0.0}, "friction must be positive"),
        ({"friction": 101.0}, "more than all of its momentum"),
        ({"step_size": -1.0}, "step_size must be positive"),
        ({"temperature": 0.0}, "temperature must be positive"),
    ],
)
def test_bad_arguments_are_refused(changes, message):
    arguments = {"step_size": 1e-4, "friction": 10.0, **NOISY, **changes}
    with pytest.raises(ValueError, match=message):
        ndp.DPSGHMC(normal_mean, **arguments)
