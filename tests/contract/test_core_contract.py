"""What no kernel may ship without: charges, and nothing but released values left behind."""

import jax
import numpy as np
import pytest

import numpyro_dp as ndp
from tests.contract.kernels import CORE, make
from tests.contract.surfaces import leaks, surfaces
from tests.models import logistic

# As in surfaces(), so that one executable serves them all.
RUN = {"num_warmup": 10, "num_samples": 10, "num_chains": 2}


@pytest.mark.parametrize("name", CORE)
def test_every_step_is_charged_and_only_released_values_leave(name, records):
    """One kernel, compiled once: charges of warm-up and run, the walk over neighbours, resuming."""
    neighbour = {k: v.copy() for k, v in records.items()}
    neighbour["x"][7] = [1.0, 0.9, -0.9]
    neighbour["y"][7] = 1 - neighbour["y"][7]
    # A place in every step, so that the neighbours differ from the first one on.
    settings = {"batch_size": None, "sampling_rate": 0.9}
    one, other = (
        surfaces(make(name, logistic, **settings), (d["x"], d["y"])) for d in (records, neighbour)
    )
    assert leaks(one, other) == []
    assert any(p.startswith(".samples") and one[p] != other[p] for p in one), "nothing differs"
    # The report speaks of the draws: a function of them, and walked like them.
    assert b"relaxation times" in one[".privacy.drawn"]

    accountant = ndp.Accountant()
    kernel = make(name, logistic, accountant=accountant, **settings)
    mcmc = ndp.MCMC(kernel, **RUN, secure=False, progress_bar=False)
    data = records["x"], records["y"]
    moves, charged = [], []
    mcmc.warmup(jax.random.key(0), *data, extra_fields=("i", "z.w"), collect_warmup=True)
    for _ in range(2):
        mcmc.run(jax.random.key(1), *data, extra_fields=("i", "z.w"))
        moves.append(np.diff(mcmc.get_samples(group_by_chain=True)["w"], axis=1))
        mcmc.post_warmup_state = mcmc.last_state
    charged = [entry.event.events[0].count for entry in accountant.entries]
    assert charged == [20, 20, 20]
    np.testing.assert_array_equal(mcmc.last_state.i, 30)
    # Resumed under the key of the run before: the noise must be fresh all the same.
    assert np.abs(moves[0] - moves[1]).min() > 0
    assert "rng_key" not in mcmc.get_extra_fields()
    assert not np.asarray(jax.random.key_data(mcmc.last_state.rng_key)).any()
