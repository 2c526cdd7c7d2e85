"""Models by name, from outliers and a measurement error to a quantile regression."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from case import Case, case
from numpyro.distributions.transforms import OrderedTransform

points, weights = np.polynomial.hermite_e.hermegauss(9)
POINTS, WEIGHTS = tuple(points.tolist()), tuple((weights / weights.sum()).tolist())


def line(x, intercept=2.0, slope=1.0):
    """The linear predictor of most models here."""
    a = numpyro.sample("a", dist.Normal(0, intercept))
    b = numpyro.sample("b", dist.Normal(0, slope).expand([x.shape[-1]]).to_event(1))
    return a + x @ b


def inputs(rng, size):
    """A rate of one in three, a standardised number, and a share."""
    columns = rng.random(size) < 1 / 3, rng.normal(size=size), rng.uniform(-1, 1, size)
    return np.stack(columns, axis=1).astype(np.float32)


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


# --- outliers


def two_scales(x, y):
    """As textbooks write it: nothing tells the scales apart."""
    mean = line(x)
    share = numpyro.sample("share", dist.Dirichlet(jnp.array([9.0, 1.0])))
    sigma = numpyro.sample("sigma", dist.HalfNormal(5).expand([2]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        parts = dist.Normal(mean[:, None], sigma)
        numpyro.sample("y", dist.MixtureSameFamily(dist.Categorical(share), parts), obs=y)


def contaminated(rng):
    """One answer in twelve has an error six times as wide."""
    x = inputs(rng, 6_000)
    sd = np.where(rng.random(6_000) < 1 / 12, 6.0, 1.0)
    y = 0.5 + x @ [0.7, -0.4, 0.9] + sd * rng.normal(size=6_000)
    return x, y.astype(np.float32)


@case("outliers, a mixture of two scales about one mean")
def heavy_tails(rng):
    def model(x, y):
        mean = line(x)
        sigma = numpyro.sample("sigma", dist.HalfNormal(2))
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("y", dist.StudentT(4, mean, sigma), obs=y)

    return Case(model, contaminated(rng), refused=two_scales)


@case("outliers, a mixture of two scales about one mean")
def scales_told_apart(rng):
    def model(x, y):
        mean = line(x)
        share = numpyro.sample("share", dist.Dirichlet(jnp.array([9.0, 1.0])))
        scales = dist.LogNormal(jnp.array([0.0, 1.8]), 0.25).to_event(1)
        sigma = numpyro.sample("sigma", scales)
        with numpyro.plate("people", x.shape[0]):
            parts = dist.Normal(mean[:, None], sigma)
            numpyro.sample("y", dist.MixtureSameFamily(dist.Categorical(share), parts), obs=y)

    return Case(model, contaminated(rng), refused=two_scales)


# --- measurement error

ERROR = 0.6  # of the instrument, as its maker says


def true_value(measured):
    """Given what was measured: middle and sd of the true value, whose law is learned."""
    m = numpyro.sample("m", dist.Normal(0, 1))
    s = numpyro.sample("s", dist.HalfNormal(1))
    v = s**2 + ERROR**2
    return m, v, m + s**2 / v * (measured - m), s * ERROR / jnp.sqrt(v)


@case("measurement error")
def error_in_a_line(rng):
    def latent(measured, y):
        m = numpyro.sample("m", dist.Normal(0, 1))
        s = numpyro.sample("s", dist.HalfNormal(1))
        a = numpyro.sample("a", dist.Normal(0, 2))
        b = numpyro.sample("b", dist.Normal(0, 1))
        sigma = numpyro.sample("sigma", dist.HalfNormal(1))
        with numpyro.plate("people", y.shape[0]):
            x = numpyro.sample("x", dist.Normal(m, s))
            numpyro.sample("measured", dist.Normal(x, ERROR), obs=measured)
            numpyro.sample("y", dist.Normal(a + b * x, sigma), obs=y)

    def model(measured, y):
        m, v, middle, sd = true_value(measured)
        a = numpyro.sample("a", dist.Normal(0, 2))
        b = numpyro.sample("b", dist.Normal(0, 1))
        sigma = numpyro.sample("sigma", dist.HalfNormal(1))
        with numpyro.plate("people", y.shape[0]):
            numpyro.sample("measured", dist.Normal(m, jnp.sqrt(v)), obs=measured)
            spread = jnp.sqrt(sigma**2 + (b * sd) ** 2)
            numpyro.sample("y", dist.Normal(a + b * middle, spread), obs=y)

    x = 0.4 + rng.normal(size=6_000)
    measured = (x + ERROR * rng.normal(size=6_000)).astype(np.float32)
    y = (1.0 + 0.7 * x + 0.8 * rng.normal(size=6_000)).astype(np.float32)
    return Case(model, (measured, y), refused=latent)


@case("measurement error")
def error_beside_a_yes(rng):
    def latent(measured, y):
        m = numpyro.sample("m", dist.Normal(0, 1))
        s = numpyro.sample("s", dist.HalfNormal(1))
        a = numpyro.sample("a", dist.Normal(0, 1.5))
        b = numpyro.sample("b", dist.Normal(0, 1))
        with numpyro.plate("people", y.shape[0]):
            x = numpyro.sample("x", dist.Normal(m, s))
            numpyro.sample("measured", dist.Normal(x, ERROR), obs=measured)
            numpyro.sample("y", dist.Bernoulli(logits=a + b * x), obs=y)

    def model(measured, y):
        m, v, middle, sd = true_value(measured)
        a = numpyro.sample("a", dist.Normal(0, 1.5))
        b = numpyro.sample("b", dist.Normal(0, 1))
        with numpyro.plate("people", y.shape[0]):
            numpyro.sample("measured", dist.Normal(m, jnp.sqrt(v)), obs=measured)
            z = middle[:, None] + sd * jnp.array(POINTS)
            chance = (jax.nn.sigmoid(a + b * z) * jnp.array(WEIGHTS)).sum(-1)
            numpyro.sample("y", dist.Bernoulli(chance), obs=y)

    x = 0.4 + rng.normal(size=8_000)
    measured = (x + ERROR * rng.normal(size=8_000)).astype(np.float32)
    y = (rng.random(8_000) < sigmoid(-0.6 + 0.8 * x)).astype(np.int32)
    return Case(model, (measured, y), refused=latent)


@case("missing inputs")
def an_input_with_gaps(rng):
    """Three in ten did not say; another input is known of all."""

    def imputed(z, x, y):
        mean = line(z)
        slope, mu = (numpyro.sample(name, dist.Normal(0, 1)) for name in ("slope", "mu"))
        sigma, tau = (numpyro.sample(name, dist.HalfNormal(1)) for name in ("sigma", "tau"))
        known = ~jnp.isnan(x)
        with numpyro.plate("people", y.shape[0]):
            hidden = numpyro.sample("hidden", dist.Normal(mu, tau))
            with numpyro.handlers.mask(mask=known):
                numpyro.sample("x", dist.Normal(mu, tau), obs=jnp.where(known, x, 0))
            full = jnp.where(known, x, hidden)
            numpyro.sample("y", dist.Normal(mean + slope * full, sigma), obs=y)

    def model(z, x, y):
        mean = line(z)
        slope, mu = (numpyro.sample(name, dist.Normal(0, 1)) for name in ("slope", "mu"))
        sigma, tau = (numpyro.sample(name, dist.HalfNormal(1)) for name in ("sigma", "tau"))
        known = ~jnp.isnan(x)
        shown = jnp.where(known, x, 0)
        with numpyro.plate("people", y.shape[0]):
            with numpyro.handlers.mask(mask=known):
                numpyro.sample("x", dist.Normal(mu, tau), obs=shown)
            spread = jnp.sqrt(sigma**2 + jnp.where(known, 0, (slope * tau) ** 2))
            middle = mean + slope * jnp.where(known, shown, mu)
            numpyro.sample("y", dist.Normal(middle, spread), obs=y)

    z = rng.uniform(-1, 1, (6_000, 1)).astype(np.float32)
    x = 0.3 + 0.8 * rng.normal(size=6_000)
    y = 1.0 + 0.5 * z[:, 0] + 0.6 * x + 0.9 * rng.normal(size=6_000)
    x = np.where(rng.random(6_000) < 0.3, np.nan, x)
    return Case(model, (z, x.astype(np.float32), y.astype(np.float32)), refused=imputed)


# --- mixtures


def alike(components):
    """As textbooks write it: one prior of all centres, whose labels may be exchanged."""

    def model(y):
        share = numpyro.sample("share", dist.Dirichlet(jnp.ones(components)))
        centre = numpyro.sample("centre", dist.Normal(0, 3).expand([components]).to_event(1))
        sigma = numpyro.sample("sigma", dist.HalfNormal(1))
        with numpyro.plate("people", y.shape[0]):
            parts = dist.Normal(centre, sigma)
            numpyro.sample("y", dist.MixtureSameFamily(dist.Categorical(share), parts), obs=y)

    return model


def named(centres, sd):
    """Narrow priors about centres of their own."""

    def model(y):
        share = numpyro.sample("share", dist.Dirichlet(5 * jnp.ones(len(centres))))
        centre = numpyro.sample("centre", dist.Normal(jnp.array(centres), sd).to_event(1))
        sigma = numpyro.sample("sigma", dist.LogNormal(-0.7, 0.25))
        with numpyro.plate("people", y.shape[0]):
            parts = dist.Normal(centre, sigma)
            numpyro.sample("y", dist.MixtureSameFamily(dist.Categorical(share), parts), obs=y)

    return model


@case("mixture")
def two_kinds(rng):
    low = rng.random(5_000) < 0.4
    y = np.where(low, -1.2, 1.8) + 0.5 * rng.normal(size=5_000)
    return Case(named((-1.0, 2.0), 0.5), (y.astype(np.float32),), refused=alike(2))


@case("mixture")
def three_kinds(rng):
    kind = rng.choice(3, 8_000, p=[0.3, 0.5, 0.2])
    y = np.array([-2.3, 0.2, 2.6])[kind] + 0.5 * rng.normal(size=8_000)
    return Case(named((-2.5, 0.0, 2.5), 0.5), (y.astype(np.float32),), refused=alike(3))


# --- of several answers


def three_choices(rng):
    x = inputs(rng, 6_000)
    logits = np.array([0.0, 0.4, -0.3]) + x @ [[0, 0.6, -0.5], [0, -0.4, 0.3], [0, 0.5, 0.8]]
    return x, (logits + rng.gumbel(size=logits.shape)).argmax(1).astype(np.int32)


@case("multinomial logit")
def one_class_fixed(rng):
    def model(x, y):
        a = numpyro.sample("a", dist.Normal(0, 1.5).expand([2]).to_event(1))
        w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1], 2]).to_event(2))
        with numpyro.plate("people", x.shape[0]):
            logits = jnp.pad(a + x @ w, ((0, 0), (1, 0)))
            numpyro.sample("y", dist.Categorical(logits=logits), obs=y)

    return Case(model, three_choices(rng))


@case("multinomial logit")
def all_classes_free(rng):
    def model(x, y):
        a = numpyro.sample("a", dist.Normal(0, 1.5).expand([3]).to_event(1))
        w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1], 3]).to_event(2))
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("y", dist.Categorical(logits=a + x @ w), obs=y)

    return Case(model, three_choices(rng))


@case("ordinal answers")
def five_answers(rng):
    def model(x, rating):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
        steps = dist.Normal(0, 1).expand([4]).to_event(1)
        cuts = numpyro.sample("cuts", dist.TransformedDistribution(steps, OrderedTransform()))
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("rating", dist.OrderedLogistic(x @ w, cuts - 3.0), obs=rating)

    x = inputs(rng, 6_000)
    felt = x @ [0.5, -0.3, 0.8] + rng.logistic(size=6_000)
    rating = np.searchsorted([-3.0, -1.8, -0.6, 1.0], felt)
    return Case(model, (x, rating.astype(np.int32)))


# --- counts


@case("negative binomial")
def visits(rng):
    def model(x, y):
        mean = jnp.exp(line(x, intercept=1.0))
        dispersion = numpyro.sample("dispersion", dist.LogNormal(0, 1))
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("y", dist.NegativeBinomial2(mean, dispersion), obs=y)

    x = inputs(rng, 6_000)
    mean = np.exp(0.6 + x @ [0.4, 0.2, -0.5])
    y = rng.poisson(mean * rng.gamma(1.5, 1 / 1.5, 6_000))
    return Case(model, (x, y.astype(np.int32)))


@case("Poisson with exposure")
def claims(rng):
    def model(x, exposure, y):
        mean = exposure * jnp.exp(line(x, intercept=1.0))
        with numpyro.plate("policies", x.shape[0]):
            numpyro.sample("y", dist.Poisson(mean), obs=y)

    x = inputs(rng, 8_000)
    exposure = rng.uniform(1 / 12, 1, 8_000).astype(np.float32)
    y = rng.poisson(exposure * np.exp(-0.9 + x @ [0.6, 0.2, -0.5]))
    return Case(model, (x, exposure, y.astype(np.int32)))


# --- prevalence

SENSITIVITY, SPECIFICITY = 0.9, 0.95


def all_three(positive):
    """As textbooks write it, with what trials of the test found in priors."""
    prevalence = numpyro.sample("prevalence", dist.Beta(1, 1))
    sensitivity = numpyro.sample("sensitivity", dist.Beta(90, 10))
    specificity = numpyro.sample("specificity", dist.Beta(190, 10))
    with numpyro.plate("people", positive.shape[0]):
        p = prevalence * sensitivity + (1 - prevalence) * (1 - specificity)
        numpyro.sample("positive", dist.Bernoulli(p), obs=positive)


def tested(rng):
    ill = rng.random(5_000) < 0.2
    chance = np.where(ill, SENSITIVITY, 1 - SPECIFICITY)
    return ((rng.random(5_000) < chance).astype(np.int32),)


@case("prevalence by an imperfect test")
def fixed_at_public_numbers(rng):
    def model(positive):
        prevalence = numpyro.sample("prevalence", dist.Beta(1, 1))
        with numpyro.plate("people", positive.shape[0]):
            p = prevalence * SENSITIVITY + (1 - prevalence) * (1 - SPECIFICITY)
            numpyro.sample("positive", dist.Bernoulli(p), obs=positive)

    return Case(model, tested(rng), refused=all_three)


@case("prevalence by an imperfect test")
def share_of_positives(rng):
    def model(positive):
        p = numpyro.sample("p", dist.Beta(1, 1))
        with numpyro.plate("people", positive.shape[0]):
            numpyro.sample("positive", dist.Bernoulli(p), obs=positive)

    return Case(model, tested(rng), refused=all_three)


@case("quantile regression")
def median(rng):
    def model(x, y):
        middle = line(x)
        scale = numpyro.sample("scale", dist.HalfNormal(2))
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("y", dist.Laplace(middle, scale), obs=y)

    x = inputs(rng, 6_000)
    y = 1.0 + x @ [0.7, -0.4, 0.9] + rng.standard_t(4, 6_000)
    return Case(model, (x, y.astype(np.float32)))
