"""Models by name, from a random walk and robust regression to zero-inflated counts."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from case import Case, case
from m_to_q import POINTS, WEIGHTS, inputs, line, sigmoid
from numpyro.distributions import constraints

# --- a walk over public months

MONTHS = 24


def walked(rng, size):
    """Months of people, and what the walk was in each."""
    month = rng.integers(0, MONTHS, size).astype(np.int32)
    return month, np.cumsum(0.25 * rng.normal(size=MONTHS))[month]


@case("random walk over public months")
def of_a_mean(rng):
    def model(month, y):
        step = numpyro.sample("step", dist.HalfNormal(0.5))
        w = numpyro.sample("w", dist.GaussianRandomWalk(step, MONTHS))
        sigma = numpyro.sample("sigma", dist.HalfNormal(1))
        with numpyro.plate("people", y.shape[0]):
            numpyro.sample("y", dist.Normal(w[month], sigma), obs=y)

    month, level = walked(rng, 6_000)
    return Case(model, (month, (level + rng.normal(size=6_000)).astype(np.float32)))


@case("random walk over public months")
def of_a_chance(rng):
    def model(x, month, y):
        step = numpyro.sample("step", dist.HalfNormal(0.5))
        w = numpyro.sample("w", dist.GaussianRandomWalk(step, MONTHS))
        b = numpyro.sample("b", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=w[month] + x @ b), obs=y)

    x = inputs(rng, 10_000)
    month, level = walked(rng, 10_000)
    y = rng.random(10_000) < sigmoid(level + x @ [0.5, -0.3, 0.7])
    return Case(model, (x, month, y.astype(np.int32)))


@case("robust regression")
def student(rng):
    def model(x, y):
        mean = line(x)
        sigma = numpyro.sample("sigma", dist.HalfNormal(2))
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("y", dist.StudentT(4, mean, sigma), obs=y)

    x = inputs(rng, 5_000)
    y = 1.0 + x @ [0.7, -0.4, 0.9] + rng.standard_t(4, 5_000)
    return Case(model, (x, y.astype(np.float32)))


# --- several rows a person

VISITS = 5


@case("several rows a person, panel")
def effects_as_a_covariance(rng):
    def latent(month, seen, y):
        a, b = numpyro.sample("a", dist.Normal(2, 2)), numpyro.sample("b", dist.Normal(0, 1))
        tau = numpyro.sample("tau", dist.HalfNormal(2))
        sigma = numpyro.sample("sigma", dist.HalfNormal(2))
        with numpyro.plate("patients", y.shape[0]):
            u = numpyro.sample("u", dist.Normal(0, tau))
            law = dist.Normal(a + b * month + u[:, None], sigma).mask(seen).to_event(1)
            numpyro.sample("y", law, obs=y)

    def model(month, seen, y):
        a, b = numpyro.sample("a", dist.Normal(2, 2)), numpyro.sample("b", dist.Normal(0, 1))
        tau = numpyro.sample("tau", dist.HalfNormal(2))  # between people
        sigma = numpyro.sample("sigma", dist.HalfNormal(2))  # between visits of one
        with numpyro.plate("patients", y.shape[0]):
            mean = jnp.where(seen, a + b * month, 0)
            together = tau**2 * seen[:, :, None] * seen[:, None, :]
            alone = jnp.where(seen, sigma**2, 1)[:, :, None] * jnp.eye(VISITS)
            law = dist.MultivariateNormal(mean, covariance_matrix=together + alone)
            numpyro.sample("y", law, obs=jnp.where(seen, y, 0))

    seen = np.arange(VISITS) < rng.integers(1, VISITS + 1, (3_000, 1))
    month = np.broadcast_to(np.arange(VISITS, dtype=np.float32), seen.shape).copy()
    person, visit = rng.normal(0, 1.2, (3_000, 1)), rng.normal(0, 0.8, seen.shape)
    y = np.where(seen, 2 + 0.3 * month + person + visit, 0)
    return Case(model, (month, seen, y.astype(np.float32)), refused=latent)


@case("several rows a person, panel")
def effects_by_quadrature(rng):
    def latent(x, seen, y):
        logits = line(x)
        frailty = numpyro.sample("frailty", dist.HalfNormal(1))
        with numpyro.plate("patients", x.shape[0]):
            u = numpyro.sample("u", dist.Normal(0, frailty))
            law = dist.Bernoulli(logits=logits + u[:, None]).mask(seen).to_event(1)
            numpyro.sample("y", law, obs=y)

    def model(x, seen, y):
        logits = line(x)[:, None, :]
        frailty = numpyro.sample("frailty", dist.HalfNormal(1))
        with numpyro.plate("patients", x.shape[0]):
            logits = logits + frailty * jnp.array(POINTS)[:, None]
            rows = dist.Bernoulli(logits=logits).mask(seen[:, None, :]).to_event(1)
            effect = dist.Categorical(probs=jnp.array(WEIGHTS))
            numpyro.sample("y", dist.MixtureSameFamily(effect, rows), obs=y)

    seen = np.arange(VISITS) < rng.integers(1, VISITS + 1, (4_000, 1))
    age = np.broadcast_to(rng.uniform(-1, 1, (4_000, 1)), seen.shape)
    x = np.stack([age, 0.5 * rng.normal(size=seen.shape)], -1).astype(np.float32)
    risk = sigmoid(-1.0 + x @ [0.7, 0.9] + 0.8 * rng.normal(size=(4_000, 1)))
    y = (rng.random(seen.shape) < risk) & seen
    return Case(model, (x, seen, y.astype(np.int32)), refused=latent)


# --- survival


def weibull_times(rng, size):
    """Two inputs, and months to the event."""
    x = np.stack([rng.random(size) < 0.5, rng.uniform(-1, 1, size)], axis=1)
    return x.astype(np.float32), np.exp(3.2 + x @ [-0.4, -0.5]) * rng.weibull(1.4, size)


def middle(x):
    """Of the logarithms of months."""
    a = numpyro.sample("a", dist.Normal(3, 1))
    b = numpyro.sample("b", dist.Normal(0, 1).expand([2]).to_event(1))
    return a + x @ b


class TruncatedWeibull(dist.Distribution):
    """Times of those who had the event before the limit."""

    arg_constraints = dict.fromkeys(["scale", "power", "limit"], constraints.positive)
    support = constraints.positive

    def __init__(self, scale, power, limit, validate_args=None):
        self.scale, self.power, self.limit = jnp.broadcast_arrays(scale, power, limit)
        super().__init__(self.scale.shape, validate_args=validate_args)

    def before(self):
        return -jnp.expm1(-((self.limit / self.scale) ** self.power))

    def sample(self, key, sample_shape=()):
        u = jax.random.uniform(key, sample_shape + self.batch_shape) * self.before()
        return self.scale * (-jnp.log1p(-u)) ** (1 / self.power)

    def log_prob(self, value):
        return dist.Weibull(self.scale, self.power).log_prob(value) - jnp.log(self.before())


@case("survival, each limit known")
def weibull_and_whether(rng):
    def censored(x, limit, event, months):
        power = numpyro.sample("power", dist.LogNormal(0, 0.5))
        law = dist.Weibull(jnp.exp(middle(x)), power)
        with numpyro.plate("patients", x.shape[0]):
            observed = dist.RightCensoredDistribution(law, censored=event == 0)
            numpyro.sample("months", observed, obs=months)

    def model(x, limit, event, months):
        power = numpyro.sample("power", dist.LogNormal(0, 0.5))
        law = TruncatedWeibull(jnp.exp(middle(x)), power, limit)
        with numpyro.plate("patients", x.shape[0]):
            numpyro.sample("event", dist.Bernoulli(law.before()), obs=event)
            with numpyro.handlers.mask(mask=event == 1):
                numpyro.sample("months", law, obs=months)

    x, times = weibull_times(rng, 6_000)
    limit = rng.uniform(6, 60, 6_000)
    event, months = (times <= limit).astype(np.int32), np.minimum(times, limit)
    limit, months = limit.astype(np.float32), months.astype(np.float32)
    return Case(model, (x, limit, event, months), refused=censored)


@case("survival, each limit known")
def log_normal_and_whether(rng):
    def censored(x, limit, event, time):
        law = dist.Normal(middle(x), numpyro.sample("sigma", dist.HalfNormal(1)))
        with numpyro.plate("patients", x.shape[0]):
            observed = dist.RightCensoredDistribution(law, censored=event == 0)
            numpyro.sample("time", observed, obs=time)

    def model(x, limit, event, time):
        mean = middle(x)
        sigma = numpyro.sample("sigma", dist.HalfNormal(1))
        with numpyro.plate("patients", x.shape[0]):
            share = dist.Normal(mean, sigma).cdf(limit)
            numpyro.sample("event", dist.Bernoulli(share), obs=event)
            with numpyro.handlers.mask(mask=event == 1):
                numpyro.sample("time", dist.TruncatedNormal(mean, sigma, high=limit), obs=time)

    x, _ = weibull_times(rng, 6_000)
    time = 3.0 + x @ [-0.4, -0.5] + 0.8 * rng.normal(size=6_000)
    limit = np.log(rng.uniform(6, 60, 6_000))  # and times: logarithms of months
    event, time = (time <= limit).astype(np.int32), np.minimum(time, limit)
    limit, time = limit.astype(np.float32), time.astype(np.float32)
    return Case(model, (x, limit, event, time), refused=censored)


PERIODS, LENGTH = 8, 6
END = float(PERIODS * LENGTH)  # of the study, in months


def followed(rng, size):
    """Who is lost is lost at a constant rate, and the study ends for all."""
    x, times = weibull_times(rng, size)
    last = np.minimum(rng.exponential(40, size), END)
    return x, np.minimum(times, last).astype(np.float32), times <= last


@case("survival, only a time and a flag")
def in_months(rng):
    def model(x, ended):
        a = numpyro.sample("a", dist.Normal(-1.5, 1).expand([PERIODS]).to_event(1))
        b = numpyro.sample("b", dist.Normal(0, 1).expand([2]).to_event(1))
        lost = numpyro.sample("lost", dist.Normal(-2, 1))
        with numpyro.plate("patients", x.shape[0]):
            event = a + (x @ b)[:, None]
            steps = jnp.stack([event, jnp.broadcast_to(lost, event.shape)], axis=-1)
            steps = steps.reshape(-1, 2 * PERIODS)  # event, loss, event, loss, …
            stays = jnp.cumsum(jax.nn.log_sigmoid(-steps), axis=1)
            until, end = jnp.pad(stays, ((0, 0), (1, 0))), jax.nn.log_sigmoid(steps)
            logits = until + jnp.pad(end, ((0, 0), (0, 1)))  # the last: followed to the end
            numpyro.sample("ended", dist.Categorical(logits=logits), obs=ended)

    x, months, event = followed(rng, 6_000)
    period = (months // LENGTH).astype(np.int32)
    ended = np.where(period < PERIODS, 2 * period + ~event, 2 * PERIODS)
    return Case(model, (x, ended.astype(np.int32)))


class Followed(dist.Distribution):
    """Months followed, and whether the event ended them."""

    arg_constraints = dict.fromkeys(["scale", "power", "rate"], constraints.positive)
    support = constraints.real_vector

    def __init__(self, scale, power, rate, end=jnp.inf, validate_args=None):
        self.scale, self.power, self.rate = jnp.broadcast_arrays(scale, power, rate)
        self.end = end
        super().__init__(self.scale.shape, (2,), validate_args=validate_args)

    def sample(self, key, sample_shape=()):
        event, lost = jax.random.exponential(key, (2, *sample_shape, *self.batch_shape))
        event, lost = self.scale * event ** (1 / self.power), lost / self.rate
        last = jnp.minimum(lost, self.end)
        return jnp.stack([jnp.minimum(event, last), event <= last], axis=-1)

    def log_prob(self, value):
        months, event = value[..., 0], value[..., 1]
        total = (months / self.scale) ** self.power
        ending = jnp.where(months < self.end, jnp.log(self.rate), 0.0)
        ending = jnp.where(event == 1, jnp.log(self.power * total / months), ending)
        return ending - total - self.rate * months


@case("survival, only a time and a flag")
def by_a_law_of_times(rng):
    def censored(x, seen):
        power = numpyro.sample("power", dist.LogNormal(0, 0.5))
        law = dist.Weibull(jnp.exp(middle(x)), power)
        with numpyro.plate("patients", x.shape[0]):
            observed = dist.RightCensoredDistribution(law, censored=seen[:, 1] == 0)
            numpyro.sample("months", observed, obs=seen[:, 0])

    def model(x, seen):
        scale = jnp.exp(middle(x))
        power = numpyro.sample("power", dist.LogNormal(0, 0.5))
        rate = numpyro.sample("rate", dist.LogNormal(-3.5, 1))
        with numpyro.plate("patients", x.shape[0]):
            numpyro.sample("seen", Followed(scale, power, rate, END), obs=seen)

    x, months, event = followed(rng, 6_000)
    return Case(model, (x, np.stack([months, event], axis=1)), refused=censored)


@case("survival by the Poisson trick")
def exponential_times(rng):
    """In years, so that a rate is about one."""

    def model(x, years, event):
        rate = jnp.exp(line(x, intercept=1.0))
        with numpyro.plate("patients", x.shape[0]):
            numpyro.sample("event", dist.Poisson(years * rate), obs=event)

    x = inputs(rng, 6_000)
    times = rng.exponential(np.exp(0.5 - x @ [0.5, 0.2, -0.6]))
    limit = rng.uniform(0.5, 3, 6_000)
    event, years = (times <= limit).astype(np.int32), np.minimum(times, limit)
    return Case(model, (x, years.astype(np.float32), event))


LOW = 0.5  # the device shows nothing below


@case("Tobit, a limit of detection")
def below_and_value(rng):
    def censored(x, below, value):
        mean = line(x)
        law = dist.Normal(mean, numpyro.sample("sigma", dist.HalfNormal(2)))
        with numpyro.plate("samples", x.shape[0]):
            observed = dist.LeftCensoredDistribution(law, censored=below == 1)
            numpyro.sample("value", observed, obs=value)

    def model(x, below, value):
        mean = line(x)
        sigma = numpyro.sample("sigma", dist.HalfNormal(2))
        with numpyro.plate("samples", x.shape[0]):
            numpyro.sample("below", dist.Bernoulli(dist.Normal(mean, sigma).cdf(LOW)), obs=below)
            with numpyro.handlers.mask(mask=below == 0):
                numpyro.sample("value", dist.TruncatedNormal(mean, sigma, low=LOW), obs=value)

    x = inputs(rng, 5_000)
    true = 1.0 + x @ [0.7, -0.4, 0.9] + 1.2 * rng.normal(size=5_000)
    below, value = (true < LOW).astype(np.int32), np.maximum(true, LOW)
    return Case(model, (x, below, value.astype(np.float32)), refused=censored)


# --- slopes

SCHOOLS = 8


def schools(centred):
    """Intercept and slope of each school, centred, or by hand not."""

    def model(school, hours, score):
        middle, wide = jnp.array([60.0, 5.0]), jnp.array([15.0, 10.0])
        mu = numpyro.sample("mu", dist.Normal(middle, wide).to_event(1))
        tau = numpyro.sample("tau", dist.HalfNormal(10).expand([2]).to_event(1))
        scale_tril = tau[:, None] * numpyro.sample("L", dist.LKJCholesky(2, 2.0))
        sigma = numpyro.sample("sigma", dist.HalfNormal(20))
        with numpyro.plate("schools", SCHOOLS):
            if centred:
                ab = numpyro.sample("ab", dist.MultivariateNormal(mu, scale_tril=scale_tril))
            else:
                z = numpyro.sample("z", dist.Normal(0, 1).expand([2]).to_event(1))
                ab = mu + z @ scale_tril.T
        with numpyro.plate("pupils", hours.shape[0]):
            mean = ab[school, 0] + ab[school, 1] * hours
            numpyro.sample("score", dist.Normal(mean, sigma), obs=score)

    return model


@case("varying slopes")
def of_schools(rng):
    school = rng.integers(0, SCHOOLS, 5_000).astype(np.int32)
    hours = rng.uniform(-1, 1, 5_000).astype(np.float32)
    ab = rng.multivariate_normal([60, 7], [[64, -16], [-16, 16]], SCHOOLS)[school]
    score = ab[:, 0] + ab[:, 1] * hours + 14 * rng.normal(size=5_000)
    return Case(schools(True), (school, hours, score.astype(np.float32)), refused=schools(False))


@case("zero-inflated counts")
def zeros(rng):
    def model(x, y):
        rate = jnp.exp(line(x, intercept=1.0))
        gate = numpyro.sample("gate", dist.Beta(1, 1))
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("y", dist.ZeroInflatedPoisson(gate, rate), obs=y)

    x = inputs(rng, 6_000)
    y = rng.poisson(np.exp(0.8 + x @ [0.4, -0.2, 0.5])) * (rng.random(6_000) > 0.3)
    return Case(model, (x, y.astype(np.int32)))
