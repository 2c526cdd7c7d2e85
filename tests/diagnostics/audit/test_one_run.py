"""A lower bound from one run: sound counting, canaries that are heard no more than is charged."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.infer.autoguide import AutoDelta
from scipy.stats import binom

import numpyro_dp as ndp
from numpyro_dp.diagnostics.audit.one_run import one_run_epsilon
from numpyro_dp.mechanisms import private_sum as mechanism

KEY = jax.random.key(1)


def wide(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def fit(epsilon=2.0, **options):
    settings = {"clip_norm": 1.0, "privacy": ndp.Budget(epsilon, 1e-5)} | options
    return ndp.DPSVI(wide, AutoDelta(wide), optax.sgd(0.01), **settings)


def attack(svi, dim=1000, count=500, key=KEY, **options):
    return ndp.audit_one_run(svi, key, jnp.ones((count, dim)), jnp.ones(count, int), **options)


@pytest.mark.parametrize("right", [40, 60, 80, 100])
def test_without_delta_the_bound_is_the_binomials(right):
    found = one_run_epsilon(right, 100, 1000, delta=0.0, confidence=0.95)
    chance = 1 / (1 + np.exp(-found))
    if right <= 50:
        assert found == 0
    else:
        assert binom.sf(right - 1, 100, chance) == pytest.approx(0.05)


def test_delta_and_more_canaries_prove_less():
    none, some, more = (
        one_run_epsilon(90, 100, m, delta=d, confidence=0.95)
        for m, d in ((100, 0.0), (100, 1e-4), (900, 1e-4))
    )
    assert none > some > more > 0


def test_randomised_responses_are_refuted_no_oftener_than_it_says():
    """2,000 audits of answers that are right with chance e/(1 + e), of which ε = 1 is exact.

    At 95 % at most 100 may exceed it in expectation; three standard errors more are 130.
    """
    rng = np.random.default_rng(0)
    right = rng.binomial(60, 1 / (1 + np.exp(-1.0)), 2_000)
    bound = {r: one_run_epsilon(r, 60, 60, delta=0.0, confidence=0.95) for r in set(right.tolist())}
    above = sum(bound[r] > 1.0 for r in right.tolist())
    assert above <= 130


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "steps", "share"), [(2.0, 1, 0.15), (8.0, 5, 0.2)])
def test_one_run_proves_a_part_of_what_is_charged(epsilon, steps, share):
    found = attack(fit(epsilon), num_steps=steps)
    assert share * epsilon < found.epsilon_lower <= found.epsilon_reported <= epsilon
    assert not found.refutes
    assert found.epsilon_lower <= found.ceiling
    assert (found.num_canaries, found.num_parameters, found.guesses) == (500, 1000, 50)
    assert "Of 500 canaries in one run with 1000 parameters 50" in " ".join(str(found).split())


@pytest.mark.slow
def test_next_to_no_noise_is_refuted(monkeypatch):
    """A tenth of the noise of ε = 1: nearly every guess is right."""
    honest = mechanism.floor_noise
    monkeypatch.setattr(mechanism, "floor_noise", lambda *given: honest(*given) // 10)
    jax.clear_caches()
    assert attack(fit(1.0), dim=999, guesses=100).refutes


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (lambda: fit(accountant=ndp.Accountant()), {}, "without accountant="),
        (lambda: ndp.PrivateCentre(row_norm=1.0, noise_multiplier=1.0), {}, "audit takes all else"),
        (fit, {"count": 99}, "100 records or more"),
        (fit, {"confidence": 0.4}, "confidence"),
        (fit, {"guesses": 0}, "guesses"),
        (
            lambda: ndp.DPSVI(wide, AutoDelta(wide), optax.sgd(0.1), clip_norm=np.inf,
                              noise_multiplier=0.0),
            {},
            "switched off",
        ),
    ],
)  # fmt: skip
def test_what_is_no_such_audit_is_refused(make, options, message):
    with pytest.raises(ValueError, match=message):
        attack(make(), dim=2, **{"count": 100} | options)
