"""Plots show the figures of the accounting, and nothing else."""

import math
import sys

import numpy as np
import pytest

from numpyro_dp.accounting import Accountant, Budget, PrivacyReport, privacy_curve
from numpyro_dp.accounting.events import (
    ComposedDpEvent,
    GaussianDpEvent,
    NonPrivateDpEvent,
    SelfComposedDpEvent,
    TotalVariation,
)
from numpyro_dp.accounting.report.facts import RunFacts
from numpyro_dp.diagnostics.plots import plot_budget, plot_epsilon_by_step, plot_privacy_curve

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")
pyplot = pytest.importorskip("matplotlib.pyplot")

STEPS = ComposedDpEvent([SelfComposedDpEvent(GaussianDpEvent(60.0), 200), TotalVariation(1e-12)])


@pytest.fixture
def axes():
    figure, ax = pyplot.subplots()
    yield ax
    pyplot.close(figure)


@pytest.fixture
def accountant():
    ledger = Accountant(Budget(1.0, 1e-5))
    ledger.charge(STEPS, label="analyst A")
    ledger.charge(GaussianDpEvent(30.0), label="analyst B")
    ledger.charge(GaussianDpEvent(30.0), label="analyst B")
    return ledger


def everything(accountant):
    return privacy_curve(ComposedDpEvent([entry.event for entry in accountant.entries]))


def test_the_curve_is_the_guarantee(accountant, axes):
    assert plot_privacy_curve(accountant, epsilons=[0.2, 0.9], ax=axes, label="all") is axes
    line, point = axes.lines
    curve = everything(accountant)
    np.testing.assert_allclose(line.get_ydata(), [curve.delta(0.2), curve.delta(0.9)])
    assert (point.get_xdata()[0], point.get_ydata()[0]) == (curve.epsilon(1e-5), 1e-5)
    assert axes.get_yscale() == "log"


def test_a_report_and_its_result_draw_the_same_curve(axes):
    facts = RunFacts(
        unit="one slice of plate 'people'",
        num_records=10,
        mechanism="Gaussian",
        sampler="all",
        sampling_rate=1.0,
        clip_norm=1.0,
        noise_multiplier=4.0,
        released=("z",),
        arithmetic="none",
    )
    report = PrivacyReport.build(
        facts,
        entries=[("run", GaussianDpEvent(4.0))],
        relation="replace_one",
        delta=1e-6,
        steps=1,
        randomness="none",
    )

    class Result:
        privacy = report

    for source in (report, Result()):
        plot_privacy_curve(source, ax=axes)
    first, _, second, _ = axes.lines
    np.testing.assert_array_equal(first.get_ydata(), second.get_ydata())
    curve = privacy_curve(GaussianDpEvent(4.0), "replace_one")
    assert first.get_ydata()[0] == curve.delta(0.0)


def test_epsilon_grows_with_the_steps_of_every_charge(accountant, axes):
    (line,) = plot_epsilon_by_step(accountant, ax=axes).lines
    steps, epsilons = line.get_xdata(), np.asarray(line.get_ydata())
    assert steps[0] == 0
    assert list(steps[-2:]) == [201, 202]
    assert epsilons[0] == 0
    assert np.all(np.diff(epsilons) > 0)
    assert epsilons[-1] == everything(accountant).epsilon(1e-5)
    halfway = int(np.argmin(np.abs(np.asarray(steps) - 100)))
    part = SelfComposedDpEvent(GaussianDpEvent(60.0), int(steps[halfway]))
    assert epsilons[halfway] >= privacy_curve(part).epsilon(1e-5)
    np.testing.assert_allclose(epsilons[halfway], privacy_curve(part).epsilon(1e-5), rtol=1e-4)


def test_a_schedule_is_one_piece(axes):
    accountant = Accountant()
    levels = [SelfComposedDpEvent(GaussianDpEvent(noise), 5) for noise in (20.0, 30.0)]
    accountant.charge(ComposedDpEvent(levels), label="run")
    (line,) = plot_epsilon_by_step(accountant, ax=axes).lines
    assert list(line.get_xdata()) == [0, 10]


def test_the_budget_is_drawn_by_label(accountant, axes):
    assert plot_budget(accountant, ax=axes) is axes
    widths = [bar.get_width() for bar in axes.patches]
    names = [tick.get_text() for tick in axes.get_yticklabels()]
    assert names == ["analyst A", "analyst B", "everything", "left"]
    twice = privacy_curve(SelfComposedDpEvent(GaussianDpEvent(30.0), 2)).epsilon(1e-5)
    alone = privacy_curve(STEPS).epsilon(1e-5)
    np.testing.assert_allclose(widths, [alone, twice, accountant.epsilon(), accountant.remaining()])
    assert axes.lines[0].get_xdata()[0] == 1.0


def test_axes_are_made_when_none_are_given(accountant):
    ax = plot_budget(accountant)
    assert ax.figure is not None
    pyplot.close(ax.figure)


@pytest.mark.parametrize("plot", [plot_privacy_curve, plot_epsilon_by_step, plot_budget])
def test_what_has_no_epsilon_is_refused(plot, axes):
    released = Accountant()
    released.charge(NonPrivateDpEvent(), label="oops")
    assert released.epsilon() == math.inf
    with pytest.raises(ValueError, match="without privacy"):
        plot(released, ax=axes)
    with pytest.raises(ValueError, match=r"Accountant.*got str|Accountant.*not str"):
        plot("study.ledger", ax=axes)


@pytest.mark.parametrize("plot", [plot_privacy_curve, plot_epsilon_by_step])
def test_an_empty_ledger_has_nothing_to_draw(plot, axes):
    with pytest.raises(ValueError, match="nothing was charged"):
        plot(Accountant(), ax=axes)


def test_a_missing_matplotlib_is_named(accountant, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match="pip install 'matplotlib"):
        plot_budget(accountant)
