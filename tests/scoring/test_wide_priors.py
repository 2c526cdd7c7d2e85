"""Priors far wider than the answer, as textbooks write them: found all the same."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import numpyro_dp as ndp
from numpyro_dp.model.private_model import private_model
from numpyro_dp.scoring.prior import prior_moments, wider

LAWS = {
    "normal": lambda eta, sigma: dist.Normal(eta, sigma),
    "logistic": lambda eta, _: dist.Bernoulli(logits=eta),
    "poisson": lambda eta, _: dist.Poisson(jnp.exp(eta)),
}
SLOPES = np.array([1.0, 0.5, -0.3, 0.2, 0.0])


def regression(x, y=None, *, family, sd, scale):
    b = numpyro.sample("b", dist.Normal(0, sd).expand([x.shape[1]]).to_event(1))
    sigma = numpyro.sample("sigma", scale) if family == "normal" else None
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", LAWS[family](x @ b, sigma), obs=y)


def made_up(family, records, seed):
    rng = np.random.default_rng(seed)
    x = np.column_stack([np.ones(records), rng.normal(size=(records, 4))])
    eta = x @ SLOPES
    draw = {"normal": partial(rng.normal, eta), "poisson": partial(rng.poisson, np.exp(eta))}
    draw["logistic"] = partial(rng.binomial, 1, 1 / (1 + np.exp(-eta)))
    return x.astype(np.float32), draw[family]().astype(np.float32)


def information(x, family):
    """What the records tell of the slopes, at the truth."""
    mean = np.exp(x @ SLOPES)
    each = {"normal": 1.0, "poisson": mean, "logistic": mean / (1 + mean) ** 2}[family]
    return (x * np.broadcast_to(each, len(x))[:, None]).T @ x


def widths_and_distances(family, sd, scale, records, seeds):
    """Beside the records' own intervals, and from the truth in own sds; a row a release."""
    model = partial(regression, family=family, sd=sd, scale=scale)
    release = ndp.LikelihoodRelease(model, privacy=ndp.Budget(1.0, 1e-6), secure=False)
    found = []
    for seed in seeds:
        x, y = made_up(family, records, seed)
        at = release.run(jax.random.key(seed), x, y, progress_bar=False).located
        own = np.sqrt(np.diag(np.linalg.inv(information(x.astype(float), family))))
        sds = np.sqrt(np.diag(at.covariance))[:5]
        found.append(
            [np.exp(np.mean(np.log(sds / own))), np.max(np.abs(at.mean[:5] - SLOPES) / sds)]
        )
    return np.array(found).T


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "sd", "scale"),
    [
        ("logistic", 100.0, None),
        ("poisson", 1000.0, None),
        ("normal", 10.0, dist.HalfCauchy(5)),
        ("normal", 10.0, dist.Uniform(0, 50)),
        ("normal", 100.0, dist.HalfNormal(5)),
        ("normal", 100.0, dist.HalfCauchy(5)),
    ],
)
def test_a_wide_prior_costs_next_to_nothing(family, sd, scale):
    """With the distance counted as noise all but one were 19 to 136,000 times as wide.

    Of five coordinates one lies beyond 4 sds in 1 of 3,000 releases that hold what they say.
    """
    widths, distances = widths_and_distances(family, sd, scale, 6_000, range(6))
    assert np.median(widths) < 1.7
    assert (widths < 3).all()
    assert (distances < 4).all()


def waiting(y):
    """Weibull, of days: the answer lies two sds out, under a rate that is far out as well."""
    shape = numpyro.sample("shape", dist.Exponential(1))
    log_scale = numpyro.sample("log_scale", dist.Normal(0, 2.5))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.Weibull(jnp.exp(log_scale), shape), obs=y)


def spending(x, y=None):
    a = numpyro.sample("a", dist.Normal(0, 10))
    w = numpyro.sample("w", dist.Normal(0, 2.5).expand([4]).to_event(1))
    shape = numpyro.sample("shape", dist.Exponential(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Gamma(shape, shape / jnp.exp(a + x @ w)), obs=y)


def saturating(dose, y=None):
    """Emax."""
    none = numpyro.sample("none", dist.LogNormal(4, 1))
    most = numpyro.sample("most", dist.LogNormal(3, 1))
    half = numpyro.sample("half", dist.LogNormal(3, 1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(20))
    with numpyro.plate("people", dose.shape[0]):
        numpyro.sample("y", dist.Normal(none + most * dose / (half + dose), sigma), obs=y)


def textbook(model, rng):
    """Records of the model, and what they were made from, in the order of its coordinates."""
    if model is waiting:
        return (250 * rng.weibull(3.5, 5_000),), [math.log(250), math.log(3.5)]
    if model is spending:
        x = np.column_stack([rng.normal(size=(6_000, 3)), rng.uniform(size=6_000) < 0.2])
        slopes = [0.3, -0.2, 0.15, 0.4]
        y = rng.gamma(0.8, np.exp(7.5 + x @ slopes) / 0.8) + 1e-3
        return (x, y), [7.5, math.log(0.8), *slopes]
    dose = rng.choice([0.0, 5, 10, 25, 50, 100], 4_000)
    y = 100 + 40 * dose / (30 + dose) + 12 * rng.normal(size=4_000)
    return (dose, y), np.log([30, 40, 100, 12])


@pytest.mark.slow
@pytest.mark.parametrize(("model", "least"), [(waiting, 5), (spending, 5), (saturating, 3)])
def test_textbook_models_far_from_their_priors_arrive(model, least):
    """Of 8 releases each 8, 3 and 5 did not while far rounds were sure of what little they told.

    Of the last 36 of 48 do now: fewer than three of six in one run of thirty. A truth lies beyond
    4 sds in 1 of 2,600 releases of six coordinates.
    """
    release = ndp.LikelihoodRelease(model, privacy=ndp.Budget(1.0, 1e-5), secure=False)
    arrived = 0
    for seed in range(6):
        data, truth = textbook(model, np.random.default_rng(seed))
        data = [np.asarray(x, np.float32) for x in data]
        fit = release.run(jax.random.key(seed), *data, progress_bar=False)
        at = fit.located
        assert (np.abs(at.mean - truth) < 4 * np.sqrt(np.diag(at.covariance))).all()
        arrived += not any("not arrived" in said for said in fit.diagnostics.verdicts)
    assert arrived >= least


@pytest.mark.slow
def test_no_release_of_a_logistic_regression_runs_away():
    """One of these was 26 times as wide: sent ever farther out, where little is told."""
    widths, distances = widths_and_distances("logistic", 2.5, None, 2_000, range(36))
    assert (widths < 2).all()
    assert (distances < 5).all()


def measured(rng, family):
    """Six measurements of patients as they come, beside a 1, and outcomes."""
    columns = (
        rng.normal(58, 13, 7_000).clip(18, 96),  # age
        rng.normal(135, 19, 7_000),  # blood pressure
        rng.normal(5.2, 1.1, 7_000),  # cholesterol
        rng.lognormal(0.8, 1, 7_000).clip(0.1, 200),  # C-reactive protein
        rng.normal(78, 20, 7_000).clip(8, 130),  # filtration
        rng.gamma(1.5, 3, 7_000),  # days of the stay
    )
    x = np.column_stack([np.ones(7_000), *columns])
    truth = np.array([-2.0, 0.035, -0.006, 0.12, 0.008, -0.01, 0.02])
    if family == "logistic":
        y = rng.uniform(size=7_000) < 1 / (1 + np.exp(-x @ truth))
    else:
        y = rng.poisson(np.exp(x @ truth))
    return x.astype(np.float32), truth, y.astype(np.int32)


@pytest.mark.parametrize("family", ["logistic", pytest.param("poisson", marks=pytest.mark.slow)])
def test_measurements_as_they_come_are_told_under_priors_of_one(family):
    """The first step made outcomes all but certain, and counts millions: 13 to 580 times as wide.

    Of the records' own, under priors 100 to 1,000 times as wide. Nine releases of each: 1.0 to 1.9.
    """
    x, truth, y = measured(np.random.default_rng(15), family)
    sd = np.array([5.0, *np.ones(6)])
    model = partial(regression, family=family, sd=sd, scale=None)
    odds = x @ truth
    weights = np.exp(odds) if family == "poisson" else 1 / (2 + np.exp(odds) + np.exp(-odds))
    own = np.linalg.inv((x.T.astype(float) * weights) @ x + np.diag(1 / sd**2))
    release = ndp.LikelihoodRelease(model, privacy=ndp.Budget(1.0, 1e-5), secure=False)
    for seed in range(2 if family == "logistic" else 4):
        fit = release.run(jax.random.key(seed), x, y, progress_bar=False)
        at = fit.located
        wider = np.sqrt(np.diag(at.covariance) / np.diag(own))
        assert (wider < 2.5).all(), wider
        assert np.median(wider) < 1.6
        assert (np.abs(at.mean - truth) < 4.5 * np.sqrt(np.diag(at.covariance))).all()
        assert not any("arrived" in said for said in fit.diagnostics.verdicts)


@pytest.mark.slow
def test_noise_is_not_taken_for_what_a_rare_column_tells():
    """A column of some 30 records in 6,000: with twice the floor intervals were too narrow."""
    rng = np.random.default_rng(3)
    level = rng.choice(5, 6_000, p=[0.5, 0.3, 0.15, 0.045, 0.005])
    age = (rng.uniform(18, 80, 6_000) - 50) / 15
    x = np.column_stack([np.ones(6_000), np.eye(5)[level][:, 1:], age]).astype(np.float32)
    odds = x @ [0.3, 0.5, -0.4, 0.8, 1.0, 0.4]
    y = (rng.uniform(size=6_000) < 1 / (1 + np.exp(-odds))).astype(np.float32)
    sd = np.array([100.0, 10, 10, 10, 10, 10])
    model = partial(regression, family="logistic", sd=sd, scale=None)
    release = ndp.LikelihoodRelease(model, privacy=ndp.Budget(1.0, 1e-6), secure=False)
    positive = y[x[:, 4] == 1]
    own = 1 / np.sqrt(positive.sum() * (1 - positive.mean()))
    for seed in range(8):
        at = release.run(jax.random.key(seed), x, y, progress_bar=False).located
        assert math.sqrt(at.covariance[4, 4]) > 0.9 * own


def middle_of(prior):
    def model(y):
        at = numpyro.sample("at", prior)
        with numpyro.plate("people", y.shape[0]):
            numpyro.sample("y", dist.Normal(at, 1), obs=y)

    return prior_moments(private_model(model, (jnp.zeros(10),), {})).mean[0]


def test_a_prior_about_nought_begins_there_however_wide():
    """The middle of 2,000 draws is off by .03 of their sd; what lies elsewhere is left as it is."""
    assert 0 < abs(middle_of(dist.Normal(0, 1000))) < 0.1
    assert middle_of(dist.Normal(300, 1000)) == pytest.approx(300, abs=100)
    assert middle_of(dist.Normal(0, 1)) == pytest.approx(0, abs=0.1)


def schools(group, y=None):
    mu, tau = numpyro.sample("mu", dist.Normal(0, 10)), numpyro.sample("tau", dist.HalfCauchy(5))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(5))
    with numpyro.plate("groups", 28):
        effect = numpyro.sample("effect", dist.Normal(mu, tau))
    with numpyro.plate("people", group.shape[0]):
        numpyro.sample("y", dist.Normal(effect[group], sigma), obs=y)


def test_groups_of_uneven_size_are_found_under_wide_priors():
    """Before groups suggested each other's place, effects were 12 to 17 times as wide as their own,
    one of them 8 of its sds off, and the records said not to fit. False alarms: one in 10,000."""
    rng = np.random.default_rng(0)
    shares = rng.dirichlet(np.ones(28)) + 0.01
    group = rng.choice(28, 5_000, p=shares / shares.sum()).astype(np.int32)
    y = (1.4 + 0.35 * rng.normal(size=28)[group] + 0.75 * rng.normal(size=5_000)).astype(np.float32)
    release = ndp.LikelihoodRelease(schools, privacy=ndp.Budget(1.0, 1e-6), secure=False)
    found = release.run(jax.random.key(0), group, y, progress_bar=False)
    size = np.bincount(group, minlength=28)
    own, mode = 0.75 / np.sqrt(size), np.bincount(group, y, minlength=28) / size
    at, sds = found.located.mean[:28], np.sqrt(np.diag(found.located.covariance))[:28]
    assert np.exp(np.mean(np.log(sds / own))) < 4
    assert np.abs((at - mode) / sds).max() < 4.5
    assert not [v for v in found.diagnostics.verdicts if not v.startswith(("wide", "to know"))]


def rents(x, y=None):
    """As a textbook has it: wide priors about nought, and a scale a ninth of the rent."""
    a = numpyro.sample("a", dist.Normal(0, 1_000))
    b = numpyro.sample("b", dist.Normal(0, 100).expand([x.shape[1]]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(100))
    with numpyro.plate("flats", x.shape[0]):
        numpyro.sample("y", dist.Normal(a + x @ b, sigma), obs=y)


@pytest.mark.parametrize("seed", [1, *(pytest.param(k, marks=pytest.mark.slow) for k in (0, 2))])
def test_outcomes_far_from_where_the_prior_has_them_are_arrived_at(seed):
    """In euros, nine of the scale's middle off: 2 to 14 times as wide as the records' own, once.

    The scale was found first, in three rounds to more than there is, and five took it back.
    """
    rng = np.random.default_rng(0)
    x = np.c_[rng.normal(size=(6_000, 2)), np.eye(6)[rng.choice(6, 6_000, p=SIXTHS)][:, 1:]]
    whole = np.c_[np.ones(6_000), x]
    truth = np.array([830.0, 225.0, 28.0, 60.0, 120.0, -80.0, 200.0, 300.0])
    y = whole @ truth + rng.normal(0, 150, 6_000)
    release = ndp.LikelihoodRelease(rents, privacy=ndp.Budget(1.0, 1e-5), secure=False)
    given = x.astype(np.float32), y.astype(np.float32)
    found = release.run(jax.random.key(seed), *given, progress_bar=False)
    at, own = found.located, 150 * np.sqrt(np.diag(np.linalg.inv(whole.T @ whole)))
    sds = np.sqrt(np.diag(at.covariance))[:8]
    assert at.arrived
    # Of three seeds 1.4 to 1.8 and 2.0 to 2.7, as in units of the rents.
    assert np.median(sds / own) < 2
    assert np.max(sds / own) < 4
    # Of eight numbers one in a thousand by chance.
    assert np.max(np.abs(at.mean[:8] - truth) / sds) < 3.9


@pytest.mark.slow
@pytest.mark.parametrize("law", [dist.HalfCauchy(50), dist.Exponential(0.02)], ids=["HC", "Exp"])
def test_groups_far_from_where_the_prior_has_them_are_arrived_at(law):
    """Thirty, in euros: once 3 to 54 times as wide as their records tell, and *not arrived*."""

    def groups(group, x, y=None):
        mu = numpyro.sample("mu", dist.Normal(0, 1_000))
        tau, sigma = numpyro.sample("tau", law), numpyro.sample("sigma", law)
        b = numpyro.sample("b", dist.Normal(0, 100))
        with numpyro.plate("towns", 30):
            a = numpyro.sample("a", dist.Normal(mu, tau))
        with numpyro.plate("flats", len(x)):
            numpyro.sample("y", dist.Normal(a[group] + b * x, sigma), obs=y)

    rng = np.random.default_rng(0)
    group = rng.choice(30, 8_000, p=rng.dirichlet(3 * np.ones(30))).astype(np.int32)
    x, truth = rng.normal(size=8_000).astype(np.float32), 830 + 60 * rng.normal(size=30)
    y = (truth[group] + 40 * x + rng.normal(0, 150, 8_000)).astype(np.float32)
    own = 150 / np.sqrt(np.bincount(group, minlength=30))
    release = ndp.LikelihoodRelease(groups, privacy=ndp.Budget(1.0, 1e-5), secure=False)
    at = release.run(jax.random.key(0), group, x, y, progress_bar=False).located
    sds = np.sqrt(np.diag(at.covariance))[:30]
    assert at.arrived
    # Of twenty seeds 1.6 to 2.4, all arrived; of thirty numbers one in a thousand lies farther by
    # chance.
    assert np.median(sds / own) < 2.5
    assert np.max(np.abs(at.mean[:30] - truth) / sds) < 4.2


SIXTHS = [0.4, 0.25, 0.15, 0.1, 0.07, 0.03]


def test_where_outcomes_scatter_more_widely_is_a_step_of_one_and_a_half_sds():
    model = private_model(rents, (np.zeros((50, 2), np.float32), np.zeros(50, np.float32)), {})
    prior = prior_moments(model)
    np.testing.assert_allclose(wider(model, prior), [0, 0, 0, 1.5 * prior.sd[3]])


@pytest.mark.slow
@pytest.mark.parametrize("scale", [dist.HalfNormal(1), dist.HalfCauchy(1)])
def test_counts_with_an_effect_are_found_under_wide_priors(scale):
    """Scales of seven of seven lay 36 to 168 own sds off, four under no note but of width."""
    rng = np.random.default_rng(9)
    x = rng.normal(size=4_000).astype(np.float32)
    y = rng.poisson(np.exp(0.8 + 0.4 * x + 0.7 * rng.normal(size=4_000)))
    points, weights = np.polynomial.hermite_e.hermegauss(9)
    points, weights = tuple(points.tolist()), tuple((weights / weights.sum()).tolist())

    def model(x, y):
        a = numpyro.sample("a", dist.Normal(0, 2))
        b = numpyro.sample("b", dist.Normal(0, 1))
        s = numpyro.sample("s", scale)
        with numpyro.plate("people", len(x)):
            parts = dist.Poisson(jnp.exp((a + b * x)[:, None] + s * jnp.array(points)))
            shares = dist.Categorical(probs=jnp.array(weights))
            numpyro.sample("y", dist.MixtureSameFamily(shares, parts), obs=y)

    release = ndp.LikelihoodRelease(model, privacy=ndp.Budget(1.0, 1e-5), secure=False)
    for seed in range(2):
        at = release.run(jax.random.key(seed), x, y, progress_bar=False)
        off = (at.located.mean - [0.8, 0.4, np.log(0.7)]) / np.sqrt(np.diag(at.located.covariance))
        # One in four hundred lies farther by chance, of three numbers of four releases.
        assert at.located.arrived
        assert np.abs(off).max() < 4


@pytest.mark.slow
def test_the_first_of_a_few_groups_beside_many_is_found():
    """It lay half of the way to the middle in nine of nine, up to 3.9 of its own sds off."""
    rng, ages = np.random.default_rng(54), np.array([-0.5, 0.3, 0.1, 0.0, 0.3, -0.1])
    shares = rng.dirichlet(np.full(51, 1.5))
    group = [rng.choice(51, 9_000, p=shares), *(rng.integers(0, k, 9_000) for k in (6, 4))]
    effects = [rng.normal(0, 0.4, 51), ages, rng.normal(0, 0.3, 4)]
    logit = 0.2 + sum(of[at] for of, at in zip(effects, group, strict=True))
    y = (rng.random(9_000) < 1 / (1 + np.exp(-logit))).astype(np.int32)

    def model(state, age, origin, y):
        logit = numpyro.sample("a", dist.Normal(0, 1.5))
        for name, at, size in (("s", state, 51), ("g", age, 6), ("e", origin, 4)):
            spread = numpyro.sample(f"{name}_sd", dist.HalfNormal(1))
            with numpyro.plate(f"{name}s", size):
                logit += numpyro.sample(name, dist.Normal(0, spread))[at]
        with numpyro.plate("people", len(y)):
            numpyro.sample("y", dist.Bernoulli(logits=logit), obs=y)

    # The records' own mode, under about as much of a prior.
    x = np.concatenate([np.eye(k)[at] for k, at in zip((51, 6, 4), group, strict=True)], axis=1)
    mode = np.zeros(61)
    for _ in range(8):
        p = 1 / (1 + np.exp(-x @ mode))
        information = (x * (p * (1 - p))[:, None]).T @ x + 4 * np.eye(61)
        mode += np.linalg.solve(information, x.T @ (y - p) - 4 * mode)
    release = ndp.LikelihoodRelease(model, privacy=ndp.Budget(1.0, 1e-5), secure=False)
    centred, found = np.eye(6) - 1 / 6, []
    for seed in range(6):
        group = [at.astype(np.int32) for at in group]
        at = release.run(jax.random.key(seed), *group, y, progress_bar=False).located
        # In the order of the names: a, four origins, their sd, six ages.
        here = slice(6, 12)
        sds = np.sqrt(np.diag(centred @ at.covariance[here, here] @ centred.T))
        found.append(centred @ (at.mean[here] - mode[51:57]) / sds)
    # Noise, and a little that any clip takes: of a mean of six .4, and its largest of six ages 1.1.
    assert np.abs(np.mean(found, axis=0)).max() < 1.2
    assert np.abs(found).max() < 3
