"""An event in a few words; the phrases of dp-accounting's own events stand here."""

from collections import Counter
from collections.abc import Sequence

from dp_accounting.dp_event import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    NonPrivateDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
    ZCDpEvent,
)

from numpyro_dp.accounting.events.codec import phrase_of, register
from numpyro_dp.accounting.events.fields import number
from numpyro_dp.accounting.events.sampling import TotalVariation

_SHOWN = 4
_WITHOUT = "a release without privacy"


def describe(event: DpEvent) -> str:
    """Return ``event`` in a few words, for reports.

    :param event: any event; of a class that is not registered the name is given.
    :returns: a phrase.

    **Privacy.** A function of an event's public constants: free.

    **Example**::

        >>> describe(SelfComposedDpEvent(PoissonSampledDpEvent(0.01, GaussianDpEvent(1.5)), 200))
        '200 × Poisson sampling at rate 0.01 of (Gaussian, noise multiplier 1.5)'
    """
    phrase = phrase_of(type(event))
    return phrase(event) if phrase else type(event).__name__


def _composed(event: ComposedDpEvent) -> str:
    parts = [describe(child) for child in event.events]
    if len(parts) > _SHOWN:
        parts = _grouped(event.events)
    shown = parts[:_SHOWN]
    more = len(parts) - len(shown)
    return " + ".join(shown) + (f" + {more} more" if more else "") if shown else "nothing"


def _grouped(events: Sequence[DpEvent]) -> list[str]:
    """Many parts in few words: releases of one kind are counted, whatever their order."""
    counts: Counter[float] = Counter()
    distances, others = [], []
    for event in events:
        count, once = (
            (event.count, event.event) if type(event) is SelfComposedDpEvent else (1, event)
        )
        if type(once) is GaussianDpEvent:
            counts[once.noise_multiplier] += count
        elif type(once) is TotalVariation:
            distances.append(count * once.distance)
        else:
            others.append(describe(event))
    parts = []
    if counts:
        least, most = number(min(counts)), number(max(counts))
        noise = f"multiplier {least}" if least == most else f"multipliers {least} to {most}"
        parts.append(f"{counts.total()} × Gaussian, noise {noise}")
    if distances:
        parts.append(f"total variation {number(sum(distances))}")
    # A release without privacy is never among those that are only counted.
    return [*parts, *sorted(others, key=lambda part: _WITHOUT not in part)]


register(NoOpDpEvent, lambda event: "nothing")
register(NonPrivateDpEvent, lambda event: _WITHOUT)
register(GaussianDpEvent, lambda e: f"Gaussian, noise multiplier {number(e.noise_multiplier)}")
register(ZCDpEvent, lambda e: f"{number(e.rho)}-zCDP")
register(
    PoissonSampledDpEvent,
    lambda e: f"Poisson sampling at rate {number(e.sampling_probability)} of ({describe(e.event)})",
)
register(SelfComposedDpEvent, lambda e: f"{e.count} × {describe(e.event)}")
register(ComposedDpEvent, _composed)
