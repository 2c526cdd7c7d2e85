"""Is the model a sum over records? Three made-up records tell, without any data."""

import math
import warnings
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array

from numpyro_dp._quick_compile import quickly_compiled
from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.records import Layout

__all__ = ["DUMMIES", "dummy_records", "require_additive"]

DUMMIES = 3
_TRIES = 30
_FINITE_TRIES = 4
# Rounding alone stays below 3e-7 on the CPU; accelerators multiply matrices with 10-bit mantissas.
_CPU_TOLERANCE, _TOLERANCE = 1e-4, 2e-3


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


def require_additive(compare: Callable[[Array], tuple[Array, Array]]) -> None:
    """Compare the model on three dummy records with the sum of its terms on each.

    The check protects correctness: a term that passes is still computed from one record alone
    whatever happens here. A model whose density is not finite on dummies only gets a warning.

    Args:
        compare: from a key to the value on ``DUMMIES`` records together, and to those of each, at
            some position.

    Raises:
        UnsupportedModelError: when the two differ.
    """
    compiled = quickly_compiled(compare, jax.eval_shape(lambda: jax.random.key(0)))
    tolerance = _CPU_TOLERANCE if jax.default_backend() == "cpu" else _TOLERANCE
    finite = 0
    for attempt in range(_TRIES):
        total, terms = compiled(jax.random.key(attempt))
        apart = float(jnp.sum(terms))
        scale = 1.0 + float(jnp.sum(jnp.abs(terms)))
        if not math.isfinite(float(total)) or not math.isfinite(apart):
            continue
        if abs(float(total) - apart) > tolerance * scale:
            raise UnsupportedModelError(
                f"the model is not a sum over records: {DUMMIES} dummy records give "
                f"{float(total):.4g} together but {apart:.4g} one by one; a record's likelihood "
                "must not depend on other records (batch mean, batch norm), on the number of "
                "records or on its row number"
            )
        finite += 1
        if finite == _FINITE_TRIES:
            break
    if finite:
        return
    warnings.warn(
        "the model could not be checked to be a sum over records: its density is not finite on "
        "made-up records. Privacy does not rest on this check; see for yourself that no record's "
        "likelihood uses other records, which it would not find: it is computed from one alone",
        stacklevel=5,
    )
