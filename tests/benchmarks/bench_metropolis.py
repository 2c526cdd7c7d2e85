"""CPU time of one private Metropolis step against the same step written by hand in floats.

Prints one JSON line a case: microseconds of CPU a step by slope over the number of steps (dispatch
and compilation cancel), the programs interleaved so that a busy machine slows all of them. ``full``
reads every record, beside one vectorised pass over the log likelihood; ``flat`` draws mini-batches
of as many records from 10⁵, 10⁶ and 10⁷, beside the float step on the same number of draws. Pin it
to one core for steady figures:

    taskset -c 0 python -m tests.benchmarks.bench_metropolis [full flat]
"""

import json
import math
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random

import numpyro_dp as ndp
from numpyro_dp.mechanisms import CHACHA20
from numpyro_dp.model.private_model import PrivateModel
from tests.benchmarks.bench_release import slopes, synthetic
from tests.models import logistic

DIM, BATCH, STEP_SIZE = 10, 500, 0.01
LONGEST = 3 * STEP_SIZE * math.sqrt(DIM)
# λ = 4·N·b: the mean batch is five times the records times the bound.
SHARE = 0.2
FULL, FLAT = 100_000, (100_000, 1_000_000, 10_000_000)


def log_likelihood(w, x, y):
    logits = x @ w
    return jnp.sum(y * logits - jnp.logaddexp(0.0, logits))


def by_hand(key, w, records, batch):
    """One float step on a batch with replacement, or (``None``) one pass over all records."""
    move_key, batch_key, accept_key = random.split(key, 3)
    there = w + STEP_SIZE * random.normal(move_key, w.shape)
    x, y = records
    if batch is None:
        return jnp.where(log_likelihood(there, x, y) > -jnp.inf, there, w)
    rows = random.randint(batch_key, (batch,), 0, x.shape[0])
    x, y = x[rows], y[rows]
    ratio = log_likelihood(there, x, y) - log_likelihood(w, x, y)
    return jnp.where(jnp.log(random.uniform(accept_key)) < ratio, there, w)


def float_call(records, batch, steps):
    @jax.jit
    def run(key, w, records):
        def step(w, key):
            return by_hand(key, w, records, batch), None

        return lax.scan(step, w, random.split(key, steps))[0]

    return partial(run, random.key(0), jnp.zeros(DIM), records)


def private_call(records, batch, steps):
    num_records = records[0].shape[0]
    mean = BATCH if batch is None else batch
    kernel = ndp.DPFastMH(
        logistic,
        step_size=STEP_SIZE,
        lipschitz=1.0,
        max_move=LONGEST,
        batch_size=batch,
        likelihood_power=SHARE * mean / num_records / LONGEST,
    )
    wall = PrivateModel(logistic, tuple(records))
    bound = kernel.bind(wall, num_steps=10_000, relation="zero_out", delta=1e-5)

    @jax.jit
    def run(state, records):
        def step(carry, _):
            return bound.transition(*carry, records), None

        # As the loop behind numpyro_dp.MCMC does.
        carry = state, bound.record_caches(state, records)
        return lax.scan(step, carry, None, length=steps)[0][0].z["w"]

    key = random.wrap_key_data(jnp.arange(8, dtype=jnp.uint32), impl=CHACHA20)
    # As most users have them: NumPy arrays.
    leaves = wall.records(tuple(np.asarray(leaf) for leaf in records))
    return partial(run, bound.start(key, {"w": jnp.zeros(DIM)}), leaves)


def measure(num_records, batch, repeats):
    """Microseconds a step, private and by hand."""
    records = synthetic(num_records, DIM)
    calls = {}
    for name, make in (("float", float_call), ("private", private_call)):
        calls[name] = [make(records, batch, steps) for steps in (repeats, 3 * repeats)]
        for call in calls[name]:
            call().block_until_ready()
    return slopes(calls, repeats)


def report(case, num_records, micros, **more):
    row = {"case": case, "num_records": num_records, "dim": DIM, **more}
    row["us_per_step"] = {name: round(value, 1) for name, value in micros.items()}
    row["ratio"] = round(micros["private"] / micros["float"], 2)
    print(json.dumps(row), flush=True)


def main(cases):
    if "full" in cases:
        report("full", FULL, measure(FULL, None, 30))
    if "flat" in cases:
        found = [measure(num_records, BATCH, 1_000) for num_records in FLAT]
        for num_records, micros in zip(FLAT, found, strict=True):
            report("flat", num_records, micros, batch=BATCH)
        growth = {name: round(found[-1][name] / found[0][name], 2) for name in found[0]}
        print(json.dumps({"case": "flat, growth from n=1e5 to n=1e7", "ratio": growth}))


if __name__ == "__main__":
    main(sys.argv[1:] or ["full", "flat"])
