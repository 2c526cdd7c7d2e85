"""CPU time of one private step against the same step written by hand in floats.

Prints one JSON line a case: microseconds of CPU a step by slope over the number of steps (dispatch
and compilation cancel), the programs interleaved so that a busy machine slows all of them. The
float step is measured twice: on exactly the batch, and on as many rows as the padded Poisson batch
has. Pin it to one core for steady figures:

    taskset -c 0 python tests/benchmarks/bench_release.py [adult long wide flat]
"""

import json
import sys
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random

from numpyro_dp.mechanisms import CHACHA20, PrivateSum

CASES = {
    "adult": (32_561, 109, 256),
    "long": (1_000_000, 50, 1_024),
    "wide": (60_000, 784, 512),
}
FLAT = ((100_000, 50, 1_024), (10_000_000, 50, 1_024))
STEP_SIZE, NOISE_MULTIPLIER, CLIP_NORM = 1e-6, 1.0, 1.0
ROUNDS = 9


def record_gradient(w, record):
    x, y = record
    return jax.grad(lambda w: jnp.sum(y * (x @ w) - jnp.logaddexp(0.0, x @ w)))(w)


def float_gradient(key, w, records, batch):
    batch_key, noise_key = random.split(key)
    rows = random.randint(batch_key, (batch,), 0, records[0].shape[0])
    taken = [leaf[rows][:, None] for leaf in records]
    gradients = jax.vmap(partial(record_gradient, w))(taken)
    norms = jnp.sqrt(jnp.sum(gradients**2, axis=1, keepdims=True))
    clipped = gradients * jnp.minimum(1.0, CLIP_NORM / jnp.maximum(norms, 1e-12))
    noise = NOISE_MULTIPLIER * CLIP_NORM * random.normal(noise_key, w.shape)
    return (jnp.sum(clipped, axis=0) + noise) * (records[0].shape[0] / batch)


def program(gradient, steps):
    @jax.jit
    def run(key, w, records):
        def step(carry, _):
            key, w = carry
            key, sub = random.split(key)
            return (key, w + STEP_SIZE * (gradient(sub, w, records) - w)), None

        return lax.scan(step, (key, w), None, length=steps)[0][1]

    return run


def programs(records, batch, repeats):
    num_records, dim = records[0].shape
    private = PrivateSum.create(
        num_records=num_records,
        dim=dim,
        sampling_rate=batch / num_records,
        clip_norm=CLIP_NORM,
        noise_multiplier=NOISE_MULTIPLIER,
        num_steps=10_000,
        delta=1e-5,
    )

    def release(key, w, records):
        return private.release(key, partial(record_gradient, w), records)

    def by_hand(key, w, records):
        return float_gradient(key, w, records, batch)

    def by_hand_padded(key, w, records):
        return float_gradient(key, w, records, private.room)

    words = np.arange(8, dtype=np.uint32)
    chacha = random.wrap_key_data(jnp.asarray(words), impl=CHACHA20)
    w = jnp.zeros(dim)
    calls = {}
    for name, gradient, key in (
        ("float", by_hand, random.key(0)),
        ("float padded", by_hand_padded, random.key(0)),
        ("private threefry", release, random.key(0)),
        ("private chacha20", release, chacha),
    ):
        calls[name] = []
        for steps in (repeats, 3 * repeats):
            run = program(gradient, steps)
            call = partial(run, key, w, records)
            call().block_until_ready()
            calls[name].append(call)
    return private, calls


def slopes(calls, repeats, clock=time.process_time):
    """Microseconds a step of every program, from its least times over interleaved rounds.

    By default of CPU; an accelerator wants a clock on the wall.
    """
    least = {name: [float("inf")] * 2 for name in calls}
    for _ in range(ROUNDS):
        for name, pair in calls.items():
            for i, call in enumerate(pair):
                start = clock()
                call().block_until_ready()
                least[name][i] = min(least[name][i], clock() - start)
    return {name: 1e6 * (b - a) / (2 * repeats) for name, (a, b) in least.items()}


def synthetic(num_records, dim):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((num_records, dim), dtype=np.float32) / np.float32(np.sqrt(dim))
    return [jnp.asarray(x), jnp.asarray((rng.random(num_records) < 0.5).astype(np.float32))]


def measure(name, num_records, dim, batch):
    repeats = max(10, 100_000 // (batch * dim // 16))
    private, calls = programs(synthetic(num_records, dim), batch, repeats)
    micros = slopes(calls, repeats)
    base, padded = micros["float"], micros["float padded"]
    row = {
        "case": name,
        "num_records": num_records,
        "dim": dim,
        "batch": batch,
        "room": private.room,
        "dither": private.lattice.dither,
        "us_per_step": {key: round(value, 1) for key, value in micros.items()},
        "ratio_threefry": round(micros["private threefry"] / base, 2),
        "ratio_chacha20": round(micros["private chacha20"] / base, 2),
        "ratio_threefry_padded": round(micros["private threefry"] / padded, 2),
        "ratio_chacha20_padded": round(micros["private chacha20"] / padded, 2),
    }
    print(json.dumps(row), flush=True)
    return micros


def main(names):
    for name in names:
        if name != "flat":
            measure(name, *CASES[name])
            continue
        few, many = (measure(f"flat n={shape[0]}", *shape) for shape in FLAT)
        growth = {key: round(many[key] / few[key], 2) for key in few}
        print(json.dumps({"case": "flat, growth from n=1e5 to n=1e7", "ratio": growth}))


if __name__ == "__main__":
    main(sys.argv[1:] or [*CASES, "flat"])
