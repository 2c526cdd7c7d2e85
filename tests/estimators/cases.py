"""Small generalised linear models, and their estimators' plans without data."""

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

from numpyro_dp.families.hinge import HuberHinge
from numpyro_dp.model.private_model import private_model


def logistic(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[-1]]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def binomial(x, n, y=None):
    w = numpyro.sample("w", dist.Normal(0.3, 2).expand([x.shape[-1]]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Binomial(n, logits=x @ w), obs=y)


def poisson(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 0.5).expand([x.shape[-1]]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(x @ w + 0.2)), obs=y)


def normal(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 3).expand([x.shape[-1]]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, 2.0), obs=y)


def margin(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[-1]]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", HuberHinge(x @ w, 0.4), obs=y)


# name -> (model, further arguments of an estimator)
MODELS = {
    "logistic": (logistic, {}),
    "binomial": (binomial, {"max_trials": 3}),
    "poisson": (poisson, {"predictor_bounds": (-2.0, 1.0), "max_count": 5.0}),
    "normal": (normal, {"huber": 1.3}),
    "hinge": (margin, {}),
}


def arguments(name, x, y):
    """Arguments of the named model for rows ``x`` and outcomes ``y``."""
    return (x, jnp.full(len(x), 3), y) if name == "binomial" else (x, y)


def planned(estimator_class, name, x, y, **options):
    """The estimator of the named model, its GLM, its plan and the records."""
    model, needed = MODELS[name]
    estimator = estimator_class(model, **{"row_norm": 1.0, **needed, **options})
    wall = private_model(model, arguments(name, x, y))
    return estimator, *estimator.plan(wall), wall.records(arguments(name, x, y))
