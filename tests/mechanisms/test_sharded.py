"""Shares of a batch on several devices, in one process: devices that one program stands for.

That real ones do the same is tried in ``tests/scale``.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

from numpyro_dp._shards import Shards, rows_held
from numpyro_dp.accounting.events import TotalVariation
from numpyro_dp.mechanisms import PrivateSum, sharded
from numpyro_dp.mechanisms.accept.fixed_point import FixedPointGrid
from numpyro_dp.mechanisms.accept.log_ratio import FullBatch
from numpyro_dp.mechanisms.accept.minibatch import PoissonBatch
from numpyro_dp.mechanisms.random import word_pairs
from numpyro_dp.mechanisms.subsample import PoissonSampler

FIXED = {"clip_norm": 1.0, "noise_multiplier": 2.0, "num_steps": 10, "delta": 1e-6}
FLOAT = {**FIXED, "clip_norm": np.inf, "noise_multiplier": 0.0}


class Pretended(Shards):
    """Rows of all devices on one, computed in the same parts."""

    def parts(self, part, rows):
        own = jax.tree.map(lambda leaf: leaf.reshape(len(self), -1, *leaf.shape[1:]), rows)
        return jax.vmap(part)(own, jnp.arange(len(self), dtype=jnp.int32))


FOUR = Pretended((0, 1, 2, 3))


def padded(x, loud=1e6):
    """With rows behind it that no result may depend on."""
    missing = -len(x) % len(FOUR)
    return jnp.concatenate([x, jnp.full((missing, *x.shape[1:]), loud, x.dtype)])


def test_parts_of_the_rows_are_all_of_them():
    for size in (4, 5, 7, 41, 43, 44):
        firsts, held = zip(*(rows_held(FOUR, jnp.int32(k), size) for k in range(4)), strict=True)
        rows = [
            row
            for first, count in zip(firsts, held, strict=True)
            for row in first + np.arange(count)
        ]
        assert rows == list(range(size))


def test_shares_of_a_draw_are_the_draw():
    sampler = PoissonSampler.create(1_003, 0.05, 1e-15, parts=4)
    assert 0 < sampler.part_room < sampler.room
    alone = PoissonSampler.create(1_003, 0.05, 1e-15)
    assert sampler.tv - alone.tv == pytest.approx(1e-15 * 2.0**-10, rel=1e-3)
    for seed in range(50):
        rows, chosen = sampler.draw(*word_pairs(random.key(seed), sampler.words))
        found = []
        for number in range(4):
            first, held = rows_held(FOUR, jnp.int32(number), 1_003)
            own, mask = sampler.part(rows, chosen, first, held)
            assert own.shape == (sampler.part_room,)
            found += list(np.asarray(own + first)[np.asarray(mask)])
        assert found == list(np.asarray(rows)[np.asarray(chosen)])


def test_a_share_that_does_not_fit_loses_rows_and_repeats_none():
    sampler = PoissonSampler(40, 0.5, 40, 1e-3, parts=4, part_room=3)
    rows, chosen = jnp.arange(40, dtype=jnp.int32), jnp.ones(40, bool)
    own, mask = sampler.part(rows, chosen, jnp.int32(10), jnp.int32(10))
    assert list(np.asarray(own)) == [0, 1, 2]
    assert np.asarray(mask).all()


@pytest.mark.parametrize("rate", [1.0, 0.2])
def test_a_sum_over_devices_is_that_of_one(rate):
    x = random.normal(random.key(1), (203, 3))
    given = {"num_records": 203, "dim": 3, "sampling_rate": rate, **FIXED}
    one, four = PrivateSum.create(**given), PrivateSum.create(shards=FOUR, **given)
    for seed in range(5):
        key = random.key(seed)
        sums = [
            mechanism.release(key, lambda record: record[0][0], [rows])
            for mechanism, rows in ((one, x), (four, padded(x)))
        ]
        np.testing.assert_array_equal(*sums)
    assert four.event(7).events[0] == one.event(7).events[0]
    assert isinstance(four.event(7).events[1], TotalVariation)


def test_large_batches_are_drawn_by_each_device(monkeypatch):
    """Coins of rate 0.3, of which none goes with another.

    Five sds of some 250 numbers: wrong by chance in 1 of 7,000, once, when the key was chosen.
    """
    monkeypatch.setattr(sharded, "_OWN_DRAWS", 1.0)
    size, rate, draws = 22, 0.3, 3_000
    given = {"num_records": size, "sampling_rate": rate, "shards": FOUR}
    private = PrivateSum.create(dim=2, **given, **FIXED)
    assert private.sampler.num_records == 6
    assert private.tv_per_step == private.dim * private.lattice.tv + 4 * private.sampler.tv
    mechanism = PrivateSum.create(dim=size, **given, **FLOAT)

    def batch(key):
        records = [padded(jnp.arange(size), loud=0)]
        return rate * mechanism.release(key, lambda r: jnp.arange(size) == r[0][0], records)

    seen = np.asarray(jax.jit(jax.vmap(batch))(random.split(random.key(3), draws)))
    coins = np.rint(seen)
    np.testing.assert_allclose(seen, coins, atol=1e-5)
    assert set(np.unique(coins)) == {0.0, 1.0}
    assert np.max(np.abs(coins.mean(0) - rate)) < 5 * np.sqrt(rate * (1 - rate) / draws)
    assert np.max(np.abs(np.corrcoef(coins.T) - np.eye(size))) < 5 / np.sqrt(draws)


def test_the_number_of_records_stays_private():
    with pytest.raises(ValueError, match="private number cannot be divided"):
        PrivateSum.create(
            num_records=9, dim=1, sampling_rate=0.5, max_records=20, shards=FOUR, **FIXED
        )


def test_log_ratios_of_all_records():
    grid, x = FixedPointGrid(2.0**-12, 4), random.normal(random.key(1), (203,))
    one, four = FullBatch(grid, 1_000), FullBatch(grid, 1_000, num_records=203, shards=FOUR)

    def term(record):
        return record[0][0] / 8

    totals = [one.total(None, term, [x], 900), four.total(None, term, [padded(x)], 900)]
    np.testing.assert_array_equal(*totals)
    values = four.values(term, [padded(x)])
    np.testing.assert_array_equal(values[:203], one.values(term, [x]))
    moved = [
        batch.change(lambda record, here: (term(record) - here, term(record)), here, [rows], 900)
        for batch, here, rows in ((one, 0 * x, x), (four, padded(0 * x), padded(x)))
    ]
    np.testing.assert_array_equal(moved[0][0], moved[1][0])
    several = [
        batch.candidate_totals(lambda r: jnp.stack([term(r), 2 * term(r)]), [rows], 900)
        for batch, rows in ((one, x), (four, padded(x)))
    ]
    np.testing.assert_array_equal(*several)


def test_log_ratios_of_a_mini_batch():
    grid, x = FixedPointGrid(2.0**-12, 4), random.normal(random.key(1), (203,))
    one, four = (
        PoissonBatch.create(203, 60.0, 1e-12, grid, 10_000, shards) for shards in (None, FOUR)
    )
    assert one.tv == four.tv
    limit = one.limit(0.05)
    for seed in range(5):
        totals = [
            batch.total(random.key(seed), lambda record: record[0][0] / 100, [rows], limit)
            for batch, rows in ((one, x), (four, padded(x)))
        ]
        np.testing.assert_array_equal(*totals)
