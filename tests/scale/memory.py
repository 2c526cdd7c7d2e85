"""Run a front end on records of a mapped file, in a process of its own; says what it took.

``python -m tests.scale.memory KIND mapped|copied|stored MEGABYTES FOLDER`` prints a line of JSON:
peak anonymous memory over what was there before (MB), seconds, and a digest of what was released.
"""

import hashlib
import json
import sys
import threading
import time
from pathlib import Path

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer.autoguide import AutoNormal

import numpyro_dp as ndp
from tests.models import logistic

COLUMNS, BATCH = 50, 1_024
BUDGET = ndp.Budget(1.0, 1e-6)
COUNTS = {"num_warmup": 0, "progress_bar": False, "secure": False}


def num_rows(megabytes):
    """How many rows of :data:`COLUMNS` inputs a file of this size holds."""
    return int(megabytes) * 2**20 // (4 * COLUMNS)


def written(folder, rows, columns=COLUMNS):
    """Paths of inputs and outcomes of known weights, written row block by row block."""
    paths = [Path(folder) / f"{name}-{rows}-{columns}.npy" for name in ("x", "y")]
    if all(path.exists() for path in paths):
        return paths
    rng, w = np.random.default_rng(0), np.linspace(-1, 1, columns)
    x = np.lib.format.open_memmap(paths[0], "w+", np.float32, (rows, columns))
    y = np.lib.format.open_memmap(paths[1], "w+", np.int32, (rows,))
    for first in range(0, rows, 100_000):
        some = slice(first, first + 100_000)
        x[some] = 0.3 * rng.standard_normal(x[some].shape, np.float32)
        y[some] = rng.random(len(x[some])) < 1 / (1 + np.exp(-x[some] @ w))
    x.flush()
    y.flush()
    return paths


def narrow(x, y):
    """Wide rows and two latents: the work of a release goes with the latents' square."""
    a, b = (numpyro.sample(name, dist.Normal(0, 2)) for name in "ab")
    with numpyro.plate("people", x.shape[0]):
        logits = a + b * x.sum(-1) / np.sqrt(COLUMNS)
        numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)


def langevin(x, y, steps, **batches):
    kernel = ndp.DPSGLD(logistic, step_size=1e-7, clip_norm=1.0, privacy=BUDGET, **batches)
    mcmc = ndp.MCMC(kernel, num_samples=steps, **COUNTS)
    return lambda: mcmc.run(jax.random.key(0), x, y) or mcmc.get_samples()


def nuts(x, y):
    counts = {**COUNTS, "num_warmup": 100}
    mcmc = ndp.MCMC(ndp.DPNUTS(narrow, privacy=BUDGET), num_samples=100, **counts)
    return lambda: mcmc.run(jax.random.key(0), x, y) or mcmc.get_samples()


def svi(x, y):
    fit = ndp.DPSVI(
        narrow, AutoNormal(narrow), privacy=BUDGET, batch_size=BATCH, secure=False
    )  # fmt: skip
    return lambda: fit.run(jax.random.key(0), 50, x, y, progress_bar=False).params


def metropolis(x, y, steps, batch=None):
    move = 0.03 * COLUMNS**0.5
    # As much as lets a batch of so many decide; of all records it leaves as many moves.
    power = 0.2 * BATCH / len(x) / move
    lengths = {"step_size": 0.01, "lipschitz": 1.0, "max_move": move}
    kernel = ndp.DPFastMH(logistic, **lengths, batch_size=batch, likelihood_power=power)
    mcmc = ndp.MCMC(kernel, num_samples=steps, **COUNTS)
    return lambda: mcmc.run(jax.random.key(0), x, y) or mcmc.get_samples()


def vips(x, y):
    guide = ndp.guides.PolyaGammaGuide(narrow, row_norm=5.0)
    fit = ndp.VIPS(narrow, guide, privacy=BUDGET, secure=False)
    return lambda: fit.run(jax.random.key(0), 5, x, y, progress_bar=False).params


class Rows:
    """A mapped file as a store."""

    def __init__(self, array):
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def __len__(self):
        return len(self.array)

    def __getitems__(self, rows):
        return self.array[rows]


KINDS = {
    "mini": lambda x, y: langevin(x, y, 2_000, batch_size=BATCH),
    "full": lambda x, y: langevin(x, y, 3),
    "nuts": nuts,
    "svi": svi,
    "metropolis": lambda x, y: metropolis(x, y, 2_000, BATCH),
    "metropolis_full": lambda x, y: metropolis(x, y, 10),
    "vips": vips,
}


def status(field):
    """Memory of this process in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def measured(function):
    """What a function returns, its seconds, and the peak of anonymous memory over that before."""
    before, peak, ended = status("RssAnon"), [0.0], threading.Event()

    def watch():
        while not ended.wait(0.005):
            peak[0] = max(peak[0], status("RssAnon"))

    watching = threading.Thread(target=watch)
    watching.start()
    began = time.perf_counter()
    try:
        found = jax.block_until_ready(function())
    finally:
        seconds = time.perf_counter() - began
        ended.set()
        watching.join()
    return found, seconds, before, peak[0]


def main(kind, source, megabytes, folder, repeat="1"):
    paths = written(folder, num_rows(megabytes))
    x, y = (np.load(path, mmap_mode="r") for path in paths)
    if source == "copied":
        x, y = np.array(x), np.array(y)
    if source == "stored":
        x, y = (ndp.RecordSource(Rows(each), trusted_storage=True) for each in (x, y))
    run = KINDS[kind](x, y)
    for _ in range(int(repeat)):
        found, seconds, before, peak = measured(run)
        digest = hashlib.sha256()
        for leaf in jax.tree.leaves(found):
            digest.update(np.asarray(leaf).tobytes())
        row = {
            "kind": kind,
            "source": source,
            "records": len(x),
            "file_mb": int(megabytes),
            "anonymous_before_mb": round(before),
            "anonymous_peak_mb": round(peak),
            "seconds": round(seconds, 2),
            "released": digest.hexdigest()[:16],
        }
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
