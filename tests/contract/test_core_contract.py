"""What no kernel may ship without: charges, and nothing but released values left behind."""

import jax
import numpy as np
import pytest

import numpyro_dp as ndp
from tests.contract.kernels import CORE, KERNELS, charged_steps, make, neighbours, repeats, warmup
from tests.contract.surfaces import leaks, surfaces
from tests.models import logistic

# As in surfaces(), so that one executable serves them all.
RUN = {"num_samples": 10, "num_chains": 2, "progress_bar": False}


@pytest.mark.parametrize("name", CORE)
def test_every_step_is_charged_and_only_released_values_leave(name, records):
    """One kernel, compiled once: charges of warm-up and run, the walk over neighbours, resuming."""
    entry, data = KERNELS[name], neighbours(records)
    one, other = (surfaces(make(name, logistic, **entry.exposed), d) for d in data)
    assert leaks(one, other) == []
    assert any(p.startswith(".samples") and one[p] != other[p] for p in one), "nothing differs"
    if entry.gradient:
        # The report speaks of the draws: a function of them, and walked like them.
        assert b"relaxation times" in one[".privacy.drawn"]

    accountant = ndp.Accountant()
    kernel = make(name, logistic, accountant=accountant, **entry.exposed)
    mcmc = ndp.MCMC(kernel, **RUN | {"num_warmup": warmup(name, 10)}, secure=False)
    fields = ("i", "z.w")
    if entry.warms_up:
        mcmc.warmup(jax.random.key(0), *data[0], extra_fields=fields, collect_warmup=True)
    moves = []
    for _ in range(2):
        mcmc.run(jax.random.key(1), *data[0], extra_fields=fields)
        moves.append(np.diff(mcmc.get_samples(group_by_chain=True)["w"], axis=1))
        mcmc.post_warmup_state = mcmc.last_state
    charged = charged_steps(accountant)
    # Warm-up and the first run are one charge.
    assert charged == [40 if entry.warms_up else 20, 20]
    np.testing.assert_array_equal(mcmc.last_state.i, sum(charged) // 2)
    # Resumed under the key of the run before: the noise must be fresh all the same.
    assert not repeats(*moves)
    assert "rng_key" not in mcmc.get_extra_fields()
    assert not np.asarray(jax.random.key_data(mcmc.last_state.rng_key)).any()
