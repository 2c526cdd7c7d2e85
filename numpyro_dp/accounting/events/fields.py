"""What every event class is made of: checked numbers, its phrase, and its place in the codec."""

import math
from collections.abc import Callable
from numbers import Real
from typing import Any, Protocol, TypeVar, dataclass_transform

import attr

from numpyro_dp import _validate
from numpyro_dp.accounting.events.codec import register


class _Phrased(Protocol):
    def phrase(self) -> str: ...


_E = TypeVar("_E", bound=_Phrased)


def plain(value: object) -> Any:
    """Return a number of any kind as a Python float: arithmetic in fewer digits would round ε down.

    Anything else is left to the checks.
    """
    number = isinstance(value, Real) and not isinstance(value, bool)
    try:
        return float(value) if number else value
    except OverflowError:
        return math.inf


def _field(check: Callable[[str, object], object], converter: Callable, default: Any) -> Any:
    def validate(_instance: object, attribute: object, value: object) -> None:
        check(getattr(attribute, "name", ""), value)

    return attr.ib(default=default, validator=validate, converter=converter)


def positive() -> Any:
    """A field that holds a number in (0, inf)."""
    return _field(_validate.positive, plain, attr.NOTHING)


def nonnegative(*, default: Any = attr.NOTHING) -> Any:
    """A field that holds a number in [0, inf)."""
    return _field(_validate.nonnegative, plain, default)


def count() -> Any:
    """A field that holds a whole number from 1 on."""
    return _field(_validate.positive_int, _validate.python_number, attr.NOTHING)


@dataclass_transform(frozen_default=True, field_specifiers=(attr.ib, positive, nonnegative, count))
def event(cls: type[_E]) -> type[_E]:
    """Make ``cls`` an immutable event: its fields are its JSON form, ``phrase`` its description."""
    made = attr.s(frozen=True, slots=True, auto_attribs=True)(cls)
    register(made, made.phrase)
    return made


def number(value: float) -> str:
    """Return a number as reports print it."""
    return f"{value:.6g}"
