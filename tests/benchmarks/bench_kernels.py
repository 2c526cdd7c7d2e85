"""CPU time of one private step of every stochastic-gradient kernel, over that of DP-SGLD.

Prints one JSON line a case: microseconds of CPU a step by slope over the number of steps (dispatch
and compilation cancel), the kernels interleaved so that a busy machine slows all of them. Fisher
scoring releases and decomposes a d × d matrix and is measured in few dimensions. Pin it to one
core for steady figures:

    taskset -c 0 python tests/benchmarks/bench_kernels.py [adult small]
"""

import json
import sys
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import lax, random

import numpyro_dp as ndp
from numpyro_dp.mechanisms import CHACHA20
from numpyro_dp.model.private_model import PrivateModel

FAMILY = {
    "DPSGLD": (ndp.DPSGLD, {}),
    "DPSGHMC": (ndp.DPSGHMC, {"friction": 50.0}),
    "DPSGNHT": (ndp.DPSGNHT, {"diffusion": 50.0}),
    "DPSGFS": (ndp.DPSGFS, {}),
}
CASES = {
    "adult": (32_561, 109, 256, ("DPSGLD", "DPSGHMC", "DPSGNHT")),
    "small": (32_561, 10, 256, ("DPSGLD", "DPSGFS")),
}
REPEATS, ROUNDS = 100, 9


def logistic(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[-1]]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def data(num_records, dim):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((num_records, dim), dtype=np.float32) / np.float32(np.sqrt(dim))
    return jnp.asarray(x), jnp.asarray((rng.random(num_records) < 0.5).astype(np.int32))


def program(kernel, steps):
    @jax.jit
    def run(state, records):
        def step(state, _):
            return kernel.sample(state, records), None

        return lax.scan(step, state, None, length=steps)[0].z["w"]

    return run


def calls_of(name, arrays, batch):
    constructor, own = FAMILY[name]
    kernel = constructor(
        logistic, step_size=1e-4, batch_size=batch, clip_norm=1.0, noise_multiplier=1.0, **own
    )
    wall = PrivateModel(logistic, arrays)
    bound = kernel.bind(wall, num_steps=10_000, relation="zero_out", delta=1e-5)
    key = random.wrap_key_data(jnp.arange(8, dtype=jnp.uint32), impl=CHACHA20)
    state = bound.start(key, {"w": jnp.zeros(arrays[0].shape[1])})
    records = wall.records(arrays)
    calls = []
    for steps in (REPEATS, 3 * REPEATS):
        call = partial(program(bound, steps), state, records)
        call().block_until_ready()
        calls.append(call)
    return calls


def slopes(calls):
    """Microseconds of CPU a step of every kernel, from its least times over interleaved rounds."""
    least = {name: [float("inf")] * 2 for name in calls}
    for _ in range(ROUNDS):
        for name, pair in calls.items():
            for i, call in enumerate(pair):
                start = time.process_time()
                call().block_until_ready()
                least[name][i] = min(least[name][i], time.process_time() - start)
    return {name: 1e6 * (b - a) / (2 * REPEATS) for name, (a, b) in least.items()}


def measure(case):
    num_records, dim, batch, names = CASES[case]
    arrays = data(num_records, dim)
    micros = slopes({name: calls_of(name, arrays, batch) for name in names})
    row = {
        "case": case,
        "num_records": num_records,
        "dim": dim,
        "batch": batch,
        "us_per_step": {name: round(value, 1) for name, value in micros.items()},
        "over_dpsgld": {n: round(value / micros["DPSGLD"], 3) for n, value in micros.items()},
    }
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    for case in sys.argv[1:] or CASES:
        measure(case)
