"""Where a Metropolis kernel looks next: moves that are free of data and symmetric."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import random
from jaxtyping import Array, Float, Int

Move = Callable[[dict], dict]


@dataclass(frozen=True)
class RandomWalk:
    """Gaussian displacements N(0, s²G), shortened to a longest length.

    Shortening keeps a displacement as likely as its opposite, which is all that detailed balance
    asks for; the length is measured in the preconditioned coordinates G^-½·δ.

    :param step_size: s, a number or a callable of the step counter.
    :param roots: G^½ by coordinate, ``None`` for the identity.
    :param max_move: the longest displacement, ``None`` for no limit.
    """

    step_size: float | Callable[[Any], Any]
    roots: tuple[float, ...] | None = None
    max_move: float | None = None

    def draw(
        self, key: Any, step: Int[Array, ""], position: Float[Array, " dim"], count: int
    ) -> Float[Array, "count dim"]:
        """``count`` independent displacements."""
        size = self.step_size(step) if callable(self.step_size) else self.step_size
        shape = (count, *position.shape)
        moved = jnp.asarray(size, position.dtype) * random.normal(key, shape, position.dtype)
        if self.max_move is not None:
            length = jnp.linalg.norm(moved, axis=1, keepdims=True)
            moved = moved * jnp.minimum(1, self.max_move / jnp.maximum(length, 1e-30))
        if self.roots is None:
            return moved
        return moved * jnp.asarray(self.roots, position.dtype)


def move_publicly(key: Any, z: dict, moves: tuple[Move, ...], log_prior: Callable) -> dict:
    """Each public move in turn, with even odds, accepted by the prior alone.

    A move that leaves every record's likelihood as it is has a log ratio in which no record
    takes part: its bit is public. A wrong claim would be a bias, never a leak.
    """
    for move, move_key in zip(moves, random.split(key, len(moves)), strict=True):
        coin_key, accept_key = random.split(move_key)
        moved = jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), move(z), z)
        ratio = log_prior(moved) - log_prior(z)
        accepted = jnp.log(random.uniform(accept_key)) < ratio
        taken = accepted & random.bernoulli(coin_key)
        z = jax.tree.map(lambda new, old, taken=taken: jnp.where(taken, new, old), moved, z)
    return z
