"""What every conjugate family has, and the schedule that releases its statistics."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float
from numpyro.distributions import constraints

from numpyro_dp.execution.releases import Phase
from numpyro_dp.families.sites import Prior
from numpyro_dp.model.guided.model import Outline
from numpyro_dp.svi.vips.statistics import Schedule


class Family(ABC):
    """A conjugate model: its statistic, its bound, its posterior. Holds public numbers only.

    - **statistics**: what is released, in a few words.
    - **bound**: L2 norm that no record's scaled statistic exceeds.
    - **weights**: public weights of the statistic's numbers before clipping; ``None`` for ones.
    - **rounds**: releases that suit it.
    """

    statistics: str
    dim: int
    bound: float
    weights: np.ndarray | None = None
    rounds: int = 1

    def __getstate__(self) -> dict[str, Any]:
        # Traced programs do not pickle; drawing from the posterior needs none of them.
        return {name: value for name, value in vars(self).items() if not callable(value)}

    @abstractmethod
    def start(self, key: Array, steps: int) -> dict[str, Array]:
        """What is known before any release."""

    @abstractmethod
    def statistic(self, state: Mapping[str, Array], record: Sequence[Array]) -> Array:
        """One record's statistic, unweighted."""

    @abstractmethod
    def advance(
        self, state: Mapping[str, Array], released: Array, noise_sd: Array, step: Array
    ) -> dict[str, Array]:
        """What is known after a release."""

    @abstractmethod
    def params(self, state: Mapping[str, Array]) -> dict[str, Array]:
        """The posterior's parameters, by the names of the guide's ``numpyro.param`` sites."""

    @abstractmethod
    def sample(self) -> dict[str, Array]:
        """Draw the model's latents: statements of a NumPyro guide."""


class Averaged(Family):
    """A family whose statistic depends on the record alone: releases are repeats, and averaged."""

    def start(self, key: Array, steps: int) -> dict[str, Array]:
        """No statistic yet."""
        return {"total": jnp.zeros(self.dim), "noise_sd": jnp.zeros(self.dim)}

    def advance(
        self, state: Mapping[str, Array], released: Array, noise_sd: Array, step: Array
    ) -> dict[str, Array]:
        """Average the releases so far, of equal weight."""
        total, sd = state["total"], state["noise_sd"]
        mean = total + (released.astype(total.dtype) - total) / (step + 1)
        return {"total": mean, "noise_sd": jnp.hypot(sd * step, noise_sd) / (step + 1)}


class ConjugateSchedule(Schedule):
    """A family bound to a run: one phase, of one joint release a round."""

    def __init__(
        self,
        guide: Any,
        found: Outline,
        family: Family,
        num_steps: int | None,
        clip_norm: float | None,
        notes: tuple[str, ...],
    ) -> None:
        self._guide, self._found, self._family = guide, found, family
        self._steps = family.rounds if num_steps is None else num_steps
        scale = None if family.weights is None else tuple(map(float, family.weights))
        bound = family.bound if clip_norm is None else clip_norm
        self.phases = (
            Phase(
                family.statistics,
                family.dim,
                bound,
                (1.0,) * self._steps,
                None if bound == math.inf else scale,
            ),
        )
        self.notes = notes

    def start(self, key: Array) -> dict[str, Array]:
        """The family's start."""
        return self._family.start(key, self._steps)

    def statistic(self, phase: int, state: Any, record: Sequence[Array]) -> Float[Array, " dim"]:
        """The family's statistic."""
        return self._family.statistic(state, record)

    def advance(
        self, phase: int, state: Any, released: Array, noise_sd: Array, step: Array
    ) -> dict[str, Array]:
        """The family's update."""
        return self._family.advance(state, released, noise_sd, step)

    def params(self, state: Any) -> dict[str, Array]:
        """The family's posterior."""
        # One program instead of dozens of small ones, each compiled by itself.
        return jax.jit(self._family.params)(state)

    def target(self) -> None:
        """The engine traces model and guide, which draws from this family from now on."""
        self._guide.draw_from(self._family)

    def records(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Array]:
        """Record arrays in the order they were traced."""
        return self._found.records(self._guide.model, args, kwargs)


def param(name: str, value: Any, constraint: Any = constraints.real) -> Array:
    """A parameter of the guide, an array whatever NumPyro says of its type."""
    return jnp.asarray(numpyro.param(name, jnp.asarray(value, float), constraint=constraint))


def positive_params(site: str, prior: Prior, *names: str) -> list[Array]:
    """Parameters of the posterior of a latent site, starting where its prior is."""
    return [param(f"{site}_{n}", prior.params[n], constraints.positive) for n in names]


def draw(site: str, law: dist.Distribution, event_dim: int) -> Array:
    """Sample a site with as many event dimensions as the model's: the rest are its plates."""
    return jnp.asarray(numpyro.sample(site, law.to_event(event_dim - law.event_dim)))


def draw_variance(site: str, prior: Prior) -> tuple[Array, Array]:
    """Sample a variance or precision; returns it, and the variance."""
    a, b = positive_params(site, prior, "concentration", "rate")
    if prior.kind == "InverseGamma":
        value = draw(site, dist.InverseGamma(a, b), prior.event_dim)
        return value, value
    value = draw(site, dist.Gamma(a, b), prior.event_dim)
    return value, 1 / value


def needed(value: float | None, name: str, what: str, private: bool) -> float:
    """A bound that the user must give, unless privacy is off."""
    if value is None and private:
        raise ValueError(f"{name} is needed: a public bound on {what}")
    return math.inf if value is None else value


def flat(prior: Prior, name: str) -> Array:
    """One constant of a prior, flattened."""
    return jnp.asarray(prior.params[name].reshape(-1), float)


def gathered(values: Array, index: np.ndarray, size: int) -> Array:
    """Sum the values whose index is the same."""
    return jnp.zeros(size, values.dtype).at[index.reshape(-1)].add(values.reshape(-1))
