"""Every applicable row of vectors.json: never below the truth, never far above it."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom, poisson

from numpyro_dp.accounting import Budget, calibrate, largest, privacy_curve
from numpyro_dp.accounting.events import (
    BarkerBit,
    ComposedDpEvent,
    GaussianDpEvent,
    PenaltyBit,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
    TotalVariation,
)
from tests.accounting.statements import STATED, ledger

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
# Rows of these mechanisms that are answered by other tests below.
ELSEWHERE = {"calibrate_barker_T1000", "calibrate_penalty_T1000"}
LEDGERS = {"ledger_gdp_and_zcdp", "ledger_sgld_then_barker"}
NAMED = ELSEWHERE | LEDGERS
CHOSEN = [row for row in ROWS if row["mechanism"] in APPLIED and row["name"] not in NAMED]
NEW = [row for row in ROWS if row["mechanism"] in STATED or row["name"] in LEDGERS]


def relation_of(row):
    if row["relation"].startswith("any"):
        return "zero_out"  # constants of an event are those under zero-out
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


def test_no_row_of_the_other_mechanisms_was_dropped():
    counts = {name: 0 for name in STATED}
    for row in NEW:
        if row["name"] not in LEDGERS:
            counts[row["mechanism"]] += 1
    assert counts == {name: count for name, (count, _) in STATED.items()}
    assert len(NEW) == 85
    # What is left states no ε or δ of ours: caps and scalars, and a rule that is not offered.
    left = {row["mechanism"] for row in ROWS} - set(APPLIED) - set(STATED)
    assert left == {"batch_cap", "sgfs", "metropolis_min_one"}


@pytest.mark.parametrize("row", NEW, ids=lambda row: row["name"])
def test_row_of_another_mechanism(row):
    p = row["parameters"]
    event = ledger(p) if row["mechanism"] == "ledger" else STATED[row["mechanism"]][1](p)
    curve = privacy_curve(event, relation_of(row))
    if row.get("query") == "delta":
        got, truth = curve.delta(row["epsilon"]), row["delta"]
    elif row["delta"] == 0:
        assert curve.delta(row["epsilon"] * (1 + row["tolerance"])) == 0
        got, truth = curve.epsilon(1e-300), row["epsilon"]
    else:
        got, truth = curve.epsilon(row["delta"]), row["epsilon"]
    if row["kind"] != "upper_bound":  # a tighter bound than the row's may be proved
        assert got >= truth * (1 - 1e-5)
    if row["kind"] != "lower_bound":
        assert got <= truth * (1 + row["tolerance"])
    elif row["mechanism"] == "barker" and p["log_ratio_sensitivity"] <= 0.1:
        assert got <= truth * 1.1


# No bound of ours lies below a row of kind "lower_bound" for the same parameters.
def test_upper_bounds_of_the_same_parameters_lie_above_lower_bounds():
    lowest = {}
    for row in NEW:
        key = (
            row["mechanism"],
            row["relation"],
            row["delta"],
            json.dumps(
                {k: v for k, v in row["parameters"].items() if k not in ("log_ratio", "rho")},
                sort_keys=True,
            ),
        )
        if row["kind"] == "lower_bound":
            lowest[key] = row["epsilon"]
    checked = 0
    for row in NEW:
        key = (
            row["mechanism"],
            row["relation"],
            row["delta"],
            json.dumps(
                {k: v for k, v in row["parameters"].items() if k not in ("log_ratio", "rho")},
                sort_keys=True,
            ),
        )
        if row["kind"] == "upper_bound" and key in lowest:
            p = row["parameters"]
            curve = privacy_curve(STATED[row["mechanism"]][1](p), relation_of(row))
            assert curve.epsilon(row["delta"]) >= lowest[key] * (1 - 1e-5)
            checked += 1
    assert checked >= 15


def test_calibrated_barker_bound_is_no_smaller_than_by_concentrated_privacy():
    (row,) = [row for row in ROWS if row["name"] == "calibrate_barker_T1000"]
    budget = Budget(row["epsilon"], row["delta"])
    steps = row["parameters"]["steps"]
    found = largest(
        lambda bound: SelfComposedDpEvent(BarkerBit(bound), steps), budget, lower=1e-4, upper=1.0
    )
    assert found >= row["value"] * (1 - row["tolerance"])
    # The number of ones in fair bits is what an attacker sees at least.
    count = np.arange(steps + 1)
    plain, moved = binom.pmf(count, steps, 0.5), binom.pmf(count, steps, 1 / (1 + math.exp(-found)))
    assert np.maximum(moved - math.exp(budget.epsilon) * plain, 0).sum() <= budget.delta


def test_calibrated_penalty_noise_is_no_larger_than_the_gaussian_one():
    (row,) = [row for row in ROWS if row["name"] == "calibrate_penalty_T1000"]
    p, budget = row["parameters"], Budget(row["epsilon"], row["delta"])
    bound = p["log_ratio_sensitivity"]

    def family(sd):
        return SelfComposedDpEvent(PenaltyBit(bound, sd), p["steps"])

    sd = calibrate(family, budget)
    assert 0.7 * row["value"] < sd <= row["value"] * (1 + row["tolerance"])
    assert privacy_curve(family(sd)).epsilon(row["delta"]) <= row["epsilon"]


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row["mechanism"] == "batch_cap"], ids=lambda row: row["name"]
)
def test_a_cap_is_a_total_variation(row):
    p = row["parameters"]
    if "N" in p:
        beyond = binom.sf(p["batch_cap"], p["N"], p["sampling_rate"])
    else:
        beyond = poisson.sf(p["batch_cap"], p["lam"] + p["CA"])
    capped = SelfComposedDpEvent(TotalVariation(float(beyond)), p["steps"])
    found = privacy_curve(capped).delta(p["epsilon_of_the_rest"])
    outside = (1 + math.exp(p["epsilon_of_the_rest"])) * p["steps"] * beyond
    assert outside == pytest.approx(row["value"], rel=row["tolerance"])
    at_zero = 2 * p["steps"] * beyond  # δ only falls in ε, so the cost at ε = 0 holds as well
    assert found == pytest.approx(at_zero, rel=1e-6)
