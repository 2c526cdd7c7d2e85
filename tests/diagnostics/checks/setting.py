"""One binary model, its draws and its records, and the four checks asked alike."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import numpyro_dp as ndp

SIZE = 400
_RNG = np.random.default_rng(3)
X = np.stack([np.ones(SIZE), _RNG.normal(0, 1, SIZE)], 1).astype(np.float32)
Y = (_RNG.random(SIZE) < 1 / (1 + np.exp(-X @ np.array([0.5, 1.0])))).astype(np.float32)
DRAWS = {"w": _RNG.normal([0.3, 1.2], 0.15, (20, 2)).astype(np.float32)}


def logistic(x, y):
    w = numpyro.sample("w", dist.Normal(0, 3).expand([2]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def mean_of(y):
    mean = numpyro.sample("mean", dist.Normal(0, 10))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 1), obs=y)


def counts(x, y):
    a = numpyro.sample("a", dist.Normal(0, 3))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(a + 0.5 * x)), obs=y)


CHECKS = {
    "density": ndp.private_log_predictive_density,
    "accuracy": ndp.private_accuracy,
    "calibration": ndp.private_calibration_curve,
    "predictive": ndp.private_posterior_predictive_check,
}
OPTIONS = {"density": {}, "accuracy": {}, "calibration": {"bins": 4}, "predictive": {}}


def probabilities(x):
    """Of an outcome of 1, under the posterior predictive law."""
    logits = x.astype(float) @ DRAWS["w"].T.astype(float)
    return np.mean(1 / (1 + np.exp(-logits)), axis=1)
