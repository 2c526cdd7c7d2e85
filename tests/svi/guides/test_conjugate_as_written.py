"""Conjugate models as NumPyro's pages write them, and what is said of those that are none."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.infer.autoguide import AutoNormal

import numpyro_dp as ndp

COMPONENTS = 2
RNG = np.random.default_rng(0)
CENTRES = np.array([[-1.0, -1.0], [1.0, 1.0]])
POINTS = np.concatenate([RNG.normal(at, 0.3, (200, 2)) for at in CENTRES]).astype(np.float32)
INPUTS = RNG.normal(size=(200, 2)).astype(np.float32)
LINEAR = (INPUTS @ np.array([1.0, -1.0]) + RNG.normal(size=200)).astype(np.float32)
COUNTS = RNG.poisson(2.0, size=200)


def run(model, *records, **options):
    guide = ndp.guides.ConjugateGuide(model, **options)
    vips = ndp.VIPS(model, guide, noise_multiplier=0.1)
    return vips.run(jax.random.key(0), None, *records, progress_bar=False).params


def mixture(scale="known", dims=(2,)):
    """The mixture of NumPyro's pages: a plate of components, a category for each record."""

    def model(x):
        weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(COMPONENTS)))
        with numpyro.plate("components", COMPONENTS):
            mu = numpyro.sample("mu", dist.Normal(0, 2).expand(dims).to_event(len(dims)))
            if scale == "by component":
                variance = numpyro.sample("variance", dist.InverseGamma(2.0, 0.2))
                sd = jnp.sqrt(variance)[(..., *[None] * len(dims))]
            elif scale == "by dimension":
                variance = numpyro.sample(
                    "variance", dist.InverseGamma(2.0, 0.2).expand(dims).to_event(len(dims))
                )
                sd = jnp.sqrt(variance)
            else:
                sd = jnp.full((COMPONENTS, *dims), 0.3)
        with numpyro.plate("data", x.shape[0]):
            z = numpyro.sample("z", dist.Categorical(weights))
            numpyro.sample("x", dist.Normal(mu[z], sd[z]).to_event(len(dims)), obs=x)

    return model


@pytest.mark.slow
@pytest.mark.parametrize(
    "start",
    [CENTRES, {"mu": CENTRES}, CENTRES[:, :1], {"mu": CENTRES[:, :1]}],
    ids=["array", "by name", "column", "column by name"],
)
def test_a_mixture_starts_where_it_is_told(start):
    found = run(mixture(), POINTS, row_norm=3.0, init_loc=start)
    np.testing.assert_allclose(found["mu_loc"], CENTRES, atol=0.15)


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["by component", "by dimension"])
def test_mixtures_in_a_plate_of_components_are_taken(scale):
    found = run(mixture(scale), POINTS, row_norm=3.0, init_loc={"mu": CENTRES})
    np.testing.assert_allclose(found["mu_loc"], CENTRES, atol=0.15)
    variance = found["variance_rate"] / (found["variance_concentration"] - 1)
    assert variance.shape == ((2,) if scale == "by component" else (2, 2))
    np.testing.assert_allclose(variance, 0.09, atol=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("start", [CENTRES[:, 0], {"mu": CENTRES[:, 0]}], ids=["array", "by name"])
def test_a_mixture_of_numbers_is_taken(start):
    found = run(mixture(dims=()), POINTS[:, 0], row_norm=3.0, init_loc=start)
    np.testing.assert_allclose(found["mu_loc"], CENTRES[:, 0], atol=0.15)


@pytest.mark.slow
def test_coefficients_in_a_plate_are_taken():
    def model(x, y):
        with numpyro.plate("inputs", 2):
            w = numpyro.sample("w", dist.Normal(0, 1))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    guide = ndp.guides.ConjugateGuide(model, row_norm=3.0, outcome_bound=5.0)
    vips = ndp.VIPS(model, guide, noise_multiplier=0.5)
    result = vips.run(jax.random.key(0), None, INPUTS, LINEAR, progress_bar=False)
    assert result.get_samples(jax.random.key(1), num_samples=5)["w"].shape == (5, 2)


@pytest.mark.parametrize(
    ("start", "words"),
    [
        ({"m": CENTRES}, r"names `m`.*`mu`: give init_loc=\{'mu': array\}"),
        ({"mu": np.ones((3, 2))}, r"shape \(3, 2\).*shape \(2, 2\) of `mu`"),
        (np.ones((3, 2)), r"shape \(3, 2\).*shape \(2, 2\) \(components, dimensions\)"),
    ],
)
def test_a_start_that_does_not_fit_is_refused_by_its_shape(start, words):
    with pytest.raises(ValueError, match=words):
        run(mixture(), POINTS, row_norm=3.0, init_loc=start)


def regression(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    sd = numpyro.sample("sd", dist.HalfNormal(1.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, sd), obs=y)


def by_its_variance(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    variance = numpyro.sample("variance", dist.InverseGamma(2, 1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, jnp.sqrt(variance)), obs=y)


def test_a_half_normal_scale_is_told_of_the_variance():
    bounds = {"row_norm": 3.0, "outcome_bound": 5.0}
    with pytest.raises(ndp.UnsupportedModelError, match="InverseGamma prior on the variance") as no:
        run(regression, INPUTS, LINEAR, **bounds)
    for said in ('numpyro.sample("variance", dist.InverseGamma(2, 1))', "jnp.sqrt(variance)"):
        assert said in str(no.value)
    found = run(by_its_variance, INPUTS, LINEAR, **bounds)
    assert 0.5 < found["variance_rate"] / found["variance_concentration"] < 2


def poisson_regression(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(x @ w)), obs=y)


def log_rate(x, y):
    level = numpyro.sample("level", dist.Normal(0, 1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(level)), obs=y)


@pytest.mark.parametrize("model", [poisson_regression, log_rate])
def test_a_regressions_weight_is_never_given_a_gamma_prior(model):
    with pytest.raises(ndp.UnsupportedModelError, match="`DPSVI` any model") as caught:
        run(model, INPUTS, COUNTS, max_count=10.0)
    assert "give it a Gamma" not in str(caught.value)


@pytest.mark.slow
def test_a_rate_that_is_a_latent_itself_is_given_one():
    def model(y):
        rate = numpyro.sample("rate", dist.InverseGamma(2.0, 1.0))
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Poisson(rate), obs=y)

    def mended(y):
        rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Poisson(rate), obs=y)

    with pytest.raises(ndp.UnsupportedModelError, match=r"`rate`.*give it a Gamma prior"):
        run(model, COUNTS, max_count=10.0)
    run(mended, COUNTS, max_count=10.0)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["VIPS", "DPSVI"])
def test_trials_that_are_held_as_floats_are_trials(method):
    """NumPyro checks parameters where it sees values, and made-up trials are no whole numbers."""

    def model(x, trials, y):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Binomial(trials, logits=x @ w), obs=y)

    trials = np.full(200, 12, np.float32)
    records = INPUTS, trials, np.minimum(COUNTS, 12).astype(np.float32)
    if method == "VIPS":
        guide = ndp.guides.PolyaGammaGuide(model, row_norm=3.0, max_trials=12)
        svi = ndp.VIPS(model, guide, noise_multiplier=1.0)
        svi.run(jax.random.key(0), None, *records, progress_bar=False)
    else:
        svi = ndp.DPSVI(
            model, AutoNormal(model), optax.sgd(1e-3), clip_norm=1.0, noise_multiplier=1
        )
        svi.run(jax.random.key(0), 2, *records, progress_bar=False)
