"""An adversary of anything that has a report: it is called often, and a number of it looked at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jaxtyping import Float

from numpyro_dp.accounting import PrivacyReport, Relation
from numpyro_dp.accounting.events import ComposedDpEvent, DpEvent, from_json
from numpyro_dp.diagnostics.audit.neighbours import take_apart
from numpyro_dp.diagnostics.audit.releases import Attacked


def attacked_calls(
    release: Callable[..., Any],
    both: tuple[tuple[Any, ...], tuple[Any, ...]],
    relation: Relation,
    noise_keys: Any,
    score: Callable[[Any], Any] | None,
    num_calls: int,
    show: Callable[[int], None],
) -> Attacked:
    """Call a function often on either data set, and score every result.

    :param release: takes a key and the arguments of one data set.
    :param both: those of the data and of its neighbour.
    :param score: from a result to a number.
    :raises ValueError: results without a report, of another relation, or charged differently; data
        sets that are no neighbours, where their rows can be compared.
    """
    if score is None:
        raise ValueError("a function is audited by score=, from one result of it to a number")
    rows = [_rows(arguments) for arguments in both]
    if all(rows):
        take_apart(*rows, relation)
    reports: list[PrivacyReport] = []
    sides = []
    for arguments, noise_key, at in zip(both, noise_keys, (0, num_calls), strict=True):
        found = np.zeros(num_calls)
        for number, key in enumerate(random.split(noise_key, num_calls)):
            result = release(key, *arguments)
            reports.append(_report(result, relation, reports[:1]))
            found[number] = float(score(result))
            show(at + number + 1)
        sides.append(found)
    _check(sides)
    first = reports[0]
    return Attacked((sides[0], sides[1]), _event(first), first.steps, first.delta)


def _rows(arguments: tuple[Any, ...]) -> list[Any]:
    """Arguments as records, if all are arrays of as many rows; else nothing."""
    arrays = [np.asarray(each) for each in arguments if isinstance(each, np.ndarray | jax.Array)]
    alike = len(arrays) == len(arguments) and len({array.shape[:1] for array in arrays}) == 1
    return [jnp.asarray(array) for array in arrays] if alike and arrays[0].ndim else []


def _report(result: Any, relation: Relation, before: list[PrivacyReport]) -> PrivacyReport:
    report = getattr(result, "privacy", None)
    if not isinstance(report, PrivacyReport):
        raise ValueError(
            "the audited function must return something whose .privacy is a report: what it "
            "returned has none, so that nothing is claimed"
        )
    if report.relation != relation:
        raise ValueError(
            f"the audited function reports relation {report.relation!r}, and {relation!r} is "
            "audited: give it an accountant with that relation, or relation="
        )
    if before and report.events != before[0].events:
        raise ValueError(
            "the audited function was charged differently from call to call: let it make its "
            "object, and its accountant if any, anew in each call"
        )
    return report


def _event(report: PrivacyReport) -> DpEvent:
    return ComposedDpEvent([from_json(text) for _, text in report.events])


def _check(sides: list[Float[np.ndarray, " calls"]]) -> None:
    if not np.all(np.isfinite(sides)):
        raise ValueError("score must return a finite number for each result")
    drawn = np.concatenate(sides)
    if np.all(drawn == drawn[0]):
        raise ValueError("score gave the same number for every result: it looks at no release")
    if any(len(np.unique(side)) == 1 for side in sides):
        raise ValueError(
            "every call on one of the data sets gave the same number: calls must be independent, "
            "each by the key that it is given (with secure=False), and score no mere verdict"
        )
