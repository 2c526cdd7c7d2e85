"""What a posterior predictive check compares: bounded statistics of one record's outcome."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import random
from jaxtyping import Array, Float

from numpyro_dp import _validate
from numpyro_dp.diagnostics.checks.log_density import checked_range
from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.families.outcome import Outcome, require_of_one_record
from numpyro_dp.model.messages import problem_of
from numpyro_dp.model.names import quoted
from numpyro_dp.model.private_model import PrivateModel

# Central intervals by name; replicates that ranks are taken among make both of them exact.
INSIDE = {"inside 50 %": 0.5, "inside 90 %": 0.9}
REPLICATES = 79
_NAMED = ("mean", "spread", "zeros", *INSIDE)
# Shares of more classes would share too much noise unasked.
_MOST_CLASSES = 10


@dataclass(frozen=True)
class Statistic:
    """A number of one record, cut to a public range.

    :param name: what it is called.
    :param function: of the outcome, and of all arrays of the record by name if ``of_record``.
    :param low, high: the range.
    :param of_record: whether it takes two arguments.
    """

    name: str
    function: Callable[..., Any]
    low: float
    high: float
    of_record: bool = False

    def value(self, model: PrivateModel, outcome: Outcome, record: list[Array]) -> Any:
        """The statistic of one record, as it is."""
        given = [outcome.value(record)]
        if self.of_record:
            names = [leaf.name for leaf in model.layout.arrays]
            given.append({name: leaf[0] for name, leaf in zip(names, record, strict=True)})
        return self.function(*given)

    def scaled(
        self, model: PrivateModel, outcome: Outcome, record: list[Array]
    ) -> Float[Array, ""]:
        """The statistic of one record, cut, with its range as [-1, 1]; NaN stays NaN."""
        found = jnp.asarray(self.value(model, outcome, record), jnp.float32)
        kept = jnp.clip(found, self.low, self.high)
        return jnp.clip((2 * kept - self.low - self.high) / (self.high - self.low), -1, 1)

    def expected(self, replicated: Float[Array, ""]) -> Any:
        """Its mean under the model, scaled, from that over replicates."""
        return replicated

    def against(self, law: Array, key: Any) -> Statistic:
        """The statistic as it is beside replicates of the record."""
        return self


@dataclass(frozen=True)
class Inside(Statistic):
    """Whether an outcome lies in a central interval of its record's replicates.

    Beside replicates of the same law it is equally likely to have any rank, so that its mean under
    the model is known.
    """

    def expected(self, replicated: Float[Array, ""]) -> Any:
        """The share that the interval states, scaled."""
        return jnp.full_like(replicated, 2 * INSIDE[self.name] - 1)

    def against(self, law: Array, key: Any) -> Statistic:
        """The statistic beside these replicates."""

        def inside(y: Any) -> Any:
            below, equal = jnp.sum(law < y), jnp.sum(law == y)
            # Among equals at random.
            rank = below + random.randint(key, (), 0, equal + 1)
            outer = round((REPLICATES + 1) * (1 - INSIDE[self.name]) / 2)
            within = (outer <= rank) & (rank <= REPLICATES - outer)
            return jnp.where(jnp.isnan(y), jnp.nan, within)

        return Statistic(self.name, inside, self.low, self.high)


@dataclass(frozen=True)
class _IsClass:
    number: int

    def __call__(self, y: Any) -> Any:
        return y == self.number


@dataclass(frozen=True)
class _SquaredDistance:
    centre: float

    def __call__(self, y: Any) -> Any:
        return (y - self.centre) ** 2


def _itself(y: Any) -> Any:
    return y


def chosen_statistics(
    model: PrivateModel,
    outcome: Outcome,
    given: Any,
    outcome_range: tuple[float, float] | None,
    arrays: Sequence[Any],
) -> tuple[Statistic, ...]:
    """The statistics that a user asked for, judged; or those of the outcome.

    :param given: names, or functions and their ranges by name; ``None`` for a choice.
    :param outcome_range: declared range of the outcome.
    :param arrays: the record arguments, whose memory no function may name.
    :raises UnsupportedModelError: a function is not one of a record alone, or cannot be traced.
    :raises ValueError: an unknown name, or a range that is missing or no range.
    """
    if outcome_range is not None:
        outcome_range = checked_range("outcome_range", outcome_range)
    if isinstance(given, Mapping):
        chosen = tuple(_declared(name, each) for name, each in given.items())
    else:
        chosen = _by_name(model, outcome, given, outcome_range)
    if not chosen:
        raise ValueError("statistics must name at least one")
    for each in chosen:
        label = f"statistics[{each.name!r}]"
        model.refuse_captured_arrays(label, each.function, arrays)
        found = _judged(model, outcome, each, label)
        if found.shape != () or jnp.issubdtype(found.dtype, jnp.complexfloating):
            raise ValueError(
                f"{label} must be one real number of a record, got an array of shape "
                f"{found.shape} and dtype {found.dtype}"
            )
    return chosen


def _judged(model: PrivateModel, outcome: Outcome, statistic: Statistic, label: str) -> Any:
    """What a statistic of one record alone returns, without a value."""

    def value(record: list[Array]) -> Array:
        return jnp.asarray(statistic.value(model, outcome, record))

    try:
        return require_of_one_record(model, label, value).out
    except UnsupportedModelError:
        raise
    except Exception as error:
        known = quoted([leaf.name for leaf in model.layout.arrays])
        raise UnsupportedModelError(
            f"{label} cannot be computed: {problem_of(error)}. It is given JAX arrays of one "
            "record, without a value: write it with jax.numpy, with `jnp.where` in place of `if`; "
            f"a second argument is a dictionary of {known}"
        ) from error


def _declared(name: Any, given: Any) -> Statistic:
    _validate.one_line("the name of a statistic", name, 60)
    if not isinstance(given, (tuple, list)) or len(given) != 3 or not callable(given[0]):
        raise ValueError(
            f"statistics[{name!r}] must be (function, low, high): a function of one record's "
            "outcome, or of outcome and record, and the public range that it is cut to"
        )
    function, *ends = given
    low, high = checked_range(f"the range of statistics[{name!r}]", ends)
    return Statistic(name, function, low, high, _takes_two(function))


def _takes_two(function: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # Some built-in functions have none.
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [p for p in parameters if p.kind in kinds and p.default is inspect.Parameter.empty]
    return len(needed) > 1


def _by_name(
    model: PrivateModel,
    outcome: Outcome,
    given: Any,
    outcome_range: tuple[float, float] | None,
) -> tuple[Statistic, ...]:
    if given is None and outcome_range is None and outcome.classes is not None:
        return _of_classes(outcome.classes)
    if given is None:
        given = tuple(INSIDE) if outcome_range is None else ("mean", "spread")
    names = given
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise ValueError(
            "statistics must be a list of names, or a dictionary of (function, low, high)"
        )
    for name in names:
        if name not in _NAMED:
            raise ValueError(
                f"statistics has no {_validate.shown(name)}: known by name are "
                f"{', '.join(_NAMED)}; others are given as (function, low, high)"
            )
    if model.layout.arrays[outcome.place].struct(1).size != 1:
        raise UnsupportedModelError(
            f"site `{outcome.site}` observes several numbers of a record: give statistics as "
            "(function, low, high), each a function to one number"
        )
    if outcome.classes is not None and any(name in INSIDE for name in names):
        raise ValueError(
            f"site `{outcome.site}` is one of a few classes, which have no intervals: "
            "private_calibration_curve says how frequent they are"
        )
    if outcome_range is None and outcome.classes is not None:
        outcome_range = 0.0, float(outcome.classes - 1)
    return tuple(_named(name, outcome.site, outcome_range) for name in names)


def _named(name: str, site: str, outcome_range: tuple[float, float] | None) -> Statistic:
    if name in INSIDE:
        return Inside(name, _itself, 0.0, 1.0)
    if name == "zeros":
        return Statistic(name, _IsClass(0), 0.0, 1.0)
    if outcome_range is None:
        raise ValueError(
            f"{name!r} of site `{site}` needs outcome_range=(low, high), public numbers that "
            "outcomes are cut to: a range taken from the records would be a release of its own"
        )
    low, high = outcome_range
    if name == "mean":
        return Statistic(name, _itself, low, high)
    half = (high - low) / 2
    return Statistic(name, _SquaredDistance(low + half), 0.0, half**2)


def _of_classes(classes: int) -> tuple[Statistic, ...]:
    if classes == 2:
        return (Statistic("mean", _itself, 0.0, 1.0),)
    if classes > _MOST_CLASSES:
        raise ValueError(
            f"the outcome has {classes} classes, whose shares would share the noise: name those to "
            'look at, such as statistics={"class 3": (lambda y: y == 3, 0, 1)}'
        )
    return tuple(Statistic(f"class {k}", _IsClass(k), 0.0, 1.0) for k in range(classes))
