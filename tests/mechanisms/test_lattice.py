"""Noise tables against the exact law, and the choice of the lattice."""

import hashlib
import math
from dataclasses import replace
from fractions import Fraction

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from jax import random
from scipy.stats import chi2, norm

from numpyro_dp.mechanisms import alias, word_pairs
from numpyro_dp.mechanisms.lattice import Lattice, choose_lattice, floor_noise, noise_table
from tests.mechanisms.laws import random_words, stored_weights

STANDARD = choose_lattice(
    dim=109, clip_norm=1.0, noise_multiplier=1.0, expected_batch=256.0, max_rows=400
)


def plan(dim=109, noise_multiplier=1.0, expected_batch=256.0, max_rows=400, **more) -> Lattice:
    return choose_lattice(
        dim=dim,
        clip_norm=1.0,
        noise_multiplier=noise_multiplier,
        expected_batch=expected_batch,
        max_rows=max_rows,
        **more,
    )


def total_variation(weights: list[int], sd: int) -> float:
    """Distance of ``weights``/2^63 to the law of floor|Z|, Z ~ N(0, sd²), with 110 bits."""
    with mpmath.workprec(110):
        root = sd * mpmath.sqrt(2)
        tails = [mpmath.erfc(k / root) for k in range(len(weights) + 1)]
        off = mpmath.fsum(
            abs(mpmath.mpf(w) / 2**63 - (tails[k] - tails[k + 1])) for k, w in enumerate(weights)
        )
        return float((off + tails[-1]) / 2)


@pytest.mark.parametrize(
    ("sd", "span"),
    [
        (32, 8),
        (32, 16),
        (128, 8),
        pytest.param(1024, 16, marks=pytest.mark.slow),
        pytest.param(4096, 8, marks=pytest.mark.slow),
        pytest.param(512, 16, marks=pytest.mark.slow),
        pytest.param(2048, 8, marks=pytest.mark.slow),
    ],
)
def test_stored_words_are_as_close_to_the_normal_law_as_claimed(sd, span):
    weights = stored_weights(noise_table(sd, span))
    assert sum(weights) == 1 << 63
    distance = total_variation(weights, sd)
    claimed = replace(STANDARD, sd=sd, span=span, coarse=0).tv
    assert distance <= claimed
    assert distance > claimed / 100  # a claim of nothing would be a broken measurement


def test_table_error_would_show():
    weights = stored_weights(noise_table(32, 16))
    weights[3] += 1 << 14
    weights[4] -= 1 << 14
    assert total_variation(weights, 32) > replace(STANDARD, sd=32, span=16).tv


def test_table_bits_are_the_same_on_every_platform():
    table = noise_table(4096, 8)
    digest = hashlib.sha256(table.limit.astype("<u4").tobytes() + table.packed.tobytes())
    assert digest.hexdigest()[:16] == "a9916d56e1d11d7a"


def test_tables_cannot_be_written():
    with pytest.raises(ValueError, match="read-only"):
        noise_table(32, 8).limit[0] = 0


@pytest.mark.parametrize("weights", [[1 << 62, 1 << 62, 0], [1 << 62] * 4, [-1, (1 << 63) + 1]])
def test_alias_tables_refuse_weights_that_are_no_law(weights):
    with pytest.raises(ValueError, match="2\\*\\*63"):
        alias.build(weights)


def test_draws_follow_the_stored_thresholds_to_the_last_bit():
    weights = [5, (1 << 62) - 3, 0, (1 << 62) - 2]
    table = alias.build(weights)
    assert stored_weights(table) == weights
    low_bits, first, second, expected = 31 - table.bits, [], [], []
    for i in range(4):
        packed, limit = int(table.packed[i]), int(table.limit[i])
        keep = limit << low_bits | packed & ((1 << low_bits) - 1)
        for fraction in {max(keep - 1, 0), keep, min(keep + 1, (1 << 61) - 1), 0, (1 << 61) - 1}:
            first.append(i << low_bits | fraction & ((1 << low_bits) - 1))
            second.append(fraction >> low_bits)
            expected.append(i if fraction < keep else packed >> low_bits)
    drawn = alias.draw(table, jnp.array(first, jnp.uint32), jnp.array(second, jnp.uint32))
    np.testing.assert_array_equal(drawn, expected)


def chi_square(counts: np.ndarray, sd: int, total: int) -> float:
    """p-value of counts of floor(Z) - lowest against N(0, sd²), bins of 40 or more expected."""
    reach = len(counts) // 2
    edges = norm.cdf(np.arange(-reach, reach + 1) / sd)
    expected = total * np.diff(edges)
    core = np.flatnonzero(expected >= 40)
    low, high = core[0], core[-1] + 1
    observed = np.concatenate([[counts[:low].sum()], counts[low:high], [counts[high:].sum()]])
    wanted = np.concatenate([[expected[:low].sum()], expected[low:high], [expected[high:].sum()]])
    statistic = ((observed - wanted) ** 2 / wanted).sum()
    return chi2.sf(statistic, len(observed) - 1)


def histogram(lattice: Lattice, draws: int, batches: int, seed: int) -> np.ndarray:
    @jax.jit
    def count(key):
        noise = floor_noise(lattice, *word_pairs(key, lattice.draws * draws))
        return jnp.bincount(noise + reach, length=2 * reach)

    reach = lattice.span * lattice.sd
    keys = random.split(random.key(seed), batches)
    return sum(np.asarray(count(key), np.int64) for key in keys)


# Each of these is one test at 1e-6 with a fixed seed.
@pytest.mark.parametrize(("sd", "span"), [(4096, 8), (1024, 16), (32, 8)])
def test_noise_has_the_floored_normal_law(sd, span):
    lattice = replace(STANDARD, sd=sd, span=span)
    counts = histogram(lattice, 1 << 20, 2, seed=5)
    assert chi_square(counts, sd, 2 << 20) > 1e-6


def test_the_chi_square_test_notices_a_wrong_scale():
    lattice = replace(STANDARD, sd=1024, span=16)
    counts = histogram(lattice, 1 << 20, 2, seed=5)
    assert chi_square(counts, 1000, 2 << 20) < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize(("sd", "span"), [(4096, 8), (1024, 16)])
def test_noise_has_the_floored_normal_law_in_a_hundred_million_draws(sd, span):
    counts = histogram(replace(STANDARD, sd=sd, span=span), 1 << 22, 24, seed=6)
    assert chi_square(counts, sd, 24 << 22) > 1e-6


def test_two_draws_are_one_coarse_and_one_fine():
    two = replace(STANDARD, coarse=16)
    first, second = map(jnp.asarray, random_words(0, 10))
    fine = floor_noise(STANDARD, first, second)
    np.testing.assert_array_equal(floor_noise(two, first, second), 16 * fine[:5] + fine[5:])


@pytest.mark.parametrize(("sd", "coarse"), [(4, 4), (4, 3), (6, 4)])
def test_two_draws_act_as_one_normal_within_the_claimed_distance(sd, coarse):
    reach = 10 * sd
    k = np.arange(-reach, reach + 1)
    with mpmath.workdps(40):
        one = np.array([mpmath.ncdf((i + 1) / mpmath.mpf(sd)) for i in k])
        one = one - np.array([mpmath.ncdf(i / mpmath.mpf(sd)) for i in k])
        spread = np.zeros(coarse * 2 * reach + 1, object)
        spread[::coarse] = one
        law = np.convolve(spread, one)
        # f + Z1 - aU + Z2 with U uniform: the ideal that the two draws stand for.
        sigma = sd * mpmath.sqrt(coarse**2 + 1)
        at = np.arange(len(law) + 1) - (coarse + 1) * reach

        def smoothed(x):
            z = x / sigma
            return x * mpmath.ncdf(z) + sigma * mpmath.npdf(z)

        grid = [mpmath.mpf(int(x)) for x in at]
        primitive = np.array([(smoothed(x + coarse) - smoothed(x)) / coarse for x in grid])
        ideal = np.diff(primitive)
        distance = float(sum(abs(a - b) for a, b in zip(law, ideal, strict=True)) / 2)
    claimed = replace(STANDARD, sd=sd, coarse=coarse).tv - 2 * 2.0**-49
    assert distance <= claimed
    assert distance > claimed / 10


def test_noise_is_centred_by_the_mean_of_the_plan():
    # |z| < 6 with a fixed seed.
    for lattice in (STANDARD, replace(STANDARD, coarse=16)):
        noise = floor_noise(lattice, *map(jnp.asarray, random_words(3, lattice.draws << 18)))
        noise = np.asarray(noise, np.float64)
        assert abs(noise.mean() - lattice.mean) < 6 * noise.std() / math.sqrt(len(noise))
        assert noise.std() == pytest.approx(4096 * math.hypot(1, lattice.coarse), rel=0.01)


@settings(max_examples=200, deadline=None)
@given(
    noise_multiplier=st.floats(1e-3, 300),
    dim=st.integers(1, 100_000),
    batch=st.floats(0.1, 1e5),
    precise=st.booleans(),
)
def test_no_plan_promises_more_noise_than_it_draws(noise_multiplier, dim, batch, precise):
    lattice = plan(dim, noise_multiplier, batch, max_rows=2_000, precise=precise)
    drawn = Fraction(lattice.sd) ** 2 * (1 + lattice.coarse**2)
    assert drawn >= Fraction(noise_multiplier) ** 2 * lattice.squared_bound
    assert lattice.squared_bound < 46_341**2
    assert lattice.coarse <= lattice.sd // 8
    assert 0 < lattice.cap < math.sqrt(lattice.squared_bound)
    assert lattice.exact_rows * math.sqrt(lattice.squared_bound) < 1 << 24 or (
        lattice.exact_rows * lattice.radius < 1 << 24
    )


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        ({}, {"sd": 4096, "coarse": 0, "squared_bound": (1 << 24) - 1, "dither": False}),
        ({"expected_batch": 257.0}, {"dither": True}),
        ({"precise": True}, {"sd": 1024, "span": 16, "coarse": 0}),
        ({"noise_multiplier": 200.0}, {"sd": 4096, "coarse": 8}),
        ({"noise_multiplier": 200.0, "dim": 10**6}, {"sd": 4096, "coarse": 512}),
        ({"noise_multiplier": 0.01}, {"sd": 256, "coarse": 0}),
        ({"max_rows": 10**6, "expected_batch": 1e6}, {"sd": 2048, "coarse": 0}),
    ],
)
def test_lattice_is_chosen_by_noise_and_dimension(given_, expected):
    lattice = plan(**given_)
    assert {name: getattr(lattice, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("noise_multiplier", "dim", "words"),
    [(300.0, 10**6, "too much noise"), (1e-4, 10, "2\\^-10"), (1.0, 10**8, "lattice")],
)
def test_impossible_lattices_are_refused(noise_multiplier, dim, words):
    with pytest.raises(ValueError, match=words):
        plan(dim, noise_multiplier)


def test_a_sum_that_may_wrap_is_announced():
    with pytest.warns(UserWarning, match="wrap"):
        plan(max_rows=1 << 29, expected_batch=2.0**29, dim=10**4)
