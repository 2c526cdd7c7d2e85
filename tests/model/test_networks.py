"""Networks whose weights all have a prior are models like any other; half of a prior is none."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.contrib.module import flax_module
from numpyro.infer.util import potential_energy

import numpyro_dp as ndp
from numpyro_dp.model.private_model import PrivateModel

from .networks import NETWORKS, Linen, regressed

X = np.random.default_rng(0).normal(size=(19, 3)).astype(np.float32)
Y = X[:, 0]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name != "nnx")) for name in NETWORKS],
)
def test_prior_and_terms_are_numpyros(name):
    model = regressed(NETWORKS[name], dist.Normal(0.0, 0.7))
    wall = PrivateModel(model, (X, Y))
    assert len(wall.latents) == 5
    z = wall.init(jax.random.key(1))
    rows = [a[:, None] for a in wall.records((X, Y))]

    @jax.jit
    def both(z):
        terms = jax.vmap(lambda row: wall.record_log_likelihood(z, row))(rows)
        seeded = handlers.seed(model, jax.random.key(0))
        return wall.log_prior(z) + terms.sum(), -potential_energy(seeded, (X, Y), {}, z)

    np.testing.assert_allclose(*both(z), rtol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_runs(name):
    model = regressed(NETWORKS[name], dist.Normal(0.0, 0.7))
    kernel = ndp.DPSGLD(model, step_size=1e-4, clip_norm=1.0, noise_multiplier=5.0)
    mcmc = ndp.MCMC(kernel, num_warmup=1, num_samples=2, progress_bar=False)
    mcmc.run(jax.random.key(0), X, Y)
    assert all(bool(jnp.isfinite(draws).all()) for draws in mcmc.get_samples().values())


def without_prior(x, y):
    shift = numpyro.sample("shift", dist.Normal(0, 1))
    net = flax_module("net", Linen(), input_shape=(3,))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(net(x) + shift, 1.0), obs=y)


@pytest.mark.parametrize(
    "model",
    [
        regressed(NETWORKS["linen"], {"Dense_0.kernel": dist.Normal()}),
        regressed(NETWORKS["equinox"], {"layers[0].weight": dist.Normal()}),
        regressed(NETWORKS["nnx"], {"inner.kernel": dist.Normal()}),
        without_prior,
    ],
    ids=["linen, some", "equinox, some", "nnx, some", "linen, none"],
)
def test_parameters_without_a_prior_are_refused(model):
    with pytest.raises(ndp.UnsupportedModelError, match=r"param site `net.params`.*every one"):
        PrivateModel(model, (X, Y))
