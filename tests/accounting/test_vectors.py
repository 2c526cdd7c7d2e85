"""Every applicable row of vectors.json: never below the truth, never far above it."""

import json
import math
from pathlib import Path

import pytest

from numpyro_dp.accounting import Budget, calibrate, privacy_curve
from numpyro_dp.accounting.events import (
    ComposedDpEvent,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)

ROWS = json.loads((Path(__file__).parents[1] / "vectors.json").read_text())["rows"]
# Mechanism -> number of rows that this accounting states; a row cannot drop out silently.
APPLIED = {
    "gaussian": 7,
    "poisson_gaussian": 16,
    "poisson_gaussian_schedule": 2,
    "joint_gaussian": 4,
    "calibration": 4,
    "ledger": 2,
    "score": 2,
    "conversion": 1,
}
# Rows of these mechanisms whose events belong to later parts.
LATER = {
    "calibrate_barker_T1000",
    "calibrate_penalty_T1000",
    "ledger_gdp_and_zcdp",
    "ledger_sgld_then_barker",
}
CHOSEN = [row for row in ROWS if row["mechanism"] in APPLIED and row["name"] not in LATER]


def relation_of(row):
    return {"zero-out": "zero_out", "replace-one": "replace_one"}[row["relation"]]


def steps(p, noise=None):
    noise = p["noise_multiplier"] if noise is None else noise
    step = GaussianDpEvent(noise)
    if "sampling_rate" in p:
        step = PoissonSampledDpEvent(p["sampling_rate"], step)
    return SelfComposedDpEvent(step, p["steps"])


def piece(p):
    return GaussianDpEvent(1 / p["gdp_mu"]) if "gdp_mu" in p else steps(p)


def event_of(row):
    p = row["parameters"]
    if row["mechanism"] == "poisson_gaussian_schedule":
        return ComposedDpEvent([steps(level) for level in p["schedule"]])
    if row["mechanism"] == "ledger":
        return ComposedDpEvent([piece(event) for event in p["events"]])
    if row["mechanism"] == "score":
        # Half the width of the clip is the zero-out sensitivity under either relation.
        return GaussianDpEvent(p["noise_sd"] / 2.5)
    if "noise_multipliers" in p:
        batch = ComposedDpEvent([GaussianDpEvent(noise) for noise in p["noise_multipliers"]])
        sampled = PoissonSampledDpEvent(p["sampling_rate"], batch)
        return SelfComposedDpEvent(sampled, p["steps"])
    if "block_sensitivities" in p:
        pairs = zip(p["block_sensitivities"], p["block_noise_sd"], strict=True)
        batch = ComposedDpEvent([GaussianDpEvent(sd / size) for size, sd in pairs])
        sampled = PoissonSampledDpEvent(p["sampling_rate"], batch)
        return SelfComposedDpEvent(sampled, p["steps"])
    if p.get("shared_batch"):
        batch = SelfComposedDpEvent(GaussianDpEvent(p["noise_multiplier"]), p["chains"])
        sampled = PoissonSampledDpEvent(p["sampling_rate"], batch)
        return SelfComposedDpEvent(sampled, p["steps"])
    return SelfComposedDpEvent(steps(p), p.get("chains", 1))


def test_no_row_was_dropped():
    counts = {name: 0 for name in APPLIED}
    for row in CHOSEN:
        counts[row["mechanism"]] += 1
    assert counts == APPLIED
    assert len(CHOSEN) == 38


@pytest.mark.parametrize(
    "row",
    [row for row in CHOSEN if row["mechanism"] not in ("calibration", "conversion")],
    ids=lambda row: row["name"],
)
def test_row(row):
    curve = privacy_curve(event_of(row), relation_of(row))
    if row.get("query") == "delta":
        got, truth = curve.delta(row["epsilon"]), row["delta"]
    else:
        got, truth = curve.epsilon(row["delta"]), row["epsilon"]
    assert got >= truth * (1 - 1e-5)
    if row["kind"] != "lower_bound":
        assert got <= truth * (1 + row["tolerance"])


@pytest.mark.parametrize(
    "row", [row for row in CHOSEN if row["mechanism"] == "calibration"], ids=lambda r: r["name"]
)
def test_calibration_row(row):
    budget = Budget(row["epsilon"], row["delta"])
    relation = relation_of(row)
    noise = calibrate(lambda multiplier: steps(row["parameters"], multiplier), budget, relation)
    assert noise == pytest.approx(row["value"], rel=row["tolerance"])
    assert noise >= row["value"] * (1 - 1e-5)
    curve = privacy_curve(steps(row["parameters"], noise), relation)
    assert curve.epsilon(row["delta"]) <= row["epsilon"]


def test_zero_out_converts_to_replace_one():
    (row,) = [row for row in CHOSEN if row["mechanism"] == "conversion"]
    given = row["parameters"]
    epsilon, delta = given["zero_out_epsilon"], given["zero_out_delta"]
    assert row["delta"] == pytest.approx((1 + math.exp(epsilon)) * delta, rel=row["tolerance"])
    noise = calibrate(GaussianDpEvent, Budget(epsilon, delta))
    direct = privacy_curve(GaussianDpEvent(noise), "replace_one")
    assert 1.0 < direct.epsilon(row["delta"]) <= row["epsilon"]
