"""Plans: charged once, drawn from in any order by any process, and never twice."""

import copy
import pickle
import sqlite3
import subprocess
import sys

import numpy as np
import pytest

from numpyro_dp.accounting import Accountant, Budget, ChargePlan, privacy_curve
from numpyro_dp.accounting.events import (
    ComposedDpEvent,
    GaussianDpEvent,
    NonPrivateDpEvent,
    PoissonSampledDpEvent,
    PosteriorDraw,
    SelfComposedDpEvent,
    TotalVariation,
)
from numpyro_dp.errors import BudgetExceededError, LedgerError
from tests.accounting import adversary

BUDGET = Budget(1.0, 1e-5)
STEP = PoissonSampledDpEvent(0.01, GaussianDpEvent(3.0))
RUN = ComposedDpEvent([SelfComposedDpEvent(STEP, 400), TotalVariation(3e-10)])
LOOK, DRAW = GaussianDpEvent(9.0), PosteriorDraw(0.2)


@pytest.fixture(params=["memory", "file"])
def accountant(request, tmp_path):
    path = tmp_path / "study.ledger" if request.param == "file" else None
    return Accountant(BUDGET, path=path)


def test_a_plan_is_one_charge_and_costs_what_its_list_does(accountant):
    plan = accountant.plan([LOOK, RUN, DRAW], label="study")
    assert isinstance(plan, ChargePlan)
    assert len(accountant.entries) == 1
    exact = privacy_curve(ComposedDpEvent([LOOK, RUN, DRAW])).epsilon(1e-5)
    assert accountant.epsilon() == pytest.approx(exact, rel=1e-9)
    before = accountant.epsilon()
    for event in (DRAW, RUN, LOOK):
        assert plan.fits(event)
        plan.charge(event, label="part")
        assert not plan.fits(event)
    assert accountant.epsilon() == plan.epsilon() == before
    assert len(accountant.entries) == 1
    assert (plan.budget, plan.relation, plan.stated_delta) == (BUDGET, "zero_out", 1e-5)


def test_a_part_is_drawn_once(accountant):
    plan = accountant.plan([LOOK, LOOK, DRAW], label="study")
    plan.charge(LOOK, label="one")
    plan.charge(LOOK, label="two")
    with pytest.raises(BudgetExceededError, match="'three' asks for Gaussian") as refusal:
        plan.charge(LOOK, label="three")
    assert "unused in it: 1 × " in str(refusal.value)
    # The message's remedy: a part of what is unused, or the accountant itself.
    plan.charge(DRAW, label="three")
    accountant.charge(GaussianDpEvent(60.0), label="three")
    assert len(accountant.entries) == 2


def test_repeated_steps_are_drawn_in_portions(accountant):
    plan = accountant.plan([RUN], label="study")

    def steps(count):
        return ComposedDpEvent([SelfComposedDpEvent(STEP, count), TotalVariation(count * 7.5e-13)])

    assert not plan.fits(steps(401))
    for _ in range(4):
        plan.charge(steps(100), label="quarter")
    assert not plan.fits(STEP)
    # Distances count as well, and so do other settings.
    other = accountant.plan([GaussianDpEvent(100.0), TotalVariation(1e-12)], label="small")
    assert not other.fits(TotalVariation(1.1e-12))
    assert not other.fits(GaussianDpEvent(99.0))
    assert other.fits(ComposedDpEvent([GaussianDpEvent(100.0), TotalVariation(1e-12)]))


def test_what_is_unused_stays_charged_and_later_charges_come_after(accountant):
    plan = accountant.plan([LOOK, RUN], label="study")
    plan.charge(LOOK, label="only one")
    assert accountant.epsilon() == pytest.approx(
        privacy_curve(ComposedDpEvent([LOOK, RUN])).epsilon(1e-5), rel=1e-9
    )
    accountant.charge(GaussianDpEvent(40.0), label="later")
    text = str(accountant.report())
    assert "[plan, drawn by: only one]" in text
    assert "1 later as Gaussians" in text


def test_an_adaptive_order_of_a_plan_costs_no_more_than_its_list():
    # Three looks; the analyst takes the louder or the quieter one next, or stops, by the outcome.
    events = [GaussianDpEvent(7.0), GaussianDpEvent(6.0), GaussianDpEvent(12.0)]
    kind = adversary.MENU[0]
    masses = {event: kind.losses(event.noise_multiplier)[0] for event in events}

    def value(left):
        stop = adversary.delta_at(adversary.NOTHING)
        options = [adversary.after(masses[e], value([o for o in left if o is not e])) for e in left]
        return np.max([stop, *options], axis=0)

    exact = privacy_curve(ComposedDpEvent(events)).delta(1.0)
    assert 0.9 * exact < adversary.at(value(events), 1.0) <= exact


def test_a_plan_that_does_not_fit_is_refused_whole(accountant):
    with pytest.raises(BudgetExceededError, match="'study' asks for"):
        accountant.plan([GaussianDpEvent(4.0)] * 2, label="study")
    with pytest.raises(BudgetExceededError, match="without privacy"):
        accountant.plan([LOOK, NonPrivateDpEvent()], label="study")
    with pytest.raises(ValueError, match="list of one or more events"):
        accountant.plan([], label="study")
    with pytest.raises(ValueError, match="list of one or more events"):
        accountant.plan([1.0], label="study")
    assert accountant.entries == ()
    plan = accountant.plan([LOOK], label="study")
    with pytest.raises(ValueError, match="ask the accountant"):
        plan.plan([LOOK], label="within")


def test_only_plans_can_be_drawn_from(accountant):
    accountant.charge(LOOK, label="a run that took place")
    assert accountant.plans == ()
    plan = accountant.plan([GaussianDpEvent(20.0)], label="study")
    assert [one.label for one in accountant.plans] == ["study"]
    assert accountant.plans[0].unused == plan.unused


def test_a_conditional_part_needs_a_conditional_plan(tmp_path):
    accountant = Accountant(BUDGET, path=tmp_path / "a.ledger", allow_conditional=True)
    plan = accountant.plan([LOOK], label="study")
    with pytest.raises(BudgetExceededError, match="make the plan with this condition="):
        plan.charge(LOOK, label="draw", condition="the key is secret")
    said = accountant.plan([GaussianDpEvent(30.0)], label="draws", condition="the key is secret")
    said.charge(GaussianDpEvent(30.0), label="draw", condition="the key is secret")


SCRIPT = """
import sys
from numpyro_dp.accounting import Accountant
from numpyro_dp.accounting.events import GaussianDpEvent
from numpyro_dp.errors import BudgetExceededError, LedgerError
(plan,) = Accountant(path=sys.argv[1]).plans
taken = 0
try:
    while True:
        plan.charge(GaussianDpEvent(40.0), label="process")
        taken += 1
except BudgetExceededError:
    print(taken)
"""


@pytest.mark.slow
def test_two_processes_draw_from_one_plan(tmp_path):
    path = tmp_path / "study.ledger"
    accountant = Accountant(BUDGET, path=path)
    plan = accountant.plan([SelfComposedDpEvent(GaussianDpEvent(40.0), 30)], label="study")
    command = [sys.executable, "-c", SCRIPT, str(path)]
    others = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    taken = [int(other.communicate()[0]) for other in others]
    assert sum(taken) == 30
    assert not plan.fits(GaussianDpEvent(40.0))
    assert len(accountant._ledger.read().draws) == 30


def test_copies_share_the_file_and_memory_has_none(tmp_path):
    plan = Accountant(BUDGET, path=tmp_path / "a.ledger").plan([LOOK, LOOK], label="study")
    for duplicate in (lambda a: pickle.loads(pickle.dumps(a)), copy.copy):
        duplicate(plan).charge(LOOK, label="copy")
    assert not plan.fits(LOOK)
    with pytest.raises(pickle.PicklingError, match="path="):
        pickle.dumps(Accountant(BUDGET).plan([LOOK], label="study"))


@pytest.mark.parametrize(
    "event",
    [
        SelfComposedDpEvent(LOOK, -1),
        SelfComposedDpEvent(LOOK, 0.5),
        SelfComposedDpEvent(TotalVariation(1e-9), -1),
        ComposedDpEvent([DRAW, SelfComposedDpEvent(LOOK, -1)]),
    ],
)
def test_nothing_is_ever_given_back(accountant, event):
    """A draw of less than nothing would fill a plan up again, and its steps be taken for ever."""
    plan = accountant.plan([LOOK, DRAW], label="study")
    plan.charge(LOOK, label="one")
    for take in (lambda: plan.charge(event, label="refill"), lambda: plan.fits(event)):
        with pytest.raises(ValueError, match="whole number"):
            take()
    assert not plan.fits(LOOK)


def test_whole_constants_are_the_same_as_floats(accountant):
    plan = accountant.plan(
        [GaussianDpEvent(9), SelfComposedDpEvent(GaussianDpEvent(8.0), 2)], label="a"
    )
    plan.charge(GaussianDpEvent(9.0), label="one")
    plan.charge(GaussianDpEvent(8), label="two")


def test_a_plan_of_another_file_is_not_drawn_from(tmp_path):
    path = tmp_path / "study.ledger"
    plan = Accountant(BUDGET, path=path).plan([LOOK], label="mine")
    path.unlink()
    with pytest.raises(LedgerError):
        plan.charge(LOOK, label="gone")
    Accountant(BUDGET, path=path)
    with pytest.raises(LedgerError, match="make the plan again"):
        plan.charge(LOOK, label="empty")
    Accountant(path=path).plan([LOOK], label="theirs")
    with pytest.raises(LedgerError, match="make the plan again"):
        plan.charge(LOOK, label="exchanged")
    assert Accountant(path=path).plans[0].fits(LOOK)


def test_draws_cannot_be_taken_away_with_the_format(tmp_path):
    path = tmp_path / "study.ledger"
    Accountant(BUDGET, path=path).plan([LOOK], label="mine").charge(LOOK, label="one")
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE draws")
        connection.execute("DELETE FROM meta WHERE key IN ('drawn', 'opening')")
        connection.execute("PRAGMA user_version = 1")
    connection.close()
    with pytest.raises(LedgerError, match="plan that its format does not know"):
        Accountant(path=path)
