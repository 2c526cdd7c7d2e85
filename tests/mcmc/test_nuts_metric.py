"""DPNUTS's warm-up begins in the metric that the release tells."""

from dataclasses import replace

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import numpyro_dp as ndp
from numpyro_dp.mcmc.nuts_loop import numbers_of


def far_apart(x, y=None):
    """Written in another order than that of the names."""
    tiny = numpyro.sample("tiny", dist.Normal(0, 1e-2).expand([2]).to_event(1))
    large = numpyro.sample("large", dist.Normal(0, 100.0))
    with numpyro.plate("N", len(x)):
        numpyro.sample("y", dist.Normal(100 * x @ tiny + large / 100, 1.0), obs=y)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2_000, 2)).astype(np.float32)
    return x, (0.5 * x[:, 0] + rng.normal(size=2_000)).astype(np.float32)


def warmed_up(data, **nuts):
    kernel = ndp.DPNUTS(far_apart, privacy=ndp.Budget(4.0, 1e-5), **nuts)
    mcmc = ndp.MCMC(kernel, num_warmup=80, num_samples=5, progress_bar=False)
    fields = ("num_steps",)
    mcmc.warmup(jax.random.key(0), *data, extra_fields=fields, collect_warmup=True)
    return mcmc, float(mcmc.get_extra_fields()["num_steps"].mean())


@pytest.fixture(scope="module")
def released(data):
    return warmed_up(data)[0].released


@pytest.mark.parametrize("dense", [True, False])
def test_the_first_metric_is_the_released_covariance(released, dense):
    """Coordinate by coordinate, in the order of the names."""
    nuts = {"dense_mass": dense, "adapt_mass_matrix": False}
    kernel = ndp.DPNUTS(far_apart, privacy=ndp.Budget(4.0, 1e-5), **nuts)
    start = jax.random.key(0), 6, None, (), {}
    state = kernel.sampler(released, 6).init(*start)
    ((names, metric),) = state.adapt_state.inverse_mass_matrix.items()
    assert names == ("large", "tiny")
    covariance = np.asarray(released.located.covariance)
    sds = np.sqrt(np.diag(covariance))
    if dense:
        expected = np.where(np.eye(3), covariance, covariance * (1 - 1e-3))
        np.testing.assert_allclose(metric / np.outer(sds, sds), expected / np.outer(sds, sds),
                                   atol=1e-5)  # fmt: skip
    else:
        np.testing.assert_allclose(metric, sds**2, rtol=1e-5)


def test_scales_far_apart_cost_no_long_trajectories(data):
    """A tenth of what the unit metric costs them, of which a user's own knows nothing more."""
    ours, unit = (warmed_up(data, **nuts)[1] for nuts in ({}, {"inverse_mass_matrix": np.ones(3)}))
    assert ours < 20 < 200 < unit


def test_a_metric_of_the_users_own_stands(released):
    budget = ndp.Budget(4.0, 1e-5)
    own = ndp.DPNUTS(far_apart, privacy=budget, inverse_mass_matrix=np.full(3, 2.0))
    assert np.all(own.sampler(released, 40)._inverse_mass_matrix == 2)
    # Whose blocks may be any.
    blocks = ndp.DPNUTS(far_apart, privacy=budget, dense_mass=[("tiny",)])
    assert blocks.sampler(released, 40)._inverse_mass_matrix is None


def test_coordinates_that_are_almost_one_have_a_root_in_float32(released):
    """Their covariance has none."""
    alike = np.full((3, 3), 1.0) + 1e-9 * np.eye(3)
    near = replace(released, located=released.located._replace(covariance=alike))
    kernel = ndp.DPNUTS(far_apart, privacy=ndp.Budget(4.0, 1e-5))
    state = kernel.sampler(near, 40).init(jax.random.key(0), 40, None, (), {})
    (root,) = state.adapt_state.mass_matrix_sqrt.values()
    assert np.all(np.isfinite(root))


def test_a_covariance_that_is_none_ends_no_run(released):
    broken = np.array([[1.0, 2.0, 0.0], [2.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    near = replace(released, located=released.located._replace(covariance=broken))
    numbers = numbers_of(near)
    np.testing.assert_array_equal(numbers.covariance, np.eye(3))
    np.testing.assert_array_equal(numbers.root, np.eye(3))
