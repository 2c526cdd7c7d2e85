"""Checks of user arguments, one sentence each: what was given, what is allowed."""

import math
from numbers import Integral, Real

__all__ = [
    "finite_float",
    "nonnegative",
    "positive",
    "positive_int",
    "probability",
    "rate",
    "shown",
]


def shown(value: object) -> str:
    """What a message may say of an argument: records put in a wrong place must not be printed."""
    plain = value is None or isinstance(value, (Real, str))
    return repr(value) if plain else type(value).__name__


def finite_float(name: str, value: object) -> float:
    """Return ``value`` as a finite Python float, or raise ``ValueError`` naming ``name``."""
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, got {shown(value)}")
    return float(value)


def positive(name: str, value: object) -> float:
    """Return ``value`` as a float in (0, inf)."""
    number = finite_float(name, value)
    if number <= 0:
        raise ValueError(f"{name} must be positive, got {shown(value)}")
    return number


def nonnegative(name: str, value: object) -> float:
    """Return ``value`` as a float in [0, inf)."""
    number = finite_float(name, value)
    if number < 0:
        raise ValueError(f"{name} must not be negative, got {shown(value)}")
    return number


def probability(name: str, value: object) -> float:
    """Return ``value`` as a float in [0, 1)."""
    number = finite_float(name, value)
    if not 0 <= number < 1:
        raise ValueError(f"{name} must lie in [0, 1), got {shown(value)}")
    return number


def rate(name: str, value: object) -> float:
    """Return ``value`` as a float in (0, 1]."""
    number = finite_float(name, value)
    if not 0 < number <= 1:
        raise ValueError(f"{name} must lie in (0, 1], got {shown(value)}")
    return number


def positive_int(name: str, value: object) -> int:
    """Return ``value`` as an int of at least 1."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise ValueError(f"{name} must be a positive integer, got {shown(value)}")
    return int(value)
