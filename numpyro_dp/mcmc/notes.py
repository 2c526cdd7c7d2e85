"""Sentences that several kernels say about their draws."""

from __future__ import annotations

import math

__all__ = ["raised_temperature"]

# What counts as no more than asked for, although it was computed in floating point.
_ROUNDING = 1 + 1e-9


def raised_temperature(reached: float, temperature: float, remedy: str) -> tuple[str, ...]:
    """What to say when the privacy noise exceeds the noise that a sampler asks for.

    :param reached: temperature at which the privacy noise alone would put the draws.
    :param temperature: the one that was asked for.
    :param remedy: which argument would mend it, and how.
    :returns: nothing, or one sentence for the report.
    """
    if reached <= temperature * _ROUNDING:
        return ()
    return (
        f"The privacy noise exceeds the Langevin noise of this step size: the draws are at "
        f"temperature {reached:.3g} instead of {temperature:g} and spread too widely by "
        f"a factor {math.sqrt(reached / temperature):.3g}. {remedy} would be free of this.",
    )
