"""Pictures of what was spent: matplotlib axes in, the same axes out.

Everything is computed from charged events, which are public: a plot costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from numpyro_dp.accounting import Accountant, PrivacyReport, Relation, privacy_curve
from numpyro_dp.accounting.events import (
    ComposedDpEvent,
    DpEvent,
    SelfComposedDpEvent,
    TotalVariation,
    from_json,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_POINTS = 24


class _Result(Protocol):
    @property
    def privacy(self) -> PrivacyReport: ...


Source = Accountant | PrivacyReport | _Result


def plot_privacy_curve(
    source: Source,
    *,
    epsilons: Sequence[float] | None = None,
    ax: Axes | None = None,
    label: str | None = None,
) -> Axes:
    """Draw δ(ε): every point of the line is a guarantee that holds.

    :param source: an accountant (everything in its ledger), a privacy report, or a result that has
        one as ``privacy``.
    :param epsilons: where δ is computed; by default from 0 to beyond the stated ε.
    :param ax: matplotlib axes to draw into; ``None`` makes new ones.
    :param label: name of the line in a legend.
    :returns: the axes.
    :raises ValueError: when nothing was charged, or not privately, and for any other source.
    :raises ImportError: when matplotlib is not installed.

    **Privacy.** Computed from the charged events alone, which are public: free.

    **References.** Balle, Barthe and Gaboardi, *Privacy Amplification by Subsampling: Tight
    Analyses via Couplings and Divergences* (2018), who call the curve the privacy profile;
    *Budgets, ledgers and reports* (docs/reference/accounting.md).

    **Example**::

        >>> import matplotlib; matplotlib.use("Agg")
        >>> from numpyro_dp import Accountant, events
        >>> accountant = Accountant()
        >>> accountant.charge(events.GaussianDpEvent(4.0), label="mean")
        >>> plot_privacy_curve(accountant, epsilons=[0.5, 1.0]).get_ylabel()
        'δ'
    """
    charges, relation, delta = _charges(source)
    curve = privacy_curve(ComposedDpEvent([event for _, event in charges]), relation)
    stated = curve.epsilon(delta)
    if not charges or not math.isfinite(stated):
        raise ValueError(
            "there is no finite guarantee to draw: nothing was charged, or a release without "
            "privacy was"
        )
    grid = np.linspace(0.0, 1.5 * stated, 60) if epsilons is None else np.asarray(epsilons, float)
    deltas = np.array([curve.delta(float(epsilon)) for epsilon in grid])
    ax = axes_or_new(ax)
    (line,) = ax.plot(grid, deltas, label=label)
    ax.plot([stated], [delta], "o", color=line.get_color())
    ax.set_yscale("log")
    ax.set(xlabel="ε", ylabel="δ")
    return ax


def plot_epsilon_by_step(
    source: Source, *, ax: Axes | None = None, label: str | None = None
) -> Axes:
    """Draw ε, at the stated δ, against the number of private steps charged.

    :param source: as for :func:`plot_privacy_curve`. Charges follow one another in the order in
        which they were made; one that is not a repetition of one step (a noise schedule, a single
        release) is drawn as a straight line to its end.
    :param ax: matplotlib axes to draw into; ``None`` makes new ones.
    :param label: name of the line in a legend.
    :returns: the axes.
    :raises ValueError: when nothing was charged, or not privately, and for any other source.
    :raises ImportError: when matplotlib is not installed.

    **Privacy.** Computed from the charged events alone, which are public: free.

    **References.** *Budgets, ledgers and reports*, for how ε is found.

    **Example**::

        >>> import matplotlib; matplotlib.use("Agg")
        >>> from numpyro_dp import Accountant, events
        >>> accountant = Accountant()
        >>> step = events.GaussianDpEvent(40.0)
        >>> accountant.charge(events.SelfComposedDpEvent(step, 100), label="run")
        >>> (line,) = plot_epsilon_by_step(accountant).lines
        >>> int(line.get_xdata()[-1])
        100
    """
    charges, relation, delta = _charges(source)
    reached = list(_along(charges))
    epsilons = [privacy_curve(event, relation).epsilon(delta) for _, event in reached]
    if not charges or not all(map(math.isfinite, epsilons)):
        raise ValueError(
            "there is no finite ε to draw: nothing was charged, or a release without privacy was"
        )
    ax = axes_or_new(ax)
    ax.plot([steps for steps, _ in reached], epsilons, label=label)
    ax.set(xlabel="private steps", ylabel=f"ε at δ = {delta:.3g}", ylim=(0, None))
    return ax


def plot_budget(accountant: Accountant, *, ax: Axes | None = None) -> Axes:
    """Draw what each label of a ledger spent by itself, what all did, and what is left.

    :param accountant: the ledger.
    :param ax: matplotlib axes to draw into; ``None`` makes new ones.
    :returns: the axes: one bar for each label, one for everything as it counts, one for the largest
        Gaussian event that still fits, and a line at the budget. ε does not add up: the bars of
        the labels together are longer than that of everything.
    :raises ValueError: for anything but an accountant, or one with a charge that is not private.
    :raises ImportError: when matplotlib is not installed.

    **Privacy.** Computed from the charged events alone, which are public: free.

    **References.** *Budgets, ledgers and reports*, for what counts and what is left.

    **Example**::

        >>> import matplotlib; matplotlib.use("Agg")
        >>> from numpyro_dp import Accountant, Budget, events
        >>> accountant = Accountant(Budget(1.0, 1e-5))
        >>> accountant.charge(events.GaussianDpEvent(20.0), label="mean")
        >>> [tick.get_text() for tick in plot_budget(accountant).get_yticklabels()]
        ['mean', 'everything', 'left']
    """
    if not isinstance(accountant, Accountant):
        raise ValueError(f"plot_budget takes an Accountant, got {type(accountant).__name__}")
    charges, relation, delta = _charges(accountant)
    by_label: dict[str, list[DpEvent]] = {}
    for name, event in charges:
        by_label.setdefault(name, []).append(event)
    bars = {
        name: privacy_curve(ComposedDpEvent(events), relation).epsilon(delta)
        for name, events in by_label.items()
    }
    bars["everything"] = accountant.report().total
    budget = accountant.budget
    if budget is not None:
        bars["left"] = accountant.remaining()
    if not all(map(math.isfinite, bars.values())):
        raise ValueError("a release without privacy was charged: its ε is infinite")
    ax = axes_or_new(ax)
    colours = ["C0"] * len(by_label) + ["C1", "C2"][: len(bars) - len(by_label)]
    places = np.arange(len(bars))
    ax.barh(places, list(bars.values()), color=colours)
    ax.set_yticks(places, labels=list(bars))
    ax.invert_yaxis()
    if budget is not None:
        ax.axvline(budget.epsilon, color="k", linestyle="--")
    ax.set_xlabel(f"ε at δ = {delta:.3g}")
    return ax


def axes_or_new(ax: Axes | None, figsize: tuple[float, float] | None = None) -> Axes:
    """Return ``ax``, or the axes of a new figure of ``figsize`` inches."""
    if ax is not None:
        return ax
    try:
        pyplot = import_module("matplotlib.pyplot")
    except ImportError as error:
        raise ImportError(
            "plots need matplotlib: install it with pip install 'matplotlib>=3.8'"
        ) from error
    # Legends beside the axes stay in the picture, however it is saved.
    return pyplot.subplots(figsize=figsize, layout="constrained")[1]


_Charges = list[tuple[str, DpEvent]]


def _charges(source: Any) -> tuple[_Charges, Relation, float]:
    if isinstance(source, Accountant):
        charged = [(entry.label, entry.event) for entry in source.entries]
        return charged, source.relation, source.stated_delta
    report = source if isinstance(source, PrivacyReport) else getattr(source, "privacy", None)
    if not isinstance(report, PrivacyReport):
        raise ValueError(
            "give an Accountant, a PrivacyReport, or a result that has one as .privacy, not "
            f"{type(source).__name__}"
        )
    charged = [(label, from_json(text)) for label, text in report.events]
    return charged, cast(Relation, report.relation), report.delta


def _along(charges: _Charges) -> Iterator[tuple[int, DpEvent]]:
    """Steps and everything charged up to them, at some points within each charge."""
    spent: list[DpEvent] = []
    steps = 0
    yield 0, ComposedDpEvent([])
    for _, event in charges:
        for count, part in _pieces(event):
            yield steps + count, ComposedDpEvent([*spent, part])
        spent.append(event)
        steps += _count(event)


def _pieces(event: DpEvent) -> Iterator[tuple[int, DpEvent]]:
    children = event.events if isinstance(event, ComposedDpEvent) else [event]
    repeated = [child for child in children if isinstance(child, SelfComposedDpEvent)]
    outside = [child for child in children if isinstance(child, TotalVariation)]
    total = _count(event)
    if len(repeated) == 1 and len(repeated) + len(outside) == len(children):
        step = repeated[0].event
        for count in np.unique(np.linspace(0, total, _POINTS).round().astype(int))[1:-1].tolist():
            # Total variation enters whole: the line is never below what was spent.
            yield count, ComposedDpEvent([SelfComposedDpEvent(step, count), *outside])
    yield total, event


def _count(event: DpEvent) -> int:
    """Private steps of a charge; a release that is no repetition is one."""
    if isinstance(event, SelfComposedDpEvent):
        return event.count * _count(event.event)
    if isinstance(event, ComposedDpEvent):
        return sum(_count(child) for child in event.events)
    return 0 if isinstance(event, TotalVariation) else 1
