"""What diagnostics and a forecast print: verdicts first, on one screen, no array, in words."""

import numpy as np
import pytest

from numpyro_dp.accounting import Budget
from numpyro_dp.scoring.diagnostics import Diagnostics
from numpyro_dp.scoring.forecast import forecast
from numpyro_dp.scoring.verdicts.kinds import Kind
from numpyro_dp.scoring.verdicts.trust import Located

TO_DO = (
    "Centre",
    "Divide",
    "Fit",
    "Give",
    "Merge",
    "Pass",
    "Read",
    "Code",
    "Take",
    "That the rounds",
    "Widen",
)
SPEAKING = Kind(unlike=["y"], partial=["x"], asked=["q"], scattered=["y"], quantile=["y"])
POOLED = Kind(learned=["w"], scales=["a"])
FINE = Diagnostics(
    information=np.array([0.304, 0.9, 1.02]),
    noise_sd=np.array([0.1, 0.2, 0.22]),
    resolved={"b": np.array(0.98), "w": np.array([0.979, 0.5])},
    widened={"b": np.array(1.1), "w": np.array([1.2, 1.352])},
    signal={"b": np.array(16.1), "w": np.array([14.2, 2.352])},
    dispersion=1.1,
    misfit=1.02,
    misfit_sd=0.09,
    tail=0.0034,
    tail_sd=0.0058,
    disagreement=0.97,
    travelled=0.31,
    verdicts=(),
)


def test_each_site_has_a_row_and_each_number_its_words():
    lines = str(FINE).splitlines()
    assert lines[0].startswith("No note speaks against this release. What notes cannot see")
    assert lines[-2].split() == ["b", "0.98"]
    assert lines[-1].split() == ["w", "0.50", "to", "0.98", "in", "2", "coordinates"]
    named = [line.split()[0] for line in lines[1:]]
    unnamed = {"misfit_sd", "tail_sd", "outside_sd", "verdicts", "unread"}
    assert {*FINE._fields} - unnamed < {*named, "resolved"}
    # Three times the root of three coordinates.
    assert "1.02 ± 0.09" in lines[1]
    assert "0.003 ± 0.006" in lines[2]
    assert "above 5.2 not arrived" in str(FINE)
    assert "1.10 to 1.35   times by noise, of intervals; clips add to it; above" in str(FINE)
    assert "2.35 to 16.10  information on a coordinate over noise; below 3.5 little" in str(FINE)
    assert "array(" not in str(FINE)
    # Groups tell of their law, which no record reads: no number of it is one to judge.
    unread = str(FINE._replace(unread=("w",)))
    assert unread.splitlines()[-1] == "  told of by others, not by itself: w"
    assert "1.10           times by noise" in unread
    assert "\n  w " not in unread


def test_verdicts_come_first_and_to_their_end():
    verdicts = tuple(f"with care: {k} {'goes on and on ' * 20}" for k in range(3))
    many = {f"site{k}": np.full((2, 2), 0.5) for k in range(30)}
    lines = str(FINE._replace(verdicts=verdicts, resolved=many)).splitlines()
    assert lines[0].startswith("note  with care: 0")
    assert sum(line.startswith("note  ") for line in lines) == 3
    assert "No note" not in lines[0]
    # What is to be done stands at the end.
    assert all(" ".join(each.split()) in " ".join(" ".join(lines).split()) for each in verdicts)
    long = FINE._replace(verdicts=tuple(each * 9 for each in verdicts), resolved=many)
    assert len(str(long).splitlines()) <= 40
    assert max(map(len, lines)) <= 100
    shown = sum(line.startswith("  site") for line in lines)
    assert lines[-1] == f"  … and {30 - shown} more: .resolved"


def test_what_is_good_to_know_speaks_against_nothing():
    lines = str(FINE._replace(verdicts=("to know: little was told of w[0]",))).splitlines()
    assert lines[0] == "note  to know: little was told of w[0]"
    assert lines[1] == "No note speaks against this release; what is to know of it stands above."
    assert lines[2].startswith("What notes cannot see: docs/")
    assert "No note" not in str(FINE._replace(verdicts=("to know: a", "wide: b")))


def test_a_notebook_shows_the_same():
    pretty = pytest.importorskip("IPython.lib.pretty").pretty
    assert pretty(FINE) == str(FINE)


def test_a_forecast_says_what_its_numbers_are_and_how_large_they_should_be():
    asked = {"num_records": 1_000, "dim": 4, "outcomes": 0, "signal": 0.27, "num_rounds": None}
    asked |= {"privacy": Budget(1.0, 1e-5), "relation": "zero_out", "cases": False}
    found = forecast(**asked)
    head, *lines = str(found).splitlines()
    assert head == "ε = 1 at δ = 1e-05 (zero_out), 1000 records, 4 coordinates"
    said = " ".join(" ".join(lines).split())
    assert f"{found.num_rounds + 1} private steps, sizes of scores and" in said
    assert f"κ, signal over noise, = {found.signal:.3g}: refused below 3.5, good from 20 on" in said
    assert f"that of the information {found.shape:.3g}: refused below 3" in said
    assert found.few == 67
    larger, rare = (
        " ".join(str(forecast(**asked | {"num_records": 9_000, "cases": each})).split())
        for each in (False, True)
    )
    assert "by far, of a category's level or a flag of fewer than about 67 records (two" in larger
    assert "and of a hierarchy's group of fewer than 34." in larger
    assert "fewer than 100." in str(forecast(**asked | {"num_records": 9_000, "signal": 0.09}))
    # Of whole numbers alone events may be rare.
    assert "up to 1.8 times where one outcome in ten is not 0, 2.5 times where" in rare
    assert "not 0" not in larger
    # What is wider anyway is no rare one's.
    low = " ".join(str(forecast(**asked | {"signal": 0.15, "cases": True})).split())
    assert "up to 2.5 times where one outcome in twenty is not 0" in low
    assert "1.8 times where" not in low
    assert max(map(len, str(found).splitlines())) <= 100


@pytest.mark.parametrize("kind", [Kind(), Kind(mixture=True, classes=True), SPEAKING, POOLED])
def test_a_verdict_ends_with_what_to_do(kind):
    """It is its last sentence, for that alone is shown where a verdict is cut."""
    dim, names = 8, ["a", *(f"w[{k}]" for k in range(6)), "tau"]
    ones, zeros, eye = np.ones(dim), np.zeros(dim), np.eye(dim)
    fine = Located(
        *(eye, zeros, zeros, eye, ones, ones, ones, zeros),
        *(1.0, 1.0, 0.1, 0.0, 0.01, 1.0, 90, 0.5, False, 30.0 * ones, ones),
    )
    half = np.arange(dim) < 4
    faults = [
        {"travelled": 30.0, "resolved": np.where(half, 0.1, 1.0)},
        {"travelled": 6.0, "checked": False, "clear": False, "unresolved": True},
        {"disagreement": 1.9, "misfit": 2.0, "tail": 0.1},
        {"disagreement": 3.0, "resolved": np.where(half, 0.1, 1.0)},
        {"resolved": np.full(dim, 0.1)},
        {"resolved": np.full(dim, 0.6), "out": np.full(dim, 9.0), "widened": np.full(dim, 3.0)},
        {"signal": np.where(half, 1.0, 30.0)},
    ]
    said = [text for each in faults for text in fine._replace(**each).verdicts(names, kind=kind)]
    ends = {text.split(". ")[-1] for text in said}
    assert len(set(said)) > 10
    assert {end for end in ends if not end.startswith(TO_DO)} == set()
