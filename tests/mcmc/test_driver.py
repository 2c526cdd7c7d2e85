"""``numpyro_dp.MCMC``: refusals before any charge, the bar, resuming, and what it prints."""

import io
import pickle
import re
from contextlib import redirect_stderr

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from numpyro.infer import Predictive

import numpyro_dp as ndp
from numpyro_dp.accounting.events import from_json
from numpyro_dp.execution.keys import seeded_key
from numpyro_dp.mcmc.start import starting_positions
from tests.models import logistic

BUDGET = ndp.Budget(1.0, 1e-5)


def kernel(**changes):
    arguments = {"step_size": 1e-3, "batch_size": 60, "clip_norm": 1.0, "privacy": BUDGET}
    return ndp.DPSGLD(logistic, **{**arguments, **changes})


@pytest.fixture
def data(records):
    return records["x"], records["y"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"privacy": None}, "either privacy=.* or noise_multiplier"),
        ({"noise_multiplier": 1.0}, "not both"),
        ({"clip_norm": 0.0}, "clip_norm must be positive"),
        ({"clip_norm": -1.0}, "clip_norm must be positive"),
        ({"clip_norm": np.nan}, "clip_norm must be a finite number"),
        ({"clip_norm": np.inf}, "either one alone"),
        ({"privacy": None, "noise_multiplier": 0.0}, "either one alone"),
        ({"privacy": None, "noise_multiplier": -1.0}, "noise_multiplier must not be negative"),
        ({"batch_size": 0}, "batch_size must be positive"),
        ({"sampling_rate": 0.5}, "not both"),
        ({"batch_size": None, "sampling_rate": 0.0}, "sampling_rate must lie in"),
        ({"batch_size": None, "sampling_rate": 1.5}, "sampling_rate must lie in"),
        ({"step_size": 0.0}, "step_size must be positive"),
        ({"temperature": -1.0}, "temperature must be positive"),
        ({"likelihood_power": 0.0}, "likelihood_power must be positive"),
        ({"steps_per_sample": 0}, "steps_per_sample must be a positive integer"),
        ({"privacy": (1.0, 1e-5)}, "privacy must be a numpyro_dp.Budget"),
        ({"accountant": BUDGET}, "accountant must be a numpyro_dp.Accountant"),
    ],
)
def test_arguments_out_of_range(changes, message):
    with pytest.raises(ValueError, match=message):
        kernel(**changes)


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0, 1e-5), (-1, 1e-5), (np.nan, 1e-5), (np.inf, 1e-5), (1, 0), (1, 1)]
)
def test_budgets_out_of_range(epsilon, delta):
    with pytest.raises(ValueError, match=r"epsilon|delta"):
        ndp.Budget(epsilon, delta)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chain_method": jax.vmap}, "under a callable"),
        ({"jit_model_args": False}, "compilation cache"),
        ({"num_samples": 0}, "num_samples"),
        ({"num_warmup": -1}, "num_warmup"),
    ],
)
def test_driver_options_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        ndp.MCMC(kernel(), **{"num_warmup": 1, "num_samples": 2, **options})


def test_a_kernel_that_is_not_private_is_refused():
    with pytest.raises(ValueError, match=r"numpyro\.infer\.MCMC"):
        ndp.MCMC(numpyro.infer.NUTS(logistic), num_warmup=1, num_samples=2)


@pytest.mark.parametrize(
    ("changes", "arguments", "message"),
    [
        ({"batch_size": 500}, {}, "larger than the 400 records"),
        ({}, {"rng_key": 0}, "rng_key must be a JAX key"),
        ({}, {"rng_key": np.zeros(5, np.uint32)}, "not a key"),
        ({}, {"rng_key": jnp.zeros(2)}, "rng_key must be a JAX key"),
        ({}, {"rng_key": jax.random.split(jax.random.key(0), 3)}, "one key"),
        ({}, {"init_params": {"w": jnp.zeros(4)}}, "init_params"),
        pytest.param(
            {}, {"init_params": {"v": jnp.zeros(3)}}, "init_params", marks=pytest.mark.slow
        ),
        ({"data_plate": "nobody"}, {}, "nobody"),
    ],
)
def test_refusals_charge_nothing(data, changes, arguments, message):
    accountant = ndp.Accountant(BUDGET)
    mcmc = ndp.MCMC(kernel(accountant=accountant, **changes), num_warmup=1, num_samples=2)
    arguments = dict(arguments)
    rng_key = arguments.pop("rng_key", jax.random.key(0))
    with pytest.raises(ValueError, match=message):
        mcmc.run(rng_key, *data, **arguments)
    assert accountant.entries == ()
    with pytest.raises(RuntimeError, match="nothing has run"):
        _ = mcmc.privacy


def test_zero_rows_are_refused(data):
    mcmc = ndp.MCMC(kernel(), num_warmup=1, num_samples=2)
    with pytest.raises(ValueError, match=r"no rows|zero|no record"):
        mcmc.run(jax.random.key(0), data[0][:0], data[1][:0])


def test_a_budget_too_small_for_one_step_names_the_least_epsilon(data):
    accountant = ndp.Accountant(BUDGET)
    tiny = kernel(privacy=ndp.Budget(1e-7, 1e-9), accountant=accountant, batch_size=390)
    mcmc = ndp.MCMC(tiny, num_warmup=0, num_samples=1)
    with pytest.raises(ValueError, match=r"ε.*would do") as caught:
        mcmc.run(jax.random.key(0), *data)
    assert accountant.entries == ()
    least = float(re.search(r"ε ≥ ([0-9.e+-]+)", str(caught.value)).group(1))
    assert 1e-7 < least < 1.0


def test_no_privacy_is_charged_as_no_privacy(data):
    free = {"privacy": None, "noise_multiplier": 0.0, "clip_norm": np.inf}
    mcmc = ndp.MCMC(kernel(**free), num_warmup=1, num_samples=2, progress_bar=False)
    mcmc.run(jax.random.key(0), *data)
    assert mcmc.privacy.epsilon == np.inf
    accountant = ndp.Accountant(BUDGET)
    mcmc = ndp.MCMC(
        kernel(**free, accountant=accountant), num_warmup=1, num_samples=2, progress_bar=False
    )
    with pytest.raises(ndp.BudgetExceededError):
        mcmc.run(jax.random.key(0), *data)


def test_a_spent_budget_refuses_with_all_the_numbers(data, tmp_path):
    path = tmp_path / "study.ledger"
    accountant = ndp.Accountant(BUDGET, path=path)
    options = {"num_warmup": 4, "num_samples": 8, "progress_bar": False}
    ndp.MCMC(kernel(accountant=accountant), **options).run(jax.random.key(0), *data)
    again = ndp.MCMC(kernel(accountant=ndp.Accountant(path=path)), **options)
    with pytest.raises(ndp.BudgetExceededError) as caught:
        again.run(jax.random.key(0), *data)
    for words in ("asks for ε = ", "left is ε = ", "over the budget of 1", "What would fit"):
        assert words in str(caught.value)
    assert len(accountant.entries) == 1
    # A refusal leaves the object as it was: the next run starts from the beginning.
    assert again._collection_params["upper"] == 12


@pytest.mark.parametrize("counts", [{"num_samples": -3}, {"num_warmup": -3}])
def test_counts_that_were_made_negative_pay_no_other_step(data, counts):
    accountant = ndp.Accountant()
    mcmc = ndp.MCMC(kernel(accountant=accountant), num_warmup=4, num_samples=8, progress_bar=False)
    for name, count in counts.items():
        setattr(mcmc, name, count)
    with pytest.raises(ValueError, match="negative"):
        mcmc.warmup(jax.random.key(0), *data, collect_warmup=True)
    assert accountant.entries == ()


def test_a_bar_that_is_switched_on_after_the_charge_shows_no_other_one(data):
    mcmc = ndp.MCMC(kernel(), num_warmup=4, num_samples=8)
    with redirect_stderr(io.StringIO()):
        mcmc.run(jax.random.key(0), *data)
        mcmc.progress_bar = False
        mcmc.warmup(jax.random.key(0), *data)
        mcmc.progress_bar = True
    with redirect_stderr(io.StringIO()) as text:
        mcmc.run(jax.random.key(0), *data)
    assert "charged" not in text.getvalue()


@pytest.mark.parametrize(
    "method", ["vectorized", pytest.param("sequential", marks=pytest.mark.slow)]
)
def test_the_bar_shows_epsilon_for_every_chain_method(data, method):
    mcmc = ndp.MCMC(kernel(), num_warmup=10, num_samples=30, num_chains=2, chain_method=method)
    with redirect_stderr(io.StringIO()) as text:
        mcmc.run(jax.random.key(0), *data)
    shown = [float(e) for e in re.findall(r"ε=([0-9.]+) of 1.00 charged", text.getvalue())]
    assert shown == sorted(shown)
    assert len(set(shown)) > 4
    assert shown[-1] == pytest.approx(1.0, abs=0.006)


def test_draws_equal_those_of_numpyros_own_loop(data):
    # The chunked loop is a matter of speed: the same state, key and steps must give the same draws.
    mcmc = ndp.MCMC(
        kernel(), num_warmup=3, num_samples=10, thinning=3, secure=False, progress_bar=False
    )
    mcmc.run(jax.random.key(0), *data, extra_fields=("i",))
    plain = numpyro.infer.MCMC(
        mcmc._bound, num_warmup=3, num_samples=10, thinning=3, progress_bar=False
    )
    start = starting_positions(mcmc._bound.private_model, None, jax.random.key(0), None, 1)
    plain.run(
        seeded_key(jax.random.key(0)),
        *(jnp.asarray(a) for a in data),
        extra_fields=("i",),
        init_params=start,
    )
    np.testing.assert_array_equal(mcmc.get_samples()["w"], plain.get_samples()["w"])
    np.testing.assert_array_equal(mcmc.get_extra_fields()["i"], plain.get_extra_fields()["i"])


def test_sites_can_be_left_out_and_deterministic_sites_are_kept(data):
    mcmc = ndp.MCMC(kernel(), num_warmup=4, num_samples=8, progress_bar=False)
    mcmc.run(jax.random.key(0), *data, extra_fields=("~z.norm",))
    assert set(mcmc.get_samples()) == {"w"}
    mcmc.run(jax.random.key(0), *data)
    draws = mcmc.get_samples()
    np.testing.assert_allclose(draws["norm"], (draws["w"] ** 2).sum(-1), rtol=1e-5)


def test_predictive_on_public_inputs(data):
    mcmc = ndp.MCMC(kernel(), num_warmup=4, num_samples=8, progress_bar=False)
    mcmc.run(jax.random.key(0), *data)
    drawn = Predictive(logistic, mcmc.get_samples())(jax.random.key(1), jnp.ones((5, 3)))
    assert drawn["y"].shape == (8, 5)


def test_summary_ends_with_the_privacy_line(data, capsys, tmp_path):
    accountant = ndp.Accountant(ndp.Budget(2.0, 1e-5), path=tmp_path / "study.ledger")
    mcmc = ndp.MCMC(kernel(accountant=accountant), num_warmup=4, num_samples=8, progress_bar=False)
    mcmc.run(jax.random.key(0), *data)
    mcmc.print_summary()
    last = capsys.readouterr().out.strip().splitlines()[-1]
    assert re.search(r"ε=1 at δ=1e-05|ε=0\.99\d* at δ=1e-05", last)
    assert "plate 'people'" in last
    assert "left in" in last
    assert "study.ledger" in last


def test_interrupted_runs_stay_charged_and_leave_no_data(data, monkeypatch):
    accountant = ndp.Accountant()
    mcmc = ndp.MCMC(kernel(accountant=accountant), num_warmup=2, num_samples=8, progress_bar=False)

    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("numpyro_dp.mcmc.driver.collect", stop)
    with pytest.raises(KeyboardInterrupt):
        mcmc.run(jax.random.key(0), *data)
    assert len(accountant.entries) == 1
    assert mcmc._args == ()
    assert mcmc.sampler is not mcmc._bound


@pytest.mark.slow
def test_warm_up_is_counted_over_all_runs(data):
    mcmc = ndp.MCMC(
        kernel(privacy=None, noise_multiplier=3.0, steps_per_sample=2),
        num_warmup=2,
        num_samples=3,
        num_chains=2,
        progress_bar=False,
    )
    counts = []
    for resumed in (False, False, True):
        if resumed:
            mcmc.post_warmup_state = mcmc.last_state
        mcmc.run(jax.random.key(0), *data)
        counts.append((mcmc.privacy.warmup_steps, mcmc.privacy.steps))
    assert counts == [(8, 20), (16, 40), (16, 52)]


def planned(accountant, **options):
    return ndp.MCMC(
        kernel(accountant=accountant), num_warmup=4, num_samples=8, progress_bar=False, **options
    )


def test_warmup_and_run_are_one_charge_that_may_take_the_whole_budget(data):
    accountant = ndp.Accountant(ndp.Budget(1.0, 1e-5))
    mcmc = planned(accountant, num_chains=2)
    mcmc.warmup(jax.random.key(0), *data)
    spent = accountant.epsilon()
    assert 0.99 < spent <= 1.0
    assert mcmc.privacy.steps == 24
    mcmc.run(jax.random.key(1), *data)
    assert len(accountant.entries) == 1
    assert accountant.epsilon() == spent == mcmc.privacy.epsilon
    assert (mcmc.privacy.steps, mcmc.privacy.warmup_steps) == (24, 8)
    # A further run is a further charge, which does not fit.
    mcmc.post_warmup_state = mcmc.last_state
    with pytest.raises(ndp.BudgetExceededError):
        mcmc.run(jax.random.key(2), *data)
    assert len(accountant.entries) == 1


@pytest.mark.parametrize("change", ["more samples", "other state", "copy", "second run"])
def test_only_the_announced_samples_were_charged_with_the_warmup(data, change):
    accountant = ndp.Accountant()
    mcmc = planned(accountant)
    mcmc.warmup(jax.random.key(0), *data)
    if change == "more samples":
        mcmc.num_samples = 9
    elif change == "other state":
        mcmc.post_warmup_state = mcmc.post_warmup_state._replace(z=mcmc.last_state.z)
    elif change == "copy":
        mcmc = pickle.loads(pickle.dumps(mcmc))
        accountant = mcmc._account.accountant
    else:
        mcmc.run(jax.random.key(1), *data)
        mcmc.post_warmup_state = mcmc.last_state
    assert len(accountant.entries) == 1
    mcmc.run(jax.random.key(1), *data)
    assert len(accountant.entries) == 2


@pytest.mark.slow
def test_fewer_samples_than_announced_are_paid_for(data):
    accountant = ndp.Accountant()
    mcmc = planned(accountant)
    mcmc.warmup(jax.random.key(0), *data)
    mcmc.num_samples = 5
    mcmc.run(jax.random.key(1), *data)
    assert len(accountant.entries) == 1


def test_a_plan_is_taken_wherever_an_accountant_is(data):
    # The event of a run is read off a rehearsal without an accountant; two of them, known in
    # advance, fit as one plan where the second would not fit after the first.
    rehearsal = planned(None)
    rehearsal.run(jax.random.key(0), *data)
    ((_, text),) = rehearsal.privacy.events
    event = from_json(text)
    accountant = ndp.Accountant(ndp.Budget(1.6, 1e-5))
    plan = accountant.plan([event, event], label="two runs")
    for key in (1, 2):
        mcmc = planned(plan)
        mcmc.run(jax.random.key(key), *data)
        assert mcmc.privacy.earlier_runs == key - 1
    assert len(accountant.entries) == 1
    with pytest.raises(ndp.BudgetExceededError, match="the plan 'two runs' does not hold"):
        planned(plan).run(jax.random.key(3), *data)
