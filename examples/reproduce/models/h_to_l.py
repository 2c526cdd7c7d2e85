"""Rows of *Models by name* from hierarchies to logistic regression."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from case import Case, case
from scipy.special import expit

import numpyro_dp as ndp


@case("hierarchy, multilevel intercepts")
def schools(rng):
    """Sixteen schools of 40 to 1,600 pupils, passed or not."""
    sizes = np.geomspace(40, 1_600, 16).astype(int)

    def model(school, hours, passed):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        tau = numpyro.sample("tau", dist.HalfNormal(1))
        slope = numpyro.sample("slope", dist.Normal(0, 1))
        with numpyro.plate("schools", 16):
            effect = numpyro.sample("effect", dist.Normal(mu, tau))
        with numpyro.plate("pupils", hours.shape[0]):
            logits = effect[school] + slope * hours
            numpyro.sample("passed", dist.Bernoulli(logits=logits), obs=passed)

    school = rng.permutation(np.repeat(np.arange(16), sizes)).astype(np.int32)
    hours = rng.uniform(-1, 1, len(school)).astype(np.float32)
    effect = 0.4 + 0.6 * rng.normal(size=16)
    passed = rng.random(len(school)) < expit(effect[school] + 0.8 * hours)
    return Case(model, (school, hours, passed.astype(np.int32)))


@case("hierarchy, multilevel intercepts")
def radon(rng):
    """A level for each of 20 counties, of a continuous answer; the refused is not centred."""

    def written(centred):
        def model(county, floor, y):
            mu = numpyro.sample("mu", dist.Normal(0, 2))
            tau = numpyro.sample("tau", dist.HalfNormal(1))
            b = numpyro.sample("b", dist.Normal(0, 1))
            sigma = numpyro.sample("sigma", dist.HalfNormal(1))
            with numpyro.plate("counties", 20):
                if centred:
                    a = numpyro.sample("a", dist.Normal(mu, tau))
                else:
                    a = mu + tau * numpyro.sample("z", dist.Normal(0, 1))
            with numpyro.plate("houses", y.shape[0]):
                numpyro.sample("y", dist.Normal(a[county] + b * floor, sigma), obs=y)

        return model

    county = rng.choice(20, 6_000, p=rng.dirichlet(np.full(20, 5.0))).astype(np.int32)
    floor = (rng.random(6_000) < 0.2).astype(np.float32)
    a = 1.5 + 0.35 * rng.normal(size=20)
    y = a[county] - 0.6 * floor + 0.75 * rng.normal(size=6_000)
    records = county, floor, y.astype(np.float32)
    return Case(written(centred=True), records, refused=written(centred=False))


@case("hierarchy, multilevel intercepts")
def hospitals(rng):
    """A public number of each of 24 hospitals, their beds, in the law of their effects."""

    def model(size, hospital, age, recovered):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        gamma = numpyro.sample("gamma", dist.Normal(0, 1))
        tau = numpyro.sample("tau", dist.HalfNormal(1))
        slope = numpyro.sample("slope", dist.Normal(0, 1))
        with numpyro.plate("hospitals", size.shape[0]):
            a = numpyro.sample("a", dist.Normal(mu + gamma * size, tau))
        with numpyro.plate("patients", age.shape[0]):
            logits = a[hospital] + slope * age
            numpyro.sample("recovered", dist.Bernoulli(logits=logits), obs=recovered)

    size = ((rng.integers(40, 900, 24) - 400) / 300).astype(np.float32)
    hospital = rng.integers(0, 24, 6_000).astype(np.int32)
    age = rng.uniform(-1.75, 1.75, 6_000).astype(np.float32)
    effect = 0.4 * size + 0.3 * rng.normal(size=24)
    recovered = rng.random(6_000) < expit(0.5 + effect[hospital] - 0.6 * age)
    return Case(model, (ndp.public(size), hospital, age, recovered.astype(np.int32)))


def few_of_ten(rng):
    """Ten standard inputs, three of which matter."""
    x = rng.normal(size=(6_000, 10)).astype(np.float32)
    return x, x @ np.array([0.8, -0.5, 0.3, *[0.0] * 7])


def shrunk(centred, size):
    """Coefficients under a horseshoe."""
    tau = numpyro.sample("tau", dist.HalfCauchy(0.3))
    lam = numpyro.sample("lam", dist.HalfCauchy(1).expand([size]).to_event(1))
    if centred:
        return numpyro.sample("b", dist.Normal(0, tau * lam).to_event(1))
    return numpyro.sample("z", dist.Normal(0, 1).expand([size]).to_event(1)) * tau * lam


def horseshoe_of(centred):
    def model(x, y):
        a = numpyro.sample("a", dist.Normal(0, 2))
        b = shrunk(centred, x.shape[1])
        sigma = numpyro.sample("sigma", dist.HalfNormal(2))
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("y", dist.Normal(a + x @ b, sigma), obs=y)

    return model


@case("horseshoe")
def linear_horseshoe(rng):
    x, mean = few_of_ten(rng)
    y = (1 + mean + rng.normal(size=len(x))).astype(np.float32)
    return Case(horseshoe_of(centred=True), (x, y), refused=horseshoe_of(centred=False))


@case("horseshoe")
def logistic_horseshoe(rng):
    def model(x, y):
        a = numpyro.sample("a", dist.Normal(0, 2))
        b = shrunk(True, x.shape[1])
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=a + x @ b), obs=y)

    x, mean = few_of_ten(rng)
    y = rng.random(len(x)) < expit(mean - 0.3)
    return Case(model, (x, y.astype(np.int32)))


def costs(rng, level):
    """Whether there was a cost, and how much, of 8,000 people."""
    x = np.stack([rng.uniform(-1, 1, 8_000), rng.random(8_000) < 0.4], axis=1)
    paid = rng.random(8_000) < expit(level + x @ [0.8, 0.4])
    cost = np.exp(0.5 + x @ [0.4, -0.3] + 0.8 * rng.normal(size=8_000)) * paid
    return x.astype(np.float32), paid.astype(np.int32), cost.astype(np.float32)


def two_parts():
    """Intercept and slopes of whether and of how much, and the spread of how much."""
    a = numpyro.sample("a", dist.Normal(0, 2))
    b = numpyro.sample("b", dist.Normal(0, 1).expand([2]).to_event(1))
    c = numpyro.sample("c", dist.Normal(0, 2))
    d = numpyro.sample("d", dist.Normal(0, 1).expand([2]).to_event(1))
    return a, b, c, d, numpyro.sample("sigma", dist.HalfNormal(1))


def hurdle(x, paid, cost):
    """Of two columns."""
    a, b, c, d, sigma = two_parts()
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("paid", dist.Bernoulli(logits=a + x @ b), obs=paid)
        with numpyro.handlers.mask(mask=paid == 1):
            law = dist.LogNormal(c + x @ d, sigma)
            numpyro.sample("cost", law, obs=jnp.where(paid == 1, cost, 1.0))


def hurdle_of_one(x, cost):
    """Of one column."""
    a, b, c, d, sigma = two_parts()
    any_cost = cost > 0
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("paid", dist.Bernoulli(logits=a + x @ b), obs=any_cost)
        with numpyro.handlers.mask(mask=any_cost):
            law = dist.LogNormal(c + x @ d, sigma)
            numpyro.sample("cost", law, obs=jnp.where(any_cost, cost, 1.0))


@case("hurdle, two-part costs")
def two_columns(rng):
    return Case(hurdle, costs(rng, -0.4))


@case("hurdle, two-part costs")
def one_column(rng):
    x, _, cost = costs(rng, -0.4)
    return Case(hurdle_of_one, (x, cost))


@case("hurdle, two-part costs")
def few_have_any(rng):
    """Some 3 % have a cost."""
    return Case(hurdle, costs(rng, -3.8))


@case("instrumental variables")
def wages(rng):
    """Schooling and wage share what nobody measured; a lottery moves schooling alone."""

    def model(lottery, treatment, y):
        middle = numpyro.sample("middle", dist.Normal(0, 1).expand([2]).to_event(1))
        effect = numpyro.sample("effect", dist.Normal(0, 1))
        first = numpyro.sample("first", dist.Normal(0, 1))
        sigma = numpyro.sample("sigma", dist.Exponential(1).expand([2]).to_event(1))
        corr = numpyro.sample("L", dist.LKJCholesky(2, 2.0))
        mean = jnp.stack([middle[0] + effect * treatment, middle[1] + first * lottery], -1)
        with numpyro.plate("people", y.shape[0]):
            law = dist.MultivariateNormal(mean, scale_tril=sigma[:, None] * corr)
            numpyro.sample("both", law, obs=jnp.stack([y, treatment], -1))

    lottery = rng.normal(size=6_000)
    hidden = rng.normal(size=6_000)
    treatment = 0.2 + 0.7 * lottery + 0.6 * hidden + 0.6 * rng.normal(size=6_000)
    y = -0.1 + 0.4 * treatment + 0.7 * hidden + 0.7 * rng.normal(size=6_000)
    records = (each.astype(np.float32) for each in (lottery, treatment, y))
    return Case(model, tuple(records))


points, weights = np.polynomial.hermite_e.hermegauss(9)
POINTS, WEIGHTS = tuple(points.tolist()), tuple((weights / weights.sum()).tolist())


def tested(rng):
    """Answers of 3,000 people to six questions, right or wrong."""
    difficulty = np.array([-1.5, -0.8, -0.2, 0.3, 0.9, 1.6])
    answers = rng.random((3_000, 6)) < expit(rng.normal(size=(3_000, 1)) - difficulty)
    return (answers.astype(np.int32),)


@case("item response (Rasch)")
def rasch(rng):
    def model(answers):
        difficulty = numpyro.sample("d", dist.Normal(0, 1.5).expand([6]).to_event(1))
        with numpyro.plate("people", answers.shape[0]):
            logits = jnp.array(POINTS)[:, None] - difficulty  # ability ~ Normal(0, 1)
            parts = dist.Bernoulli(logits=logits).to_event(1)
            ability = dist.Categorical(probs=jnp.array(WEIGHTS))
            numpyro.sample("answers", dist.MixtureSameFamily(ability, parts), obs=answers)

    def with_abilities(answers):
        difficulty = numpyro.sample("d", dist.Normal(0, 1.5).expand([6]).to_event(1))
        with numpyro.plate("people", answers.shape[0]):
            ability = numpyro.sample("ability", dist.Normal(0, 1))
            law = dist.Bernoulli(logits=ability[:, None] - difficulty).to_event(1)
            numpyro.sample("answers", law, obs=answers)

    return Case(model, tested(rng), refused=with_abilities)


@case("item response (Rasch)")
def rasch_with_a_spread(rng):
    """The spread of abilities learned."""

    def model(answers):
        difficulty = numpyro.sample("d", dist.Normal(0, 1.5).expand([6]).to_event(1))
        spread = numpyro.sample("spread", dist.HalfNormal(1))
        with numpyro.plate("people", answers.shape[0]):
            logits = spread * jnp.array(POINTS)[:, None] - difficulty
            parts = dist.Bernoulli(logits=logits).to_event(1)
            ability = dist.Categorical(probs=jnp.array(WEIGHTS))
            numpyro.sample("answers", dist.MixtureSameFamily(ability, parts), obs=answers)

    return Case(model, tested(rng))


@case("linear regression")
def incomes(rng):
    """In ten thousands, by age and schooling."""

    def model(x, y):
        a = numpyro.sample("a", dist.Normal(0, 5))
        w = numpyro.sample("w", dist.Normal(0, 2).expand([x.shape[1]]).to_event(1))
        sigma = numpyro.sample("sigma", dist.HalfNormal(2))
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("y", dist.Normal(a + x @ w, sigma), obs=y)

    age, schooling = rng.uniform(18, 65, 5_000), rng.integers(8, 21, 5_000)
    income = 1.2 + 0.025 * (age - 40) + 0.24 * (schooling - 8) + 0.9 * rng.normal(size=5_000)
    x = np.stack([(age - 41.5) / 23.5, (schooling - 14) / 6], axis=1)
    return Case(model, (x.astype(np.float32), income.astype(np.float32)))


@case("linear regression")
def eight_inputs(rng):
    """Standard inputs that hang together, and a wider prior."""

    def model(x, y):
        a = numpyro.sample("a", dist.Normal(0, 10))
        w = numpyro.sample("w", dist.Normal(0, 2.5).expand([x.shape[1]]).to_event(1))
        sigma = numpyro.sample("sigma", dist.Exponential(1))
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("y", dist.Normal(a + x @ w, sigma), obs=y)

    x = 0.6 * rng.normal(size=(6_000, 1)) + 0.8 * rng.normal(size=(6_000, 8))
    y = 2 + x @ [0.5, -0.3, 0.2, 0.0, 0.4, -0.1, 0.0, 0.3] + 1.2 * rng.normal(size=6_000)
    return Case(model, (x.astype(np.float32), y.astype(np.float32)))


def logistic(x, y):
    a = numpyro.sample("a", dist.Normal(0, 2))
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(jax.nn.sigmoid(a + x @ w)), obs=y)


@case("logistic regression")
def five_inputs(rng):
    """Numbers, and an indicator of three in ten."""
    x = np.stack([*rng.uniform(-1, 1, (4, 5_000)), rng.random(5_000) < 0.3], axis=1)
    y = rng.random(5_000) < expit(-1 + x @ [0.8, -0.6, -0.4, 0.1, 0.9])
    return Case(logistic, (x.astype(np.float32), y.astype(np.int32)))


@case("logistic regression")
def rare_columns(rng):
    """Indicators of 20, 5, 2 and 1 % beside two numbers."""
    rare = rng.random((6_000, 4)) < [0.2, 0.05, 0.02, 0.01]
    x = np.column_stack([rng.normal(size=(6_000, 2)), rare])
    y = rng.random(6_000) < expit(-0.5 + x @ [0.5, -0.3, 0.4, 0.6, -0.5, 0.7])
    return Case(logistic, (x.astype(np.float32), y.astype(np.int32)))
