"""Exact draws from a public grid, under a bounded likelihood.

A record's log likelihood, cut to its bounds, is rounded to one of 2^20 whole steps; sums of these
are exact, so that one record moves a sum by exactly its own share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random
from jaxtyping import Array, ArrayLike, Float, Int

from numpyro_dp.accounting.events import DpEvent, PosteriorDraw
from numpyro_dp.mcmc.posterior.draw import BoundedLikelihood, Draw, record_by_record
from numpyro_dp.mechanisms import word_pairs
from numpyro_dp.model.private_model import PrivateModel

STEPS = 1 << 20
UNIFORM_BITS = 62
ROUNDOFF = 2.0**-53
_MOST_POINTS = 1 << 20
ARITHMETIC = (
    "whole-numbered log likelihoods with exact sums; probabilities in 64-bit floating point, whose "
    "error is charged as total variation; one secret 62-bit uniform number"
)


@dataclass(frozen=True)
class BoundedTarget:
    """prior(θ)·exp(τ Σ clip(log p)) with its public constants.

    :param private_model: the model.
    :param guarantee: bounds on a record's log likelihood.
    :param power: τ.
    :param num_records: the number of records, or a public upper bound where it is private.
    :param one_by_one: see :func:`~numpyro_dp.mcmc.posterior.draw.record_by_record`.
    """

    private_model: PrivateModel
    guarantee: BoundedLikelihood
    power: float
    num_records: int
    one_by_one: bool = False

    @property
    def range(self) -> float:
        """η: range of what one record can add to the log density."""
        return self.power * (self.guarantee.upper - self.guarantee.lower)

    @property
    def event(self) -> DpEvent:
        return PosteriorDraw(self.range * (1 + 1e-12))

    @property
    def step(self) -> float:
        """One whole step in the tempered log density."""
        return self.range / STEPS

    def total(self, z: dict, records: list) -> Int[Array, ""]:
        """Σ of the records' log likelihoods above the lower bound, in whole steps, exact."""
        low, high = self.guarantee.lower, self.guarantee.upper

        def steps(record: list) -> Int[Array, ""]:
            value = self.private_model.record_log_likelihood(z, record)
            share = jnp.clip((value - low) / (high - low), 0, 1)
            # Nowhere but in [0, 1], NaN included: a record that is never finite is a null one.
            return jnp.rint(jnp.where(share >= 0, share, 0) * STEPS).astype(jnp.int32)

        each = record_by_record(steps, records, self.one_by_one)
        with jax.enable_x64(True):
            return jnp.sum(each.astype(jnp.int64))

    def log_likelihood(self, z: dict, records: list) -> Float[Array, ""]:
        """What records add to the tempered log density, above its lower bound, as it is drawn."""
        return self.step * self.total(z, records)


@dataclass(frozen=True)
class BoundedDraw(Draw):
    """A draw from a bounded target, which costs what the target does."""

    target: BoundedTarget

    @property
    def event(self) -> DpEvent:
        return self.target.event

    @property
    def bound(self) -> float:
        return self.target.range

    @property
    def arithmetic(self) -> str:
        return ARITHMETIC

    @property
    def conditions(self) -> tuple[str, ...]:
        return ()


def uniform_below(key: Any) -> Int[Array, ""]:
    """A secret whole number, uniform below 2^62; needs 64 bits enabled."""
    first, second = word_pairs(key, 1)
    return (first[0].astype(jnp.int64) << 30) | (second[0].astype(jnp.int64) >> 2)


@dataclass(frozen=True, eq=False)
class Grid:
    """Draw exactly from the posterior on a finite public set of points.

    :param points: for each latent site, an array of shape (points, …) of *unconstrained* values.
        The law is the posterior density in unconstrained coordinates, restricted to these points
        (on a regular grid: its discretisation).

    **Privacy.** An exponential mechanism; unconditional.

    **References.** McSherry and Talwar, *Mechanism Design via Differential Privacy* (2007).

    **Example**: see :class:`OPS`.
    """

    points: Mapping[str, ArrayLike]

    def bound_to(self, target: BoundedTarget) -> GridDraw:
        """Check the points against the model.

        :raises ValueError: when sites or shapes do not fit, or a point has no prior density.
        """
        shapes = {
            name: tuple(value.shape)
            for name, value in jax.eval_shape(
                target.private_model.init, jax.eval_shape(lambda: random.key(0))
            ).items()
        }
        given = {name: np.asarray(value, float) for name, value in self.points.items()}
        counts = {len(value) if value.ndim else 0 for value in given.values()}
        fits = {name: value.shape[1:] for name, value in given.items()} == shapes
        if not fits or len(counts) != 1 or not 0 < max(counts) <= _MOST_POINTS:
            raise ValueError(
                f"points must give every latent the same number of points (at most 2^20): arrays "
                f"with a leading axis of points before the unconstrained shapes {shapes}"
            )
        stored = tuple((n, given[n].shape, given[n].tobytes()) for n in sorted(given))
        return GridDraw(target, stored)


@dataclass(frozen=True)
class GridDraw(BoundedDraw):
    """A grid with its points fixed; ``stored`` holds (site, shape, bytes of float64)."""

    stored: tuple[tuple[str, tuple[int, ...], bytes], ...]

    def __post_init__(self) -> None:
        if not np.all(np.isfinite(self._log_prior())):
            raise ValueError("every point of the grid must have a finite prior density")

    @property
    def points(self) -> dict[str, np.ndarray]:
        return {n: np.frombuffer(data).reshape(shape) for n, shape, data in self.stored}

    @property
    def size(self) -> int:
        return self.stored[0][1][0]

    def _log_prior(self) -> np.ndarray:
        with jax.ensure_compile_time_eval():
            points = {n: jnp.asarray(v) for n, v in self.points.items()}
            return np.asarray(jax.vmap(self.target.private_model.log_prior)(points), float)

    @property
    def tv(self) -> float:
        # Whole weights, thresholds of the uniform number, and exp at exponents down to -745.
        exponents = float(np.ptp(self._log_prior())) + 800
        weights = 2 * self.size / 2.0**self._shift
        return (
            weights
            + self.size * (4 * ROUNDOFF + 2.0**-UNIFORM_BITS)
            + 32 * ROUNDOFF * (exponents + 8)
        )

    @property
    def _shift(self) -> int:
        return 60 - math.ceil(math.log2(self.size + 1))

    @property
    def mechanism(self) -> str:
        return f"exact draw from the posterior on {self.size} public points"

    @property
    def notes(self) -> tuple[str, ...]:
        return (f"The posterior was restricted to a public grid of {self.size} points.",)

    def draw(self, key: Any, z: dict, records: list) -> dict:
        points = {n: jnp.asarray(v, z[n].dtype) for n, v in self.points.items()}
        totals = lax.map(lambda point: self.target.total(point, records), points)
        with jax.enable_x64(True):
            index = self._chosen(key, totals)
        return {name: value[index] for name, value in points.items()}

    def _chosen(self, key: Any, totals: Int[Array, " points"]) -> Int[Array, ""]:
        log_prior = jnp.asarray(self._log_prior(), jnp.float64)
        exponents = log_prior + self.target.step * (totals - jnp.max(totals)).astype(jnp.float64)
        weights = jnp.exp(exponents - jnp.max(exponents))
        whole = jnp.floor(weights * 2.0**self._shift).astype(jnp.int64)
        running = jnp.cumsum(whole).astype(jnp.float64)
        limits = (running / running[-1] * 2.0**UNIFORM_BITS).astype(jnp.int64)
        # Every point is looked at, whatever was drawn.
        index = jnp.sum((uniform_below(key) >= limits).astype(jnp.int32), dtype=jnp.int32)
        return jnp.minimum(index, self.size - 1)
