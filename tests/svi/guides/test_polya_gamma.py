"""Pólya–Gamma regression: the right posterior, one record at a time, within its bounds."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import Predictive
from scipy.special import expit

import numpyro_dp as ndp
from numpyro_dp.accounting import privacy_curve
from numpyro_dp.accounting.events import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from numpyro_dp.execution.keys import seeded_key
from numpyro_dp.families.losses import Loss, Row
from numpyro_dp.mechanisms import PrivateSum
from numpyro_dp.svi.guides.polya_gamma import algebra

N, OFF = 300, {"noise_multiplier": 0.0, "clip_norm": math.inf}


def logistic(x, y=None):
    b = numpyro.sample("b", dist.Normal(0.5, 2))
    w = numpyro.sample("w", dist.Normal(0, 3).expand([x.shape[-1]]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=b + x @ w), obs=y)


def trials(x, n, y=None):
    w = numpyro.sample("w", dist.Normal(0, 3).expand([x.shape[-1]]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Binomial(n, logits=x @ w - 0.3), obs=y)


def counts(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 3).expand([x.shape[-1]]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.NegativeBinomialLogits(4.0, x @ w), obs=y)


def relevance(x, y=None):
    tau = numpyro.sample("tau", dist.Gamma(2.0, 1.5).expand([x.shape[-1]]).to_event(1))
    variance = numpyro.sample("variance", dist.InverseGamma(3.0, 2.0))
    b = numpyro.sample("b", dist.Normal(0, jnp.sqrt(variance)))
    w = numpyro.sample("w", dist.Normal(0, 1 / jnp.sqrt(tau)).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=b + x @ w), obs=y)


@pytest.fixture(scope="module")
def x():
    return np.random.default_rng(1).normal(0.3, 1, (N, 2)).astype(np.float32)


@pytest.fixture(scope="module")
def y(x):
    return (np.random.default_rng(2).random(N) < expit(x @ [1.0, -0.5] + 0.4)).astype(np.int32)


def ascent(x, kappa, attempts, prior, linear, offset=0.0, precision=None, rounds=50):
    """Coordinate ascent as in textbooks: tilts, then the normal law, then the precisions."""
    mean, covariance = np.zeros(x.shape[1]), np.zeros((x.shape[1],) * 2)
    for _ in range(rounds):
        tilt = np.sqrt(np.einsum("ni,ij,nj->n", x, covariance, x) + (x @ mean + offset) ** 2)
        tilt = np.maximum(tilt, 1e-9)
        weight = attempts * np.tanh(tilt / 2) / (2 * tilt)
        covariance = np.linalg.inv((x.T * weight) @ x + prior)
        mean = covariance @ (x.T @ (kappa - weight * offset) + linear)
        if precision is not None:
            prior = precision(mean, np.diag(covariance))
    return mean, covariance


def fitted(model, arguments, **options):
    guide = ndp.guides.PolyaGammaGuide(model, row_norm=2.0, **options)
    result = ndp.VIPS(model, guide, **OFF).run(jax.random.key(0), None, *arguments,
                                               progress_bar=False)  # fmt: skip
    tril = np.asarray(result.params["auto_scale_tril"])
    return np.asarray(result.params["auto_loc"]), tril @ tril.T, result


def agree(found, expected):
    scale = np.sqrt(np.diag(expected[1]))
    np.testing.assert_allclose(found[0], expected[0], atol=1e-4)
    np.testing.assert_allclose(
        found[1] / np.outer(scale, scale), expected[1] / np.outer(scale, scale), atol=1e-4
    )


@pytest.mark.slow
def test_trials_of_each_record_and_an_offset_enter(x):
    n = 1 + np.arange(N) % 4
    y = np.random.default_rng(3).binomial(n, expit(x @ [1.0, -0.5] - 0.3))
    expected = ascent(x.astype(float), y - n / 2, n, np.eye(2) / 9, np.zeros(2), offset=-0.3)
    agree(fitted(trials, (x, n, y), max_trials=4), expected)


@pytest.mark.slow
def test_negative_binomial_counts(x):
    rng = np.random.default_rng(4)
    y = rng.poisson(rng.gamma(4.0, np.exp(np.clip(x @ [0.5, -0.5], -2, 2))))
    expected = ascent(x.astype(float), (y - 4.0) / 2, y + 4.0, np.eye(2) / 9, np.zeros(2))
    agree(fitted(counts, (x, y), max_count=1000.0), expected)


@pytest.fixture(scope="module")
def unnoised(x, y):
    return fitted(relevance, (x, y))


def test_without_privacy_the_limit_is_that_of_coordinate_ascent(unnoised, x, y):
    """Precisions included: their laws follow one step from the data."""
    wide = np.column_stack([np.ones(N), x]).astype(float)
    shape, rate = np.array([3.5, 2.5, 2.5]), np.array([2.0, 1.5, 1.5])

    def own_rate(mean, variance):
        return rate + (mean**2 + variance) / 2

    def precision(mean, variance):
        return np.diag(shape / own_rate(mean, variance))

    start = np.diag([1.5, 4 / 3, 4 / 3])
    expected = ascent(wide, y - 0.5, np.ones(N), start, np.zeros(3), precision=precision)
    agree(unnoised, expected)
    params = unnoised[2].params
    # In order of names: tau, then the variance.
    np.testing.assert_allclose(params["auto_shape"], shape[[1, 2, 0]], rtol=1e-6)
    rates = own_rate(expected[0], np.diag(expected[1]))[[1, 2, 0]]
    np.testing.assert_allclose(params["auto_rate"], rates, rtol=1e-3)


def bound_to(guide, arguments, noise=2.0, steps=None):
    """Schedule and releases of a run, without one."""
    vips = ndp.VIPS(guide.model, guide, noise_multiplier=noise)
    schedule, plan, _ = vips._bind(steps, arguments, {})
    return schedule, plan, schedule.records(arguments, {})


DESIGNS = ("full", "diagonal", "paper")


@pytest.mark.parametrize(
    "design",
    ["diagonal", *(pytest.param(each, marks=pytest.mark.slow) for each in ("full", "paper"))],
)
def test_a_negative_count_adds_what_none_at_all_would(x, design):
    y = np.array([-1000, 0, 3] * (N // 3))
    guide = ndp.guides.PolyaGammaGuide(counts, row_norm=2.0, design=design, max_count=20.0)
    schedule, plan, records = bound_to(guide, (x, y))
    state = schedule.start(jax.random.key(0))
    rows = [*(jnp.repeat(array[:1], 3, axis=0) for array in records[:-1]), records[-1][:3]]
    told = False
    for phase, each in enumerate(plan.sums):
        one = jax.vmap(lambda *row, p=phase: schedule.statistic(p, state, [r[None] for r in row]))
        below, none, some = np.asarray(jax.jit(one)(*rows))
        np.testing.assert_array_equal(below, none)
        assert np.linalg.norm(below) <= each.clip_norm * (1 + 1e-5)
        told |= bool(np.any(none != some))
    assert told, "no phase reads the count"


@pytest.fixture(scope="module")
def bound(x, y):
    return {
        design: bound_to(ndp.guides.PolyaGammaGuide(logistic, row_norm=2.0, design=design), (x, y))
        for design in DESIGNS
    }


def somewhere(schedule):
    """What is known after made-up releases."""

    @jax.jit
    def learnt():
        state = schedule.start(jax.random.key(0))
        for phase, each in enumerate(schedule.phases):
            synthetic = jnp.linspace(-0.3, 1, each.dim)
            state = schedule.advance(phase, state, synthetic, jnp.ones(each.dim), jnp.int32(0))
        return state

    return learnt()


@pytest.mark.parametrize(
    "design", [pytest.param("full", marks=pytest.mark.slow), "diagonal", "paper"]
)
def test_a_record_s_statistic_does_not_see_other_records(bound, design):
    schedule, _, records = bound[design]
    state = somewhere(schedule)
    rows = [leaf[:8, None] for leaf in records]
    others = [leaf.at[1:].set(leaf[1:] * 3 + 1) for leaf in rows]
    for phase in range(len(schedule.phases)):
        each = jax.jit(
            jax.vmap(lambda record, phase=phase: schedule.statistic(phase, state, record))
        )
        before, after = np.asarray(each(rows)), np.asarray(each(others))
        np.testing.assert_array_equal(before[0], after[0])
        assert (before[1:] != after[1:]).any()


@pytest.mark.parametrize(
    "design", [pytest.param("full", marks=pytest.mark.slow), "diagonal", "paper"]
)
def test_no_record_adds_more_than_the_bound(bound, design):
    schedule, plan, _ = bound[design]
    state = somewhere(schedule)
    null = [jnp.full((N, 2), jnp.nan), jnp.zeros(N, jnp.int32)]
    key = seeded_key(jax.random.key(3))
    wild = [jnp.array([[1e6, -1e6]]), jnp.array([[1.0, 0.5]]), jnp.full((1, 2), jnp.inf)]
    for phase, each in enumerate(plan.sums):
        release = jax.jit(
            lambda records, phase=phase, each=each: each.release(
                key,
                lambda record: schedule.statistic(phase, state, record),
                records,
            )
        )
        nothing = np.asarray(release(null))
        norms = []
        for row in wild:
            for outcome in (0, 1):
                records = [null[0].at[:1].set(row), null[1].at[0].set(outcome)]
                norms.append(np.linalg.norm(np.asarray(release(records)) - nothing))
        assert max(norms) <= each.clip_norm * (1 + 1e-3)
        assert max(norms) > 0.05 * each.clip_norm


def test_the_joint_bound_of_the_paper_is_reached():
    x, weight = np.array([0.6, 0.8]), 0.25
    both = np.concatenate([0.5 * x, weight * np.asarray(algebra.packed(jnp.asarray(x)))])
    assert np.linalg.norm(both) == pytest.approx(math.sqrt(5) / 4, rel=1e-6)
    assert float(algebra.expected_weight(jnp.float32(1), jnp.float32(0))) == pytest.approx(weight)


def test_counting_the_blocks_of_a_batch_as_two_releases_reports_too_little(bound):
    def epsilon(noise, releases):
        each = PoissonSampledDpEvent(0.01, GaussianDpEvent(noise))
        return privacy_curve(SelfComposedDpEvent(each, releases)).epsilon(1e-5)

    assert epsilon(1.0, 2000) == pytest.approx(2.58, abs=0.01)
    assert epsilon(1 / math.sqrt(2), 1000) == pytest.approx(4.4808, abs=1e-3)
    _, plan, _ = bound["paper"]
    assert [each.event(10).events[0].count for each in plan.sums] == [10]
    assert plan.sums[0].dim == 3 + 6


FAMILIES = {
    "bernoulli": (1.0, 2, dist.Bernoulli(logits=-1.2)),
    "binomial": (6.0, 7, dist.Binomial(6, logits=-1.2)),
    "negative_binomial": (4.0, 25, dist.NegativeBinomialLogits(4.0, -1.2)),
}


@pytest.mark.parametrize(
    "family",
    [
        "binomial",
        *(pytest.param(f, marks=pytest.mark.slow) for f in ("bernoulli", "negative_binomial")),
    ],
)
def test_a_clipped_residual_has_mean_zero_under_the_model(family):
    size, reach, law = FAMILIES[family]
    loss = Loss(family, max_trials=size, max_count=24.0)
    y, predictor = jnp.arange(float(reach)), jnp.float32(-1.2)
    x, kept = jnp.ones(2), jnp.array(True)

    @jax.jit
    def residuals(most):
        def one(y):
            row = Row(x, jnp.float32(0), y, jnp.float32(size), kept)
            return algebra.clipped_residual(loss, row, predictor, most)

        return jax.vmap(one)(y)

    p = np.exp(np.asarray(law.log_prob(y.astype(int))))
    every = Row(x, jnp.float32(0), y, jnp.full(reach, size), jnp.ones(reach, bool))
    score = np.asarray(-loss.slope(predictor, every))
    for most in (0.05, 0.6, 50.0):
        clipped = residuals(jnp.float32(most))
        residual = np.asarray(clipped.residual)
        assert np.abs(residual).max() <= most * (1 + 1e-5)
        assert abs(p @ residual) < 2e-3 * min(most, 1)
        # The information identity: the mean moves as the covariance with the score.
        assert p @ (residual * score) == pytest.approx(float(clipped.slope[0]), rel=5e-3)


def test_packing_keeps_norms():
    x = jnp.array([1.0, -2.0, 0.5])
    kept = algebra.packed(x)
    assert float(jnp.linalg.norm(kept)) == pytest.approx(float(x @ x), rel=1e-6)
    np.testing.assert_allclose(algebra.unpacked(kept, 3), jnp.outer(x, x), rtol=1e-6)


@pytest.fixture(scope="module")
def many():
    rng = np.random.default_rng(5)
    x = rng.normal([4.0, -2.0], [1.0, 0.5], (4000, 2)).astype(np.float32)
    return x, (rng.random(4000) < expit(0.8 * (x[:, 0] - 4) - x[:, 1] - 2)).astype(np.int32)


@pytest.mark.slow
@pytest.mark.parametrize("design", ["full", "diagonal"])
def test_with_little_noise_scores_find_the_posterior_and_centring_is_undone(many, design):
    guide = ndp.guides.PolyaGammaGuide(logistic, row_norm=6.0, design=design)
    vips = ndp.VIPS(logistic, guide, noise_multiplier=0.05, accountant=ndp.Accountant())
    result = vips.run(jax.random.key(0), None if design == "full" else 60, *many,
                      progress_bar=False)  # fmt: skip
    x, y = many
    wide = np.column_stack([np.ones(len(x)), x]).astype(float)
    mean, covariance = ascent(
        wide, y - 0.5, np.ones(len(x)), np.diag([1 / 4, 1 / 9, 1 / 9]), np.array([0.125, 0, 0])
    )
    scale = np.sqrt(np.diag(covariance))
    off = (np.asarray(result.params["auto_loc"]) - mean) / scale
    # The score's root is the mode, and clipped scores are a little less efficient.
    assert np.abs(off).max() < 0.5
    tril = np.asarray(result.params["auto_scale_tril"])
    spread = np.sqrt(np.diag(tril @ tril.T)) / scale
    assert np.all((spread > 0.5) & (spread < 1.6))
    shift = np.asarray(result.state.inputs.shift)
    np.testing.assert_allclose(shift, [0, 4, -2], atol=0.1)


@pytest.mark.slow
def test_draws_are_those_of_the_law_and_export(unnoised):
    result = unnoised[2]
    draws = ndp.from_numpyro(result).posterior
    scale = np.sqrt(np.diag(unnoised[1]))
    # 1,000 draws: five standard errors of a mean, a false alarm in a million.
    off = np.append(draws["b"].values.mean(), draws["w"].values[0].mean(0)) - unnoised[0]
    assert np.all(np.abs(off) < 5 * scale / math.sqrt(1000))
    tau = result.params["auto_shape"][:2] / result.params["auto_rate"][:2]
    np.testing.assert_allclose(draws["tau"].values[0].mean(0), tau, rtol=5 / math.sqrt(1000 * 2.5))
    assert draws["variance"].shape == (1, 1000)


@pytest.mark.slow
def test_the_guide_serves_predictive(unnoised, x):
    result = unnoised[2]
    drawn = Predictive(relevance, guide=result.target.guide, params=result.params, num_samples=7)(
        jax.random.key(1), x[:5]
    )
    assert drawn["y"].shape == (7, 5)


def test_the_budget_chooses_the_design_before_anything_is_spent(x, y):
    guide, accountant = ndp.guides.PolyaGammaGuide(logistic, row_norm=2.0), ndp.Accountant()

    def said(epsilon):
        vips = ndp.VIPS(logistic, guide, privacy=ndp.Budget(epsilon, 1e-5), accountant=accountant)
        return vips.forecast(None, x, y), vips._bind(None, (x, y), {})[0]

    (poor, few), (rich, good) = said(0.05), said(5.0)
    assert "'diagonal' fits" in poor
    assert "'full' fits" in rich
    assert (type(few).__name__, type(good).__name__) == ("DiagonalScores", "FullScores")
    assert said(5.0)[1] is good
    assert accountant.entries == ()


@pytest.mark.slow
def test_every_number_of_a_joint_release_is_noised_and_no_batch_divides(x, y):
    """Both blocks carry the stated noise; the sum is divided by the expected batch."""
    guide = ndp.guides.PolyaGammaGuide(logistic, row_norm=2.0, design="paper")
    vips = ndp.VIPS(logistic, guide, noise_multiplier=1.0, sampling_rate=0.5)
    schedule, plan, _ = vips._bind(1, (x, y), {})
    state, (each,) = schedule.start(jax.random.key(0)), plan.sums

    def spread(mechanism, constant, release=PrivateSum.release):
        records = [jnp.full((N, 2), constant), jnp.ones(N, jnp.int32)]
        keys = jax.random.split(seeded_key(jax.random.key(7)), 400)
        draws = jax.jit(
            jax.vmap(
                lambda key: release(
                    mechanism, key, lambda r: schedule.statistic(0, state, r), records
                )
            )
        )(keys)
        return np.asarray(draws).std(0)

    def sound(release=PrivateSum.release):
        noise = spread(each, jnp.nan, release) / (each.noise_sd() / 0.5)
        taken = spread(each, 1.0, release)
        # 400 draws: six standard errors of a standard deviation, one false alarm in 1e8.
        drawn = abs(taken[1] ** 2 / (each.noise_sd() / 0.5) ** 2 - 1)
        return bool(np.all(np.abs(noise - 1) < 6 / math.sqrt(800))) and drawn > 0.5

    def second_block_bare(self, key, vector, records, step=0):
        out = PrivateSum.release(self, key, vector, records, step)
        return out.at[3:].set(0.0)

    def own_batch(self, key, vector, records, step=0):
        ones = PrivateSum.release(self, key, vector, records, step)
        return ones / jnp.maximum(jnp.abs(ones[0]), 1) * N

    assert sound()
    assert not sound(second_block_bare)
    assert not sound(own_batch)


def wide_prior(x, y):
    w = numpyro.sample("w", dist.StudentT(3, 0, 1).expand([2]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def poisson(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(x @ w)), obs=y)


def no_intercept(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def gamma_coefficient(x, y):
    b = numpyro.sample("b", dist.Gamma(1.0, 1.0))
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w + jnp.log(b)), obs=y)


def squared(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=(x @ w) ** 2), obs=y)


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (wide_prior, {}, r"prior of site\(s\) `w` is not normal.*DPSVI"),
        (poisson, {}, "site `y` has poisson outcomes.*DPSVI"),
        pytest.param(
            gamma_coefficient, {}, "site `y` is not provably linear", marks=pytest.mark.slow
        ),
        (squared, {}, "site `y` is not provably linear.*DPSVI, which clip"),
        (no_intercept, {"centre": True}, "needs an intercept.*add a latent"),
        pytest.param(
            counts, {}, "site `y` has no bounded gradient: give max_count=", marks=pytest.mark.slow
        ),
    ],
)
def test_models_outside_the_family_are_refused_before_any_charge(x, y, model, options, message):
    accountant = ndp.Accountant()
    guide = ndp.guides.PolyaGammaGuide(model, row_norm=2.0, **options)
    vips = ndp.VIPS(model, guide, noise_multiplier=2.0, accountant=accountant)
    with pytest.raises(ndp.UnsupportedModelError, match=message):
        vips.run(jax.random.key(0), None, x, y, progress_bar=False)
    assert accountant.entries == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"row_norm": 0}, "row_norm"),
        ({"row_norm": 1.0, "centred_norm": -1}, "centred_norm"),
        ({"row_norm": 1.0, "design": "kronecker"}, "design must be one of"),
        ({"row_norm": 1.0, "centre": "mean"}, "centre must be"),
        ({"row_norm": 1.0, "intercept": 0.5}, "place of a coefficient"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ndp.guides.PolyaGammaGuide(logistic, **options)


def test_runs_that_cannot_be_are_refused(x, y):
    guide = ndp.guides.PolyaGammaGuide(logistic, row_norm=2.0, design="full", intercept=9)
    with pytest.raises(ValueError, match="intercept=9 is no coefficient: the model has 3"):
        bound_to(guide, (x, y))
    guide = ndp.guides.PolyaGammaGuide(logistic, row_norm=2.0, design="full")
    with pytest.raises(ValueError, match="num_steps=2 is too few for design 'full'"):
        bound_to(guide, (x, y), steps=2)
    paper = ndp.guides.PolyaGammaGuide(logistic, row_norm=2.0, design="paper")
    vips = ndp.VIPS(logistic, paper, noise_multiplier=1.0, clip_norm=1.0)
    with pytest.raises(ValueError, match="follows from row_norm"):
        vips._bind(None, (x, y), {})


@pytest.mark.slow
def test_means_agree_with_nuts(many):
    """Without privacy, and with little noise, both within a twentieth of a standard deviation."""
    x, y = many
    x = (x - x.mean(0)) / x.std(0)
    mcmc = numpyro.infer.MCMC(
        numpyro.infer.NUTS(logistic), num_warmup=500, num_samples=20_000, progress_bar=False
    )
    mcmc.run(jax.random.key(0), x, y)
    draws = mcmc.get_samples()
    flat = np.column_stack([draws["b"], draws["w"]])
    mean, sd = flat.mean(0), flat.std(0)
    found, covariance, _ = fitted(logistic, (x, y))
    # 20,000 correlated draws know the mean to about a hundredth of a standard deviation.
    assert np.abs((found - mean) / sd).max() < 0.05
    # Known of variational augmentation: a little too narrow, never wider.
    ratio = np.sqrt(np.diag(covariance)) / sd
    assert np.all((ratio > 0.75) & (ratio < 1.03))
