"""No key is used twice: noise that another draw repeats hides nothing, whatever its size.

JAX follows every key through the programs of a run; the size of the noise would look right.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from numpyro.infer.autoguide import AutoDelta

import numpyro_dp as ndp
from numpyro_dp.mechanisms import os_key
from numpyro_dp.svi.dpsvi.fit import Carry
from tests.contract.kernels import KERNELS, make, warmup
from tests.models import logistic


def check_keys(run):
    with jax.debug_key_reuse(True):
        try:
            run(jax.random.key(0))
        except jax.errors.KeyReuseError as error:
            pytest.fail(f"a key is used twice: {error}")


@pytest.fixture
def data(records):
    return records["x"], records["y"]


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_no_kernel_uses_a_key_twice(name, data):
    mcmc = ndp.MCMC(
        make(name, logistic),
        num_warmup=warmup(name, 2),
        num_samples=3,
        num_chains=2,
        progress_bar=False,
    )
    check_keys(lambda key: mcmc.run(key, *data))


FRONT_ENDS = {
    "LikelihoodRelease": lambda key, x, y: ndp.LikelihoodRelease(
        logistic, privacy=ndp.Budget(1.0, 1e-5)
    ).run(key, x, y, progress_bar=False),
    "ObjectivePerturbation": lambda key, x, y: ndp.ObjectivePerturbation(
        logistic, row_norm=1.0, noise_multiplier=3.0
    ).run(key, x, y),
    "PrivateCentre": lambda key, x, y: ndp.PrivateCentre(row_norm=2.0, noise_multiplier=3.0).run(
        key, x
    ),
    "VIPS": lambda key, x, y: ndp.VIPS(
        logistic,
        ndp.guides.PolyaGammaGuide(logistic, row_norm=2.0),
        noise_multiplier=5.0,
        sampling_rate=0.5,
    ).run(key, 6, x, y, progress_bar=False),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name == "PrivateCentre" else pytest.mark.slow)
        for name in FRONT_ENDS
    ],
)
def test_no_front_end_uses_a_key_twice(name, data):
    check_keys(lambda key: FRONT_ENDS[name](key, *data))


@pytest.mark.slow
def test_no_step_of_dpsvi_uses_a_key_twice(data):
    """By its step: NumPyro's own guides draw their start and a parameter's with one key.

    A loss beside a step has the step's draws on purpose, and noise of its own (test_elbo.py).
    """
    guide = AutoDelta(logistic)
    optim = numpyro.optim.SGD(1e-3)
    svi = ndp.DPSVI(logistic, guide, optim, clip_norm=1.0, noise_multiplier=5.0)
    _, fit, _, state = svi._prepared(2, data, {})

    @jax.jit
    def step(draws_key, noise_key, rows):
        carry = Carry(jnp.int32(0), state.optim_state, draws_key, noise_key, None)
        return fit.step(carry, rows)[0]

    check_keys(lambda key: step(key, os_key(), [jnp.asarray(each) for each in data]))


def test_a_key_that_is_used_twice_is_found():
    def twice(key):
        return np.asarray(jax.random.normal(key) + jax.random.uniform(key))

    with pytest.raises(pytest.fail.Exception, match="used twice"):
        check_keys(twice)
