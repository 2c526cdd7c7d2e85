"""Acceptance tests: exact laws from the stored tables, detailed balance, and integer decisions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.signal import fftconvolve
from scipy.special import expit, ndtr

from numpyro_dp.mechanisms.accept import rules as accept
from numpyro_dp.mechanisms.accept.fixed_point import Fixed, FixedPointGrid
from numpyro_dp.mechanisms.accept.log_ratio import FullBatch
from numpyro_dp.mechanisms.accept.rules import (
    Barker,
    Metropolis,
    NoisyBarker,
    Penalty,
    acceptance_test,
)
from numpyro_dp.mechanisms.accept.tables import TABLE_TV, threshold_table
from numpyro_dp.mechanisms.lattice import noise_table
from tests.mechanisms.laws import stored_weights

TESTS = {
    "barker": Barker.create(0.5),
    "barker, tiny bound": Barker.create(1e-4),
    "noisy_barker": NoisyBarker.create(0.5, 1.0),
    "penalty": Penalty.create(0.5, 1.0),
    "penalty, little noise": Penalty.create(0.5, 0.3),
    "metropolis": Metropolis(*accept.fine_grid(0.5, 1 << 17)),
}

# The others say the same at other numbers, and are run with the slow tests.
FEW = ("barker", "penalty", "metropolis")
NAMES = [
    pytest.param(name, marks=[] if name in FEW else pytest.mark.slow) for name in sorted(TESTS)
]


def threshold_cdf(test):
    """P(threshold ≥ −x) for an array of integers x, exactly as the stored words realise it."""
    law = "exponential" if isinstance(test, (Penalty, Metropolis)) else "logistic"
    weights = np.array(stored_weights(threshold_table(test.grid.cell, law)), float) / 2.0**63
    edges = np.concatenate([[0], np.cumsum(weights)])
    cell = 1 << test.grid.low_bits

    def below(n):
        """P(magnitude < n), n a non-negative integer."""
        n = np.clip(n, 0, cell * (len(edges) - 1))
        whole, rest = (n // cell).astype(int), n % cell
        following = edges[np.minimum(whole + 1, len(edges) - 1)]
        return edges[whole] + (following - edges[whole]) * rest / cell

    def at_least(x):
        x = np.asarray(x)
        if law == "exponential":
            return np.where(x >= 0, 1.0, 1 - below(-x))
        # floor(L) ≥ −x: of either sign, k or −1 − k.
        return np.where(
            x >= 0, 0.5 + below(np.maximum(x, 0)) / 2, 0.5 - below(-np.minimum(x, 0)) / 2
        )

    return at_least


def accept_law(test):
    """P(accept) as a function of the integer log ratio (public terms included)."""
    at_least = threshold_cdf(test)
    if not hasattr(test, "lattice"):
        return at_least
    lattice = test.lattice
    half = np.array(stored_weights(noise_table(lattice.sd, lattice.span)), float) / 2.0**64
    half = half[: np.max(np.nonzero(half)) + 1]
    one = np.concatenate([half[::-1], half])
    first = -len(half)
    if lattice.coarse:
        spread = np.zeros(len(one) * lattice.coarse)
        spread[:: lattice.coarse] = one
        one, first = np.maximum(fftconvolve(spread, one), 0), first * lattice.coarse + first
    one = np.concatenate([one, np.zeros(-len(one) % 16)])
    values = first + np.arange(len(one))
    # A cell of the threshold is far wider than 16 units.
    one, values = one.reshape(-1, 16).sum(1), values.reshape(-1, 16).mean(1)
    shift = round(-(test.noise_sd**2) / 2 / test.grid.unit - lattice.mean)
    return lambda x: np.array([np.sum(one * at_least(values + shift + k)) for k in np.ravel(x)])


def ideal(test, nats):
    """The textbook's probability of acceptance."""
    if isinstance(test, Barker):
        return expit(nats)
    if isinstance(test, Metropolis):
        return np.minimum(1, np.exp(nats))
    s = test.noise_sd
    if isinstance(test, Penalty):
        return ndtr((nats - s * s / 2) / s) + np.exp(nats) * ndtr((-nats - s * s / 2) / s)
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    return (expit(np.add.outer(nats, s * nodes - s * s / 2)) @ weights) / weights.sum()


@pytest.mark.parametrize("name", NAMES)
def test_the_stored_tables_realise_the_textbook_rule(name):
    test = TESTS[name]
    integers = np.rint(np.array([-9.0, -3.0, -0.7, 0.0, 0.4, 2.0, 8.0]) / test.grid.unit)
    integers = integers.astype(np.int64)
    got, exact = accept_law(test)(integers), ideal(test, integers * test.grid.unit)
    np.testing.assert_allclose(got, exact, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_transition_matrices_are_reversible(name):
    """Five states, forty records: every flow equals its reverse to a relative 1e-6."""
    test = TESTS[name]
    rng = np.random.default_rng(0)
    # On the grid, so that nothing is rounded on the way and only the rule is judged.
    units = np.rint(rng.uniform(-0.4, 0.4, (40, 5)) * test.largest)
    log_likelihood = units * test.grid.unit
    log_prior = np.rint(rng.normal(0, 0.5, 5) / test.grid.unit) * test.grid.unit
    batch = FullBatch(test.grid, test.largest)
    flows = np.zeros((5, 5))
    target = np.zeros(5)
    law = accept_law(test)
    summed = jax.jit(
        lambda change: batch.total(jax.random.key(0), lambda r: r[0][0], [change], test.largest)
    )
    for i in range(5):
        for j in range(5):
            if i == j:
                continue
            change = jnp.asarray(log_likelihood[:, j] - log_likelihood[:, i], jnp.float32)
            total = summed(change)
            prior = test.grid.public(jnp.float32(log_prior[j] - log_prior[i]))
            integer = sum(
                (int(part.high) << test.grid.low_bits) + int(part.low) for part in (total, prior)
            )
            flows[i, j] = np.ravel(law([integer]))[0]
            if i == 0:
                target[j] = integer * test.grid.unit
    weight = np.exp(target)
    flows *= (weight / weight.sum())[:, None]
    np.testing.assert_allclose(flows, flows.T, rtol=1e-6)
    exact = np.exp(log_likelihood.sum(0) + log_prior)
    np.testing.assert_allclose(weight / weight.sum(), exact / exact.sum(), rtol=1e-4)
    assert weight.max() > 1.2 * weight.min(), "a flat target would tell no rule from another"


@pytest.mark.parametrize("name", NAMES)
def test_decisions_follow_the_integers(name, monkeypatch):
    """With the noise known, a decision is whether integers add up to zero or more."""
    test = TESTS[name]
    rng = np.random.default_rng(1)
    bits = test.grid.low_bits
    for _ in range(40):
        numbers = rng.integers(-(1 << 22), 1 << 22, 2) << max(bits - 12, 0)
        log_ratio, threshold = (
            Fixed(jnp.int32(n >> bits), jnp.int32(n & test.grid.mask)) for n in numbers
        )
        for law in ("exponential", "logistic"):
            monkeypatch.setattr(accept, law, lambda grid, key, drawn=threshold: drawn)
        if hasattr(test, "lattice"):
            monkeypatch.setattr(
                type(test), "_noise", lambda self, key: self.grid.split(jnp.int32(0))
            )
        got = test.decide(jax.random.key(0), log_ratio, jnp.float32(0))
        if abs(numbers.sum()) > 2:
            assert bool(got) == (numbers.sum() >= 0)


@pytest.mark.parametrize("name", NAMES)
def test_decisions_happen_as_often_as_the_tables_say(name):
    # 40,000 decisions at three log ratios: standard error at most 0.0025, bounds at 4.5 of them,
    # false alarm 7e-6 each.
    test = TESTS[name]
    keys = jax.random.split(jax.random.key(5), 40_000)

    @jax.jit
    def rate(half):
        log_ratio = test.grid.public(half)
        return jnp.mean(jax.vmap(lambda key: test.decide(key, log_ratio, half))(keys))

    for nats in (-1.5, 0.0, 0.8):
        assert abs(float(rate(jnp.float32(nats / 2))) - float(ideal(test, np.array(nats)))) < 0.0113


def test_the_log_odds_of_a_barker_bit_move_by_no_more_than_the_bound():
    for bound in (1e-3, 0.1, 3.0):
        test = Barker.create(bound)
        law = threshold_cdf(test)
        x = np.rint(np.linspace(-12, 12, 20_001) / test.grid.unit).astype(np.int64)
        low, high = law(x), law(x + test.largest)
        moved = np.log(high / (1 - high)) - np.log(low / (1 - low))
        assert moved.max() <= bound
        assert moved.max() > bound * 0.995


def test_a_float_uniform_would_leave_no_chance_to_reject():
    """The defect that tables avoid: past l ≈ 17 a float32 uniform never reaches the tail."""
    test = Barker.create(0.1)
    assert 0 < 1 - threshold_cdf(test)(int(20 / test.grid.unit)) < 1e-8
    assert np.float32(1) - np.float32(expit(np.float32(20.0))) == 0


def test_total_variation_of_the_tables():
    for law, past in (
        ("logistic", lambda x: 2 / (1 + np.exp(x))),
        ("exponential", lambda x: np.exp(-x)),
    ):
        cell = 1.3e-3
        weights = np.array(stored_weights(threshold_table(cell, law)), float) / 2.0**63
        exact = -np.diff(past(cell * np.arange(len(weights) + 1)))
        assert np.abs(weights - exact).sum() / 2 < 1e-12
        assert TABLE_TV < 2e-14


@pytest.mark.parametrize("blocks", [[5, -9, 1 << 30, -(1 << 30)], [-1] * 7, [1 << 30] * 90])
def test_sums_of_blocks_are_exact(blocks):
    grid = FixedPointGrid(1e-6, 11)
    total = grid.total(jnp.asarray(blocks, jnp.int32))
    assert 0 <= int(total.low) < 1 << 11
    assert (int(total.high) << 11) + int(total.low) == sum(blocks)


def test_sums_past_all_measure_are_cut_and_keep_their_sign():
    grid = FixedPointGrid(1e-3, 0)
    for sign in (1, -1):
        total = grid.total(jnp.full(1000, sign * ((1 << 31) - 1), jnp.int32))
        assert int(np.sign(total.high)) == sign
        assert abs(int(total.high)) > (1 << 28) - (1 << 12)
        other = grid.public(jnp.float32(-sign * np.inf))
        assert bool(grid.nonnegative(total, other)) == (sign > 0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Barker.create(0.0), "bound on one record"),
        (lambda: Barker.create(2e4), "shorten the moves"),
        (lambda: Penalty.create(0.1, 0.0), "noise_scale"),
        (lambda: Penalty.create(0.1, 100.0), "hardly ever accept"),
        (lambda: NoisyBarker.create(1e-6, 1.0), "too much noise|too small"),
        (lambda: acceptance_test("penalty", 0.1, None), "needs noise"),
    ],
)
def test_bad_tests_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
