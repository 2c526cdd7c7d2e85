"""Chains of DPNUTS that run one after another in one program, beside the same chains in step."""

import jax
import numpy as np
import pytest

import numpyro_dp as ndp
from numpyro_dp.mcmc import loop, nuts_loop
from tests.models import logistic


@pytest.fixture(scope="module")
def ran():
    rng = np.random.default_rng(4)
    x = np.c_[np.ones(4_000), rng.uniform(-1.7, 1.7, (4_000, 2))].astype(np.float32)
    y = (rng.random(4_000) < 1 / (1 + np.exp(-x @ np.array([0.3, -1.0, 0.8])))).astype(np.int32)
    kernel = ndp.DPNUTS(logistic, privacy=ndp.Budget(1.0, 1e-5))
    mcmc = ndp.MCMC(kernel, num_warmup=2, num_samples=2, progress_bar=False)
    mcmc.run(jax.random.key(0), x, y)
    return mcmc


def chains(ran, monkeypatch, *, apart, given=None, **options):
    """A run and one that goes on from it, by programs of their own."""
    jax.clear_caches()
    monkeypatch.setattr(loop, "_FEW", 8 if apart else 0)
    mcmc = ndp.MCMC(ran.sampler, **{"num_samples": 9, "progress_bar": False, **options})
    mcmc._release.released, mcmc._release._kernel = ran.released, ran.sampler
    fields = {"extra_fields": ("num_steps", "z.w")}
    mcmc.run(jax.random.key(3), init_params=given, **fields)
    first = mcmc.get_samples(True), mcmc.get_extra_fields(True), mcmc.get_samples()
    mcmc.post_warmup_state = mcmc.last_state
    mcmc.run(mcmc.post_warmup_state.rng_key, **fields)
    return first, mcmc.get_samples(True), mcmc.last_state


@pytest.mark.parametrize(
    ("options", "given"),
    [
        ({"num_warmup": 6, "num_chains": 3}, False),
        ({"num_warmup": 5, "num_chains": 2, "thinning": 3}, True),
        ({"num_warmup": 0, "num_chains": 2, "num_samples": 1}, True),
    ],
)
def test_chains_one_after_another_are_those_in_step(ran, monkeypatch, options, given):
    start = {"w": np.linspace(-0.3, 0.3, 3 * options["num_chains"]).reshape(-1, 3)}
    start = start if given else None
    one, other = (
        chains(ran, monkeypatch, apart=apart, given=start, **options) for apart in (True, False)
    )
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for mine, theirs in zip(*map(jax.tree.leaves, (one, other)), strict=True):
        assert mine.shape == theirs.shape
        assert mine.dtype == theirs.dtype
        if not jax.dtypes.issubdtype(mine.dtype, jax.dtypes.prng_key):
            np.testing.assert_allclose(mine, theirs, rtol=2e-2, atol=1e-3)


def test_they_do_so_where_they_are_few_and_read_no_record(ran, monkeypatch):
    program = ran.sampler.program(ran.released, 2)
    assert loop.runs_apart(program, 8)
    assert not loop.runs_apart(program, 9)
    monkeypatch.setattr(type(program), "asks_records", True)
    assert not loop.runs_apart(program, 2)
    monkeypatch.undo()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert not loop.runs_apart(program, 2)


def test_more_draws_of_a_release_come_with_the_next_run(ran):
    mcmc = ndp.MCMC(ran.sampler, num_warmup=2, num_samples=3, progress_bar=False)
    mcmc._release.released, mcmc._release._kernel = ran.released, ran.sampler
    mcmc.run(jax.random.key(5))
    mcmc.num_warmup, mcmc.num_samples = 4, 7
    mcmc.run(jax.random.key(6), extra_fields=("i",))
    assert mcmc.get_samples()["w"].shape == (7, 3)
    assert mcmc.get_extra_fields()["i"].tolist() == list(range(5, 12))
    # A warm-up of its own and what goes on from it are as they were.
    mcmc.warmup(jax.random.key(7), collect_warmup=True)
    assert mcmc.get_samples()["w"].shape == (4, 3)
    mcmc.run(mcmc.post_warmup_state.rng_key)
    assert mcmc.get_samples()["w"].shape == (7, 3)


def test_many_chains_are_begun_and_run_in_step(ran):
    mcmc = ndp.MCMC(ran.sampler, num_warmup=2, num_samples=3, num_chains=9, progress_bar=False)
    mcmc._release.released, mcmc._release._kernel = ran.released, ran.sampler
    mcmc.run(jax.random.key(5))
    draws = mcmc.get_samples(True)["w"]
    assert draws.shape == (9, 3, 3)
    assert len(np.unique(draws[:, 0], axis=0)) == 9
    assert nuts_loop._number_of(jax.random.key(0)) == 0
    assert nuts_loop._number_of(jax.random.PRNGKey(0)) == 0
    assert nuts_loop._number_of(jax.random.split(jax.random.PRNGKey(0), 1)) == 1
