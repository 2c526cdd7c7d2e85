"""Where discretised accounting is most easily wrong: ε must never lie below the exact value.

How far above it may lie is a matter of the engine and is tested with the curve.
"""

import math

import pytest

from numpyro_dp.accounting import privacy_curve
from numpyro_dp.accounting.events import (
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
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
