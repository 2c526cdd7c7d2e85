"""What published settings cost in total: the page says what the script finds."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from dp_accounting import GaussianDpEvent, SelfComposedDpEvent

from numpyro_dp.accounting import privacy_curve

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "paper-reproductions.md"


def lines(*arguments):
    """Every line that the script prints."""
    script = ROOT / "examples" / "reproduce" / "published_totals.py"
    command = [sys.executable, str(script), *map(str, arguments)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in printed.stdout.splitlines()]


@pytest.fixture(scope="module")
def found():
    return lines()


def row(beginning):
    """The page's row that begins so."""
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| " + beginning)]
    assert len(rows) == 1, rows
    return rows[0]


@pytest.mark.parametrize(
    ("beginning", "setting"),
    [
        ("topics of 400,000", "topics: σ"),
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
    stated = [line["stated"] for line in found if line["setting"].startswith(setting + ",")]
    for ends in filter(None, (totals, stated)):
        for end in (min(ends), max(ends)):
            assert f"{end:.3g}".removeprefix("0") in row(beginning)


def test_the_authors_accountant_gives_what_they_published(found):
    """2.44 and 1.26 are the paper's, of noise that costs far less."""
    settings = {line["setting"]: line for line in found}
    topics = settings["topics: σ 1.24, batches of 20,000 of 400,000, 20 steps"]
    assert round(topics["stated"], 2) == 2.44
    assert 0.9 < topics["epsilon"] < 2.44 / 2
    network = settings["belief network: σ 2, batches of 3200, 18 steps"]
    assert round(network["stated"], 2) == 1.26
    assert all(line["epsilon"] < line["stated"] for line in found if "stated" in line)
    ratio = settings["topics: noise that ε = 2.44 needs, and what 1.24 is of it"]["ratio"]
    assert f"was {ratio} times" in PAGE.read_text()


def test_a_published_setting_costs_less_the_more_noise_it_has(found):
    for kind in ("logistic regression", "σ against ε"):
        totals = [line["epsilon"] for line in found if kind in line["setting"]]
        assert totals == sorted(totals, reverse=True)


def test_zero_out_costs_what_half_the_distance_of_two_records_does(found):
    """The code of DP-Fast MH bounds the change of one record for another."""
    settings = {line["setting"]: line.get("epsilon") for line in found}
    noise = math.sqrt(2 * math.log(1.25e5)) / 0.05
    replaced = SelfComposedDpEvent(GaussianDpEvent(noise), 20_000)
    mixture = settings["mixture: (.05, 1e-5) a step, all records, 20,000 steps"]
    assert 2 < privacy_curve(replaced).epsilon(1e-5) / mixture < 2.5


def test_steps_without_noise(data_folder):
    mixture, images = lines(data_folder)[-2:]
    assert (mixture["share"], images["of_mini_batches"]) == (1.0, 1.0)
    used, right = images["bound_used"], images["right_bound"]
    said = f"takes as {used:g} where {right:g} is right".replace("0.", ".")
    assert said in PAGE.read_text().replace("\n", " ")
