"""What published settings cost in total: the page says what the script finds."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "paper-reproductions.md"


@pytest.fixture(scope="module")
def found():
    """Every line that the script prints without data."""
    command = [sys.executable, ROOT / "examples" / "reproduce" / "published_totals.py"]
    printed = subprocess.run([*map(str, command)], capture_output=True, text=True, check=True)
    return [json.loads(line) for line in printed.stdout.splitlines()]


def row(beginning):
    """The page's row that begins so."""
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| " + beginning)]
    assert len(rows) == 1, rows
    return rows[0]


@pytest.mark.parametrize(
    ("beginning", "setting"),
    [
        ("topics of 400,000", "topics"),
        ("logistic regression on Adult", "logistic regression on Adult"),
        ("mixture: draws", "mixture"),
        ("MNIST, 7 against 9: accuracy", "MNIST, 7 against 9"),
        ("order of the Rényi", "order against ε"),
        ("Table 1, MNIST", "MNIST: σ .1"),
    ],
)
def test_the_page_states_every_total_of_a_setting(found, beginning, setting):
    totals = [
        line.get("epsilon", line.get("epsilon_at_least"))
        for line in found
        if line["setting"].startswith(setting)
    ]
    assert totals
    for total in totals:
        assert f"{total:g}".removeprefix("0") in row(beginning)


@pytest.mark.parametrize(
    ("beginning", "setting"),
    [
        ("sigmoid belief network", "belief network: σ 1"),
        ("sigmoid belief network", "belief network: σ 2"),
        ("noise against ε", "σ against ε"),
        ("Figure 1: ε", "Figure 1"),
    ],
)
def test_the_page_states_the_ends_of_a_range(found, beginning, setting):
    totals = [line["epsilon"] for line in found if line["setting"].startswith(setting)]
    for total in (min(totals), max(totals)):
        assert f"{total:g}".removeprefix("0") in row(beginning)


def test_published_noise_costs_what_it_did(found):
    """A larger noise costs less, and the topics' less than a half of the 2.44 that is published."""
    (topics,) = (line["epsilon"] for line in found if line["setting"].startswith("topics"))
    assert 0.9 < topics < 2.44 / 2
    for kind in ("logistic regression", "σ against ε"):
        totals = [line["epsilon"] for line in found if kind in line["setting"]]
        assert totals == sorted(totals, reverse=True)
