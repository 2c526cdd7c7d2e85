"""ConjugateGuide: models outside every family, and options that make no sense."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import numpyro_dp as ndp
from tests.svi.guides.conjugate import TWO, N, X, Y, bound, coins, scaled_prior, two_normals, visits


def _slow(*case):
    return pytest.param(*case, marks=pytest.mark.slow)


def logit_coins(y):
    p = numpyro.sample("p", dist.Beta(2.0, 1.0))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=jnp.log(p) - jnp.log1p(-p)), obs=y)


def squared_chance(y):
    p = numpyro.sample("p", dist.Beta(2.0, 1.0))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(p**2), obs=y)


def own_rate(t, y):
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.Poisson(rate * t), obs=y)


def lognormal_rate(y):
    rate = numpyro.sample("rate", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.Poisson(rate), obs=y)


def hierarchy(y):
    a = numpyro.sample("a", dist.Gamma(2.0, 1.0))
    p = numpyro.sample("p", dist.Beta(a, 1.0))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(p), obs=y)


def spare(y):
    p = numpyro.sample("p", dist.Beta(2.0, 1.0))
    numpyro.sample("idle", dist.Normal(0, 1))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(p), obs=y)


def curved(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 3).expand([2]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Normal(jnp.tanh(x @ w), 0.5), obs=y)


def half_normal_noise(x, y=None):
    s = numpyro.sample("s", dist.Gamma(2.0, 1.0))
    w = numpyro.sample("w", dist.Normal(0, 3).expand([2]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, s), obs=y)


def weighted(y):
    p = numpyro.sample("p", dist.Beta(2.0, 1.0))
    with numpyro.plate("people", y.shape[0]), numpyro.handlers.scale(scale=2.0):
        numpyro.sample("y", dist.Bernoulli(p), obs=y)


def masked(y):
    p = numpyro.sample("p", dist.Beta(2.0, 1.0))
    with numpyro.plate("people", y.shape[0]), numpyro.handlers.mask(mask=y >= 0):
        numpyro.sample("y", dist.Bernoulli(p), obs=y)


BITS = (np.arange(N) % 2,)


@pytest.mark.parametrize(
    ("model", "data", "words"),
    [
        _slow(logit_coins, BITS, "site `y` is a BernoulliLogits.*PolyaGammaGuide"),
        _slow(squared_chance, BITS, "`probs` of site `y`.*not provably"),
        (own_rate, (np.ones(N, np.float32), *BITS), "`rate` of site `y`.*`t`.*same for every"),
        _slow(lognormal_rate, BITS, "`rate` has a LogNormal prior"),
        _slow(hierarchy, BITS, "`concentration1` of site `p` depends on `a`"),
        _slow(spare, BITS, "latent site `idle` is no parameter"),
        _slow(curved, (X, Y), "linear in the coefficients"),
        _slow(half_normal_noise, (X, Y), "scale of site `y` depends on `s`"),
        _slow(weighted, BITS, "weight"),
        _slow(masked, BITS, "masked"),
    ],
)
def test_models_outside_are_refused_by_site_cause_and_remedy(model, data, words):
    with pytest.raises(ndp.UnsupportedModelError, match=words):
        bound(model, data)


@pytest.mark.slow
def test_bounds_must_be_given_and_make_sense():
    with pytest.raises(ValueError, match="row_norm"):
        ndp.guides.ConjugateGuide(coins, row_norm=-1.0)
    with pytest.raises(ValueError, match="max_count is needed"):
        bound(visits, (np.ones((N, 2), int),), clip_norm=None)


@pytest.mark.slow
def test_widening_is_refused_where_it_is_not_known():
    for model, data in [(scaled_prior, (X, Y)), (two_normals, (TWO,))]:
        with pytest.raises(ValueError, match="noise_aware=True"):
            bound(model, data, noise_aware=True)
