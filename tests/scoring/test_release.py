"""Releasing a likelihood: what is charged, refused, said; and what comes out of it."""

import math
import pickle
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC, NUTS, Predictive
from numpyro.infer.util import log_density
from scipy.special import expit

import numpyro_dp as ndp
from numpyro_dp.accounting import rounded_down
from numpyro_dp.accounting.events import GaussianDpEvent
from numpyro_dp.mechanisms import CHACHA20
from numpyro_dp.model.data_free import read_coordinates
from numpyro_dp.model.private_model import private_model
from numpyro_dp.scoring import turns
from numpyro_dp.scoring.statistic import RoundPosition, coordinate_names
from numpyro_dp.scoring.turns import one_release
from tests.models import logistic

BUDGET = ndp.Budget(1.0, 1e-5)


def gaussian(y):
    mean = numpyro.sample("mean", dist.Normal(0, 10))
    sigma = numpyro.sample("sigma", dist.HalfNormal(5))
    numpyro.deterministic("twice", 2 * mean)
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, sigma), obs=y)


def counts(x, y, group):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    tau = numpyro.sample("tau", dist.HalfNormal(1))
    with numpyro.plate("groups", 4):
        effect = numpyro.sample("effect", dist.Normal(mu, tau))
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(effect[group] + w * x)), obs=y)


@pytest.fixture(scope="module")
def y():
    return np.random.default_rng(0).normal(3.0, 2.0, 5_000).astype(np.float32)


@pytest.fixture(scope="module")
def released(y):
    release = ndp.LikelihoodRelease(gaussian, privacy=BUDGET, secure=False)
    return release.run(jax.random.key(0), y, progress_bar=False)


def test_it_lies_where_the_posterior_does(released, y):
    """Within 5 of its own standard deviations, which are at most twice the exact ones."""
    sd = np.sqrt(np.diag(released.located.covariance))
    exact = np.array([y.mean(), np.log(y.std())])
    exact_sd = np.array([y.std() / math.sqrt(len(y)), 1 / math.sqrt(2 * len(y))])
    assert (np.abs(released.located.mean - exact) < 5 * sd).all()
    assert (sd < 2 * exact_sd).all()
    assert (sd > 0.7 * exact_sd).all()
    diagnostics = released.diagnostics
    assert diagnostics.verdicts == ()
    assert all(float(share) > 0.99 for share in diagnostics.resolved.values())
    assert 0.5 < diagnostics.dispersion < 2


def test_the_model_is_the_users_with_one_factor(released):
    trace = numpyro.handlers.trace(numpyro.handlers.seed(released.model, 0)).get_trace()
    assert set(trace) == {"mean", "sigma", "twice", "released_likelihood"}
    values = {"mean": jnp.asarray(2.9), "sigma": jnp.asarray(2.1)}
    value, _ = log_density(released.model, (), {}, values)
    u = np.array([2.9, np.log(2.1)])
    at = released.located
    prior = dist.Normal(0, 10).log_prob(2.9) + dist.HalfNormal(5).log_prob(2.1)
    gap = at.response - at.design @ u
    np.testing.assert_allclose(value, prior - 0.5 * gap @ gap, rtol=1e-4)


@pytest.mark.slow
def test_nuts_on_it_agrees_with_its_closed_form(released):
    mcmc = MCMC(NUTS(released.model), num_warmup=300, num_samples=1_000, progress_bar=False)
    mcmc.run(jax.random.key(1))
    draws = mcmc.get_samples()
    sd = np.sqrt(np.diag(released.located.covariance))
    # Monte Carlo errors of a hundred effective draws would be a tenth.
    assert abs(draws["mean"].mean() - released.located.mean[0]) < 0.3 * sd[0]
    assert abs(np.log(draws["sigma"]).mean() - released.located.mean[1]) < 0.3 * sd[1]
    np.testing.assert_allclose(draws["mean"].std(), sd[0], rtol=0.25)
    guided = Predictive(released.guide, num_samples=2_000)(jax.random.key(2))
    np.testing.assert_allclose(guided["mean"].std(), sd[0], rtol=0.1)
    np.testing.assert_allclose(np.log(guided["sigma"]).mean(), released.located.mean[1], atol=1e-2)


def test_the_guides_density_is_that_of_its_draws(released):
    drawn = numpyro.handlers.trace(numpyro.handlers.seed(released.guide, 0)).get_trace()
    value, _ = log_density(numpyro.handlers.seed(released.guide, 0), (), {}, {})
    at, u = released.located, drawn["_released_latent"]["value"]
    normal = dist.MultivariateNormal(jnp.asarray(at.mean), jnp.asarray(at.covariance)).log_prob(u)
    np.testing.assert_allclose(value, normal - u[1], rtol=1e-3)


def test_another_prior_costs_nothing(released):
    """The likelihood alone can be taken off, and put to any other prior of the same latents."""

    def other():
        mean = numpyro.sample("mean", dist.Normal(100, 0.01))
        sigma = numpyro.sample("sigma", dist.HalfNormal(5))
        numpyro.factor("records", released.log_likelihood({"mean": mean, "sigma": sigma}))

    at = {"mean": jnp.asarray(2.9), "sigma": jnp.asarray(2.1)}
    traces = [
        numpyro.handlers.trace(numpyro.handlers.substitute(model, data=at)).get_trace()
        for model in (other, released.model)
    ]
    own, expected = traces[0]["records"], traces[1]["released_likelihood"]
    np.testing.assert_allclose(own["fn"].log_factor, expected["fn"].log_factor, rtol=1e-4)
    with pytest.raises(ValueError, match="give a value of each latent"):
        released.log_likelihood({"mean": 1.0})


@pytest.mark.slow
def test_a_hierarchy_is_released_centred_and_sampled_in_any_form():
    rng = np.random.default_rng(2)
    group = rng.integers(0, 4, 4_000)
    effects, x = np.array([0.2, 0.8, -0.3, 0.5]), rng.uniform(-1, 1, 4_000).astype(np.float32)
    y = rng.poisson(np.exp(effects[group] + 0.6 * x)).astype(np.int32)
    release = ndp.LikelihoodRelease(counts, privacy=ndp.Budget(2.0, 1e-5), secure=False)
    found = release.run(jax.random.key(0), x, y, group.astype(np.int32), progress_bar=False)
    names = {"effect": numpyro.infer.reparam.LocScaleReparam(0)}
    mcmc = MCMC(
        NUTS(numpyro.handlers.reparam(found.model, config=names)),
        num_warmup=300,
        num_samples=500,
        progress_bar=False,
    )
    mcmc.run(jax.random.key(1))
    draws = mcmc.get_samples()
    assert set(draws) >= {"effect", "effect_decentered", "mu", "tau", "w"}
    z = (draws["effect"].mean(0) - effects) / draws["effect"].std(0)
    assert np.abs(z).max() < 5
    # The records say nothing of mu and tau themselves.
    assert abs(float(draws["w"].mean()) - 0.6) < 5 * float(draws["w"].std())


def test_what_records_tell_of_through_other_latents_is_not_called_untold():
    """Of mu and tau no record's term reads anything; of the last group there is no record."""
    rng = np.random.default_rng(2)
    group, x = rng.integers(0, 3, 4_000), rng.uniform(-1, 1, 4_000).astype(np.float32)
    y = rng.poisson(np.exp(np.array([0.2, 0.8, -0.3])[group] + 0.6 * x)).astype(np.int32)
    release = ndp.LikelihoodRelease(counts, privacy=ndp.Budget(2.0, 1e-5), secure=False)
    found = release.run(jax.random.key(0), x, y, group.astype(np.int32), progress_bar=False)
    assert dict(
        zip(
            coordinate_names(found.private_model),
            read_coordinates(found.private_model),
            strict=True,
        )
    ) == {f"effect[{k}]": True for k in range(4)} | {"mu": False, "tau": False, "w": True}
    resolved = found.diagnostics.resolved
    assert max(resolved["mu"], resolved["tau"], resolved["effect"][3]) < 0.2
    (said,) = found.diagnostics.verdicts
    assert said.startswith("wide: next to nothing was told of effect[3]: its interval")
    assert found.privacy.notes == (said,)


def test_rare_levels_are_not_cut_more_in_each_round():
    """72 and 90 of 2,600 records: 8.0 and 6.3 times as wide as the records' own, now 1.9 and 1.7.

    In the middle of ten releases, the farthest 3.4; the seeds are fixed.
    """
    rng = np.random.default_rng(13)
    level = rng.permutation(np.repeat(np.arange(4), [1_438, 1_000, 90, 72]))
    x = np.column_stack([rng.normal(size=(2_600, 4)), np.eye(4)[level, 1:]]).astype(np.float32)
    y = (x @ rng.normal(0, 0.5, 7) + 0.5 * rng.standard_t(8, 2_600)).astype(np.float32)

    def regression(x, y):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([7]).to_event(1))
        sigma = numpyro.sample("sigma", dist.HalfNormal(1))
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ w, sigma), obs=y)

    release = ndp.LikelihoodRelease(regression, privacy=BUDGET, secure=False)
    own = np.sqrt(np.diag(np.linalg.inv(x.T @ x))) * np.std(y - x @ np.linalg.lstsq(x, y)[0])
    widths = []
    for seed in range(5):
        found = release.run(jax.random.key(seed), x, y, progress_bar=False).located.covariance
        widths.append(np.sqrt(np.diag(found))[-7:] / own)
    assert (np.median(widths, axis=0)[-2:] < [2.4, 2.6]).all()
    assert (np.median(widths, axis=0)[:-2] < 1.6).all()


@pytest.mark.slow
def test_slopes_beside_groups_and_a_column_in_years_arrive():
    """40 groups: slopes were 3.8 to 5.7 times as wide as the records' own, and still on their way.

    Now 1.3 to 1.5 times, in the middle of these five, the widest 1.5.
    """
    rng = np.random.default_rng(12)
    group = rng.choice(40, 5_000, p=rng.dirichlet(np.full(40, 2.0))).astype(np.int32)
    x = np.column_stack([rng.normal(2, 13, 5_000), rng.poisson(1.6, 5_000) - 2.0])
    x = np.column_stack([x, rng.random(5_000) < 0.35]).astype(np.float32)
    logits = rng.normal(-1.5, 0.5, 40)[group] + x @ (truth := np.array([0.015, 0.2, 0.4]))
    y = (rng.random(5_000) < 1 / (1 + np.exp(-logits))).astype(np.int32)

    def hierarchy(x, group, y):
        mu = numpyro.sample("mu", dist.Normal(0, 2))
        tau = numpyro.sample("tau", dist.HalfNormal(1))
        slope = numpyro.sample("slope", dist.Normal(0, 1).expand([3]).to_event(1))
        with numpyro.plate("groups", 40):
            effect = numpyro.sample("effect", dist.Normal(mu, tau))
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=effect[group] + x @ slope), obs=y)

    columns, chance = np.column_stack([x, np.eye(40)[group]]), 1 / (1 + np.exp(-logits))
    own = np.sqrt(np.diag(np.linalg.inv((columns.T * chance * (1 - chance)) @ columns)))[:3]
    release = ndp.LikelihoodRelease(hierarchy, privacy=BUDGET, secure=False)
    widths, off = [], []
    for seed in range(5):
        found = release.run(jax.random.key(seed), x, group, y, progress_bar=False)
        slopes = slice(41, 44)
        assert coordinate_names(found.private_model)[slopes] == [f"slope[{k}]" for k in range(3)]
        sds = np.sqrt(np.diag(found.located.covariance))[slopes]
        widths.append(sds / own)
        off.append((found.located.mean[slopes] - truth) / np.hypot(sds, own))
        assert not any("arrived" in said for said in found.diagnostics.verdicts)
    assert (np.median(widths, axis=0) < 1.7).all()
    # Of three medians of five halves of normal numbers, one is above 1.6 in a thousand.
    assert (np.median(np.abs(off), axis=0) < 1.6).all()


@pytest.mark.slow
@pytest.mark.parametrize(("centre", "wider"), [(0.0, 2.2), (50.0, 1.3)])
def test_columns_beside_groups_need_not_be_centred(centre, wider):
    """Slope and groups were 2 to 7 times as wide as NUTS's; now 1.5 and 1.3, centred 1.2.

    In one of four releases the slope is twice as wide, and named.
    """
    rng = np.random.default_rng(10)
    group = rng.choice(28, 6_000, p=rng.dirichlet(np.full(28, 1.5))).astype(np.int32)
    age = rng.uniform(20, 80, 6_000)
    y = 140 + 7 * rng.normal(size=28)[group] + 0.45 * (age - 50) + 11 * rng.normal(size=6_000)

    def hierarchy(age, group, y):
        mu = numpyro.sample("mu", dist.Normal(130, 30))
        tau = numpyro.sample("tau", dist.HalfNormal(10))
        slope = numpyro.sample("slope", dist.Normal(0, 1))
        sigma = numpyro.sample("sigma", dist.HalfNormal(15))
        with numpyro.plate("groups", 28):
            effect = numpyro.sample("effect", dist.Normal(mu, tau))
        with numpyro.plate("people", age.shape[0]):
            numpyro.sample("y", dist.Normal(effect[group] + slope * age, sigma), obs=y)

    release = ndp.LikelihoodRelease(hierarchy, privacy=BUDGET, secure=False)
    columns = (age - centre).astype(np.float32), group, y.astype(np.float32)
    for seed in range(4):
        found = release.run(jax.random.key(seed), *columns, progress_bar=False).diagnostics
        named = [said for said in found.verdicts if "privacy noise widens" in said]
        assert found.widened["slope"] < wider
        assert np.median(found.widened["effect"]) < 1.6
        assert (found.widened["slope"] > 1.5) == any("slope" in said for said in named)


@pytest.mark.slow
def test_counts_on_columns_as_they_come_beside_rare_levels():
    """Age and BMI beside six regions, one of 25 records: 10 to 26 times as wide, now 1.2 to 1.4.

    Of the records' own, the rarest two regions apart; the widest of three releases 1.42.
    """
    rng = np.random.default_rng(11)
    age, smoker = rng.normal(52, 16, 5_000).clip(18, 95), rng.random(5_000) < 0.22
    bmi = rng.normal(27, 5, 5_000).clip(15, 60)
    region = rng.choice(6, 5_000, p=[0.45, 0.25, 0.15, 0.1, 0.045, 0.005])
    time = rng.uniform(0.1, 3, 5_000)
    x = np.column_stack([np.ones(5_000), age, bmi, smoker, np.eye(6)[region][:, 1:]])
    truth = np.array([-1.5, 0.018, 0.01, 0.4, 0.2, -0.3, 0.1, 0.5, -0.4])
    y = rng.poisson(time * np.exp(x @ truth)).astype(np.int32)

    def visits(x, region, time, y):
        a = numpyro.sample("a", dist.Normal(0, 3))
        b = numpyro.sample("b", dist.Normal(0, jnp.array([0.1, 0.1, 1.0])).to_event(1))
        r = numpyro.sample("r", dist.Normal(0, 1).expand([5]).to_event(1))
        r = jnp.concatenate([jnp.zeros(1), r])
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("y", dist.Poisson(time * jnp.exp(a + x @ b + r[region])), obs=y)

    own = np.sqrt(np.diag(np.linalg.inv((x.T * time * np.exp(x @ truth)) @ x)))
    release = ndp.LikelihoodRelease(visits, privacy=BUDGET, secure=False)
    columns = x[:, 1:4].astype(np.float32), region.astype(np.int32), time.astype(np.float32), y
    for seed in range(3):
        found = release.run(jax.random.key(seed), *columns, progress_bar=False)
        wider = np.sqrt(np.diag(found.located.covariance)) / own
        assert (wider[:7] < 1.7).all(), wider
        assert not any("arrived" in said for said in found.diagnostics.verdicts)


@pytest.mark.slow
def test_a_level_that_trades_with_an_age_as_it_comes_is_where_the_records_have_it():
    """Beds say how wide each hospital's prior is. In units of that, rounds came to rest on the way.

    At 83 to 127 squared sds of their own statement from the records' mode, of 35 coordinates, with
    intervals narrower than NUTS's and no note; now 11 to 14.
    """
    rng = np.random.default_rng(5)
    share = rng.lognormal(0, 0.9, 32)
    hospital = rng.choice(32, 7_000, p=share / share.sum()).astype(np.int32)
    beds = ndp.public(rng.uniform(-1, 1.7, 32).astype(np.float32))
    age, creatinine = rng.normal(66, 14, 7_000).clip(18, 98), rng.lognormal(0.1, 0.35, 7_000)
    x = np.column_stack([age, creatinine, rng.random(7_000) < 0.22]).astype(np.float32)
    alone = rng.normal(-3.95, 0.4, 32)
    y = rng.random(7_000) < expit(alone[hospital] + x @ [0.03, 0.6, 0.3])
    y = y.astype(np.int32)

    def readmitted(beds, hospital, x, y=None):
        mu, gamma = (numpyro.sample(n, dist.Normal(m, 1)) for n, m in (("mu", -1), ("gamma", 0)))
        tau = numpyro.sample("tau", dist.HalfNormal(1))
        slope = numpyro.sample("slope", dist.Normal(0, 1).expand([3]).to_event(1))
        with numpyro.plate("hospitals", 32):
            a = numpyro.sample("a", dist.Normal(mu + gamma * beds, tau))
        with numpyro.plate("patients", x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=a[hospital] + x @ slope), obs=y)

    every = np.column_stack([np.eye(32)[hospital], x])
    law = np.diag(np.r_[np.full(32, 1 / 0.4**2), np.ones(3)])
    middle = np.r_[np.full(32, -3.95), np.zeros(3)]
    mode = np.zeros(35)
    for _ in range(30):
        rate = expit(every @ mode)
        pull = every.T @ (y - rate) - law @ (mode - middle)
        mode = mode + np.linalg.solve((every.T * rate * (1 - rate)) @ every + law, pull)
    release = ndp.LikelihoodRelease(readmitted, privacy=BUDGET, secure=False)
    for seed in range(3):
        at = release.run(jax.random.key(seed), beds, hospital, x, y, progress_bar=False).located
        # In the order of names: effects, gamma, mu, slopes, tau.
        design = at.design[:, np.r_[0:32, 34:37]]
        off = design @ mode - at.response
        best = np.linalg.lstsq(design, at.response, rcond=None)[0]
        assert off @ off - np.sum((design @ best - at.response) ** 2) < 45


@pytest.mark.slow
@pytest.mark.parametrize(
    ("records", "groups", "epsilon", "scale"), [(1_000, 12, 0.3, 100.0), (2_000, 40, 0.5, 1.0)]
)
def test_what_is_charged_comes_to_an_end_beside_columns_far_from_nought(
    records, groups, epsilon, scale
):
    """Of groups that are not heard noise said that a column is told without bound: 7 of 24."""
    rng = np.random.default_rng(records)
    group = rng.integers(0, groups, records).astype(np.int32)
    x = np.column_stack([rng.normal(500, 100, records), rng.random(records) < 0.01])
    y = rng.normal(0, 3, groups)[group] + 0.01 * x[:, 0] + rng.normal(size=records)

    def far(x, group, y):
        effect = numpyro.sample("effect", dist.Normal(0, scale).expand([groups]).to_event(1))
        slope = numpyro.sample("slope", dist.Normal(0, scale).expand([2]).to_event(1))
        sigma = numpyro.sample("sigma", dist.HalfNormal(scale))
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("y", dist.Normal(effect[group] + x @ slope, sigma), obs=y)

    privacy = ndp.Budget(epsilon, 1e-5)
    release = ndp.LikelihoodRelease(far, privacy=privacy, secure=False, allow_unresolved=True)
    columns = x.astype(np.float32), group, y.astype(np.float32)
    for seed in range(12):
        at = release.run(jax.random.key(seed), *columns, progress_bar=False).located
        assert np.isfinite(at.mean).all()
        assert (np.linalg.eigvalsh(at.covariance) > 0).all()


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "drowned"), [(1.0, True), (2.0, False)])
def test_many_groups_at_a_small_budget_are_named(epsilon, drowned):
    """3,000 records of 30 groups: at ε = 1 most intervals are over twice as wide as NUTS's."""

    def groups(group, y=None):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        tau = numpyro.sample("tau", dist.HalfNormal(1))
        with numpyro.plate("groups", 30):
            theta = numpyro.sample("theta", dist.Normal(mu, tau))
        sigma = numpyro.sample("sigma", dist.HalfNormal(1))
        with numpyro.plate("people", group.shape[0]):
            numpyro.sample("y", dist.Normal(theta[group], sigma), obs=y)

    release = ndp.LikelihoodRelease(groups, privacy=ndp.Budget(epsilon, 1e-5), secure=False)
    for seed in range(4):
        rng = np.random.default_rng(seed)
        group = rng.choice(30, 3_000, p=rng.dirichlet(np.full(30, 3.0))).astype(np.int32)
        y = rng.normal(0.5, 0.5, 30)[group] + 0.8 * rng.normal(size=3_000)
        y = y.astype(np.float32)
        found = release.run(jax.random.key(seed), group, y, progress_bar=False)
        diagnostics = found.diagnostics
        assert diagnostics.widened["theta"].shape == (30,)
        said = " ".join(diagnostics.verdicts)
        lost = diagnostics.travelled > 3 * math.sqrt(32)
        # What has not arrived is named as that, and few of many groups as of few records.
        if drowned and not lost:
            assert "noise widens" in said or "little was told of theta" in said
        else:
            assert "noise widens" not in said
        assert lost <= drowned


@pytest.mark.slow
@pytest.mark.parametrize("family", ["normal", "bernoulli"])
def test_a_rare_level_is_named_and_a_column_of_small_size_is_not(family):
    """Levels of 40, 200 and 500 records of 6,000, and a slope of which the column is tiny."""

    def model(x, y=None):
        a = numpyro.sample("a", dist.Normal(0, 2))
        b = numpyro.sample("b", dist.Normal(0, jnp.array([1.0, 1, 1, 1, 100])).to_event(1))
        eta = a + x @ b
        with numpyro.plate("people", x.shape[0]):
            outcome = dist.Normal(eta, 0.6) if family == "normal" else dist.Bernoulli(logits=eta)
            numpyro.sample("y", outcome, obs=y)

    release, both, late = ndp.LikelihoodRelease(model, privacy=BUDGET, secure=False), 0, 0
    for seed in range(6):
        rng = np.random.default_rng(seed)
        level = rng.permutation(np.repeat([0, 1, 2, 3], [5_260, 40, 200, 500]))
        x = np.c_[np.eye(4)[level, 1:], rng.normal(size=(6_000, 2)) * [1, 0.01]]
        eta = 0.2 + x @ [1.6, 0.5, -0.5, 0.4, 0.0]
        normal, uniform = rng.normal(size=6_000), rng.random(6_000)
        y = eta + 0.6 * normal if family == "normal" else uniform < 1 / (1 + np.exp(-eta))
        y = y.astype(np.float32 if family == "normal" else np.int32)
        found = release.run(jax.random.key(seed), x.astype(np.float32), y, progress_bar=False)
        verdicts = found.diagnostics.verdicts
        said, *others = (each for each in verdicts if "hardly arrived" not in each)
        late += len(verdicts) - 1 - len(others)
        assert said.startswith("wide: little was told of ")
        # By chance the level of 200 as well, where it is 1.6 times as wide as the records' own.
        named = said.partition("told of ")[2].partition(":")[0]
        assert named in ("b[0]", "b[0], b[1]")
        assert all("privacy noise widens intervals: those of b[1] are" in each for each in others)
        both += bool(others) or named != "b[0]"
        assert found.diagnostics.signal["b"][4] > 9
    assert both <= 3
    # One of 32 was.
    assert late <= 1


def test_what_a_support_reads_is_read():
    def bounded(y):
        top = numpyro.sample("top", dist.HalfNormal(1))
        numpyro.sample("unused", dist.Normal(0, 1))
        mean = numpyro.sample("mean", dist.Uniform(0, top))
        with numpyro.plate("people", y.shape[0]):
            numpyro.sample("y", dist.Normal(mean, 1), obs=y)

    model = private_model(bounded, (np.zeros(20, np.float32),))
    assert dict(zip(coordinate_names(model), read_coordinates(model), strict=True)) == {
        "mean": True,
        "top": True,
        "unused": False,
    }


def test_every_round_is_one_gaussian_and_all_are_charged_before_a_record_is_read(y, monkeypatch):
    accountant = ndp.Accountant(ndp.Budget(1.0, 1e-5))
    release = ndp.LikelihoodRelease(gaussian, privacy=BUDGET, accountant=accountant)
    seen = []
    monkeypatch.setattr(
        "numpyro_dp.scoring.release.released_rounds",
        lambda *_: seen.append(len(accountant.entries)) or (_ for _ in ()).throw(KeyError("stop")),
    )
    with pytest.raises(KeyError, match="stop"):
        release.run(jax.random.key(0), y, progress_bar=False)
    assert seen == [1]
    (entry,) = accountant.entries
    gaussians = [e for part in entry.event.events for e in part.events if hasattr(e, "event")]
    assert all(isinstance(e.event, GaussianDpEvent) for e in gaussians)
    assert sum(e.count for e in gaussians) == 15
    # Squared privacy losses add up to those of the budget's one Gaussian, within the lattice's.
    total = math.sqrt(sum(e.count / e.event.noise_multiplier**2 for e in gaussians))
    assert total == pytest.approx(1 / ndp.calibrate(GaussianDpEvent, BUDGET), rel=0.01)
    assert accountant.epsilon() <= 1.0


def test_every_number_of_a_round_has_the_charged_noise(y):
    """150 releases: a standard deviation is known to 5.8 %, the bound is 5.2 of that."""
    few = y[:20]
    bound = ndp.LikelihoodRelease(gaussian, privacy=BUDGET, allow_unresolved=True).bind(
        (few,), {}, "zero_out"
    )
    joint, statistic = bound.plan.sums[1], bound.statistic
    position = RoundPosition(jnp.zeros(2), 0.05 * jnp.eye(2), jnp.asarray(0.3))
    records = [jnp.asarray(few), jnp.arange(20, dtype=jnp.int32)]

    @partial(jax.jit, static_argnums=(0, 1))
    def drawn_by(each, phase, keys, step):
        release = partial(one_release, statistic, each, phase, position)
        return jax.lax.map(lambda key: release(key, jax.random.key(1), records, step), keys)

    keys = [jax.random.split(jax.random.key(k, impl=CHACHA20), 150) for k in range(3)]
    for step in (0, len(bound.shares) - 1):
        drawn = np.asarray(drawn_by(joint, 1, keys[step > 0], step))
        np.testing.assert_allclose(drawn.std(0), joint.noise_sd(step), rtol=0.3)
        # One draw serves one entry.
        assert np.abs(np.corrcoef(drawn.T) - np.eye(drawn.shape[1])).max() < 0.45
    sizes = bound.plan.sums[0]
    drawn = np.asarray(drawn_by(sizes, 0, keys[2], 0))
    np.testing.assert_allclose(drawn.std(0), sizes.noise_sd(0), rtol=0.33)


def test_a_release_is_the_same_however_it_is_compiled(y):
    """But for the last bits: one record in a thousand may be rounded to the next integer."""
    bound = ndp.LikelihoodRelease(gaussian, privacy=BUDGET).bind((y,), {}, "zero_out")
    position = RoundPosition(jnp.zeros(2), 0.05 * jnp.eye(2), jnp.asarray(0.3))
    records = [jnp.asarray(y), jnp.arange(len(y), dtype=jnp.int32)]
    keys = jax.random.key(0, impl=CHACHA20), jax.random.key(1)
    for phase, each in enumerate(bound.plan.sums):
        given = bound.statistic, each, phase, position, keys, 3, records, 0
        unit = each.lattice.bound.scale
        plain = jax.jit(turns._numbered, static_argnums=(0, 1, 2))(*given)
        for found in (turns.asked(*given), turns._at_once(*given), turns._again(*given)):
            np.testing.assert_allclose(found, plain, rtol=1e-6, atol=5 * float(unit))


def test_what_was_released_decides_and_nothing_else(y, monkeypatch):
    """With the same answers, other records lead to the same end: no other way leads from them."""

    def answers(statistic, private_sum, phase, *_):
        rng = np.random.default_rng([phase, len(asked)])
        asked.append(phase)
        return jnp.asarray(rng.normal(size=private_sum.dim) * private_sum.noise_sd(0))

    found = []
    monkeypatch.setattr("numpyro_dp.scoring.turns.asked", answers)
    for records in (y, -5 * y):
        asked = []
        release = ndp.LikelihoodRelease(gaussian, privacy=BUDGET)
        found.append(release.run(jax.random.key(0), records, progress_bar=False).located)
        assert asked == [0] + [1] * 14
    for first, second in zip(*found, strict=True):
        np.testing.assert_array_equal(first, second)


def test_the_report_can_be_recomputed_and_names_what_was_released(released):
    report = released.privacy
    assert report.epsilon <= 1.0
    assert report.recompute() == pytest.approx(report.epsilon)
    assert "scores and information (14)" in report.full()
    assert "secure=False" in report.full() or report.conditions


def test_replace_one_has_twice_the_noise(y):
    found = {}
    for relation in ("zero_out", "replace_one"):
        accountant = ndp.Accountant(relation=relation)
        release = ndp.LikelihoodRelease(gaussian, privacy=BUDGET, accountant=accountant)
        found[relation] = release.bind((y,), {}, relation)
    noise = {name: each.plan.noise_multiplier for name, each in found.items()}
    assert noise["replace_one"] == pytest.approx(2 * noise["zero_out"], rel=0.01)
    signal = {name: each.forecast.signal for name, each in found.items()}
    assert signal["zero_out"] == pytest.approx(4 * signal["replace_one"], rel=1e-3)


def test_one_broken_record_neither_poisons_nor_reveals(y, released):
    broken = y.copy()
    broken[7] = np.nan
    # The noise is that of the other release.
    release = ndp.LikelihoodRelease(gaussian, privacy=BUDGET, secure=False)
    found = release.run(jax.random.key(0), broken, progress_bar=False).located
    assert np.isfinite(found.mean).all()
    gap = np.abs(found.mean - released.located.mean)
    assert (gap < np.sqrt(np.diag(found.covariance))).all()


def test_no_record_is_in_what_is_kept(released, tmp_path, y):
    path = tmp_path / "released.pkl"
    marked = np.float32(y[123]).tobytes()
    released.save(path)
    assert marked not in path.read_bytes()
    again = ndp.ReleasedLikelihood.load(path)
    np.testing.assert_array_equal(again.located.mean, released.located.mean)
    assert again.privacy.full() == released.privacy.full()
    drawn = Predictive(again.model, num_samples=3)(jax.random.key(0))
    assert drawn["mean"].shape == (3,)
    path.write_bytes(pickle.dumps("else"))
    with pytest.raises(ValueError, match="no released likelihood"):
        ndp.ReleasedLikelihood.load(path)


@pytest.mark.slow
def test_float64_runs(y):
    with jax.enable_x64(True):
        release = ndp.LikelihoodRelease(gaussian, privacy=BUDGET, secure=False)
        found = release.run(jax.random.key(0), y.astype(np.float64), progress_bar=False)
    assert abs(found.located.mean[0] - y.mean()) < 5 * math.sqrt(found.located.covariance[0, 0])


# --- refusals: before anything is charged


def refused(error, match, model, *args, **options):
    accountant = options.pop("accountant", ndp.Accountant())
    release = ndp.LikelihoodRelease(
        model, **{"privacy": BUDGET, "accountant": accountant, **options}
    )
    with pytest.raises(error, match=match):
        release.run(jax.random.key(0), *args, progress_bar=False)
    assert accountant.entries == ()


def test_what_cannot_teach_anything_is_refused_with_what_would(y):
    refused(ValueError, r"times as many records, or ε = 1\.\d", gaussian, y[:60])
    small = ndp.Budget(0.01, 1e-5)
    refused(ValueError, r"tell next to nothing .*Nothing was charged", gaussian, y, privacy=small)
    expected = ndp.LikelihoodRelease(gaussian, privacy=small).forecast(y)
    assert expected.verdict == "not"
    assert "not resolved" in str(expected)


def test_a_refusal_asks_whose_many_coordinates_are():
    """Answers in a long table, with an ability for each person."""

    def answers(person, item, y):
        ability = numpyro.sample("ability", dist.Normal(0, 1).expand([300]).to_event(1))
        difficulty = numpyro.sample("difficulty", dist.Normal(0, 1).expand([10]).to_event(1))
        with numpyro.plate("answers", len(y)):
            numpyro.sample("y", dist.Bernoulli(logits=ability[person] - difficulty[item]), obs=y)

    person, item = (np.ravel(x).astype(np.int32) for x in np.mgrid[:300, :10])
    said = r"next to nothing.*300 of the 310 coordinates are of `ability`.*a person with all"
    refused(ValueError, said, answers, person, item, np.zeros(3_000, np.int32))


def test_thousands_of_coordinates_are_refused_as_too_many_and_not_by_a_lattice():
    """A long table of people with an effect each."""

    def visits(person, y):
        effect = numpyro.sample("effect", dist.Normal(0, 1).expand([2_000]).to_event(1))
        with numpyro.plate("visits", len(y)):
            numpyro.sample("y", dist.Normal(effect[person], 1), obs=y)

    person = np.repeat(np.arange(2_000, dtype=np.int32), 2)
    said = r"next to nothing.*2000 of the 2000 coordinates are of `effect`.*a person with all"
    refused(ValueError, said, visits, person, np.zeros(4_000, np.float32))


def test_what_is_not_resolved_is_released_if_one_insists(y):
    insisting = ndp.LikelihoodRelease(gaussian, privacy=BUDGET, allow_unresolved=True, num_rounds=2)
    found = insisting.run(jax.random.key(0), y[:20], progress_bar=False)
    assert np.isfinite(found.located.mean).all()


def test_the_remedy_of_a_refusal_is_enough(y):
    expected = ndp.LikelihoodRelease(gaussian, privacy=BUDGET).forecast(y[:60])
    times = float(expected.remedy.split("about ")[1].split(" times")[0])
    more = ndp.LikelihoodRelease(gaussian, privacy=BUDGET).forecast(y[: math.ceil(60 * times)])
    assert more.verdict != "not"
    enough = float(expected.remedy.split("ε = ")[1].split()[0])
    for epsilon, wanted in ((enough, "partly"), (0.85 * enough, "not")):
        privacy = ndp.Budget(epsilon, BUDGET.delta)
        found = ndp.LikelihoodRelease(gaussian, privacy=privacy).forecast(y[:60])
        assert found.verdict == wanted


def test_a_forecast_reads_no_value(y):
    release = ndp.LikelihoodRelease(gaussian, privacy=BUDGET)
    found = release.forecast(y)
    assert found == release.forecast(np.full_like(y, np.nan))
    assert found == release.forecast(jax.ShapeDtypeStruct(y.shape, y.dtype))
    assert found == ndp.DPNUTS(gaussian, privacy=BUDGET).forecast(y)


def test_a_forecast_says_whether_the_ledger_has_room(y):
    accountant = ndp.Accountant(ndp.Budget(1.0, 1e-5))
    kernel = ndp.DPNUTS(gaussian, privacy=ndp.Budget(0.8, 1e-5), accountant=accountant)
    assert "is left, and this fits" in str(kernel.forecast(y))
    ndp.MCMC(kernel, num_warmup=10, num_samples=10, progress_bar=False).run(jax.random.key(0), y)
    said = kernel.forecast(y).ledger
    assert f"ε = {rounded_down(accountant.remaining())} of 1 at δ = 1e-05 is left" in said
    assert "does not fit" in said
    with pytest.raises(ndp.BudgetExceededError):
        ndp.MCMC(kernel, num_warmup=10, num_samples=10).run(jax.random.key(0), y)
    assert not ndp.DPNUTS(gaussian, privacy=BUDGET).forecast(y).ledger
    plan = accountant.plan([GaussianDpEvent(20.0)], label="two looks")
    kernel = ndp.DPNUTS(gaussian, privacy=ndp.Budget(0.8, 1e-5), accountant=plan)
    assert kernel.forecast(y).ledger == "ledger: the plan 'two looks' does not hold this"


def test_many_entries_are_groups_or_rows_of_persons():
    """Whose they are is asked first of what there are few records of."""

    def model(group, y):
        a = numpyro.sample("a", dist.Normal(0, 1).expand([60]).to_event(1))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Normal(a[group], 1), obs=y)

    for number, first in ((6_000, "counties"), (600, "each person")):
        group = np.arange(number) % 60
        release = ndp.LikelihoodRelease(model, privacy=ndp.Budget(0.3, 1e-6))
        said = release.forecast(group, group.astype(np.float32)).crowd
        assert first in said.split(";")[0]


@pytest.mark.slow
def test_a_plan_of_another_kernel_ends_with_what_a_release_would_promise(y):
    kernel = ndp.DPSGLD(
        gaussian, step_size=1e-5, batch_size=100, clip_norm=2.0, privacy=ndp.Budget(1.0, 1e-5)
    )
    plan = ndp.plan(kernel, y, num_steps=50)
    last = str(plan).split("DPNUTS")[-1]
    said = " ".join(last.split())
    assert "at the same ε: can be resolved: " in said
    assert "a typical interval about" in said
    exact = ndp.LikelihoodRelease(gaussian, privacy=BUDGET).forecast(y)
    assert plan.released.signal == pytest.approx(exact.signal, rel=0.01)


def test_a_kernel_that_forecasts_has_no_other_plan(y):
    with pytest.raises(ValueError, match=r"use its own forecast\(\)"):
        ndp.plan(ndp.DPNUTS(gaussian, privacy=BUDGET), y, num_steps=50)


def test_a_private_number_of_records_is_refused(y):
    accountant = ndp.Accountant(relation="add_remove")
    refused(ndp.UnsupportedModelError, "zero_out", gaussian, y, accountant=accountant)


def test_records_with_latents_of_their_own_are_refused(y):
    def mixture(y):
        means = numpyro.sample("means", dist.Normal(0, 3).expand([2]).to_event(1))
        with numpyro.plate("people", y.shape[0]):
            which = numpyro.sample("which", dist.Bernoulli(0.5), infer={"enumerate": "parallel"})
            numpyro.sample("y", dist.Normal(means[which], 1), obs=y)

    refused(ndp.UnsupportedModelError, r"several modes.*DPSGLD", mixture, y)


def test_a_flat_prior_is_refused(y):
    def flat(y):
        mean = numpyro.sample("mean", dist.ImproperUniform(dist.constraints.real, (), ()))
        with numpyro.plate("people", y.shape[0]):
            numpyro.sample("y", dist.Normal(mean, 1), obs=y)

    refused(ndp.UnsupportedModelError, r"`mean` is flat.*proper prior", flat, y)


def test_flat_cutpoints_are_refused_with_a_prior_that_is_ordered(y):
    support = dist.constraints.ordered_vector

    def flat(x, y):
        cuts = numpyro.sample("cuts", dist.ImproperUniform(support, (), (3,)))
        with numpyro.plate("people", y.shape[0]):
            numpyro.sample("y", dist.OrderedLogistic(x, cuts), obs=y)

    said = r"`cuts` is flat.*TransformedDistribution\(.*OrderedTransform.*ordinal-answers"
    refused(ndp.UnsupportedModelError, said, flat, y, y.astype(np.int32))


ORDERED = dist.TransformedDistribution(
    dist.Normal(340, 80).expand([3]).to_event(1), dist.transforms.OrderedTransform()
)


@pytest.mark.parametrize(
    "prior",
    [ORDERED, dist.Normal(3e38, 1e38), dist.Normal(0, 1e19)],
    ids=["ordered", "huge", "wide"],
)
def test_a_prior_that_no_number_holds_is_refused_by_name(y, prior):
    def overflowing(y):
        numpyro.sample("before", dist.Normal(0, 1).expand([2]).to_event(1))
        mean = numpyro.sample("mean", prior)
        numpyro.sample("then", dist.Normal(0, 1))
        with numpyro.plate("people", y.shape[0]):
            numpyro.sample("y", dist.Normal(jnp.mean(mean), 1), obs=y)

    # Warnings of NumPy would be errors here.
    said = r"prior of `mean` has no spread.*OrderedTransform.*logarithms"
    refused(ndp.UnsupportedModelError, said, overflowing, y)


def test_a_factor_without_an_outcome_is_refused(y):
    def bare(y):
        mean = numpyro.sample("mean", dist.Normal(0, 10))
        with numpyro.plate("people", y.shape[0]):
            numpyro.factor("likelihood", -0.5 * (y - mean) ** 2)

    refused(ndp.UnsupportedModelError, r"`people` there is `likelihood`.*handlers\.scale", bare, y)


def test_arguments_out_of_range(y):
    for options, match in (
        ({"privacy": 1.0}, "Budget"),
        ({"num_rounds": 0}, "num_rounds"),
        ({"num_rounds": 2.5}, "num_rounds"),
    ):
        with pytest.raises(ValueError, match=match):
            ndp.LikelihoodRelease(gaussian, **{"privacy": BUDGET, **options})
    with pytest.raises(ValueError, match="NumPyro model"):
        ndp.LikelihoodRelease("model", privacy=BUDGET)


# --- calibration, on fresh data sets


def covered(model, generate, records, epsilon, sets):
    """Share of truths within 95 % intervals, of data sets of which nothing is said, and these."""
    # From the keys below: the same noise in every run of the test.
    release = ndp.LikelihoodRelease(model, privacy=ndp.Budget(epsilon, 1e-5), secure=False)
    within = []
    for k in range(sets):
        truth, args = generate(np.random.default_rng(5_000 + k), records)
        released = release.run(jax.random.key(k), *args, progress_bar=False)
        at, verdicts = released.located, released.diagnostics.verdicts
        z = np.abs(at.mean - truth) / np.sqrt(np.diag(at.covariance))
        if not verdicts:
            within.append(z < 1.96)
        # What is far off is named.
        assert verdicts or z.max() < 5
    return np.array(within).mean(), len(within)


@pytest.mark.slow
def test_few_records_are_asked_in_their_own_units():
    """100 records at ε = 1: a wrong first clip norm had ruined one run in nine, unnamed."""

    def model(y):
        mean = numpyro.sample("mean", dist.Normal(0, 1))
        with numpyro.plate("people", y.shape[0]):
            numpyro.sample("y", dist.Normal(mean, 1), obs=y)

    y = (1 + np.random.default_rng(3_025).normal(size=100)).astype(np.float32)
    release = ndp.LikelihoodRelease(model, privacy=ndp.Budget(1.0, 1e-5), secure=False)
    for key in range(60):
        at = release.run(jax.random.key(key + 95), y, progress_bar=False).located
        # 60 numbers: one of them beyond 4 by chance in 260 such tests, and no guarantee that the
        # widths, which are estimated, are exact.
        assert abs(at.mean[0] - y.sum() / 101) < 5 * math.sqrt(at.covariance[0, 0])
        assert 0.05 < math.sqrt(at.covariance[0, 0]) < 0.6


@pytest.mark.slow
def test_a_truth_that_no_round_found_is_named():
    """Outcomes a hundred prior sds out: some runs end where they began, as if all were well."""

    def model(x, y):
        sigma = numpyro.sample("sigma", dist.LogNormal(0, 1))
        w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ w, sigma), obs=y)

    release = ndp.LikelihoodRelease(model, privacy=ndp.Budget(1.0, 1e-5), secure=False)
    for seed in range(12):
        rng = np.random.default_rng(1_000 + seed)
        x = np.ones((2_000, 3), np.float32)
        x[:, 1:] = rng.uniform(-(3**0.5), 3**0.5, (2_000, 2))
        y = (x @ np.r_[100, 0.5 * rng.normal(size=2)] + rng.normal(size=2_000)).astype(np.float32)
        released = release.run(jax.random.key(seed), x, y, progress_bar=False)
        assert abs(released.located.mean[1] - 100) > 50
        # None of these is merely wide.
        assert released.diagnostics.verdicts[0].startswith(("do not use: ", "with care: "))
        assert released.privacy.notes == released.diagnostics.verdicts


def of_logistic(rng, records):
    x = np.c_[np.ones(records), rng.uniform(-1.7, 1.7, (records, 2))].astype(np.float32)
    w = rng.normal(size=3)
    return w, (x, (rng.random(records) < 1 / (1 + np.exp(-x @ w))).astype(np.int32))


def of_gaussian(rng, records):
    mean, sigma = 10 * rng.normal(), 5 * abs(rng.normal())
    return np.array([mean, np.log(sigma)]), (rng.normal(mean, sigma, records).astype(np.float32),)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "generate", "epsilon"), [(logistic, of_logistic, 1.0), (gaussian, of_gaussian, 2.0)]
)
def test_intervals_cover_as_they_say(model, generate, epsilon):
    """20 sets of 3 and 2 coordinates: .95 less 3 binomial errors of 60 and 26 is .86 and .82.

    The second has truths far from where the rounds begin: a mean of 20 with a scale of a tenth.
    """
    share, unnamed = covered(model, generate, 1_000, epsilon, 20)
    assert share >= 0.82
    assert unnamed >= 12


@pytest.mark.parametrize(("spread", "named"), [(1.5, True), (math.inf, False)])
def test_counts_that_vary_more_than_poisson_are_named(spread, named):
    """Variance over mean is about 2, and scores clipped tightly vary 1.2 times as much.

    What is far out stands about 7 of its sds above zero there, and 2.5 are asked for: a false alarm
    in some hundred runs of what fits, and one in 100,000 of what does not.
    """
    rng = np.random.default_rng(5)
    x = rng.uniform(-1, 1, 3_000).astype(np.float32)
    factor = rng.gamma(spread, 1 / spread, 3_000) if named else 1.0
    y = rng.poisson(1.5 * np.exp(0.4 * x) * factor).astype(np.int32)

    def model(x, y):
        base, w = numpyro.sample("base", dist.Normal(0, 1)), numpyro.sample("w", dist.Normal(0, 1))
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("y", dist.Poisson(jnp.exp(base + w * x)), obs=y)

    release = ndp.LikelihoodRelease(model, privacy=BUDGET)
    released = release.run(jax.random.key(0), x, y, progress_bar=False)
    told = [said for said in released.diagnostics.verdicts if "do not fit the model: " in said]
    assert len(told) == named
    if named:
        assert "are outliers, 3 times as far out as usual" in told[0]
        assert "NegativeBinomial2 for Poisson" in told[0]


@pytest.mark.parametrize("seed", [1, 2])
def test_a_skewed_outcome_under_a_normal_is_named_and_its_remedy_helps(seed):
    rng = np.random.default_rng(seed)
    cost = np.exp(0.5 + 0.8 * rng.normal(size=4_000)).astype(np.float32)
    released = ndp.LikelihoodRelease(gaussian, privacy=BUDGET, secure=False)
    said, *_ = released.run(jax.random.key(seed), cost, progress_bar=False).diagnostics.verdicts
    assert "the rounds disagree" in said
    assert "the logarithm of what is never negative" in said
    again = ndp.LikelihoodRelease(gaussian, privacy=BUDGET, secure=False)
    mended = again.run(jax.random.key(seed), np.log(cost), progress_bar=False)
    # These priors are so wide that one release in six is named for its width or its way.
    assert not any("disagree" in said or "fit" in said for said in mended.diagnostics.verdicts)


@pytest.mark.slow
def test_a_few_typing_errors_are_named():
    """Two in a hundred ten times too large: under the normal of a logarithm σ lay 5 to 7 sds off.

    Of so many records some .009 are then far out beyond what the model expects, 6 to 7 of its sds
    in eight releases of eight.
    """
    rng = np.random.default_rng(1)
    x = rng.normal(size=(20_000, 3)).astype(np.float32)
    cost = np.exp(1 + x @ [0.2, -0.1, 0.3] + 0.5 * rng.normal(size=20_000))
    cost *= np.where(rng.random(20_000) < 0.02, 10, 1)

    def model(x, y):
        a = numpyro.sample("a", dist.Normal(1, 1))
        sigma = numpyro.sample("sigma", dist.HalfNormal())
        w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
        with numpyro.plate("people", len(x)):
            numpyro.sample("y", dist.Normal(a + x @ w, sigma), obs=y)

    release = ndp.LikelihoodRelease(model, privacy=BUDGET, secure=False)
    records = x, np.log(cost).astype(np.float32)
    told = release.run(jax.random.key(0), *records, progress_bar=False).diagnostics.verdicts
    assert any("fit the model" in said and "are outliers" in said for said in told)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_rare_outcome_does_not_move_its_intercept(seed):
    """Four in a hundred of 6,000: early rounds ask where half of all would have it.

    What the information changes on the way was not seen, and the intercept lay 3 to 6 of its own
    sds too low in ten releases of fourteen, most without a note. Now it is 2.2 at most in
    seventeen; 3.5 is asked for.
    """
    rng = np.random.default_rng(6)
    x = rng.normal(size=(6_000, 8)).astype(np.float32)
    logits = -4 + x @ [1.0, 0.5, -0.5, 0.3, 0, 0, 0, 0.8]
    y = (rng.random(6_000) < 1 / (1 + np.exp(-logits))).astype(np.int32)

    def model(x, y):
        a = numpyro.sample("a", dist.Normal(0, 2))
        w = numpyro.sample("w", dist.Normal(0, 1).expand([8]).to_event(1))
        with numpyro.plate("people", len(x)):
            numpyro.sample("y", dist.Bernoulli(logits=a + x @ w), obs=y)

    release = ndp.LikelihoodRelease(model, privacy=BUDGET, secure=False)
    found = release.run(jax.random.key(seed), x, y, progress_bar=False)
    # NUTS on these records: -3.97, and a tenth wide.
    sd = math.sqrt(found.located.covariance[0, 0])
    assert abs(found.located.mean[0] - -3.97) <= 3.5 * sd
    # Of two classes there is no tail, and its noise is none either.
    assert found.diagnostics.tail == 0
    assert not any("disagree" in said for said in found.diagnostics.verdicts)


def slopes_of_all_and_of_groups(x, group, y):
    """A slope of all people beside one of each group: records tell their sum alone."""
    b, centre = (numpyro.sample(name, dist.Normal(0, 1)) for name in ("b", "centre"))
    spread = numpyro.sample("spread", dist.Exponential(1))
    with numpyro.plate("groups", 20):
        level = numpyro.sample("level", dist.Normal(0, 1))
        slope = numpyro.sample("slope", dist.Normal(centre, spread))
    with numpyro.plate("people", len(y)):
        numpyro.sample("y", dist.Normal(level[group] + (slope[group] + b) * x, 1), obs=y)


def test_of_what_no_record_tells_nothing_is_claimed():
    """Of the slope of all, beside one of each group, the posterior's width is the prior's, √½.

    Noise had been taken for information about it: .23 to .43 in twelve chains of six releases. In
    sixteen chains of eight it was now .61 to .87, mean .73 and sd .085: .48 and 1 are three of
    these away.
    """
    rng = np.random.default_rng(0)
    group, x = rng.integers(0, 20, 6_000), rng.normal(size=6_000).astype(np.float32)
    slope, level = rng.normal(0.4, 0.2, 20), rng.normal(size=20)
    y = level[group] + slope[group] * x + rng.normal(size=6_000)
    records = x, group.astype(np.int32), y.astype(np.float32)
    release = ndp.LikelihoodRelease(slopes_of_all_and_of_groups, privacy=BUDGET, secure=False)
    # The scale and centre of groups, and the difference of slopes.
    assert release.forecast(*records).dim == 43 - 3
    found = release.run(jax.random.key(0), *records, progress_bar=False)
    sites = {"b": 0.3, "centre": 0.2, "spread": 0.5, "level": level, "slope": slope}
    told = found.log_likelihood(sites)
    moved = sites | {"b": 1.3, "slope": slope - 1.0, "centre": -3.0, "spread": 2.0}
    np.testing.assert_allclose(found.log_likelihood(moved), told, rtol=1e-4)
    sampler = MCMC(NUTS(found.model), num_warmup=300, num_samples=1_000, progress_bar=False)
    sampler.run(jax.random.key(1))
    draws = sampler.get_samples()
    assert 0.48 < float(jnp.std(draws["b"])) < 1.0


def test_records_that_tell_of_nothing_are_refused(y):
    def unread(y):
        numpyro.sample("mean", dist.Normal(0, 1))
        with numpyro.plate("people", len(y)):
            numpyro.sample("y", dist.Normal(0, 1), obs=y)

    accountant = ndp.Accountant(BUDGET)
    release = ndp.LikelihoodRelease(unread, privacy=BUDGET, accountant=accountant)
    with pytest.raises(ndp.UnsupportedModelError, match="no record of plate `people` tells"):
        release.run(jax.random.key(0), y, progress_bar=False)
    assert not accountant.entries
