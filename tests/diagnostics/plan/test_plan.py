"""A plan reads no record, tells the cost of the run, and knows when noise swamps the signal."""

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats

import numpyro_dp as ndp
from numpyro_dp.accounting import privacy_curve, rounded_up
from numpyro_dp.diagnostics.plan.affordable import _marks
from numpyro_dp.diagnostics.plan.remedies import Findings
from numpyro_dp.diagnostics.plan.signal import Gains, SignalModel
from numpyro_dp.diagnostics.plan.subject import PlannedRun
from numpyro_dp.families.synthetic_records import SyntheticRecords
from numpyro_dp.mechanisms import PrivateSum
from numpyro_dp.model.private_model import private_model
from numpyro_dp.svi.dpsvi.elbo import ElboRelease
from tests.models import logistic

N, DIM = 400, 3
SHAPES = (
    jax.ShapeDtypeStruct((N, DIM), jnp.float32),
    jax.ShapeDtypeStruct((N,), jnp.int32),
)


class Sealed(np.ndarray):
    """An array whose values may not be looked at; its shape and dtype may."""

    def __getitem__(self, place):
        raise AssertionError("a value was read")

    def __array_ufunc__(self, *arguments, **options):
        raise AssertionError("a value was read")


def sealed():
    return [np.full(s.shape, 7, s.dtype).view(Sealed) for s in SHAPES]


def kernel(**options):
    given = {"step_size": 1e-3, "batch_size": 60, "clip_norm": 1.0, "noise_multiplier": 2.0}
    return ndp.DPSGLD(logistic, **{**given, **options})


@pytest.fixture(scope="module")
def found():
    return ndp.plan(kernel(), *SHAPES, num_steps=100)


def test_no_value_of_a_record_is_read(found):
    with pytest.raises(AssertionError, match="value was read"):
        sealed()[0][0]
    assert ndp.plan(kernel(), *sealed(), num_steps=100) == found


def test_nothing_is_charged():
    accountant = ndp.Accountant(ndp.Budget(1.0, 1e-5))
    ndp.plan(kernel(accountant=accountant), *SHAPES, num_steps=100)
    assert accountant.entries == ()


def test_it_ends_with_what_a_release_at_the_same_epsilon_would_promise(found):
    budget = ndp.Budget(found.epsilon, found.delta)
    promised = ndp.LikelihoodRelease(logistic, privacy=budget).forecast(*SHAPES)
    assert found.released.signal == promised.signal
    assert " ".join(str(found).split()).endswith(f"DPNUTS at the same ε: {promised.promise}")


def test_the_cost_is_that_of_the_run(found):
    wall = private_model(logistic, SHAPES)
    bound = kernel().bind(wall, num_steps=100, relation="zero_out", delta=1e-6)
    assert found.epsilon == privacy_curve(bound.event(100)).epsilon(1e-6)
    assert found.num_steps == 100
    assert found.expected_batch == 60
    for epsilon, steps in found.affordable:
        assert privacy_curve(bound.event(steps)).epsilon(1e-6) <= epsilon * 1.01
    assert found.affordable


@pytest.mark.slow
def test_steps_are_affordable_at_multiples_of_a_small_epsilon_too():
    """No usual mark lies within a factor 16 in steps of ε = 0.01, or one alone at most."""
    small = ndp.plan(kernel(), *SHAPES, num_steps=160, num_chains=2, privacy=ndp.Budget(0.01, 1e-5))
    marks, steps = zip(*small.affordable, strict=True)
    assert marks == tuple(float(f"{share * small.epsilon:.3g}") for share in (0.25, 0.5, 1, 2, 4))
    assert steps[2] == pytest.approx(0.97 * 320, abs=3)
    assert all(count % 2 == 0 for count in steps)
    wall = private_model(logistic, SHAPES)
    bound = kernel(noise_multiplier=small.noise_multiplier).bind(
        wall, num_steps=320, relation="zero_out", delta=1e-5, num_chains=2
    )
    for epsilon, count in small.affordable:
        found = privacy_curve(bound.event(count, num_chains=2)).epsilon(1e-5)
        assert 0.9 * epsilon <= found <= 1.01 * epsilon
    assert f"about {steps[0]} at ε = {marks[0]:g}, " in " ".join(str(small).split())


def test_usual_marks_of_epsilon_are_kept_where_two_are_reached():
    assert _marks([0.2, 0.7, 2.0], 0.7) == [0.5, 1.0, 2.0]
    # One alone, none, and nothing finite at all.
    assert _marks([0.01, 0.03, 0.12], 0.03) == [0.015, 0.03, 0.06, 0.12]
    assert _marks([0.001, 0.002], 0.002) == [0.001, 0.002]
    assert _marks([], 0.5) == []


def test_a_plan_without_any_mark_says_so(found):
    silent = " ".join(str(replace(found, affordable=())).split())
    assert "affordable no ε between a sixteenth and 16 times" in silent


def test_a_budget_takes_the_place_of_the_kernels_own():
    calm = ndp.plan(kernel(), *SHAPES, num_steps=100, privacy=ndp.Budget(1.0, 1e-5))
    assert 0.99 < calm.epsilon <= 1.0
    assert calm.delta == 1e-5
    assert calm.noise_multiplier > 2.0


def test_gradients_of_synthetic_records_are_those_of_the_model(found):
    """‖gradient‖ = |σ(xw) − y|·‖x‖ with x in (0.1, 0.9) or 0 and 1, so between these bounds."""
    assert max(found.norms) <= np.sqrt(DIM)
    assert 0.1 < found.suggested_clip_norm < np.sqrt(DIM)
    share = np.mean(np.array(found.norms) > 1.0)
    assert found.clipped == pytest.approx(share)


@pytest.mark.slow
def test_public_inputs_scale_the_suggestion(found):
    wide = 10 * np.random.default_rng(0).normal(size=(64, DIM)).astype(np.float32)
    scaled = ndp.plan(kernel(), *SHAPES, num_steps=100, inputs=(wide, np.zeros(64, np.int32)))
    assert scaled.suggested_clip_norm > 1.5 * found.suggested_clip_norm
    with pytest.raises(ValueError, match="same structure"):
        ndp.plan(kernel(), *SHAPES, num_steps=9, inputs=(wide[:, :2], np.zeros(64, np.int32)))


def test_more_noise_swamps(found):
    loud = ndp.plan(kernel(noise_multiplier=4000.0), *SHAPES, num_steps=100)
    assert loud.verdict == "swamped"
    assert loud.gain <= loud.gain_at_best
    assert loud.influence <= 0.1 < found.influence
    assert loud.remedies
    assert "swamped" in str(loud)
    assert loud.signal_to_noise == pytest.approx(found.signal_to_noise / 2000, rel=1e-3)
    assert found.verdict == "noisy"
    assert found.gain_at_best > 0.1
    # Of a noisy plan no single share is said, since correlated columns are learnt far better.
    said = " ".join(str(found).split())
    assert f"noisy: from {found.gain:.0%} (records" in said
    assert f"to {found.gain_at_best:.0%} (all" in said
    most = re.search(r"swamped: .* by more than (\d+)%", " ".join(str(loud).split()))
    assert most is not None
    assert 100 * loud.influence <= int(most[1]) <= 10


@pytest.mark.parametrize(("rate", "noise"), [(1.0, 40.0), (0.25, 12.0), (0.25, 2.0)])
def test_influence_bounds_the_distance_to_a_run_without_records(rate, noise):
    """Twenty records that all pull one way, one step: both densities are known.

    Pinsker's bound is at most twice the distance while it says anything. Nine steps may change
    three times as much, of a start that has seen the records nothing is known, and losses that are
    released beside the steps tell of the records as the steps do.
    """
    mechanism = PrivateSum.create(
        num_records=20, dim=1, sampling_rate=rate, clip_norm=1.0, noise_multiplier=noise,
        num_steps=9, delta=1e-5,
    )  # fmt: skip

    def bound(steps=1, started=False, curvature=None, losses=None):
        beside = {"curvature": curvature, "losses": losses}
        run = SimpleNamespace(mechanism=mechanism, num_steps=steps, started=started, **beside)
        return cast(Any, PlannedRun.influence).fget(run)

    at = np.linspace(-12 * noise, 20 + 12 * noise, 4001)
    several = stats.norm.pdf(at, np.arange(21)[:, None], noise)
    with_records = stats.binom.pmf(np.arange(21), 20, rate) @ several
    distance = np.abs(with_records - several[0]).sum() * (at[1] - at[0]) / 2
    assert distance <= bound() <= min(2 * distance, 1)
    assert bound(steps=9) == pytest.approx(min(3 * bound(), 1))
    assert bound(started=True) == 1.0
    every_second = ElboRelease(ndp.ElboTrace(every=2, lower=-1.0, upper=0.0), mechanism, -0.5)
    assert bound(steps=6, losses=every_second) == bound(steps=9)
    assert bound(steps=8, curvature=mechanism) == bound(steps=9)


def faults(influence, clipped=0.0):
    run: Any = SimpleNamespace(influence=influence, centred=False, curvature=None, step_size=None)
    way: Any = SimpleNamespace(clipped_at_truth=lambda: clipped)
    return Findings(run, way, Gains(0.95, 1.0, 1.0, 1.0, 0.0), None, (), 1.0, None).faults()


def test_what_the_records_cannot_have_taught_is_not_called_fine():
    assert faults(1.0) == ()
    assert faults(0.99) == ("noisy",)
    assert faults(0.99, clipped=0.6) == ("biased", "noisy")
    assert faults(0.1) == ("swamped",)


def signal_model(gradients, **options):
    """A chain whose start is 2 from the truth in every coordinate, without clipping or heat."""
    gradients = np.asarray(gradients, float)
    synthetic = SyntheticRecords(
        gradients, gradients, np.full((len(gradients), gradients.shape[2]), 2.0)
    )
    given = {"num_records": 100, "clip_norm": 1e9, "noise": 30.0, "num_steps": 4, "step_size": None}
    return SignalModel(synthetic, **{**given, **options})


def test_a_plan_has_the_share_of_the_linearised_posterior():
    """Unit gradients in two coordinates in turn: h = 50 each, hτ = 100, noise² = 900/4."""
    even = [[[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]]
    expected, at_best = signal_model(even).gains()[:2]
    assert expected == pytest.approx(100**2 / (100**2 + 225))
    # Together h = 100, and the sum of 100 unit gradients is no longer than 100.
    assert at_best == pytest.approx(100**2 / (100**2 + 225))
    halved = signal_model(even, clip_norm=0.5)
    assert halved.clipped_at_truth() == 1.0
    assert halved.gains()[0] == pytest.approx(50**2 / (50**2 + 225))
    # A short step has not arrived: 1 − exp(−ηhT/2) at half time, 1 − exp(−ηhT) of the trace.
    short = signal_model(even, step_size=1e-3).gains()[:2]
    heat = 50 * (1 / (1 - 1e-3 * 50 / 4) - 1)
    slow, share = (100**2 / (100**2 + 225 + more) for more in (heat, 0))
    assert short == pytest.approx((-np.expm1(-0.1) * slow, -np.expm1(-0.4) * share))
    # A long one heats: what the privacy noise exceeds the Langevin noise by is lost.
    warm = signal_model(even, step_size=0.02).gains()[0]
    lost = 225 + 50 * ((0.02 * 900 / 4) / (1 - 0.02 * 50 / 4) - 1)
    assert warm == pytest.approx(-np.expm1(-2) * 100**2 / (100**2 + lost))
    # One that overshoots never settles.
    assert signal_model(even, step_size=0.08).gains()[0] < 1e-6


def test_records_along_one_direction_are_as_favourable_as_can_be():
    apart = np.concatenate([np.eye(8), -np.eye(8)])[None]
    along = np.zeros_like(apart)
    along[0, :, 0] = np.where(np.arange(16) % 2, 1, -1)
    spread, aligned = (signal_model(g, noise=400.0).gains()[:2] for g in (apart, along))
    assert spread[0] < 0.5 * spread[1]
    assert spread[1] == pytest.approx(aligned[1])
    # A long way makes no longer gradient than the records have: 100 against noise of 200.
    assert aligned == pytest.approx((0.2, 0.2))
    # Clipped records bias where they are unlike the model's, which no share of theirs can tell.
    assert signal_model(apart, clip_norm=2.0).clipped_at_truth() == 0.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "batch", "step", "word"),
    [(5000.0, 40, 1e-11, "swamped"), (0.5, 400, 8e-4, "fine")],
)
def test_the_extreme_words_hold_for_runs_on_columns_that_go_together(noise, batch, step, word):
    """The gain of a run in held-out log likelihood, at a fixed seed: 0.1 at most, or 0.9."""
    rng = np.random.default_rng(4)
    x = (rng.normal(size=(4000, 1)) + 0.5 * rng.normal(size=(4000, DIM))).astype(np.float32)
    y = (rng.random(4000) < 1 / (1 + np.exp(-x @ [1.0, 0.5, -0.5]))).astype(np.int32)
    run = kernel(step_size=step, batch_size=batch, clip_norm=2.5, noise_multiplier=noise)
    shapes = (jax.ShapeDtypeStruct((2000, DIM), jnp.float32), SHAPES[1].update(shape=(2000,)))
    assert ndp.plan(run, *shapes, num_steps=400).verdict == word

    def score(w):
        chance = (1 / (1 + np.exp(-x[2000:] @ np.asarray(w).T))).mean(1)
        return np.log(np.where(y[2000:], chance, 1 - chance)).mean()

    mcmc = ndp.MCMC(run, num_warmup=200, num_samples=200, progress_bar=False, secure=False)
    mcmc.run(jax.random.key(0), x[:2000], y[:2000])
    prior, best = score(rng.normal(size=(2000, DIM))), score(np.array([[1.0, 0.5, -0.5]]))
    gain = (score(mcmc.get_samples()["w"]) - prior) / (best - prior)
    assert gain >= 0.9 if word == "fine" else gain <= 0.1


@pytest.mark.slow
def test_more_records_mend():
    many = [jax.ShapeDtypeStruct((100_000, *s.shape[1:]), s.dtype) for s in SHAPES]
    plenty = ndp.plan(kernel(step_size=1e-5, batch_size=2000, clip_norm=2.0), *many, num_steps=1000)
    assert plenty.verdict == "fine"
    assert plenty.remedies == ()
    tight = ndp.plan(kernel(step_size=1e-5, batch_size=2000, clip_norm=0.05), *many, num_steps=1000)
    assert tight.faults == ("biased", "noisy")
    assert "clipping moves 'w'" in tight.remedies[0]


def test_a_long_step_spreads_the_draws(found):
    assert found.free_step_size > 1e-3
    hot = ndp.plan(kernel(step_size=2.0), *SHAPES, num_steps=100)
    assert hot.gain < 0.5 * found.gain


def test_text_and_figure(found):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    assert max(map(len, str(found).splitlines())) <= 88
    figure, ax = pyplot.subplots()
    assert found.plot(ax) is ax
    assert {line.get_xdata()[0] for line in ax.lines} == {1.0, found.suggested_clip_norm}
    pyplot.close(figure)


def leaking(x):
    mu = numpyro.sample("mu", dist.Normal(x.mean(), 1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("x", dist.Normal(mu, 1), obs=x)


def test_a_model_that_cannot_be_split_gets_the_walls_message():
    split = ndp.DPSGLD(leaking, step_size=1e-3, clip_norm=1.0, noise_multiplier=1.0)
    shape = jax.ShapeDtypeStruct((50,), jnp.float32)
    with pytest.raises(ndp.UnsupportedModelError, match="mu"):
        ndp.plan(split, shape, num_steps=10)


def test_what_cannot_be_planned_is_refused():
    with pytest.raises(ValueError, match="NUTS: other samplers have no noisy"):
        ndp.plan(numpyro.infer.NUTS(logistic), *SHAPES, num_steps=10)
    with pytest.raises(ValueError, match="num_steps"):
        ndp.plan(kernel(), *SHAPES, num_steps=0)
    off = kernel(noise_multiplier=0, clip_norm=float("inf"))
    with pytest.raises(ValueError, match=r"without noise, .*give privacy="):
        ndp.plan(off, *SHAPES, num_steps=10)


@pytest.mark.parametrize(
    "other",
    [
        ndp.DPFastMH(logistic, step_size=0.01, lipschitz=1.0, max_move=0.05),
        ndp.OPS(logistic, guarantee=ndp.StronglyLogConcave(row_norm=1.0)),
    ],
)
def test_a_kernel_without_noisy_gradients_is_refused_with_its_cost(other):
    wall = private_model(logistic, SHAPES)
    bound = other.bind(wall, num_steps=40, relation="zero_out", delta=1e-6, num_chains=2)
    cost = privacy_curve(bound.event(40, num_chains=2)).epsilon(1e-6)
    said = rf"ε = {re.escape(rounded_up(cost))} at δ = 1e-06 \(zero_out\) for 40 steps"
    with pytest.raises(ValueError, match=said):
        ndp.plan(other, *SHAPES, num_steps=20, num_chains=2)


def test_a_budget_too_small_for_metropolis_is_refused_with_what_fits():
    other = ndp.DPFastMH(logistic, step_size=0.01, lipschitz=1.0, max_move=0.05)
    with pytest.raises(ValueError, match=r"more than privacy=.*what would fit: \d+"):
        ndp.plan(other, *SHAPES, num_steps=5000, privacy=ndp.Budget(0.5, 1e-5))


def test_an_estimator_tells_its_cost_on_synthetic_records():
    budget = ndp.Budget(1.0, 1e-5)
    estimator = ndp.OutputPerturbation(logistic, row_norm=1.0, privacy=budget)
    with pytest.raises(ValueError, match="OutputPerturbation: run it without accountant= on made"):
        ndp.plan(estimator, *SHAPES, num_steps=1)
    told = []
    for shift in (0.0, 0.3):
        records = [np.full(s.shape, shift, s.dtype) for s in SHAPES]
        privacy = estimator.run(jax.random.key(0), *records).privacy
        told.append((privacy.noise_multiplier, privacy.clip_norm))
    assert told[0] == told[1]


def test_what_has_a_forecast_of_its_own_is_named():
    other: Any = SimpleNamespace(forecast=print)
    with pytest.raises(ValueError, match="SimpleNamespace: use its own forecast"):
        ndp.plan(other, *SHAPES, num_steps=10)


def test_outcomes_that_numpyro_does_not_censor_are_refused():
    """It said fine where the shape lay up to fifty of its own sds off."""

    def times(t, censored):
        scale = numpyro.sample("scale", dist.LogNormal(3, 1))
        with numpyro.plate("patients", t.shape[0]):
            law = dist.RightCensoredDistribution(dist.Weibull(scale, 1.4), censored=censored)
            numpyro.sample("t", law, obs=t)

    kernel = ndp.DPSGLD(
        times, step_size=1e-5, batch_size=100, clip_norm=2.0, privacy=ndp.Budget(1.0, 1e-5)
    )
    with pytest.raises(ndp.UnsupportedModelError, match="without censoring: the answer"):
        ndp.plan(kernel, np.ones(2_000, np.float32), np.zeros(2_000, np.int32), num_steps=50)
