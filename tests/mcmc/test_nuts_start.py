"""Where the chains of DPNUTS begin, and what is said of those that have not mixed."""

import copy
import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import init_to_value

import numpyro_dp as ndp
from numpyro_dp.mcmc.nuts_loop import numbers_of
from numpyro_dp.mcmc.report import _dependent, chain_notes
from numpyro_dp.scoring.verdicts.kinds import beginning

GROUPS = 30
FIT = {"num_warmup": 400, "num_samples": 300, "num_chains": 2, "progress_bar": False}


def points(group, y=None):
    """Scores as schools give them, about 500."""
    mu = numpyro.sample("mu", dist.Normal(500, 50))
    tau = numpyro.sample("tau", dist.HalfNormal(50))
    sigma = numpyro.sample("sigma", dist.HalfNormal(100))
    with numpyro.plate("schools", GROUPS):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
    with numpyro.plate("pupils", len(group)):
        numpyro.sample("y", dist.Normal(theta[group], sigma), obs=y)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(5)
    sizes = np.r_[rng.integers(8, 120, 10), rng.integers(40, 500, 12), rng.integers(300, 800, 8)]
    group = np.repeat(np.arange(GROUPS), sizes)
    y = 505 + 35 * rng.normal(size=GROUPS)[group] + 72 * rng.normal(size=len(group))
    return group.astype(np.int32), y.astype(np.float32)


def fitted(data, seed=0, **nuts):
    mcmc = ndp.MCMC(ndp.DPNUTS(points, privacy=ndp.Budget(1.0, 1e-6), **nuts), **FIT)
    mcmc.run(jax.random.key(seed), *data, extra_fields=("num_steps",))
    return mcmc


def worst(mcmc):
    found = numpyro.diagnostics.summary(mcmc.get_samples(group_by_chain=True))
    return max(float(np.max(each["r_hat"])) for each in found.values())


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_hierarchy_in_natural_units_mixes(data, seed):
    """From within two of zero the chains of three in four such runs stood still."""
    mcmc = fitted(data, seed)
    assert worst(mcmc) < 1.1
    assert "not mixed" not in str(mcmc.privacy)


def test_chains_begin_at_draws_of_the_released_approximation(data):
    kernel = ndp.DPNUTS(points, privacy=ndp.Budget(1.0, 1e-6))
    mcmc = ndp.MCMC(kernel, num_warmup=0, num_samples=1, num_chains=2, progress_bar=False)
    mcmc.run(jax.random.key(0), *data)
    at = mcmc.released.located
    program = kernel.program(mcmc.released, 0)
    numbers, keys = numbers_of(mcmc.released), jax.random.split(jax.random.key(1), 400)
    z = program.init(keys, None, numbers).z
    rows = np.column_stack([np.reshape(z[name], (400, -1)) for name in sorted(z)])
    # By four standard errors of 33 means and 33 sds: one in 250 runs by chance.
    sds = np.sqrt(np.diag(at.covariance))
    np.testing.assert_allclose((rows.mean(0) - at.mean) / sds, 0, atol=4 / np.sqrt(400))
    np.testing.assert_allclose(rows.std(0) / sds, 1, atol=4 / np.sqrt(800))
    # One key, one chain; the user's own start stands.
    assert np.shape(program.init(keys[0], None, numbers).z["theta"]) == (GROUPS,)
    own = {name: each[0] for name, each in z.items()} | {"mu": z["mu"][0] + 9}
    np.testing.assert_allclose(program.init(keys[0], own, numbers).z["mu"], own["mu"])


def test_a_strategy_of_the_users_own_stands(data):
    kernel = ndp.DPNUTS(
        points,
        privacy=ndp.Budget(1.0, 1e-6),
        init_strategy=init_to_value(values={"mu": 480.0, "tau": 20.0, "sigma": 70.0}),
    )
    mcmc = ndp.MCMC(kernel, num_warmup=0, num_samples=1, progress_bar=False)
    mcmc.run(jax.random.key(0), *data)
    program = kernel.program(mcmc.released, 0)
    start = program.init(jax.random.key(1), None, numbers_of(mcmc.released)).z
    assert float(start["mu"]) == 480.0


def test_chains_that_have_not_mixed_are_named_first():
    rng = np.random.default_rng(0)
    mixed, apart = rng.normal(size=(4, 200, 3)), rng.normal(size=(4, 200))
    apart[1] += 3
    notes = chain_notes({"z": {"a": mixed, "b": apart, "c": np.ones((4, 200))}})
    assert len(notes) == 1
    note = notes[0]
    assert note.first
    assert note.sign == "have not mixed in 'b'"
    assert note.text.startswith("do not use: the chains have not mixed: R-hat of 'b' is ")
    frozen = np.broadcast_to(np.arange(4.0)[:, None], (4, 200))
    assert "R-hat of 'z' is inf" in chain_notes({"z": {"a": mixed, "z": frozen}})[0].text
    # Chains that agree, too few draws, one chain, and what is no table of draws.
    for quiet in (mixed, apart[:, :20], mixed[:1], np.ones((4, 0))):
        assert chain_notes({"z": {"a": quiet}}) == ()
    assert chain_notes({"z": mixed}) == ()


def test_a_chain_that_stands_still_is_named_though_it_is_the_only_one():
    still = {"a": np.ones((1, 60, 3)), "b": np.zeros((1, 60))}
    (note,) = chain_notes({"z": still})
    assert "a chain did not move at all" in note.text
    moving = still | {"b": np.random.default_rng(0).normal(size=(1, 60))}
    assert chain_notes({"z": moving}) == ()


def test_chains_that_diverged_are_named_with_what_samples_the_release_again():
    draws = {"a": np.random.default_rng(0).normal(size=(2, 100))}
    once = np.zeros((2, 100), bool)
    once[0, :2] = True
    assert chain_notes({"z": draws, "diverging": once}) == ()
    thrice = once | (np.arange(100) == 50)
    (note,) = chain_notes({"z": draws, "diverging": thrice})
    assert note.text.startswith("with care: NUTS diverged (4 of 200 draws, 2.0%), ")
    assert beginning(note.text) == "with care: NUTS diverged"
    assert note.sign == "diverged (2.0% of them)"
    assert "numpyro.infer.NUTS on mcmc.released.model" in note.text


@pytest.mark.parametrize("kind", [bool, np.uint8, np.float32])
def test_deterministic_sites_of_any_kind_end_no_run_that_was_charged(kind):
    rng = np.random.default_rng(0)
    sites = {"a": rng.normal(size=(2, 60)), "b": (rng.random((2, 60, 3)) < 0.5).astype(kind)}
    assert chain_notes({"z": sites}) == ()
    sites["b"] = np.full((2, 60), np.nan) if kind is np.float32 else np.ones((2, 60), kind)
    assert chain_notes({"z": sites}) == ()


def test_few_independent_draws_of_many_coordinates_are_no_alarm():
    """Of a chain of fifty draws one of 300 coordinates had an R-hat above 1.2 in 27 % of runs."""
    rng = np.random.default_rng(0)
    for chains, draws, dim in ((1, 50, 300), (1, 99, 100), (2, 50, 300), (1, 100, 300)):
        for _ in range(20):
            assert chain_notes({"z": {"a": rng.normal(size=(chains, draws, dim))}}) == ()


def ordered(group, y):
    """A prior that forbids where the release mostly lies."""
    mu = numpyro.sample("mu", dist.Normal(0, 2).expand([2]).to_event(1))
    numpyro.factor("order", jnp.where(mu[0] < mu[1], 0.0, -jnp.inf))
    with numpyro.plate("N", len(y)):
        numpyro.sample("y", dist.Normal(mu[group], 1.0), obs=y)


def test_no_chain_begins_where_the_model_forbids_it():
    """Drawn once, all of four single chains stood where they began."""
    rng = np.random.default_rng(0)
    group = rng.integers(0, 2, 2_000).astype(np.int32)
    y = np.array([1.15, 1.0])[group] + rng.normal(size=2_000)
    kernel = ndp.DPNUTS(ordered, privacy=ndp.Budget(1.0, 1e-5))
    mcmc = ndp.MCMC(kernel, num_warmup=0, num_samples=1, progress_bar=False)
    mcmc.run(jax.random.key(0), group, y.astype(np.float32))
    program = kernel.program(mcmc.released, 0)
    keys = jax.random.split(jax.random.key(1), 50)
    state = program.init(keys, None, numbers_of(mcmc.released))
    assert np.isfinite(state.potential_energy).all()
    assert (np.asarray(state.z["mu"])[:, 0] < np.asarray(state.z["mu"])[:, 1]).all()


@pytest.fixture(scope="module")
def stuck():
    def one_mean(y):
        mean = numpyro.sample("mean", dist.Normal(0, 3))
        with numpyro.plate("people", len(y)):
            numpyro.sample("y", dist.Normal(mean, 1), obs=y)

    y = np.random.default_rng(0).normal(1, 1, 2_000).astype(np.float32)
    still = {"step_size": 1e-6, "adapt_step_size": False, "max_tree_depth": 1}
    mcmc = ndp.MCMC(ndp.DPNUTS(one_mean, privacy=ndp.Budget(1.0, 1e-6), **still), **FIT)
    with pytest.raises(RuntimeError, match=r"run\("):
        print(mcmc.verdicts)
    mcmc.run(jax.random.key(0), y)
    return mcmc


def test_the_report_and_the_table_say_so(stuck, capsys):
    assert str(stuck.privacy).split("note")[1].strip().startswith("do not use: the chains have not")
    stuck.print_summary()
    assert "have not mixed" in capsys.readouterr().out


RELEASED = (
    "do not use: not arrived: the last step was long. Give priors on the scale of the answer",
    "wide: little was told of b[3]: it is rare. Merge what can be merged, or more records",
)


def diverged(mcmc):
    """The same run, of which other things are said."""
    share = np.arange(400).reshape(2, 200) % 20 == 0
    facts = replace(mcmc._described.facts, notes=RELEASED)
    other = copy.copy(mcmc)
    other._described = mcmc._described._replace(
        facts=facts, drawn=chain_notes({"z": {}, "diverging": share}), shown=True
    )
    return other


def test_all_verdicts_of_a_run_stand_in_one_place_the_worst_first(stuck):
    """Those on chains stood in the report alone, before worse ones of the release."""
    (said,) = stuck.verdicts
    assert said.startswith("do not use: the chains have not mixed")
    assert stuck.released.diagnostics.verdicts == ()
    both = diverged(stuck)
    begun = [beginning(verdict) for verdict in both.verdicts]
    assert begun[:2] == ["do not use: not arrived", "with care: NUTS diverged"]
    assert begun[2:] == ["wide: little was told of b[3]"]
    assert both.privacy.notes == both.verdicts


def test_a_table_says_of_each_verdict_what_to_do_and_divergences_once(stuck, capsys):
    both = diverged(stuck)
    both._states = both._states | {"diverging": np.ones((2, 200), bool)}
    both.print_summary()
    shown = capsys.readouterr().out
    lines = [line.strip() for line in shown.splitlines()]
    assert lines[0] == f"note  {RELEASED[0]}"[: len(lines[0])]
    for remedy in ("Give priors on the scale", "Sample the release again", "Merge what can be"):
        assert sum(remedy in line for line in lines) == 1
    assert shown.count("iverge") == 1
    assert "NUTS diverged (20 of 400 draws, 5.0%)" in shown
    assert "… in full: print(mcmc.privacy.full())" in lines
    # ArviZ has it in a line, and once too.
    assert both._described.in_short.count("diverged") == 1
    # Where no verdict says it, NumPyro does.
    stuck.print_summary()
    assert "Number of divergences: 0" in capsys.readouterr().out


def test_what_is_good_to_know_is_shown_and_speaks_against_nothing(stuck, capsys):
    calm = copy.copy(stuck)
    facts = replace(stuck._described.facts, notes=("to know: little was told of b[3]. Read it",))
    calm._described = stuck._described._replace(facts=facts, drawn=())
    calm.print_summary()
    first, second, third = capsys.readouterr().out.splitlines()[:3]
    assert first == "note  to know: little was told of b[3]. Read it"
    assert second == "No note speaks against this release; what is to know of it stands above."
    assert third.startswith("What notes cannot see: docs/")


def test_a_slope_on_dollars_is_sampled_as_it_was_released():
    """NumPyro adds a constant to what it estimates of draws, a million times that variance.

    One chain lay 1.2 of its own sds off, half as wide, at an R-hat that no note speaks of. Of 2,000
    draws a mean strays by a tenth of its sd, one in 300.
    """
    rng = np.random.default_rng(5)
    income = np.exp(rng.normal(10.4, 0.6, 4_000)).astype(np.float32)
    y = (123 - 8e-5 * income + rng.normal(0, 12, 4_000)).astype(np.float32)

    def model(income, y):
        a = numpyro.sample("a", dist.Normal(120, 50))
        b = numpyro.sample("b", dist.Normal(0, 0.001))
        sigma = numpyro.sample("sigma", dist.HalfNormal(20))
        with numpyro.plate("people", len(income)):
            numpyro.sample("y", dist.Normal(a + b * income, sigma), obs=y)

    kernel = ndp.DPNUTS(model, privacy=ndp.Budget(1.0, 1e-5))
    settings = {"num_warmup": 400, "num_samples": 1_000, "num_chains": 2, "progress_bar": False}
    mcmc = ndp.MCMC(kernel, **settings)
    mcmc.run(jax.random.key(0), income, y)
    mean, sds = mcmc.released.located.mean, np.sqrt(np.diag(mcmc.released.located.covariance))
    for k, name in enumerate("ab"):
        draws = np.asarray(mcmc.get_samples()[name])
        assert abs(draws.mean() - mean[k]) < 0.15 * sds[k]
        assert draws.std() == pytest.approx(sds[k], rel=0.1)


def test_draws_that_hang_on_each_other_are_named():
    """Ten to thirty-five of five hundred said nothing, and the summary that nothing speaks."""
    rng, steps = np.random.default_rng(0), np.zeros((2, 400, 3))
    noise = rng.normal(size=steps.shape)
    for k in range(1, 400):
        steps[:, k] = 0.9 * steps[:, k - 1] + noise[:, k]
    (note,) = chain_notes({"z": {"a": noise, "b": steps}})
    assert re.match(
        r"with care: draws of 'b' are as good as \d\d independent ones \(n_eff\)", note.text
    )
    assert "num_samples = 4_000; mcmc.run(key)" in note.text
    # Of few draws, constants, or a site of very many numbers nothing is said.
    for quiet in (
        noise,
        np.full((2, 400), np.nan),
        np.ones((2, 400)),
        steps[:, :90],
        np.repeat(steps, 400, axis=2),
    ):
        assert _dependent({"b": quiet}) == ()
