"""What the driver costs: its bar, its repeated runs, its memory.

Prints one JSON line a case, beside NumPyro's own driver or a plain JAX loop in the same run, the
two interleaved so that a busy machine slows both. Nothing is asserted. Pin it for steady figures:

    taskset -c 0 python tests/benchmarks/bench_driver.py [bar repeat memory]
"""

import contextlib
import io
import json
import os
import resource
import subprocess
import sys
import time
from statistics import median

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import lax
from numpyro.infer import SA

import numpyro_dp as ndp

SHAPE = 20_000, 10, 256
LONG = 1_000_000, 50, 1_024
ROUNDS = 5


def model(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[-1]]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def synthetic(num_records, dim):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((num_records, dim), dtype=np.float32)
    return x, (rng.random(num_records, dtype=np.float32) < 0.5).astype(np.int32)


def private(batch, *, steps, **options):
    kernel = ndp.DPSGLD(
        model, step_size=1e-6, batch_size=batch, clip_norm=1.0, noise_multiplier=2.0
    )
    return ndp.MCMC(kernel, num_warmup=0, num_samples=steps, **options)


def ordinary(*, steps, **options):
    """NumPyro's driver with a cheap kernel of its own, on records passed as arguments."""
    return numpyro.infer.MCMC(
        SA(model), num_warmup=0, num_samples=steps, jit_model_args=True, **options
    )


def timed(mcmc, data):
    """Wall and CPU seconds of one run, its bar thrown away."""
    wall, cpu = time.perf_counter(), time.process_time()
    with contextlib.redirect_stderr(io.StringIO()):
        mcmc.run(jax.random.key(0), *data)
        jax.block_until_ready(mcmc.get_samples())
    return time.perf_counter() - wall, time.process_time() - cpu


def interleaved(cases, rounds=ROUNDS):
    """Median (wall, CPU) seconds of each case over rounds in turn, after one that compiles."""
    taken = {name: [] for name in cases}
    for number in range(rounds + 1):
        for name, case in cases.items():
            seconds = case()
            if number:
                taken[name].append(seconds)
    return {name: tuple(map(median, zip(*runs, strict=True))) for name, runs in taken.items()}


def bar(steps=3_000):
    """CPU of a step with the bar on and off."""
    num_records, dim, batch = SHAPE
    data = synthetic(num_records, dim)
    for chains in (1, 4):
        options = {"steps": steps, "num_chains": chains}
        pair = {}
        for shown in (False, True):
            state = "on" if shown else "off"
            pair[f"private bar {state}"] = private(batch, progress_bar=shown, **options)
            if chains == 1:  # SA's second run of several vectorized chains fails in NumPyro
                pair[f"numpyro SA bar {state}"] = ordinary(progress_bar=shown, **options)
        found = interleaved({k: lambda m=m: timed(m, data) for k, m in pair.items()}, rounds=3)
        micros = {name: round(1e6 * cpu / steps, 1) for name, (_, cpu) in found.items()}
        row = {"case": "bar", "chains": chains, "steps": steps, "cpu_us_per_step": micros}
        row["ratio_on_off"] = round(micros["private bar on"] / micros["private bar off"], 2)
        print(json.dumps(row), flush=True)


def repeat(steps=100):
    """Seconds of a further run of equal shapes: the fixed cost of a run."""
    num_records, dim, batch = SHAPE
    data = synthetic(num_records, dim)
    for chains, shown in ((1, False), (1, True), (4, False), (4, True)):
        options = {"steps": steps, "num_chains": chains, "progress_bar": shown}
        same = private(batch, **options)
        cases = {
            "same object": lambda m=same: timed(m, data),
            "new object": lambda o=options: timed(private(batch, **o), data),
        }
        if chains == 1:  # SA's second run of several vectorized chains fails in NumPyro
            other = ordinary(**options)
            cases["numpyro SA, same object"] = lambda m=other: timed(m, data)
        found = interleaved(cases)
        row = {"case": "repeat", "chains": chains, "bar": shown, "steps": steps}
        row["seconds_per_run"] = {name: round(wall, 4) for name, (wall, _) in found.items()}
        print(json.dumps(row), flush=True)


def plain_loop(records, steps, batch):
    """The un-private step by hand in JAX: same batch, same prior, no clip and no noise."""

    def term(w, x, y):
        return jnp.sum(y * (x @ w) - jnp.logaddexp(0.0, x @ w))

    @jax.jit
    def run(key, w, x, y):
        def step(i, w):
            rows = jax.random.randint(jax.random.fold_in(key, i), (batch,), 0, x.shape[0])
            return w + 1e-6 * (jax.grad(term)(w, x[rows], y[rows]) - w)

        return lax.fori_loop(0, steps, step, w)

    return run(jax.random.key(0), jnp.zeros(records[0].shape[1]), *map(jnp.asarray, records))


def one_memory(which):
    """Peak of this process over records and run, in MB above a run on few records."""
    num_records, dim, batch = LONG
    # Everything that is needed anyhow is imported and compiled before, on few records.
    private(16, steps=2, progress_bar=False).run(jax.random.key(0), *synthetic(2_000, dim))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    data = synthetic(num_records, dim)
    size = sum(leaf.nbytes for leaf in data) / 2**20
    records = data
    if which.endswith("on device"):
        records = jax.block_until_ready([jnp.asarray(leaf) for leaf in data])
        del data
    if which.startswith("private"):
        timed(private(batch, steps=200, progress_bar=False), records)
    else:
        plain_loop(records, 200, batch).block_until_ready()
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    row = {"peak_mb": round(after), "data_mb": round(size), "growth_mb": round(after - before)}
    print(json.dumps(row))


def memory():
    """Peak memory at a million records: a process a case, because a peak never falls."""
    for which in ("private", "plain jax", "private on device", "plain jax on device"):
        command = [sys.executable, __file__, "one_memory", which]
        line = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        row = json.loads(line.splitlines()[-1])
        row["bar_mb"] = round(1.25 * row["data_mb"] + 300)
        print(json.dumps({"case": "memory", "program": which, **row}), flush=True)


CASES = {"bar": bar, "repeat": repeat, "memory": memory}


def main(names):
    # NumPyro switches every bar off where this is set.
    os.environ.pop("CI", None)
    if names[:1] == ["one_memory"]:
        one_memory(names[1])
        return
    for name in names:
        CASES[name]()


if __name__ == "__main__":
    main(sys.argv[1:] or [*CASES])
