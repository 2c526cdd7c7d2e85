"""A private posterior of 10⁸ records in a mapped file, end to end: memory, time, ε, and its error.

Twenty inputs and a Bernoulli outcome of known weights, 8.4 GB on disk, written first if they are
not there. Prints one JSON line: peak anonymous memory and seconds of the whole run (preparation,
compiler, charge and result), the ε charged, and how far the posterior means are from the weights,
beside the sds of the draws; then the report:

    python -m tests.benchmarks.bench_many_rows FOLDER [ROWS]

The step size is given, not adapted: adaptation reads all records at once, and a sum of so many may
wrap around in 32 bits. Steps on mini-batches are far from that.
"""

import json
import os
import sys
import time

import jax
import numpy as np

import numpyro_dp as ndp
from tests.models import logistic
from tests.scale import memory

COLUMNS, SHARE, STEP = 20, 2_000, 1.0
BUDGET = ndp.Budget(1.0, 1e-7)
COUNTS = {"num_warmup": 2_000, "num_samples": 18_000, "progress_bar": False}


def main(folder, rows="100000000"):
    paths = memory.written(folder, int(rows), COLUMNS)
    x, y = (np.load(path, mmap_mode="r") for path in paths)
    steps = {"step_size": STEP / len(x), "batch_size": len(x) // SHARE}
    kernel = ndp.DPSGLD(logistic, clip_norm=10.0, privacy=BUDGET, **steps)
    mcmc = ndp.MCMC(kernel, **COUNTS)

    def run():
        mcmc.run(jax.random.key(0), x, y)
        return mcmc.get_samples()["w"]

    cpu = time.process_time()
    draws, seconds, before, peak = memory.measured(run)
    error = np.mean(draws, axis=0) - np.linspace(-1, 1, COLUMNS)
    row = {
        "records": len(x),
        "columns": COLUMNS,
        "file_mb": sum(os.stat(path).st_size for path in paths) // 2**20,
        "anonymous_before_mb": round(before),
        "anonymous_peak_mb": round(peak),
        "seconds": round(seconds),
        "cpu_seconds": round(time.process_time() - cpu),
        "epsilon": mcmc.privacy.epsilon,
        "delta": mcmc.privacy.delta,
        "rms_error": round(float(np.sqrt(np.mean(error**2))), 6),
        "sd_of_draws": round(float(np.mean(np.std(draws, axis=0))), 6),
    }
    print(json.dumps(row))
    print(mcmc.privacy)


if __name__ == "__main__":
    main(*sys.argv[1:])
