"""Models that several tests share, at module level so that they pickle and compile once."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist


class OutOfSight:
    """Values by names that only a running program finds: reading the code does not show them."""

    def __init__(self, **values):
        self.__dict__["values"] = values

    def __getattr__(self, name):
        if name not in self.__dict__["values"]:
            raise AttributeError(name)
        return self.__dict__["values"][name]


def logistic(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[-1]]).to_event(1))
    numpyro.deterministic("norm", jnp.sum(w**2))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def logistic_of_rows(x, y=None):
    """Without a plate: for ``data_plate="auto"``."""
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[-1]]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def normal_mean(x):
    """Known-variance Gaussian: the posterior of ``mu`` is exactly Gaussian."""
    mu = numpyro.sample("mu", dist.Normal(0, 1).expand([x.shape[-1]]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("x", dist.Normal(mu, 1).to_event(1), obs=x)


def indifferent(x):
    """Every record's gradient is zero, whatever the record: a step shows the noise alone."""
    w = numpyro.sample("w", dist.Normal(0, 1e3).expand([x.shape[-1]]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("x", dist.Normal(0 * w.sum(), 1), obs=x[:, 0])


def logistic_posterior(x, y):
    """Mode, and covariance there, of :func:`logistic`'s weights under a standard normal prior."""
    x, w = np.asarray(x, float), np.zeros(x.shape[1])
    for _ in range(30):
        p = 1 / (1 + np.exp(-x @ w))
        information = x.T @ (x * (p * (1 - p))[:, None]) + np.eye(len(w))
        w = w + np.linalg.solve(information, x.T @ (y - p) - w)
    return w, np.linalg.inv(information)
