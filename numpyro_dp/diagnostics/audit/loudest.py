"""Worst-case neighbours of a user's own model, so that an audit needs no knowledge of attacks."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from numpyro_dp import _validate
from numpyro_dp.accounting import Relation, check_relation
from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.families.synthetic_records import simulator
from numpyro_dp.model.private_model import PrivateModel, private_model

# All keys here are fixed and public: no guarantee rests on what is made up, and whoever repeats an
# audit gets the same pair.
# Made-up inputs, how far out each is tried, and the positions at which its gradient is looked at.
_INPUTS, _SCALES, _REACH = 32, (1.0, 10.0, 100.0, 1e3), (0.0, 0.03, 0.1, 0.3)
_MOVES = 8


class NeighbouringData(NamedTuple):
    """Two neighbouring data sets, made up: positional arguments of the model.

    - **data**, **neighbour**: tuples of arrays, one array an argument, of its shape, which differ
      in one record (under add/remove ``neighbour`` has one row fewer).

    **Privacy.** Made up from the model: nothing private is in it.

    **References**: see :func:`loudest_pair`.

    **Example**: see :func:`loudest_pair`.
    """

    data: tuple[Any, ...]
    neighbour: tuple[Any, ...]


def loudest_pair(
    model: Callable[..., Any],
    *args: Any,
    clip_norm: float = 1.0,
    max_move: float | None = None,
    relation: Relation = "zero_out",
    data_plate: str | None = None,
) -> NeighbouringData:
    """Make up the two data sets on which one record of this model is heard most.

    One record is as loud as the model lets it be: of many made-up ones, far out and near, that
    whose clipped gradient is longest around the start (or whose log likelihood changes most in
    moves). All others are null, so that nothing hides it. Hand both to :func:`~numpyro_dp.audit`.

    :param model: a NumPyro model, as a kernel takes it.
    :param args: its arguments; only the shapes of records are used, and what is public.
    :param clip_norm: the kernel's, or its ``lipschitz``: how long a gradient needs to be.
    :param max_move: of a Metropolis kernel that bounds a record by ``lipschitz * max_move``.
    :param relation: ``"zero_out"``: the record against a null one; ``"replace_one"``: against the
        one that pulls hardest the other way; ``"add_remove"``: against one record fewer.
    :param data_plate: name of the plate whose slices are the records, when several enclose the
        observations; ``"auto"`` takes each row for one, where no plate does.
    :returns: arguments of the two data sets, all of them **made up**.
    :raises UnsupportedModelError: the model cannot be split into records, or has no null record.
    :raises ValueError: an argument is out of range, or no record has a gradient.

    **Privacy.** No value of a record is read.

    **References.** Nasr et al., *Adversary Instantiation* (IEEE S&P 2021), section 4.

    **Example**::

        >>> import jax.numpy as jnp, numpyro, numpyro.distributions as dist, numpyro_dp as ndp
        >>> def model(x, y=None):
        ...     w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        ...     with numpyro.plate("people", x.shape[0]):
        ...         numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)
        >>> pair = ndp.loudest_pair(model, jnp.ones((50, 2)), jnp.ones(50, int))
        >>> pair.data[0].shape, int(jnp.isnan(pair.neighbour[0]).all(1).sum())
        ((50, 2), 50)
    """
    relation, clip_norm = check_relation(relation), _validate.positive("clip_norm", clip_norm)
    _validate.given(_validate.positive, max_move=max_move)
    split = private_model(model, args, data_plate=data_plate)
    rows = split.layout.rows
    null = null_record(split)
    candidates = _candidates(split)
    pulls = np.asarray(_pulls(split, clip_norm, max_move, candidates), np.float64)
    if np.any(np.asarray(_pulls(split, clip_norm, max_move, [leaf[None] for leaf in null]))):
        raise UnsupportedModelError(
            "this model has no null record, which every pair needs where records are to be told "
            "apart: NaN in its floating-point record arrays leaves a gradient, or there are none. "
            "Give counts and classes as floating-point numbers, such as jnp.ones(50)"
        )
    lengths = np.linalg.norm(pulls, axis=1)
    loud = int(np.argmax(lengths))
    if lengths[loud] == 0:
        raise ValueError("no made-up record has a gradient at the start: nothing could be heard")
    if lengths[loud] < 0.9:
        warnings.warn(
            f"the loudest made-up record reaches {lengths[loud]:.2g} of clip_norm={clip_norm:g}: "
            "an audit on it proves less than the accounting charges for",
            stacklevel=2,
        )
    # Replaced by what pulls the other way, else by nothing.
    opposite = int(np.argmin(pulls @ pulls[loud]))
    other = [leaf[opposite] for leaf in candidates] if relation == "replace_one" else null

    def filled(first: list[np.ndarray], count: int) -> tuple[Any, ...]:
        arrays = [
            np.concatenate([one, *[quiet] * (count - 1)])[:count]
            for one, quiet in zip(first, null, strict=True)
        ]
        return split.layout.fill(arrays)[0]

    own = [leaf[loud] for leaf in candidates]
    return NeighbouringData(filled(own, rows), filled(other, rows - (relation == "add_remove")))


def null_record(model: PrivateModel) -> list[np.ndarray]:
    """Leaves of a record that is nowhere a number, of leading axis 1."""
    return [np.asarray(_nothing(each)) for each in model.layout.structs(1)]


def _nothing(leaf: jax.ShapeDtypeStruct) -> Array:
    floating = jnp.issubdtype(leaf.dtype, jnp.floating)
    return jnp.full(leaf.shape, jnp.nan if floating else 0, leaf.dtype)


def loud_records(model: PrivateModel, clip_norm: float, count: int) -> list[np.ndarray]:
    """Made-up records in as many directions, each as loud as any of its kind around the start."""
    found = _candidates(model, count)
    lengths = np.linalg.norm(np.asarray(_pulls(model, clip_norm, None, found)), axis=1)
    loudest = lengths.reshape(-1, count).argmax(0) * count + np.arange(count)
    return [leaf[loudest][:, 0] for leaf in found]


def _candidates(model: PrivateModel, count: int = _INPUTS) -> list[np.ndarray]:
    """Made-up records at all scales, outcomes drawn by the model and not, of leading axis 1.

    Those of one row of inputs are ``count`` apart.
    """
    structs = model.layout.structs(count)
    keys = random.split(random.key(0), len(structs))
    base = [
        random.normal(key, each.shape).astype(each.dtype)
        if jnp.issubdtype(each.dtype, jnp.floating)
        else random.bernoulli(key, 0.5, each.shape).astype(each.dtype)
        for key, each in zip(keys, structs, strict=True)
    ]
    scaled = [
        jnp.concatenate(
            [leaf * s if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf for s in _SCALES]
        )
        for leaf in base
    ]
    records = [leaf[:, None] for leaf in scaled]
    start = model.init(random.key(0))
    drawn = jax.vmap(partial(simulator(model), start))(
        records, random.split(random.key(1), len(scaled[0]))
    )
    return [np.concatenate(both) for both in zip(records, drawn, strict=True)]


@partial(jax.jit, static_argnums=0)
def _pulls(
    model: PrivateModel, clip_norm: Any, max_move: Any, records: list[Array]
) -> Float[Array, "records numbers"]:
    """What each record adds at some positions, in units of its bound, of root mean square ≤ 1.

    Who attacks knows the position, so that directions may change from one to the next.
    """
    start, unravel = ravel_pytree(model.init(random.key(0)))
    away = random.normal(random.key(2), (len(_REACH), start.size), start.dtype)
    # On both sides, or a record that saturates on one would look loud by luck.
    away = jnp.concatenate([away, -away]) * jnp.asarray(2 * _REACH, start.dtype)[:, None]

    def value(position: Array, record: list[Array]) -> Float[Array, ""]:
        return model.record_log_likelihood(unravel(position), record)

    def gradient(position: Array, record: list[Array]) -> Array:
        found = jax.grad(value)(position, record) / clip_norm
        found = jnp.where(jnp.all(jnp.isfinite(found)), found, 0)
        # Squares of what is far out are no numbers.
        largest = jnp.maximum(jnp.max(jnp.abs(found)), 1.0)
        return found / largest / jnp.maximum(jnp.linalg.norm(found / largest), 1 / largest)

    def change(position: Array, record: list[Array]) -> Array:
        ahead = random.normal(random.key(3), (_MOVES, start.size), start.dtype)
        ahead = ahead / jnp.linalg.norm(ahead, axis=1, keepdims=True) * max_move / 2
        there = jax.vmap(value, (0, None))(position + ahead, record)
        found = (there - value(position, record)) / (clip_norm * max_move)
        return jnp.clip(jnp.where(jnp.isfinite(found), found, 0), -1, 1) / np.sqrt(_MOVES)

    one = gradient if max_move is None else change

    def each(record: list[Array]) -> Array:
        return jax.vmap(one, (0, None))(start + away, record).ravel() / np.sqrt(len(away))

    return jax.lax.map(each, records)
