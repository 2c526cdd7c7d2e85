"""What an event comes to: the walker over nested events, and the registry of what is proved.

Every event class has one function, registered with ``proves`` beside the bound that it makes; it
returns ``Proved``, and those of a composition add up. An event without one is refused, so that
nothing goes uncharged.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TypeVar

import attr

from numpyro_dp.accounting.events import DpEvent, TotalVariation
from numpyro_dp.accounting.pld.bound import Bound
from numpyro_dp.accounting.pld.composition import within_reach
from numpyro_dp.accounting.pld.grid import Step
from numpyro_dp.accounting.relation import Relation

# No constant of a mechanism is smaller.
_LEAST = 1e-30

_E = TypeVar("_E", bound=DpEvent)


@dataclass(frozen=True)
class Proved:
    """What an event comes to: Gaussian shifts, steps and bounds with counts, and distances.

    :param squares: squared Gaussian shifts μ², one for each kind of release.
    :param steps: counts of the Poisson-subsampled Gaussian steps.
    :param bounds: counts of everything else.
    :param distances: total variation distances.
    :param private: False as soon as anything was released without privacy.
    """

    squares: tuple[float, ...] = ()
    steps: Mapping[Step, int] = field(default_factory=dict)
    distances: tuple[float, ...] = ()
    private: bool = True
    bounds: Mapping[Bound, int] = field(default_factory=dict)

    def times(self, count: int) -> "Proved":
        """Return what ``count`` repetitions come to."""
        if count == 0:
            return Proved()
        return Proved(
            tuple(count * square for square in self.squares),
            {step: count * number for step, number in self.steps.items()},
            tuple(count * distance for distance in self.distances),
            self.private,
            {bound: count * number for bound, number in self.bounds.items()},
        )


def of_shift(shift: float) -> Proved:
    """Return what a Gaussian of ``shift`` comes to."""
    return Proved(squares=(shift**2,)) if shift else Proved()


def of_bound(bound: Bound) -> Proved:
    """Return what one step of ``bound`` comes to."""
    return Proved(bounds={bound: 1})


def added(many: Iterable[Proved]) -> Proved:
    """Return what all of ``many`` come to together."""
    squares: list[float] = []
    distances: list[float] = []
    steps: Counter[Step] = Counter()
    bounds: Counter[Bound] = Counter()
    private = True
    for one in many:
        squares.extend(one.squares)
        distances.extend(one.distances)
        steps.update(one.steps)
        bounds.update(one.bounds)
        private = private and one.private
    return Proved(tuple(squares), dict(steps), tuple(distances), private, dict(bounds))


_PROOFS: dict[type[DpEvent], Callable[..., Proved]] = {}
_Proof = Callable[[_E, Relation], Proved]


def proves(cls: type[_E]) -> Callable[[_Proof[_E]], _Proof[_E]]:
    """Register a function from an event of class ``cls`` and a relation to what is proved of it.

    The one place where the relation enters: constants in an event are those under zero-out, and
    ``sensitivity`` doubles what has to be doubled.
    """

    def keep(proof: _Proof[_E]) -> _Proof[_E]:
        _PROOFS[cls] = proof
        return proof

    return keep


def proved(event: DpEvent, relation: Relation) -> Proved:
    """Return what ``event`` comes to under ``relation``.

    :raises ValueError: when the event, or one inside it, has no statement here.
    """
    proof = _PROOFS.get(type(event))
    if proof is None:
        raise ValueError(
            f"no privacy statement for events of class {type(event).__name__}: supported are "
            f"{sorted(cls.__name__ for cls in _PROOFS)}"
        )
    _check_range(event)
    with within_reach():
        return proof(event, relation)


def _check_range(event: DpEvent) -> None:
    """Refuse numbers whose squares and quotients no floating-point number holds."""
    if isinstance(event, TotalVariation):
        return
    for name in _fields(type(event)):
        value = getattr(event, name)
        if isinstance(value, float) and 0 < abs(value) < _LEAST:
            raise ValueError(
                f"{type(event).__name__}.{name} is too small to be accounted for: it must be 0 or "
                f"at least {_LEAST:g}"
            )


@cache
def _fields(cls: type[DpEvent]) -> tuple[str, ...]:
    return tuple(field.name for field in attr.fields(cls))
