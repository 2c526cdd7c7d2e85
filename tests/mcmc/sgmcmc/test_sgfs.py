"""DP-SGFS: the scoring step, its exact law, the joint release and its sensitivity."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.infer.util import potential_energy

import numpyro_dp as ndp
from numpyro_dp.mcmc.sgmcmc.sgfs import FisherScoring
from numpyro_dp.model.private_model import PrivateModel
from tests.mcmc.sgmcmc.simulate import simulate
from tests.models import logistic, normal_mean

NOISE_OFF = {"noise_multiplier": 0.0, "clip_norm": np.inf}
NOISY = {"noise_multiplier": 4.0, "clip_norm": 1.0, "sampling_rate": 0.5}
METRIC = {"w": np.array([1.0, 4.0, 0.25])}


def bound(model, data, **arguments):
    kernel = ndp.DPSGFS(model, **arguments)
    return kernel.bind(PrivateModel(model, data), num_steps=100, relation="zero_out", delta=1e-5)


def record_gradients(data, w):
    x, y = data
    return x * (y - 1 / (1 + np.exp(-x @ w)))[:, None]


@pytest.mark.parametrize("metric", [pytest.param(None, marks=pytest.mark.slow), METRIC])
def test_without_noise_a_step_is_fisher_scoring(records, metric):
    data = (records["x"], records["y"])
    eta = 0.05
    kernel = bound(
        logistic, data, step_size=eta, temperature=1e-12, preconditioner=metric, **NOISE_OFF
    )
    w = jnp.array([0.3, -0.2, 0.1])
    state = kernel.start(jax.random.key(0), {"w": w})
    after = jax.jit(kernel.sample)(state, [jnp.asarray(a) for a in data])
    each = record_gradients(data, np.asarray(w))
    moment = each.T @ each
    np.testing.assert_allclose(after.second_moment, moment, rtol=1e-4, atol=1e-3)
    inverse = np.diag(4 / eta / (np.ones(3) if metric is None else METRIC["w"]))
    gradient = -jax.jit(jax.grad(lambda z: potential_energy(logistic, data, {}, z)))({"w": w})["w"]
    expected = np.linalg.solve((moment + inverse) / 2, gradient)
    np.testing.assert_allclose(after.z["w"] - w, expected, rtol=1e-3)


def known_curvature(state, precision):
    return state._replace(second_moment=jnp.diag(precision))


@pytest.mark.parametrize(
    ("sd", "rate", "eta"), [(15.0, 0.5, 1.0), pytest.param(0.0, 1.0, 0.02, marks=pytest.mark.slow)]
)
def test_at_known_curvature_the_law_is_exact_at_any_step_size(sd, rate, eta):
    # A step covers from a quarter of the way to all of it: 256 chains of 500 steps are at least
    # 16,000 independent draws, a variance is known to 1.2 %; bounds at 5 standard errors.
    precision = jnp.array([100.0, 400.0])
    root = jnp.sqrt(precision * (1 - rate) / rate)
    integrator = FisherScoring(eta, 1.0, 1.0, rate)
    states = simulate(
        integrator, precision, sd=sd, root=root, prepare=known_curvature, warmup=100, steps=500
    )
    np.testing.assert_allclose(states.z["x"].var((0, 1)) * precision, 1, atol=0.06)


@pytest.mark.parametrize(
    ("share", "blocks"), [pytest.param(0.2, 1.0, marks=pytest.mark.slow), (0.5, {"w": 0.7})]
)
def test_the_joint_release_is_what_it_says(records, share, blocks):
    """Weights of the joint vector: every clipped gradient at the joint norm, never above it."""
    data = (records["x"], records["y"])
    kernel = bound(
        logistic, data, step_size=1e-3, second_moment_share=share, preconditioner=METRIC,
        **{**NOISY, "clip_norm": blocks},
    )  # fmt: skip
    w = {"w": jnp.array([0.3, 0.2, 0.1])}
    scale = np.array(kernel.private_sum.scale)
    vector_of = jax.jit(lambda *record: kernel.record_vector(w)(record))
    norms = []
    for row in ([1.0, 2.0, 3.0], [1e4, -2e4, 3e5], [0.0, 0.0, 0.01]):
        record = [jnp.array([row], jnp.float32), jnp.array([0])]
        vector = np.asarray(vector_of(*record), float)
        gradient, moment = vector[:3], vector[3:]
        outer = np.outer(gradient, gradient)[np.triu_indices(3)]
        np.testing.assert_allclose(moment, outer, rtol=1e-4, atol=1e-12)
        norms.append(np.linalg.norm(scale * vector))
        clip = np.linalg.norm(scale[:3] * gradient) / np.sqrt(1 - share)
        assert clip <= kernel.private_sum.clip_norm * (1 + 1e-5)
    joint = kernel.private_sum.clip_norm
    np.testing.assert_allclose(norms[:2], joint, rtol=1e-5)
    assert norms[2] < joint
    # The noise of the gradient, in its own clip norm's units.
    sd = 4.0 * 0.7 if isinstance(blocks, dict) else 4.0
    np.testing.assert_allclose(kernel.gradient_sd, sd / 0.5 / np.sqrt(1 - share))


def test_one_event_a_step_and_never_two(records):
    data = (records["x"], records["y"])
    one = bound(logistic, data, step_size=1e-3, **NOISY)
    sgld = ndp.DPSGLD(logistic, step_size=1e-3, **NOISY)
    sgld = sgld.bind(PrivateModel(logistic, data), num_steps=100, relation="zero_out", delta=1e-5)
    assert one.event(7).events[0] == sgld.event(7).events[0]
    assert "joint vector" in one.facts().mechanism
    assert "outer products" in one.facts().released[0]


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1])
def test_bad_shares_are_refused(share):
    with pytest.raises(ValueError, match="second_moment_share"):
        ndp.DPSGFS(normal_mean, step_size=1e-3, second_moment_share=share, **NOISY)
