"""The engine under VIPS: what it charges and when, what it releases, what leaves."""

import contextlib
import io
import math
import pickle
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import numpyro_dp as ndp
from numpyro_dp.accounting import privacy_curve
from numpyro_dp.accounting.events import (
    ComposedDpEvent,
    GaussianDpEvent,
    SelfComposedDpEvent,
    TotalVariation,
)
from numpyro_dp.execution.keys import seeded_key
from numpyro_dp.execution.releases import Phase, planned_releases
from numpyro_dp.mechanisms import private_sum as mechanism
from numpyro_dp.model.records import as_records, read_arguments
from numpyro_dp.svi.vips import vips as engine
from numpyro_dp.svi.vips.statistics import Schedule, StatisticsGuide
from tests.contract.surfaces import flatten

KEY, N = jax.random.key(2), 200
BUDGET = ndp.Budget(1.0, 1e-5)
Y = np.linspace(-1.0, 1.0, N).astype(np.float32)


def model(y):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 1), obs=y)


class MeanThenSpread(Schedule):
    """One release of the mean, then repeated releases of the spread around it."""

    def __init__(self, guide, steps, clip):
        self.guide = guide
        clip = 1.0 if clip is None else clip
        self.phases = (
            Phase("mean", 1, clip, (1.0,)),
            Phase("spread", 2, clip, (2.0,) + (1.0,) * (steps - 2)),
        )
        self.notes = ("A toy.",)

    def start(self, key):
        return {"mean": jnp.zeros(()), "spread": jnp.zeros(2)}

    def statistic(self, phase, state, record):
        y = record[0].astype(state["mean"].dtype)
        return y if phase == 0 else jnp.append((y - state["mean"]) ** 2 / 4, 0.0)

    def advance(self, phase, state, released, noise_sd, step):
        released = released.astype(state["mean"].dtype)
        if phase == 0:
            return {**state, "mean": released[0] / N}
        return {**state, "spread": released}

    def params(self, state):
        return {"mean_loc": state["mean"], "mean_scale": jnp.abs(state["spread"][0]) + 1e-3}

    def records(self, args, kwargs):
        layout, arrays = read_arguments(self.guide.model, args, kwargs)
        return as_records(layout, arrays)


class ToyGuide(StatisticsGuide):
    def __call__(self, y):
        loc = numpyro.param("mean_loc", 0.0)
        scale = numpyro.param("mean_scale", 1.0, constraint=dist.constraints.positive)
        return {"mean": numpyro.sample("mean", dist.Normal(loc, scale))}

    def scheduled(self, found, num_steps, *, clip_norm):
        return MeanThenSpread(self, num_steps or 4, clip_norm)


GUIDE = ToyGuide(model)


def vips(**changes):
    arguments = {"noise_multiplier": 5.0, **changes}
    if "privacy" in changes:
        del arguments["noise_multiplier"]
    return ndp.VIPS(model, GUIDE, **arguments)


def run(made, y=Y, steps=None, **options):
    return made.run(KEY, steps, y, **{"progress_bar": False, **options})


def gaussians(event):
    """Multiplier and count of every Gaussian in a composed event."""
    if isinstance(event, ComposedDpEvent):
        return [pair for child in event.events for pair in gaussians(child)]
    if isinstance(event, SelfComposedDpEvent):
        return [(noise, count * event.count) for noise, count in gaussians(event.event)]
    if isinstance(event, GaussianDpEvent):
        return [(event.noise_multiplier, 1)]
    return []


def flat_events(event):
    """All events of a composed event."""
    if isinstance(event, ComposedDpEvent):
        return [each for child in event.events for each in flat_events(child)]
    return flat_events(event.event) if isinstance(event, SelfComposedDpEvent) else [event]


@pytest.fixture(scope="module")
def plain():
    """A first run and its account."""
    made = vips()
    return made, run(made)


def test_without_noise_the_statistics_are_exact():
    params, state, losses = run(vips(noise_multiplier=0.0, clip_norm=math.inf))
    assert losses is None
    np.testing.assert_allclose(params["mean_loc"], Y.mean(), atol=1e-6)
    np.testing.assert_allclose(state["spread"][0], Y.var() * N / 4, rtol=1e-5)


def test_there_is_one_event_an_iteration_and_weights_share_the_budget(plain):
    made, result = plain
    found = gaussians(made._account.charges[0].event)
    assert sum(count for _, count in found) == 4
    # Weights 1, 2, 1, 1, of mean 5/4: squared privacy losses 1/σ² go as the weights.
    expected = sorted([5 * math.sqrt(1.25)] * 3 + [5 * math.sqrt(1.25 / 2)])
    each = sorted(noise for noise, count in found for _ in range(count))
    np.testing.assert_allclose(each, expected, rtol=1e-6)
    every = flat_events(made._account.charges[0].event)
    tables = [each.distance for each in every if isinstance(each, TotalVariation)]
    assert len(tables) == 2
    assert result.privacy.overflow_delta == pytest.approx(sum(tables))


def test_a_budget_is_met_and_not_wasted():
    result = run(vips(privacy=BUDGET))
    assert 0.99 < result.privacy.epsilon <= 1.0
    assert result.privacy.recompute() == result.privacy.epsilon
    assert result.privacy.steps == 4


@pytest.mark.slow
def test_sampled_runs_compose_sampled_events():
    made = vips(sampling_rate=0.5)
    run(made)
    (entry,) = made._account.accountant.entries
    sampled = [
        child for child in flat_events(entry.event) if hasattr(child, "sampling_probability")
    ]
    assert {child.sampling_probability for child in sampled} == {0.5}
    assert len(gaussians(entry.event)) == 0, "an event that is not sampled"


def test_replacing_a_record_costs_twice_the_shift():
    made = vips(accountant=ndp.Accountant(relation="replace_one"))
    found = run(made).privacy
    ((event, *_),) = made._account.charges
    mu = 2 * math.sqrt(sum(count / noise**2 for noise, count in gaussians(event)))
    expected = privacy_curve(GaussianDpEvent(1 / mu), "zero_out").epsilon(found.delta)
    np.testing.assert_allclose(found.epsilon, expected, rtol=2e-3)


def test_private_sizes_are_refused():
    made = vips(accountant=ndp.Accountant(relation="add_remove"))
    with pytest.raises(ndp.UnsupportedModelError, match="zero_out"):
        run(made)


def test_charges_come_first_and_refusals_touch_nothing(monkeypatch):
    seen = []
    honest = engine._compiled

    def watched(*arguments):
        seen.append(len(accountant.entries))
        return honest(*arguments)

    def arranged(self, records):
        # Traced once for its shapes, with no value in it, before anything is charged.
        if not isinstance(records[0], jax.core.Tracer):
            seen.append(len(accountant.entries))
        return list(records)

    monkeypatch.setattr(engine, "_compiled", watched)
    monkeypatch.setattr(MeanThenSpread, "prepared", arranged)
    accountant = ndp.Accountant(ndp.Budget(2.0, 1e-5))
    run(vips(accountant=accountant))
    assert seen == [1] * 5
    with pytest.raises(ndp.BudgetExceededError, match="Nothing was charged"):
        run(vips(accountant=accountant, noise_multiplier=2.0))
    assert seen == [1] * 5
    assert len(accountant.entries) == 1


def test_what_fails_after_the_charge_stays_charged(monkeypatch):
    def broken(*arguments):
        raise RuntimeError("power cut")

    accountant = ndp.Accountant()
    monkeypatch.setattr(engine, "_compiled", broken)
    with pytest.raises(RuntimeError, match="power cut"):
        run(vips(accountant=accountant))
    assert len(accountant.entries) == 1


def test_mistakes_cost_nothing(monkeypatch):
    accountant = ndp.Accountant()
    made = vips(accountant=accountant)
    with pytest.raises(ValueError, match="num_steps"):
        run(made, steps=0)
    with pytest.raises(ValueError, match="inside a JAX transformation"):
        jax.jit(lambda key: made.run(key, 3, Y).params)(KEY)
    with pytest.raises(ndp.UnsupportedModelError):
        run(made, Y[0])

    def widened(self, phase, state, released, noise_sd, step):
        return {**state, "spread": jnp.zeros(3)}

    monkeypatch.setattr(MeanThenSpread, "advance", widened)
    with pytest.raises(ValueError, match="changes the shape"):
        run(made)
    assert accountant.entries == ()


@pytest.mark.parametrize(
    "changes",
    [
        {"noise_multiplier": None},
        {"privacy": BUDGET, "clip_norm": math.inf},
        {"noise_multiplier": 1.0, "clip_norm": math.inf},
        {"clip_norm": -1.0},
        {"batch_size": 10, "sampling_rate": 0.5},
        {"accountant": 3},
    ],
)
def test_arguments_out_of_range_are_refused(changes):
    with pytest.raises(ValueError, match=r"\w"):
        run(vips(**changes))


def test_another_guide_is_refused():
    with pytest.raises(ValueError, match="DPSVI"):
        ndp.VIPS(model, lambda y: None, noise_multiplier=1.0)
    with pytest.raises(ValueError, match="different models"):
        ndp.VIPS(lambda y: model(y), GUIDE, noise_multiplier=1.0)
    # A method is another object whenever it is asked for, and the same model.
    people = People()
    assert ndp.VIPS(people.model, ToyGuide(people.model), noise_multiplier=1.0).model(Y) is None


class People:
    def model(self, y):
        return None


def test_a_second_run_compiles_nothing_and_draws_other_noise(plain, caplog):
    made, first = plain
    with jax.log_compiles(), caplog.at_level("WARNING", logger="jax"):
        second = run(made)
    assert not [r for r in caplog.records if "jit(_release)" in r.message]
    assert second.params["mean_loc"] != first.params["mean_loc"]
    assert second.privacy.steps == 8
    assert second.privacy.epsilon > first.privacy.epsilon


def test_insecure_runs_repeat_and_are_conditional():
    made = vips(secure=False)
    one, other = run(made), run(made)
    assert one.params["mean_loc"] == other.params["mean_loc"]
    assert any("key" in str(condition) for condition in one.privacy.conditions)
    with pytest.raises(ndp.BudgetExceededError, match="conditional"):
        run(vips(secure=False, accountant=ndp.Accountant(BUDGET)))


@pytest.mark.slow
def test_double_precision_runs():
    with jax.enable_x64(True):
        result = run(vips(noise_multiplier=0.0, clip_norm=math.inf), Y.astype(np.float64))
        assert result.params["mean_loc"].dtype == jnp.float64
        np.testing.assert_allclose(result.params["mean_loc"], Y.mean(), atol=1e-7)


def surfaces(y):
    """Everything a caller sees of a run, noise fixed by its seed, as a dict from place to bytes."""
    made, out, err = vips(secure=False), io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        result = made.run(KEY, None, y)
    copy = pickle.loads(pickle.dumps((made, result)))
    found = flatten(".vips", made) | flatten(".pickled", copy)
    found |= flatten(".state", result.state) | flatten(".params", result.params)
    report = {
        k: v
        for k, v in result.privacy.to_dict().items()
        if k not in ("created_at", "ledger", "versions")
    }
    found |= {f".privacy.{name}": repr(value).encode() for name, value in report.items()}
    # How often it is drawn, and the rate it shows, are clock readings.
    bar = sorted(set(re.findall(r"ε=\S+ of \S+ charged", err.getvalue())))
    assert bar, "no bar"
    return found | {".printed": out.getvalue().encode(), ".bar": repr(bar).encode()}, err.getvalue()


RELEASED = (".state", ".params", ".pickled[1].params", ".pickled[1].state")


def test_neighbouring_data_differ_in_what_is_released_alone():
    other = Y.copy()
    other[7] = np.nan
    (one, bar), (two, _) = surfaces(Y), surfaces(other)
    assert "charged" in bar
    places = sorted(set(one) | set(two))
    differing = [p for p in places if one.get(p) != two.get(p)]
    assert any(place.startswith(".state") for place in differing), "the record does not count"
    assert [p for p in differing if not p.startswith(RELEASED)] == []


def test_pickles_hold_neither_records_nor_keys():
    made = vips()
    result = run(made)
    held = pickle.dumps((made, result))
    assert Y[3:7].tobytes() not in held
    assert np.asarray(jax.random.key_data(KEY)).tobytes() not in held
    again = pickle.loads(held)[0]
    assert run(again).privacy.steps == 8


class Silent(Schedule):
    """Records add nothing: what is released is noise, the last of it at two levels."""

    def __init__(self):
        self.phases = (
            Phase("first", 400, 1.0, (1.0,)),
            Phase("second", 400, 1.0, (1.0, 4.0)),
        )

    def start(self, key):
        return jnp.zeros((3, 400))

    def statistic(self, phase, state, record):
        return 0 * record[0][0] * jnp.ones(400)

    def advance(self, phase, state, released, noise_sd, step):
        return state.at[phase + step].set(released / noise_sd)

    def params(self, state):
        return {}

    def records(self, args, kwargs):
        return list(args)


def noises(seed=0):
    """What each release of a run of nothing tells, over its stated noise."""
    silent = Silent()
    plan = planned_releases(
        phases=silent.phases,
        noise=3.0,
        delta=1e-5,
        relation="zero_out",
        num_records=N,
        sampling_rate=1.0,
        microbatch_size=None,
    )
    key = seeded_key(jax.random.key(seed))
    *_, (_, state) = engine._releases(silent, plan, silent.start(KEY), key, (Y,))
    return np.asarray(state)


def spreads():
    """Spread of each half of each release over its stated noise."""
    return noises().reshape(6, 200).std(axis=1)


def test_every_block_is_noised_as_stated():
    # A standard deviation from 200 numbers has an error of 5 %: 20 % is four of them (4e-4 for
    # six blocks; the seed is fixed).
    np.testing.assert_allclose(spreads(), 1.0, atol=0.2)


def test_no_two_releases_share_their_noise():
    # Correlations of 400 independent numbers have a standard deviation of 5 %: bound at 5, 2e-6.
    assert np.abs(np.corrcoef(noises()) - np.eye(3)).max() < 0.25


def test_a_second_block_without_noise_is_noticed(monkeypatch):
    planned_releases.cache_clear()
    honest = mechanism.floor_noise

    def halved(*arguments):
        noise = honest(*arguments)
        return noise.at[noise.size // 2 :].set(0)

    monkeypatch.setattr(mechanism, "floor_noise", halved)
    assert spreads()[1] < 0.1
    with pytest.raises(AssertionError):
        test_every_block_is_noised_as_stated()


def test_swapped_levels_of_noise_are_noticed(monkeypatch):
    planned_releases.cache_clear()
    honest = mechanism.PrivateSum._bound

    def swapped(self, lattice, step):
        return honest(self, lattice, 1 - step if self.schedule else step)

    monkeypatch.setattr(mechanism.PrivateSum, "_bound", swapped)
    with pytest.raises(AssertionError):
        test_every_block_is_noised_as_stated()


@pytest.mark.slow
def test_estimates_divide_by_the_expected_batch():
    # The number drawn at rate q has variance N q (1 - q): divided by q, √N here, and noise 1. A
    # divisor of the drawn batch would leave the noise alone. Error over 300 draws: 4 %, and 0.8.
    plan = planned_releases(
        phases=(Phase("count", 1, 1.0, (1.0,)),),
        noise=0.5,
        delta=1e-5,
        relation="zero_out",
        num_records=N,
        sampling_rate=0.5,
        microbatch_size=None,
    )
    (each,) = plan.sums
    keys = jax.random.split(seeded_key(jax.random.key(1)), 300)
    one = partial(each.release, record_vector=lambda record: jnp.ones(1), records=[jnp.asarray(Y)])
    found = np.asarray(jax.lax.map(lambda key: one(key), keys))[:, 0]
    assert abs(found.mean() - N) < 4 * math.sqrt(N / 300)
    assert 0.8 < found.std() / math.sqrt(N + 1) < 1.2
