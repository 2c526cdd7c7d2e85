"""Gradient kernels without settings: a release before the chains gives start, metric and steps."""

import math
import pickle
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.stats import chi2

import numpyro_dp as ndp
from numpyro_dp.accounting.events import GaussianDpEvent
from numpyro_dp.mcmc import SGLDState
from numpyro_dp.mcmc.adaptation import AdaptState, Placed
from numpyro_dp.mechanisms import CHACHA20
from numpyro_dp.model.private_model import PrivateModel
from numpyro_dp.scoring.adaptation import ROUNDS
from numpyro_dp.scoring.statistic import record_statistic
from numpyro_dp.scoring.verdicts.trust import Located
from tests.models import logistic, logistic_posterior, normal_mean

BUDGET = ndp.Budget(1.0, 1e-5)
STEPS = {"num_warmup": 50, "num_samples": 150, "progress_bar": False}
TRUTH = np.array([0.3, -1.0, 0.8])


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(4)
    x = np.c_[np.ones(4_000), rng.uniform(-1.7, 1.7, (4_000, 2))].astype(np.float32)
    y = rng.random(4_000) < 1 / (1 + np.exp(-x @ TRUTH))
    return x, y.astype(np.int32)


@pytest.fixture(scope="module")
def ran(data, tmp_path_factory):
    """Two chains that have run, with noise of a fixed seed, and their ledger."""
    accountant = ndp.Accountant(
        ndp.Budget(3.0, 1e-5),
        path=tmp_path_factory.mktemp("adapted") / "one.ledger",
        allow_conditional=True,
    )
    kernel = ndp.DPSGLD(logistic, privacy=BUDGET, accountant=accountant)
    mcmc = ndp.MCMC(kernel, num_chains=2, secure=False, **STEPS)
    mcmc.run(jax.random.key(0), *data, extra_fields=("adapt_state",))
    return mcmc, accountant


def exact(x, y):
    """Posterior mode and standard deviations."""
    mode, covariance = logistic_posterior(x, y)
    return mode, np.sqrt(np.diag(covariance))


def test_release_and_chains_are_one_charge_of_the_whole_budget(ran):
    mcmc, accountant = ran
    (entry,) = accountant.entries
    assert entry.label == "DPSGLD"
    before, chains = entry.event.events
    gaussians = [e for part in before.events for e in part.events if hasattr(e, "event")]
    assert all(isinstance(e.event, GaussianDpEvent) for e in gaussians)
    assert sum(e.count for e in gaussians) == 1 + ROUNDS
    squares = sum(e.count / e.event.noise_multiplier**2 for e in gaussians)
    whole = 1 / ndp.calibrate(GaussianDpEvent, BUDGET) ** 2
    assert squares == pytest.approx(0.25 * whole, rel=0.01)
    assert chains.events[0].count == 400
    assert squares + 400 / chains.events[0].event.noise_multiplier ** 2 == pytest.approx(
        whole, rel=0.01
    )
    assert mcmc.privacy.steps == 401 + ROUNDS
    assert 0.97 < mcmc.privacy.epsilon <= 1.0
    assert mcmc.privacy.recompute() == pytest.approx(mcmc.privacy.epsilon)
    assert "adapt_state" in mcmc.privacy.full()


def test_draws_are_a_posterior_without_any_setting(ran, data):
    """Ten relaxation times a chain; a pooled mean is known to a third of a standard deviation."""
    mcmc, _ = ran
    mode, sd = exact(*data)
    draws = np.asarray(mcmc.get_samples()["w"])
    assert np.abs((draws.mean(0) - mode) / sd).max() < 4
    assert np.all(draws.std(0) / sd > 0.4)
    assert np.all(draws.std(0) / sd < 2.5)


def test_the_metric_is_released_alike_to_all_chains_and_is_the_posteriors(ran, data):
    mcmc, _ = ran
    adapted = mcmc.last_state.adapt_state
    assert mcmc.get_extra_fields()["adapt_state"].mean.shape == (300, 3)
    for leaf in adapted:
        np.testing.assert_array_equal(leaf[0], leaf[1])
    root = np.asarray(adapted.mass_matrix_sqrt_inv[0], float)
    sds = np.sqrt(np.diag(root.T @ root))
    np.testing.assert_allclose(sds, exact(*data)[1], rtol=0.5)


def test_going_on_costs_the_steps_alone_and_keeps_the_metric(ran, data):
    mcmc, accountant = ran
    before = mcmc.last_state.adapt_state
    mcmc.post_warmup_state = mcmc.last_state
    mcmc.num_samples, kept = 20, mcmc.num_samples
    mcmc.run(jax.random.key(1), *data)
    mcmc.num_samples = kept
    assert len(accountant.entries) == 2
    assert accountant.entries[1].event.events[0].count == 40
    for old, new in zip(before, mcmc.last_state.adapt_state, strict=True):
        np.testing.assert_array_equal(old, new)


def test_a_state_without_coordinates_is_no_place_to_go_on_from(data):
    accountant = ndp.Accountant()
    kernel = ndp.DPSGLD(logistic, privacy=BUDGET, accountant=accountant)
    mcmc = ndp.MCMC(kernel, **STEPS)
    mcmc.post_warmup_state = SGLDState(jnp.int32(5), {"w": jnp.zeros(3)}, jax.random.key(0))
    with pytest.raises(ValueError, match="did not adapt"):
        mcmc.run(jax.random.key(0), *data)
    explicit = ndp.DPSGLD(
        logistic, step_size=1e-3, clip_norm=1.0, privacy=BUDGET, accountant=accountant
    )
    mcmc = ndp.MCMC(explicit, **STEPS)
    coordinates = AdaptState(jnp.zeros(3), jnp.eye(3))
    state = SGLDState(jnp.int32(5), {"w": jnp.zeros(3)}, jax.random.key(0), coordinates)
    mcmc.post_warmup_state = state
    with pytest.raises(ValueError, match="a kernel that adapted"):
        mcmc.run(jax.random.key(0), *data)
    assert not accountant.entries


def test_arviz_takes_it(ran):
    mcmc, _ = ran
    assert ndp.from_numpyro(mcmc).posterior["w"].shape[::2] == (2, 3)


def test_pickles_hold_what_was_released_and_no_record(ran, data):
    mcmc, _ = ran
    text = pickle.dumps(mcmc)
    assert data[0].tobytes()[4000:4040] not in text
    again = pickle.loads(text)
    np.testing.assert_array_equal(again.get_samples()["w"], mcmc.get_samples()["w"])


def test_a_budget_that_does_not_hold_it_refuses_before_anything(data, monkeypatch):
    accountant = ndp.Accountant(ndp.Budget(0.5, 1e-5))
    monkeypatch.setattr(
        "numpyro_dp.scoring.adaptation.released_rounds", lambda *_: pytest.fail("touched")
    )
    mcmc = ndp.MCMC(ndp.DPSGLD(logistic, privacy=BUDGET, accountant=accountant), **STEPS)
    with pytest.raises(ndp.BudgetExceededError):
        mcmc.run(jax.random.key(0), *data)
    assert not accountant.entries


def test_it_is_charged_before_a_record_is_read(data, monkeypatch):
    accountant, seen = ndp.Accountant(), []

    def touched(*_):
        seen.append(len(accountant.entries))
        raise KeyError("stop")

    monkeypatch.setattr("numpyro_dp.scoring.adaptation.released_rounds", touched)
    mcmc = ndp.MCMC(ndp.DPSGLD(logistic, privacy=BUDGET, accountant=accountant), **STEPS)
    with pytest.raises(KeyError, match="stop"):
        mcmc.run(jax.random.key(0), *data)
    assert seen == [1]


def test_a_records_step_is_no_longer_than_the_clip_norm(data):
    """Extreme records, in coordinates that stretch one of them a thousandfold."""
    kernel = ndp.DPSGLD(logistic, privacy=BUDGET)
    model = PrivateModel(logistic, data)
    bound = kernel.bind(model, num_steps=400, relation="zero_out", delta=1e-5)
    statistic, clip = bound.adaptation.release.statistic, bound.private_sum.clip_norm
    whitening = jnp.diag(jnp.array([1e-3, 1.0, 1e3]))
    x = jnp.array([[1, 40.0, -36], [1, 0, 0], [1, 1e6, 1e6], [0, 0, 0]], jnp.float32)

    def score(x, y):
        at = jnp.ones(3), whitening, clip, jax.random.key(0)
        return statistic.score(*at, [x[None], y[None]])

    norms = jnp.linalg.norm(
        jnp.stack([jax.vmap(score)(x, jnp.full(4, y)) for y in (0, 1)]), axis=-1
    )
    assert float(norms.max()) <= clip * (1 + 1e-5)
    assert float(norms.max()) > 0.9 * clip
    assert bool(jnp.all(norms[:, 3] == 0))


def test_a_step_has_the_noise_that_is_charged(data):
    """Records without a score: what moves a cold chain beside its prior is the privacy noise.

    χ² of 1,500 numbers; halved noise or a doubled clip norm would give a quarter or four times
    the variance. False alarm 1e-6.
    """
    bound = ndp.DPSGLD(logistic, privacy=BUDGET).bind(
        PrivateModel(logistic, data), num_steps=400, relation="zero_out", delta=1e-5
    )
    bound = replace(bound, integrator=replace(bound.integrator, temperature=1e-30))
    whitening = jnp.array([[0.04, 0, 0], [0.01, 0.05, 0], [0, -0.02, 0.03]])
    state = bound.start(
        jax.random.key(0), Placed({"w": jnp.ones(3)}, AdaptState(jnp.ones(3), whitening))
    )
    nobody = [jnp.zeros(data[0].shape), jnp.zeros(data[1].shape, jnp.int32)]
    keys = jax.random.split(jax.random.key(1, impl=CHACHA20), 500)
    moved = jax.jit(jax.vmap(lambda key: bound.advance(key, state, nobody).z["w"]))(keys) - 1
    in_units = 2 / bound.integrator.step_size * np.linalg.solve(whitening.T, np.asarray(moved).T)
    noise = in_units + np.asarray(whitening.sum(1))[:, None]
    charged = bound.event(400).events[0].event.noise_multiplier * bound.private_sum.clip_norm
    found = np.sum(noise**2) / charged**2
    assert chi2.ppf(5e-7, noise.size) < found < chi2.ppf(1 - 5e-7, noise.size)


def test_the_forecast_is_what_a_run_is_bound_to(data):
    kernel = ndp.DPSGLD(logistic, privacy=BUDGET)
    said = kernel.forecast(*data, num_steps=400)
    bound = kernel.bind(
        PrivateModel(logistic, data), num_steps=400, relation="zero_out", delta=1e-5
    )
    assert bound.private_sum.clip_norm == said.clip_norm
    assert bound.integrator.step_size == said.step_size
    # The privacy noise is all the noise that the chain asks for, so nothing heats it.
    assert said.step_size <= bound.integrator.free_step_size(bound.gradient_sd)
    assert not bound.facts().notes
    assert 20 < said.relaxation_times < 24
    assert "relaxation times" in str(said)
    assert "DPNUTS at the same ε: can be resolved" in str(said)
    small = kernel.forecast(*(leaf[:100] for leaf in data), num_steps=400)
    assert "refused" in str(small)
    half = kernel.forecast(*data, num_steps=400, num_chains=4)
    assert half.relaxation_times < said.relaxation_times
    # With more privacy than twenty relaxation times ask for, the clip is looser, to a limit.
    rich = ndp.DPSGLD(logistic, privacy=ndp.Budget(8.0, 1e-5)).forecast(*data, num_steps=400)
    assert rich.clip_norm > said.clip_norm
    assert rich.clip_norm <= 10 * math.sqrt(3 / 4000) * (1 + 1e-9)


@pytest.mark.parametrize("constructor", [ndp.DPSGHMC, ndp.DPSGNHT])
def test_kernels_with_a_momentum_adapt_too(data, constructor):
    said = constructor(logistic, privacy=BUDGET).forecast(*data, num_steps=400)
    assert 15 < said.relaxation_times < 30
    assert math.sqrt(said.step_size) * 2 <= 1


def test_a_tempered_run_is_forecast_at_its_own_width(data):
    """A likelihood to the power 1/4 has a posterior twice as wide, and four times the way to go."""

    def settings(power):
        kernel = ndp.DPSGLD(logistic, privacy=BUDGET, likelihood_power=power, clip_norm=0.2)
        return kernel.forecast(*data, num_steps=4000)

    whole, part = settings(1.0), settings(0.25)
    # Steps are limited by noise, which the power takes off: 2μ²/(C²τ) of variance 1/τ.
    assert part.relaxation_times == pytest.approx(4 * whole.relaxation_times, rel=0.02)


def test_a_run_without_steps_would_leave_chains_that_never_adapted(data):
    accountant = ndp.Accountant()
    kernel = ndp.DPSGLD(logistic, privacy=BUDGET, accountant=accountant)
    mcmc = ndp.MCMC(kernel, num_warmup=0, num_samples=20, progress_bar=False)
    with pytest.raises(ValueError, match="nothing is drawn"):
        mcmc.warmup(jax.random.key(0), *data)
    assert not accountant.entries


def test_one_of_both_settings_may_be_given(data):
    def settings(**given):
        return ndp.DPSGLD(logistic, privacy=BUDGET, **given).forecast(*data, num_steps=400)

    assert settings(clip_norm=0.2).clip_norm == pytest.approx(0.2)
    assert settings(clip_norm=0.2).step_size < settings().step_size
    assert settings(step_size=0.01).step_size == 0.01
    assert settings(step_size=0.01).clip_norm == settings().clip_norm


def own_latents(y):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    with numpyro.plate("people", y.shape[0]):
        z = numpyro.sample("z", dist.Bernoulli(0.5), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Normal(mu * z, 1), obs=y)


def groups(g, y):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    scale = numpyro.sample("scale", dist.HalfNormal(1))
    with numpyro.plate("groups", 5):
        effect = numpyro.sample("effect", dist.Normal(mean, scale))
    with numpyro.plate("people", g.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=effect[g]), obs=y)


def test_a_prior_in_which_steps_of_one_size_run_away_is_refused(data):
    kernel = ndp.DPSGLD(groups, privacy=BUDGET)
    group = np.arange(4_000, dtype=np.int32) % 5
    with pytest.raises(ValueError, match=r"times steeper.*Use DPNUTS"):
        ndp.MCMC(kernel, **STEPS).run(jax.random.key(0), group, data[1])


def linear(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[-1]]).to_event(1))
    sigma = numpyro.sample("sigma", dist.LogNormal(0, 1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, sigma), obs=y)


def test_outcomes_are_drawn_with_a_chains_own_key(data):
    """Programs are traced with keys of another kind."""
    x, y = data[0][:3], data[0][:3, 1]
    statistic = record_statistic(PrivateModel(linear, (x, y)))
    at = jnp.zeros(4), jnp.eye(4), 0.1, jax.random.key(0, impl=CHACHA20)
    rows = [jnp.asarray(leaf)[:, None] for leaf in statistic.numbered([x, y])]
    scores = jax.vmap(lambda *row: statistic.score(*at, list(row)))(*rows)
    assert np.all(np.linalg.norm(scores, axis=1) <= 0.1 * (1 + 1e-5))
    assert np.all(np.linalg.norm(scores, axis=1) > 0)


@pytest.mark.slow
def test_an_unknown_scale_is_found(data):
    x, rng = data[0], np.random.default_rng(8)
    y = (x @ TRUTH + 2 * rng.normal(size=len(x))).astype(np.float32)
    mcmc = ndp.MCMC(ndp.DPSGLD(linear, privacy=ndp.Budget(2.0, 1e-5)), secure=False, **STEPS)
    mcmc.run(jax.random.key(0), x, y)
    draws = mcmc.get_samples()
    # The posterior's sds are .02 to .04; noise and a short chain make them twice that.
    np.testing.assert_allclose(draws["w"].mean(0), TRUTH, atol=0.3)
    assert float(draws["sigma"].mean()) == pytest.approx(2.0, abs=0.2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"privacy": None, "noise_multiplier": 2.0}, "takes a share of a budget"),
        ({"clip_norm": {"w": 1.0}}, "by site has no meaning"),
        ({"preconditioner": {"w": 2.0}}, "preconditioner= goes with both"),
        ({"num_steps": 3}, "num_steps= goes with both"),
        ({"adaptation": 0.0}, "adaptation must be"),
        ({"adaptation": 1.0}, "between 0 and 1"),
    ],
)
def test_options_without_a_meaning_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ndp.DPSGLD(logistic, **{"privacy": BUDGET, **options})


def test_a_start_of_another_kernel_and_a_friction_without_settings_are_refused():
    first = ndp.DPSGLD(normal_mean, step_size=0.1, clip_norm=1.0, privacy=BUDGET)
    with pytest.raises(ValueError, match="init_kernel= goes with both"):
        ndp.DPSGLD(normal_mean, privacy=BUDGET, init_kernel=first)
    with pytest.raises(ValueError, match="init_kernel needs settings"):
        ndp.DPSGLD(
            normal_mean, step_size=0.1, clip_norm=1.0, privacy=BUDGET,
            init_kernel=ndp.DPSGLD(normal_mean, privacy=BUDGET),
        )  # fmt: skip
    with pytest.raises(ValueError, match="at most 1"):
        ndp.DPSGHMC(logistic, step_size=0.5, privacy=BUDGET)
    with pytest.raises(ValueError, match="friction must be given"):
        ndp.DPSGHMC(logistic, step_size=0.1, clip_norm=1.0, privacy=BUDGET)
    with pytest.raises(ValueError, match="DPSGFS learns its metric"):
        ndp.DPSGFS(logistic, privacy=BUDGET)


def test_what_cannot_be_located_is_refused_before_the_charge(data):
    def run(kernel, *args, accountant=None):
        ndp.MCMC(kernel, **STEPS).run(jax.random.key(0), *args)

    few = [leaf[:100] for leaf in data]
    with pytest.raises(ValueError, match=r"next to nothing.*Nothing was charged"):
        run(ndp.DPSGLD(logistic, privacy=BUDGET), *few)
    with pytest.raises(ndp.UnsupportedModelError, match="step_size and clip_norm or DPSVI"):
        run(ndp.DPSGLD(own_latents, privacy=BUDGET), data[0][:, 1])
    private_size = ndp.Accountant(relation="add_remove")
    with pytest.raises(ndp.UnsupportedModelError, match="add_remove"):
        run(ndp.DPSGLD(logistic, privacy=BUDGET, accountant=private_size), *data)
    with pytest.raises(ValueError, match="forecast"):
        ndp.plan(ndp.DPSGLD(logistic, privacy=BUDGET), *data, num_steps=400)
    with pytest.raises(ValueError, match=r"numpyro_dp\.plan"):
        ndp.DPSGLD(logistic, step_size=1.0, clip_norm=1.0, privacy=BUDGET).forecast(
            *data, num_steps=1
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"dense_mass": False},
        {"sampling_rate": 0.5},
        {"likelihood_power": 0.5},
        {"kernel": ndp.DPSGHMC},
        {"kernel": ndp.DPSGNHT},
        {"chain_method": "sequential"},
        {"relation": "replace_one"},
        {"start": 0.2},
    ],
    ids=str,
)
def test_every_way_runs_and_stays_within_its_budget(data, options):
    options = dict(options)
    kernel, method = options.pop("kernel", ndp.DPSGLD), options.pop("chain_method", "vectorized")
    start, relation = options.pop("start", None), options.pop("relation", "zero_out")
    accountant = ndp.Accountant(ndp.Budget(2.0, 1e-5), relation=relation, allow_conditional=True)
    budget = ndp.Budget(2.0, 1e-5)
    mcmc = ndp.MCMC(
        kernel(logistic, privacy=budget, accountant=accountant, **options),
        num_warmup=50,
        num_samples=350,
        num_chains=2,
        chain_method=method,
        progress_bar=False,
        secure=False,
    )
    given = None if start is None else {"w": np.full((2, 3), start, np.float32)}
    mcmc.run(jax.random.key(3), *data, init_params=given)
    # Noise from the key is a condition, without which nothing holds; what was charged fits anyway.
    unconditional = ndp.Accountant(budget, relation=relation)
    for entry in accountant.entries:
        unconditional.charge(entry.event, label=entry.label)
    assert unconditional.epsilon() <= 2.0
    draws = np.asarray(mcmc.get_samples()["w"])
    assert draws.shape == (700, 3)
    mode, sd = exact(*data)
    # Tempered draws are wider by √2; the bounds hold at twice the width that was ever seen.
    assert np.abs((draws.mean(0) - mode) / sd).max() < 6
    assert np.all(draws.std(0) < 4 * sd)
    dense = mcmc.last_state.adapt_state.mass_matrix_sqrt_inv[0]
    assert bool(jnp.all(dense == jnp.diag(jnp.diag(dense)))) == ("dense_mass" in options)


@pytest.mark.slow
def test_the_bar_of_the_release_says_what_it_takes_of_the_whole(data, capsys):
    kernel = ndp.DPSGLD(logistic, privacy=BUDGET)
    ndp.MCMC(kernel, **STEPS | {"progress_bar": True}).run(jax.random.key(0), *data)
    adapting = [line for line in capsys.readouterr().err.split("\r") if line.startswith("adapt")]
    # The histogram takes 4 % of a quarter of μ², all of the release that quarter.
    reached = [float(line.split("ε=")[1].split()[0]) for line in adapting]
    assert 0.05 < reached[0] < 0.12
    assert 0.4 < reached[-1] < 0.55
    assert sorted(reached) == reached
    assert all("of 1 charged" in line for line in adapting)


@pytest.mark.slow
def test_a_note_on_the_start_stays_with_the_chains(data, monkeypatch):
    monkeypatch.setattr(Located, "arrived", False)
    kernel = ndp.DPSGLD(logistic, privacy=BUDGET)
    mcmc = ndp.MCMC(kernel, **STEPS)
    mcmc.warmup(jax.random.key(0), *data)
    assert "did not arrive" in mcmc.privacy.notes[0]
    mcmc.run(jax.random.key(1), *data)
    assert any("did not arrive" in note for note in mcmc.privacy.notes)


@pytest.mark.slow
def test_a_diagonal_metric_is_stable_where_coordinates_hang_together():
    """Correlation .95: a direction is twenty times as steep as marginal widths say."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(20_000, 2))
    x[:, 1] = 0.95 * x[:, 0] + np.sqrt(1 - 0.95**2) * x[:, 1]
    x = x.astype(np.float32)
    y = (rng.random(20_000) < 1 / (1 + np.exp(-x @ np.array([0.5, -0.5])))).astype(np.int32)
    kernel = ndp.DPSGLD(logistic, privacy=ndp.Budget(8.0, 1e-5), dense_mass=False)
    mcmc = ndp.MCMC(kernel, secure=False, **STEPS)
    mcmc.run(jax.random.key(0), x, y)
    mode, sd = exact(x, y)
    draws = np.asarray(mcmc.get_samples()["w"])
    assert np.abs((draws.mean(0) - mode) / sd).max() < 3
    assert np.all(draws.std(0) < 2 * sd)


@pytest.mark.slow
def test_intervals_hold_it():
    """20 data sets of 5 coordinates, coverage .95: below .84 by chance once in 1,000."""
    held, size, dim = [], 5_000, 5
    x_key, kernel = 11, ndp.DPSGLD(logistic, privacy=BUDGET)
    for seed in range(20):
        rng = np.random.default_rng([x_key, seed])
        x = np.c_[np.ones(size), rng.normal(size=(size, dim - 1))].astype(np.float32)
        truth = rng.normal(size=dim)
        y = (rng.random(size) < 1 / (1 + np.exp(-x @ truth))).astype(np.int32)
        mcmc = ndp.MCMC(kernel, secure=False, **STEPS | {"num_samples": 350})
        mcmc.run(jax.random.key(seed), x, y)
        low, high = np.quantile(np.asarray(mcmc.get_samples()["w"]), [0.025, 0.975], axis=0)
        held.append((low < truth) & (truth < high))
    assert np.mean(held) > 0.84
