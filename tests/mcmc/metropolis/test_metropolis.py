"""DP-Fast MH: what a run costs, what it refuses, and that its filter and moves do what they say."""

import math
import re
from dataclasses import fields

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import numpyro_dp as ndp
from numpyro_dp.accounting import privacy_curve
from numpyro_dp.accounting.events import (
    BarkerBit,
    DirectionalBarkerBit,
    MinibatchBit,
    MultiCandidateBit,
    NonPrivateDpEvent,
    PenaltyBit,
    SelfComposedDpEvent,
    ZCDpEvent,
)
from numpyro_dp.mcmc.metropolis.privacy_filter import (
    COST_RANGE,
    FilteredCharge,
    PairwiseBound,
    spend,
)
from tests.mcmc.metropolis.bound_kernels import FIXED, bound
from tests.models import logistic, normal_mean

BUDGET = ndp.Budget(1.0, 1e-5)


def position_bound(here, there):
    return 2.0 * jnp.linalg.norm(here["w"] - there["w"])


FILTERED = {"step_size": 0.1, "record_bound": position_bound}


@pytest.fixture
def data(records):
    return records["x"], records["y"]


def run(kernel, data, **options):
    options = {"num_warmup": 0, "num_samples": 50, "progress_bar": False, **options}
    mcmc = ndp.MCMC(kernel, **options)
    mcmc.run(jax.random.key(0), *data)
    return mcmc


@pytest.mark.parametrize(
    ("arguments", "step"),
    [
        (FIXED, BarkerBit(0.4)),
        ({**FIXED, "likelihood_power": 0.5}, BarkerBit(0.2)),
        ({**FIXED, "acceptance": "penalty", "noise_scale": 1.0}, PenaltyBit(0.4, 1.0)),
        ({**FIXED, "num_candidates": 3}, MultiCandidateBit(0.8)),
        ({"step_size": 0.1, "lipschitz": 1.5}, DirectionalBarkerBit(0.1, 1.5 * 1.005)),
        (
            {**FIXED, "likelihood_power": 0.1, "batch_size": 100},
            MinibatchBit(400, 0.2, 0.2, 100.0, "barker", 0.0),
        ),
        ({**FIXED, "lipschitz": math.inf}, NonPrivateDpEvent()),
    ],
)
def test_a_step_costs_what_its_theorem_says(data, arguments, step):
    kernel = bound(data, **arguments)
    event = kernel.event(60, num_chains=2)
    assert event.events[0] == SelfComposedDpEvent(step, 60)
    tables = kernel.plan.tv if kernel.plan.settings.private else 0.0
    assert 60 * tables <= event.events[1].distance < 60 * 5e-12


def test_a_filtered_run_costs_its_total_and_no_more(data):
    kernel = bound(data, rho=0.02, steps=100, chains=2, **FILTERED)
    whole, tables = kernel.event(100, num_chains=2).events
    assert isinstance(whole, ZCDpEvent)
    assert tables.distance >= 100 * kernel.plan.tv > 0
    assert 0.0199 < whole.rho <= 0.02 * (1 + 1e-8)
    parts = [kernel.event(40, num_chains=2), kernel.event(60, start=20, num_chains=2)]
    assert sum(part.events[0].rho for part in parts) == pytest.approx(whole.rho, rel=1e-12)
    assert kernel.event(60, start=50, num_chains=2).events[0].rho > 0.01


def test_filter_arithmetic_is_exact():
    rng = np.random.default_rng(0)
    step = jax.jit(spend, static_argnums=1)
    for income in (0, 3, (1 << 24) - 1, 987_654_321_012):
        left, exact = jnp.zeros(2, jnp.int32), 0
        for root in (rng.random(40) ** 4 * COST_RANGE).astype(int):
            paid, left = step(left, income, jnp.int32(root))
            exact += income
            assert bool(paid) == (exact >= int(root) ** 2)
            exact -= int(root) ** 2 if paid else 0
            assert (int(left[0]) << 24) + int(left[1]) == exact


def test_a_move_past_the_allowance_is_refused_without_a_record(data):
    """A filter that can pay for no move leaves the chain where it is."""
    for rho, moves in ((1e-9, False), (10.0, True)):
        kernel = bound(data, rho=rho, steps=10, **FILTERED)
        state = kernel.init(jax.random.key(0), 0, {"w": jnp.zeros(3)})
        step = jax.jit(lambda state, records, kernel=kernel: kernel.sample(state, records))
        for _ in range(10):
            state = step(state, [jnp.asarray(a) for a in data])
        assert np.any(state.z["w"] != 0) == moves
        assert int(state.allowance[0]) > 0


def test_the_filter_never_spends_more_than_was_charged(data):
    """Along a run, the squares of all bounds tried stay below the charge at every step."""
    kernel = bound(data, rho=0.05, steps=40, **FILTERED)
    charge = kernel.plan.charge
    assert isinstance(charge, FilteredCharge)
    left, spent = charge.start(), 0.0
    rng = np.random.default_rng(1)
    for count in range(1, 60):
        here, there = ({"w": jnp.asarray(w, jnp.float32)} for w in rng.normal(0, 0.05, (2, 3)))
        limit, tried, left = charge.admit(left, [here, there], jnp.asarray(True))
        spent += (float(limit) * charge.unit) ** 2 / 8
        assert spent <= kernel.event(count).events[0].rho
        assert bool(tried) or int(limit) == 0
    assert spent > 0.5 * kernel.event(59).events[0].rho


def test_a_bound_of_the_callers_holds_for_the_way_back_too():
    """A move's cost is known before it, and the same from either end."""
    here, there = {"w": jnp.array(1.0)}, {"w": jnp.array(3.0)}
    one_way = PairwiseBound(lambda a, b: 0.1 * a["w"] + 0.01 * b["w"], power=2.0)
    assert float(one_way([here, there])) == pytest.approx(2 * 0.31)
    assert float(one_way([there, here])) == pytest.approx(2 * 0.31)


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param({**FIXED, "likelihood_power": None}, marks=pytest.mark.slow),
        pytest.param({**FIXED, "acceptance": "penalty"}, marks=pytest.mark.slow),
        pytest.param({**FIXED, "acceptance": "noisy_barker"}, marks=pytest.mark.slow),
        pytest.param(
            {"step_size": 0.1, "lipschitz": 1.5, "likelihood_power": None}, marks=pytest.mark.slow
        ),
        FILTERED,
    ],
    ids=["power", "penalty", "noisy", "directional", "filter"],
)
def test_a_budget_chooses_what_is_left_open(data, arguments):
    accountant = ndp.Accountant(BUDGET)
    kernel = ndp.DPFastMH(logistic, privacy=BUDGET, accountant=accountant, **arguments)
    mcmc = run(kernel, data, num_warmup=30, num_samples=30)
    assert 0.98 < mcmc.privacy.epsilon <= 1.0
    assert np.isfinite(mcmc.get_samples()["w"]).all()
    tempered = "tempered" in " ".join(mcmc.privacy.full().split())
    assert tempered == ("likelihood_power" in arguments)


@pytest.mark.parametrize("more", [{}, {"batch_size": 200}, {"num_candidates": 4}])
def test_the_budget_of_a_long_filtered_run_covers_its_tables(data, more):
    budget, steps = ndp.Budget(0.35, 1e-5), 100_000
    kernel = bound(data, steps=steps, privacy=budget, **FILTERED, **more)
    found = privacy_curve(kernel.event(steps), "zero_out").epsilon(budget.delta)
    assert 0.34 < found <= budget.epsilon


def test_a_run_that_does_not_fit_is_refused_with_what_would(data):
    kernel = ndp.DPFastMH(logistic, privacy=BUDGET, **FIXED)
    with pytest.raises(ValueError, match=r"this run costs ε = .* of its 50 steps") as refused:
        run(kernel, data)
    fitting = int(str(refused.value).split("what would fit: ")[1].split()[0])
    ok = run(kernel, data, num_samples=fitting)
    assert ok.privacy.epsilon <= 1.0


@pytest.mark.parametrize(
    "relation",
    [
        pytest.param("zero_out", marks=pytest.mark.slow),
        pytest.param("replace_one", marks=pytest.mark.slow),
        "add_remove",
    ],
)
def test_every_relation_is_charged(data, relation):
    accountant = ndp.Accountant(relation=relation)
    kernel = ndp.DPFastMH(logistic, accountant=accountant, likelihood_power=0.05, **FIXED)
    mcmc = run(kernel, data, num_samples=20)
    doubled = BarkerBit(0.02 * (2 if relation == "replace_one" else 1))
    exact = privacy_curve(SelfComposedDpEvent(doubled, 20)).epsilon(1e-6)
    assert mcmc.privacy.epsilon == pytest.approx(exact, rel=1e-3)
    assert relation != "add_remove" or "400" not in mcmc.privacy.full()


def with_swap(x):
    theta = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        either = jnp.logaddexp(-((x - theta[0]) ** 2), -((x - theta[1]) ** 2))
        numpyro.factor("x", either)


def swapped(z):
    return {"w": z["w"][::-1]}


SWAPPED = (np.sign(np.arange(60) - 29.5) * 1.5).astype(np.float32)


def test_public_moves_cost_nothing():
    with_moves = bound((SWAPPED,), model=with_swap, public_moves=(swapped,), **FIXED)
    assert with_moves.public_moves == (swapped,)
    assert with_moves.event(400) == bound((SWAPPED,), model=with_swap, **FIXED).event(400)


@pytest.mark.slow
def test_public_moves_reach_the_other_mode():
    x = SWAPPED
    arguments = {"step_size": 0.05, "lipschitz": 4.0, "max_move": 0.1}
    kernel = ndp.DPFastMH(with_swap, public_moves=(swapped,), **arguments)
    mcmc = ndp.MCMC(kernel, num_warmup=0, num_samples=400, progress_bar=False, secure=False)
    mcmc.run(jax.random.key(0), x, init_params={"w": jnp.array([1.3, -1.3])})
    # 400 fair coins: 0.5 ± 4.5 · 0.025, false alarm 7e-6. Steps of 0.05 never cross by themselves.
    assert abs(float(np.mean(mcmc.get_samples()["w"][:, 0] > 0)) - 0.5) < 0.113
    same = bound((x,), model=with_swap, **arguments).event(400)
    assert mcmc.privacy.epsilon == pytest.approx(privacy_curve(same).epsilon(1e-6))


@pytest.mark.parametrize(
    ("move", "message"),
    [
        (lambda z: {"w": z["w"] + 1}, "involution"),
        (lambda z: {"w": 1 / z["w"]}, "volume"),
        (lambda z: {"w": -z["w"]}, "likelihood of a made-up record"),
        (lambda z: {}, "every latent"),
    ],
)
def test_moves_that_are_not_public_are_refused(move, message):
    x = np.linspace(-1, 1, 20, dtype=np.float32)
    with pytest.raises(ValueError, match=message):
        bound((x,), model=with_swap, public_moves=(move,), **FIXED)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"step_size": 0.1}, "give a bound on one record"),
        ({**FIXED, "record_bound": position_bound}, "not both"),
        (FILTERED, "give either privacy= or rho="),
        ({**FILTERED, "rho": 1.0, "privacy": BUDGET}, "give either privacy= or rho="),
        ({**FIXED, "rho": 1.0}, "rho= is the total"),
        ({**FIXED, "acceptance": "metropolis"}, "must be one of barker"),
        ({**FIXED, "acceptance": "penalty"}, "needs noise"),
        ({**FIXED, "noise_scale": 1.0}, "takes no noise"),
        ({**FIXED, "acceptance": "penalty", "noise_scale": 0.0}, "switches privacy off"),
        ({**FIXED, "acceptance": "noisy_barker", "noise_scale": 0.0, "batch_size": 9}, "without"),
        ({**FIXED, "likelihood_power": None}, "give privacy="),
        ({**FIXED, "num_candidates": 3, "batch_size": 10}, "several candidates"),
        ({**FIXED, "max_move": -1.0}, "max_move must be positive"),
        ({**FIXED, "public_moves": ("swap",)}, "functions"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        ndp.DPFastMH(logistic, **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({**FIXED, "batch_size": 401}, "larger than the 400 records"),
        ({**FIXED, "batch_size": 200}, "below twice the number of records"),
        ({"step_size": 0.1, "lipschitz": 1.0, "num_candidates": 2}, "max_move= is missing"),
        ({"step_size": lambda i: 0.1, "lipschitz": 1.0}, "max_move= is missing"),
        ({**FIXED, "lipschitz": math.inf, "batch_size": 10}, "finite bound"),
    ],
)
def test_bad_runs_are_refused_before_any_charge(data, arguments, message):
    accountant = ndp.Accountant()
    with pytest.raises(ValueError, match=message):
        run(ndp.DPFastMH(logistic, accountant=accountant, **arguments), data)
    assert accountant.entries == ()


def test_a_missing_max_move_is_refused_for_models_without_a_linear_predictor():
    x = np.zeros((20, 2), np.float32)
    with pytest.raises(ValueError, match="max_move= is missing"):
        bound((x,), model=normal_mean, step_size=0.1, lipschitz=1.0)


def test_batches_need_a_public_number_of_records(data):
    with pytest.raises(ValueError, match="public number of records"):
        bound(data, relation="add_remove", batch_size=300, likelihood_power=0.01, **FIXED)


def test_presets_are_what_they_say():
    assert ndp.DPPenaltyMH(logistic, noise_scale=1.0, **FIXED).acceptance == "penalty"
    assert ndp.DPBarkerMH(logistic, **FIXED).acceptance == "barker"
    with pytest.raises(ValueError, match="use DPFastMH"):
        ndp.DPBarkerMH(logistic, acceptance="penalty", noise_scale=1.0, **FIXED)
    with pytest.raises(ValueError, match="every record in every step"):
        ndp.DPBarkerMH(logistic, batch_size=10, **FIXED)


def rates(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[-1]]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(x @ w)), obs=y)


def regression(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[-1]]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, 1), obs=y)


@pytest.mark.parametrize(
    ("model", "outcome", "family"),
    [(rates, np.int32, "poisson"), (regression, np.float32, "normal")],
)
def test_a_loss_of_unbounded_slope_is_refused_with_options_that_this_kernel_has(
    model, outcome, family
):
    data = np.zeros((20, 2), np.float32), np.zeros(20, outcome)
    with pytest.raises(ValueError, match=f"the {family} one of site `y` is not") as refused:
        bound(data, model=model, step_size=0.1, lipschitz=1.0)
    options = {f"{option.name}=" for option in fields(ndp.DPFastMH)}
    assert {"max_move=", "smoothness="} <= set(re.findall(r"\w+=", str(refused.value))) <= options


def test_an_estimator_as_a_start_is_refused_with_the_way_that_there_is():
    mode = ndp.ObjectivePerturbation(logistic, row_norm=2.0, privacy=BUDGET)
    with pytest.raises(ValueError, match="on the same accountant, and pass its result by init_par"):
        ndp.DPFastMH(logistic, init_kernel=mode, **FIXED)
