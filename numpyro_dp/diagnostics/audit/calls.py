"""An adversary of anything that has a report: it is called often, and a number of it looked at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jaxtyping import Array, Float, UInt8

from numpyro_dp._public import is_public
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
    _require_neighbours(both, relation)
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


def _require_neighbours(both: tuple[tuple[Any, ...], tuple[Any, ...]], relation: Relation) -> None:
    """Refuse arguments that differ in anything but one row, as far as they can be compared.

    Arrays that are equal on both sides may be public; each of the others holds a row for each
    record. What is no array, number or text is not looked into.
    """
    (one, nesting), (other, same) = (
        jax.tree.flatten(arguments, is_leaf=is_public) for arguments in both
    )
    pairs = [tuple(map(_as_array, pair)) for pair in zip(one, other, strict=False)]
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    apart = [(a, b) for a, b in known if not _equal(a, b)]
    if nesting == same and not apart and len(known) < len(pairs):
        return
    rows = {(a.shape[:1], b.shape[:1]) for a, b in apart}
    alike = all(a.shape[1:] == b.shape[1:] for a, b in apart)
    if nesting != same or len(rows) != 1 or rows == {((), ())} or not alike:
        raise ValueError(
            "data and neighbour must differ in exactly one record: change one row of the record "
            "arrays and nothing else"
        )
    common = [np.result_type(a, b) for a, b in apart]
    first, second = (
        [_bytes(pair[side], to) for pair, to in zip(apart, common, strict=True)] for side in (0, 1)
    )
    take_apart(first, second, relation)


def _as_array(leaf: Any) -> np.ndarray | None:
    """An argument to be compared; ``None`` of what cannot be."""
    if is_public(leaf):
        parts = [_as_array(part) for part in jax.tree.leaves(leaf.value)]
        whole = b"public" + b"".join(part.tobytes() for part in parts if part is not None)
        # One value and no rows, none of which may differ.
        return np.asarray(np.void(whole))
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.extended):
        leaf = random.key_data(leaf)
    array = np.asarray(leaf)
    return None if array.dtype == object else array


def _equal(one: np.ndarray, other: np.ndarray) -> bool:
    # As bytes: a NaN equals itself.
    kinds = one.shape == other.shape and one.dtype == other.dtype
    return kinds and one.tobytes() == other.tobytes()


def _bytes(array: np.ndarray, dtype: Any) -> UInt8[Array, "rows bytes"]:
    """Rows of bytes, so that arrays of all kinds are compared alike."""
    whole = np.ascontiguousarray(array.astype(dtype))
    return jnp.asarray(whole.reshape(len(whole), -1).view(np.uint8))


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
