"""Private sums over records on four forced host devices; run by ``test_sharded.py``."""

import re

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_dp._shards import Shards
from numpyro_dp.mechanisms import PrivateSum, sharded

KEY, POSITION = jax.random.key(3), jnp.linspace(0.5, 1.5, 5)
FIXED = {"dim": 5, "clip_norm": 1.0, "noise_multiplier": 2.0, "num_steps": 10, "delta": 1e-6}
FLOAT = {**FIXED, "clip_norm": np.inf, "noise_multiplier": 0.0}


def records(size):
    return np.random.default_rng(0).normal(size=(size, 5)).astype(np.float32)


def program(mechanism, chains):
    def one(key, position, x):
        # A gather by record: what is closed over meets rows of a device.
        def vector(record):
            return record[0][0] * position[jnp.clip(record[0][0].astype(int), 0, 4)]

        return mechanism.release(key, vector, [x])

    return jax.jit(one if chains == 1 else jax.vmap(one, (0, 0, None)))


def collectives(text):
    """What travels between devices, with its type."""
    found = re.findall(r"= (\S+?)(?:\{[\d,]*\})? (all-\w+|reduce-scatter|collective-\w+)", text)
    return {f"{kind} {what}" for what, kind in found}


def check_equal(size, devices, rate, chains):
    whole = PrivateSum.create(num_records=size, sampling_rate=rate, **FIXED)
    shards = Shards(tuple(range(devices)))
    parts = PrivateSum.create(num_records=size, sampling_rate=rate, shards=shards, **FIXED)
    keys, positions = KEY, POSITION
    if chains > 1:
        keys = jax.random.split(KEY, chains)
        positions = POSITION * jnp.arange(1, chains + 1)[:, None]
    x = records(size)
    divided = shards.place(x, x.dtype)
    ways = [(program(whole, chains), x), (program(parts, chains), divided)]
    texts = [way.lower(keys, positions, rows).compile() for way, rows in ways]
    one, other = (way(keys, positions, rows) for way, rows in ways)
    np.testing.assert_array_equal(one, other)
    shape = "s32[5]" if chains == 1 else f"s32[{chains},5]"
    assert collectives(texts[1].as_text()) == {f"all-reduce {shape}"}
    assert collectives(texts[0].as_text()) == set()
    roundings = [len(re.findall(r" (?:round-nearest-even|floor)\(", t.as_text())) for t in texts]
    assert roundings == [1, 1]
    used = [text.memory_analysis().temp_size_in_bytes for text in texts]
    # Finding a device's own rows in a draw takes some, whatever the records.
    assert used[1] <= 1.1 * used[0] + (16 << 10), used
    # Going on from what is on all devices, as a further run does.
    np.testing.assert_array_equal(
        ways[1][0](keys, positions + other, divided), ways[0][0](keys, positions + one, x)
    )
    if len(divided) > size:
        # What fills up is nobody's, whatever stands there.
        loud = jax.device_put(np.asarray(divided).copy(), shards.sharding)
        loud = loud.at[size:].set(1e6)
        np.testing.assert_array_equal(program(parts, chains)(keys, positions, loud), other)
    releases, distance = (parts.event(10).events[k] for k in (0, 1))
    assert releases == whole.event(10).events[0]
    assert 0 <= distance.distance - whole.event(10).events[1].distance <= 1e-17


def check_float():
    x, shards = records(403), Shards((0, 1, 2, 3))
    mechanism = PrivateSum.create(num_records=403, sampling_rate=1.0, shards=shards, **FLOAT)
    total = mechanism.release(KEY, lambda record: record[0][0], [shards.place(x, x.dtype)])
    np.testing.assert_allclose(total, x.sum(0), rtol=1e-4)


def check_own_coins():
    """Each row's coin is right and none goes with another.

    Five sds of some 1,000 numbers: wrong by chance in 1 of 1,700, once, when the key was chosen.
    """
    size, rate, draws = 45, 0.3, 4_000
    sharded._OWN_DRAWS = 1.0
    shards = Shards((0, 1, 2, 3))
    one_hot = {**FLOAT, "dim": size}
    mechanism = PrivateSum.create(num_records=size, sampling_rate=rate, shards=shards, **one_hot)
    private = PrivateSum.create(num_records=size, sampling_rate=rate, shards=shards, **FIXED)
    assert private.tv_per_step >= 4 * private.sampler.tv > 0
    assert private.sampler.num_records == 12
    rows = shards.place(np.arange(size, dtype=np.int32), np.dtype(np.int32))

    def batch(key):
        return rate * mechanism.release(key, lambda r: jnp.arange(size) == r[0][0], [rows])

    seen = np.asarray(jax.jit(jax.vmap(batch))(jax.random.split(KEY, draws)))
    coins = np.rint(seen)
    np.testing.assert_allclose(seen, coins, atol=1e-5)
    assert set(np.unique(coins)) == {0.0, 1.0}
    sd = np.sqrt(rate * (1 - rate) / draws)
    assert np.max(np.abs(coins.mean(0) - rate)) < 5 * sd
    together = np.corrcoef(coins.T) - np.eye(size)
    assert np.max(np.abs(together)) < 5 / np.sqrt(draws)


if __name__ == "__main__":
    for size, devices, rate, chains in (
        (404, 2, 1.0, 1),
        (403, 4, 1.0, 3),
        (40_003, 4, 0.01, 1),
        (4_000, 2, 0.1, 3),
    ):
        check_equal(size, devices, rate, chains)
    check_float()
    check_own_coins()
    print("equal")
