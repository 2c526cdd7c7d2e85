"""Error bars over 400 simulated runs at ε = 1: estimates are unbiased, intervals hold the truth.

Records are drawn anew for each run from a population of 50,000, whose mean is known exactly. A mean
of 400 estimates is within four standard errors of the truth (false alarm 6e-5); of 400 intervals of
95 % between .92 and .98 hold it (1 % for each; seeds are fixed).
"""

import jax
import numpy as np
import pytest

import numpyro_dp as ndp
from tests.diagnostics.checks.setting import DRAWS, counts, logistic, mean_of, probabilities
from tests.diagnostics.checks.test_scores import exact_density

pytestmark = pytest.mark.slow
RUNS, POPULATION = 400, 50_000
PAID = {"privacy": ndp.Budget(1.0, 1e-5), "secure": False}


def people(seed):
    """A population that the model fits, but for its slope."""
    rng = np.random.default_rng(seed)
    x = np.stack([np.ones(POPULATION), rng.normal(0, 1, POPULATION)], 1).astype(np.float32)
    y = rng.random(POPULATION) < 1 / (1 + np.exp(-x @ np.array([0.5, 0.8])))
    return x, y.astype(np.float32)


def runs(ask, population, size, numbers):
    """Estimates, standard errors and interval ends of many runs, on fresh records each."""
    rng = np.random.default_rng(size)
    found = []
    for seed in range(RUNS):
        rows = rng.integers(0, POPULATION, size)
        key = jax.random.fold_in(jax.random.key(size), seed)
        found.append(numbers(ask(key, *(leaf[rows] for leaf in population))))
    return (np.stack(each) for each in zip(*found, strict=True))


def check(ask, population, size, truth, numbers):
    """Bias and coverage; returns the coverage of each number."""
    estimates, lower, upper = runs(ask, population, size, numbers)
    told = np.isfinite(estimates)
    held = np.where(told, (lower <= truth) & (truth <= upper), np.nan)
    covered = np.nanmean(held, axis=0)
    off = np.nanmean(estimates, 0) - truth
    error = np.nanstd(estimates, 0) / np.sqrt(told.sum(0))
    print(f"held {np.round(covered, 3)}, bias over its error {np.round(off / error, 1)}")
    assert np.all(np.abs(off) < 4 * error)
    assert np.all((covered > 0.92) & (covered < 0.98))


def of_score(found):
    return found.estimate, *found.interval()


@pytest.mark.parametrize("size", [200, 2_000])
def test_log_predictive_densities_of_a_model_whose_tails_are_too_thin(size):
    y = 0.9 * np.random.default_rng(0).standard_t(5, POPULATION).astype(np.float32)
    draws = {"mean": np.random.default_rng(1).normal(0, 0.1, 50).astype(np.float32)}
    exact = np.clip(exact_density(mean_of, draws, y), -5, -0.9)

    def ask(key, *records):
        return ndp.private_log_predictive_density(
            key, mean_of, draws, *records, bounds=(-5, -0.9), **PAID
        )

    check(ask, (y,), size, exact.mean(), of_score)


@pytest.mark.parametrize("size", [200, 2_000])
def test_log_predictive_densities_of_classes(size):
    population = people(0)
    exact = np.clip(exact_density(logistic, DRAWS, *population), -np.log(2) - 3, 0)

    def ask(key, *records):
        return ndp.private_log_predictive_density(key, logistic, DRAWS, *records, **PAID)

    check(ask, population, size, exact.mean(), of_score)


@pytest.mark.parametrize("size", [100, 2_000])
def test_accuracies(size):
    x, y = people(0)
    truth = np.mean((probabilities(x) > 0.5) == (y == 1))

    def ask(key, *records):
        return ndp.private_accuracy(key, logistic, DRAWS, *records, **PAID)

    check(ask, (x, y), size, truth, of_score)


def test_calibration_curves_in_every_bin():
    """Of five bins, the outer ones with few records; the whole curve's p-value is small."""
    x, y = people(0)
    predicted = probabilities(x)
    number = np.digitize(predicted, [0.2, 0.4, 0.6, 0.8])
    off = np.array([np.mean((y - predicted)[number == k]) for k in range(5)])

    def ask(key, *records):
        return ndp.private_calibration_curve(key, logistic, DRAWS, *records, bins=5, **PAID)

    def of_curve(curve):
        return curve.observed, *curve.interval()

    check(ask, (x, y), 4_000, np.linspace(0.1, 0.9, 5) + off, of_curve)


@pytest.mark.parametrize("size", [200, 2_000])
def test_differences_of_classes(size):
    x, y = people(0)

    def ask(key, *records):
        return ndp.private_posterior_predictive_check(key, logistic, DRAWS, *records, **PAID)

    def of_mean(found):
        return found["mean"].difference, *found["mean"].interval()

    check(ask, (x, y), size, np.mean(y - probabilities(x)), of_mean)


def test_differences_of_replicated_outcomes():
    """Too wide a population: its mean is right, its spread is not."""
    y = np.random.default_rng(0).normal(0.1, 1.3, POPULATION).astype(np.float32)
    draws = {"mean": np.random.default_rng(1).normal(0, 0.1, 64).astype(np.float32)}
    made_up = np.random.default_rng(2).normal(draws["mean"], 1, (200_000, 64))
    names = ("mean", "spread")

    def statistics(values):
        cut = np.clip(values, -3, 3)
        return np.array([cut.mean(), np.mean(np.minimum(values**2, 9))])

    def ask(key, *records):
        return ndp.private_posterior_predictive_check(
            key, mean_of, draws, *records, outcome_range=(-3, 3), **PAID
        )

    def of_both(found):
        ends = np.array([found[name].interval() for name in names])
        return np.array([found[name].difference for name in names]), *ends.T

    check(ask, (y,), 500, statistics(y) - statistics(made_up), of_both)


def test_shares_inside_of_intervals():
    """Of too wide a population; the truth from 20 sets of replicates for each person."""
    y = np.random.default_rng(0).normal(0.1, 1.3, POPULATION).astype(np.float32)
    draws = {"mean": np.random.default_rng(1).normal(0, 0.1, 79).astype(np.float32)}
    rng, outer = np.random.default_rng(2), np.array([20, 4])
    shares = []
    for _ in range(20):
        below = np.zeros(POPULATION)
        for mean in draws["mean"]:
            below += rng.normal(mean, 1, POPULATION) < y
        within = (outer[:, None] <= below) & (below <= 79 - outer[:, None])
        shares.append(within.mean(1))
    names = ("inside 50 %", "inside 90 %")

    def ask(key, *records):
        return ndp.private_posterior_predictive_check(key, mean_of, draws, *records, **PAID)

    def of_both(found):
        ends = np.array([found[name].interval() for name in names])
        return np.array([found[name].difference for name in names]), *ends.T

    check(ask, (y,), 500, np.mean(shares, axis=0) - [0.5, 0.9], of_both)


@pytest.mark.parametrize(("spread", "size"), [(0.05, 300), (0.3, 3_000)])
def test_p_values_of_a_model_that_is_right_are_uniform(spread, size):
    """Latents from the posterior, records from the model; five of 400's standard errors a tail."""
    rng = np.random.default_rng(4)
    found = []
    for seed in range(RUNS):
        draws = {"w": rng.normal([0.3, 1.2], spread, (50, 2)).astype(np.float32)}
        w = rng.normal([0.3, 1.2], spread)
        x = np.stack([np.ones(size), rng.normal(0, 1, size)], 1).astype(np.float32)
        y = (rng.random(size) < 1 / (1 + np.exp(-x @ w))).astype(np.float32)
        checked = ndp.private_posterior_predictive_check(
            jax.random.key(seed), logistic, draws, x, y, **PAID
        )
        found.append(checked["mean"].p_value)
    shares = np.histogram(found, [0, 0.05, 0.25, 0.75, 0.95, 1.0001])[0] / RUNS
    expected = np.array([0.05, 0.2, 0.5, 0.2, 0.05])
    print(f"share of p-values in five parts {shares}")
    assert np.all(np.abs(shares - expected) < 5 * np.sqrt(expected * (1 - expected) / RUNS))


def test_p_values_of_calibrated_curves_are_uniform():
    rng = np.random.default_rng(5)
    found = []
    for seed in range(RUNS):
        x = np.stack([np.ones(4_000), rng.normal(0, 1, 4_000)], 1).astype(np.float32)
        y = (rng.random(4_000) < probabilities(x)).astype(np.float32)
        curve = ndp.private_calibration_curve(
            jax.random.key(seed), logistic, DRAWS, x, y, bins=5, **PAID
        )
        found.append(curve.p_value)
    low, high = np.mean(np.array(found) < 0.05), np.mean(np.array(found) > 0.5)
    print(f"below .05: {low:.3f}, above .5: {high:.3f}")
    assert low < 0.105
    assert 0.375 < high < 0.625


def test_default_bounds_cut_few_records_of_a_model_that_fits():
    """Counts at other inputs than the made-up ones, too."""
    rng = np.random.default_rng(6)
    draws = {"a": rng.normal(0.2, 0.05, 100).astype(np.float32)}
    x = rng.normal(0, 1, 5_000).astype(np.float32)
    y = rng.poisson(np.exp(0.2 + 0.5 * x)).astype(np.int32)
    found = ndp.private_log_predictive_density(jax.random.key(0), counts, draws, x, y, **PAID)
    print(found)
    assert found.share_cut < 0.01 + 4 * found.share_cut_noise_sd
    assert found.bounds[1] == 0
