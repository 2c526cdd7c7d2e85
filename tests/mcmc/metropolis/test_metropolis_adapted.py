"""DP-Fast MH without settings: a release before the chains gives start, proposal and bound."""

import math
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import numpyro_dp as ndp
from numpyro_dp.accounting.events import GaussianDpEvent, SmoothBarkerBit
from numpyro_dp.mcmc import MetropolisState, SGLDState
from numpyro_dp.mcmc.adaptation import AdaptState, Placed
from numpyro_dp.model.private_model import PrivateModel
from numpyro_dp.scoring.adaptation import ROUNDS
from tests.models import logistic, logistic_posterior

BUDGET = ndp.Budget(4.0, 1e-5)
STEPS = {"num_warmup": 50, "num_samples": 350, "progress_bar": False, "secure": False}
TRUTH = np.array([0.3, -1.0, 0.8])


def simulated(size, seed=4):
    rng = np.random.default_rng(seed)
    x = np.c_[np.ones(size), rng.uniform(-1.7, 1.7, (size, 2))].astype(np.float32)
    y = rng.random(size) < 1 / (1 + np.exp(-x @ TRUTH))
    return x, y.astype(np.int32)


@pytest.fixture(scope="module")
def data():
    return simulated(4_000)


@pytest.fixture(scope="module")
def ran(data):
    """Two chains that have run, and their ledger."""
    accountant = ndp.Accountant()
    kernel = ndp.DPFastMH(logistic, privacy=BUDGET, accountant=accountant)
    mcmc = ndp.MCMC(kernel, num_chains=2, **STEPS)
    mcmc.run(jax.random.key(0), *data)
    return mcmc, accountant


def exact(x, y):
    """Posterior mode and standard deviations."""
    mode, covariance = logistic_posterior(x, y)
    return mode, np.sqrt(np.diag(covariance))


def test_release_and_chains_are_one_charge_of_the_whole_budget(ran):
    mcmc, accountant = ran
    (entry,) = accountant.entries
    before, chains = entry.event.events
    gaussians = [e for part in before.events for e in part.events if hasattr(e, "event")]
    assert all(isinstance(e.event, GaussianDpEvent) for e in gaussians)
    assert sum(e.count for e in gaussians) == 1 + ROUNDS
    bits = chains.events[0]
    assert isinstance(bits.event, SmoothBarkerBit)
    assert bits.count == 800
    assert 0.97 * BUDGET.epsilon < mcmc.privacy.epsilon <= BUDGET.epsilon
    assert mcmc.privacy.recompute() == pytest.approx(mcmc.privacy.epsilon)
    assert "adapt_state" in mcmc.privacy.full()


def test_draws_are_a_posterior_without_any_setting(ran, data):
    """Some twenty relaxation times: a mean is known to a third of a standard deviation."""
    mode, sd = exact(*data)
    draws = np.asarray(ran[0].get_samples()["w"])
    assert np.abs((draws.mean(0) - mode) / sd).max() < 2
    assert np.all(np.abs(np.log(draws.std(0) / sd)) < math.log(1.8))


@pytest.mark.slow
def test_the_report_says_which_outcomes_are_cut(ran, data):
    """A yes of probability p has a score of √(1/p − 1) typical ones, whatever is located."""
    mcmc, _ = ran
    settings = mcmc._bound.plan.settings
    rarest = 1 / (1 + settings.lipschitz**2 * len(data[0]) / 3)
    said = f"rarer than about one in {1 / rarest:.3g} say more"
    assert any(said in note for note in mcmc.privacy.notes)


def _rare(y):
    p = numpyro.sample("p", dist.Beta(1, 1))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(p), obs=y)


@pytest.mark.slow
def test_rare_outcomes_are_cut_as_the_report_says():
    """One in 25, where one in 10 is the limit: cut to less than half of what they say.

    Means of ten runs lay at .025, with an sd of .0045: of three above .032 by chance in 300.
    """
    y, means = np.repeat([0, 1], [2_880, 120]), []
    for seed in range(3):
        mcmc = ndp.MCMC(ndp.DPFastMH(_rare, privacy=ndp.Budget(2.0, 1e-5)), num_chains=2, **STEPS)
        mcmc.run(jax.random.key(seed), y)
        assert any("rarer than about one in 10 say" in note for note in mcmc.privacy.notes)
        means.append(mcmc.get_samples()["p"].mean())
    assert np.mean(means) < 0.8 * 0.04


def test_how_often_the_bound_cut_can_be_asked(ran, data):
    found = ndp.clipping_rate(
        jax.random.key(1), ran[0], *data, privacy=ndp.Budget(1.0, 1e-6), secure=False
    )
    # Three typical scores: few rows are longer.
    assert found.rate < 0.02 + 5 * found.noise_sd


@pytest.mark.slow
def test_going_on_and_pickles(ran, data):
    mcmc, accountant = ran
    assert data[0].tobytes()[4000:4040] not in pickle.dumps(mcmc)
    before = mcmc.last_state.adapt_state
    again = ndp.MCMC(mcmc.sampler, num_chains=2, **STEPS | {"num_warmup": 0, "num_samples": 2})
    again.post_warmup_state = mcmc.last_state
    again.run(jax.random.key(1), *data)
    assert accountant.entries[-1].event.events[0].count == 4
    for old, new in zip(before, again.last_state.adapt_state, strict=True):
        np.testing.assert_array_equal(old, new)


def test_states_of_other_coordinates_are_no_place_to_go_on_from(data):
    accountant = ndp.Accountant()
    plain = ndp.DPFastMH(logistic, step_size=0.1, lipschitz=2.0, accountant=accountant)
    adapting = ndp.DPFastMH(logistic, privacy=BUDGET, accountant=accountant)
    bare = MetropolisState(
        jnp.int32(5), {"w": jnp.zeros(3)}, jax.random.key(0), jnp.zeros(2, jnp.int32)
    )
    given = bare._replace(adapt_state=AdaptState(jnp.zeros(3), jnp.eye(3)))
    other = given._replace(z={"w": jnp.zeros(2)})
    broken = given._replace(adapt_state=AdaptState(jnp.zeros(3), jnp.full((3, 3), jnp.nan)))
    for kernel, state, said in (
        (adapting, bare, "did not adapt"),
        (plain, given, "that adapted"),
        (adapting, other, "does not fit"),
        (adapting, broken, "no number"),
        (adapting, SGLDState(*given[:3], given.adapt_state), "another kernel"),
        (adapting, given._replace(z={"w": jnp.zeros(2)}, rng_key=None), "does not fit"),
        (adapting, {"w": jnp.zeros(3)}, "does not fit"),
    ):
        mcmc = ndp.MCMC(kernel, **STEPS)
        mcmc.post_warmup_state = state
        with pytest.raises(ValueError, match=said):
            mcmc.run(jax.random.key(0), *data)
    assert not accountant.entries


@pytest.mark.slow
def test_the_forecast_is_what_a_run_is_bound_to(data):
    kernel = ndp.DPFastMH(logistic, privacy=BUDGET)
    said = kernel.forecast(*data, num_steps=400)
    model = PrivateModel(logistic, data)
    bound = kernel.bind(model, num_steps=400, relation="zero_out", delta=1e-5)
    chosen = bound.plan.settings
    assert (chosen.step_size, chosen.lipschitz) == (said.step_size, said.clip_norm)
    assert bound.relaxation_times == said.relaxation_times
    assert 10 < said.relaxation_times < 100
    assert not any("below ten" in note for note in bound.facts().notes)
    typical = math.sqrt(3 / 4000)
    assert 3 * typical <= said.clip_norm * (1 + 1e-9)


@pytest.mark.slow
def test_few_steps_are_longer_up_to_what_moves_fastest(data):
    kernel = ndp.DPFastMH(logistic, privacy=BUDGET)
    said, few = (kernel.forecast(*data, num_steps=steps) for steps in (400, 40))
    # Fewer steps may be longer, but no longer than what moves fastest; then the bound is looser.
    assert few.step_size >= said.step_size
    assert few.clip_norm > said.clip_norm
    assert few.step_size <= 2.46 / math.sqrt(3)


def test_no_record_exceeds_its_gradient_in_stretched_coordinates(data):
    """Wild records, in coordinates that stretch one of them a thousandfold."""
    kernel = ndp.DPFastMH(logistic, privacy=BUDGET, lipschitz=0.1, smoothness=0.01)
    model = PrivateModel(logistic, data)
    bound = kernel.bind(model, num_steps=400, relation="zero_out", delta=1e-5)
    whitening = jnp.diag(jnp.array([1e-3, 1.0, 1e3]))
    start = Placed({"w": jnp.ones(3)}, AdaptState(jnp.ones(3), whitening))
    state = bound.start(jax.random.key(0), start)
    rows = jnp.array([[1, 40.0, -36], [1, 0, 0], [1, 1e6, 1e6], [1e-3, 1e-3, 1e-3]], jnp.float32)

    def terms(key):
        move = bound.walk.draw(key, 0, jnp.ones(3), 1)[0]
        change = bound.change(state, move)

        def each(x, y):
            return change.term([x[None], y[None]])

        return move, jnp.stack([jax.vmap(each)(rows, jnp.full(4, y)) for y in (0, 1)])

    moves, found = jax.jit(jax.vmap(terms))(jax.random.split(jax.random.key(2), 200))
    # The gradient in closed form, clipped in stretched coordinates: a record may say as much of a
    # move as that says of its direction, and a curvature.
    x, move = np.asarray(rows, float), np.asarray(moves, float)
    at = 1 / (1 + np.exp(-x.sum(1)))
    score = np.stack([-at, 1 - at])[..., None] * x * np.diag(whitening)
    score *= np.minimum(1, 0.1 / np.maximum(np.linalg.norm(score, axis=-1, keepdims=True), 1e-30))
    most = np.abs(np.einsum("yrd,md->myr", score, move))
    most += 0.005 * np.sum(move**2, axis=1)[:, None, None]
    known = np.isfinite(found)
    share = np.abs(np.asarray(found, float))[known] / most[known]
    assert share.max() <= 1 + 1e-4
    # The bound is used, or nothing was tested.
    assert np.mean(known) > 0.7
    assert share.max() > 0.9


def linear(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[-1]]).to_event(1))
    sigma = numpyro.sample("sigma", dist.LogNormal(0, 1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, sigma), obs=y)


@pytest.mark.slow
def test_outcomes_that_are_drawn_are_drawn_by_the_release_alone(data):
    x, rng = data[0], np.random.default_rng(8)
    y = (x @ TRUTH + 2 * rng.normal(size=len(x))).astype(np.float32)
    mcmc = ndp.MCMC(ndp.DPFastMH(linear, privacy=BUDGET), **STEPS)
    mcmc.run(jax.random.key(0), x, y)
    draws = mcmc.get_samples()
    # The posterior's sds are .02 to .04; a short chain's mean lies within three of them.
    np.testing.assert_allclose(draws["w"].mean(0), TRUTH, atol=0.2)
    assert float(draws["sigma"].mean()) == pytest.approx(2.0, abs=0.15)


@pytest.mark.slow
def test_intervals_hold_it():
    """20 data sets of 3 coordinates, coverage .95: below .81 by chance once in 1,000."""
    held = []
    for seed in range(20):
        rng = np.random.default_rng([12, seed])
        truth = rng.normal(size=3)
        x = np.c_[np.ones(4_000), rng.normal(size=(4_000, 2))].astype(np.float32)
        y = (rng.random(4_000) < 1 / (1 + np.exp(-x @ truth))).astype(np.int32)
        mcmc = ndp.MCMC(ndp.DPFastMH(logistic, privacy=BUDGET), **STEPS)
        mcmc.run(jax.random.key(seed), x, y)
        low, high = np.quantile(np.asarray(mcmc.get_samples()["w"]), [0.025, 0.975], axis=0)
        held.append((low < truth) & (truth < high))
    assert np.mean(held) > 0.81


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"privacy": None}, "takes a share of a budget"),
        ({"max_move": 0.3}, "max_move= goes with step_size"),
        ({"batch_size": 50.0}, "batch_size= goes with step_size"),
        ({"record_bound": lambda z, there: 1.0}, "record_bound= goes with"),
        ({"acceptance": "penalty"}, "adapts, by acceptance='barker'"),
        ({"num_candidates": 3}, "one candidate"),
        ({"likelihood_power": None}, "the budget chooses the step"),
        ({"lipschitz": math.inf}, "lipschitz must be"),
        ({"likelihood_power": 1e-6}, "at least 0.01"),
        ({"step_size": 0.1, "lipschitz": 2.0, "adaptation": 0.5}, "have no meaning with"),
        ({"adaptation": 1.5}, "between 0 and 1"),
        ({"init_strategy": dist.Normal}, "init_strategy= goes with"),
    ],
)
def test_options_without_a_meaning_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ndp.DPFastMH(logistic, **{"privacy": BUDGET, **options})


@pytest.mark.slow
def test_a_chain_that_is_no_posterior_says_so_in_one_line(data):
    """Few of these budgets make a posterior; whoever looks at the draws is told, not the reader."""
    few = [leaf[:1000] for leaf in data]
    for budget, told in ((ndp.Budget(1.0, 1e-5), True), (ndp.Budget(12.0, 1e-5), False)):
        kernel = ndp.DPFastMH(logistic, privacy=budget)
        model = PrivateModel(logistic, few)
        bound = kernel.bind(model, num_steps=1000, relation="zero_out", delta=1e-5)
        assert (bound.relaxation_times < 10) == told
        assert any(sign.startswith("span ") for sign in bound.facts().signs) == told


@pytest.mark.slow
def test_a_chain_that_would_hardly_move_is_refused_before_the_charge(data):
    accountant = ndp.Accountant()
    kernel = ndp.DPFastMH(logistic, privacy=BUDGET, lipschitz=1e3, accountant=accountant)
    with pytest.raises(ValueError, match=r"a chain would span.*Nothing was charged"):
        ndp.MCMC(kernel, **STEPS).run(jax.random.key(0), *data)
    assert not accountant.entries


def test_what_cannot_be_located_or_asked_otherwise_is_refused_before_the_charge(data):
    few = [leaf[:60] for leaf in data]
    accountant = ndp.Accountant()
    kernel = ndp.DPFastMH(logistic, privacy=ndp.Budget(0.5, 1e-5), accountant=accountant)
    with pytest.raises(ValueError, match=r"next to nothing.*Nothing was charged"):
        ndp.MCMC(kernel, **STEPS).run(jax.random.key(0), *few)
    private_size = ndp.Accountant(relation="add_remove")
    kernel = ndp.DPFastMH(logistic, privacy=BUDGET, accountant=private_size)
    with pytest.raises(ndp.UnsupportedModelError, match="add_remove"):
        ndp.MCMC(kernel, **STEPS).run(jax.random.key(0), *data)
    assert not accountant.entries
    assert not private_size.entries
    kernel = ndp.DPFastMH(logistic, privacy=BUDGET, lipschitz=1e-6, accountant=accountant)
    with pytest.raises(ValueError, match="less than a typical"):
        ndp.MCMC(kernel, **STEPS).run(jax.random.key(0), *data)
    assert not accountant.entries
    with pytest.raises(ValueError, match="audit runs an algorithm's own steps"):
        ndp.audit(ndp.DPFastMH(logistic, privacy=BUDGET), jax.random.key(0), data, data)
