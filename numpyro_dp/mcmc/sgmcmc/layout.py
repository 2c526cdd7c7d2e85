"""Public numbers by site, spread over the flattened unconstrained position."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache

import jax
import numpy as np
from jax import random
from jaxtyping import ArrayLike

from numpyro_dp.model.private_model import PrivateModel

__all__ = ["by_coordinate", "dimension", "shapes"]


@lru_cache(maxsize=64)
def shapes(wall: PrivateModel) -> dict[str, tuple[int, ...]]:
    """Unconstrained shape of each latent, in the order in which they are flattened."""
    z = jax.eval_shape(wall.init, jax.eval_shape(lambda: random.key(0)))
    return {name: tuple(z[name].shape) for name in sorted(z)}


def dimension(wall: PrivateModel) -> int:
    """Number of coordinates of the unconstrained position."""
    return sum(math.prod(shape) for shape in shapes(wall).values())


def by_coordinate(
    wall: PrivateModel, argument: str, values: Mapping[str, ArrayLike], *, default: float | None
) -> tuple[float, ...]:
    """One positive number for each coordinate, from numbers or arrays by site.

    :param wall: the model.
    :param argument: name of the user's argument, for messages.
    :param values: by site, what broadcasts to its unconstrained shape.
    :param default: for sites that are not named; ``None`` asks for all of them.
    :raises ValueError: for unknown or missing sites, wrong shapes, and what is not positive.
    """
    latents = shapes(wall)
    unknown = sorted(set(values) - set(latents))
    if unknown:
        raise ValueError(
            f"{argument} names {', '.join(unknown)}, but the latents are {', '.join(latents)}"
        )
    missing = [name for name in latents if name not in values]
    if missing and default is None:
        raise ValueError(f"{argument} must name every latent: add {', '.join(missing)}")
    spread = []
    for name, shape in latents.items():
        given = np.asarray(values.get(name, default), dtype=float)
        try:
            spread.append(np.broadcast_to(given, shape).ravel())
        except ValueError:
            raise ValueError(
                f"{argument}[{name!r}] has shape {given.shape}, which does not broadcast to the "
                f"unconstrained shape {shape}"
            ) from None
    flat = np.concatenate(spread)
    if not np.all(np.isfinite(flat) & (flat > 0)):
        raise ValueError(f"{argument} must be positive and finite in every coordinate")
    return tuple(flat.tolist())
