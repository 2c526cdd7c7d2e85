"""Log predictive density, accuracy and calibration: NumPyro's numbers, but for a little noise."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import log_likelihood
from scipy.special import logsumexp

import numpyro_dp as ndp
from tests.diagnostics.checks.setting import DRAWS, X, Y, counts, logistic, mean_of, probabilities

KEY = jax.random.key(1)
QUIET = {"noise_multiplier": 0.01, "secure": False}


def exact_density(model, draws, *args):
    """Log predictive density of each record, by NumPyro."""
    (each,) = log_likelihood(model, draws, *args).values()
    return logsumexp(np.asarray(each, float), axis=0) - np.log(len(each))


def test_the_density_is_numpyro_s_cut_to_the_bounds():
    exact, low, high = exact_density(logistic, DRAWS, X, Y), -0.8, -0.3
    found = ndp.private_log_predictive_density(
        KEY, logistic, DRAWS, X, Y, bounds=(low, high), **QUIET
    )
    # Noise 2e-5 of the range.
    assert found.estimate == pytest.approx(np.mean(np.clip(exact, low, high)), abs=1e-3)
    outside = np.mean((exact < low) | (exact > high))
    assert 0.2 < outside < 0.8
    assert found.share_cut == pytest.approx(outside, abs=1e-3)
    own = np.std(np.clip(exact, low, high)) / np.sqrt(len(Y))
    assert found.standard_error == pytest.approx(own, rel=0.02)
    assert "[-0.8, -0.3]" in str(found)


def test_a_record_of_no_density_counts_as_cut_at_the_lower_end():
    x = X.copy()
    x[:40] = np.nan
    exact = np.where(np.isnan(x[:, 1]), -3.0, exact_density(logistic, DRAWS, X, Y))
    found = ndp.private_log_predictive_density(KEY, logistic, DRAWS, x, Y, bounds=(-3, 0), **QUIET)
    assert found.estimate == pytest.approx(exact.mean(), abs=2e-3)
    assert found.share_cut == pytest.approx(0.1, abs=1e-3)
    right = np.where(np.isnan(x[:, 1]), False, (probabilities(X) > 0.5) == (Y == 1))
    known = ndp.private_accuracy(KEY, logistic, DRAWS, x, Y, **QUIET)
    assert known.estimate == pytest.approx(right.mean(), abs=1e-3)


@pytest.mark.slow
def test_a_model_that_masks_what_is_missing_is_asked_of_the_rest():
    """A record without an outcome has a density of 1: nothing was predicted of it."""
    y = np.where(np.arange(len(Y)) < 40, np.nan, Y).astype(np.float32)
    exact = np.where(np.isnan(y), 0.0, exact_density(logistic, DRAWS, X, Y))
    found = ndp.private_log_predictive_density(
        KEY, unless_missing, DRAWS, X, y, bounds=(-3, 0), **QUIET
    )
    assert found.estimate == pytest.approx(exact.mean(), abs=2e-3)


def test_bounds_follow_from_the_model_and_no_record():
    """Of K classes; of densities those of made-up records, about ±3.5 sd of a normal."""
    found = ndp.private_log_predictive_density(KEY, logistic, DRAWS, X, Y, **QUIET)
    assert found.bounds == pytest.approx((-np.log(2) - 3, 0))
    assert found.share_cut < 0.01
    draws = {"mean": np.full(10, 2.0, np.float32)}
    y = np.random.default_rng(0).normal(2, 1, 300).astype(np.float32)
    each = [
        ndp.private_log_predictive_density(KEY, mean_of, draws, data, **QUIET)
        for data in (y, 1e6 * y)
    ]
    assert each[0].bounds == each[1].bounds
    low, high = each[0].bounds
    assert high == pytest.approx(-0.919 + np.log(2), abs=0.01)
    assert -13 < low < -6.5
    assert each[0].share_cut < 0.01
    assert each[1].share_cut > 0.99
    assert ": 100 % ± 0." in str(each[1])
    assert each[1].estimate == pytest.approx(low, abs=0.02)


def two_outcomes(x, y):
    w = numpyro.sample("w", dist.Normal(0, 3).expand([2]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("slope", dist.Normal(w[1], 1), obs=x[:, 1])
        numpyro.sample("y", dist.Bernoulli(logits=w[0]), obs=y)


def unless_missing(x, y):
    w = numpyro.sample("w", dist.Normal(0, 3).expand([2]).to_event(1))
    known = ~jnp.isnan(y)
    with numpyro.plate("people", x.shape[0]), numpyro.handlers.mask(mask=known):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=jnp.where(known, y, 0.0))


def masked(x, y):
    w = numpyro.sample("w", dist.Normal(0, 3).expand([2]).to_event(1))
    with numpyro.plate("people", x.shape[0]), numpyro.handlers.mask(mask=x[:, 1] > 0):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def computed(x, y):
    w = numpyro.sample("w", dist.Normal(0, 3).expand([2]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=1 - y)


@pytest.mark.slow
def test_several_outcomes_of_a_record_count_together():
    found = ndp.private_log_predictive_density(
        KEY, two_outcomes, DRAWS, X, Y, bounds=(-12, 0), **QUIET
    )
    each = log_likelihood(two_outcomes, DRAWS, X, Y)
    joint = np.asarray(each["slope"] + each["y"], float)
    exact = np.clip(logsumexp(joint, axis=0) - np.log(len(joint)), -12, 0)
    assert found.estimate == pytest.approx(exact.mean(), abs=2e-3)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (two_outcomes, "all observe a record"),
        (masked, "masked or weighted"),
        (computed, "computed from arguments"),
        (counts, "not one outcome of a few classes"),
    ],
)
def test_what_has_no_most_probable_class_is_refused(model, message):
    ledger = ndp.Accountant()
    draws = {"a": np.zeros(3), **DRAWS}
    inputs = X[:, 1] if model is counts else X
    for check in (ndp.private_accuracy, ndp.private_calibration_curve):
        with pytest.raises(ndp.UnsupportedModelError, match=message):
            check(KEY, model, draws, inputs, Y, noise_multiplier=1.0, accountant=ledger)
    assert not ledger.entries


def test_made_up_records_of_computed_outcomes_need_bounds():
    def sums(x, y):
        mean = numpyro.sample("mean", dist.Normal(0, 3))
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("y", dist.Normal(mean, 1), obs=y + x[:, 1])

    with pytest.raises(ndp.UnsupportedModelError, match="give bounds="):
        ndp.private_log_predictive_density(KEY, sums, {"mean": np.zeros(3)}, X, Y, **QUIET)


@pytest.mark.parametrize("bounds", [(0, -1), (0, np.nan), (1,), "ab", 3.0])
def test_bounds_are_two_numbers(bounds):
    with pytest.raises(ValueError, match="bounds must be"):
        ndp.private_log_predictive_density(KEY, logistic, DRAWS, X, Y, bounds=bounds, **QUIET)


def test_the_accuracy_is_that_of_the_most_probable_class():
    found = ndp.private_accuracy(KEY, logistic, DRAWS, X, Y, **QUIET)
    right = (probabilities(X) > 0.5) == (Y == 1)
    assert found.estimate == pytest.approx(right.mean(), abs=1e-3)
    assert found.standard_error == pytest.approx(right.std() / np.sqrt(len(Y)), rel=0.02)
    lower, upper = found.interval(0.9)
    assert lower < found.estimate < upper


def classes(x, y):
    w = numpyro.sample("w", dist.Normal(0, 3).expand([2]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        logits = x[:, 1:] * jnp.stack([w[0], 0 * w[0], w[1]])
        numpyro.sample("y", dist.Categorical(logits=logits), obs=y)


def ordinal(x, y):
    w = numpyro.sample("w", dist.Normal(0, 3).expand([2]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        cuts = jnp.stack([-0.5 + 0 * w[0], 0.7 + 0 * w[0]])
        numpyro.sample("y", dist.OrderedLogistic(x @ w, cuts), obs=y)


@pytest.mark.parametrize("model", [classes, pytest.param(ordinal, marks=pytest.mark.slow)])
def test_classes_and_steps_have_an_accuracy_and_a_curve_of_confidence(model):
    y = np.random.default_rng(0).integers(0, 3, len(Y))
    by_class = [np.exp(exact_density(model, DRAWS, X, np.full_like(y, k))) for k in range(3)]
    table = np.stack(by_class, 1)
    right, confidence = table.argmax(1) == y, table.max(1)
    found = ndp.private_accuracy(KEY, model, DRAWS, X, y, **QUIET)
    assert found.estimate == pytest.approx(right.mean(), abs=1e-3)
    curve = ndp.private_calibration_curve(KEY, model, DRAWS, X, y, bins=3, **QUIET)
    same_as_exact(curve, right, confidence)


def same_as_exact(curve, right, predicted):
    number = np.digitize(predicted, curve.edges[1:-1])
    middle = (curve.edges[1:] + curve.edges[:-1]) / 2
    for k, centre in enumerate(middle):
        inside = number == k
        assert curve.count[k] == pytest.approx(inside.sum(), abs=0.5)
        if inside.sum() > 10:
            off = np.mean((right - predicted)[inside])
            assert curve.observed[k] == pytest.approx(np.clip(centre + off, 0, 1), abs=5e-3)


def test_the_curve_is_the_middle_of_each_bin_plus_outcome_less_prediction():
    edges = (0.0, 0.3, 0.45, 0.6, 0.8, 1.0)
    curve = ndp.private_calibration_curve(KEY, logistic, DRAWS, X, Y, bins=edges, **QUIET)
    same_as_exact(curve, Y == 1, probabilities(X))
    assert curve.event == "y = 1"
    assert "0.45 to 0.60" in str(curve)
    assert 0 < curve.p_value < 1


def test_a_bin_that_few_records_lie_in_says_so():
    curve = ndp.private_calibration_curve(KEY, logistic, DRAWS, X, Y, bins=50, **QUIET)
    assert np.isnan(curve.observed[0])
    assert "too few to tell" in str(curve)


def test_a_model_that_is_off_has_a_small_p_value():
    flipped = {"w": -DRAWS["w"]}
    curve = ndp.private_calibration_curve(KEY, logistic, flipped, X, Y, bins=4, **QUIET)
    assert curve.p_value < 1e-6


@pytest.mark.parametrize("bins", [0, 51, (0, 0.5), (0.1, 1), (0, 0.6, 0.5, 1), 2.5])
def test_bins_that_are_none_are_refused(bins):
    with pytest.raises(ValueError, match="bins must be"):
        ndp.private_calibration_curve(KEY, logistic, DRAWS, X, Y, bins=bins, **QUIET)


def test_a_curve_can_be_drawn():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    curve = ndp.private_calibration_curve(KEY, logistic, DRAWS, X, Y, bins=4, **QUIET)
    axes = curve.plot()
    told = np.isfinite(curve.observed)
    np.testing.assert_allclose(axes.lines[1].get_ydata(), curve.observed[told])
    matplotlib.pyplot.close(axes.figure)
