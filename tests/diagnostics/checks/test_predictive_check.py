"""Observed and expected means of statistics, at the records' own inputs."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.stats import poisson

import numpyro_dp as ndp
from tests.diagnostics.checks.setting import DRAWS, X, Y, counts, logistic, mean_of, probabilities

KEY = jax.random.key(1)
QUIET = {"noise_multiplier": 0.01, "secure": False}
COUNT_DRAWS = {"a": np.random.default_rng(0).normal(0.2, 0.1, 100).astype(np.float32)}
INPUTS = X[:, 1]
COUNTS = np.random.default_rng(1).poisson(np.exp(0.2 + 0.5 * INPUTS)).astype(np.int32)


def check(model, draws, *args, **options):
    return ndp.private_posterior_predictive_check(KEY, model, draws, *args, **{**QUIET, **options})


def test_expected_outcomes_of_classes_are_exact():
    found = check(logistic, DRAWS, X, Y)["mean"]
    expected = probabilities(X)
    assert found.observed == pytest.approx(Y.mean(), abs=1e-3)
    assert found.expected == pytest.approx(expected.mean(), abs=1e-3)
    assert found.difference == pytest.approx(np.mean(Y - expected), abs=1e-3)
    error = np.std(Y - expected) / np.sqrt(len(Y))
    assert found.standard_error == pytest.approx(error, rel=0.02)
    # At the eight draws that it looks at.
    few = np.linspace(0, 19, 8).round().astype(int)
    by_draw = np.mean(1 / (1 + np.exp(-X @ DRAWS["w"][few].T)), axis=0)
    assert found.posterior_sd == pytest.approx(by_draw.std(ddof=1), rel=0.1)


@pytest.mark.slow
def test_expected_counts_come_from_replicates_of_each_record():
    """Within five standard errors of 64 replicates a record; posterior sd of few draws."""
    found = check(
        counts, COUNT_DRAWS, INPUTS, COUNTS, statistics=["mean", "zeros"], outcome_range=(0, 8)
    )
    rates = np.exp(COUNT_DRAWS["a"] + 0.5 * INPUTS[:, None])
    capped = 8 - np.stack([poisson.cdf(k, rates) for k in range(8)]).sum(0)
    for name, exact in {"mean": capped, "zeros": np.exp(-rates)}.items():
        each = found[name]
        spread = {"mean": 2.0, "zeros": 0.5}[name]
        assert each.expected == pytest.approx(exact.mean(), abs=5 * spread / np.sqrt(64 * 400))
        assert 0.4 < each.posterior_sd / exact.mean(0).std() < 2
    assert found["mean"].observed == pytest.approx(np.minimum(COUNTS, 8).mean(), abs=1e-3)
    assert found["zeros"].observed == pytest.approx(np.mean(COUNTS == 0), abs=1e-3)


def large(y):
    return y > 0.5


def off_the_line(y, record):
    return y - 1.5 * record["x"][1]


def test_statistics_are_functions_of_the_outcome_or_of_the_whole_record():
    """Replicates take the place of the outcome in both."""
    chosen = {"large": (large, 0, 1), "off": (off_the_line, -3, 3)}
    found = check(logistic, DRAWS, X, Y, statistics=chosen)
    assert found["large"].observed == pytest.approx(np.mean(Y > 0.5), abs=1e-3)
    off, expected = (np.clip(each - 1.5 * INPUTS, -3, 3) for each in (Y, probabilities(X)))
    assert found["off"].observed == pytest.approx(off.mean(), abs=1e-2)
    # Cut after the mean here: hardly a record is.
    assert found["off"].expected == pytest.approx(expected.mean(), abs=3e-2)
    assert list(found.statistics) == ["large", "off"]


def test_a_statistic_that_reads_what_has_changed_is_asked_anew():
    """A cell that sets a threshold anew means it."""
    shift = [0.0]

    def shifted(y):
        return y + shift[0]

    for shift[0] in (0.0, 1.0):
        found = check(logistic, DRAWS, X, Y, statistics={"shifted": (shifted, 0, 2)})
        assert found["shifted"].observed == pytest.approx(Y.mean() + shift[0], abs=1e-2)


def hurdle(x, y, size):
    w = numpyro.sample("w", dist.Normal(0, 3).expand([2]).to_event(1))
    b = numpyro.sample("b", dist.Normal(0, 3))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)
        with numpyro.handlers.mask(mask=y == 1):
            numpyro.sample("size", dist.Normal(b, 1), obs=size)


def sizes(y, size):
    b = numpyro.sample("b", dist.Normal(0, 3))
    with numpyro.plate("people", size.shape[0]):
        numpyro.sample("size", dist.Normal(b, 1), obs=size)


def test_of_two_outcomes_each_has_a_model_of_its_own():
    """The refusal is followed to the letter: the same draws, no mask, a 0 for the rest."""
    size = np.where(Y == 1, np.random.default_rng(0).normal(2, 1, len(Y)), 0).astype(np.float32)
    draws = {**DRAWS, "b": np.full(20, 2.0, np.float32)}
    with pytest.raises(ndp.UnsupportedModelError, match=r"part alone.*statistics= that are 0"):
        check(hurdle, draws, X, Y, size)
    assert 0.001 < check(logistic, draws, X, Y)["mean"].p_value < 0.999

    def told(size, record):
        return jnp.where(record["y"] == 1, size, 0.0)

    chosen = {"size": (told, -2, 6)}
    found = check(sizes, draws, Y, size, statistics=chosen)["size"]
    assert found.observed == pytest.approx(size.mean(), abs=1e-2)
    assert found.expected == pytest.approx(2 * Y.mean(), abs=0.05)
    assert 0.001 < found.p_value < 0.999
    # Of a part that is off by half a standard deviation of the outcome it says so.
    off = check(sizes, {**draws, "b": draws["b"] - 0.5}, Y, size, statistics=chosen)["size"]
    assert off.p_value < 1e-6


def test_a_model_that_is_off_is_told_by_the_tail():
    """Records above what is expected have a p-value near 0, those below near 1."""
    for shift, at_end in ((1.5, 0.0), (-1.5, 1.0)):
        draws = {"w": DRAWS["w"] - np.float32([shift, 0])}
        assert check(logistic, draws, X, Y)["mean"].p_value == pytest.approx(at_end, abs=1e-3)


@pytest.mark.slow
def test_spread_is_the_squared_distance_from_the_middle():
    y = np.random.default_rng(0).normal(2, 3, 500).astype(np.float32)
    draws = {"mean": np.full(20, 2.0, np.float32)}
    squared = np.minimum((y - 2) ** 2, 100)
    found = check(mean_of, draws, y, outcome_range=(-8, 12))
    assert found["spread"].observed == pytest.approx(np.mean(squared), rel=0.01)
    assert found["spread"].expected == pytest.approx(1.0, rel=0.1)
    assert found["spread"].p_value < 1e-6
    assert 0.001 < found["mean"].p_value < 0.999


def test_intervals_of_replicates_hold_what_they_state_and_need_no_range():
    """Where the model is right; five standard errors of 1,500 records, false alarm 1e-6."""
    rng = np.random.default_rng(0)
    draws = {"mean": rng.normal(0, 0.02, 100).astype(np.float32)}
    right, wide = (rng.normal(0, sd, 1_500).astype(np.float32) for sd in (1, 1.5))
    found = check(mean_of, draws, right)
    assert list(found.statistics) == ["inside 50 %", "inside 90 %"]
    for name, share in {"inside 50 %": 0.5, "inside 90 %": 0.9}.items():
        assert found[name].expected == pytest.approx(share, abs=1e-3)
        error = np.sqrt(share * (1 - share) / 1_500)
        assert found[name].observed == pytest.approx(share, abs=5 * error)
        assert found[name].standard_error == pytest.approx(error, rel=0.1)
    off = check(mean_of, draws, wide)
    # Φ(1.645 / 1.5) twice over, but for what 79 replicates know of the ends.
    assert off["inside 90 %"].observed == pytest.approx(0.727, abs=0.06)
    assert off["inside 90 %"].p_value > 1 - 1e-6


def prints(y):
    jax.debug.print("{}", y)
    return y


def branches(y):
    return 1.0 if y > 0 else 0.0


def misspelt(y, record):
    return record["age"]


def names_records(y):
    return y - Y.mean()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"statistics": ["median"]}, ValueError, "has no 'median'"),
        ({"statistics": "mean"}, ValueError, "a list of names"),
        ({"statistics": []}, ValueError, "at least one"),
        ({"statistics": {"a": (large, 1, 0)}}, ValueError, "low below high"),
        ({"statistics": {"a": large}}, ValueError, "must be .function, low, high."),
        ({"statistics": {"a": (lambda y: y[None], 0, 1)}}, ValueError, "one real number"),
        ({"statistics": {"a": (lambda y: 1j * y, 0, 1)}}, ValueError, "one real number"),
        ({"statistics": {"a": (branches, 0, 1)}}, ndp.UnsupportedModelError, "in place of `if`"),
        ({"statistics": {"a": (misspelt, 0, 1)}}, ndp.UnsupportedModelError, "dictionary of `x`"),
        ({"statistics": {"a": (prints, 0, 1)}}, ndp.UnsupportedModelError, "side effects"),
        ({"statistics": {"a": (names_records, 0, 1)}}, ndp.UnsupportedModelError, "`Y`"),
        ({"statistics": ["inside 50 %"]}, ValueError, "few classes, which have no intervals"),
        ({"outcome_range": (1, 0)}, ValueError, "outcome_range must be"),
    ],
)
def test_statistics_that_would_tell_more_or_nothing_are_refused(options, error, message):
    ledger = ndp.Accountant()
    with pytest.raises(error, match=message):
        check(logistic, DRAWS, X, Y, accountant=ledger, **options)
    assert not ledger.entries


def test_a_range_is_declared_and_not_taken_from_the_records():
    with pytest.raises(ValueError, match="needs outcome_range"):
        check(counts, COUNT_DRAWS, INPUTS, COUNTS, statistics=["mean"])
    zeros = check(logistic, DRAWS, X, Y, statistics=["zeros"])["zeros"]
    assert zeros.observed == pytest.approx(np.mean(Y == 0), abs=1e-3)


def test_a_check_is_printed_and_drawn():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    found = check(logistic, DRAWS, X, Y)
    assert "observed" in str(found)
    assert f"{found['mean'].p_value:.3f}" in str(found)
    axes = found.plot()
    assert [label.get_text() for label in axes.get_yticklabels()] == ["mean"]
    matplotlib.pyplot.close(axes.figure)
