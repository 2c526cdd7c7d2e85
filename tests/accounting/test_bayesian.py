"""The typical-case diagnostic: right as far as it goes, and never mistaken for ε."""

import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant

from numpyro_dp.accounting.bayesian import BayesianAccountant
from numpyro_dp.accounting.events import (
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)

STEPS, RATE, NOISE = 60, 0.05, 1.2
DELTA = 1e-5


@pytest.fixture
def accountant():
    return BayesianAccountant(sampling_rate=RATE, noise_multiplier=NOISE, clip_norm=2.0)


def renyi(multiplier):
    """ε of the same steps by dp-accounting's own Rényi accountant."""
    step = PoissonSampledDpEvent(RATE, GaussianDpEvent(multiplier))
    orders = list(range(2, 257))
    return RdpAccountant(orders).compose(SelfComposedDpEvent(step, STEPS)).get_epsilon(DELTA)


@pytest.mark.parametrize("distance", [2.0, 0.7])
def test_equal_records_cost_what_their_distance_costs(accountant, distance):
    found = accountant.typical_cost(np.full((STEPS, 9), distance), delta=DELTA)
    assert found.cost == pytest.approx(renyi(NOISE * 2.0 / distance), rel=2e-3)
    assert found.quantile is None
    same = accountant.typical_cost(np.full((STEPS, 9), distance), delta=DELTA, quantile=0.5)
    assert same.cost == pytest.approx(found.cost, rel=1e-9)


def test_a_whole_run_stands_inside_the_expectation(accountant):
    """One record that is always far costs more than far steps shared by all."""
    always = np.full((STEPS, 10), 0.1)
    always[:, 0] = 2.0
    shared = np.full((STEPS, 10), 0.1)
    for step in range(STEPS):
        shared[step, step % 10] = 2.0
    far = accountant.typical_cost(always, delta=DELTA)
    spread = accountant.typical_cost(shared, delta=DELTA)
    assert far.cost > 1.3 * spread.cost
    assert far.cost <= renyi(NOISE) * 1.001


def test_what_the_sample_misses_it_does_not_see(accountant):
    """Why this is no guarantee: the record that is far is not in the sample."""
    sample = np.full((STEPS, 50), 0.05)
    seen = accountant.typical_cost(sample, delta=DELTA)
    outlier = accountant.typical_cost(np.full((STEPS, 1), 2.0), delta=DELTA)
    assert seen.cost < seen.worst_case < 1.5 * outlier.cost
    assert 3 * seen.cost < outlier.cost


def test_distances_are_cut_to_the_clip_norm(accountant):
    long = accountant.typical_cost(np.full((STEPS, 3), 1e6), delta=DELTA)
    assert long.cost == accountant.typical_cost(np.full((STEPS, 3), 2.0), delta=DELTA).cost


def test_it_says_what_it_is_not(accountant):
    found = accountant.typical_cost(np.full((STEPS, 9), 0.7), delta=DELTA)
    text = str(found)
    assert "NOT differential privacy" in text
    assert "9 public or held-out records" in text
    assert f"ε = {found.worst_case:.3g}"[:6] in text
    with pytest.raises(TypeError, match="no number"):
        float(found)
    assert not hasattr(found, "epsilon")


@pytest.mark.parametrize(
    ("distances", "options"),
    [
        (np.ones(5), {}),
        (np.full((2, 2), np.nan), {}),
        (-np.ones((2, 2)), {}),
        (np.ones((0, 2)), {}),
        (np.ones((2, 2)), {"delta": 1.0}),
        (np.ones((2, 2)), {"quantile": 1.5}),
    ],
)
def test_bad_input_is_refused(accountant, distances, options):
    with pytest.raises(ValueError, match="must"):
        accountant.typical_cost(distances, **{"delta": DELTA, **options})


@pytest.mark.parametrize("name", ["sampling_rate", "noise_multiplier", "clip_norm"])
def test_bad_settings_are_refused(name):
    settings = {"sampling_rate": 0.1, "noise_multiplier": 1.0, "clip_norm": 1.0, name: 0.0}
    with pytest.raises(ValueError, match=name):
        BayesianAccountant(**settings)
