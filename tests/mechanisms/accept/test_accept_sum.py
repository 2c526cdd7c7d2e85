"""Exact clipped sums: one record's influence, broken records, candidates, one rounding."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_dp.mechanisms.accept.fixed_point import FixedPointGrid
from numpyro_dp.mechanisms.accept.log_ratio import (
    FullBatch,
    UnclippedBatch,
    as_integers,
    rows_in_block,
)

GRID = FixedPointGrid(1e-4, 4)
BATCH = FullBatch(GRID, 1_000)


def integer(total, grid=GRID):
    return (np.asarray(total.high, np.int64) << grid.low_bits) + np.asarray(total.low, np.int64)


def summed(values, limit=1_000, batch=BATCH):
    value = jnp.asarray(values, jnp.float32)
    return integer(batch.total(jax.random.key(0), lambda r: r[0][0], [value], limit), batch.grid)


@pytest.mark.parametrize("n", [1, 2, 3, 100, 20_001])
def test_the_sum_is_that_of_nearest_integers(n):
    values = np.random.default_rng(n).normal(0, 0.06, n).astype(np.float32)
    exact = np.clip(np.rint(values / np.float32(1e-4)), -1_000, 1_000).astype(np.int64).sum()
    assert summed(values) == exact
    one_by_one = FullBatch(GRID, 1_000, one_by_one=True)
    assert n > 100 or summed(values, batch=one_by_one) == exact


def test_one_record_moves_the_sum_by_at_most_the_limit():
    values = np.random.default_rng(0).normal(0, 0.06, 50).astype(np.float32)
    rest = summed(np.where(np.arange(50) == 7, 0, values), limit=300)
    for wild in (1e9, -1e9, 0.0299, 0.0301, -0.03):
        values[7] = wild
        moved = summed(values, limit=300) - rest
        assert abs(moved) <= 300
        assert abs(wild) < 0.02999 or abs(moved) >= 299


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_broken_records_have_no_say(broken):
    values = np.full(10, 0.01, np.float32)
    values[3] = broken
    assert summed(values) == 900


def test_integers_stay_within_a_limit_that_changes():
    terms = jnp.asarray([np.nan, 1e30, -1e30, 0.5], jnp.float32)
    found = jax.jit(lambda limit: as_integers(terms, 1e-3, limit))(jnp.int32(77))
    np.testing.assert_array_equal(found, [0, 77, -77, 77])


def test_a_record_ranges_over_candidates_by_at_most_the_limit():
    rng = np.random.default_rng(2)
    values = jnp.asarray(rng.normal(0, 0.5, (30, 4)), jnp.float32)

    def totals(values):
        return integer(BATCH.candidate_totals(lambda r: r[0][0], [values], 400))

    calm = totals(values.at[5].set(0.0))
    for wild in ([1e9, 0, 0, 0], [0.01, 0.02, 0.0, -0.01], [-1e9, 1e9, 3.0, 0.0]):
        moved = totals(values.at[5].set(jnp.asarray(wild))) - calm
        assert moved.max() - moved.min() <= 400
    kept = totals(values.at[5].set(jnp.asarray([0.01, 0.02, 0.0, -0.01]))) - calm
    np.testing.assert_array_equal(kept - kept[2], [100, 200, 0, -100])
    broken = totals(values.at[5].set(jnp.asarray([0.1, np.nan, 0.0, -np.inf])))
    np.testing.assert_array_equal(broken, calm)


def test_one_rounding_in_the_compiled_sum():
    """Rounded once for each use, high and low limbs of a record could belong to two integers."""
    add = jax.jit(lambda x: BATCH.total(jax.random.key(0), lambda r: jnp.sin(r[0][0]), [x], 900))
    text = add.lower(jnp.ones(5_000)).compile().as_text()
    assert len(re.findall(r" round-nearest-even\(", text)) == 1


@pytest.mark.parametrize(("n", "one_by_one"), [(1, False), (30, True), (20_001, False)])
def test_what_was_seen_before_gives_the_same_sum(n, one_by_one):
    """The sum of changes, one end of them remembered, is the sum of the changes."""
    batch = FullBatch(GRID, 1_000, one_by_one=one_by_one)
    x = jnp.asarray(np.random.default_rng(n).normal(0, 0.06, n), jnp.float32)
    here, there = (lambda r: jnp.sin(r[0][0])), (lambda r: jnp.cos(3 * r[0][0]))

    def change(record, before):
        return there(record) - before, there(record)

    remembered = batch.values(here, [x])
    total, after = batch.change(change, remembered, [x], 700)
    whole = batch.total(jax.random.key(0), lambda r: there(r) - here(r), [x], 700)
    assert integer(total) == integer(whole)
    np.testing.assert_allclose(after, batch.values(there, [x]), rtol=1e-6)


def test_records_in_blocks_are_those_at_once(monkeypatch):
    x = jnp.asarray(np.random.default_rng(0).normal(0, 0.06, (20_001, 2)), jnp.float32)
    at_once = BATCH.values(lambda r: (jnp.sin(r[0][0]), r[0][0, 0] > 0), [x])
    monkeypatch.setattr("numpyro_dp.mechanisms.accept.log_ratio._AT_ONCE", 0)
    in_blocks = BATCH.values(lambda r: (jnp.sin(r[0][0]), r[0][0, 0] > 0), [x])
    jax.tree.map(np.testing.assert_array_equal, at_once, in_blocks)


@pytest.mark.parametrize("wild", [np.nan, np.inf, -np.inf, 1e30, -1e30])
def test_nothing_remembered_of_a_record_moves_the_sum_by_more_than_the_limit(wild):
    x = jnp.asarray(np.random.default_rng(0).normal(0, 0.06, 50), jnp.float32)

    def changed(here):
        change = BATCH.change(lambda r, before: (r[0][0] - before, r[0][0]), here, [x], 300)
        return integer(change[0])

    here = BATCH.values(lambda r: r[0][0] - 0.01, [x])
    null = here.at[7].set(x[7])
    assert abs(changed(here.at[7].set(wild)) - changed(null)) <= 300


def test_one_rounding_in_the_compiled_sum_of_changes():
    def change(record, before):
        there = jnp.sin(record[0][0])
        return there - before, there

    add = jax.jit(lambda here, x: BATCH.change(change, here, [x], 900))
    x = jnp.ones(5_000)
    text = add.lower(BATCH.values(lambda r: r[0][0], [x]), x).compile().as_text()
    assert len(re.findall(r" round-nearest-even\(", text)) == 1


def test_without_a_bound_nothing_is_cut():
    batch = UnclippedBatch(FixedPointGrid(2.0**-24, 14))
    values = jnp.asarray([3.0, -1.5, 100.0])
    total = batch.total(jax.random.key(0), lambda r: r[0][0], [values], 1)
    assert abs(integer(total, batch.grid) * 2.0**-24 - 101.5) < 1e-4


def test_blocks_cannot_wrap():
    for largest, low_bits in ((1, 18), (1 << 20, 10), (1 << 17, 14)):
        for n in (1, 8_192, 1_000_000):
            blocks, size = rows_in_block(n, largest, low_bits)
            assert blocks * size >= n
            assert size * largest < 1 << 31
            assert blocks >= 2
            assert blocks << low_bits < 1 << 31
    with pytest.raises(ValueError, match="mini-batches"):
        rows_in_block(1 << 29, 1 << 20, 20)
