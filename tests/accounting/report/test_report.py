"""The privacy report: true, complete, recomputable, and safe to show."""

import json
import math
from dataclasses import fields, replace

import mpmath
import pytest

from numpyro_dp.accounting import Accountant, Budget, PrivacyReport, calibrate, privacy_curve
from numpyro_dp.accounting.events import (
    GaussianDpEvent,
    NonPrivateDpEvent,
    PoissonSampledDpEvent,
    PureObjectivePerturbationRelease,
    SelfComposedDpEvent,
    to_json,
)
from numpyro_dp.accounting.report import render
from numpyro_dp.accounting.report.facts import RunFacts
from numpyro_dp.accounting.report.risk import attack_risk

EVENT = SelfComposedDpEvent(PoissonSampledDpEvent(0.05, GaussianDpEvent(4.0)), 100)


def build(**changes):
    facts = {
        "entries": [("DPSGLD", EVENT)],
        "relation": "zero_out",
        "delta": 1e-5,
        "unit": "one slice of plate '<people>'",
        "num_records": 400,
        "mechanism": "Gaussian mechanism on clipped gradients",
        "sampler": "Poisson sampling, rate 0.05",
        "sampling_rate": 0.05,
        "clip_norm": 2.0,
        "noise_multiplier": 4.0,
        "steps": 100,
        "warmup_steps": 20,
        "num_chains": 4,
        "released": ("the position after every step",),
        "assumed_public": ("the number of records",),
        "randomness": "ChaCha20 keys from the operating system",
        "arithmetic": "integers",
    }
    given = {**facts, **changes}
    names = {field.name for field in fields(RunFacts)} - {"conditions"}
    told = {name: given.pop(name) for name in names & set(given)}
    return PrivacyReport.build(RunFacts(**told), **given)


def test_numbers_come_from_the_events():
    report = build()
    curve = privacy_curve(EVENT)
    assert report.epsilon == curve.epsilon(1e-5)
    assert report.curve == tuple((10.0**-k, curve.epsilon(10.0**-k)) for k in range(4, 10))
    assert report.noise_std == 8.0
    assert report.advantage == curve.delta(0.0)
    assert report.attacker_certainty == (1 + report.advantage) / 2


def test_recompute_agrees_and_exposes_tampering():
    report = build()
    assert report.recompute() == report.epsilon
    (label, event), *_ = report.events
    louder = replace(report, events=((label, event.replace("4.0", "2.0")),))
    assert louder.recompute() > report.epsilon * 1.5
    with pytest.raises(ValueError, match="unknown event class"):
        replace(report, events=((label, '{"class": "Other"}'),)).recompute()


def test_epsilon_never_stands_alone():
    report = build(conditions=("the key stays secret",))
    for text in (str(report), report.full(), report._repr_html_(), report.to_markdown()):
        for part in ("1e-05", "people", "zero-out", "the key stays secret"):
            assert part in text
        # Of persons with several slices.
        assert "user-level" in text or "owns several is protected less" in text
    assert "conditional" in report.variant


def test_text_fits_100_columns():
    report = build(notes=("A rather long note, " * 20,), accountant=Accountant(Budget(9.0, 1e-5)))
    for text in (str(report), report.full()):
        assert max(len(line) for line in text.splitlines()) <= 100


def test_html_and_markdown_are_escaped():
    report = build(notes=("<script>alert(1)</script> | cell",))
    assert "<script>" not in report._repr_html_()
    assert "<people>" not in report._repr_html_()
    assert "<script>" not in report.to_markdown()
    assert "\\| cell" in report.to_markdown()


def test_reports_in_full_say_where_their_words_are():
    report = build()
    forms = report.full(), report.to_markdown(), report._repr_html_()
    assert all("ten-words" in text for text in forms)


@pytest.mark.parametrize("changes", [{}, {"entries": [("test", NonPrivateDpEvent())]}])
def test_round_trips(changes):
    report = build(**changes, clip_norm=math.inf, accountant=Accountant())
    assert PrivacyReport.from_dict(report.to_dict()) == report
    assert PrivacyReport.from_dict(json.loads(report.to_json())) == report
    with pytest.raises(ValueError, match="fields missing"):
        PrivacyReport.from_dict({"epsilon": 0.1})


def test_the_ledger_has_its_own_line():
    accountant = Accountant(Budget(3.0, 1e-6))
    accountant.charge(GaussianDpEvent(10.0), label="earlier")
    accountant.charge(EVENT, label="DPSGLD")
    report = build(accountant=accountant)
    assert report.ledger_epsilon == accountant.epsilon()
    assert report.ledger_left == accountant.remaining()
    assert (report.ledger_delta, report.ledger_budget) == (1e-6, 3.0)
    assert report.earlier_runs == 1
    assert "1 earlier charge in this ledger" in report.full()
    assert "whole ledger" in str(report)


def test_a_ledgers_row_says_what_its_guarantee_depends_on():
    """A finite budget beside ε = ∞ charged contradicted itself, and the condition was missing."""
    for budget in (Budget(3.0, 1e-6), None):
        accountant = Accountant(budget, allow_conditional=True)
        accountant.charge(GaussianDpEvent(10.0), label="a", condition="nobody has the keys")
        accountant.charge(GaussianDpEvent(10.0), label="b", condition="the store is trusted")
        # This result's own charge depends on nothing.
        accountant.charge(EVENT, label="DPSGLD")
        report = build(accountant=accountant)
        assert report.conditions == ()
        assert report.ledger_conditions == ("nobody has the keys", "the store is trusted")
        assert report.ledger_epsilon == math.inf
        row = render.ledger(report)
        assert "PROVIDED THAT nobody has the keys; and that the store is trusted" in row
        for text in (report.full(), str(report), report.to_markdown(), report._repr_html_()):
            assert "PROVIDED THAT nobody has the keys" in " ".join(text.split())
        if budget is not None:
            assert "ε = ∞ at δ = 1e-06 charged where that fails" in row
            assert (
                "left where it holds: ε does not add or subtract, charges compose like noise" in row
            )
            # Nor does it stand alone where a program reads it.
            assert "nobody has the keys" in report.to_dict()["ledger_guarantee"]
        assert PrivacyReport.from_dict(json.loads(report.to_json())) == report
    plain = Accountant(Budget(3.0, 1e-6))
    plain.charge(EVENT, label="DPSGLD")
    row = render.ledger(build(accountant=plain))
    assert "PROVIDED" not in row
    assert "fails" not in row


def test_without_privacy_it_says_so():
    report = build(entries=[("test", NonPrivateDpEvent())], clip_norm=math.inf)
    assert report.epsilon == math.inf
    for text in (str(report), report.full(), report._repr_html_()):
        assert "NOT differentially private" in text
    assert report.variant.startswith("none")
    assert (report.advantage, report.tpr_at_fpr) == (1.0, 1.0)


def test_registry_fields_hold_the_events():
    tiers = build().to_registry()
    assert tiers["tier_2"]["privacy_parameters"]["delta"] == 1e-5
    assert tiers["tier_3"]["events"] == [{"label": "DPSGLD", "event": to_json(EVENT)}]
    json.dumps(tiers)


def test_one_epsilon_allows_other_mechanisms_more_than_a_gaussian():
    """The pages' 56 % are of one Gaussian release; ε = 1 by itself allows 74 %."""
    budget = Budget(1.0, 1e-5)

    def pure(scale):
        return PureObjectivePerturbationRelease(1.0, 0.25, 5.0, scale)

    gaussian, other = (
        attack_risk(privacy_curve(family(calibrate(family, budget))))
        for family in (GaussianDpEvent, pure)
    )
    assert 0.55 < gaussian.certainty < 0.56
    assert gaussian.true_positive_rate < 0.02
    allowed = math.e / (1 + math.e) + budget.delta
    assert 0.9 * allowed < other.certainty <= allowed == pytest.approx(0.731, abs=1e-3)
    assert 0.025 < other.true_positive_rate <= math.e * 0.01 + budget.delta


@pytest.mark.parametrize("mu", [0.1, 0.5, 1.0, 3.0])
def test_attack_risk_bounds_the_best_test_against_a_gaussian(mu):
    risk = attack_risk(privacy_curve(GaussianDpEvent(1 / mu)))
    power = float(mpmath.ncdf(mu + math.sqrt(2) * mpmath.erfinv(2 * 0.01 - 1)))
    assert power <= risk.true_positive_rate <= power * 1.01
    advantage = float(2 * mpmath.ncdf(mu / 2) - 1)
    assert advantage <= risk.advantage <= advantage * (1 + 1e-8)


@pytest.mark.parametrize("changes", [{"delta": 0.0}, {"relation": "neighbours"}])
def test_impossible_facts_are_refused(changes):
    with pytest.raises(ValueError, match=r"delta|relation"):
        build(**changes)
