"""What a mechanism did, in the constants a stranger needs to check its privacy.

An event is an immutable value: it holds the public constants of one mechanism and nothing of the
data. Most are ``dp-accounting``'s own; ours are written in the same style, so that they nest.
"""

import json
import math
from collections.abc import Callable, Mapping
from numbers import Integral, Real

import attr
from dp_accounting.dp_event import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    NonPrivateDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)

from numpyro_dp._validate import finite_float, shown
from numpyro_dp.accounting.events.describe import WORDS, number


def _distance(_instance: object, _attribute: object, value: object) -> None:
    if not 0 <= finite_float("distance", value) <= 1:
        raise ValueError(f"distance must lie in [0, 1], got {shown(value)}")


@attr.s(frozen=True, slots=True, auto_attribs=True)
class TotalVariation(DpEvent):
    """The output is within ``distance`` in total variation of the mechanism charged beside it.

    :param distance: an upper bound, in [0, 1], on the total variation distance between what was run
        and the ideal mechanism, whatever the data (tables, padded rooms, caps).

    **Privacy.** Adds (1 + e^ε)·distance to δ at every ε, outside the privacy loss distribution.
    """

    distance: float = attr.ib(validator=_distance)


# No field of an event is larger, and counts beyond are no floating-point numbers.
_LARGEST = 1e300
# Names a file may mention: reading never imports what a file asks for.
_KNOWN: dict[str, type[DpEvent]] = {}
_WORDS: dict[type[DpEvent], Callable[[DpEvent], str]] = {}


def register(cls: type[DpEvent], words: Callable[..., str]) -> None:
    """Let events of class ``cls`` be written, read back and described.

    :param cls: an attrs class whose fields are numbers, events or lists of events.
    :param words: a function from one event of this class to a short phrase.
    """
    _KNOWN[cls.__name__] = cls
    _WORDS[cls] = words


def to_json(event: DpEvent) -> str:
    """Return ``event`` as one line of JSON, exact to the last bit of every number.

    :raises ValueError: when the event, or one inside it, is of a class that is not registered, or
        holds a number that is not finite.

    **Example**::

        >>> to_json(GaussianDpEvent(2.0))
        '{"class": "GaussianDpEvent", "noise_multiplier": 2.0}'
    """
    return json.dumps(_plain(event), allow_nan=False)


def from_json(text: str) -> DpEvent:
    """Return the event that ``to_json`` wrote.

    :raises ValueError: for anything that ``to_json`` cannot have written, unknown classes included.
    """
    try:
        tree = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_without_repeats)
    except (TypeError, RecursionError, json.JSONDecodeError) as error:
        raise ValueError(f"an event must be JSON text: {error}") from error
    return _event(tree)


def describe(event: DpEvent) -> str:
    """Return ``event`` in a few words, for reports.

    **Example**::

        >>> describe(SelfComposedDpEvent(PoissonSampledDpEvent(0.01, GaussianDpEvent(1.5)), 200))
        '200 × Poisson sampling at rate 0.01 of (Gaussian, noise multiplier 1.5)'
    """
    words = _WORDS.get(type(event))
    return words(event) if words else type(event).__name__


def _plain(event: DpEvent) -> dict[str, object]:
    cls = type(event)
    if _KNOWN.get(cls.__name__) is not cls:
        raise ValueError(
            f"events of class {cls.__name__} cannot be stored: use one of {sorted(_KNOWN)}, or "
            "register the class with numpyro_dp.events.register"
        )
    tree: dict[str, object] = {"class": cls.__name__}
    for field in attr.fields(cls):
        tree[field.name] = _plain_value(cls.__name__, field.name, getattr(event, field.name))
    return tree


def _plain_value(cls: str, field: str, value: object) -> object:
    if isinstance(value, DpEvent):
        return _plain(value)
    if isinstance(value, list | tuple):
        return [_plain_value(cls, field, item) for item in value]
    if isinstance(value, str):
        return value
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    if isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    raise ValueError(f"{cls}.{field} must hold finite numbers or events, got {shown(value)}")


def _refuse_constant(name: str) -> float:
    raise ValueError(f"an event holds finite numbers only, found {name}")


def _without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return the object, unless a key stands twice: readers differ in which one they believe."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an event must not name a field twice")
    return found


def _event(tree: object) -> DpEvent:
    if not isinstance(tree, Mapping):
        raise ValueError("an event must be a JSON object with the key 'class'")
    name = tree.get("class")
    cls = _KNOWN.get(name) if isinstance(name, str) else None
    if cls is None:
        raise ValueError(f"unknown event class {name!r}: this version knows {sorted(_KNOWN)}")
    fields = {key: value for key, value in tree.items() if key != "class"}
    expected = {field.name for field in attr.fields(cls)}
    if set(fields) != expected:
        raise ValueError(f"{name} has fields {sorted(expected)}, found {sorted(fields)}")
    return cls(**{key: _value(name, key, value) for key, value in fields.items()})


def _value(cls: object, field: str, value: object) -> object:
    if isinstance(value, Mapping):
        return _event(value)
    if isinstance(value, list):
        return [_value(cls, field, item) for item in value]
    if isinstance(value, str):
        return value
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and abs(value) < _LARGEST:
        return value
    raise ValueError(f"{cls}.{field} must hold finite numbers or events")


register(NoOpDpEvent, lambda event: "nothing")
register(NonPrivateDpEvent, lambda event: "a release without privacy")
register(GaussianDpEvent, lambda e: f"Gaussian, noise multiplier {number(e.noise_multiplier)}")
register(
    PoissonSampledDpEvent,
    lambda e: f"Poisson sampling at rate {number(e.sampling_probability)} of ({describe(e.event)})",
)
register(SelfComposedDpEvent, lambda e: f"{e.count} × {describe(e.event)}")
register(TotalVariation, lambda e: f"total variation {number(e.distance)}")


def _composed_words(event: ComposedDpEvent) -> str:
    shown = [describe(child) for child in event.events[:4]]
    more = len(event.events) - len(shown)
    return " + ".join(shown) + (f" + {more} more" if more else "") if shown else "nothing"


register(ComposedDpEvent, _composed_words)
for _cls, _phrase in WORDS.items():
    register(_cls, _phrase)
