"""OPS: draws, charges, refusals, and what a broken one would be caught by."""

import json
import math
import pickle
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import numpyro_dp as ndp
from numpyro_dp.accounting import privacy_curve
from numpyro_dp.accounting.events import LangevinLastIterate, LogConcaveDraw, PosteriorDraw
from numpyro_dp.execution.keys import seeded_key
from numpyro_dp.mcmc.posterior import langevin
from numpyro_dp.mcmc.posterior.concave import ConcaveTarget
from numpyro_dp.mcmc.posterior.langevin import LangevinDraw
from numpyro_dp.model.private_model import private_model
from tests.contract.surfaces import flatten, leaks
from tests.models import logistic

CONCAVE = ndp.StronglyLogConcave(row_norm=1.0)
GRID = ndp.Grid({"w": np.stack(np.meshgrid(*[np.linspace(-2, 2, 5)] * 3), -1).reshape(-1, 3)})
BOUNDED = ndp.BoundedLikelihood(-2.0, 0.0)


def robust(x):
    """Known-scale normal outcomes of one weight: Huber far out of reach makes it Gaussian."""
    w = numpyro.sample("w", dist.Normal(0.5, 1.0))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("x", dist.Normal(w, 1.0), obs=x)


def run(kernel, data, *, draws=1, seed=0, **options):
    options = {"num_chains": 1, "progress_bar": False, "secure": False, **options}
    mcmc = ndp.MCMC(kernel, num_warmup=0, num_samples=draws, **options)
    mcmc.run(jax.random.key(seed), *data)
    return mcmc


@pytest.fixture(scope="module")
def wall():
    return private_model(logistic, (np.zeros((400, 3), np.float32), np.zeros(400, np.int32)))


@pytest.fixture
def data(records):
    return records["x"], records["y"]


def concave(**changes):
    return ndp.OPS(logistic, **{"guarantee": CONCAVE, "likelihood_power": 0.2, **changes})


def bind(kernel, wall, draws=1, relation="zero_out"):
    return kernel.bind(wall, num_steps=draws, relation=relation, delta=1e-5)


def test_every_draw_of_every_chain_is_charged(data):
    accountant = ndp.Accountant()
    mcmc = run(concave(accountant=accountant), data, draws=3, num_chains=2)
    (entry,) = accountant.entries
    assert entry.event.events[0].count == 6
    assert isinstance(entry.event.events[0].event, LangevinLastIterate)
    assert mcmc.get_samples(group_by_chain=True)["w"].shape == (2, 3, 3)
    mcmc.post_warmup_state = mcmc.last_state
    mcmc.run(jax.random.key(0), *data)
    assert [e.event.events[0].count for e in accountant.entries] == [6, 6]
    alone = privacy_curve(mcmc._bound.event(12), "zero_out").epsilon(1e-6)
    assert mcmc.privacy.epsilon == pytest.approx(alone)


@pytest.mark.parametrize(
    "make",
    [
        concave,
        pytest.param(
            lambda: ndp.OPS(logistic, guarantee=BOUNDED, sampler=GRID), marks=pytest.mark.slow
        ),
    ],
    ids=["concave", "grid"],
)
def test_the_budget_decides_the_power_and_is_not_overspent(data, make):
    arguments = {"privacy": ndp.Budget(1.0, 1e-5), "likelihood_power": 1.0}
    bound = bind(_with(make(), **arguments), _wall(data), draws=4)
    assert 0.99 < privacy_curve(bound.event(4), "zero_out").epsilon(1e-5) <= 1.0
    assert 0 < bound.power < 1
    generous = {"privacy": ndp.Budget(1e3, 1e-5), "likelihood_power": 0.25}
    assert bind(_with(make(), **generous), _wall(data), draws=4).power == 0.25


def _with(kernel, **changes):
    kept = {"guarantee": kernel.guarantee, "sampler": kernel.sampler}
    return ndp.OPS(kernel.user_model, **{**kept, **changes})


def _wall(data):
    return private_model(logistic, data)


def test_tempering_reaches_the_draw_and_the_event(wall):
    full, tempered = (bind(concave(likelihood_power=p), wall).method for p in (1.0, 0.1))
    assert tempered.bound == pytest.approx(0.1 * full.bound, rel=1e-3)
    theta = jnp.array([0.3, -0.2, 0.1])
    rng = np.random.default_rng(0)
    records = [rng.normal(size=(400, 3)).astype(np.float32), rng.integers(0, 2, 400)]

    def likelihood_part(method):
        with jax.enable_x64(True):
            rows = method.target.exact(method.target.rows(records))
            point = theta.astype(jnp.float64)
            gradient = jax.jit(lambda q: method.target.gradient(q, rows))(point)
            return np.asarray(gradient + method.target.prior.gradient(point))

    np.testing.assert_allclose(likelihood_part(tempered), 0.1 * likelihood_part(full), rtol=1e-10)


def test_one_record_moves_the_gradient_by_at_most_what_is_charged(wall):
    """And by nearly as much, so that a dropped power or row bound is caught."""
    method = bind(concave(likelihood_power=0.3), wall).method
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(400, 3)).astype(np.float32), rng.integers(0, 2, 400)
    hostile = [([1e6, -1e6, 3e5], 1), ([0.0, 0.0, 1e-3], 7), ([np.nan, 0, 0], 0), ([5, 5, 5], -9)]
    worst = 0.0
    with jax.enable_x64(True):
        for row, label in hostile:
            for theta in (jnp.zeros(3), jnp.array([-9.0, 9.0, -3.0]), jnp.full(3, 40.0)):
                with_row = x.copy(), y.copy()
                with_row[0][5], with_row[1][5] = row, label
                null = x.copy(), y.copy()
                null[0][5] = np.nan
                grads = [
                    method.target.gradient(
                        theta.astype(jnp.float64),
                        method.target.exact(method.target.rows([jnp.asarray(a) for a in d])),
                    )
                    for d in (with_row, null)
                ]
                worst = max(worst, float(jnp.linalg.norm(grads[0] - grads[1])))
    assert 0.95 * method.bound < worst <= method.bound


@pytest.mark.slow
def test_langevin_reaches_the_mean_and_variance_of_its_gaussian_law():
    """400 chains; each of the two intervals is 4 standard errors: false alarm 1.3e-4."""
    x = np.full(50, 2.0, np.float32)
    guarantee = ndp.StronglyLogConcave(row_norm=1.0, huber=1e3)
    kernel = ndp.OPS(
        robust, guarantee=guarantee, likelihood_power=0.1, sampler=ndp.Langevin(iterations=25)
    )
    draws = run(kernel, (x,), num_chains=400).get_samples()["w"]
    h = run(kernel, (x,))._bound.method.step_size
    curvature, mode = 1 + 0.1 * 50, (0.5 + 0.1 * 50 * 2) / (1 + 0.1 * 50)
    shrink = (1 - h * curvature) ** 25
    variance = 2 * h * (1 - shrink**2) / (1 - (1 - h * curvature) ** 2)
    # The starts are uniform within 0.1 of zero and all but forgotten.
    assert abs(shrink) < 0.01
    assert abs(draws.mean() - mode * (1 - shrink)) < 4 * math.sqrt(variance / 400) + 0.002
    assert abs(draws.var() / variance - 1) < 4 * math.sqrt(2 / 400)


def test_a_further_draw_starts_from_the_last_released_one(data):
    """A tiny step moves little: the second draw is near the first, not near the start."""
    sampler = ndp.Langevin(step_size=1e-8, iterations=1)
    far = {"w": jnp.array([3.0, -3.0, 2.0])}
    mcmc = ndp.MCMC(
        concave(sampler=sampler), num_warmup=0, num_samples=4, progress_bar=False, secure=False
    )
    mcmc.run(jax.random.key(0), *data, init_params=far)
    draws = np.asarray(mcmc.get_samples()["w"])
    moves = np.diff(np.vstack([far["w"], draws]), axis=0)
    assert np.abs(moves).max() < 8 * math.sqrt(2e-8) + 1e-4
    assert np.abs(moves).min() > 0


def test_the_walk_stays_on_its_lattice(wall, data):
    method = bind(concave(sampler=ndp.Langevin(iterations=3)), wall).method
    with jax.enable_x64(True):
        rows = method.target.exact(method.target.rows([jnp.asarray(a) for a in data]))
        key = seeded_key(jax.random.key(3))
        end = method._walk(key, jnp.array([0.1, 0.2, 0.3], jnp.float64), rows)
        units = np.asarray(end) / method.unit
    np.testing.assert_allclose(units, np.rint(units), atol=1e-3)
    assert np.abs(np.rint(units) - units).max() < 1e-3 < np.abs(units).min()


def test_the_rounding_that_is_charged_covers_what_64_bits_round(wall, data):
    method = bind(concave(likelihood_power=1.0), wall).method
    rows = method.target.rows([jnp.asarray(a) for a in data])
    theta = np.array([40.0, -17.3, 8.9])
    with jax.enable_x64(True):
        exact = method.target.exact(rows)
        found = np.asarray(method.target.gradient(jnp.asarray(theta), exact))
    x = np.asarray(rows.x, np.longdouble)
    eta = x @ theta.astype(np.longdouble)
    slope = 1 / (1 + np.exp(-eta)) - np.asarray(rows.outcome, np.longdouble)
    truth = slope @ x + theta.astype(np.longdouble)
    off = float(np.linalg.norm(np.asarray(truth - found, float)))
    assert 0 < off <= method.target.rounding(40.0)
    assert method.event.lipschitz >= method.target.lipschitz + method.rounding
    # The charge stays a small part of what is charged.
    assert 0 < method.rounding < 1e-3 * method.bound


def test_many_records_make_the_charge_for_rounding_grow():
    def charged(n):
        target = ConcaveTarget(_wall((np.zeros((9, 3), np.float32), np.zeros(9, int))), CONCAVE,
                               1.0, n)  # fmt: skip
        return LangevinDraw(target, 1.5 / (1 + target.smoothness), 10).rounding

    assert charged(10**8) > 20 * charged(10**4)


def _last_iterate(p):
    power = p.get("temperature", 1.0)
    return LangevinLastIterate(
        step_size=p["step_size"],
        num_steps=p.get("steps", p.get("thinning")),
        lipschitz=p["lipschitz"] * power,
        strong_convexity=p["strong_convexity"],
        smoothness=p["smoothness"],
    )


def _bounded(p):
    both = 2 if p["log_likelihood_range"] == "[-B,B]" else 1
    return PosteriorDraw(both * p["log_likelihood_bound"] * p["temperature"])


def _lipschitz(p):
    return LogConcaveDraw(p["lipschitz"] * p["temperature"], p["strong_convexity"])


EVENTS = {"ula_last_iterate": _last_iterate, "ops_bounded": _bounded, "ops_lipschitz": _lipschitz}


class _Fixed:
    """A way of drawing of which only the event matters."""

    tv = 0.0

    def __init__(self, event):
        self.event = event


@pytest.mark.parametrize("name", ["ula_last_iterate", "ops_bounded", "ops_lipschitz"])
def test_the_kernel_s_event_has_the_reference_epsilon(name, wall):
    rows = json.loads((Path(__file__).parents[2] / "vectors.json").read_text())["rows"]
    relevant = [row for row in rows if row["mechanism"] == name]
    assert len(relevant) >= 3
    bound = bind(concave(), wall)
    for row in relevant:
        p = row["parameters"]
        count = p.get("draws", p.get("released_states", 1))
        event = replace(bound, method=_Fixed(EVENTS[name](p))).event(count)
        epsilon = privacy_curve(event, row["relation"].replace("-", "_")).epsilon(row["delta"])
        if row["kind"] == "lower_bound":
            assert epsilon >= row["epsilon"]
        elif row["kind"] == "exact":
            assert epsilon == pytest.approx(row["epsilon"], rel=max(row["tolerance"], 1e-4))
        else:
            assert epsilon <= row["epsilon"] * (1 + row["tolerance"])


def test_the_kernel_states_the_event_of_its_own_constants(wall):
    method = bind(concave(likelihood_power=0.5), wall).method
    event = method.event
    assert event.strong_convexity == 1.0
    assert event.smoothness == pytest.approx(1 + 0.5 * 400 / 4)
    assert event.lipschitz == pytest.approx(0.5, rel=1e-3)
    assert event.lipschitz > 0.5
    assert event.step_size == pytest.approx(1.5 / (1 + event.smoothness))
    assert event.num_steps == math.ceil(4.5 / event.step_size)
    replaced = privacy_curve(bind(concave(), wall).event(1), "replace_one").epsilon(1e-5)
    assert replaced > 1.9 * privacy_curve(bind(concave(), wall).event(1)).epsilon(1e-5)


def test_a_tightened_prior_is_what_is_sampled(wall):
    tight = ndp.StronglyLogConcave(row_norm=1.0, strong_convexity=9.0)
    method = bind(concave(guarantee=tight), wall).method
    assert method.event.strong_convexity == pytest.approx(9.0)
    np.testing.assert_allclose(method.target.prior.precision, 9 * np.eye(3), rtol=1e-12)
    loose = ndp.StronglyLogConcave(row_norm=1.0, strong_convexity=0.5)
    assert bind(concave(guarantee=loose), wall).method.event.strong_convexity == 1.0


def test_a_private_number_of_records_needs_a_public_bound(data):
    wall = private_model(logistic, data, private_size=True)
    with pytest.raises(ValueError, match="max_records"):
        bind(concave(), wall, relation="add_remove")
    method = bind(concave(max_records=500), wall, relation="add_remove").method
    assert method.target.one_by_one
    assert method.event.smoothness == pytest.approx(1 + 0.2 * 500 / 4)


def test_warm_up_is_refused_before_any_charge(data):
    accountant = ndp.Accountant()
    mcmc = ndp.MCMC(concave(accountant=accountant), num_warmup=1, num_samples=1)
    with pytest.raises(ValueError, match="num_warmup=0"):
        mcmc.run(jax.random.key(0), *data)
    assert accountant.entries == ()


def unbounded(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def heavy_prior(x, y):
    w = numpyro.sample("w", dist.StudentT(3, 0, 1).expand([3]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def product(x, y):
    a = numpyro.sample("a", dist.Normal(0, 1))
    w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=a * (x @ w)), obs=y)


@pytest.mark.parametrize(
    ("model", "message"),
    [(unbounded, "huber="), (heavy_prior, "Student-t.*DPSGLD"), (product, "not provably linear")],
)
def test_models_outside_the_conditions_are_refused_before_any_charge(model, message, data):
    accountant = ndp.Accountant()
    kernel = ndp.OPS(model, guarantee=CONCAVE, accountant=accountant)
    with pytest.raises(ndp.UnsupportedModelError, match=message):
        run(kernel, (data[0], data[1].astype(np.float32)))
    assert accountant.entries == ()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"guarantee": "log-concave"}, "guarantee must be"),
        ({"guarantee": BOUNDED}, "must be one of Grid, Rejection"),
        ({"guarantee": CONCAVE, "sampler": GRID}, "must be one of Langevin"),
        ({"guarantee": CONCAVE, "sampler": ndp.UncheckedNUTS()}, "allow_conditional=True"),
        ({"guarantee": CONCAVE, "likelihood_power": 0.0}, "likelihood_power"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        ndp.OPS(logistic, **arguments)


def test_numbers_out_of_range_are_refused(wall):
    for make, message in (
        (lambda: ndp.BoundedLikelihood(0.0, 0.0), "below upper"),
        (lambda: ndp.BoundedLikelihood(-math.inf, 0.0), "finite"),
        (lambda: ndp.StronglyLogConcave(row_norm=0.0), "row_norm"),
        (lambda: ndp.Langevin(step_size=-1.0), "step_size"),
        (lambda: bind(concave(sampler=ndp.Langevin(step_size=1.0)), wall), "do not contract"),
        (lambda: bind(concave(privacy=ndp.Budget(1e-7, 1e-9)), wall), "too small"),
    ):
        with pytest.raises(ValueError, match=message):
            make()


def test_a_short_run_says_that_it_is_no_posterior_draw(wall):
    (note, *_) = bind(concave(sampler=ndp.Langevin(iterations=3)), wall).facts().notes
    assert "not a posterior draw" in note
    long = bind(concave(), wall).facts().notes
    assert not any("not a posterior draw" in note for note in long)


def test_conditional_draws_are_refused_by_a_budget(data):
    kernel = {"sampler": ndp.UncheckedNUTS(20), "allow_conditional": True}
    strict = ndp.Accountant(ndp.Budget(100.0, 1e-5))
    with pytest.raises(ndp.BudgetExceededError, match="conditional"):
        run(concave(accountant=strict, **kernel), data, secure=True)
    assert strict.entries == ()


@pytest.mark.slow
def test_a_ledger_that_allows_conditions_says_that_nothing_is_guaranteed(data):
    kernel = {"sampler": ndp.UncheckedNUTS(20), "allow_conditional": True}
    lenient = ndp.Accountant(ndp.Budget(100.0, 1e-5), allow_conditional=True)
    mcmc = run(concave(accountant=lenient, **kernel), data, secure=True)
    assert "exact draw" in mcmc.privacy.conditions[0]
    assert "conditional" in mcmc.privacy.variant
    assert lenient.epsilon() == math.inf
    assert mcmc.last_state._fields == ("i", "z", "rng_key")


@pytest.mark.slow
def test_a_chain_that_starts_from_a_conditional_draw_is_conditional(data):
    first = concave(sampler=ndp.UncheckedNUTS(20), allow_conditional=True)
    kernel = ndp.DPSGLD(
        logistic, step_size=1e-3, clip_norm=1.0, noise_multiplier=5.0, init_kernel=first
    )
    mcmc = ndp.MCMC(kernel, num_warmup=0, num_samples=2, progress_bar=False)
    mcmc.run(jax.random.key(0), *data)
    assert "exact draw" in mcmc.privacy.conditions[0]


@pytest.mark.parametrize(
    "chains", [pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]
)
def test_a_draw_starts_another_kernel_in_one_charge(chains, data):
    accountant = ndp.Accountant(ndp.Budget(5.0, 1e-5))
    first = concave(privacy=ndp.Budget(0.5, 5e-6), likelihood_power=1.0)
    kernel = ndp.DPSGLD(
        logistic, step_size=1e-3, clip_norm=1.0, batch_size=200, privacy=ndp.Budget(0.5, 5e-6),
        init_kernel=first, accountant=accountant,
    )  # fmt: skip
    mcmc = ndp.MCMC(kernel, num_warmup=0, num_samples=3, num_chains=chains, progress_bar=False)
    mcmc.run(jax.random.key(0), *data)
    (entry,) = accountant.entries
    assert entry.label == "DPSGLD after OPS"
    assert [part.events[0].count for part in entry.event.events] == [chains, 3 * chains]
    assert isinstance(entry.event.events[0].events[0].event, LangevinLastIterate)
    # Both within their budgets, together below their sum.
    assert 0.6 < mcmc.privacy.epsilon < 1.0


def test_nothing_but_released_draws_differs_between_neighbours(records):
    neighbour = {k: v.copy() for k, v in records.items()}
    neighbour["x"][7], neighbour["y"][7] = [1.0, 0.9, -0.9], 1 - neighbour["y"][7]
    found = []
    for d in (records, neighbour):
        mcmc = run(concave(), (d["x"], d["y"]), draws=2, num_chains=2)
        found.append(
            flatten(".samples", mcmc.get_samples(group_by_chain=True))
            | flatten(".last_state", mcmc.last_state)
            | flatten(".mcmc", mcmc)
            | {".repr": repr(mcmc.sampler).split(" at 0x")[0].encode()}
        )
    assert leaks(*found) == []
    assert any(found[0][p] != found[1][p] for p in found[0] if p.startswith(".samples"))


def test_broken_records_contribute_nothing(records):
    x, y = records["x"].copy(), records["y"]
    broken, zeros = x.copy(), x.copy()
    broken[[3, 11, 19]] = np.array([np.nan, np.inf, -np.inf])[:, None]
    zeros[[3, 11, 19]] = 0.0
    one, two = (run(concave(), (d, y)).get_samples()["w"] for d in (broken, zeros))
    np.testing.assert_array_equal(one, two)


def test_a_power_left_out_of_the_draw_is_caught(wall, monkeypatch):
    honest = ConcaveTarget.gradient
    monkeypatch.setattr(
        ConcaveTarget, "gradient", lambda self, *a: honest(replace(self, power=1.0), *a)
    )
    with pytest.raises(AssertionError):
        test_one_record_moves_the_gradient_by_at_most_what_is_charged(wall)


def test_a_chain_left_uncounted_is_caught(data, monkeypatch):
    from numpyro_dp.mcmc.posterior.ops import BoundOPS

    honest = BoundOPS.event
    monkeypatch.setattr(
        BoundOPS,
        "event",
        lambda self, n, *, start=0, num_chains=1: honest(
            self, n * (num_chains - 1) // num_chains or n
        ),
    )
    with pytest.raises(AssertionError):
        test_every_draw_of_every_chain_is_charged(data)


@pytest.mark.slow
def test_halved_noise_is_caught(monkeypatch):
    honest = langevin.floor_noise
    monkeypatch.setattr(langevin, "floor_noise", lambda *a: honest(*a) // 2)
    jax.clear_caches()
    with pytest.raises(AssertionError):
        test_langevin_reaches_the_mean_and_variance_of_its_gaussian_law()
    jax.clear_caches()


def test_runs_resume_pickle_and_share_one_compilation(data, caplog):
    mcmc = run(concave(), data, draws=2)
    first = np.asarray(mcmc.get_samples()["w"])
    with jax.log_compiles(), caplog.at_level("WARNING", logger="jax"):
        again = run(concave(), data, draws=2)
    assert not [r for r in caplog.records if "Finished XLA compilation of jit(_chunk)" in r.message]
    np.testing.assert_array_equal(again.get_samples()["w"], first)
    mcmc.post_warmup_state = mcmc.last_state
    mcmc.run(jax.random.key(0), *data)
    assert np.abs(np.asarray(mcmc.get_samples()["w"]) - first).min() > 0
    pickled = pickle.dumps(mcmc)
    assert all(data[0][row : row + 4].tobytes() not in pickled for row in range(0, 400, 50))
    assert not np.asarray(jax.random.key_data(mcmc.last_state.rng_key)).any()
    assert pickle.loads(pickled).privacy.epsilon == mcmc.privacy.epsilon


@pytest.mark.slow
@pytest.mark.usefixtures("no_compilation_cache")
def test_float64_and_plain_numpyro_runs(data):
    with jax.enable_x64(True):
        mcmc = run(concave(), (data[0].astype(float), data[1]))
        assert mcmc.get_samples()["w"].dtype == jnp.float64
    accountant = ndp.Accountant()
    kernel = concave(num_steps=2, accountant=accountant)
    plain = numpyro.infer.MCMC(kernel, num_warmup=0, num_samples=3, progress_bar=False)
    plain.run(jax.random.key(0), *data)
    draws = np.asarray(plain.get_samples()["w"])
    assert np.isfinite(draws[:2]).all()
    assert np.isnan(draws[2]).all()
    assert accountant.entries[0].event.events[0].count == 2


@pytest.mark.slow
def test_rows_of_a_private_number_of_records_do_not_depend_on_the_others(data):
    x, y = (jnp.asarray(a) for a in data)
    target = ConcaveTarget(_wall(data), CONCAVE, 1.0, 500, one_by_one=True)
    fewer = ConcaveTarget(_wall((x[1:], y[1:])), CONCAVE, 1.0, 500, one_by_one=True)
    here, there = target.rows([x, y]), fewer.rows([x[1:], y[1:]])
    np.testing.assert_array_equal(here.x[1:], there.x)
