"""With noise and clipping off, what a kernel sees is the gradient of the potential energy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from numpyro_dp.mechanisms import PrivateSum
from tests.model.test_accepted import quickly, reference, split
from tests.model.zoo import ACCEPTED

# A few by default; the whole zoo takes minutes of compilation.
CASES = [
    pytest.param(case, id=case.name, marks=[] if k < 4 else pytest.mark.slow)
    for k, case in enumerate(ACCEPTED)
]


def private_gradient(private, z, records):
    """Gradient of the log posterior through the private sum, noise and clipping off."""
    position, unravel = ravel_pytree(z)
    total = PrivateSum.create(
        num_records=private.num_records,
        dim=position.size,
        sampling_rate=1.0,
        clip_norm=np.inf,
        noise_multiplier=0.0,
        num_steps=1,
        delta=1e-5,
    )

    def gradient(record):
        term = lambda q: private.record_log_likelihood(unravel(q), record)  # noqa: E731
        return jax.grad(term)(position)

    prior = jax.grad(lambda q: private.log_prior(unravel(q)))(position)
    return prior + total.release(jax.random.key(0), gradient, records)


@pytest.mark.parametrize("case", CASES)
def test_the_private_sum_is_the_gradient_of_the_potential_energy(case):
    private, model, args, kwargs = split(case)
    records = private.records(args, kwargs)
    z = private.init(jax.random.key(1))
    got = quickly(lambda z: private_gradient(private, z, records), z)(z)
    exact = ravel_pytree(quickly(jax.grad(reference(case, model, args, kwargs)), z)(z))[0]
    size = float(jnp.max(jnp.abs(exact)))
    np.testing.assert_allclose(got, exact, rtol=1e-5, atol=1e-5 * max(size, 1.0))
