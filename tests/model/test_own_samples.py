"""Censored laws: NumPyro samples them as if they were not, so nobody may ask them what might be."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers

import numpyro_dp as ndp
from numpyro_dp.families.synthetic_records import redrawn
from numpyro_dp.model.private_model import private_model

BUDGET = ndp.Budget(1.0, 1e-5)
KEY, QUIET = jax.random.key(0), {"progress_bar": False}
LAWS = {
    "right": dist.RightCensoredDistribution,
    "left": dist.LeftCensoredDistribution,
    "mixed": lambda law, gone: dist.MixtureGeneral(
        dist.Categorical(np.array([0.5, 0.5])), [dist.RightCensoredDistribution(law, gone), law]
    ),
    "moved": lambda law, gone: dist.TransformedDistribution(
        dist.RightCensoredDistribution(law, gone), dist.transforms.ExpTransform()
    ),
    "masked": lambda law, gone: dist.RightCensoredDistribution(law, gone).mask(gone < 2),
}


def model_of(law):
    def model(gone, t=None):
        scale = numpyro.sample("scale", dist.LogNormal(0, 1))
        with numpyro.plate("N", len(gone)):
            numpyro.sample("t", law(dist.Weibull(scale, 1.5), gone), obs=t)

    return model


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    t, limit = rng.weibull(1.5, 4_000), rng.uniform(0.3, 2.0, 4_000)
    return (t > limit).astype(np.int32), np.minimum(t, limit).astype(np.float32), limit


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_a_release_of_them_is_refused_before_the_charge(data, law):
    accountant, (gone, t, _) = ndp.Accountant(BUDGET), data
    model = model_of(law)
    kernel = ndp.DPNUTS(model, privacy=BUDGET, accountant=accountant)
    with pytest.raises(ndp.UnsupportedModelError, match="a release of scores draws"):
        ndp.MCMC(kernel, num_warmup=10, num_samples=10, **QUIET).run(KEY, gone, t)
    with pytest.raises(ndp.UnsupportedModelError, match="Distribution without censoring") as said:
        kernel.forecast(gone, t)
    # What a plain clip makes of them is far off: it is no remedy.
    assert "a time and a flag" in str(said.value)
    assert "plain" not in str(said.value)
    assert accountant.entries == ()


def test_neither_check_nor_coverage_draws_them(data):
    (gone, t, _), model = data, model_of(LAWS["right"])
    draws = {"scale": np.ones(10, np.float32)}
    with pytest.raises(ndp.UnsupportedModelError, match="private_posterior_predictive_check draws"):
        ndp.private_posterior_predictive_check(KEY, model, draws, gone, t, privacy=BUDGET)
    sgld = partial(ndp.DPSGLD, step_size=1e-5, clip_norm=1.0, noise_multiplier=9.0)
    with pytest.raises(ndp.UnsupportedModelError, match="coverage draws"):
        ndp.coverage(sgld, model, gone, t, num_datasets=2)


def test_kernels_that_draw_no_outcome_take_them(data):
    gone, t, _ = data
    sgld = ndp.DPSGLD(model_of(LAWS["right"]), step_size=1e-5, clip_norm=1.0, noise_multiplier=9.0)
    mcmc = ndp.MCMC(sgld, num_warmup=0, num_samples=2, **QUIET)
    mcmc.run(KEY, gone, t)
    assert mcmc.privacy.epsilon > 0


def ratings(y):
    mean = numpyro.sample("mean", dist.Normal(0, 5))
    with numpyro.plate("N", len(y)):
        numpyro.sample("y", dist.Normal(mean, 1), obs=y)


def two_ratings(y, z):
    mean = numpyro.sample("mean", dist.Normal(0, 5))
    with numpyro.plate("N", len(y)):
        numpyro.sample("y", dist.Normal(mean, 1), obs=y)
        numpyro.sample("z", dist.Normal(mean + 0.5 * y, 1), obs=z)


@pytest.mark.parametrize("number", [np.int32, np.uint8, np.float32])
@pytest.mark.parametrize("model", [ratings, two_ratings])
def test_drawn_outcomes_keep_their_fractions_where_the_records_are_whole(model, number):
    """Cut off, as they were, they lay half a point below: 20 sds of this release.

    By four sds: one in 16,000 by chance.
    """
    rng = np.random.default_rng(0)
    y = np.clip(np.round(rng.normal(3, 1, 4_000)), 1, 5)
    z = np.clip(np.round(3 + 0.5 * y + rng.normal(0, 1, 4_000)), 0, 9)
    outcomes = [each.astype(number) for each in (y, z)][: 1 + (model is two_ratings)]
    release = ndp.LikelihoodRelease(model, privacy=BUDGET, secure=False)
    at = release.run(KEY, *outcomes, **QUIET).located
    assert abs(at.mean[0] - 3.0) < 4 * np.sqrt(at.covariance[0, 0]) + 0.02
    assert np.sqrt(at.covariance[0, 0]) < 0.04


def an_index_beside_a_rating(y, z):
    mean = numpyro.sample("mean", dist.Normal(0, 5))
    level = numpyro.sample("level", dist.Normal(0, 5).expand([6]).to_event(1))
    with numpyro.plate("N", len(y)):
        numpyro.sample("y", dist.Normal(mean, 1), obs=y)
        numpyro.sample("z", dist.Normal(level[y], 1), obs=z)


def test_others_read_a_whole_number_where_records_are_whole():
    """A float in its place is no index."""
    rng = np.random.default_rng(0)
    y = np.clip(np.round(rng.normal(3, 1, 6_000)), 1, 5).astype(np.int32)
    z = (y / 2 + rng.normal(size=6_000)).astype(np.float32)
    release = ndp.LikelihoodRelease(an_index_beside_a_rating, privacy=BUDGET, secure=False)
    at = release.run(KEY, y, z, **QUIET).located
    sds = np.sqrt(np.diag(at.covariance))
    # Levels 2 to 4 of six and the mean by four sds: one in 4,000 by chance.
    assert (np.abs(at.mean - np.r_[np.arange(6) / 2, 3.0]) < 4 * sds + 0.02)[2:5].all()
    assert abs(at.mean[6] - 3.0) < 4 * sds[6] + 0.02


def test_made_up_records_keep_their_fractions_too():
    model = private_model(ratings, (np.zeros(9, np.int32),), {})
    (drawn,) = redrawn(model, {"mean": jnp.asarray(0.5)}, [jnp.zeros(1, jnp.int32)], KEY)
    assert float(drawn[0]) % 1 != 0


def in_two_parts(limit, gone, t):
    """What the refusal says to write."""
    scale = numpyro.sample("scale", dist.LogNormal(0, 1))
    law = dist.Weibull(scale, 1.5)
    with numpyro.plate("N", len(gone)):
        numpyro.sample("gone", dist.Bernoulli(1 - law.cdf(limit)), obs=gone)
        with handlers.mask(mask=gone == 0):
            numpyro.sample("t", Within(law, limit), obs=t)


class Within(dist.Distribution):
    """A Weibull law below a limit."""

    support, pytree_data_fields = dist.constraints.positive, ("law", "limit")

    def __init__(self, law, limit):
        self.law, self.limit = law, limit
        super().__init__(jnp.shape(limit), ())

    def sample(self, key, sample_shape=()):
        u = jax.random.uniform(key, (*sample_shape, *self.batch_shape), minval=1e-6)
        below = -jnp.log1p(-u * self.law.cdf(self.limit))
        return self.law.scale * below ** (1 / self.law.concentration)

    def log_prob(self, value):
        return self.law.log_prob(value) - jnp.log(self.law.cdf(self.limit))


@pytest.mark.slow
def test_the_form_that_the_refusal_names_lies_where_the_posterior_does(data):
    """Four of the release's own sds: one in 16,000 by chance."""
    gone, t, limit = data
    kernel = ndp.DPNUTS(in_two_parts, privacy=ndp.Budget(2.0, 1e-5))
    mcmc = ndp.MCMC(kernel, num_warmup=200, num_samples=300, **QUIET)
    mcmc.run(KEY, limit.astype(np.float32), gone, t)
    draws = mcmc.get_samples()["scale"]
    assert abs(draws.mean() - 1.0) < 4 * draws.std()
    assert draws.std() < 0.1
