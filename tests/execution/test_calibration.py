"""Noise is searched for quietly, and warned of as it was found."""

import pytest

import numpyro_dp as ndp
from numpyro_dp.execution.releases import Phase, planned_releases
from numpyro_dp.scoring.forecast import geometric_shares


def planned(num_records):
    """Rounds on all records, as DPNUTS releases them of twenty weights."""
    return planned_releases(
        phases=(Phase("scores", 232, 1.0, geometric_shares(14, 0.04)),),
        noise=ndp.Budget(1.0, 1e-9),
        delta=1e-9,
        relation="zero_out",
        num_records=num_records,
        sampling_rate=1.0,
        microbatch_size=None,
    )


def wraps(plan):
    (each,) = plan.sums
    return each.num_records * each.lattice.radius >= 2**31


def test_nothing_is_said_of_noise_that_was_tried_and_not_taken():
    """Warnings are errors here; of the least noise that is tried a sum might wrap around."""
    assert not wraps(planned(1_000_000))


def test_a_sum_that_might_wrap_around_is_warned_of():
    with pytest.warns(UserWarning, match="a sum of 30000000 records may wrap around"):
        plan = planned(30_000_000)
    assert wraps(plan)
