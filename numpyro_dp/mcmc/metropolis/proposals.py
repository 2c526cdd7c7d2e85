"""Where a Metropolis kernel looks next: moves that are free of data and symmetric."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int

from numpyro_dp.model.private_model import PrivateModel

Move = Callable[[dict], dict]

_TRIES = 2
_TOLERANCE = 1e-3


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


@lru_cache(maxsize=64)
def check_public_moves(model: PrivateModel, moves: tuple[Move, ...]) -> None:
    """Try every public move on made-up positions and records.

    :param model: the model.
    :param moves: functions from an unconstrained position to another.
    :raises ValueError: for a move that is no involution, changes volume, or changes the likelihood
        of a made-up record.
    """
    for place, move in enumerate(moves):
        _check_one(model, move, f"public_moves[{place}]")


def _check_one(model: PrivateModel, move: Move, name: str) -> None:
    unravel = ravel_pytree(model.init(random.key(0)))[1]

    def moved(flat: Float[Array, " dim"]) -> Float[Array, " dim"]:
        new = move(unravel(flat))
        if set(new) != set(model.latents):
            raise ValueError(f"{name} must return every latent, got {sorted(new)}")
        return ravel_pytree({site: new[site] for site in sorted(new)})[0]

    @jax.jit
    def tried(here: Float[Array, " dim"], record: list) -> tuple[Array, Array, Array, Array]:
        there = moved(here)
        before, after = (model.record_log_likelihood(unravel(z), record) for z in (here, there))
        return moved(there), jax.jacobian(moved)(here), before, after

    for seed in range(_TRIES):
        start_key, spread_key, record_key = random.split(random.key(seed), 3)
        position = ravel_pytree(model.init(start_key))[0]
        position = position + random.normal(spread_key, position.shape, position.dtype)
        _require_public(name, position, tried(position, model.dummy_records(record_key, 1)))


def _require_public(
    name: str, position: Float[Array, " dim"], found: tuple[Array, Array, Array, Array]
) -> None:
    """Refuse a move by where it leads twice, its slopes, and a record's likelihood around it."""
    back, slopes, before, after = found
    if not np.allclose(back, position, rtol=_TOLERANCE, atol=_TOLERANCE):
        raise ValueError(f"{name} is not an involution: applied twice it must lead back")
    volume = np.linalg.det(np.asarray(slopes, float))
    if not np.isclose(abs(volume), 1, rtol=_TOLERANCE):
        raise ValueError(
            f"{name} changes volume in the unconstrained coordinates (|det| ≠ 1): such a move "
            "would need a correction; state it in coordinates in which it has none"
        )
    if not np.allclose(after, before, rtol=_TOLERANCE, atol=_TOLERANCE):
        raise ValueError(
            f"{name} changes the likelihood of a made-up record: only moves that leave every "
            "record's likelihood as it is are public; leave it out"
        )
