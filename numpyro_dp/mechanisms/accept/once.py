"""One evaluation of a value that several readers share."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, UInt32


def once(value: Array, word: UInt32[Array, ""]) -> Array:
    """``value``, unchanged, which no compiler evaluates again for each reader.

    It is the result of a loop of one turn, of which only the running program knows that it is one.

    :param value: the array.
    :param word: any number that the compiler does not know.
    """
    turns = jnp.minimum(word | 1, 1).astype(jnp.int32)
    return lax.fori_loop(0, turns, lambda _, found: value, jnp.zeros_like(value))
