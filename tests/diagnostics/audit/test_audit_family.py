"""Audits of the stochastic-gradient family, and the mistakes that they or the ledger catch."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import numpyro_dp as ndp
from numpyro_dp.mechanisms import private_sum as mechanism

DELTA = 1e-5
LOUD = jnp.array([np.nan, 1e6])
NULL = jnp.full(2, np.nan)
START = {"mu": jnp.zeros(())}
FAMILY = {
    "DPSGHMC": (ndp.DPSGHMC, {"step_size": 4.0, "friction": 0.01}),
    "DPSGNHT": (ndp.DPSGNHT, {"step_size": 4.0, "diffusion": 0.01}),
    "DPSGFS": (ndp.DPSGFS, {"step_size": 1e5, "second_moment_share": 0.1}),
}


def mean_model(x):
    mu = numpyro.sample("mu", dist.Normal(0, 1e3))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("x", dist.Normal(mu, 1), obs=x)


def planned_run(name, **changes):
    constructor, settings = FAMILY[name]
    return constructor(
        mean_model, **{"clip_norm": 1.0, "noise_multiplier": 1.0, **settings, **changes}
    )


def last(draws):
    return draws["mu"][-1]


def attack(name, *, num_samples=1, num_chains=4_000, **changes):
    # Scoring has no default score: its move is no likelihood ratio by coordinate.
    score = last if name == "DPSGFS" else None
    return ndp.audit(
        planned_run(name, **changes), jax.random.key(7), (LOUD,), (NULL,), num_samples=num_samples,
        num_chains=num_chains, init_params=START, delta=DELTA, score=score,
    )  # fmt: skip


def check(result, share):
    assert not result.refutes
    assert result.epsilon_lower >= share * result.epsilon_reported


# The lower bounds hold with 95 % each; seeds are fixed, so an honest kernel would fail with a
# probability below 5 % once, when the seed was chosen.
SHARES = {"DPSGHMC": 0.3, "DPSGNHT": 0.3, "DPSGFS": 0.2}


@pytest.mark.slow
def test_the_bound_nears_the_reported_epsilon_and_stays_below():
    check(attack("DPSGHMC", num_chains=1_000), 0.2)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(FAMILY))
@pytest.mark.parametrize("steps", [1, 5])
def test_audits_with_many_chains(name, steps):
    # Several steps of scoring are weighed by their sum alone, so less of them is seen.
    share = SHARES[name] if steps == 1 else SHARES[name] / 2
    check(attack(name, num_samples=steps, num_chains=20_000), share)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(FAMILY))
def test_halved_noise_is_refuted(name, monkeypatch):
    honest = mechanism.floor_noise
    monkeypatch.setattr(mechanism, "floor_noise", lambda *a: honest(*a) // 2)
    # A clip norm of its own, so that no executable of the honest kernel is found again; little
    # noise, so that the chains suffice to tell.
    assert attack(name, num_chains=100_000, clip_norm=1.125, noise_multiplier=2.0).refutes


def test_scoring_has_no_default_score():
    with pytest.raises(ValueError, match="give score="):
        ndp.audit(planned_run("DPSGFS"), jax.random.key(0), (LOUD,), (NULL,), delta=DELTA)


@pytest.mark.slow
def test_batches_and_chains_are_counted_each_for_itself():
    """One release a step: not two for two statistics; four chains cost four, not three."""
    x = np.zeros(50, np.float32)
    spent = {}
    for name, chains in (("DPSGFS", 1), ("DPSGHMC", 1), ("DPSGHMC", 4)):
        accountant = ndp.Accountant()
        kernel = planned_run(name, sampling_rate=0.5, accountant=accountant)
        mcmc = ndp.MCMC(kernel, num_warmup=0, num_samples=3, num_chains=chains, progress_bar=False)
        mcmc.run(jax.random.key(0), x)
        (entry,) = accountant.entries
        spent[name, chains] = entry.event.events[0].count
        assert np.max(mcmc.last_state.i) * chains == spent[name, chains]
    assert spent == {("DPSGFS", 1): 3, ("DPSGHMC", 1): 3, ("DPSGHMC", 4): 12}
