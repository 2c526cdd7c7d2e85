"""Which classes are events, and how one is written as JSON, exact to the last bit."""

import json
import math
from collections.abc import Callable, Mapping
from numbers import Integral, Real

import attr
from dp_accounting.dp_event import DpEvent

from numpyro_dp._validate import shown

# No field of an event is larger, and counts beyond are no floating-point numbers.
_LARGEST = 1e300
# Names a file may mention: reading never imports what a file asks for.
_KNOWN: dict[str, type[DpEvent]] = {}
_PHRASES: dict[type[DpEvent], Callable[[DpEvent], str]] = {}


def register(cls: type[DpEvent], words: Callable[..., str]) -> None:
    """Let events of class ``cls`` be written, read back and described.

    :param cls: an attrs class whose fields are numbers, events or lists of events.
    :param words: a function from one event of this class to a short phrase.

    **Privacy.** Reads no record. A class that no accounting knows is refused by every accountant.

    **Example**::

        >>> import attr
        >>> from dp_accounting import DpEvent
        >>> @attr.frozen
        ... class Look(DpEvent):
        ...     count: int
        >>> register(Look, lambda look: f"{look.count} looks")
        >>> from_json(to_json(Look(3)))
        Look(count=3)
    """
    _KNOWN[cls.__name__] = cls
    _PHRASES[cls] = words


def phrase_of(cls: type[DpEvent]) -> Callable[[DpEvent], str] | None:
    """Return what describes events of class ``cls``, None where nobody registered it."""
    return _PHRASES.get(cls)


def to_json(event: DpEvent) -> str:
    """Return ``event`` as one line of JSON, exact to the last bit of every number.

    :param event: any nesting of the events of this module, or of registered classes.
    :returns: an object with the name of the class and its fields by name.
    :raises ValueError: when the event, or one inside it, is of a class that is not registered, or
        holds a number that is not finite.

    **Privacy.** A function of an event's public constants: free.

    **Example**::

        >>> from dp_accounting import GaussianDpEvent
        >>> to_json(GaussianDpEvent(2.0))
        '{"class": "GaussianDpEvent", "noise_multiplier": 2.0}'
    """
    return json.dumps(_plain(event), allow_nan=False)


def from_json(text: str) -> DpEvent:
    """Return the event that ``to_json`` wrote.

    :param text: one line of JSON.
    :returns: an event that equals the one written.
    :raises ValueError: for anything that ``to_json`` cannot have written, unknown classes included.

    **Privacy.** A function of an event's public constants: free.

    **Example**::

        >>> from_json('{"class": "GaussianDpEvent", "noise_multiplier": 2.0}')
        GaussianDpEvent(noise_multiplier=2.0)
    """
    try:
        tree = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_without_repeats)
    except (TypeError, RecursionError, json.JSONDecodeError) as error:
        raise ValueError(f"an event must be JSON text: {error}") from error
    return _event(tree)


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
