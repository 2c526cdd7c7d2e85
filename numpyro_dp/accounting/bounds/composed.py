"""What is proved of dp-accounting's own events, and of distances beside them.

All plain Gaussians are merged in closed form, and equal steps by count; total variation stays
outside: *Budgets, ledgers and reports* (docs/reference/accounting.md).
"""

import math
from dataclasses import dataclass
from numbers import Integral

from numpyro_dp._validate import finite_float, nonnegative, shown
from numpyro_dp.accounting import events
from numpyro_dp.accounting.bounds.proved import Proved, added, of_bound, proved, proves
from numpyro_dp.accounting.pld.bound import UP, Bound
from numpyro_dp.accounting.pld.grid import Step
from numpyro_dp.accounting.pld.renyi import ORDERS, Array
from numpyro_dp.accounting.relation import Relation, sensitivity


@proves(events.NoOpDpEvent)
def _nothing(event: events.NoOpDpEvent, relation: Relation) -> Proved:
    return Proved()


@proves(events.NonPrivateDpEvent)
def _without_privacy(event: events.NonPrivateDpEvent, relation: Relation) -> Proved:
    return Proved(private=False)


@proves(events.TotalVariation)
def _total_variation(event: events.TotalVariation, relation: Relation) -> Proved:
    return Proved(distances=(event.distance,))


@proves(events.GaussianDpEvent)
def _gaussian(event: events.GaussianDpEvent, relation: Relation) -> Proved:
    multiplier = nonnegative("noise_multiplier", event.noise_multiplier)
    if multiplier == 0:
        return Proved(private=False)
    return Proved(squares=((sensitivity(relation) / multiplier) ** 2,))


@proves(events.ComposedDpEvent)
def _composed(event: events.ComposedDpEvent, relation: Relation) -> Proved:
    if not isinstance(event.events, list | tuple):
        raise ValueError(f"a composition must hold a list of events, got {shown(event.events)}")
    return added(proved(child, relation) for child in event.events)


@proves(events.SelfComposedDpEvent)
def _repeated(event: events.SelfComposedDpEvent, relation: Relation) -> Proved:
    count = event.count
    if isinstance(count, bool) or not isinstance(count, Integral) or count < 0:
        raise ValueError(f"count must be a whole number ≥ 0, got {shown(count)}")
    return proved(event.event, relation).times(int(count))


def _only_gaussians(event: events.DpEvent) -> bool:
    """Return whether nothing but noisy sums is released.

    What has a Gaussian's shift by another theorem (draws, last iterates) need not be dominated by
    a sampled Gaussian under replace-one, and its constants need not hold for a batch.
    """
    if isinstance(event, events.ComposedDpEvent):
        return all(_only_gaussians(child) for child in event.events)
    if isinstance(event, events.SelfComposedDpEvent):
        return _only_gaussians(event.event)
    return type(event) in (events.GaussianDpEvent, events.NoOpDpEvent, events.NonPrivateDpEvent)


@proves(events.PoissonSampledDpEvent)
def _poisson(event: events.PoissonSampledDpEvent, relation: Relation) -> Proved:
    rate = finite_float("sampling_probability", event.sampling_probability)
    if not 0 <= rate <= 1:
        raise ValueError(f"sampling_probability must lie in [0, 1], got {rate!r}")
    if not _only_gaussians(event.event):
        raise ValueError(
            "Poisson sampling is stated for Gaussian releases alone: put other events beside it"
        )
    inner = proved(event.event, "add_remove")
    if rate == 1:
        return proved(event.event, relation)
    if rate == 0 or not inner.private:
        return Proved(private=inner.private)
    # Releases from one batch are one joint Gaussian; two sampled events would claim too little.
    square = math.fsum(inner.squares)
    if square == 0:
        return Proved()
    return Proved(steps={Step(rate, 1 / math.sqrt(square)): 1})


@dataclass(frozen=True)
class Concentrated(Bound):
    """ρ-zCDP, which implies no Gaussian."""

    rho: float

    def renyi(self) -> Array:
        """ρα."""
        return ORDERS * self.rho * UP


@proves(events.ZCDpEvent)
def _concentrated(event: events.ZCDpEvent, relation: Relation) -> Proved:
    rho = nonnegative("rho", event.rho)
    if finite_float("xi", event.xi) != 0:
        raise ValueError(
            f"only ρ-zCDP is stated here, without an offset: xi must be 0, got {event.xi!r}"
        )
    # ρ grows with the square of the contribution.
    return Proved() if rho == 0 else of_bound(Concentrated(sensitivity(relation) ** 2 * rho))
