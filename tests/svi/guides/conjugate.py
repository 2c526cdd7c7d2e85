"""Conjugate models with their data, and the schedule that a guide makes of them."""

import math

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import numpyro_dp as ndp
from numpyro_dp.model.guided.model import outline

N = 60
RNG = np.random.default_rng(7)
X = RNG.normal(size=(N, 2)).astype(np.float32)
Y = (0.5 + X @ [1.0, -2.0] + 0.3 * RNG.normal(size=N)).astype(np.float32)
TWO = np.concatenate([RNG.normal(2, 0.6, (40, 2)), RNG.normal(-1, 0.4, (20, 2))]).astype(np.float32)


def coins(y=None):
    p = numpyro.sample("p", dist.Beta(2.0, jnp.array([1.0, 4.0])).to_event(1))
    with numpyro.plate("people", N):
        # The first coin is thrown twice.
        numpyro.sample("y", dist.Bernoulli(p[jnp.array([0, 1, 0])]).to_event(1), obs=y)


def votes(n, y=None):
    p = numpyro.sample("p", dist.Uniform(0, 1))
    with numpyro.plate("people", N):
        numpyro.sample("y", dist.Binomial(n, p), obs=y)


def dice(y):
    p = numpyro.sample("p", dist.Dirichlet(jnp.array([1.0, 2.0, 3.0])))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.Categorical(p), obs=y)


def visits(y):
    rate = numpyro.sample("rate", dist.Gamma(3.0, 2.0).expand([2]).to_event(1))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.Poisson(rate).to_event(1), obs=y)


def known_noise(x, y=None):
    b = numpyro.sample("b", dist.Normal(0.5, 2))
    w = numpyro.sample("w", dist.Normal(0, 3).expand([2]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Normal(b + x @ w, 0.5), obs=y)


def scaled_prior(x, y=None):
    precision = numpyro.sample("precision", dist.Gamma(2.0, 3.0))
    scale = 1 / jnp.sqrt(precision)
    b = numpyro.sample("b", dist.Normal(0.5, 2 * scale))
    w = numpyro.sample("w", dist.Normal(0, 3 * scale).expand([2]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Normal(b + x @ w + 0.1 * x[:, 0], scale), obs=y)


def free_prior(x, y=None):
    v = numpyro.sample("v", dist.InverseGamma(2.0, 3.0))
    w = numpyro.sample("w", dist.Normal(0, 3).expand([2]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, jnp.sqrt(v)), obs=y)


def two_normals(x):
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(2)))
    v = numpyro.sample("v", dist.InverseGamma(2.0, 1.0).expand([2]).to_event(1))
    loc = numpyro.sample("loc", dist.Normal(0, 3).expand([2, 2]).to_event(2))
    with numpyro.plate("people", x.shape[0]):
        z = numpyro.sample("z", dist.Categorical(weights))
        numpyro.sample("x", dist.Normal(loc[z], jnp.sqrt(v[z])[..., None]).to_event(1), obs=x)


def same_family(x):
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(2)))
    v = numpyro.sample("v", dist.InverseGamma(2.0, 1.0).expand([2, 2]).to_event(2))
    loc = numpyro.sample("loc", dist.Normal(0, 2 * jnp.sqrt(v)).to_event(2))
    with numpyro.plate("people", x.shape[0]):
        parts = dist.Normal(loc, jnp.sqrt(v)).to_event(1)
        numpyro.sample("x", dist.MixtureSameFamily(dist.Categorical(weights), parts), obs=x)


def bound(model, data, clip_norm=math.inf, **options):
    """The guide's schedule for these data, and its records; the engine stays out of it."""
    guide = ndp.guides.ConjugateGuide(model, **options)
    found = outline(model, data, {}, data_plate=None, private_size=False)
    schedule = guide.scheduled(found, None, clip_norm=clip_norm)
    return schedule, schedule.records(data, {})
