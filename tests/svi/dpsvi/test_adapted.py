"""DPSVI without settings: a release before the steps gives start, coordinates and scales."""

import math
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from jax import random
from numpyro.infer import Predictive, Trace_ELBO
from numpyro.infer.autoguide import (
    AutoDelta,
    AutoDiagonalNormal,
    AutoMultivariateNormal,
    AutoNormal,
)

import numpyro_dp as ndp
from numpyro_dp.accounting.events import GaussianDpEvent
from numpyro_dp.execution.keys import seeded_key
from numpyro_dp.scoring.adaptation import ROUNDS
from numpyro_dp.scoring.statistic import unravelled
from numpyro_dp.svi.dpsvi import adapted
from numpyro_dp.svi.dpsvi.adapted import Frame
from numpyro_dp.svi.dpsvi.normal_guide import spread
from numpyro_dp.svi.dpsvi.start import first_carry
from tests.models import indifferent, logistic, logistic_posterior

BUDGET = ndp.Budget(1.0, 1e-5)
STEPS, KEY = 40, jax.random.key(0)
TRUTH = np.array([0.3, -1.0, 0.8])
# One guide for most tests, so that one executable serves them.
GUIDE = AutoNormal(logistic)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(4)
    x = np.c_[np.ones(4_000), rng.uniform(-1.7, 1.7, (4_000, 2))].astype(np.float32)
    y = rng.random(4_000) < 1 / (1 + np.exp(-x @ TRUTH))
    return x, y.astype(np.int32)


def adapting(model=logistic, guide=GUIDE, optim=None, loss=None, **changes):
    made = guide(model) if isinstance(guide, type) else guide
    return ndp.DPSVI(model, made, optim, loss, **{"privacy": BUDGET, "secure": False, **changes})


def fitted(made, data, steps=STEPS, **options):
    return made.run(KEY, steps, *data, progress_bar=False, **options)


@pytest.fixture(scope="module")
def ran(data):
    accountant = ndp.Accountant(allow_conditional=True)
    made = adapting(accountant=accountant)
    traced, honest = [], adapted.run_all
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adapted, "run_all", lambda *given: traced.append(given) or honest(*given))
        result = fitted(made, data)
    # What is rehearsed before the charge and after the steps is one program.
    assert len(traced) == 1
    return made, result, accountant


def test_release_and_steps_are_one_charge_of_the_whole_budget(ran):
    _, result, accountant = ran
    (entry,) = accountant.entries
    before, steps = entry.event.events
    gaussians = [e for part in before.events for e in part.events if hasattr(e, "event")]
    assert all(isinstance(e.event, GaussianDpEvent) for e in gaussians)
    assert sum(e.count for e in gaussians) == 1 + ROUNDS
    whole = 1 / ndp.calibrate(GaussianDpEvent, BUDGET) ** 2
    squares = sum(e.count / e.event.noise_multiplier**2 for e in gaussians)
    assert squares == pytest.approx(0.25 * whole, rel=0.01)
    (own,) = (e for e in steps.events if hasattr(e, "event"))
    assert own.count == STEPS
    left = STEPS / own.event.noise_multiplier**2
    assert squares + left == pytest.approx(whole, rel=0.01)
    assert result.privacy.steps == 1 + ROUNDS + STEPS
    assert 0.97 < result.privacy.epsilon <= 1.0
    assert result.privacy.recompute() == pytest.approx(result.privacy.epsilon)
    assert "start and coordinates" in result.privacy.full()
    assert "the scales count it" in result.privacy.full()


def test_it_is_charged_before_a_record_is_read(data, monkeypatch):
    accountant, seen = ndp.Accountant(allow_conditional=True), []

    def touched(*_):
        seen.append(len(accountant.entries))
        raise KeyError("stop")

    monkeypatch.setattr("numpyro_dp.scoring.adaptation.released_rounds", touched)
    with pytest.raises(KeyError, match="stop"):
        fitted(adapting(accountant=accountant), data)
    assert seen == [1]


def test_location_and_scales_are_those_of_the_posterior(ran, data):
    """Privacy leaves .2 to .5 sds here: 4 of these are passed once in 10,000 seeds."""
    _, result, _ = ran
    mode, covariance = logistic_posterior(*data)
    sd = np.sqrt(np.diag(covariance))
    draws = np.asarray(result.get_samples(random.key(1), 2_000)["w"])
    assert np.abs((draws.mean(0) - mode) / sd).max() < 2
    np.testing.assert_allclose(result.params["w_auto_loc"], draws.mean(0), atol=0.02)
    widths = draws.std(0) / sd
    assert np.all(widths > 0.8)
    assert np.all(widths < 1.8)


def test_result_serves_whatever_takes_one(ran, data):
    made, result, _ = ran
    drawn = made.guide.sample_posterior(KEY, result.params, sample_shape=(7,))
    assert drawn["w"].shape == (7, 3)
    predictive = Predictive(logistic, guide=made.guide, params=result.params, num_samples=3)
    assert predictive(KEY, data[0][:5])["y"].shape == (3, 5)
    assert ndp.from_numpyro(result).posterior["w"].shape[-1] == 3
    text = pickle.dumps(result)
    assert data[0].tobytes()[4000:4040] not in text
    again = pickle.loads(text)
    np.testing.assert_array_equal(again.params["w_auto_loc"], result.params["w_auto_loc"])


@pytest.mark.slow
def test_a_full_guide_has_the_correlations_and_a_diagonal_one_the_same_sds(ran, data):
    x, y = data
    # Columns that hang together.
    mixed = np.c_[x[:, 0], x[:, 1], 0.7 * x[:, 1] + 0.7 * x[:, 2]].astype(np.float32)
    full = fitted(adapting(guide=AutoMultivariateNormal), (mixed, y))
    root = np.asarray(full.params["auto_scale_tril"], float)
    covariance = root @ root.T
    right = logistic_posterior(mixed, y)[1]
    correlation = [c[1, 2] / math.sqrt(c[1, 1] * c[2, 2]) for c in (covariance, right)]
    assert correlation[0] == pytest.approx(correlation[1], abs=0.35)
    assert correlation[1] < -0.5
    diagonal = fitted(adapting(guide=AutoDiagonalNormal), (mixed, y))
    # The same noise: only what a guide holds of it differs.
    np.testing.assert_allclose(diagonal.params["auto_loc"], full.params["auto_loc"], atol=1e-3)
    np.testing.assert_allclose(
        diagonal.params["auto_scale"], np.sqrt(np.diag(covariance)), rtol=0.02
    )


def named(x, y):
    """Names of sites, and of their parameters, sort differently: a_a_auto_loc, a_auto_loc."""
    slope = numpyro.sample("a_a", dist.Normal(0, 1).expand([2]).to_event(1))
    level = numpyro.sample("a", dist.Normal(0, 5))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=level + x @ slope), obs=y)


@pytest.mark.parametrize("guide", [AutoNormal, AutoDiagonalNormal, AutoMultivariateNormal])
def test_coordinates_are_in_the_order_of_the_sites_names(guide, data):
    """A full guide has its own: that of the model's code."""
    fit, _, carry = bound(adapting(named, guide), (data[0][:, 1:], data[1]))
    u = jnp.array([1.0, 2.0, 3.0])
    params = fit.placed(fit.optim.get_params(carry.optim_state), u)
    np.testing.assert_array_equal(fit.place(params), u)
    covariance = np.diag([1.0, 4.0, 9.0]) + 0.5
    scales = spread(fit.target.guide, covariance, unravelled(fit.adaptation.model, u))
    draws = jax.vmap(fit.target.draw, (None, 0))(
        params | fit.target.unconstrain(scales), random.split(KEY, 20_000)
    )[0]
    found = np.c_[draws["a"], draws["a_a"]]
    # The sd of these is at most .03 and .09: 5 of them are passed once in a million seeds.
    np.testing.assert_allclose(found.mean(0), u, atol=0.12)
    whole = guide is AutoMultivariateNormal
    expected = covariance if whole else np.diag(np.diag(covariance))
    np.testing.assert_allclose(np.cov(found.T), expected, atol=0.45)


@pytest.mark.slow
@pytest.mark.parametrize("guide", [AutoNormal, AutoMultivariateNormal])
def test_sites_land_in_their_own_place(guide, data):
    """The truths are twenty sds apart."""
    result = fitted(adapting(named, guide), (data[0][:, 1:], data[1]))
    draws = result.get_samples(random.key(1), 500)
    np.testing.assert_allclose(draws["a"].mean(0), TRUTH[0], atol=0.3)
    np.testing.assert_allclose(draws["a_a"].mean(0), TRUTH[1:], atol=0.3)
    assert np.all(np.asarray(draws["a_a"].std(0)) < 0.12)
    assert float(draws["a"].std(0)) < 0.12


def linear(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[-1]]).to_event(1))
    sigma = numpyro.sample("sigma", dist.LogNormal(0, 1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, sigma), obs=y)


@pytest.mark.slow
def test_an_unknown_scale_is_found(data):
    """The posterior's sds are .01 to .03; outcomes are drawn, in batches of half the records."""
    x, rng = data[0], np.random.default_rng(8)
    y = (x @ TRUTH + 2 * rng.normal(size=len(x))).astype(np.float32)
    made = adapting(linear, AutoMultivariateNormal, privacy=ndp.Budget(2.0, 1e-5))
    draws = fitted(made, (x, y)).get_samples()
    np.testing.assert_allclose(draws["w"].mean(0), TRUTH, atol=0.2)
    assert float(draws["sigma"].mean()) == pytest.approx(2.0, abs=0.15)


def bound(made, data, steps=STEPS):
    """What a run is bound to, and what it carries into its first step."""
    target, state = made._begun(KEY, data, {})
    fit, plan = made._bind(target, state, steps)
    carry = first_carry(fit, state, steps)._replace(noise_key=seeded_key(KEY))
    return fit, plan, carry


def test_a_records_vector_is_no_longer_than_the_clip_norm(data, monkeypatch):
    """Extreme records, in coordinates that stretch one of them a thousandfold."""
    x = np.array([[1, 40.0, -36], [1, 0, 0], [1, 1e6, 1e6], [0, 0, 0]], np.float32)
    rows = [np.tile(x, (2, 1)), np.repeat([0, 1], 4).astype(np.int32)]
    fit, _, carry = bound(adapting(), data)
    seen = []

    def spied(mechanism, key, vector, records, step):
        each = jax.vmap(vector)([leaf[:, None] for leaf in records])
        seen.append(jnp.linalg.norm(each, axis=1))
        return jnp.zeros(mechanism.dim)

    monkeypatch.setattr("numpyro_dp.mechanisms.PrivateSum.release", spied)

    @jax.jit
    def lengths(whitening, *rows):
        fit.step(carry._replace(frame=Frame.of(whitening)), list(rows))
        return seen.pop().reshape(-1, 4)

    norms = np.asarray(lengths(jnp.diag(jnp.array([1e-3, 1.0, 1e3])), *rows))
    clip = fit.private_sum.clip_norm
    assert norms.max() <= clip * (1 + 1e-5)
    assert norms.max() > 0.9 * clip
    assert np.all(norms[:, 3] == 0)


@pytest.mark.slow
def test_the_noise_of_a_step_is_what_is_charged():
    """Records without a gradient, 2,000 steps; 5 sds are passed once in a million seeds."""
    x = np.ones((2_000, 2), np.float32)
    made = adapting(indifferent, AutoNormal, optim=numpyro.optim.SGD(1.0), average=0.0)
    fit, plan, carry = bound(made, (x,))
    paid = plan.gradient.event(STEPS).events[0].event.noise_multiplier
    records = [jnp.asarray(x)]

    @jax.jit
    def moved(key):
        state = fit.step(carry._replace(noise_key=key), records)[0]
        return fit.place(fit.optim.get_params(state)) - fit.place(
            fit.optim.get_params(carry.optim_state)
        )

    keys = [seeded_key(random.key(k)) for k in range(2_000)]
    moves = np.stack([moved(key) for key in keys])
    # Draws of the guide move by their own unit: the same in every step of this carry.
    sd = moves.std(0, ddof=1)
    np.testing.assert_allclose(sd, paid * fit.private_sum.clip_norm, rtol=5 / math.sqrt(4_000))


@pytest.mark.slow
def test_the_scales_know_how_far_an_optimiser_got(ran, data):
    """Steps too short to arrive leave the location where it was found, less sure."""
    _, result, _ = ran
    slow = fitted(adapting(optim=optax.sgd(1e-4)), data)
    assert np.all(slow.params["w_auto_scale"] > 1.05 * result.params["w_auto_scale"])


@pytest.mark.slow
def test_steps_that_ran_away_are_named(ran):
    """A scale that the records put at zero: its logarithm has no end to go to."""
    assert not any("have run away" in said for said in ran[1].privacy.notes)

    def studies(error, y):
        mu = numpyro.sample("mu", dist.Normal(0, 5))
        tau = numpyro.sample("tau", dist.HalfCauchy(5))
        with numpyro.plate("studies", error.shape[0]):
            numpyro.sample("y", dist.Normal(mu, jnp.sqrt(tau**2 + error**2)), obs=y)

    rng = np.random.default_rng(0)
    error = rng.uniform(9, 18, 3_000).astype(np.float32)
    seen = (7.0 + 0.6 * error * rng.normal(size=3_000)).astype(np.float32)
    result = fitted(adapting(studies, AutoNormal), (error, seen))
    assert float(result.params["tau_auto_loc"]) < -10
    assert any("have run away" in said for said in result.privacy.notes)


def test_another_guide_or_relation_or_too_small_a_budget_is_refused_before_a_charge(data):
    accountant = ndp.Accountant(allow_conditional=True)
    with pytest.raises(ValueError, match=r"AutoMultivariateNormal.*this is AutoDelta"):
        fitted(adapting(guide=AutoDelta, accountant=accountant), data)

    with pytest.raises(ValueError, match=r"next to nothing.*optim and clip_norm"):
        fitted(adapting(accountant=accountant), [leaf[:60] for leaf in data])

    assert not accountant.entries
    private = ndp.Accountant(relation="add_remove", allow_conditional=True)
    with pytest.raises(ValueError, match="private under add_remove"):
        fitted(adapting(accountant=private), data)
    assert not private.entries


@pytest.mark.slow
def test_a_model_that_steps_do_not_suit_is_refused_before_a_charge(data):
    accountant = ndp.Accountant(allow_conditional=True)

    def learnt(x, y):
        b = numpyro.param("b", 0.0)
        w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[-1]]).to_event(1))
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=x @ w + b), obs=y)

    with pytest.raises(ValueError, match="without parameters"):
        fitted(adapting(learnt, AutoNormal, accountant=accountant), data)

    def groups(x, y):
        scale = numpyro.sample("scale", dist.HalfNormal(1))
        with numpyro.plate("groups", 3):
            effect = numpyro.sample("effect", dist.Normal(0, scale))
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=x @ effect), obs=y)

    with pytest.raises(ValueError, match=r"times steeper.*give optim and clip_norm"):
        fitted(adapting(groups, AutoNormal, accountant=accountant), data)
    assert not accountant.entries


def test_an_optimiser_that_runs_away_is_refused_before_a_charge(data):
    accountant = ndp.Accountant(allow_conditional=True)
    for optim in (optax.sgd(10.0), optax.sgd(float("nan"))):
        with pytest.raises(ValueError, match=r"runs away.*Nothing was charged"):
            fitted(adapting(optim=optim, accountant=accountant), data)
    assert not accountant.entries


def test_starts_of_the_users_are_refused(ran, data):
    made, result, accountant = ran
    for option in ({"init_state": result.state}, {"init_params": {"w_auto_loc": jnp.ones(3)}}):
        with pytest.raises(ValueError, match=f"{next(iter(option))}= goes with optim"):
            fitted(made, data, **option)
    assert len(accountant.entries) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"privacy": None, "noise_multiplier": 2.0}, "takes a share of a budget"),
        ({"noise_multiplier": 2.0}, "takes a share of a budget"),
        ({"adaptation": 0.0}, "adaptation must be"),
        ({"adaptation": 1.0}, "between 0 and 1"),
        ({"scale": "curvature"}, "scale= goes with clip_norm"),
        ({"curvature_clip": 1.0}, "curvature_clip= goes with clip_norm"),
        ({"clip": "plain"}, "clip= goes with clip_norm"),
        ({"max_records": 9}, "max_records= goes with clip_norm"),
        ({"elbo": ndp.ElboTrace(every=2, lower=-5.0, upper=0.0)}, "elbo= goes with clip_norm"),
        ({"loss": Trace_ELBO(num_particles=2)}, "num_particles=2 goes with"),
        ({"clip_norm": 1.0}, "give optim="),
        ({"clip_norm": 1.0, "adaptation": 0.5}, "adaptation= has no meaning with clip_norm"),
    ],
)
def test_options_without_a_meaning_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        adapting(**options)


def test_a_plan_tells_what_to_ask_instead(data):
    with pytest.raises(ValueError, match=r"it adapts: LikelihoodRelease.*forecast"):
        ndp.plan(adapting(), *data, num_steps=STEPS)


@pytest.mark.slow
def test_intervals_hold_on_simulated_data():
    """20 sets of 5: nominal 95 %, sd of the share .022; .86 is missed once in 10,000 seeds."""
    x = np.c_[np.ones(1_000), np.random.default_rng(1).normal(size=(1_000, 4))]
    found = ndp.coverage(
        adapting,
        logistic,
        x.astype(np.float32),
        jax.ShapeDtypeStruct((1_000,), np.int32),
        num_datasets=20,
        num_steps=STEPS,
        progress_bar=False,
    )
    assert found.pooled.coverage > 0.86
