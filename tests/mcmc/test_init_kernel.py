"""Chains that start from one sample of another private kernel."""

import jax
import numpy as np
import pytest

import numpyro_dp as ndp
from tests.models import normal_mean

SHARED = {"clip_norm": 8.0, "sampling_rate": 0.5}
FAR = np.full((200, 2), 5.0, np.float32)


def first(**changes):
    return ndp.DPSGLD(
        normal_mean, step_size=5e-3, steps_per_sample=40, **{"noise_multiplier": 1.0, **SHARED},
        **changes,
    )  # fmt: skip


def run(kernel, **options):
    mcmc = ndp.MCMC(kernel, num_warmup=0, num_samples=3, progress_bar=False, **options)
    mcmc.run(jax.random.key(0), FAR)
    return mcmc


def main(**changes):
    return ndp.DPSGLD(normal_mean, step_size=1e-6, **{"noise_multiplier": 4.0, **SHARED, **changes})


@pytest.mark.parametrize(
    "chains", [pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]
)
def test_chains_start_where_the_first_kernel_ends(chains):
    cold = run(main(), num_chains=chains).get_samples()["mu"]
    warm = run(main(init_kernel=first()), num_chains=chains).get_samples()["mu"]
    assert np.abs(cold).max() < 1
    np.testing.assert_allclose(warm, 5.0, atol=1.0)


def test_one_charge_covers_both_and_a_resumed_run_only_itself():
    accountant = ndp.Accountant()
    mcmc = run(main(init_kernel=first(), accountant=accountant), num_chains=2)
    (entry,) = accountant.entries
    assert entry.label == "DPSGLD after DPSGLD"
    alone = ndp.Accountant()
    bound = mcmc._bound
    alone.charge(bound.event(6), label="main")
    assert accountant.epsilon() > alone.epsilon()
    counts = [part.events[0].count for part in entry.event.events]
    assert counts == [80, 6]
    assert mcmc.privacy.steps == 86
    mcmc.post_warmup_state = mcmc.last_state
    mcmc.run(jax.random.key(0), FAR)
    assert accountant.entries[1].event.events[0].count == 6


def test_wrong_initial_kernels_are_refused():
    with pytest.raises(ValueError, match="must be a numpyro_dp kernel"):
        main(init_kernel="OPS")
    with pytest.raises(ValueError, match="neither an accountant"):
        main(init_kernel=first(accountant=ndp.Accountant()))
