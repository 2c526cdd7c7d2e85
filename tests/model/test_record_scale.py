"""Records that count for more or less: larger scores, and not as much larger information."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers

import numpyro_dp as ndp

BUDGET, KEY, QUIET = ndp.Budget(4.0, 1e-5), jax.random.key(0), {"progress_bar": False}
N = 4_000


def counted(scale):
    def model(y, w):
        a = numpyro.sample("a", dist.Normal(0, 3))
        with numpyro.plate("N", len(y)), handlers.scale(scale=scale(y, w)):
            numpyro.sample("y", dist.Bernoulli(logits=a), obs=y)

    return model


def twice(y, w):
    a = numpyro.sample("a", dist.Normal(0, 3))
    with numpyro.plate("N", len(y)):
        numpyro.sample("y", dist.Bernoulli(logits=a), obs=y)
        with handlers.scale(scale=w):
            numpyro.sample("w", dist.Normal(a, 1), obs=jnp.ones(len(y)) * y)


def each_its_own(y, w):
    a = numpyro.sample("a", dist.Normal(0, 3))
    with numpyro.plate("N", len(y)):
        for name, count in (("y", w), ("z", w[::1] * 0 + jnp.asarray([2.0]))):
            with handlers.scale(scale=count):
                numpyro.sample(name, dist.Bernoulli(logits=a), obs=y)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    return (rng.random(N) < 0.3).astype(np.int32), rng.choice([0, 1, 3], N).astype(np.float32)


@pytest.mark.parametrize(
    ("scale", "mean_of"),
    [
        (lambda y, w: 4.0, lambda w: 4.0),
        (lambda y, w: 0.25, lambda w: 0.25),
        (lambda y, w: w, lambda w: w),
    ],
    ids=["4", "a quarter", "weights"],
)
def test_the_width_is_that_of_the_posterior(data, scale, mean_of):
    """Taken for w² times the information, that of 4 was .6 times as wide, and the mean 7 sds off.

    The mean by four sds: one in 16,000 by chance. Noise adds to the width.
    """
    y, w = data
    release = ndp.LikelihoodRelease(counted(scale), privacy=BUDGET, secure=False)
    at = release.run(KEY, y, w, **QUIET)
    weights = np.broadcast_to(mean_of(w), N)
    rate = (weights @ y) / weights.sum()
    sd = 1 / np.sqrt(weights.sum() * rate * (1 - rate))
    found = np.sqrt(at.located.covariance[0, 0])
    assert 0.9 * sd < found < 1.6 * sd
    assert abs(at.located.mean[0] - np.log(rate / (1 - rate))) < 4 * found
    assert at.diagnostics.verdicts == ()


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (counted(lambda y, w: jnp.where(y == 1, 8.0, 1.0)), "hangs on its own outcome"),
        (twice, "put one handlers.scale, of one number a record"),
        (each_its_own, "put one handlers.scale, of one number a record"),
    ],
    ids=["by its outcome", "one of two", "two"],
)
def test_what_no_information_is_known_of_is_refused_before_the_charge(data, model, why):
    accountant = ndp.Accountant(BUDGET)
    release = ndp.LikelihoodRelease(model, privacy=BUDGET, accountant=accountant)
    with pytest.raises(ndp.UnsupportedModelError, match=why):
        release.run(KEY, *data, **QUIET)
    assert accountant.entries == ()
