"""An attack on DPSVI proves no more than what is charged, and does prove half the noise."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.autoguide import AutoDelta

import numpyro_dp as ndp
from numpyro_dp.accounting import privacy_curve
from numpyro_dp.diagnostics.audit.lower_bound import best_verdict
from numpyro_dp.execution.keys import seeded_key
from numpyro_dp.mechanisms import private_sum as mechanism
from numpyro_dp.svi.dpsvi.fit import Carry

pytestmark = pytest.mark.slow
STEPS, RUNS, DELTA = 4, 40_000, 1e-5


def mean(x):
    mu = numpyro.sample("mu", dist.Normal(0, 1e4))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("x", dist.Normal(mu, 1), obs=x)


def endings(svi, x, seed):
    """Where many runs of a few steps end, from one start; each with keys of its own."""
    svi, fit, plan, state = svi._prepared(STEPS, (x,), {})
    target = fit.target
    records = target.records((x,), {})

    def one(noise_key):
        zero = jax.tree.map(jnp.zeros_like, svi.optim.get_params(state.optim_state))
        carry = Carry(state.optim_state[0], state.optim_state, state.rng_key, noise_key, zero)

        def step(carry, _):
            optim_state, draws_key, noise_key, _ = fit.step(carry, records)
            return Carry(carry.i + 1, optim_state, draws_key, noise_key, zero), None

        last = jax.lax.scan(step, carry, length=STEPS)[0]
        return svi.optim.get_params(last.optim_state)["mu_auto_loc"]

    keys = jax.random.split(seeded_key(jax.random.key(seed)), RUNS)
    ends = jax.jit(lambda keys: jax.lax.map(one, keys, batch_size=1000))(keys)
    return np.asarray(ends), privacy_curve(plan.event(STEPS), "zero_out").epsilon(DELTA)


def proved(**settings):
    """ε that the attack proves at 95 %, and ε that is charged."""
    svi = ndp.DPSVI(
        mean, AutoDelta(mean), numpyro.optim.SGD(1.0), noise_multiplier=3.0, average=0, **settings
    )
    loud, null = jnp.array([1e6, jnp.nan]), jnp.array([jnp.nan, jnp.nan])
    (one, charged), (other, _) = endings(svi, loud, 1), endings(svi, null, 2)
    return best_verdict(one, other, delta=DELTA, confidence=0.95).epsilon, charged


def test_the_attack_stays_below_what_is_charged():
    epsilon, charged = proved(clip_norm=1.0)
    assert 0.3 * charged < epsilon <= charged


def test_half_the_noise_is_proved(monkeypatch):
    honest = mechanism.floor_noise
    monkeypatch.setattr(mechanism, "floor_noise", lambda *a: honest(*a) // 2)
    epsilon, charged = proved(clip_norm=1.0)
    assert epsilon > charged
