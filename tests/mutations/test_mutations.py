"""A package broken on purpose does not pass its tests, whichever part of it is broken."""

import re
from dataclasses import replace

import pytest

from tests.mutations.registry import FOLDERS, is_slow, makers, mutations
from tests.mutations.run import failure

ALL = mutations()


@pytest.mark.parametrize(
    "mutation",
    [
        pytest.param(each, id=each.id, marks=[pytest.mark.slow] if each.slow else [])
        for each in ALL
        if each.patch is not None
    ],
)
def test_a_mutation_is_caught(mutation, request):
    said = failure(mutation, request)
    assert said is not None, f"survived: {mutation.broken}"
    assert re.search(mutation.because, said), f"caught for another reason: {said}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "mutation", [pytest.param(each, id=each.id) for each in ALL if each.patch and each.given]
)
def test_the_honest_package_passes_what_is_given(mutation, request):
    """Cases of its own a test passes where it stands; these were chosen here."""
    honest = replace(mutation, patch=lambda patch: None, fresh=False)
    assert failure(honest, request) is None


def test_every_mutation_has_a_name_and_a_test_that_the_honest_package_passes():
    assert len({each.id for each in ALL}) == len(ALL)
    assert {each.folder for each in ALL} <= set(FOLDERS)
    for each in ALL:
        path, _, name = each.caught_by.partition("::")
        found = makers(path, name)
        assert found, f"{each.id}: no test of {path} is or calls {name}"
        if each.patch is None:
            assert is_slow(path, name) == each.slow, each.id
        else:
            # What the default run must catch, the default run must pass.
            assert each.slow or not all(is_slow(path, test) for test in found), each.id


def test_a_third_of_at_least_sixty_is_caught_by_default():
    assert len(ALL) >= 60
    assert sum(not each.slow for each in ALL) >= len(ALL) / 3
