"""Figures in text: what bounds from above is rounded up, what is left is rounded down."""

import math


def rounded_up(value: float, digits: int = 4) -> str:
    """Return ``value`` with ``digits`` significant digits, never less than it is; ∞ for inf.

    **Example**::

        >>> rounded_up(1.12731), rounded_up(0.5), rounded_up(float("inf"))
        ('1.128', '0.5', '∞')
    """
    return _rounded(value, digits, 1)


def rounded_down(value: float, digits: int = 4) -> str:
    """Return ``value`` with ``digits`` significant digits, never more than it is; ∞ for inf."""
    return _rounded(value, digits, -1)


def _rounded(value: float, digits: int, direction: int) -> str:
    if not math.isfinite(value) or value == 0:
        return "∞" if value == math.inf else f"{value:g}"
    nearest = float(f"{value:.{digits}g}")
    if (nearest - value) * direction < 0:
        unit = 10.0 ** (math.floor(math.log10(abs(value))) - digits + 1)
        nearest += direction * unit
    return f"{nearest:.{digits}g}"
