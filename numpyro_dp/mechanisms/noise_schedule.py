"""Noise that changes from step to step: what is planned, charged and allowed at each level."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, Int32

from numpyro_dp.mechanisms._checks import checked_noise
from numpyro_dp.mechanisms.lattice import Lattice, RecordLimit, choose_lattice, with_noise


def planned_lattice(
    levels: Sequence[float],
    scheduled: bool,
    *,
    dim: int,
    clip_norm: float,
    max_rows: int,
    **plan: Any,
) -> tuple[Lattice | None, tuple[RecordLimit, ...]]:
    """One lattice for all levels, with what limits a record at each of them.

    :param levels: noise multipliers, ascending.
    :param scheduled: whether they belong to a schedule, which alone needs bounds of its own.
    :param dim: coordinates that rounding is planned for.
    :param clip_norm: L2 bound on a record's vector.
    :param max_rows: most rows of a sum.
    :param plan: what else :func:`choose_lattice` takes.
    :returns: The lattice of the least level and the bounds; ``None`` when privacy is switched off.
    :raises ValueError: when the noise is too large or too small for the lattice.
    """
    if not all([checked_noise(clip_norm, level) for level in levels]):
        return None, ()
    lattice = choose_lattice(
        dim=dim, clip_norm=clip_norm, noise_multiplier=levels[-1], max_rows=max_rows, **plan
    )
    if not scheduled:
        return lattice, ()
    planned = [with_noise(lattice, dim, clip_norm, level, max_rows) for level in levels]
    return planned[0], tuple(each.bound for each in planned)


def taken(
    schedule: Sequence[float], num_steps: int, *, start: int, num_chains: int
) -> dict[float, int]:
    """How many of ``num_steps`` releases are made at each level, the levels ascending.

    :param schedule: noise multiplier of every step of a chain, the last one kept for later steps.
    :param num_steps: releases, over all chains.
    :param start: steps that each chain has behind it.
    :param num_chains: chains that share ``num_steps`` equally.
    :raises ValueError: when the chains cannot share the steps equally.
    """
    each, rest = divmod(num_steps, num_chains)
    if rest:
        raise ValueError(f"{num_steps} steps cannot be shared by {num_chains} chains")
    last = len(schedule) - 1
    counts = Counter(schedule[min(start + k, last)] for k in range(each))
    return {level: num_chains * count for level, count in sorted(counts.items())}


def level_at(schedule: Sequence[float], step: int | Int32[Array, ""]) -> Float32[Array, ""]:
    """The noise multiplier of a step; of a number on the host, for which nothing is compiled."""
    numbers: Any = np if isinstance(step, int) else jnp
    levels = numbers.asarray(schedule, np.float32)
    return levels[numbers.clip(step, 0, len(schedule) - 1)]


def bound_at(
    schedule: Sequence[float], bounds: Sequence[RecordLimit], step: int | Int32[Array, ""]
) -> RecordLimit:
    """What limits a record at a step, from ``bounds`` at the schedule's levels, ascending."""
    place = {level: k for k, level in enumerate(sorted(set(schedule)))}
    places = jnp.asarray([place[level] for level in schedule], jnp.int32)
    at = places[jnp.clip(step, 0, len(schedule) - 1)]
    squared, cap, scale = zip(*bounds, strict=True)
    return RecordLimit(
        jnp.asarray(squared, jnp.uint32)[at],
        jnp.asarray(cap, jnp.float32)[at],
        jnp.asarray(scale, jnp.float32)[at],
    )
