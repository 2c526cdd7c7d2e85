"""How often records are cut: the right count, a half for each record at most, charged first."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import numpyro_dp as ndp
from numpyro_dp.accounting.events import GaussianDpEvent, SelfComposedDpEvent
from numpyro_dp.mechanisms import PrivateSum
from numpyro_dp.model.private_model import PrivateModel
from tests.models import logistic, normal_mean

KEY = jax.random.key(1)
# A quarter of the records lie far out: at mu near 0 their terms change by 30 · |move|.
X = np.where(np.arange(400)[:, None] < 100, 30.0, 0.0).astype(np.float32)
FIXED = {"step_size": 0.1, "lipschitz": 2.0, "max_move": 0.1}


def distance(here, there):
    return 2.0 * jnp.sum(jnp.abs(here["mu"] - there["mu"]))


@pytest.fixture(scope="module")
def fixed():
    mcmc = ndp.MCMC(
        ndp.DPFastMH(normal_mean, **FIXED), num_warmup=0, num_samples=2, progress_bar=False
    )
    mcmc.run(jax.random.key(0), X)
    return mcmc


@pytest.fixture
def as_if_run(fixed):
    """An MCMC object with other settings, ended where ``fixed`` did: a run would compile first."""

    def make(model=normal_mean, z=None, num_chains=1, **arguments):
        kernel = ndp.DPFastMH(model, **arguments)
        mcmc = ndp.MCMC(kernel, num_warmup=0, num_samples=2, num_chains=num_chains)
        state = fixed.last_state if z is None else fixed.last_state._replace(z=z)
        if num_chains > 1:
            state = jax.tree.map(lambda leaf: jnp.stack([leaf] * num_chains), state)
        mcmc._last_state = state
        return mcmc

    return make


def noiseless_share(mcmc, *data, **options):
    """The share with noise of 1e-3 · ½ on a count of hundreds."""
    return ndp.clipping_rate(KEY, mcmc, *data, noise_multiplier=1e-3, **options).rate


def test_the_share_is_that_of_terms_past_the_bound(fixed):
    """Moves as proposed: |30 · d| > 0.2 cuts a far record, |d|·(|d|/2 + |mu|) > 0.2 a near one."""
    at = np.linspace(-0.05, 0.05, 64, dtype=np.float32)[:, None]
    found = ndp.clipping_rate(KEY, fixed, X, noise_multiplier=1e-3, positions={"mu": at})
    keys = jax.vmap(lambda key: jax.random.split(key)[1])(jax.random.split(KEY, 64))
    moved = 0.1 * jax.vmap(lambda key: jax.random.normal(key, (1, 1)))(keys)[:, 0]
    moved = np.clip(np.asarray(moved), -0.1, 0.1)
    change = -0.5 * ((X.T - at - moved) ** 2 - (X.T - at) ** 2)
    exact = np.mean(np.abs(change) > 0.2)
    assert 0.2 < exact < 0.25
    # Noise 1.3e-6, and the lattice rounds a record to one part in thousands.
    assert found.rate == pytest.approx(exact, abs=1e-3)
    assert found.noise_sd == pytest.approx(0.5e-3 / 400, rel=0.01)
    assert found.num_moves == 64


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "least", "most"),
    [
        ({"step_size": 0.05, "record_bound": distance, "rho": 10.0, "num_chains": 2}, 0.24, 0.26),
        ({**FIXED, "num_candidates": 3}, 0.2, 0.251),
        ({**FIXED, "max_move": 0.02, "batch_size": 100}, 0.2, 0.251),
        ({**FIXED, "lipschitz": 40.0}, 0.0, 1e-3),
    ],
    ids=["filter", "candidates", "batch", "true-bound"],
)
def test_every_kind_of_bound_is_looked_at(as_if_run, arguments, least, most):
    found = noiseless_share(as_if_run(**arguments), X)
    assert least <= found <= most


@pytest.mark.slow
def test_projected_rows_are_counted_where_the_charge_is_averaged_over_directions(
    as_if_run, records
):
    norms = np.linalg.norm(records["x"], axis=1)
    mcmc = as_if_run(logistic, {"w": jnp.zeros(3)}, step_size=0.1, lipschitz=1.3)
    share = np.mean(norms > 1.3 * 1.001)
    assert 0.2 < share < 0.6
    assert noiseless_share(mcmc, records["x"], records["y"]) == pytest.approx(share, abs=1e-3)


@pytest.fixture
def summed(monkeypatch):
    """The vectors of all records that a release adds up, in place of the release."""
    seen = []

    def overheard(self, key, record_vector, records, step=0):
        vectors = jax.vmap(record_vector)([leaf[:, None] for leaf in records])
        jax.debug.callback(lambda v: seen.append(np.asarray(v)), vectors)
        return jnp.sum(vectors, axis=0)

    monkeypatch.setattr(PrivateSum, "release", overheard)
    return seen


def test_one_record_adds_at_most_a_half_and_moves_no_other(fixed, summed):
    """Whatever the record holds; the rest of the sum is the same to the last bit."""
    for strange in (0.0, 30.0, 1e30, np.nan, np.inf):
        other = X.copy()
        other[7] = strange
        # A multiplier that no other test has: this program is compiled with the listener in it.
        ndp.clipping_rate(KEY, fixed, other, noise_multiplier=2.718)
        jax.effects_barrier()
        assert np.all(np.abs(summed[-1]) <= 0.5)
        np.testing.assert_array_equal(np.delete(summed[-1], 7), np.delete(summed[0], 7))
    assert len({float(each[7, 0]) for each in summed}) > 1
    assert float(summed[-1][7, 0]) == pytest.approx(0.5, rel=0.01)


def test_the_charge_is_one_gaussian_made_before_a_record_is_read(fixed, monkeypatch):
    accountant = ndp.Accountant(ndp.Budget(2.0, 1e-5))

    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("numpyro_dp.diagnostics.clipping_rate._centred_share", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ndp.clipping_rate(KEY, fixed, X, noise_multiplier=10.0, accountant=accountant)
    (entry,) = accountant.entries
    released, distance = entry.event.events
    assert isinstance(released, SelfComposedDpEvent)
    assert released.event == GaussianDpEvent(10.0)
    assert 0 < distance.distance < 1e-9


def test_a_budget_chooses_the_noise_and_a_ledger_refuses(fixed):
    ledger = ndp.Accountant(ndp.Budget(0.4, 1e-5))
    found = ndp.clipping_rate(KEY, fixed, X, privacy=ndp.Budget(0.3, 1e-5), accountant=ledger)
    assert 0.29 < found.privacy.epsilon <= 0.3
    assert found.privacy.recompute() == found.privacy.epsilon
    # Five standard deviations of the noise, false alarm 6e-7; all else is the share itself.
    assert abs(found.rate - noiseless_share(fixed, X)) < 5 * found.noise_sd + 1e-3
    with pytest.raises(ndp.BudgetExceededError):
        ndp.clipping_rate(KEY, fixed, X, privacy=ndp.Budget(0.3, 1e-5), accountant=ledger)
    assert len(ledger.entries) == 1


def test_replace_one_doubles_the_shift(fixed, as_if_run, monkeypatch):
    monkeypatch.setattr("numpyro_dp.diagnostics.clipping_rate._centred_share", lambda *given: 0.0)
    run = as_if_run(accountant=ndp.Accountant(relation="replace_one"), **FIXED)
    replaced = ndp.clipping_rate(KEY, run, X, noise_multiplier=10.0).privacy
    removed = ndp.clipping_rate(KEY, fixed, X, noise_multiplier=5.0).privacy
    assert replaced.relation == "replace_one"
    assert replaced.epsilon == pytest.approx(removed.epsilon, rel=1e-3)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, ValueError, "give either privacy="),
        ({"noise_multiplier": 0.0}, ValueError, "noise_multiplier must be positive"),
        ({"noise_multiplier": 1.0, "num_moves": 0}, ValueError, "num_moves"),
        ({"noise_multiplier": 1.0, "positions": {"w": np.zeros((2, 1))}}, ValueError, "positions"),
        ({"noise_multiplier": 1.0, "positions": {"mu": np.zeros((0, 1))}}, ValueError, "positions"),
        (
            {"noise_multiplier": 1.0, "accountant": ndp.Accountant(relation="replace_one")},
            ValueError,
            "two relations do not compose",
        ),
        ({"noise_multiplier": 1.0, "accountant": True}, ValueError, "Accountant"),
    ],
)
def test_bad_questions_are_refused(fixed, options, error, message):
    with pytest.raises(error, match=message):
        ndp.clipping_rate(KEY, fixed, X, **options)


def test_runs_that_it_cannot_judge_are_refused(as_if_run):
    def ask(mcmc):
        return ndp.clipping_rate(KEY, mcmc, X, noise_multiplier=1.0)

    fresh = ndp.MCMC(ndp.DPFastMH(normal_mean, **FIXED), num_warmup=0, num_samples=1)
    with pytest.raises(RuntimeError, match="nothing has run"):
        ask(fresh)
    gradients = ndp.DPSGLD(normal_mean, step_size=0.1, clip_norm=1.0, noise_multiplier=1.0)
    with pytest.raises(ValueError, match="Metropolis kernels"):
        ask(ndp.MCMC(gradients, num_warmup=0, num_samples=1))
    with pytest.raises(ValueError, match="not DPFastMH"):
        ask(fresh.sampler)
    open_ended = as_if_run(**{**FIXED, "lipschitz": math.inf})
    with pytest.raises(ValueError, match="nothing is cut"):
        ask(open_ended)
    counted = as_if_run(accountant=ndp.Accountant(relation="add_remove"), **FIXED)
    with pytest.raises(ndp.UnsupportedModelError, match="private under add_remove"):
        ask(counted)
    beyond = {"step_size": 0.5, "record_bound": lambda here, there: math.inf, "rho": 1.0}
    with pytest.raises(ValueError, match="excludes every move"):
        ask(as_if_run(**beyond))


def test_a_question_inside_a_transformation_is_refused(fixed):
    with pytest.raises(ValueError, match="JAX transformation"):
        jax.jit(lambda x: ndp.clipping_rate(KEY, fixed, x, noise_multiplier=1.0).rate)(X)


@pytest.mark.slow
def test_the_power_that_a_budget_chose_is_the_one_that_is_judged(as_if_run, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "numpyro_dp.diagnostics.clipping_rate._centred_share",
        lambda mechanism, bound, *rest: seen.append(bound.plan.power) or 0.0,
    )
    run = as_if_run(likelihood_power=None, privacy=ndp.Budget(0.1, 1e-5), **FIXED)
    noiseless_share(run, X)
    wall = PrivateModel(normal_mean, (X,))
    plan = run.sampler.bind(wall, num_steps=2, relation="zero_out", delta=1e-5).plan
    assert 0 < plan.power < 1
    assert seen == [plan.power]
