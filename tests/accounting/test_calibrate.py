"""The least noise: it fits, and hardly less would."""

import math

import pytest

from numpyro_dp.accounting import Budget, calibrate, privacy_curve
from numpyro_dp.accounting.events import (
    ComposedDpEvent,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
    TotalVariation,
)


def run(rate, steps, distance=0.0):
    def family(noise):
        step = PoissonSampledDpEvent(rate, GaussianDpEvent(noise))
        return ComposedDpEvent([SelfComposedDpEvent(step, steps), TotalVariation(distance)])

    return family


CASES = [
    pytest.param(run(0.01, 10_000, 1e-11), Budget(1.0, 1e-6), "zero_out", marks=pytest.mark.slow),
    pytest.param(run(1.0, 500), Budget(0.05, 1e-5), "replace_one", marks=pytest.mark.slow),
    pytest.param(run(0.2, 3), Budget(30.0, 1e-3), "add_remove", marks=pytest.mark.slow),
    pytest.param(run(1e-3, 2_000), Budget(8.0, 1e-9), "zero_out", marks=pytest.mark.slow),
    (GaussianDpEvent, Budget(1e-3, 1e-7), "zero_out"),
]


@pytest.mark.parametrize(("family", "budget", "relation"), CASES)
def test_fits_and_is_tight(family, budget, relation):
    noise = calibrate(family, budget, relation)

    def epsilon(multiplier):
        return privacy_curve(family(multiplier), relation).epsilon(budget.delta)

    assert epsilon(noise) <= budget.epsilon
    assert epsilon(noise * (1 - 1.5e-3)) > budget.epsilon


def test_total_variation_alone_can_be_too_much():
    with pytest.raises(ValueError, match="total variation"):
        calibrate(run(0.1, 10, 1e-6), Budget(1.0, 1e-6))


def test_a_family_that_ignores_its_noise_is_refused():
    with pytest.raises(ValueError, match="does not fall with its noise"):
        calibrate(lambda noise: GaussianDpEvent(0.5), Budget(1.0, 1e-6))


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [(0.0, 0.1), (-1.0, 0.1), (math.inf, 0.1), (math.nan, 0.1), (1.0, 0.0), (1.0, 1.0)],
)
def test_budgets_are_checked(epsilon, delta):
    with pytest.raises(ValueError, match=r"epsilon|delta"):
        Budget(epsilon, delta)
