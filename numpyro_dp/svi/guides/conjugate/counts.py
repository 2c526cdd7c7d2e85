"""Counts with conjugate priors: Beta and Bernoulli, Dirichlet and categorical, Gamma and Poisson.

The number of records is public, so statistics are centred at the middle of their range: half the
sensitivity, hence half the noise, for the same sums.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array

from numpyro_dp.svi.guides.conjugate.family import (
    Averaged,
    draw,
    flat,
    gathered,
    needed,
    positive_params,
)
from numpyro_dp.svi.guides.conjugate.recognise import Reading


class _CountFamily(Averaged):
    """A family whose one latent site is a parameter of the outcome, entry by entry.

    - **parameter**: which one.
    - **law**: of prior and posterior; **names**: its own parameters, in order.
    """

    parameter: str
    law: type
    names: tuple[str, ...]

    def __init__(self, reading: Reading, noise_aware: bool) -> None:
        self.site, self._index = reading.selection(self.parameter, self.law.__name__)
        reading.require_latents([self.site])
        self.prior, self.aware = reading.priors[self.site], noise_aware
        self._outcome = reading.outcome()
        self.dim = int(np.prod(self.prior.shape))

    def _worth(self, variance: Array, noise_sd: Array) -> Array:
        """How much a noisy sum of this variance is worth of the exact one: the same error."""
        return variance / (variance + noise_sd**2) if self.aware else jnp.ones(())

    def _named(self, *values: Array) -> dict[str, Array]:
        found = zip(self.names, values, strict=True)
        return {f"{self.site}_{name}": value.reshape(self.prior.shape) for name, value in found}

    def sample(self) -> dict[str, Array]:
        """The one latent site."""
        law = self.law(*positive_params(self.site, self.prior, *self.names))
        return {self.site: draw(self.site, law, self.prior.event_dim)}


class BetaBinomial(_CountFamily):
    """Successes in trials whose number is public; Bernoulli outcomes are single trials."""

    statistics, parameter = "counts of successes", "probs"
    law, names = dist.Beta, ("concentration1", "concentration0")

    def __init__(self, reading: Reading, noise_aware: bool) -> None:
        super().__init__(reading, noise_aware)
        self._most = (
            reading.told.constant(reading.site, "total_count")
            if reading.kind == "binomial"
            else np.ones(self._index.shape)
        )
        a_record = np.bincount(self._index, self._most, self.dim)
        self.bound = float(np.linalg.norm(a_record)) / 2
        self._trials = reading.num_records * a_record

    def statistic(self, state: Mapping[str, Array], record: Sequence[Array]) -> Array:
        """Successes less half the trials."""
        outcome = self._outcome(record).astype(float)
        return gathered(_within(outcome, self._most) - self._most / 2, self._index, self.dim)

    def params(self, state: Mapping[str, Array]) -> dict[str, Array]:
        """The Beta posterior."""
        a, b = flat(self.prior, "concentration1"), flat(self.prior, "concentration0")
        ones = jnp.clip(self._trials / 2 + state["total"], 0, self._trials)
        mean = (a + ones) / (a + b + self._trials)
        weight = self._worth(mean * (1 - mean) * self._trials, state["noise_sd"])
        return self._named(a + weight * ones, b + weight * (self._trials - ones))


class DirichletCategorical(_CountFamily):
    """Categories of one or several outcomes a record."""

    statistics, parameter = "counts of categories", "probs"
    law, names = dist.Dirichlet, ("concentration",)

    def __init__(self, reading: Reading, noise_aware: bool) -> None:
        super().__init__(reading, noise_aware)
        self._categories = self.prior.shape[-1]
        a_record = np.bincount(self._index[:, 0] // self._categories, minlength=self.dim)
        a_record = a_record[: self.dim // self._categories]
        self.bound = math.sqrt(float((a_record**2).sum()) * (1 - 1 / self._categories))
        self._trials = reading.num_records * a_record

    def statistic(self, state: Mapping[str, Array], record: Sequence[Array]) -> Array:
        """One for the category that was seen, less the mean over categories."""
        outcome = self._outcome(record)
        seen = (outcome[:, None] == jnp.arange(self._categories)).astype(float)
        known = seen.sum(axis=1, keepdims=True)
        return gathered(seen - known / self._categories, self._index, self.dim)

    def params(self, state: Mapping[str, Array]) -> dict[str, Array]:
        """The Dirichlet posterior."""
        shape = (-1, self._categories)
        alpha = flat(self.prior, "concentration").reshape(shape)
        trials = self._trials[:, None]
        counts = _on_simplex(trials / self._categories + state["total"].reshape(shape), trials)
        mean = (alpha + counts) / (alpha.sum(1, keepdims=True) + trials)
        spread = (trials * mean * (1 - mean)).sum(1, keepdims=True)
        noise = jnp.sqrt((state["noise_sd"].reshape(shape) ** 2).sum(1, keepdims=True))
        return self._named(alpha + self._worth(spread, noise) * counts)


class GammaPoisson(_CountFamily):
    """Counts up to a public bound."""

    statistics, parameter = "sums of counts", "rate"
    law, names = dist.Gamma, ("concentration", "rate")

    def __init__(
        self, reading: Reading, noise_aware: bool, max_count: float | None, private: bool
    ) -> None:
        super().__init__(reading, noise_aware)
        a_record = np.bincount(self._index, minlength=self.dim)
        most = needed(max_count, "max_count", "a count; larger ones are cut to it", private)
        self._most, self._middle = most, most / 2 if most < math.inf else 0.0
        self.bound = float(np.linalg.norm(a_record)) * self._middle
        self._trials = reading.num_records * a_record

    def statistic(self, state: Mapping[str, Array], record: Sequence[Array]) -> Array:
        """Counts less half the bound."""
        counts = _within(self._outcome(record).astype(float), self._most)
        return gathered(counts - self._middle, self._index, self.dim)

    def params(self, state: Mapping[str, Array]) -> dict[str, Array]:
        """The Gamma posterior."""
        a, b = flat(self.prior, "concentration"), flat(self.prior, "rate")
        trials = self._trials
        largest = trials * self._most if self._most < math.inf else None
        sums = jnp.clip(trials * self._middle + state["total"], 0, largest)
        weight = self._worth(trials * (a + sums) / (b + trials), state["noise_sd"])
        return self._named(a + weight * sums, b + weight * trials)


def _within(outcome: Array, most: float | np.ndarray) -> Array:
    return jnp.clip(outcome, 0, most)


def _on_simplex(counts: Array, total: np.ndarray) -> Array:
    """The non-negative counts of this total that are nearest to noisy ones."""
    ordered = -jnp.sort(-counts, axis=1)
    places = jnp.arange(1, counts.shape[1] + 1)
    excess = (jnp.cumsum(ordered, axis=1) - total) / places
    last = jnp.sum(ordered > excess, axis=1, keepdims=True) - 1
    return jnp.maximum(counts - jnp.take_along_axis(excess, last, axis=1), 0)
