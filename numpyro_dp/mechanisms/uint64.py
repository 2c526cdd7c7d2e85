"""64-bit arithmetic on pairs of 32-bit words, which is what JAX has unless x64 is on."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, UInt32


class Word64(NamedTuple):
    """``high · 2^32 + low``."""

    high: UInt32[Array, "..."]
    low: UInt32[Array, "..."]


def add(one: Word64, other: Word64) -> Word64:
    """Their sum modulo 2^64."""
    low = one.low + other.low
    return Word64(one.high + other.high + (low < one.low).astype(jnp.uint32), low)


def high_product(one: UInt32[Array, "..."], other: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """The upper 32 bits of a product, from 16-bit halves."""
    half = jnp.uint32(0xFFFF)
    one_low, one_high = one & half, one >> 16
    other_low, other_high = other & half, other >> 16
    middle = one_high * other_low + (one_low * other_low >> 16)
    crossed = one_low * other_high + (middle & half)
    return one_high * other_high + (middle >> 16) + (crossed >> 16)


def _product(one: UInt32[Array, "..."], other: UInt32[Array, "..."]) -> Word64:
    return Word64(high_product(one, other), one * other)


def scaled(uniform: Word64, total: Word64) -> Word64:
    """``floor(u · total / 2^64)``: uniform below ``total`` but for a chance of 2^-64 each."""
    high = _product(uniform.high, total.high)
    crossed = _product(uniform.high, total.low), _product(uniform.low, total.high)
    nothing = jnp.zeros_like(high.low)
    lower = Word64(nothing, high_product(uniform.low, total.low))
    for each in crossed:
        lower = add(lower, Word64(nothing, each.low))
    upper = add(high, Word64(nothing, lower.high))
    for each in crossed:
        upper = add(upper, Word64(nothing, each.high))
    return upper
