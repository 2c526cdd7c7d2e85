"""What the fields of events hold: finite Python numbers, checked when an event is made."""

import math
from collections.abc import Callable
from numbers import Real
from typing import Any

import attr

from numpyro_dp._validate import nonnegative, positive, positive_int

event = attr.s(frozen=True, slots=True, auto_attribs=True)


def _checked(check: Callable[[str, object], object]) -> Callable[[object, object, object], None]:
    def validate(_instance: object, attribute: object, value: object) -> None:
        check(getattr(attribute, "name", ""), value)

    return validate


def plain(value: object) -> Any:
    """Return a number of any kind as a Python float: arithmetic in fewer digits would round ε down.

    Anything else is left to the checks.
    """
    number = isinstance(value, Real) and not isinstance(value, bool)
    try:
        return float(value) if number else value
    except OverflowError:
        return math.inf


POSITIVE = _checked(positive)
NONNEGATIVE = _checked(nonnegative)
COUNT = _checked(positive_int)
