"""An event in a few words; the phrases of dp-accounting's own events stand here."""

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


def describe(event: DpEvent) -> str:
    """Return ``event`` in a few words, for reports.

    **Example**::

        >>> describe(SelfComposedDpEvent(PoissonSampledDpEvent(0.01, GaussianDpEvent(1.5)), 200))
        '200 × Poisson sampling at rate 0.01 of (Gaussian, noise multiplier 1.5)'
    """
    phrase = phrase_of(type(event))
    return phrase(event) if phrase else type(event).__name__


def _composed(event: ComposedDpEvent) -> str:
    shown = [describe(child) for child in event.events[:4]]
    more = len(event.events) - len(shown)
    return " + ".join(shown) + (f" + {more} more" if more else "") if shown else "nothing"


register(NoOpDpEvent, lambda event: "nothing")
register(NonPrivateDpEvent, lambda event: "a release without privacy")
register(GaussianDpEvent, lambda e: f"Gaussian, noise multiplier {number(e.noise_multiplier)}")
register(ZCDpEvent, lambda e: f"{number(e.rho)}-zCDP")
register(
    PoissonSampledDpEvent,
    lambda e: f"Poisson sampling at rate {number(e.sampling_probability)} of ({describe(e.event)})",
)
register(SelfComposedDpEvent, lambda e: f"{e.count} × {describe(e.event)}")
register(ComposedDpEvent, _composed)
