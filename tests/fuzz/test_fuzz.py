"""A part of what ``python -m tests.fuzz`` throws at every public entry.

Its first 5,000 cases, 2,000 of private checks and 1,000 of adapted methods, audits and plans were
run once; these are others, and none may end in surprise.
"""

import pytest

from tests.fuzz.cases import FIRST_CHECK, FIRST_OTHER, case, entries_of, tried

# Cases that once ended badly: a name of a plate that cannot be one, options that NUTS would have
# refused after the charge, a start that is no strategy, 10^30 steps, positions and a power that are
# texts, a score that is a number, inputs and a method that are a budget.
ONCE = (
    84,
    458,
    480,
    609,
    742,
    936,
    1105,
    1435,
    1726,
    2747,
    3043,
    3282,
    3585,
    3919,
    200_110,
    200_121,
    200_138,
)


@pytest.mark.parametrize("number", ONCE)
def test_what_once_went_wrong_is_refused(number):
    assert tried(case(number)) == ""


@pytest.mark.slow
def test_no_case_ends_in_surprise():
    numbers = [
        *range(10_000, 10_200),
        *range(FIRST_CHECK + 2_000, FIRST_CHECK + 2_100),
        *range(FIRST_OTHER + 1_000, FIRST_OTHER + 1_050),
    ]
    assert {number: told for number in numbers if (told := tried(case(number)))} == {}


@pytest.mark.parametrize("first", [0, FIRST_CHECK, FIRST_OTHER])
def test_every_entry_is_tried(first):
    tried_ones = {case(number).entry for number in range(first, first + 1000)}
    assert tried_ones == set(entries_of(first))
