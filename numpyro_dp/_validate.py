"""Checks of user arguments, one sentence each: what was given, what is allowed."""

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from numbers import Integral, Real
from typing import Any


def shown(value: object) -> str:
    """What a message may say of an argument: records put in a wrong place must not be printed."""
    plain = value is None or isinstance(value, (Real, str))
    return repr(value) if plain else type(value).__name__


def one_line(name: str, value: object, longest: int) -> None:
    """Refuse anything but one line of printable text: it is shown to others, as it stands."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{name} must be a non-empty text, got {shown(value)}")
    if len(value) > longest or not value.isprintable():
        raise ValueError(
            f"{name} must be one line of at most {longest} printable characters: no line breaks, "
            f"control or direction marks, got {len(value)} characters"
        )


def python_number(value: Any) -> Any:
    """Return a number of any kind as a Python ``int`` or ``float``, alone, in a tuple or a mapping.

    NumPy's narrow numbers wrap around and round: a count or bound that is computed from them could
    fall short of what runs, and with it the charge. Anything else is left to the checks.
    """
    if type(value) is tuple:
        return tuple(python_number(each) for each in value)
    if isinstance(value, Mapping):
        return {key: python_number(each) for key, each in value.items()}
    if isinstance(value, bool) or not isinstance(value, Real):
        return value
    return int(value) if isinstance(value, Integral) else _as_float(value)


def own_numbers(options: Any) -> None:
    """Hold every field of a frozen dataclass to :func:`python_number`, in ``__post_init__``."""
    for field in fields(options):
        # Some are set only later.
        if hasattr(options, field.name):
            given = getattr(options, field.name)
            object.__setattr__(options, field.name, python_number(given))


def _as_float(value: Real) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def finite_float(name: str, value: object) -> float:
    """Return ``value`` as a finite Python float, or raise ``ValueError`` naming ``name``."""
    number = (
        math.nan if isinstance(value, bool) or not isinstance(value, Real) else _as_float(value)
    )
    if not math.isfinite(number):
        raise ValueError(f"{name} must be a finite number, got {shown(value)}")
    return number


def positive(name: str, value: object) -> float:
    """Return ``value`` as a float in (0, inf)."""
    number = finite_float(name, value)
    if number <= 0:
        raise ValueError(f"{name} must be positive, got {shown(value)}")
    return number


def positive_or_infinite(name: str, value: object) -> float:
    """Return ``value`` as a float in (0, inf]."""
    return math.inf if isinstance(value, Real) and value == math.inf else positive(name, value)


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


def given(check: Callable[[str, object], object], **named: object) -> None:
    """``check`` of every argument that is not ``None``."""
    for name, value in named.items():
        if value is not None:
            check(name, value)


def plate_name(data_plate: object) -> None:
    """Refuse what cannot be the name of a plate, or "auto"; ``None`` stands for none."""
    if data_plate is not None and not isinstance(data_plate, str):
        raise ValueError(
            f'data_plate must be the name of a plate or "auto", got {shown(data_plate)}'
        )


def positive_int(name: str, value: object) -> int:
    """Return ``value`` as an int of at least 1."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise ValueError(f"{name} must be a positive integer, got {shown(value)}")
    return int(value)
