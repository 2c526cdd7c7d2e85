"""From an event to its privacy curve, ε(δ) and δ(ε).

What ``bounds`` proves of the event is composed by dp-accounting as one privacy loss distribution;
total variation stays outside: *Budgets, ledgers and reports* (docs/reference/accounting.md).
"""

import math
from dataclasses import dataclass

from numpyro_dp.accounting.bounds.proved import proved
from numpyro_dp.accounting.events import DpEvent
from numpyro_dp.accounting.pld.bound import UP
from numpyro_dp.accounting.pld.composition import Composition
from numpyro_dp.accounting.relation import Relation, check_relation


@dataclass(frozen=True)
class PrivacyCurve:
    """The trade-off between ε and δ of one (composed) event under one relation.

    Every value is an upper bound: the event is (ε, δ)-differentially private for each pair that
    the two methods return. Made by ``privacy_curve``.

    **Privacy.** A function of the event's public constants: free.
    """

    composition: Composition
    distance: float
    private: bool

    def delta(self, epsilon: float) -> float:
        """Return δ at ``epsilon``.

        :param epsilon: ε ≥ 0; may be infinite.
        :returns: The least certified δ, in [0, 1].
        """
        if not epsilon >= 0:
            raise ValueError(f"epsilon must not be negative, got {epsilon!r}")
        if not self.private:
            return 1.0
        if epsilon == math.inf:
            return 0.0 if self.distance == 0 else self.delta(700.0)
        if self.distance == 0:
            return self.composition.delta(epsilon)
        return min(1.0, self._least_total(epsilon))

    def epsilon(self, delta: float) -> float:
        """Return ε at ``delta``.

        :param delta: δ in (0, 1).
        :returns: The least certified ε ≥ 0; infinite when none is.
        """
        if not 0 < delta < 1:
            raise ValueError(f"delta must lie in (0, 1), got {delta!r}")
        if not self.private:
            return math.inf
        if self.distance == 0:
            return self.composition.epsilon(delta)
        # Small distances move ε hardly at all: a little above ε without them is often enough.
        above = self.composition.epsilon(delta) * (1 + 1e-6)
        room = delta - self._outside(above)
        if room > 0 and (found := self.composition.epsilon(room)) <= above:
            return found
        # A value reached from above is certified: δ_PLD there leaves room for the distance at a
        # larger ε. From below it would not be.
        for share in (0.5, 0.9, 0.99, 0.999):
            if delta * share <= 2 * self.distance:
                continue
            start = math.log(delta * share / self.distance - 1)
            found = self._descend(start, delta)
            if found is not None:
                return found
        return math.inf

    def _descend(self, start: float, delta: float) -> float | None:
        current = start
        for step in range(60):
            room = delta - self._outside(current)
            following = self.composition.epsilon(room) if room > 0 else math.inf
            if following > current:
                return None if step == 0 else current
            if following >= current * (1 - 1e-10):
                return following
            current = following
        return current

    def _outside(self, epsilon: float) -> float:
        return (1 + math.exp(min(epsilon, 700.0))) * self.distance * UP

    def _least_total(self, epsilon: float) -> float:
        """Return the running minimum over [0, ε] of δ_PLD + (1 + e^ε)·distance, convex in e^ε."""

        def total(at: float) -> float:
            return self.composition.delta(at) + self._outside(at)

        best = total(epsilon)
        low, high = 0.0, min(epsilon, 700.0)
        if best <= total(high * (1 - 1e-6)):
            return best
        golden = (math.sqrt(5) - 1) / 2
        for _ in range(60):
            left, right = high - golden * (high - low), low + golden * (high - low)
            first, second = total(left), total(right)
            best = min(best, first, second)
            low, high = (low, right) if first <= second else (left, high)
        return best


def privacy_curve(
    event: DpEvent, relation: Relation = "zero_out", *, coarse: bool = False
) -> PrivacyCurve:
    """Return the privacy curve of ``event``.

    :param event: any nesting of the events in ``numpyro_dp.events``.
    :param relation: the neighbouring relation, ``"zero_out"``, ``"replace_one"`` or
        ``"add_remove"``.
    :param coarse: quicker, and every value a little larger still, where steps have wide losses.
    :returns: The curve, with methods ``epsilon(delta)`` and ``delta(epsilon)``.
    :raises ValueError: when the relation or an event is unknown.

    **Privacy.** A function of the event's public constants: free.

    **References.** Balle, Barthe and Gaboardi, *Privacy Amplification by Subsampling: Tight
    Analyses via Couplings and Divergences* (2018), who call it the privacy profile; *Budgets,
    ledgers and reports*, and for each event *Events* (docs/reference/events.md).

    **Example**::

        >>> from numpyro_dp.accounting.events import GaussianDpEvent, SelfComposedDpEvent
        >>> curve = privacy_curve(SelfComposedDpEvent(GaussianDpEvent(5.0), 100))
        >>> round(curve.epsilon(1e-5), 4)
        9.9973
    """
    checked = check_relation(relation)
    found = proved(event, checked)
    steps = tuple(sorted((step, count) for step, count in found.steps.items() if count))
    bounds = tuple(sorted(((b, n) for b, n in found.bounds.items() if n), key=repr))
    composition = Composition(checked, math.fsum(found.squares), steps, coarse, bounds)
    return PrivacyCurve(composition, math.fsum(found.distances), found.private)
