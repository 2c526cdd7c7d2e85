"""What a plan says of clipping and of long steps, on models that others write, both ways."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import linalg, optimize, stats

import numpyro_dp as ndp
from numpyro_dp.diagnostics.plan.steps import ChainSteps
from numpyro_dp.diagnostics.plan.subject import planned_run
from numpyro_dp.mcmc.sgmcmc.bias import Bias
from numpyro_dp.mcmc.sgmcmc.sghmc import FrictionDynamics
from numpyro_dp.mcmc.sgmcmc.sgld import LangevinDynamics
from numpyro_dp.mcmc.sgmcmc.sgnht import Thermostat

BUDGET = ndp.Budget(1.0, 1e-5)


def made(scores, num_records=10_000, **options):
    """Records with these gradients (draws, records, dim) under a wide prior."""
    scores = np.asarray(scores, float)
    spread = 100.0 * np.random.default_rng(9).normal(size=(8, scores.shape[2]))
    sites = options.pop("sites", ("w",) * scores.shape[2])
    precision = 1 / spread.var(0, ddof=1)
    prior = precision * (spread.mean(0) - spread), precision
    return Bias(scores, *prior, sites, num_records, np.ones(scores.shape[2]), **options)


@pytest.mark.parametrize(("clip", "tolerance"), [(6.0, 0.25), (3.0, 0.35)])
def test_the_bias_of_a_scale_is_that_of_the_clipped_estimate(clip, tolerance):
    """The score of log σ is r² − 1: where its clipped mean is zero, against one step from truth."""
    r = np.random.default_rng(0).normal(size=(8, 200_000))
    square = np.random.default_rng(1).normal(size=2_000_000) ** 2

    def clipped(shift):
        return np.clip(square * np.exp(-2 * shift) - 1, -clip, clip).mean()

    exact = optimize.brentq(clipped, -1, 0.1) * np.sqrt(2 * 10_000)
    (found,) = made(r[..., None] ** 2 - 1).of_sites(clip)
    assert exact < -1
    assert not found.up
    assert found.typical == pytest.approx(-exact, rel=tolerance)


def test_symmetric_scores_are_moved_by_no_clip():
    """Two standard errors are taken off: of 32 coordinates one or two may show a little."""
    scores = np.random.default_rng(0).normal(size=(8, 4000, 4))
    biased = made(scores, sites=("a", "a", "b", "b"))
    assert {each.site for each in biased.of_sites(0.7)} == {"a", "b"}
    assert np.median(np.abs(biased.shifts(0.7))) == 0
    assert max(each.typical for each in biased.of_sites(0.7)) < 0.5
    assert np.all(biased.shifts(1e3) == 0)


@pytest.mark.slow
def test_wide_models_are_judged_by_their_diagonal():
    scores = np.random.default_rng(0).exponential(size=(8, 1024, 300)) - 1
    dense, wide = made(scores[..., :200]), made(scores)
    assert 0.5 < dense.of_sites(15.0)[0].typical / wide.of_sites(18.4)[0].typical < 2


def test_a_clip_is_balanced_between_its_bias_and_its_noise():
    skewed = made(np.random.default_rng(0).normal(size=(8, 8000, 1)) ** 2 - 1)
    loud, calm = skewed.balanced(4.0), skewed.balanced(0.5)
    assert loud < calm
    # What is clipped of counts more spread than the model's own is more.
    assert made(skewed.scores, stretch=2.5).balanced(4.0) > 1.5 * loud
    assert skewed.of_sites(calm)[0].typical < 1.5 < skewed.of_sites(calm / 4)[0].typical
    # Nothing that is a number says anything: any clip will do.
    assert made(np.full((8, 10, 1), np.nan)).balanced(1.0) > 0


def stationary(matrix, noise):
    return linalg.solve_discrete_lyapunov(matrix, noise)[0, 0]


@pytest.mark.parametrize("friction", [0.05, 0.5, 1.0])
@pytest.mark.parametrize("pull", [0.2, 1.0])
def test_the_width_of_long_steps_is_that_of_the_linear_recursion(friction, pull):
    """(θ, p) of p ← (1 − f)p − hλθ + noise, θ ← θ + hp; batches add h²λβ to its variance 2f."""
    curvature, batches = 50.0, 0.3
    h = np.sqrt(pull / curvature)
    rows = [[1 - h**2 * curvature, h * (1 - friction)], [-h * curvature, 1 - friction]]
    noise = (2 * friction + pull * batches) * np.array([[h**2, h], [h, 1]])
    exact = curvature * stationary(np.array(rows), noise)
    kernel = FrictionDynamics(h**2, 1.0, friction / h)
    assert kernel.widened(h**2, curvature, batches) == pytest.approx(exact, rel=1e-6)
    still = Thermostat(h**2, 1.0, friction / h).widened(h**2, curvature, batches)
    assert still == pytest.approx(exact * 2 * friction / noise[1, 1], rel=1e-6)
    if friction == 1.0:
        same = LangevinDynamics(2 * h**2, 1.0).widened(2 * h**2, curvature, batches)
        assert same == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize(
    "integrator",
    [LangevinDynamics(1e-3, 2.0), FrictionDynamics(1e-3, 2.0, 5.0), Thermostat(1e-3, 2.0, 5.0)],
)
def test_a_free_step_is_at_the_temperature_asked_for(integrator):
    free = integrator.free_step_size(30.0)
    assert integrator.reached(free, 30.0) == pytest.approx(2.0)
    assert integrator.reached(4 * free, 30.0) > 2.0


def test_steps_are_stable_up_to_twice_the_width():
    def size(**options):
        given = {"distance": 1.0, "noise": 1.0, "num_steps": 100, "batches": 0.0}
        return ChainSteps(
            LangevinDynamics(1e-3, 1.0), np.array([[50.0, 1.0]]), **{**given, **options}
        )

    # 1/(1 − ηλ/4) = 4; with β = 39 (a fortieth a step), (1 + 39ηλ/4) = 4(1 − ηλ/4).
    assert size().stable_size() == pytest.approx(3 / 50, rel=1e-6)
    assert size(batches=39.0).stable_size() == pytest.approx(12 / 43 / 50, rel=1e-6)
    assert size(batches=39.0).on_full_batches().stable_size() == size().stable_size()
    assert size().missing() == pytest.approx(max(7.07 * np.exp(-1.25), np.exp(-0.025)), rel=1e-3)
    assert size().times() == pytest.approx(100 * 1e-3 / 2)
    assert FrictionDynamics(1.0, 1.0, 0.1).widened(4.0, 1.0, 0.0) == np.inf


def linear(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 3).expand([x.shape[-1]]).to_event(1))
    sigma = numpyro.sample("sigma", dist.LogNormal(0, 1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, sigma), obs=y)


def poisson(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[-1]]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(x @ w)), obs=y)


def negative_binomial(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[-1]]).to_event(1))
    shape = numpyro.sample("shape", dist.Gamma(2, 1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.NegativeBinomial2(jnp.exp(x @ w), shape), obs=y)


def heavy_tails(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[-1]]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.StudentT(4, x @ w, 1.0), obs=y)


def logistic(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[-1]]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def hierarchy(x, y=None):
    scale = numpyro.sample("scale", dist.HalfNormal(1))
    with numpyro.plate("columns", x.shape[-1]):
        w = numpyro.sample("w", dist.Normal(0, scale))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def planned(model, clip, step, columns=4, num_records=20_000, steps=500, **options):
    shapes = (
        jax.ShapeDtypeStruct((num_records, columns), jnp.float32),
        jax.ShapeDtypeStruct((num_records,), jnp.float32),
    )
    inputs = options.pop("inputs", None)
    kernel = ndp.DPSGLD(model, clip_norm=clip, step_size=step, privacy=BUDGET, **options)
    return ndp.plan(kernel, *shapes, num_steps=steps, inputs=inputs)


def given(found, pattern):
    """The number that a remedy names."""
    [number] = [m[1] for said in found.remedies if (m := re.match(pattern, said))]
    return float(number)


def test_a_scale_that_clipping_moves_is_named_and_its_remedy_works():
    tight = planned(linear, 2.0, 2e-5)
    assert tight.verdict == "biased"
    assert tight.bias[0].site == "sigma"
    assert "clipping moves 'sigma' downwards by" in tight.remedies[0]
    assert str(tight).index("biased") < str(tight).index("ε =")
    loose = planned(linear, given(tight, r"clip_norm=([\d.]+), which balances"), 2e-5)
    assert "biased" not in loose.faults
    assert loose.bias[0].typical < 1.5 < tight.bias[0].typical
    # Nothing advises back to the clip that was wrong.
    assert not [said for said in loose.remedies if said.startswith("clip_norm")]


@pytest.mark.slow
def test_a_clip_that_is_right_for_some_scales_says_for_which():
    """Of eight truths under LogNormal(0, 1) one has each eighth of σ: .2, .4, .6 … 4.6."""
    found = planned(linear, 8.0, 2e-5)
    sigma = found.bias[0]
    assert sigma.site == "sigma"
    assert 0 < sigma.share <= 0.25
    assert not sigma.too_far
    assert found.verdict == "fine"
    text = " ".join(str(found).split())
    assert f"own, unless {sigma.where} (see bias)" in text
    assert (m := re.fullmatch(r"'sigma' is at most (0\.\d+)", sigma.where))
    assert 0.2 < float(m[1]) < 0.7

    assert "unless" not in str(planned(scaled, 8.0, 2e-5))


@pytest.mark.slow
def test_truths_lie_in_all_parts_of_the_prior():
    """Eight chosen draws: of each scalar one in about every eighth of its prior, not by chance."""

    def model(x):
        scale = numpyro.sample("scale", dist.HalfCauchy(1.0))
        rate = numpyro.sample("rate", dist.LogNormal(0, 2))
        b = numpyro.sample("b", dist.Normal(0, scale).expand([30]).to_event(1))
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("x", dist.Normal(b.sum(), rate), obs=x)

    kernel = ndp.DPSGLD(model, clip_norm=1.0, step_size=1e-5, privacy=BUDGET)
    shape = jax.ShapeDtypeStruct((1000,), jnp.float32)
    options = {"num_steps": 10, "privacy": None, "num_chains": 1, "inputs": None}
    truths = planned_run(kernel, (shape,), {}, **options).synthetic.truths
    assert set(truths) == {"scale", "rate"}
    middles = (np.arange(8) + 0.5) / 8
    for name, law in [("scale", stats.halfcauchy()), ("rate", stats.lognorm(2.0))]:
        # A pool of 128 draws and 2,048 choices of eight come within an eighth; eight draws by
        # chance do for both in about one of a thousand keys.
        assert np.abs(np.sort(law.cdf(truths[name])) - middles).max() < 1 / 8


@pytest.mark.slow
def test_steps_that_run_away_are_named_and_their_remedy_works():
    long = planned(linear, 8.0, 5e-4)
    assert long.verdict == "unstable"
    short = planned(linear, 8.0, given(long, r"a step_size of at most ([\d.e-]+)"))
    assert "unstable" not in short.faults
    batches = planned(linear, 8.0, 5e-5, batch_size=500)
    assert batches.verdict == "unstable"
    full = re.search(r"with full batches up to ([\d.e-]+)", batches.remedies[0])
    assert full is not None
    assert float(full[1]) > 5e-5
    assert "unstable" not in planned(linear, 8.0, 5e-5).faults


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "tight", "loose"),
    [(poisson, 4.0, 20.0), (negative_binomial, 0.5, 8.0), (hierarchy, 0.3, 2.0),
     (heavy_tails, 0.2, 2.0), (logistic, 0.3, 2.0)],
)  # fmt: skip
def test_clips_are_judged_both_ways_on_models_of_all_kinds(model, tight, loose):
    assert "biased" in planned(model, tight, 1e-5).faults
    assert "biased" not in planned(model, loose, 1e-5).faults


@pytest.mark.slow
def test_counts_may_be_more_spread_than_a_poisson_says():
    found = planned(poisson, 4.0, 1e-5)
    assert "a NegativeBinomial2 would say it" in found.remedies[0]
    assert "NegativeBinomial2" not in " ".join(planned(negative_binomial, 0.5, 1e-5).remedies)

    def binomial(trials):
        def model(x, y=None):
            w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[-1]]).to_event(1))
            with numpyro.plate("people", x.shape[0]):
                numpyro.sample("y", dist.Binomial(trials, logits=x @ w), obs=y)

        return " ".join(planned(model, 0.3, 1e-5).remedies)

    assert "2.5 times as spread" not in binomial(1)
    assert "2.5 times as spread" in binomial(10)


@pytest.mark.slow
def test_ordinary_settings_stay_fine():
    """The quickstart's, a loose clip, a preconditioner, one-hot and rare columns, two bounds."""
    columns = {"columns": 7, "num_records": 6366, "batch_size": 1600, "steps": 1000}
    assert planned(logistic, 1.5, 5e-4, **columns).verdict == "fine"
    assert planned(logistic, 2.5, 1.5e-4, **columns).verdict == "fine"
    rng = np.random.default_rng(0)
    one_hot = np.eye(4, dtype=np.float32)[rng.choice(4, 2000, p=[0.4, 0.35, 0.2, 0.05])]
    inputs = (one_hot, np.zeros(2000, np.float32))
    assert planned(logistic, 1.0, 1e-3, steps=300, inputs=inputs).verdict == "fine"
    scaled = planned(logistic, 5.0, 3.75e-5, preconditioner={"w": 4.0}, **columns)
    assert scaled.verdict == "fine"


@pytest.mark.slow
def test_a_chain_that_is_only_short_is_told_how_to_go_farther():
    calm = {"columns": 3, "num_records": 2000, "steps": 400}
    shapes = (jax.ShapeDtypeStruct((2000, 3), jnp.float32), jax.ShapeDtypeStruct((2000,), int))
    kernel = ndp.DPSGLD(logistic, clip_norm=2.5, step_size=5e-4, noise_multiplier=0.5)
    short = ndp.plan(kernel, *shapes, num_steps=400)
    assert short.faults == ("noisy",)
    assert "the chain's way rather than a posterior" in " ".join(str(short).split())
    step = given(short, r"a step_size up to ([\d.e-]+), or more steps: a chain spans")
    longer = ndp.DPSGLD(logistic, clip_norm=2.5, step_size=step, noise_multiplier=0.5)
    assert ndp.plan(longer, *shapes, num_steps=400).verdict == "fine"
    assert ndp.plan(kernel, *shapes, num_steps=600).verdict == "fine"
    # Where the privacy noise is hot already, longer steps are no way out.
    hot = planned(
        logistic, 3.0, 1e-4, **{**calm, "columns": 7, "num_records": 6366}, batch_size=1600
    )
    assert "a step_size up to" not in " ".join(hot.remedies)


@pytest.mark.slow
def test_bounds_by_site_are_judged_and_mended_together():
    tight = planned(linear, {"w": 1.0, "sigma": 0.5}, 2e-5)
    factor = given(tight, r"every bound of clip_norm times ([\d.]+)")
    loose = planned(linear, {"w": factor, "sigma": 0.5 * factor}, 2e-5)
    assert "biased" in tight.faults
    assert "biased" not in loose.faults


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "own"), [(ndp.DPSGHMC, {"friction": 30.0}), (ndp.DPSGFS, {})])
def test_other_kernels_have_their_own_limits(kernel, own):
    shapes = (
        jax.ShapeDtypeStruct((6366, 3), jnp.float32),
        jax.ShapeDtypeStruct((6366,), jnp.float32),
    )
    found = ndp.plan(
        kernel(logistic, clip_norm=1.5, step_size=1e-4, privacy=BUDGET, **own),
        *shapes, num_steps=500,
    )  # fmt: skip
    if kernel is ndp.DPSGFS:
        assert found.stable_step_size is found.free_step_size is None
    else:
        sd = found.noise_multiplier * 1.5
        assert found.free_step_size == pytest.approx((60.0 / sd**2) ** 2, rel=1e-6)
        assert found.stable_step_size is not None
    assert "unstable" not in found.faults


def rand_linear(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 10).expand([x.shape[-1]]).to_event(1))
    sigma = numpyro.sample("sigma", dist.LogNormal(0, 2))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, sigma), obs=y)


def scaled(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 3).expand([x.shape[-1]]).to_event(1))
    sigma = numpyro.sample("sigma", dist.LogNormal(0.5, 0.3))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, sigma), obs=y)


# Each of these was "fine" before, with 0.9 or more coming through.
MISJUDGED = [
    (poisson, 2.0, 1e-5, 500, 1000, {"unstable", "biased"}),
    (poisson, 2.0, 5e-5, 500, 1000, {"unstable", "biased"}),
    (poisson, 4.0, 5e-5, None, 300, {"biased"}),
    (poisson, 8.0, 1e-5, 500, 1000, {"unstable", "biased"}),
    (poisson, 7.1, 1.5e-5, None, 1000, {"biased"}),
    (rand_linear, 1.0, 2e-4, 500, 1000, {"unstable", "biased"}),
    (rand_linear, 2.0, 7e-5, None, 4000, {"biased"}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "clip", "step", "batch", "steps", "wrong"), MISJUDGED)
def test_what_went_wrong_on_the_rand_experiment_is_foreseen(model, clip, step, batch, steps, wrong):
    """Its 20,190 people and nine inputs: these runs ended 8 to 150 posterior sds off."""
    options = {"columns": 10 if model is poisson else 9, "num_records": 20_190, "steps": steps}
    found = planned(model, clip, step, batch_size=batch, **options)
    assert wrong <= set(found.faults)
    words = {"unstable": "overshoot", "biased": "clipping moves"}
    for fault in wrong:
        assert words[fault] in " ".join(found.remedies)


@pytest.mark.slow
def test_the_best_run_on_the_rand_experiment_is_not_steered_to_a_smaller_clip():
    """At clip_norm=8 σ came out right; a prior that hardly knows σ doubts it."""
    options = {"columns": 9, "num_records": 20_190, "steps": 300}
    wide = planned(rand_linear, 8.0, 1e-5, **options)
    assert wide.suggested_clip_norm >= 8
    assert "smaller clip" not in str(wide)
    assert re.search(
        r"above 1.5 at 50% of likely truths, where 'sigma' is at most 0.\d", " ".join(wide.remedies)
    )
    # Log visits spread by more than 1 in any population.
    known = planned(scaled, 8.0, 1e-5, **options)
    assert "biased" not in known.faults
    assert known.suggested_clip_norm > 6
