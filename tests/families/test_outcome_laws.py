"""Which latents widen the law of an outcome, and which way."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from numpyro_dp.families.outcome_laws import dispersions
from numpyro_dp.model.private_model import PrivateModel

X, GROUP = np.zeros((40, 2), np.float32), np.zeros(40, np.int32)


def positive(name, size=()):
    return numpyro.sample(name, dist.HalfNormal(1).expand(size).to_event(len(size)))


def real(name, size=()):
    return numpyro.sample(name, dist.Normal(0, 1).expand(size).to_event(len(size)))


def observed(law, y):
    with numpyro.plate("people", 40):
        numpyro.sample("y", law, obs=y)


def scale(x, g, y):
    observed(dist.Normal(real("a") + x @ real("b", (2,)), positive("sigma")), y)


def precision(x, g, y):
    observed(dist.Normal(real("a"), 1 / jnp.sqrt(positive("tau"))), y)


def logarithm(x, g, y):
    observed(dist.LogNormal(real("a"), jnp.exp(real("log_sigma"))), y)


def student(x, g, y):
    df = numpyro.sample("df", dist.Gamma(2, 0.1))
    observed(dist.StudentT(df, real("a"), positive("sigma")), y)


def hierarchy(x, g, y):
    mu, tau, sigma = real("mu"), positive("tau"), positive("sigma")
    with numpyro.plate("groups", 5):
        a = numpyro.sample("a", dist.Normal(mu, tau))
    observed(dist.Normal(a[g], sigma), y)


def of_groups(x, g, y):
    observed(dist.Normal(real("a"), positive("sigma", (3,))[g]), y)


def of_the_mean(x, g, y):
    """Which moves the law as well."""
    mean = positive("mean")
    observed(dist.Normal(mean, 0.1 * mean), y)


def counts(x, g, y):
    observed(dist.NegativeBinomial2(jnp.exp(real("a")), positive("phi")), g)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (scale, {"sigma": 1}),
        (precision, {"tau": -1}),
        (logarithm, {"log_sigma": 1}),
        (student, {"sigma": 1}),
        (hierarchy, {"sigma": 1}),
        (of_groups, {"sigma": 1}),
        (of_the_mean, {}),
        (counts, {}),
    ],
)
def test_what_widens_a_law(model, expected):
    private = PrivateModel(model, (X, GROUP, np.zeros(40, np.float32)))
    latents = private.structure.latents.items()
    at = {name: jnp.full(each.shape, 0.3, each.dtype) for name, each in latents}
    assert dispersions(private, at) == expected
