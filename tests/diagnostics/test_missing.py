"""The number of records with missing values, as one charged count."""

import jax
import numpy as np
import pytest

import numpyro_dp as ndp
import numpyro_dp.diagnostics.missing as missing_module

KEY = jax.random.key(0)
WORD = "nobody's business"


def records(n=4_000, holes=400):
    income = np.ones(n)
    income[:holes] = np.nan
    age = np.ones((n, 2))
    age[holes // 2 : holes, 1] = np.inf  # half of those again, and none besides
    return income, age


def test_the_count_is_that_of_records_with_a_hole_and_has_the_noise_that_was_charged():
    """Of 200 counts: mean within five standard errors, sd within five of its own, 2e-6 together."""
    found = [
        ndp.count_missing(jax.random.key(seed), *records(), noise_multiplier=8.0, secure=False)
        for seed in range(200)
    ]
    counts = np.array([each.count for each in found])
    assert found[0].noise_sd == pytest.approx(4.0, rel=0.02)
    assert abs(counts.mean() - 400) < 5 * 4 / np.sqrt(200)
    assert abs(counts.std() / found[0].noise_sd - 1) < 5 / np.sqrt(400)


def test_one_record_moves_the_centred_count_by_a_half_from_a_null_one():
    """Both kinds of record are ½ away from the 0 that a null record adds, one from each other."""
    by_holes = [
        ndp.count_missing(KEY, *records(holes=holes), noise_multiplier=4.0, secure=False).count
        for holes in (400, 401)
    ]
    assert by_holes[1] - by_holes[0] == pytest.approx(1.0, abs=1e-3)


def test_it_is_one_gaussian_charged_before_a_record_is_read(monkeypatch):
    accountant = ndp.Accountant(ndp.Budget(1.0, 1e-5))
    found = ndp.count_missing(KEY, *records(), noise_multiplier=8.0, accountant=accountant)
    (entry,) = accountant.entries
    assert "GaussianDpEvent(noise_multiplier=8.0)" in repr(entry.event)
    assert found.privacy.epsilon == pytest.approx(accountant.epsilon())
    assert found.privacy.relation == "zero_out"

    def read(*_):
        raise AssertionError("records were read before the charge")

    monkeypatch.setattr(missing_module, "_centred_count", read)
    with pytest.raises(ndp.BudgetExceededError):
        ndp.count_missing(KEY, *records(), noise_multiplier=0.1, accountant=accountant)
    assert len(accountant.entries) == 1


def test_replace_one_costs_twice_the_shift():
    each = [
        ndp.count_missing(
            KEY, *records(), noise_multiplier=m, accountant=ndp.Accountant(relation=relation)
        ).privacy.epsilon
        for relation, m in (("zero_out", 4.0), ("replace_one", 8.0))
    ]
    assert each[0] == pytest.approx(each[1], rel=1e-3)


@pytest.mark.parametrize(
    "arrays",
    [
        (),
        (np.ones(3), np.ones(4)),
        (np.ones(0),),
        (np.array(1.0),),
        ([1.0, float("nan")],),
        (np.array(["1", WORD]),),
        (np.array([1.0, WORD], object),),
    ],
    ids=["nothing", "unequal", "empty", "scalar", "list", "texts", "objects"],
)
def test_what_is_no_table_is_refused_unquoted_before_the_charge(arrays):
    accountant = ndp.Accountant()
    with pytest.raises(ValueError, match="array") as caught:
        ndp.count_missing(KEY, *arrays, noise_multiplier=4.0, accountant=accountant)
    assert WORD not in str(caught.value)
    assert not accountant.entries


def test_a_private_number_of_records_is_refused():
    accountant = ndp.Accountant(relation="add_remove")
    with pytest.raises(ndp.UnsupportedModelError, match="add_remove") as caught:
        ndp.count_missing(KEY, *records(), noise_multiplier=4.0, accountant=accountant)
    assert "4000" not in str(caught.value)
