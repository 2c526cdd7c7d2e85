"""DPNUTS: one release, then NumPyro's own NUTS, as often as one likes."""

import pickle
import sys
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.infer import init_to_median
from numpyro.infer.reparam import LocScaleReparam

import numpyro_dp as ndp
from numpyro_dp.mcmc.nuts_loop import _Compared
from tests.models import logistic

BUDGET = ndp.Budget(1.0, 1e-5)
OPTIONS = {"num_warmup": 150, "num_samples": 200, "progress_bar": False}


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(4)
    x = np.c_[np.ones(4_000), rng.uniform(-1.7, 1.7, (4_000, 2))].astype(np.float32)
    y = rng.random(4_000) < 1 / (1 + np.exp(-x @ np.array([0.3, -1.0, 0.8])))
    return x, y.astype(np.int32)


def kernel(model=logistic, **options):
    return ndp.DPNUTS(model, **{"privacy": BUDGET, **options})


@pytest.fixture(scope="module")
def ran(data, tmp_path_factory):
    """An object that has run twice, and the ledger."""
    accountant = ndp.Accountant(BUDGET, path=tmp_path_factory.mktemp("nuts") / "one.ledger")
    mcmc = ndp.MCMC(kernel(accountant=accountant), num_chains=2, **OPTIONS)
    # Asked for in both runs, so that they are one program.
    fields = {"extra_fields": ("energy", "potential_energy")}
    mcmc.run(jax.random.key(0), *data, **fields)
    first = np.asarray(mcmc.get_samples()["w"]), mcmc.get_extra_fields()
    mcmc.run(jax.random.key(1), **fields)
    return mcmc, accountant, first


def test_chains_and_further_runs_cost_nothing(ran, data):
    mcmc, accountant, (first, fields) = ran
    (entry,) = accountant.entries
    assert entry.label == "DPNUTS"
    assert mcmc.privacy.epsilon <= 1.0
    assert mcmc.privacy.steps == 15
    second = np.asarray(mcmc.get_samples()["w"])
    assert first.shape == second.shape == (400, 3)
    assert set(fields) >= {"energy", "potential_energy", "diverging"}
    # Both are draws of the released posterior.
    at = mcmc.released.located
    for draws in (first, second):
        np.testing.assert_allclose(draws.mean(0), at.mean, atol=4 * draws.std(0).max() / 10)
        np.testing.assert_allclose(draws.std(0), np.sqrt(np.diag(at.covariance)), rtol=0.3)
    # The same arrays again are the same posterior, and free.
    mcmc.run(jax.random.key(2), *data, extra_fields=("energy", "potential_energy"))
    assert len(accountant.entries) == 1


def test_other_arguments_are_neither_a_stale_posterior_nor_a_free_touch(ran, data):
    mcmc, accountant, _ = ran
    for args in ((data[0].copy(), data[1]), (data[0][:100], data[1][:100]), data[:1]):
        with pytest.raises(ValueError, match=r"of other arguments .*call run\(rng_key\)"):
            mcmc.run(jax.random.key(0), *args)
    assert len(accountant.entries) == 1


def test_another_kernel_does_not_get_the_first_ones_release(ran):
    mcmc, accountant, _ = ran
    first, mcmc.sampler = mcmc.sampler, kernel(accountant=accountant)
    try:
        with pytest.raises(ValueError, match="of another kernel"):
            mcmc.run(jax.random.key(0))
    finally:
        mcmc.sampler = first
    assert len(accountant.entries) == 1


def test_pickles_hold_the_release_and_no_record(ran, data):
    mcmc, _, _ = ran
    stored = pickle.dumps(mcmc)
    assert data[0].tobytes()[:400] not in stored
    assert np.asarray(data[0][17]).tobytes() not in stored
    again = pickle.loads(stored)
    np.testing.assert_array_equal(again.released.located.mean, mcmc.released.located.mean)
    again.run(jax.random.key(5))
    assert again.get_samples()["w"].shape == (400, 3)
    assert again.privacy.epsilon == mcmc.privacy.epsilon
    with pytest.raises(ValueError, match="other arguments"):
        again.run(jax.random.key(5), *data)


def test_no_array_of_the_caller_is_kept(ran):
    mcmc, _, _ = ran
    held = [v for v in vars(mcmc._release).values() if hasattr(v, "shape")]
    assert held == []
    assert mcmc._args == ()


def test_arviz_takes_it(ran):
    mcmc, _, _ = ran
    found = ndp.from_numpyro(mcmc)
    assert dict(found.posterior["w"].sizes) == {"chain": 2, "draw": 200, "w_dim_0": 3}
    assert found.posterior.attrs["dp_relation"] == "zero_out"


def test_the_summary_ends_with_the_privacy_line(ran, capsys):
    mcmc, _, _ = ran
    mcmc.print_summary()
    assert "ε=" in capsys.readouterr().out.splitlines()[-1]


def test_a_release_that_nothing_speaks_against_says_so_and_claims_no_more(ran, capsys):
    mcmc, described = ran[0], ran[0]._described
    assert mcmc.privacy.notes == ()
    mcmc.print_summary()
    line = capsys.readouterr().out.splitlines()[0]
    assert line.startswith("No note speaks against this release. What notes cannot see: docs/")
    assert len(line) <= 100
    page = Path(__file__).parents[2] / line.split()[-1]
    assert "## What no note can see" in page.read_text("utf-8").replace("###", "##")
    # The end of a run says it where the bar is shown; whoever asked for silence has it.
    described.show(sys.stderr, also_nothing=False)
    assert capsys.readouterr().err == ""
    mcmc.progress_bar = True
    mcmc.run(jax.random.key(3), extra_fields=("energy", "potential_energy"))
    mcmc.progress_bar = False
    shown = capsys.readouterr().err
    assert shown.splitlines()[-1] == line
    # As NumPyro's own bar does; of two chains it is their means.
    last = mcmc.last_state
    size, rate = (float(x.mean()) for x in (last.adapt_state.step_size, last.mean_accept_prob))
    assert f"{last.num_steps.mean():.0f} steps of size {size:.2e}. acc. prob={rate:.2f}" in shown
    # A note that does speak against it, and a remark that does not.
    remarked = replace(described.facts, remarks=("a row was taken for a record",))
    described._replace(facts=remarked).show(sys.stdout)
    assert capsys.readouterr().out.splitlines()[-1] == line
    noted = replace(described.facts, notes=("with care: it is odd",))
    described._replace(facts=noted).show(sys.stdout)
    assert "No note" not in capsys.readouterr().out


def test_a_budget_that_does_not_hold_it_refuses_before_anything(data):
    accountant = ndp.Accountant(ndp.Budget(0.5, 1e-5))
    mcmc = ndp.MCMC(kernel(accountant=accountant), **OPTIONS)
    with pytest.raises(ndp.BudgetExceededError):
        mcmc.run(jax.random.key(0), *data)
    assert accountant.entries == ()
    with pytest.raises(RuntimeError, match="nothing was released"):
        _ = mcmc.released


@pytest.mark.slow
def test_warmup_and_run_are_one_release(data):
    accountant = ndp.Accountant(BUDGET)
    mcmc = ndp.MCMC(kernel(accountant=accountant), **OPTIONS)
    mcmc.warmup(jax.random.key(0), *data)
    mcmc.run(jax.random.key(1), *data)
    assert len(accountant.entries) == 1
    assert mcmc.get_samples()["w"].shape == (200, 3)


def sgld(accountant):
    settings = {"step_size": 1e-4, "batch_size": 100, "clip_norm": 1.0, "noise_multiplier": 2.0}
    return ndp.DPSGLD(logistic, accountant=accountant, **settings)


def test_a_run_that_fails_before_its_chains_leaves_nothing_to_another_kernel(data, monkeypatch):
    def fails(*_):
        raise ZeroDivisionError

    accountant = ndp.Accountant()
    mcmc = ndp.MCMC(sgld(accountant), num_warmup=0, num_samples=3, progress_bar=False)
    first, mcmc.sampler = mcmc.sampler, kernel(accountant=accountant)
    with monkeypatch.context() as patch:
        patch.setattr(ndp.DPNUTS, "sampler", fails)
        with pytest.raises(ZeroDivisionError):
            mcmc.run(jax.random.key(0), *data)
    mcmc.sampler = first
    mcmc.run(jax.random.key(0), *data)
    # What ran is what was charged.
    assert [entry.label for entry in accountant.entries] == ["DPNUTS", "DPSGLD"]
    assert type(mcmc.last_state).__name__ == "SGLDState"


def test_a_kernel_without_the_fields_that_are_collected_is_refused_before_the_charge(data):
    accountant = ndp.Accountant()
    mcmc = ndp.MCMC(kernel(accountant=accountant), **OPTIONS)
    mcmc.sampler = sgld(accountant)
    with pytest.raises(ValueError, match=r"other fields: make a new numpyro_dp\.MCMC for DPSGLD"):
        mcmc.run(jax.random.key(0), *data)
    assert not accountant.entries


@pytest.mark.slow
def test_a_reparametrised_model_is_released_as_written_and_sampled_as_wrapped(data):
    def grouped(x, y):
        tau = numpyro.sample("tau", dist.HalfNormal(1))
        w = numpyro.sample("w", dist.Normal(0, tau).expand([3]).to_event(1))
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    config = {"w": numpyro.infer.reparam.LocScaleReparam(0)}
    wrapped = numpyro.handlers.reparam(grouped, config=config)
    mcmc = ndp.MCMC(kernel(wrapped), **OPTIONS)
    mcmc.run(jax.random.key(0), *data)
    draws = mcmc.get_samples()
    assert set(draws) == {"tau", "w", "w_decentered"}
    assert mcmc.released.private_model.latents == ("tau", "w")
    assert np.abs(draws["w"].mean(0) - jnp.array([0.3, -1.0, 0.8])).max() < 0.5


def test_plain_numpyro_is_pointed_to_the_release(data):
    mcmc = numpyro.infer.MCMC(kernel(), **OPTIONS)
    with pytest.raises(ValueError, match=r"runs in numpyro_dp.MCMC.*LikelihoodRelease"):
        mcmc.run(jax.random.key(0), *data)


def test_options_are_nutss_own():
    assert kernel(target_accept_prob=0.9, max_tree_depth=6).options["max_tree_depth"] == 6
    with pytest.raises(ValueError, match="no option 'clip_norm'"):
        kernel(clip_norm=1.0)
    with pytest.raises(ValueError, match="Budget"):
        kernel(privacy=1.0)


@pytest.mark.slow
def test_insecure_runs_repeat_and_say_so(data):
    found = []
    for _ in range(2):
        mcmc = ndp.MCMC(kernel(), secure=False, **OPTIONS)
        mcmc.run(jax.random.key(0), *data)
        found.append(mcmc.released.located.mean)
    np.testing.assert_array_equal(*found)
    assert mcmc.privacy.conditions


def test_the_model_cannot_be_replayed_on_records(ran):
    assert ran[0].sampler.model is None


@contextmanager
def compilations():
    """The list that every program compiled within is added to."""
    found = []

    def heard(event, *_, **__):
        if "backend_compile" in event:
            found.append(event)

    jax.monitoring.register_event_duration_secs_listener(heard)
    try:
        yield found
    finally:
        jax.monitoring.unregister_event_duration_listener(heard)


def run(seed, data, model=logistic, **changes):
    mine = ndp.DPNUTS(model, privacy=ndp.Budget(2.0, 1e-5), **changes)
    mcmc = ndp.MCMC(mine, num_warmup=40, num_samples=30, num_chains=2, progress_bar=False)
    mcmc.run(jax.random.key(seed), *data)
    return mcmc


def test_a_further_run_and_another_object_compile_nothing(data):
    """The released numbers are arguments of the compiled chains, and not constants in them."""
    first = run(0, data)
    with compilations() as compiled:
        second = run(0, data)
        first.run(jax.random.key(1))
        assert compiled == []
        # Of releases with noise of their own: the first's numbers are not in the second's chains.
        gap = first.released.located.mean - second.released.located.mean
        assert np.abs(gap).max() > 1e-3
        assert not np.array_equal(first.get_samples()["w"], second.get_samples()["w"])
        run(0, data, target_accept_prob=0.7)
        assert compiled


def prior_of_a_scale(x, y=None):
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 0.5))
    w = numpyro.sample("w", dist.Normal(0, scale).expand([3]).to_event(1))
    with numpyro.plate("N", len(x)):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def test_options_without_a_hash_are_compared_by_what_they_say(data):
    """Reparametrisations, blocks and arrays are written anew for each object, as users do."""

    def matrix(variance):
        return {("scale", "w_decentered"): np.full(4, variance, np.float32)}

    def posterior():
        config = {"w": LocScaleReparam(0.0, shape_params=[])}
        model = handlers.reparam(prior_of_a_scale, config=config)
        return run(0, data, model, inverse_mass_matrix=matrix(1.0), dense_mass=[])

    first = posterior()
    with compilations() as compiled:
        posterior()
        first.run(jax.random.key(1))
    assert compiled == []
    assert _Compared(matrix(1.0)) == _Compared(matrix(1.0)) != _Compared(matrix(0.5))
    assert _Compared({"w": LocScaleReparam(0.5)}) != _Compared({"w": LocScaleReparam(0.0)})
    # What is no plain setting counts as the object that it is.
    own = [LocScaleReparam(0.0), type("Own", (LocScaleReparam,), {})(0.0)]
    same = [_Compared({"w": each}) for each in own]
    assert same[0] == _Compared({"w": LocScaleReparam(0.0)}) != same[1]
    assert same[1] == _Compared({"w": own[1]}) != _Compared({"w": type(own[1])(0.0)})


@pytest.mark.parametrize(
    ("dense", "method"),
    [
        pytest.param(dense, method, marks=[pytest.mark.slow] * (number != other))
        for number, dense in enumerate([False, True, [("w",)]])
        for other, method in enumerate(["vectorized", "sequential", "parallel"])
    ],
)
def test_chains_are_those_of_numpyros_own_driver(ran, method, dense):
    """Transition by transition, warm-up included, from the same key."""
    released = ran[0].released
    chains = min(2, jax.local_device_count()) if method == "parallel" else 2
    nuts = {"dense_mass": dense, "step_size": 0.3, "init_strategy": init_to_median}
    options = {"num_warmup": 6, "num_samples": 6, "num_chains": chains, "progress_bar": False}
    mine = kernel(**nuts)
    theirs = numpyro.infer.MCMC(mine.sampler(released, 6), chain_method="vectorized", **options)
    theirs.run(jax.random.key(3), extra_fields=("num_steps", "energy"))
    ours = ndp.MCMC(mine, chain_method=method, **options)
    ours._release.released, ours._release._kernel = released, mine
    ours.run(jax.random.key(3), extra_fields=("num_steps", "energy"))
    close = partial(np.testing.assert_allclose, rtol=2e-2, atol=1e-3)
    jax.tree.map(close, ours.get_samples(True), theirs.get_samples(True))
    jax.tree.map(close, ours.get_extra_fields(True), theirs.get_extra_fields(True))
    jax.tree.map(close, ours.last_state.adapt_state.step_size,
                 theirs.last_state.adapt_state.step_size)  # fmt: skip
    for one, other in zip(*map(jax.tree.leaves, (ours.last_state, theirs.last_state)), strict=True):
        assert np.shape(one) == np.shape(other)


def test_only_programs_without_records_are_compiled_lightly(data, monkeypatch):
    def refused(*_, **__):
        raise AssertionError("compiled with options that were not tried on records")

    for name in ("_light_chunk", "_light_chains"):
        monkeypatch.setattr(f"numpyro_dp.mcmc.loop.{name}", refused)
    sgld = ndp.DPSGLD(logistic, step_size=1e-3, clip_norm=1.0, noise_multiplier=9.0)
    ndp.MCMC(sgld, num_warmup=0, num_samples=2, progress_bar=False).run(jax.random.key(0), *data)
    with pytest.raises(AssertionError, match="not tried on records"):
        ndp.MCMC(kernel(), **OPTIONS).run(jax.random.key(0), *data)


@pytest.mark.parametrize(
    ("num_warmup", "nuts", "dense"),
    [
        (6, {}, True),
        (5, {}, False),
        (30, {"dense_mass": False}, False),
        (30, {"inverse_mass_matrix": np.ones(3, np.float32)}, False),
        (5, {"dense_mass": True}, True),
    ],
)
def test_the_mass_matrix_is_dense_where_warmup_can_tell_it(ran, num_warmup, nuts, dense):
    released = ran[0].released
    mine = kernel(**nuts)
    program = mine.program(released, num_warmup)
    assert dict(program.options)["dense_mass"] is dense
    assert mine.sampler(released, num_warmup)._dense_mass == dense
