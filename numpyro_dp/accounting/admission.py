"""Which charge is admitted when later charges are chosen from earlier results.

The first entry counts by its privacy loss distribution. Every later one is bounded, from the last
one backwards, by a Gaussian: m_n = 0, and m_{i−1} is the least shift whose Gaussian dominates entry
i together with N(m_i, 1), up to a share of δ that its position fixes. Admitted is what keeps

    δ of (first entry ⊗ N(m_1, 1)) at the budget's ε + its distance  ≤  δ − room for the shares
    − room for distances of pure entries.

Backward induction over whatever rule picks the entries shows that everything released is (ε, δ)-
differentially private: hockey sticks of an adaptive composition grow by at most the share of each
step. A distance (total variation between what is drawn and what is accounted) is paid for by the
entry's own share, where it weighs 1 + e^ε of an ε that the entry itself may have, not of the
budget's. Beside the chain, entries of pure ε are admitted while their sum is within the budget:
those paths add nothing to δ at that ε, as long as they are drawn exactly; so the distances of
entries that may go there are added up apart, at the budget's ε, on every path alike. Sums of
privacy losses over *chosen* entries prove nothing.

**References.** Smith and Thakurta, *Fully Adaptive Composition for Gaussian Differential Privacy*
(2022); Koskela, Tobaben and Honkela, *Individual Privacy Accounting with Gaussian Differential
Privacy* (2022); Zhu, Dong and Wang, *Optimal Accounting of Differential Privacy via Characteristic
Function* (2022), Theorem 10.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

from numpyro_dp.accounting.bounds.domination import least_shift
from numpyro_dp.accounting.budget import Budget
from numpyro_dp.accounting.calibrate import gaussian_shift
from numpyro_dp.accounting.curve import PrivacyCurve
from numpyro_dp.accounting.pld.composition import Composition

# For what later entries may exceed their Gaussians: a part of δ, at most another of what the first
# entry leaves of it, and for distances of pure entries a part of that. They are fixed here: chosen
# after a look, they would prove nothing.
_SLACK, _MOST_SLACK, _DISTANCES = 0.1, 0.25, 1e-3
# Entries farther from the end are certified alone and their squares added: also valid, and quick.
_MIXED = 12
_UP = 1 + 1e-9


class Rooms(NamedTuple):
    """What the first entry leaves to later ones.

    - **delta**: δ for the first entry and the Gaussian of all later ones, at the budget's ε.
    - **slack**: δ by which later entries together may exceed their Gaussians.
    - **distance**: total variation of all later entries of pure ε together.
    """

    delta: float
    slack: float
    distance: float


class Counted(NamedTuple):
    """A later entry as the rule sees it: a Gaussian of ``shift``, up to ``slack`` in δ."""

    shift: float
    slack: float


def admits(curves: Sequence[PrivacyCurve], budget: Budget) -> bool:
    """Return whether the last of ``curves`` is admitted after the others, charged in this order.

    :param curves: what each entry costs alone; the first was fixed before any result was seen.
    :param budget: the ε and δ that nothing may exceed.
    """
    entries = _costly(curves)
    if entries is None:
        return False
    if len(entries) < 2:
        return all(entry.epsilon(budget.delta) <= budget.epsilon for entry in entries)
    left = rooms(entries[0], budget)
    if left is None or _distance(entries, budget) > left.distance:
        return False
    if _pure(entries) <= Fraction(budget.epsilon):
        return True
    whole = _closed(entries, left, budget)
    return whole is not None and whole.delta(budget.epsilon) <= left.delta


def charged(curves: Sequence[PrivacyCurve], budget: Budget) -> float:
    """Return the least ε at which the rule would admit ``curves`` with the rooms of ``budget``.

    One entry costs what its privacy loss distribution says. More cost at least what all of them
    would as one list, and never more than the budget once they were admitted.

    :param curves: as for ``admits``.
    :param budget: as for ``admits``.
    :returns: ε at the budget's δ, for a list of entries that was fixed in advance; infinite where
        the rooms do not suffice at any ε.
    """
    entries = _costly(curves)
    if entries is None:
        return math.inf
    if len(entries) < 2:
        return entries[0].epsilon(budget.delta) if entries else 0.0
    left = rooms(entries[0], budget)
    if left is None or _distance(entries, budget) > left.distance:
        return math.inf
    whole = _closed(entries, left, budget)
    found = math.inf if whole is None else whole.epsilon(left.delta)
    pure = _pure(entries)
    if pure < Fraction(budget.epsilon):
        found = min(found, float(pure) * _UP)
    return min(found, budget.epsilon) if admits(curves, budget) else found


def gaussian_room(curves: Sequence[PrivacyCurve], budget: Budget) -> float:
    """Return the largest shift whose Gaussian would be admitted as the next entry.

    :param curves: as for ``admits``.
    :param budget: as for ``admits``.
    :returns: The shift, rounded down by less than a thousandth; 0 when none is admitted.
    """
    entries = _costly(curves)
    if entries is None:
        return 0.0
    if not entries:
        return gaussian_shift(budget)
    left = rooms(entries[0], budget)
    if left is None or _distance(entries, budget) > left.distance:
        return 0.0
    most = gaussian_shift(Budget(budget.epsilon, left.delta)) ** 2

    def used(square: float) -> float:
        """The square of the Gaussian that has as much δ as everything with one more."""
        whole = _closed((*entries, _gaussian(square, entries[0])), left, budget)
        delta = 1.0 if whole is None else whole.delta(budget.epsilon)
        if delta <= left.delta * 1e-12:
            return square
        return gaussian_shift(Budget(budget.epsilon, min(delta, 0.5))) ** 2

    # Squares of shifts add up for Gaussians and nearly so for the rest: a few steps converge.
    square = most
    for _ in range(12):
        before, square = square, square + most - used(square)
        if square <= 1e-7 * most:
            return 0.0
        if abs(square - before) <= 2e-5 * square:
            break
    for _ in range(20):
        if used(square) <= most * (1 - 1e-12):
            return math.sqrt(square)
        square *= 1 - 1e-4
    return 0.0


def counted(curves: Sequence[PrivacyCurve], budget: Budget) -> Counted | None:
    """Return what the last of ``curves`` counts as; None for a first entry, or without any room."""
    entries = _costly(curves)
    if entries is None or len(entries) < 2:
        return None
    left = rooms(entries[0], budget)
    if left is None:
        return None
    slack = _share(left.slack, len(entries))
    distance = _own_distance(entries[-1], budget)
    return Counted(least_shift(entries[-1].composition, slack, distance), slack)


def holds_distance(curves: Sequence[PrivacyCurve], budget: Budget) -> bool:
    """Return whether the last of ``curves`` fits as far as its total variation is concerned."""
    entries = _costly(curves)
    if not entries:
        return entries is not None
    left, found = rooms(entries[0], budget), counted(curves, budget)
    if left is None or found is None:
        return left is not None
    ideal = least_shift(entries[-1].composition, found.slack)
    kept = math.isfinite(found.shift) or not math.isfinite(ideal)
    return kept and _distance(entries, budget) <= left.distance


def is_pure(curves: Sequence[PrivacyCurve]) -> bool:
    """Return whether each of ``curves`` has a pure ε."""
    return math.isfinite(_pure(curves))


def rooms(first: PrivacyCurve, budget: Budget) -> Rooms | None:
    """Return what the entry ``first`` leaves of ``budget``; None when it leaves nothing."""
    weight = math.inf if budget.epsilon > 700 else (1 + math.exp(budget.epsilon)) * _UP
    fixed = weight * first.distance if first.distance else 0.0
    spare = budget.delta - first.composition.delta(budget.epsilon) - fixed
    if not spare > 0:
        return None
    slack = min(_SLACK * budget.delta, _MOST_SLACK * spare)
    kept = slack + _DISTANCES * spare + fixed
    delta = (budget.delta - kept * _UP) * (1 - 1e-15)
    return Rooms(delta, slack, _DISTANCES * spare / weight)


def _costly(curves: Sequence[PrivacyCurve]) -> tuple[PrivacyCurve, ...] | None:
    """Return what costs anything: the rest says nothing of the records. None if one costs all."""
    if not all(curve.private for curve in curves):
        return None
    made = ((curve, curve.composition) for curve in curves)
    return tuple(each for each, m in made if m.square or m.steps or m.bounds or each.distance)


def _distance(entries: Sequence[PrivacyCurve], budget: Budget) -> float:
    """Return the total variation of the later entries whose share does not pay for it."""
    later = entries[1:]
    return math.fsum(e.distance for e in later if not _own_distance(e, budget)) * _UP


def _own_distance(entry: PrivacyCurve, budget: Budget) -> float:
    """Return the total variation that the share of ``entry`` pays for.

    None of one that may be admitted as pure: what its distance does is bounded on all paths at
    once, since some of them never look at its share.
    """
    return 0.0 if _pure([entry]) <= Fraction(budget.epsilon) else entry.distance


def _share(slack: float, position: int) -> float:
    """Return the part of ``slack`` of the entry at ``position`` ≥ 2; all of them add up to it."""
    return slack / ((position - 1) * position) * (1 - 1e-12)


def _closed(entries: Sequence[PrivacyCurve], left: Rooms, budget: Budget) -> Composition | None:
    """Return the first entry with the Gaussian that stands for all later ones, None without one."""
    shift = 0.0
    for place in range(len(entries) - 1, 0, -1):
        entry, share = entries[place].composition, _share(left.slack, place + 1)
        distance = _own_distance(entries[place], budget)
        if len(entries) - place <= _MIXED:
            shift = least_shift(_beside(entry, shift), share, distance)
        else:
            shift = math.hypot(least_shift(entry, share, distance), shift) * _UP
        if not math.isfinite(shift):
            return None
    return _beside(entries[0].composition, shift)


def _beside(release: Composition, shift: float) -> Composition:
    """Return ``release`` together with a Gaussian of ``shift``."""
    return replace(release, square=(release.square + shift * shift) * (1 + 1e-12))


def _gaussian(square: float, like: PrivacyCurve) -> PrivacyCurve:
    return PrivacyCurve(Composition(like.composition.relation, square, ()), 0.0, True)


def _pure(entries: Sequence[PrivacyCurve]) -> Fraction | float:
    """Return the exact sum of pure ε's; infinite when an entry has none."""
    total = Fraction(0)
    for entry in entries:
        if entry.composition.square or entry.composition.steps:
            return math.inf
        for bound, count in entry.composition.bounds:
            if not math.isfinite(bound.pure):
                return math.inf
            total += count * Fraction(bound.pure) * (1 if bound.exact else 1 + Fraction(1, 2**40))
    return total
