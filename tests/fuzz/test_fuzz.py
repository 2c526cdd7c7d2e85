"""A part of what ``python -m tests.fuzz`` throws at every public entry.

Its first 5,000 cases, and 2,000 of private checks, were run once; these are others, and none may
end in surprise.
"""

import pytest

from tests.fuzz.cases import CHECKS, ENTRIES, FIRST_CHECK, case, tried

# Cases that once ended badly: a name of a plate that cannot be one, options that NUTS would have
# refused after the charge, a start that is no strategy, 10^30 steps.
ONCE = (84, 458, 480, 609, 742, 936, 1105, 1435, 1726, 2747, 3043, 3282, 3585, 3919)


@pytest.mark.parametrize("number", ONCE)
def test_what_once_went_wrong_is_refused(number):
    assert tried(case(number)) == ""


@pytest.mark.slow
def test_no_case_ends_in_surprise():
    numbers = [*range(10_000, 10_200), *range(FIRST_CHECK + 2_000, FIRST_CHECK + 2_100)]
    assert {number: told for number in numbers if (told := tried(case(number)))} == {}


def test_every_entry_is_tried():
    assert {case(number).entry for number in range(1000)} == set(ENTRIES)
    checks = range(FIRST_CHECK, FIRST_CHECK + 100)
    assert {case(number).entry for number in checks} == set(CHECKS)
