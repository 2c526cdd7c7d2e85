"""Chains: each one is charged, and each draws batches of its own.

The engine is the same for all gradient kernels, so one of them stands for all.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import numpyro_dp as ndp
from numpyro_dp.mcmc.sgmcmc.integrator import BoundGradientKernel
from numpyro_dp.mechanisms.subsample import PoissonSampler
from tests.contract.kernels import make
from tests.contract.test_mutations import bound
from tests.models import logistic


def check_charges(records):
    accountant = ndp.Accountant()
    kernel = make("DPSGLD", logistic, accountant=accountant)
    mcmc = ndp.MCMC(kernel, num_warmup=2, num_samples=3, num_chains=4, progress_bar=False)
    mcmc.run(jax.random.key(0), records["x"], records["y"])
    charged = sum(entry.event.events[0].count for entry in accountant.entries)
    assert charged == int(np.sum(mcmc.last_state.i)) == 20, "steps of four chains"


def check_batches():
    """Two chains draw a record by coins of their own, at a rate of a half.

    They agree in half of 400 steps, known to 0.025; the bound is at 4.5 standard errors, false
    alarm 7e-6.
    """
    x = np.ones((40, 3), np.float32)
    y = np.zeros(40, np.int32)
    calm = x.copy()
    calm[5] = 0.0
    kernel = bound("DPSGLD", logistic, (x, y))

    @jax.jit
    def memberships(state):
        def step(state, _):
            pair = [kernel.sample(state, [jnp.asarray(d), jnp.asarray(y)]) for d in (x, calm)]
            return pair[1], jnp.any(pair[0].z["w"] != pair[1].z["w"], axis=1)

        return jax.lax.scan(step, state, length=400)[1]

    keys = jax.random.split(jax.random.key(3), 2)
    present = np.asarray(memberships(kernel.init(keys, 0, {"w": jnp.zeros((2, 3))})))
    assert abs(np.mean(present[:, 0] == present[:, 1]) - 0.5) < 4.5 * 0.025, "batches of a chain"


def test_chains_are_charged_and_draw_batches_of_their_own(records):
    check_charges(records)
    check_batches()


def test_one_chain_of_four_uncounted_is_caught(records, monkeypatch):
    honest = BoundGradientKernel.event

    def three_of_four(self, num_steps, *, start=0, num_chains=1):
        return honest(self, num_steps * 3 // 4, start=start, num_chains=num_chains)

    monkeypatch.setattr(BoundGradientKernel, "event", three_of_four)
    with pytest.raises(AssertionError, match="steps of four chains"):
        check_charges(records)


def test_a_batch_shared_by_chains_is_caught(monkeypatch):
    honest = PoissonSampler.draw

    def shared(self, first, second):
        return honest(
            self,
            *(jnp.arange(len(w), dtype=w.dtype) * jnp.uint32(0x9E3779B9) for w in (first, second)),
        )

    monkeypatch.setattr(PoissonSampler, "draw", shared)
    with pytest.raises(AssertionError, match="batches of a chain"):
        check_batches()
