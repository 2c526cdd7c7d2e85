"""Rows of *What DPNUTS gets wrong* and of pages that warn: models that are taken, and lie off.

Some lie off for what the model leaves out of the records, and some for how it is written.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from a_to_g import series
from case import Case, case

N = 6_000


def columns(rng, number=3):
    return rng.normal(size=(N, number)).astype(np.float32)


def coefficients(number, sd=1.0):
    a = numpyro.sample("a", dist.Normal(0, 2))
    return a, numpyro.sample("b", dist.Normal(0, sd).expand([number]).to_event(1))


def regression(x, y):
    a, b = coefficients(x.shape[1])
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    with numpyro.plate("people", len(x)):
        numpyro.sample("y", dist.Normal(a + x @ b, sigma), obs=y)


@case("outcomes whose spread grows with their mean")
def rents(rng):
    """Rents with an error of 18 %, under a normal law of one spread."""
    x = columns(rng)
    y = np.exp(0.8 + x @ [0.4, 0.2, -0.2] + 0.18 * rng.normal(size=N))
    return Case(regression, (x, y.astype(np.float32)))


@case("shape and intercept of a Gamma on log-normal costs")
def gamma_on_costs(rng):
    def model(x, y):
        a, b = coefficients(3)
        shape = numpyro.sample("shape", dist.LogNormal(0, 1))
        with numpyro.plate("people", len(x)):
            numpyro.sample("y", dist.Gamma(shape, shape / jnp.exp(a + x @ b)), obs=y)

    x = columns(rng)
    y = np.exp(0.5 + x @ [0.3, -0.2, 0.1] + 0.8 * rng.normal(size=N))
    return Case(model, (x, y.astype(np.float32)))


def robust(x, y):
    a, b = coefficients(3)
    sigma = numpyro.sample("sigma", dist.HalfNormal(2))
    df = numpyro.sample("df", dist.Gamma(2, 0.1))
    with numpyro.plate("people", len(x)):
        numpyro.sample("y", dist.StudentT(df, a + x @ b, sigma), obs=y)


@case("degrees of freedom that are learned")
def degrees(rng):
    x = columns(rng)
    y = x @ [0.5, -0.3, 0.2] + rng.standard_t(5, N)
    return Case(robust, (x, y.astype(np.float32)))


@case("degrees of freedom that are learned")
def degrees_of_errors(rng):
    """Normal outcomes, of which two in a hundred are typed with a digit too many."""
    x = columns(rng)
    y = 1 + x @ [0.5, -0.3, 0.2] + rng.normal(size=N)
    y[rng.random(N) < 0.02] *= 10
    return Case(robust, (x, y.astype(np.float32)))


def typed(rng, share):
    x = columns(rng)
    y = 1 + x @ [0.3, -0.2, 0.1] + 0.5 * rng.normal(size=N)
    wrong = rng.random(N) < share
    y[wrong] += 4 * rng.choice([-1, 1], wrong.sum())
    return Case(regression, (x, y.astype(np.float32)))


@case("typing errors under a normal law")
def one_in_a_hundred(rng):
    return typed(rng, 0.01)


@case("typing errors under a normal law")
def two_in_a_hundred(rng):
    return typed(rng, 0.02)


@case("instrumental variables, the logarithm taken in the model")
def instrument_of_logs(rng):
    def model(z, t, y):
        a, b = coefficients(2)
        first = numpyro.sample("first", dist.Normal(0, 1).expand([2]).to_event(1))
        spread = numpyro.sample("spread", dist.HalfNormal(1).expand([2]).to_event(1))
        corr = numpyro.sample("corr", dist.LKJCholesky(2, 2.0))
        with numpyro.plate("people", len(z)):
            logs = jnp.log(t)
            mean = jnp.stack([a + b[0] * logs, first[0] + first[1] * z], -1)
            law = dist.MultivariateNormal(mean, scale_tril=spread[:, None] * corr)
            numpyro.sample("both", law, obs=jnp.stack([y, logs], -1))

    z = rng.normal(size=N)
    hidden = rng.normal(size=N)
    logs = 0.6 * z + 0.6 * hidden + 0.5 * rng.normal(size=N)
    y = 0.3 + 0.5 * logs + 0.5 * hidden + 0.5 * rng.normal(size=N)
    return Case(model, tuple(np.float32(part) for part in (z, np.exp(logs), y)))


@case("columns that say the same")
def one_column_twice(rng):
    x = columns(rng, 50)
    x[:, 49] = x[:, 0]
    y = x @ rng.normal(0, 0.3, 50) + rng.normal(size=N)
    return Case(regression, (x, y.astype(np.float32)))


@case("columns that say the same")
def all_levels(rng):
    """All levels of two factors of twenty as columns, beside an intercept."""

    def model(x, y):
        a, b = coefficients(40)
        with numpyro.plate("people", len(x)):
            numpyro.sample("y", dist.Bernoulli(logits=a + x @ b), obs=y)

    one, two = rng.integers(0, 20, (2, N))
    x = np.concatenate([np.eye(20)[one], np.eye(20)[two]], axis=1).astype(np.float32)
    chance = 1 / (1 + np.exp(-x @ rng.normal(0, 0.5, 40)))
    return Case(model, (x, (rng.random(N) < chance).astype(np.int32)))


def lifetimes(rng, x):
    return np.exp(3.2 + x @ [-0.4, -0.5]) * rng.weibull(1.4, N)


def arms(rng):
    return np.stack([rng.random(N) < 0.5, rng.uniform(-1, 1, N)], axis=1).astype(np.float32)


@case("periods at risk as an argument")
def at_risk(rng):
    def model(x, seen, event):
        a = numpyro.sample("a", dist.Normal(-1.5, 1).expand([8]).to_event(1))
        b = numpyro.sample("b", dist.Normal(0, 1).expand([2]).to_event(1))
        with numpyro.plate("patients", len(x)):
            law = dist.Bernoulli(logits=a + (x @ b)[:, None]).mask(seen).to_event(1)
            numpyro.sample("event", law, obs=event)

    x = arms(rng)
    times, last = lifetimes(rng, x), np.minimum(rng.exponential(40, N), 48)
    period = (np.minimum(times, last) // 6).astype(int)
    seen = np.arange(8) <= period[:, None]
    event = (np.arange(8) == period[:, None]) & (times <= last)[:, None]
    return Case(model, (x, seen, event.astype(np.int32)))


@case("a regression of a quantile")
def quantile(rng):
    def model(x, y):
        a, b = coefficients(3)
        sigma = numpyro.sample("sigma", dist.HalfNormal(1))
        with numpyro.plate("people", len(x)):
            numpyro.sample("y", dist.AsymmetricLaplaceQuantile(a + x @ b, sigma, 0.9), obs=y)

    x = columns(rng)
    y = x @ [0.5, -0.3, 0.2] + rng.normal(size=N)
    return Case(model, (x, y.astype(np.float32)))


@case("a slope in place of a step")
def change(rng):
    def model(day, y):
        t = numpyro.sample("t", dist.Normal(180, 40))
        a = numpyro.sample("a", dist.Normal(0, 2).expand([2]).to_event(1))
        sigma = numpyro.sample("sigma", dist.HalfNormal(1))
        with numpyro.plate("days", len(day)):
            mean = a[0] + a[1] * jax.nn.sigmoid((day - t) / 5)
            numpyro.sample("y", dist.Normal(mean, sigma), obs=y)

    day = rng.integers(0, 365, N)
    y = 0.5 + 0.8 * (day > 200) + rng.normal(size=N)
    return Case(model, (day.astype(np.float32), y.astype(np.float32)))


@case("weights that are far apart")
def weights(rng):
    """The outcome hangs on the weight, which no input tells."""

    def model(x, weight, y):
        a, b = coefficients(2)
        with numpyro.plate("people", len(x)), numpyro.handlers.scale(scale=weight):
            numpyro.sample("y", dist.Bernoulli(logits=a + x @ b), obs=y)

    x = columns(rng, 2)
    weight = np.exp(0.8 * rng.normal(size=N) - 0.32)
    chance = 1 / (1 + np.exp(0.5 - x @ [0.5, -0.3] - 0.5 * np.log(weight)))
    y = (rng.random(N) < chance).astype(np.int32)
    return Case(model, (x, weight.astype(np.float32), y))


@case("a second outcome that is missing where the first says so")
def cigarettes(rng):
    def model(smokes, number):
        a, b = coefficients(1)
        sigma = numpyro.sample("sigma", dist.HalfNormal(1))
        known = ~jnp.isnan(number)
        with numpyro.plate("people", len(smokes)):
            numpyro.sample("smokes", dist.Bernoulli(logits=a), obs=smokes)
            with numpyro.handlers.mask(mask=known):
                shown = jnp.where(known, number, 0)
                numpyro.sample("number", dist.Normal(b[0], sigma), obs=shown)

    smokes = rng.random(N) < 0.25
    number = np.where(smokes, 1 + 0.5 * rng.normal(size=N), np.nan)
    return Case(model, (smokes.astype(np.int32), number.astype(np.float32)))


@case("a law of how people are lost that does not know the end")
def no_end(rng):
    class Followed(dist.Distribution):
        """Months followed, and whether the event ended them."""

        support = dist.constraints.real_vector

        def __init__(self, scale, power, rate):
            self.scale, self.power, self.rate = jnp.broadcast_arrays(scale, power, rate)
            super().__init__(self.scale.shape, (2,))

        def sample(self, key, sample_shape=()):
            event, lost = jax.random.exponential(key, (2, *sample_shape, *self.batch_shape))
            event, lost = self.scale * event ** (1 / self.power), lost / self.rate
            return jnp.stack([jnp.minimum(event, lost), event <= lost], axis=-1)

        def log_prob(self, value):
            months, event = value[..., 0], value[..., 1]
            total = (months / self.scale) ** self.power
            ended = jnp.where(event == 1, jnp.log(self.power * total / months), jnp.log(self.rate))
            return ended - total - self.rate * months

    def model(x, seen):
        a = numpyro.sample("a", dist.Normal(3, 1))
        b = numpyro.sample("b", dist.Normal(0, 1).expand([2]).to_event(1))
        power = numpyro.sample("power", dist.LogNormal(0, 0.5))
        rate = numpyro.sample("rate", dist.LogNormal(-3.5, 1))
        with numpyro.plate("patients", len(x)):
            numpyro.sample("seen", Followed(jnp.exp(a + x @ b), power, rate), obs=seen)

    x = arms(rng)
    times = lifetimes(rng, x)
    seen = np.stack([np.minimum(times, 30), times <= 30], axis=1)
    return Case(model, (x, seen.astype(np.float32)))


@case("rows of a person pooled")
def pooled(rng):
    def model(month, pressure):
        a = numpyro.sample("a", dist.Normal(2, 2))
        b = numpyro.sample("b", dist.Normal(0, 1))
        sigma = numpyro.sample("sigma", dist.HalfNormal(2))
        with numpyro.plate("people", len(month), dim=-2), numpyro.plate("visits", 5, dim=-1):
            numpyro.sample("pressure", dist.Normal(a + b * month, sigma), obs=pressure)

    month = rng.uniform(-1, 1, (3_000, 5))
    pressure = 2 + 0.3 * month + rng.normal(size=(3_000, 1)) + 0.5 * rng.normal(size=(3_000, 5))
    records = (month.astype(np.float32), pressure.astype(np.float32))
    return Case(model, records, options={"data_plate": "people"})


@case("a lag of a series far from nought beside a constant")
def lag_beside_a_constant(rng):
    def model(y):
        a, c = numpyro.sample("a", dist.Normal(0, 1)), numpyro.sample("c", dist.Normal(0, 50))
        s = numpyro.sample("s", dist.HalfNormal(2))
        with numpyro.plate("people", y.shape[0]):
            law = dist.Normal(c + a * y[:, :-1], s).to_event(1)
            numpyro.sample("y", law, obs=y[:, 1:])

    return Case(model, (series(rng, 3_000, 8, 50.0),))
