"""Models whose records know of each other, the way people write them, and likelihoods for them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

N, D = 24, 2


def _ranks(x):
    return jnp.argsort(jnp.argsort(x, axis=0), axis=0) / 3.0


def _group_means(x, group):
    sums = jax.ops.segment_sum(x, group, 4)
    return (sums / jnp.maximum(jax.ops.segment_sum(jnp.ones(len(x)), group, 4), 1)[:, None])[group]


def _at_risk(x, time):
    """Cox's partial likelihood: the log of the sum over those who are still there."""
    order = jnp.argsort(-time)
    return jax.lax.cumlogsumexp(x[order], axis=0)[jnp.argsort(order)]


# What is computed of the inputs over all rows.
OVER_ROWS: dict[str, Callable[..., Any]] = {
    "mean": lambda x, group, time: x - x.mean(0),
    "sd": lambda x, group, time: (x - x.mean(0)) / x.std(0),
    "rank": lambda x, group, time: _ranks(x),
    "cumsum": lambda x, group, time: jnp.cumsum(x, axis=0),
    "softmax": lambda x, group, time: jax.nn.softmax(x, axis=0),
    "cox": lambda x, group, time: x - _at_risk(x, time),
    "contextual": lambda x, group, time: x - _group_means(x, group),
}

MORE_OVER_ROWS: dict[str, Callable[..., Any]] = {
    "batch norm": lambda x, group, time: (x - x.mean(0)) / jnp.sqrt(x.var(0) + 1e-5),
    "maximum": lambda x, group, time: x / x.max(),
    "first row": lambda x, group, time: x - x[0],
    "order": lambda x, group, time: x[jnp.argsort(x[:, 0])],
    "lag": lambda x, group, time: jnp.concatenate([jnp.zeros((1, D)), x[:-1]]),
    "next": lambda x, group, time: jnp.roll(x, -1, axis=0),
    "median": lambda x, group, time: x > jnp.median(x, axis=0),
    "count": lambda x, group, time: x * jnp.bincount(group, length=4)[group][:, None],
    "number": lambda x, group, time: x / x.shape[0],
    "row number": lambda x, group, time: x + jnp.arange(x.shape[0])[:, None],
    "norm": lambda x, group, time: x / jnp.linalg.norm(x, axis=0),
    "whitened": lambda x, group, time: x @ jnp.linalg.inv(x.T @ x + 0.1 * jnp.eye(D)),
    "neighbours": lambda x, group, time: x - jnp.sort(jnp.abs(x[:, None] - x), axis=1)[:, 1],
}


def _normal(sd):
    return lambda eta, y: numpyro.sample("y", dist.Normal(eta, sd), obs=y)


def _ordered(eta, y):
    numpyro.sample("y", dist.OrderedLogistic(eta, jnp.array([-1.0, 1.0])), obs=y)


def _categorical(eta, y):
    numpyro.sample("y", dist.Categorical(logits=eta[..., None] * jnp.arange(3.0)), obs=y)


LIKELIHOODS: dict[str, Callable[..., Any]] = {
    "normal .1": _normal(0.1),
    "normal 1": _normal(1.0),
    "normal 10": _normal(10.0),
    "normal 100": _normal(100.0),
    "student t": lambda eta, y: numpyro.sample("y", dist.StudentT(4.0, eta, 2.0), obs=y),
    "poisson": lambda eta, y: numpyro.sample("y", dist.Poisson(jnp.exp(eta)), obs=y),
    "negative binomial": lambda eta, y: numpyro.sample(
        "y", dist.NegativeBinomial2(jnp.exp(eta), 2.0), obs=y
    ),
    "ordered": _ordered,
    "categorical": _categorical,
}


def coupled(over_rows, likelihood):
    """A regression on inputs that were computed over all rows."""

    def model(x, group, time, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([D]).to_event(1))
        with numpyro.plate("people", x.shape[0]):
            likelihood(over_rows(x, group, time) @ w, y)

    return model


def data(likelihood):
    """Inputs, groups, times and an outcome of the likelihood's type."""
    rng = np.random.default_rng(5)
    real = likelihood.startswith(("normal", "student"))
    y = rng.normal(size=N) if real else rng.integers(0, 3, N)
    return rng.normal(size=(N, D)), rng.integers(0, 4, N), rng.exponential(size=N), y
