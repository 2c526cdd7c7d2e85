"""The joint release of gradients and second moments, and the kernel that does it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import random
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int

from numpyro_dp.mcmc.sgmcmc.integrator import BoundSumKernel

__all__ = ["BoundFisherKernel", "joint_entries", "joint_weights"]

_TINY = 1e-30


def joint_entries(dim: int) -> int:
    """Numbers in a gradient and the upper triangle of its outer product."""
    return dim + dim * (dim + 1) // 2


def joint_weights(
    share: float,
    weights: tuple[float, ...] | None,
    blocks: tuple[float, ...] | None,
    clip_norm: float,
    dim: int,
) -> tuple[tuple[float, ...] | None, float | tuple[float, ...]]:
    """Weights under which gradient and outer product together have norm at most ``clip_norm``.

    A gradient whose weighted norm is at most C gets the weight √(1 - s), its outer product √s/C,
    off-diagonal entries √2 more: the squared norms are at most (1 - s)·C² and s·C².

    :param share: s, the share of the second moment.
    :param weights: of the gradient's coordinates in its own clip.
    :param blocks: clip norm of each coordinate's site, where they differ.
    :param clip_norm: C.
    :returns: weights of the joint vector (``None`` where nothing is clipped), and the noise of
        the gradient's coordinates in units of that of the joint sum.
    """
    kept = math.sqrt(1 - share)
    spread = 1 / kept if blocks is None else tuple(norm / kept for norm in blocks)
    if clip_norm == math.inf:
        return None, spread
    each = np.ones(dim) if weights is None else np.array(weights)
    rows, columns = _triangle(dim)
    moment = each[rows] * each[columns] * math.sqrt(share) / clip_norm
    moment = np.where(rows == columns, moment, math.sqrt(2) * moment)
    return tuple(np.concatenate([kept * each, moment]).tolist()), spread


@dataclass(frozen=True)
class BoundFisherKernel(BoundSumKernel):
    """Releases gradients and second moments in one sum.

    :param clip_weights: weights of the gradient's coordinates in its own clip; ``None``: 1.
    """

    clip_weights: tuple[float, ...] | None = None

    summands: ClassVar[str] = (
        "clipped per-record gradients and their outer products, one joint vector for each record"
    )
    leaving: ClassVar[tuple[str, ...]] = (
        "the noisy sums of gradients and of their outer products in every step (warm-up included), "
        "and with them the position after it, the average second moment and the step counter",
    )

    def record_vector(self, z: dict) -> Callable[[list[Array]], Float[Array, " entries"]]:
        gradient = self.record_gradient(z)
        rows, columns = _triangle(ravel_pytree(z)[0].size)
        clip_norm = self.private_sum.clip_norm

        def vector(record: list[Array]) -> Float[Array, " entries"]:
            clipped = gradient(record)
            if clip_norm != math.inf:
                weights = 1.0 if self.clip_weights is None else jnp.asarray(self.clip_weights)
                norm = jnp.linalg.norm(weights * clipped)
                clipped = clipped * jnp.minimum(1.0, clip_norm / jnp.maximum(norm, _TINY))
            return jnp.concatenate([clipped, clipped[rows] * clipped[columns]])

        return vector

    def advance(self, key: Any, state: Any, records: list) -> Any:
        position, unravel = ravel_pytree(state.z)
        release_key, integrator_key = random.split(key)
        released = self.release(release_key, state.z, records, state.i)
        likelihood, moments = released[: position.size], released[position.size :]
        average = state.second_moment
        average = average + (_symmetric(moments, position.size) - average) / (state.i + 1)
        # The average with this step's own release in it: without, the first step would know
        # nothing of the curvature. That the two share a batch matters like one over the steps.
        state = state._replace(second_moment=average)
        position, moved = self.integrator.step(
            integrator_key,
            state,
            position,
            self.posterior_gradient(state.z, likelihood),
            self.gradient_noise(state.i),
            self.diagonal(position.dtype),
        )
        return state._replace(z=unravel(position), **moved)


def _triangle(dim: int) -> tuple[Int[np.ndarray, " entries"], Int[np.ndarray, " entries"]]:
    """Rows and columns of the upper triangle, in the order in which it is released."""
    return np.triu_indices(dim)


def _symmetric(entries: Float[Array, " entries"], dim: int) -> Float[Array, "dim dim"]:
    """The matrix of which ``entries`` is the upper triangle."""
    rows, columns = _triangle(dim)
    place = np.zeros((dim, dim), int)
    place[rows, columns] = place[columns, rows] = np.arange(len(rows))
    return entries[place]
