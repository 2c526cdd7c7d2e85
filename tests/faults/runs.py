"""``python -m tests.faults.runs LEDGER``: private chains one after another, until killed."""

import sys

import jax
import numpy as np

import numpyro_dp as ndp
from tests.models import normal_mean


def main(path: str) -> None:
    x = np.ones((50, 2), np.float32)
    kernel = ndp.DPSGLD(
        normal_mean,
        step_size=1e-3,
        clip_norm=1.0,
        noise_multiplier=50.0,
        accountant=ndp.Accountant(path=path),
    )
    mcmc = ndp.MCMC(kernel, num_warmup=0, num_samples=50, progress_bar=False)
    while True:
        mcmc.run(jax.random.key(0), x)
        print("drawn", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
