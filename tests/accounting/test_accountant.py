"""The accountant: refuses before it charges, says what would fit, hides no condition."""

import copy
import math
import pickle
import re

import dp_accounting
import pytest

from numpyro_dp.accounting import (
    Accountant,
    Budget,
    calibrate,
    privacy_curve,
    rounded_down,
    rounded_up,
)
from numpyro_dp.accounting.events import (
    ComposedDpEvent,
    GaussianDpEvent,
    NonPrivateDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
    TotalVariation,
    describe,
)
from numpyro_dp.errors import BudgetExceededError

BUDGET = Budget(1.0, 1e-5)


def run(noise, steps, distance=1e-12):
    step = PoissonSampledDpEvent(0.01, GaussianDpEvent(noise))
    return ComposedDpEvent([SelfComposedDpEvent(step, steps), TotalVariation(distance)])


@pytest.fixture(params=["memory", "file"])
def accountant(request, tmp_path):
    path = tmp_path / "study.ledger" if request.param == "file" else None
    return Accountant(BUDGET, path=path)


def test_charges_compose_as_one_event(accountant):
    for event in (GaussianDpEvent(20.0), run(3.0, 200)):
        assert accountant.fits(event)
        accountant.charge(event, label="part")
    curve = privacy_curve(ComposedDpEvent([GaussianDpEvent(20.0), run(3.0, 200)]))
    # Against the budget the second one counts as a Gaussian, which costs a little more.
    assert curve.epsilon(1e-5) < accountant.epsilon() < 1.02 * curve.epsilon(1e-5)
    assert accountant.epsilon(1e-7) == curve.epsilon(1e-7)
    assert accountant.delta(0.2) == curve.delta(0.2)
    assert [entry.label for entry in accountant.entries] == ["part", "part"]


def test_a_refusal_charges_nothing_and_says_what_would_fit(accountant):
    accountant.charge(GaussianDpEvent(10.0), label="mean")
    spent, wanted = accountant.epsilon(), run(1.0, 1000)
    assert not accountant.fits(wanted)
    with pytest.raises(BudgetExceededError) as refusal:
        accountant.charge(wanted, label="sampler")
    assert accountant.epsilon() == spent
    assert len(accountant.entries) == 1
    text = str(refusal.value)
    alone = privacy_curve(wanted).epsilon(1e-5)
    both = privacy_curve(ComposedDpEvent([GaussianDpEvent(10.0), wanted])).epsilon(1e-5)
    assert "'sampler'" in text
    for number in (alone, both, both - 1.0):
        assert rounded_up(number) in text
    assert rounded_down(accountant.remaining()) in text
    steps = int(re.search(r"(\d+) of its 1000 steps", text)[1])
    assert accountant.fits(run(1.0, steps))
    assert not accountant.fits(run(1.0, steps + max(2, steps // 50)))
    noise = float(re.search(r"noise_multiplier = ([\d.]+\d)", text)[1])
    assert accountant.fits(run(noise, 1000))
    assert not accountant.fits(run(noise * 0.998, 1000))


def test_remaining_is_what_a_gaussian_may_still_cost(accountant):
    assert accountant.remaining() == BUDGET.epsilon
    accountant.charge(run(3.0, 300), label="sampler")
    left = accountant.remaining()
    assert 1.0 - accountant.epsilon() < left < 1.0
    noise = calibrate(GaussianDpEvent, Budget(left, 1e-5))
    assert accountant.fits(GaussianDpEvent(noise))
    assert not accountant.fits(GaussianDpEvent(noise / 1.004))


def test_nothing_remains_once_all_is_spent():
    accountant = Accountant(BUDGET)
    accountant.charge(GaussianDpEvent(3.7314), label="all of it")
    assert accountant.remaining() < 0.02
    with pytest.raises(BudgetExceededError, match="Nothing was charged"):
        accountant.charge(GaussianDpEvent(3.7314), label="again")


def test_without_a_budget_spending_is_counted():
    accountant = Accountant()
    accountant.charge(GaussianDpEvent(0.1), label="loud")
    assert accountant.remaining() == math.inf
    assert accountant.epsilon() == privacy_curve(GaussianDpEvent(0.1)).epsilon(1e-6)
    accountant.charge(NonPrivateDpEvent(), label="test run")
    assert accountant.epsilon() == math.inf
    assert accountant.delta(3.0) == 1.0
    assert "∞" in str(accountant.report()) or "inf" in str(accountant.report())


@pytest.mark.parametrize("event", [NonPrivateDpEvent(), GaussianDpEvent(0.0)], ids=str)
def test_a_budget_refuses_what_is_not_private(accountant, event):
    assert not accountant.fits(event)
    with pytest.raises(BudgetExceededError, match="without privacy"):
        accountant.charge(event, label="test run")
    assert accountant.entries == ()


def test_unknown_events_are_refused(accountant):
    with pytest.raises(ValueError, match="cannot be stored"):
        accountant.charge(dp_accounting.LaplaceDpEvent(0.01), label="foreign")
    with pytest.raises(ValueError, match="cannot be stored"):
        accountant.fits(dp_accounting.LaplaceDpEvent(0.01))
    assert accountant.entries == ()


@pytest.mark.parametrize("label", ["", "  ", None, 3])
def test_labels_are_checked(accountant, label):
    with pytest.raises(ValueError, match="label"):
        accountant.charge(GaussianDpEvent(30.0), label=label)


@pytest.mark.parametrize(
    "text",
    [
        "ends\nε = 0.1 at δ = 1e-05",
        "tab\tand more",
        "\x1b[2J",
        "\u202eetadilav",
        "line\u2028separator",
        "half a pair \ud800",
        "x" * 201,
        "no\u00a0break",
    ],
    ids=["newline", "tab", "escape", "direction", "separator", "surrogate", "long", "space"],
)
def test_labels_and_conditions_are_one_printable_line(accountant, text):
    with pytest.raises(ValueError, match="one line of at most 200 printable characters"):
        accountant.charge(GaussianDpEvent(30.0), label=text)
    with pytest.raises(ValueError, match="one line"):
        accountant.plan([GaussianDpEvent(30.0)], label=text)
    if len(text) < 200:
        with pytest.raises(ValueError, match="condition must be one line"):
            accountant.charge(GaussianDpEvent(30.0), label="draw", condition=text)
    assert accountant.entries == ()
    accountant.charge(GaussianDpEvent(30.0), label="élan vital, 心, ε = 1")


def test_conditional_charges_need_consent(accountant):
    with pytest.raises(BudgetExceededError, match="allow_conditional=True"):
        accountant.charge(GaussianDpEvent(30.0), label="draw", condition="the chain converged")
    assert accountant.entries == ()


def test_a_conditional_charge_makes_epsilon_infinite(tmp_path):
    accountant = Accountant(BUDGET, path=tmp_path / "study.ledger", allow_conditional=True)
    accountant.charge(GaussianDpEvent(30.0), label="draw", condition="the chain <converged>")
    assert accountant.epsilon() == math.inf
    assert accountant.delta(10.0) == 1.0
    report = accountant.report()
    assert report.conditions == ("the chain <converged>",)
    assert report.total == privacy_curve(GaussianDpEvent(30.0)).epsilon(1e-5)
    assert "∞" in str(report)
    assert "the chain <converged>" in str(report)
    assert "the chain &lt;converged&gt;" in report._repr_html_()
    with pytest.raises(BudgetExceededError, match="over the budget"):
        accountant.charge(GaussianDpEvent(1.0), label="too much")


def test_the_report_names_every_charge(accountant):
    accountant.charge(GaussianDpEvent(30.0), label="<b>mean</b>")
    accountant.charge(run(3.0, 50), label="sampler")
    text = str(accountant.report())
    for part in ("<b>mean</b>", "sampler", "50 × Poisson", "zero-out", "left", "δ = 1e-05"):
        assert part in text
    html = accountant.report()._repr_html_()
    assert "<b>mean</b>" not in html
    assert "&lt;b&gt;mean" in html


def test_the_report_of_many_parts_fits_the_screen_and_counts_them_all():
    accountant = Accountant()
    rounds = [SelfComposedDpEvent(GaussianDpEvent(noise), 1) for noise in (20.0, 30.0, 40.0)]
    parts = [part for each in rounds for part in (each, TotalVariation(1e-13))]
    accountant.charge(ComposedDpEvent([*parts, run(3.0, 50)]), label="DPNUTS of " + "words " * 30)
    text = str(accountant.report())
    assert max(map(len, text.splitlines())) <= 100
    whole = " ".join(text.split())
    assert "3 × Gaussian, noise multipliers 20 to 40 + total variation 3e-13 + 50 × Pois" in whole
    same = ComposedDpEvent([GaussianDpEvent(20.0)] * 3 + [SelfComposedDpEvent(rounds[0], 2)] * 2)
    assert describe(same).startswith("3 × Gaussian, noise multiplier 20 + 2 × 1 × Gaussian")


def test_memory_is_never_duplicated():
    accountant = Accountant(BUDGET)
    for duplicate in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(pickle.PicklingError, match="path="):
            duplicate(accountant)


def test_copies_of_a_file_accountant_share_the_file(tmp_path):
    accountant = Accountant(BUDGET, path=tmp_path / "study.ledger", allow_conditional=True)
    for duplicate in (lambda a: pickle.loads(pickle.dumps(a)), copy.copy, copy.deepcopy):
        other = duplicate(accountant)
        other.charge(GaussianDpEvent(30.0), label="copy")
        assert other.entries == accountant.entries
        assert other.allow_conditional
    assert len(accountant.entries) == 3


def test_budget_type_is_checked():
    with pytest.raises(ValueError, match="Budget"):
        Accountant(1.0)  # ty: ignore[invalid-argument-type]


def lines(report):
    """The facts above the table of charges, by name; each may take several lines."""
    whole = re.sub(r"\n {14}(?! )", " ", str(report))
    return {line[:14].strip(): line[14:] for line in whole.splitlines()}


def test_with_a_budget_the_report_says_what_is_guaranteed_and_what_counts(accountant):
    accountant.charge(GaussianDpEvent(20.0), label="mean")
    first = lines(accountant.report())
    assert first["guarantee"] == "ε = 1 at δ = 1e-05, however charges were chosen"
    assert first["charged"] == f"ε = {rounded_up(accountant.epsilon())} at δ = 1e-05"
    accountant.charge(run(3.0, 50), label="sampler")
    accountant.charge(GaussianDpEvent(40.0), label="again")
    report = accountant.report()
    planned = privacy_curve(ComposedDpEvent([entry.event for entry in accountant.entries])).epsilon(
        1e-5
    )
    assert report.planned == planned < report.total == accountant.epsilon()
    assert lines(report)["charged"] == (
        f"ε = {rounded_up(report.total)} at δ = 1e-05 (first entry or plan exactly, 2 later as "
        f"Gaussians; ε = {rounded_up(planned)} had all been planned)"
    )
    assert lines(report)["left"].startswith(f"ε = {rounded_down(accountant.remaining())}")
    assert lines(report)["left"].endswith("ε does not subtract)")


def test_without_a_budget_no_more_is_claimed_than_for_a_list_fixed_in_advance():
    accountant = Accountant()
    accountant.charge(GaussianDpEvent(20.0), label="mean")
    assert lines(accountant.report())["counted"].endswith("at δ = 1e-06")
    accountant.charge(GaussianDpEvent(20.0), label="again")
    found = lines(accountant.report())
    assert "guarantee" not in found
    assert found["counted"] == (
        f"ε = {rounded_up(accountant.epsilon())} at δ = 1e-06 for a list of charges fixed in "
        "advance; if one was chosen from earlier results, no ε is stated: give a budget"
    )


def test_without_a_budget_the_report_is_at_the_delta_of_the_runs():
    accountant = Accountant()
    accountant.charge(GaussianDpEvent(20.0), label="mean")
    report = accountant.report(delta=1e-4)
    assert report.total == accountant.epsilon(1e-4) == report.rows[0].epsilon
    assert "1e-06" not in str(report)
    assert lines(report)["counted"].endswith("at δ = 0.0001")
    with pytest.raises(ValueError, match="delta"):
        accountant.report(delta=0.0)
    bounded = Accountant(Budget(1.0, 1e-5))
    assert str(bounded.report(delta=1e-5)) == str(bounded.report())
    with pytest.raises(ValueError, match=r"accountant\.epsilon\(delta=0.0001\)"):
        bounded.report(delta=1e-4)
    assert bounded.epsilon(delta=0.0001) == 0


def test_epsilon_never_falls_with_delta_and_never_passes_the_budget(accountant):
    for event in (run(3.0, 300), GaussianDpEvent(9.0), run(3.0, 100)):
        accountant.charge(event, label="part")
    deltas = [1e-8, 9.99e-6, 1e-5, 1.01e-5, 1e-4]
    found = [accountant.epsilon(delta) for delta in deltas]
    assert found == sorted(found, reverse=True)
    assert accountant.epsilon() <= BUDGET.epsilon


def test_a_refusal_that_a_plan_would_have_avoided_says_so(accountant):
    first, second = GaussianDpEvent(5.276), GaussianDpEvent(5.276)
    accountant.charge(first, label="first look")
    with pytest.raises(BudgetExceededError) as refusal:
        accountant.charge(second, label="second look")
    text = str(refusal.value)
    shift = float(re.search(r"a Gaussian of shift ([\d.]+\d)", text)[1])
    room = float(re.search(r"and ([\d.]+\d) is left", text)[1])
    assert shift >= 1 / 5.276
    assert room < shift
    # Both ways on, followed literally.
    noise = float(re.search(r"noise_multiplier = ([\d.]+\d)", text)[1])
    assert accountant.fits(GaussianDpEvent(noise))
    assert "one plan made beforehand with 'first look' (Accountant.plan)" in text
    plan = Accountant(BUDGET).plan([first, second], label="both")
    plan.charge(second, label="second look")


def test_total_variation_without_room_is_named():
    accountant = Accountant(BUDGET)
    accountant.charge(run(3.0, 300), label="sampler")
    with pytest.raises(BudgetExceededError, match=r"Its total variation .* is more than is kept"):
        accountant.charge(run(6.0, 10, distance=3e-7), label="sloppy tables")


def rounds(budget):
    """Gaussians of unequal noise, as a release of scores has them."""

    def made(noise):
        parts = [SelfComposedDpEvent(GaussianDpEvent(noise / k), 1) for k in (1, 2, 3)]
        return ComposedDpEvent([*parts, TotalVariation(1e-12)])

    return made(calibrate(made, budget))


def test_what_would_fit_of_unequal_gaussians_fits():
    accountant = Accountant(BUDGET)
    accountant.charge(rounds(Budget(0.5 * BUDGET.epsilon, BUDGET.delta / 2)), label="first")
    with pytest.raises(BudgetExceededError) as refusal:
        accountant.charge(rounds(BUDGET), label="DPNUTS")
    fits = float(re.search(r"the same with privacy of ε = ([\d.]+\d)", str(refusal.value))[1])
    accountant.charge(rounds(Budget(fits, BUDGET.delta)), label="DPNUTS")
    assert len(accountant.entries) == 2
