"""Two data sets taken apart: the records they share, and the one that makes them neighbours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, UInt8

from numpyro_dp.accounting import Relation
from numpyro_dp.model.private_model import PrivateModel
from numpyro_dp.model.records import read_arguments

# Arbitrary, away from each other: a gradient that is zero at all of them is zero by construction.
_PROBES = (0.0, 0.25, -0.75)


class NeighbourPair(NamedTuple):
    """Two neighbouring data sets, taken apart.

    - **shared**: leaves of the records that both hold.
    - **own**, **other**: leaves of the record in which they differ, with leading axis 1, or 0
      where a data set lacks it.
    """

    shared: list[Array]
    own: list[Array]
    other: list[Array]


def take_apart(data: list[Array], neighbour: list[Array], relation: Relation) -> NeighbourPair:
    """The shared records and the differing one.

    :param data: record leaves of one data set, a row for each record.
    :param neighbour: those of the other.
    :param relation: ``add_remove`` asks for one record more on either side, the others for
        another value of one record.
    :raises ValueError: when they are not neighbours in this sense.
    """
    rows = [_row_bytes(leaves) for leaves in (data, neighbour)]
    sizes = [len(r) for r in rows]
    if abs(sizes[0] - sizes[1]) != (relation == "add_remove"):
        asked = "that differ by one" if relation == "add_remove" else "that are equal"
        raise ValueError(
            f"relation='{relation}' compares numbers of records {asked}: data has {sizes[0]} and "
            f"neighbour {sizes[1]}"
        )
    fewer, more = sorted(sizes)
    differing = np.flatnonzero((rows[0][:fewer] != rows[1][:fewer]).any(axis=1))
    at = int(differing[0]) if len(differing) else fewer
    holds = [size == more for size in sizes]
    rests = [
        np.delete(r, at, axis=0) if h and at < more else r for r, h in zip(rows, holds, strict=True)
    ]
    if at == more or not np.array_equal(rests[0], rests[1]):
        raise ValueError(
            "data and neighbour must differ in exactly one record: change one row of the record "
            "arrays and nothing else"
        )
    own, other = (
        [leaf[at : at + 1] if h else leaf[:0] for leaf in leaves]
        for leaves, h in zip((data, neighbour), holds, strict=True)
    )
    shared = [jnp.delete(leaf, at, axis=0) for leaf in (data if holds[0] else neighbour)]
    return NeighbourPair(shared, own, other)


def require_one_model(
    model: Callable[..., Any], both: Sequence[tuple[Any, ...]], relation: Relation
) -> None:
    """Refuse data sets of which more than a record differs: what they would show is no privacy.

    :param both: arguments of the model, of the data and of its neighbour.
    :raises ValueError: a public argument differs.
    """
    layouts = [read_arguments(model, arguments, {})[0] for arguments in both]
    if relation == "add_remove":
        layouts = [layout.redacted() for layout in layouts]
    if layouts[0] != layouts[1]:
        raise ValueError(
            "the two data sets make different models: give them equal public arguments"
        )


def check_null(model: PrivateModel, z: dict[str, Array], pair: NeighbourPair) -> None:
    """Refuse a pair of which neither differing record is null, as ``zero_out`` asks.

    :param z: an unconstrained position; the gradient is looked at there and nearby.
    :raises ValueError: when both records have a gradient.
    """
    position, unravel = ravel_pytree(z)

    def is_null(record: list[Array]) -> bool:
        def term(position: Array) -> Array:
            return model.record_log_likelihood(unravel(position), record)

        gradients = [jax.grad(term)(position + shift) for shift in _PROBES]
        return all(bool(jnp.all(g == 0) | ~jnp.all(jnp.isfinite(g))) for g in gradients)

    if not (is_null(pair.own) or is_null(pair.other)):
        raise ValueError(
            "under relation='zero_out' one of the two differing records must be null, its gradient "
            "zero everywhere: fill it with nan, or audit relation='replace_one'"
        )


def _row_bytes(leaves: list[Array]) -> UInt8[np.ndarray, "records bytes"]:
    # Compared as bytes: a NaN equals itself, and nothing is rounded.
    rows = [np.ascontiguousarray(leaf).reshape(leaf.shape[0], -1) for leaf in leaves]
    return np.concatenate([row.view(np.uint8) for row in rows], axis=1)
