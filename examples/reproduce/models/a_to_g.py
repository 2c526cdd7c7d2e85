"""Rows of *Models by name* from aggregated counts to Gaussian processes."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from case import Case, case
from scipy.interpolate import BSpline
from scipy.special import expit


@case("aggregated table of counts")
def two_arms(rng):
    """A trial of two arms, its table turned into one row a person."""

    def model(arm, ill):
        with numpyro.plate("arms", 2):
            p = numpyro.sample("p", dist.Beta(1, 1))
        with numpyro.plate("people", arm.shape[0]):
            numpyro.sample("ill", dist.Bernoulli(p[arm]), obs=ill)

    table = rng.multinomial(2_000, [[0.79, 0.21], [0.74, 0.26]])  # arms; well, ill
    arm, ill = (np.repeat(part.ravel(), table.ravel()) for part in np.indices(table.shape))
    return Case(model, (arm.astype(np.int32), ill.astype(np.int32)))


@case("aggregated table of counts")
def one_table(rng):
    """Shares of six answers, no outcome beside them."""

    def model(cell):
        q = numpyro.sample("q", dist.Dirichlet(jnp.ones(6)))
        with numpyro.plate("people", cell.shape[0]):
            numpyro.sample("cell", dist.Categorical(q), obs=cell)

    table = rng.multinomial(4_000, [0.3, 0.25, 0.2, 0.12, 0.08, 0.05])
    return Case(model, (np.repeat(np.arange(6), table).astype(np.int32),))


def series(rng, people, steps, about):
    """An autoregression of .6 a person, in its stationary state."""
    y = np.empty((people, steps))
    y[:, 0] = rng.normal(size=people) / 0.8
    for t in range(1, steps):
        y[:, t] = 0.6 * y[:, t - 1] + rng.normal(size=people)
    return (about + y).astype(np.float32)


def steps(y, mean):
    """An autoregression, each step by the mean that the one before gives."""
    a = numpyro.sample("a", dist.Normal(0, 1))
    s = numpyro.sample("s", dist.HalfNormal(2))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean(a, y[:, :-1]), s).to_event(1), obs=y[:, 1:])


def one_series(y):
    """As if the first weeks of all were one series."""
    a = numpyro.sample("a", dist.Normal(0, 1))
    s = numpyro.sample("s", dist.HalfNormal(2))
    with numpyro.plate("days", y.shape[0] - 1):
        numpyro.sample("y", dist.Normal(a * y[:-1, 0], s), obs=y[1:, 0])


@case("autoregression, other time series")
def about_nought(rng):
    """Deviations of each of 3,000 people over eight weeks."""

    def model(y):
        steps(y, lambda a, before: a * before)

    return Case(model, (series(rng, 3_000, 8, 0.0),), refused=one_series)


@case("autoregression, other time series")
def about_fifty(rng):
    """Scores that return to a level of about 50."""

    def model(y):
        mu = numpyro.sample("mu", dist.Normal(50, 10))
        steps(y, lambda a, before: mu + a * (before - mu))

    return Case(model, (series(rng, 3_000, 8, 50.0),))


@case("autoregression, other time series")
def whole_series(rng):
    """The joint law of a stationary series in place of its steps."""
    apart = np.abs(np.subtract.outer(np.arange(6), np.arange(6)))

    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0, 2))
        rho = numpyro.sample("rho", dist.Uniform(0, 1))
        s = numpyro.sample("s", dist.HalfNormal(2))
        with numpyro.plate("people", y.shape[0]):
            law = dist.MultivariateNormal(mu * jnp.ones(6), s**2 * rho**apart)
            numpyro.sample("y", law, obs=y)

    return Case(model, (series(rng, 3_000, 6, 0.5),))


@case("B-spline")
def spline(rng):
    """A smooth curve of age under cubic basis columns of public knots."""

    def model(basis, y):
        tau = numpyro.sample("tau", dist.HalfNormal(1))
        w = numpyro.sample("w", dist.GaussianRandomWalk(tau, basis.shape[1]))
        sigma = numpyro.sample("sigma", dist.HalfNormal(1))
        with numpyro.plate("people", basis.shape[0]):
            numpyro.sample("y", dist.Normal(basis @ w, sigma), obs=y)

    age = rng.uniform(18, 82, 6_000)
    knots = np.concatenate([np.full(3, 18.0), np.linspace(18, 82, 7), np.full(3, 82.0)])
    basis = BSpline.design_matrix(age, knots, 3).toarray().astype(np.float32)
    y = 1 + 1.2 * np.sin((age - 18) / 12) + 0.8 * rng.normal(size=6_000)
    return Case(model, (basis, y.astype(np.float32)))


@case("beta regression")
def shares(rng):
    def model(x, y):
        a = numpyro.sample("a", dist.Normal(0, 1))
        b = numpyro.sample("b", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
        phi = numpyro.sample("phi", dist.LogNormal(2, 1))
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("y", dist.BetaProportion(jax.nn.sigmoid(a + x @ b), phi), obs=y)

    x = rng.uniform(-1, 1, (5_000, 3)).astype(np.float32)
    mean = expit(-0.5 + x @ [0.6, -0.4, 0.2])
    y = np.clip(rng.beta(8 * mean, 8 * (1 - mean)), 1e-4, 1 - 1e-4)
    return Case(model, (x, y.astype(np.float32)))


PLACES = 20  # four by five on a map
NORTH, EAST = np.divmod(np.arange(PLACES), 5)
APART = np.abs(np.subtract.outer(NORTH, NORTH)) + np.abs(np.subtract.outer(EAST, EAST))
TOUCHING = (APART == 1).astype(np.float32)


def visits(rng):
    """Visits to a doctor, by a district and an age."""
    effect = 0.3 * np.sin(NORTH) + 0.3 * np.cos(EAST) + 0.1 * rng.normal(size=PLACES)
    place = rng.integers(0, PLACES, 10_000).astype(np.int32)
    age = rng.uniform(-1, 1, 10_000).astype(np.float32)
    y = rng.poisson(np.exp(0.7 + (effect - effect.mean())[place] + 0.4 * age))
    return place, age, y.astype(np.int32)


def observed(effect, place, age, y):
    """Counts by place and age, about an intercept."""
    a = numpyro.sample("a", dist.Normal(0, 1))
    b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(a + effect[place] + b * age)), obs=y)


@case("CAR, ICAR over public places")
def car(rng):
    """With an intercept beside it."""

    def model(*people):
        alpha = numpyro.sample("alpha", dist.Uniform(0, 0.99))
        tau = numpyro.sample("tau", dist.Gamma(2, 0.5))
        effect = numpyro.sample("effect", dist.CAR(jnp.zeros(PLACES), alpha, tau, TOUCHING))
        observed(effect, *people)

    return Case(model, visits(rng))


def icar_under(flat):
    """An intrinsic CAR prior, its density by hand."""
    first, second = np.nonzero(np.triu(TOUCHING))

    def model(*people):
        sigma = numpyro.sample("sigma", dist.HalfNormal(1))
        effect = numpyro.sample("effect", flat)
        rough = jnp.sum(((effect[first] - effect[second]) / sigma) ** 2)
        numpyro.factor("icar", -0.5 * rough - (PLACES - 1) * jnp.log(sigma))
        numpyro.factor("sum", dist.Normal(0, 0.01 * PLACES).log_prob(effect.sum()))
        observed(effect, *people)

    return model


@case("CAR, ICAR over public places")
def icar(rng):
    flat = dist.ImproperUniform(dist.constraints.real_vector, (), (PLACES,))
    wide = dist.Normal(0, 10).expand([PLACES]).to_event(1)
    return Case(icar_under(wide), visits(rng), refused=icar_under(flat))


@case("CAR, ICAR over public places")
def zero_sum(rng):
    def model(*people):
        sigma = numpyro.sample("sigma", dist.HalfNormal(1))
        effect = numpyro.sample("effect", dist.ZeroSumNormal(sigma, (PLACES,)))
        observed(effect, *people)

    return Case(model, visits(rng))


def around_a_day(rng):
    """Calls of 6,000 people by day of the year, twice as many from day 200 on."""
    day = rng.uniform(0, 365, 6_000).astype(np.float32)
    return day, rng.poisson(np.exp(0.5 + 0.7 * (day >= 200))).astype(np.int32)


@case("change point")
def months(rng):
    """A level for each month."""

    def model(month, y):
        a = numpyro.sample("a", dist.Normal(0, 1).expand([12]).to_event(1))
        with numpyro.plate("people", y.shape[0]):
            numpyro.sample("y", dist.Poisson(jnp.exp(a[month])), obs=y)

    day, y = around_a_day(rng)
    return Case(model, ((day / 365 * 12).astype(np.int32) % 12, y))


def change(share):
    """A level before and one after, of which a day has a share."""

    def model(day, y):
        t = numpyro.sample("t", dist.Normal(190, 30))
        a = numpyro.sample("a", dist.Normal(0, 1).expand([2]).to_event(1))
        with numpyro.plate("people", y.shape[0]):
            after = share(day, t)
            numpyro.sample("y", dist.Poisson(jnp.exp(a[0] * (1 - after) + a[1] * after)), obs=y)

    return model


@case("change point")
def slope_for_a_step(rng):
    """A sigmoid; the refused has a step."""
    step = change(lambda day, t: jnp.where(day < t, 0.0, 1.0))
    return Case(change(lambda day, t: jax.nn.sigmoid((day - t) / 10)), around_a_day(rng), step)


@case("covariance matrix")
def body(rng):
    """Height, weight and blood pressure, in their units."""

    def model(y):
        middle, spread = jnp.array([170.0, 75.0, 125.0]), jnp.array([10.0, 15.0, 15.0])
        mu = numpyro.sample("mu", dist.Normal(middle, spread).to_event(1))
        sigma = numpyro.sample("sigma", dist.HalfNormal(spread).to_event(1))
        corr = numpyro.sample("L", dist.LKJCholesky(3, 2.0))
        with numpyro.plate("people", y.shape[0]):
            law = dist.MultivariateNormal(mu, scale_tril=sigma[:, None] * corr)
            numpyro.sample("y", law, obs=y)

    corr = np.array([[1, 0.5, 0.1], [0.5, 1, 0.3], [0.1, 0.3, 1]])
    scale = np.array([9.0, 13.0, 16.0])
    y = rng.multivariate_normal([168.0, 78.0, 128.0], corr * np.outer(scale, scale), 5_000)
    return Case(model, (y.astype(np.float32),))


def sales(rng):
    """Six shops, twelve months, 12,000 customers."""
    shop = rng.choice(6, 12_000, p=[0.3, 0.2, 0.2, 0.1, 0.1, 0.1]).astype(np.int32)
    month = rng.integers(0, 12, 12_000).astype(np.int32)
    effect = 0.5 * rng.normal(size=(6, 1)) + 0.3 * rng.normal(size=12)
    return shop, month, effect + 0.2 * rng.normal(size=(6, 12))


@case("crossed or nested factors, `a[group, month]`")
def crossed(rng):
    """Shops and months beside each other, with an intercept."""

    def model(shop, month, y):
        mu = numpyro.sample("mu", dist.Normal(0, 2))
        of_shops = numpyro.sample("of_shops", dist.HalfNormal(1))
        of_months = numpyro.sample("of_months", dist.HalfNormal(1))
        sigma = numpyro.sample("sigma", dist.HalfNormal(2))
        with numpyro.plate("shops", 6):
            a = numpyro.sample("a", dist.Normal(0, of_shops))
        with numpyro.plate("months", 12):
            b = numpyro.sample("b", dist.Normal(0, of_months))
        with numpyro.plate("people", y.shape[0]):
            numpyro.sample("y", dist.Normal(mu + a[shop] + b[month], sigma), obs=y)

    shop, month, effect = sales(rng)
    y = 1 + effect[shop, month] + rng.normal(size=12_000)
    return Case(model, (shop, month, y.astype(np.float32)))


@case("crossed or nested factors, `a[group, month]`")
def nested(rng):
    """A cell for each quarter of each shop, within its shop."""

    def model(shop, quarter, y):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        of_shops = numpyro.sample("of_shops", dist.HalfNormal(1))
        tau = numpyro.sample("tau", dist.HalfNormal(1))
        with numpyro.plate("shops", 6, dim=-2):
            b = numpyro.sample("b", dist.Normal(mu, of_shops))
            with numpyro.plate("quarters", 4, dim=-1):
                a = numpyro.sample("a", dist.Normal(b, tau))
        with numpyro.plate("people", y.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=a[shop, quarter]), obs=y)

    shop, month, effect = sales(rng)
    y = rng.random(12_000) < expit(0.3 + effect[shop, month])
    return Case(model, (shop, month // 3, y.astype(np.int32)))


@case("dose–response (Emax)")
def emax(rng):
    """A trial of six doses."""

    def model(dose, y):
        none = numpyro.sample("none", dist.Normal(0, 10))
        most = numpyro.sample("most", dist.Normal(0, 20))
        half = numpyro.sample("half", dist.LogNormal(3, 0.75))
        sigma = numpyro.sample("sigma", dist.HalfNormal(10))
        with numpyro.plate("people", y.shape[0]):
            numpyro.sample("y", dist.Normal(none + most * dose / (half + dose), sigma), obs=y)

    dose = rng.choice([0, 5, 10, 25, 50, 100], 4_000).astype(np.float32)
    y = 2 + 15 * dose / (20 + dose) + 6 * rng.normal(size=4_000)
    return Case(model, (dose, y.astype(np.float32)))


@case("factor analysis, one factor")
def one_factor(rng):
    """Five tests of one ability, which the refused samples."""

    def written(integrated):
        def model(y):
            mu = numpyro.sample("mu", dist.Normal(0, 1).expand([5]).to_event(1))
            load = numpyro.sample("l", dist.HalfNormal(1).expand([5]).to_event(1))
            s = numpyro.sample("s", dist.HalfNormal(1).expand([5]).to_event(1))
            with numpyro.plate("people", y.shape[0]):
                if integrated:
                    law = dist.LowRankMultivariateNormal(mu, load[:, None], s**2)
                else:
                    z = numpyro.sample("z", dist.Normal(0, 1))
                    law = dist.Normal(mu + load * z[:, None], s).to_event(1)
                numpyro.sample("y", law, obs=y)

        return model

    load, s = np.linspace(0.9, 0.5, 5), np.linspace(0.5, 0.9, 5)
    y = 0.2 + rng.normal(size=(6_000, 1)) * load + s * rng.normal(size=(6_000, 5))
    return Case(written(True), (y.astype(np.float32),), refused=written(False))


@case("gamma regression")
def waiting(rng):
    """Times of 6,000 people, gamma of shape 2."""

    def model(x, y):
        a = numpyro.sample("a", dist.Normal(0, 2))
        b = numpyro.sample("b", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
        shape = numpyro.sample("shape", dist.LogNormal(0, 1))
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("y", dist.Gamma(shape, shape / jnp.exp(a + x @ b)), obs=y)

    x = rng.normal(size=(6_000, 3)).astype(np.float32)
    y = rng.gamma(2.0, np.exp(1 + x @ [0.3, -0.2, 0.1]) / 2)
    return Case(model, (x, y.astype(np.float32)))


@case("Gaussian process")
def curve(rng):
    """A smooth curve of age, four years a cell; the refused is one over the records."""

    def written(on_grid):
        def model(cell, y):
            length = numpyro.sample("length", dist.LogNormal(-0.5, 0.5))
            height = numpyro.sample("height", dist.HalfNormal(1.5))
            sigma = numpyro.sample("sigma", dist.HalfNormal(1))
            at = jnp.linspace(0, 3, 16) if on_grid else 3 * cell / 16
            apart = (at[:, None] - at) / length
            cov = height**2 * jnp.exp(-0.5 * apart**2) + 1e-3 * jnp.eye(len(at))
            f = numpyro.sample("f", dist.MultivariateNormal(jnp.zeros(len(at)), cov))
            with numpyro.plate("people", cell.shape[0]):
                numpyro.sample("y", dist.Normal(f[cell] if on_grid else f, sigma), obs=y)

        return model

    age = rng.uniform(18, 82, 6_000)
    cell = ((age - 18) // 4).astype(np.int32)
    y = 1.2 * np.sin((age - 18) / 12) + 0.8 * rng.normal(size=6_000)
    return Case(written(True), (cell, y.astype(np.float32)), refused=written(False))
