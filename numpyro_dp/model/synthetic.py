"""Records made up without data, to try a model on, and changes to one of them at a time."""

import itertools
import math
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from numpyro_dp.model.records import Layout

DUMMIES = 3
# What a row's columns are moved by, many at once where there are many.
_MOVES = (0.05, 40.0, -1e3, 1e5)
_GROUPS = 16


def dummy_records(layout: Layout, rng_key: Array, m: int) -> list[Array]:
    """Make up ``m`` records of the right shapes: 0 or 1, and as often, for floats, (0.1, 0.9).

    Outcomes that must be 0 or 1 are often held as floats; other columns must be positive.
    """
    keys = jax.random.split(rng_key, len(layout.arrays))
    structs = [leaf.struct(m) for leaf in layout.arrays]
    return [_dummy(key, struct) for key, struct in zip(keys, structs, strict=True)]


def _dummy(key: Array, struct: jax.ShapeDtypeStruct) -> Array:
    kind_key, whole_key, key = jax.random.split(key, 3)
    whole = jax.random.bernoulli(whole_key, 0.5, struct.shape).astype(struct.dtype)
    if not jnp.issubdtype(struct.dtype, jnp.inexact):
        return whole
    between = jax.random.uniform(key, struct.shape, minval=0.1, maxval=0.9).astype(struct.dtype)
    return jnp.where(jax.random.bernoulli(kind_key), whole, between)


def made_up_rows(rng: np.random.Generator, struct: jax.ShapeDtypeStruct) -> np.ndarray:
    """Draw what outcomes and groups may have to be, mostly: 0 or 1, or positive."""
    kind = rng.choice(3, p=(0.25, 0.5, 0.25))
    if not jnp.issubdtype(struct.dtype, jnp.inexact):
        return rng.integers(0, 5 if kind == 2 else 2, struct.shape).astype(struct.dtype)
    made = (
        rng.integers(0, 2, struct.shape),
        rng.uniform(0.1, 0.9, struct.shape),
        rng.normal(0, 3, struct.shape),
    )
    return made[kind].astype(struct.dtype)


def moved(records: list[np.ndarray], *, gently: bool) -> Iterator[tuple[int, list[np.ndarray]]]:
    """Yield each row, with each of its columns moved by several amounts, and with all of them.

    ``gently``: by a small amount only.
    """
    rng = np.random.default_rng(0)
    sizes = [math.prod(a.shape[1:]) for a in records]
    columns = np.arange(sum(sizes))
    groups = [columns, *np.array_split(columns, min(len(columns), _GROUPS))]
    ends = np.cumsum(sizes)[:-1]
    for row, group, move in itertools.product(
        range(DUMMIES), groups, _MOVES[: 1 if gently else None]
    ):
        amounts = np.zeros(len(columns))
        amounts[group] = move * rng.uniform(0.5, 1.0, len(group))
        parts = zip(records, np.split(amounts, ends), strict=True)
        yield row, [_with_row_moved(a, row, by.reshape(a.shape[1:])) for a, by in parts]


def _with_row_moved(array: np.ndarray, row: int, by: np.ndarray) -> np.ndarray:
    changed = array.copy()
    if jnp.issubdtype(array.dtype, jnp.inexact):
        changed[row] += by.astype(array.dtype)
    else:
        # A small amount makes a 1 of a 0 and a 0 of all else.
        small = np.abs(by) < 1
        moved = np.where(small, changed[row] == 0, changed[row] + by.astype(np.int64))
        with np.errstate(invalid="ignore"):
            changed[row] = np.where(by == 0, changed[row], moved).astype(array.dtype)
    return changed
