"""``chain_method="parallel"`` on two host devices, in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Records, and everything else but the chains, are on both devices; a chain is on one.
PROGRAM = """
import jax, numpy as np
import numpyro_dp as ndp
from tests.models import logistic

assert jax.local_device_count() == 2
rng = np.random.default_rng(0)
x = rng.uniform(-1, 1, (400, 3)).astype(np.float32)
y = (rng.random(400) < 0.5).astype(np.int32)
draws, states, spent = {}, {}, {}
for method in ("vectorized", "parallel"):
    accountant = ndp.Accountant()
    kernel = ndp.DPSGLD(logistic, step_size=1e-3, batch_size=60, clip_norm=1.0,
                        noise_multiplier=2.0, accountant=accountant)
    mcmc = ndp.MCMC(kernel, num_warmup=4, num_samples=8, num_chains=2, chain_method=method,
                    secure=False, progress_bar=False)
    mcmc.run(jax.random.key(0), x, y, extra_fields=("i",))
    devices = mcmc.last_state.z["w"].sharding.device_set
    assert len(devices) == (2 if method == "parallel" else 1), devices
    assert mcmc.chain_method == method
    mcmc.post_warmup_state = mcmc.last_state
    first = mcmc.get_samples(group_by_chain=True)["w"]
    mcmc.run(jax.random.key(0), x, y)
    draws[method] = np.concatenate([first, mcmc.get_samples(group_by_chain=True)["w"]], axis=1)
    states[method] = mcmc.last_state
    spent[method] = [entry.event.events[0].count for entry in accountant.entries]
    assert not np.asarray(jax.random.key_data(mcmc.last_state.rng_key)).any()
np.testing.assert_array_equal(draws["vectorized"], draws["parallel"])
assert draws["parallel"].shape == (2, 16, 3)
assert np.abs(draws["parallel"][0] - draws["parallel"][1]).min() > 0
np.testing.assert_array_equal(states["vectorized"].i, states["parallel"].i)
assert spent["vectorized"] == spent["parallel"] == [24, 16]
print("equal")
"""


@pytest.mark.slow
def test_parallel_chains_equal_vectorized_ones_bit_for_bit():
    # The number of devices is fixed when JAX starts, hence the process.
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
    }
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    assert done.stdout.strip().endswith("equal")
