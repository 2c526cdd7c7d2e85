"""Where discretised accounting is most easily wrong: ε must never lie below the exact value.

How far above it may lie is a matter of the engine and is tested with the curve.
"""

import math

import pytest

from numpyro_dp.accounting import Accountant, Budget, privacy_curve
from numpyro_dp.accounting.events import (
    BarkerBit,
    GaussianDpEvent,
    LangevinLastIterate,
    NoisyBarkerBit,
    OutputPerturbationRelease,
    PenaltyBit,
    PoissonSampledDpEvent,
    PosteriorDraw,
    SelfComposedDpEvent,
    TotalVariation,
)

# rate, noise multiplier, steps, relation, δ, exact ε by the contour integral of reference.py
EXACT = [
    (0.5, 1.0, 100_000, "zero_out", 1e-12, 15165.23),
    (0.01, 50.0, 100_000, "zero_out", 1e-12, 0.403876),
    (0.01, 50.0, 100_000, "replace_one", 1e-12, 0.824429),
    (0.01, 1.0, 1_000, "zero_out", 1e-12, 3.914298),
    (0.01, 1.0, 1_000, "replace_one", 1e-12, 5.08108),
    (1e-5, 1.0, 100_000, "zero_out", 1e-6, 0.0131215),
    (1e-5, 10.0, 100_000, "replace_one", 1e-6, 0.00162920),
    (0.99, 1.0, 1_000, "zero_out", 1e-5, 623.375),
    (1e-3, 2.0, 30_000, "zero_out", 1e-2, 0.0814386),
]


@pytest.mark.parametrize(("rate", "noise", "steps", "relation", "delta", "exact"), EXACT)
def test_epsilon_is_never_too_small(rate, noise, steps, relation, delta, exact):
    step = PoissonSampledDpEvent(rate, GaussianDpEvent(noise))
    got = privacy_curve(SelfComposedDpEvent(step, steps), relation).epsilon(delta)
    assert not math.isnan(got)
    assert got >= exact * (1 - 1e-5)


REFUSED = [
    GaussianDpEvent(1e-300),
    GaussianDpEvent(5e-324),
    PoissonSampledDpEvent(0.01, GaussianDpEvent(1e-160)),
    PoissonSampledDpEvent(5e-324, GaussianDpEvent(1.0)),
    BarkerBit(1e-310),
    NoisyBarkerBit(1.0, 1e-300),
    PenaltyBit(1e-300, 1.0),
    LangevinLastIterate(1e-300, 10, 1.0, 0.1, 1.0),
    OutputPerturbationRelease(1.0, 1e-200, 0.0, 1e-200),
]


@pytest.mark.parametrize("event", REFUSED, ids=str)
def test_what_no_number_holds_is_refused_by_name(event):
    accountant = Accountant(Budget(1.0, 1e-5))
    for ask in (accountant.fits, lambda e: accountant.charge(e, label="extreme")):
        with pytest.raises(ValueError, match=r"\.\w+ is too small .* at least 1e-30"):
            ask(event)
    assert accountant.entries == ()


ANSWERED = [
    (GaussianDpEvent(1e-20), False),
    (GaussianDpEvent(1e20), True),
    (SelfComposedDpEvent(GaussianDpEvent(1.0), 10**15), False),
    (SelfComposedDpEvent(GaussianDpEvent(1e10), 10**15), True),
    (TotalVariation(5e-324), True),
    (TotalVariation(1.0), False),
    (PosteriorDraw(1e6), False),
]


@pytest.mark.parametrize(("event", "fits"), ANSWERED, ids=str)
def test_far_constants_are_answered(event, fits):
    accountant = Accountant(Budget(1.0, 1e-5))
    assert accountant.fits(event) is fits
    accountant.charge(GaussianDpEvent(20.0), label="first")
    assert accountant.fits(event) is fits


@pytest.mark.parametrize(
    "event", [PoissonSampledDpEvent(0.01, GaussianDpEvent(1e-29)), PosteriorDraw(1e200)], ids=str
)
def test_what_overflows_on_the_way_is_refused_in_words(event):
    with pytest.raises(ValueError, match="too large or too small for floating-point"):
        Accountant(Budget(1.0, 1e-5)).fits(event)
