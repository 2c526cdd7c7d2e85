"""Poisson draws: exact laws of the tables, of the room, and of drawn batches."""

import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from jax import random
from scipy.stats import chi2

from numpyro_dp.mechanisms import word_pairs
from numpyro_dp.mechanisms.subsample import PoissonSampler, gap_tables
from tests.mechanisms.laws import stored_weights

ADULT = (32_561, 256 / 32_561)


def draw_many(sampler: PoissonSampler, draws: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    keys = random.split(random.key(seed), draws)
    one = jax.jit(jax.vmap(lambda key: sampler.draw(*word_pairs(key, sampler.words))))
    rows, chosen = one(keys)
    return np.asarray(rows), np.asarray(chosen)


def distance(weights: list[int], law: list[Fraction]) -> Fraction:
    pairs = zip(weights, law, strict=True)
    return sum((abs(Fraction(w, 1 << 63) - p) for w, p in pairs), Fraction(0)) / 2


def geometric_law(ratio: Fraction, columns: int) -> list[Fraction]:
    """P(G = g) below the last column, which stands for all that is left; 400-bit truncations."""
    one, left, law = 1 << 400, 1 << 400, []
    fixed = int(ratio * one)
    for _ in range(columns - 1):
        following = left * fixed >> 400
        law.append(Fraction(left - following, one))
        left = following
    return [*law, Fraction(left, one)]


@pytest.mark.parametrize("rate", [ADULT[1], 0.001024, 0.5, 0.999, 1 - 2.0**-53])
def test_stored_gaps_are_as_close_to_geometric_as_claimed(rate):
    tables = gap_tables(rate)
    assert tables.low is None
    weights = stored_weights(tables.high)
    off = distance(weights, geometric_law(1 - Fraction(rate), len(weights)))
    assert off <= Fraction(tables.tv)
    assert tables.tv <= 2.0**-51
    assert tables.skip == len(weights) - 1


@pytest.mark.parametrize("rate", [1e-5, 1024 / 1e8, 1e-9])
def test_stored_digits_of_long_gaps_are_as_close_as_claimed(rate):
    tables = gap_tables(rate)
    low, high = stored_weights(tables.low), stored_weights(tables.high)
    *low_law, rest = geometric_law(1 - Fraction(rate), len(low) + 1)
    low_law = [p / (1 - rest) for p in low_law]
    off = distance(low, low_law) + distance(high, geometric_law(rest, len(high)))
    assert off <= Fraction(tables.tv)
    assert tables.tv <= 2.0**-50
    assert tables.skip == (len(high) - 1) * len(low)


@pytest.mark.parametrize(
    ("records", "batch"), [(32_561, 256), (10**6, 1024), (1000, 999), (10**8, 1024), (50, 1e-3)]
)
def test_room_overflows_no_more_often_than_promised(records, batch):
    rate, overflow = batch / records, 1e-12
    sampler = PoissonSampler.create(records, rate, overflow)
    tables = gap_tables(rate)
    skips = records // tables.skip
    with mpmath.workdps(30):

        def tail(trials, probability, above):
            """P(Binomial > above), exactly, as an incomplete beta function."""
            if above >= trials:
                return mpmath.mpf(0)
            return mpmath.betainc(above + 1, trials - above, 0, probability, regularized=True)

        best = min(
            tail(records, mpmath.mpf(rate), sampler.room - extra - 1)
            + (
                tail(sampler.room, mpmath.mpf(tables.skip_probability), extra)
                if extra < skips
                else 0
            )
            for extra in range(min(skips, 8) + 1)
        )
    assert best <= overflow
    assert sampler.tv >= overflow
    assert sampler.room <= batch + 8 * math.sqrt(batch) + 20


def test_a_public_bound_sizes_the_room():
    assert (
        PoissonSampler.create(1000, 0.1, 1e-12, max_records=2000).room
        == PoissonSampler.create(2000, 0.1, 1e-12).room
    )


@pytest.mark.parametrize(
    ("records", "rate", "words"), [(1 << 30, 0.5, "2\\^30"), (10, 2.0**-61, "2\\^-60")]
)
def test_impossible_batches_are_refused(records, rate, words):
    with pytest.raises(ValueError, match=words):
        PoissonSampler.create(records, rate, 1e-12)


# Each |z| < 6 and each chi-square at 1e-6, seeds fixed.
@pytest.mark.parametrize(
    ("records", "batch", "draws"),
    [
        (32_561, 256, 1000),
        (10**6, 1024, 300),
        (10**8, 1024, 300),
        (1000, 999, 1000),
        (60, 5, 4000),
        # Two digits of 2^14, three skips in four: the running sum saturates.
        ((1 << 30) - 2, 1.2, 3000),
    ],
)
def test_batches_are_independent_coins(records, batch, draws):
    rate = batch / records
    sampler = PoissonSampler.create(records, rate, 1e-12)
    rows, chosen = draw_many(sampler, draws, seed=7)
    assert rows.dtype == np.int32
    assert rows.min() >= 0
    assert rows.max() < records
    for batch_rows, mask in zip(rows, chosen, strict=True):
        assert np.all(np.diff(batch_rows[mask]) > 0)
    sizes = chosen.sum(1)
    mean, variance = records * rate, records * rate * (1 - rate)
    assert abs(sizes.mean() - mean) < 6 * math.sqrt(variance / draws)
    spread = variance * math.sqrt(2 / draws + 1 / (draws * variance))
    assert abs(sizes.var() - variance) < 6 * spread
    picked = rows[chosen].astype(np.int64)
    counts = np.bincount(picked * 20 // records, minlength=20)
    edges = [-(-i * records // 20) for i in range(21)]
    share = np.diff(edges)
    expected = draws * rate * share
    statistic = ((counts - expected) ** 2 / (expected * max(1 - rate, 1e-9))).sum()
    if rate < 0.5:
        assert chi2.sf(statistic, 20) > 1e-6


def test_every_record_has_the_same_rate_and_pairs_are_independent():
    # 60 + 1770 binomial counts, |z| < 6: false alarm below 4e-6.
    records, rate, draws = 60, 5 / 60, 20_000
    rows, chosen = draw_many(PoissonSampler.create(records, rate, 1e-12), draws, seed=8)
    present = np.zeros((draws, records), bool)
    present[np.nonzero(chosen)[0], rows[chosen]] = True
    deviation = np.sqrt(draws * rate * (1 - rate))
    assert np.abs(present.sum(0) - draws * rate).max() < 6 * deviation
    together = present.T.astype(np.float64) @ present
    pairs = together[np.triu_indices(records, 1)]
    joint = rate**2
    assert np.abs(pairs - draws * joint).max() < 6 * np.sqrt(draws * joint * (1 - joint))


def test_rates_next_to_one_leave_out_the_right_number():
    # One z test at 6 sd.
    rows, chosen = draw_many(PoissonSampler.create(1000, 0.999, 1e-12), 2000, seed=9)
    left_out = 1000 - chosen.sum(1)
    assert abs(left_out.mean() - 1.0) < 6 * math.sqrt(0.999 / 2000)
    assert rows.max() == 999


def test_an_overflowing_batch_keeps_its_first_rows():
    sampler = PoissonSampler.create(1000, 0.5, 1e-12)
    tight = PoissonSampler(1000, 0.5, room=20, overflow=1.0)
    first, second = word_pairs(random.key(0), sampler.words)
    rows, chosen = sampler.draw(first, second)
    kept, kept_chosen = tight.draw(first[:20], second[:20])
    np.testing.assert_array_equal(kept, rows[:20])
    np.testing.assert_array_equal(kept_chosen, chosen[:20])


def test_work_does_not_grow_with_the_number_of_records():
    rooms = [PoissonSampler.create(n, 1000 / n, 1e-12).room for n in (10**5, 10**7, 10**9)]
    assert max(rooms) < 1.02 * min(rooms)


def test_padding_is_never_chosen():
    sampler = PoissonSampler.create(50, 0.02, 1e-12)
    nothing = jnp.full(sampler.words, 0xFFFFFFFF, jnp.uint32)
    rows, chosen = sampler.draw(nothing, nothing)
    assert not np.any(np.asarray(rows)[~np.asarray(chosen)])
    assert np.asarray(chosen).sum() <= 50
