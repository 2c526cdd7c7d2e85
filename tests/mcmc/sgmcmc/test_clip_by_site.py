"""Clip norms that differ by site: one joint norm, noise of each site in proportion to its own."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import numpyro_dp as ndp
from numpyro_dp.model.private_model import PrivateModel

NORMS = {"a": 0.5, "b": 8.0}


def two_sites(x):
    """A record's gradient is (x₀, 100·x₁), whatever the position."""
    a = numpyro.sample("a", dist.Normal(0, 1e3))
    b = numpyro.sample("b", dist.Normal(0, 1e3))
    with numpyro.plate("people", x.shape[0]):
        numpyro.factor("term", a * x[:, 0] + 100 * b * x[:, 1])


def kernel(constructor=ndp.DPSGLD, **changes):
    settings = {"step_size": 2.0, "noise_multiplier": 3.0, "clip_norm": NORMS, **changes}
    return constructor(two_sites, **settings)


def bound(x, **changes):
    wall = PrivateModel(two_sites, (x,))
    return kernel(**changes).bind(wall, num_steps=10, relation="zero_out", delta=1e-5)


def released(one, x):
    start = {"a": jnp.zeros(()), "b": jnp.zeros(())}
    draw = jax.jit(lambda key: one.release(key, start, [jnp.asarray(x)], 0))
    return np.asarray(jax.vmap(draw)(jax.random.split(jax.random.key(1), 2_000)))


@pytest.mark.parametrize("metric", [None, {"a": 4.0}])
def test_one_record_moves_the_joint_norm_by_one_and_noise_follows_each_norm(metric):
    x = np.zeros((5, 2), np.float32)
    wild = x.copy()
    wild[2] = [1e3, -1e3]
    one = bound(x, preconditioner=metric)
    roots = np.array([2.0 if metric else 1.0, 1.0])
    norms = np.array([0.5, 8.0]) / roots
    calm, moved = released(one, x), released(one, wild)
    # The same noise in both: what is left is the record, at the edge of its ellipsoid.
    joint = np.linalg.norm((moved - calm) / norms, axis=1)
    assert joint.max() <= 1 + 1e-4
    assert joint.min() > 0.98
    # 2,000 draws: a standard deviation is known to 1.6 %, bound at 5 standard errors.
    np.testing.assert_allclose(calm.std(axis=0), 3.0 * norms, rtol=0.08)
    told = np.asarray(one.gradient_noise(0)) / roots
    np.testing.assert_allclose(told, 3.0 * norms, rtol=1e-5)
    assert one.event(1).events[0].event.noise_multiplier == 3.0
    assert one.gradient_sd == pytest.approx(24.0)


@pytest.mark.parametrize(
    ("norms", "message"),
    [
        ({"a": 1.0}, "add b"),
        ({"a": 1.0, "b": 1.0, "c": 1.0}, "names c"),
        ({"a": 1.0, "b": 0.0}, "must be positive"),
        ({"a": 1.0, "b": np.inf}, "finite"),
    ],
)
def test_bad_norms_are_refused(norms, message):
    with pytest.raises(ValueError, match=message):
        bound(np.zeros((5, 2), np.float32), clip_norm=norms)


def test_norms_by_site_never_switch_privacy_off():
    with pytest.raises(ValueError, match="either one alone"):
        kernel(noise_multiplier=0.0)
