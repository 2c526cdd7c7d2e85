"""Mini-batches and choices: detailed balance by enumeration, laws of the draws, exact words."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import poisson

from numpyro_dp.mechanisms.accept.fixed_point import Fixed
from numpyro_dp.mechanisms.accept.minibatch import PoissonBatch, _counts, _rows, weight_bound
from numpyro_dp.mechanisms.accept.pick import PICK_MARGIN, _weights, pick
from numpyro_dp.mechanisms.accept.rules import Barker, NoisyBarker, Penalty
from numpyro_dp.mechanisms.uint64 import Word64, add, high_product, scaled
from tests.mechanisms.accept.test_accept import accept_law
from tests.mechanisms.laws import random_words, stored_weights

TEST = Barker.create(weight_bound(0.5), 1 << 23)
TESTS = {
    "barker": TEST,
    "noisy_barker": NoisyBarker.create(weight_bound(0.5), 1.0),
    "penalty": Penalty.create(weight_bound(0.5), 1.0),
}


def batch_of(num_records, mean, test=TEST):
    return PoissonBatch.create(num_records, mean, 1e-12, test.grid, test.largest)


def smooth_law(test, most):
    """P(accept) of log ratios up to ``most`` units, right to 1e-7: a noisy one is slow to sum."""
    law = accept_law(test)
    if not hasattr(test, "lattice"):
        return law
    return np.polynomial.Chebyshev.interpolate(law, 120, domain=[-most, most])


@partial(jax.jit, static_argnums=0)
def weight(batch, integer, limit):
    """Units that one kept draw adds, as the batch itself computes them."""
    draws = batch.room
    kept = batch._kept(
        jnp.full(draws, integer, jnp.int32),
        jnp.arange(draws) < 1,
        jnp.zeros(draws, jnp.uint32),
        limit,
    )
    return jnp.sum(kept)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name != "barker")) for name in TESTS]
)
def test_minibatch_transition_matrices_are_reversible(name):
    """Three records, four states, all kept counts enumerated: every flow equals its reverse.

    To a relative 1e-6, and what rounding a kept draw's weight to half a unit can make of it.
    """
    test = TESTS[name]
    batch = batch_of(3, 2.4, test)
    rng = np.random.default_rng(0)
    limit = batch.limit(0.3)
    places = 2 << 20
    # Terms on the batch's own grid, so that only the rule is judged.
    log_likelihood = np.rint(rng.uniform(-0.15, 0.15, (3, 4)) / batch.unit).astype(int)
    counts = np.array(list(itertools.product(range(13), repeat=3)))
    heaviest = int(weight(batch, limit, limit))
    law = smooth_law(test, 3 * 12 * heaviest)
    flows = np.zeros((4, 4))
    for i, j in itertools.permutations(range(4), 2):
        terms = log_likelihood[:, j] - log_likelihood[:, i]
        rates = batch.mean / 3 * (places - limit - terms) / places
        pmf = [poisson.pmf(np.arange(13), rate) for rate in rates]
        chance = np.array([np.prod([pmf[n][k[n]] for n in range(3)]) for k in counts])
        weights = np.array([int(weight(batch, t, limit)) for t in terms])
        flows[i, j] = np.sum(chance * law(counts @ weights))
    target = np.exp(log_likelihood.sum(0) * batch.unit)
    flows *= target[:, None]
    np.testing.assert_allclose(flows, flows.T, rtol=1e-6 + batch.mean * test.grid.unit)
    # The same without the weights' part of the rule would be a fifth off.
    assert np.abs(np.log(target)).max() > 0.1


def test_kept_counts_are_poisson_and_independent():
    """40,000 batches of four records: means and variances, one record speaking at a time.

    Bounds at 4.5 standard errors, false alarm 7e-6 each; all three read the same batches, so that
    independence shows as a covariance of zero.
    """
    batch = batch_of(4, 3.0)
    limit = batch.limit(0.2)
    terms = jnp.asarray([0.2, -0.2, 0.0, 0.1], jnp.float32)
    # One record at a time, in a world in which only it has a term.
    places = 2 << 20

    @jax.jit
    def kept(keys):
        def one(key, chosen):
            alone = jnp.where(jnp.arange(4) == chosen, terms, 0)
            total = batch.total(key, lambda r: r[0][0], [alone], limit)
            return (total.high << TEST.grid.low_bits) + total.low

        return jax.vmap(lambda key: jnp.stack([one(key, c) for c in (0, 1, 3)]))(keys)

    totals = np.asarray(kept(jax.random.split(jax.random.key(0), 40_000)))
    found = []
    for column, record in enumerate((0, 1, 3)):
        integer = int(np.rint(np.float32(terms[record]) / np.float32(batch.unit)))
        integer = int(np.clip(integer, -limit, limit))
        counts = totals[:, column] / int(weight(batch, integer, limit))
        rate = batch.mean / 4 * (places - limit - integer) / places
        assert abs(counts.mean() - rate) < 4.5 * np.sqrt(rate / 4e4)
        assert abs(counts.var() - rate) < 4.5 * np.sqrt((rate + 2 * rate**2) / 4e4)
        found.append(counts)
    assert abs(np.cov(found[0], found[1])[0, 1]) < 0.018


@pytest.mark.parametrize("mean", [0.7, 40.0, 300.0])
def test_the_number_of_draws_has_the_stored_law(mean):
    batch = batch_of(1_000, mean)
    table, least, tv = _counts(mean, batch.room, batch.overflow)
    law = np.array(stored_weights(table), float) / 2.0**63
    exact = poisson.pmf(least + np.arange(len(law)), mean)
    assert np.abs(law - exact).sum() / 2 < 1e-11
    assert tv < 1e-11
    assert poisson.sf(batch.room, mean) <= 1e-12


def test_rows_are_exact_products():
    first, second = random_words(3, 500)
    for n in (1, 3, 1_000, 10**9):
        rows = np.asarray(_rows(n, jnp.asarray(first), jnp.asarray(second)))
        words = [(int(a) << 32) + int(b) for a, b in zip(first, second, strict=True)]
        assert rows.tolist() == [word * n >> 64 for word in words]


def test_words_of_64_bits():
    first, second = random_words(4, 400)
    one, other = (Word64(jnp.asarray(a[:200]), jnp.asarray(a[200:])) for a in (first, second))

    def whole(word):
        return [(int(h) << 32) + int(k) for h, k in zip(word.high, word.low, strict=True)]

    a, b = whole(one), whole(other)
    assert whole(scaled(one, other)) == [x * y >> 64 for x, y in zip(a, b, strict=True)]
    assert whole(add(one, other)) == [(x + y) % 2**64 for x, y in zip(a, b, strict=True)]
    assert [int(x) for x in high_product(one.high, other.low)] == [
        int(x) * int(y) >> 32 for x, y in zip(one.high, other.low, strict=True)
    ]


@pytest.mark.parametrize("bound", [pytest.param(1e-4, marks=pytest.mark.slow), 200.0])
def test_weights_of_candidates_are_exponentials(bound):
    grid = Barker.create(bound).grid
    rng = np.random.default_rng(5)
    below = Fixed(
        jnp.asarray(np.r_[0, 0, rng.integers(0, 40_000, 60)], jnp.int32),
        jnp.asarray(rng.integers(0, grid.mask + 1, 62), jnp.int32),
    )
    words = _weights(grid, below, 2)
    got = np.asarray(words.high, float) * 2.0**-30 + np.asarray(words.low, float) * 2.0**-62
    exact = np.exp(-(np.asarray(below.high) * grid.cell + np.asarray(below.low) * grid.unit))
    # Four such errors make a ratio of probabilities under two data sets.
    assert np.max(np.abs(got / exact - 1)[exact > 1e-8]) < PICK_MARGIN / 4
    assert np.max(np.abs(got - exact)) < PICK_MARGIN / 4


def test_candidates_are_picked_as_their_weights_say():
    # 200,000 picks: standard error 0.0011, bounds at 4.5 of them, false alarm 3e-5.
    grid = Barker.create(0.01).grid
    log_ratio, prior = jnp.array([0.3, -1.0, 0.8, 0.1]), jnp.array([0.0, 0.5, -0.7, -jnp.inf])
    draw = jax.jit(jax.vmap(lambda key: pick(key, grid, grid.public(log_ratio), prior)))
    chosen = np.asarray(draw(jax.random.split(jax.random.key(1), 200_000)))
    exact = np.exp(np.asarray(log_ratio + prior))
    found = np.bincount(chosen, minlength=4) / len(chosen)
    assert found[3] == 0
    assert np.abs(found - exact / exact.sum()).max() < 0.005


def test_batches_too_small_or_large_for_the_bound_are_refused():
    with pytest.raises(ValueError, match="below twice"):
        batch_of(1_000, 10.0).limit(0.01)
    with pytest.raises(ValueError, match="too small for batch_size"):
        batch_of(1_000, 900.0).limit(1e-6)
    with pytest.raises(ValueError, match="smaller batches"):
        batch_of(10**8, 1e7)


def test_the_free_branch_of_the_paper_would_be_caught():
    """Accepting by min(1, e^l) without noise: a rejection that the neighbour can never show.

    The paper's free branch claims no cost for such a step. With log ratios 0 and −Δ the first data
    set never rejects, so δ is at least the other's chance to, at every ε.
    """
    bound = 0.1
    never, sometimes = 1 - min(1.0, np.exp(0.0)), 1 - min(1.0, np.exp(-bound))
    assert never == 0
    assert sometimes > 0.09
    honest = [1 - expit(x) for x in (0.0, -bound)]
    assert honest[1] <= np.exp(bound) * honest[0]
