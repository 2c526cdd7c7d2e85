"""Normal outcomes with an affine mean: the sums xx', xy and y² of rows and outcomes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import lax
from jaxtyping import Array
from numpyro.distributions import constraints

from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.families.sites import FITS
from numpyro_dp.model.names import quoted
from numpyro_dp.svi.guides.conjugate.family import (
    Averaged,
    draw,
    draw_variance,
    flat,
    needed,
    param,
)
from numpyro_dp.svi.guides.conjugate.recognise import Reading

# Coordinate ascent on released sums: post-processing, which ends long before this many rounds.
_ROUNDS = 200


class NormalRegression(Averaged):
    """Coefficients with normal priors; the noise's variance known, or of inverse-gamma prior.

    Where the coefficients' prior scales with the noise the posterior is normal-inverse-gamma;
    where it does not, it is the fixed point of mean-field coordinate ascent.
    """

    def __init__(
        self,
        reading: Reading,
        noise_aware: bool,
        row_norm: float | None,
        outcome_bound: float | None,
        private: bool,
    ) -> None:
        names, _ = reading.told.reads("loc")
        for name in names:
            if reading.priors[name].kind != "Normal":
                raise UnsupportedModelError(
                    f"latent site `{name}` in the mean of site `{reading.site}` has a "
                    f"{reading.priors[name].kind} prior: give it a Normal prior; {FITS}"
                )
        self.sites = tuple(names)
        self._priors = reading.priors
        self.noise_site, entry = reading.variance()
        reading.require_latents([*names, *([self.noise_site] if self.noise_site else [])])
        if np.unique(entry).size != 1:
            raise UnsupportedModelError(
                f"the outcomes of one record at site `{reading.site}` have different scales: give "
                f"them one; {FITS}"
            )
        self._variance = 1.0 if self.noise_site else float(entry.reshape(-1)[0])
        if self.noise_site and reading.priors[self.noise_site].shape != ():
            raise UnsupportedModelError(
                f"latent site `{self.noise_site}` holds several variances and site "
                f"`{reading.site}` uses one: make it a single number; {FITS}"
            )
        if noise_aware and self.noise_site:
            raise ValueError(
                "noise_aware=True is known for a public noise scale only: how the noise of three "
                "sums enters a variance has no closed form; fix the scale, or leave it off"
            )
        self.aware, self._trials = noise_aware, reading.num_records * reading.size
        self._loc, self._precision, self.coupled = self._prior(reading)
        self._row, self._outcome = _programs(reading, self.sites)
        self._bounds(row_norm, outcome_bound, private)

    def _prior(self, reading: Reading) -> tuple[Array, Array, bool]:
        """Means and precisions of the coefficients, and whether these scale with the noise."""
        priors = [reading.priors[name] for name in self.sites]
        kinds = {prior.scales_with for prior in priors}
        if kinds not in ({None}, {self.noise_site}):
            raise UnsupportedModelError(
                f"the prior scales of {quoted(self.sites)} do not all depend on the noise's "
                f"variance alike: let all of them, or none; {FITS}"
            )
        coupled = kinds != {None}
        variances = [flat(p, "ratio") if coupled else flat(p, "scale") ** 2 for p in priors]
        loc = jnp.concatenate([flat(prior, "loc") for prior in priors])
        return loc, 1 / jnp.concatenate(variances), coupled

    def _bounds(self, row_norm: float | None, outcome_bound: float | None, private: bool) -> None:
        rows = needed(row_norm, "row_norm", "a row's L2 norm, intercept included", private)
        most = needed(outcome_bound, "outcome_bound", "the L2 norm of a record's outcome", private)
        self._row_norm, self._most = rows, most
        self._upper = np.triu_indices(self._loc.size)
        off = np.where(self._upper[0] == self._upper[1], 1.0, math.sqrt(2.0))
        blocks = [off / rows**2, np.full(self._loc.size, 1 / (rows * most))]
        if self.noise_site:
            blocks.append(np.array([1 / most**2]))
        self.weights = np.concatenate(blocks)
        self.dim, self.bound = self.weights.size, math.sqrt(len(blocks))
        self.statistics = "sums of " + ("xx', xy and y²" if self.noise_site else "xx' and xy")

    def statistic(self, state: Mapping[str, Array], record: Sequence[Array]) -> Array:
        """Upper triangle of xx', then xy, then y²; long rows shrink with their outcome."""
        rows, outcome = self._row(record), self._outcome(record)
        shrink = _shrink(jnp.sum(rows**2), self._row_norm)
        rows, outcome = rows * shrink, outcome * shrink
        outcome = outcome * _shrink(jnp.sum(outcome**2), self._most)
        parts = [(rows.T @ rows)[self._upper], rows.T @ outcome]
        if self.noise_site:
            parts.append(jnp.sum(outcome**2)[None])
        return jnp.concatenate(parts)

    def params(self, state: Mapping[str, Array]) -> dict[str, Array]:
        """The posterior's location, Cholesky factor and, if unknown, variance."""
        gram, cross, square = self._sums(state)
        prior, loc = jnp.diag(self._precision), self._loc
        if self.noise_site is None:
            gram, cross = gram / self._variance, cross / self._variance
            precision = self._widened(gram, cross, state) if self.aware else gram + prior
            mean = jnp.linalg.solve(gram + prior, cross + prior @ loc)
            return self._named(mean, precision, None)
        noise = self._priors[self.noise_site].params
        shape = float(noise["concentration"]) + self._trials / 2
        rate = float(noise["rate"])
        floor = state["noise_sd"][-1]
        if self.coupled:
            precision = gram + prior
            mean = jnp.linalg.solve(precision, cross + prior @ loc)
            rest = square - 2 * mean @ cross + mean @ gram @ mean
            shift = mean - loc
            rest = jnp.maximum(rest, floor) + shift @ prior @ shift
            return self._named(mean, precision, (shape, rate + rest / 2))
        return self._named(*self._ascend(gram, cross, square, shape, rate, floor))

    def _ascend(
        self, gram: Array, cross: Array, square: Array, shape: float, rate: float, floor: Array
    ) -> tuple[Array, Array, tuple[float, Array]]:
        """Mean-field coordinate ascent between coefficients and variance, on the sums."""
        prior, loc = jnp.diag(self._precision), self._loc

        def coefficients(rate_now: Array) -> tuple[Array, Array]:
            precision = gram * (shape / rate_now) + prior
            target = cross * (shape / rate_now) + prior @ loc
            return jnp.linalg.solve(precision, target), precision

        def once(_: Array, rate_now: Array) -> Array:
            mean, precision = coefficients(rate_now)
            rest = square - 2 * mean @ cross + mean @ gram @ mean
            spread = jnp.trace(jnp.linalg.solve(precision, gram))
            return rate + (jnp.maximum(rest, floor) + spread) / 2

        start = rate + jnp.maximum(square, floor) / 2
        rate_now = lax.fori_loop(0, _ROUNDS, once, start)
        return *coefficients(rate_now), (shape, rate_now)

    def _sums(self, state: Mapping[str, Array]) -> tuple[Array, Array, Array]:
        """The noisy sums, xx' floored at the edge of its noise."""
        size, total = self._loc.size, state["total"]
        split = len(self._upper[0])
        upper = jnp.zeros((size, size), total.dtype).at[self._upper].set(total[:split])
        gram = upper + jnp.triu(upper, 1).T
        edge = state["noise_sd"][0] * math.sqrt(2 * size)
        values, vectors = jnp.linalg.eigh(gram)
        floored = (vectors * jnp.maximum(values, edge)) @ vectors.T
        # Without noise nothing is below zero but rounding, which the product would add to.
        gram = jnp.where(values.min() < edge, floored, gram)
        return gram, total[split : split + size], total[-1]

    def _widened(self, gram: Array, cross: Array, state: Mapping[str, Array]) -> Array:
        """Precision that counts the sums' own noise as a wider likelihood.

        The score xy - xx'm has variance xx' from the records and the released noise on top; along
        an eigenvector with information w a score of variance w + s² is worth w²/(w + s²).
        """
        prior = jnp.diag(self._precision)
        mean = jnp.linalg.solve(gram + prior, cross + prior @ self._loc)
        split = len(self._upper[0])
        of_gram, of_cross = state["noise_sd"][0], state["noise_sd"][split]
        noise = (of_cross**2 + of_gram**2 * jnp.sum(mean**2)) / self._variance**2
        values, vectors = jnp.linalg.eigh(gram)
        worth = jnp.where(noise > 0, values**2 / jnp.maximum(values + noise, 1e-30), values)
        return (vectors * worth) @ vectors.T + prior

    def _named(
        self, mean: Array, precision: Array, noise: tuple[float, Array] | None
    ) -> dict[str, Array]:
        tril = dist.MultivariateNormal(mean, precision_matrix=precision).scale_tril
        found = {"coefficients_loc": mean, "coefficients_scale_tril": tril}
        if noise is not None:
            found |= {
                f"{self.noise_site}_concentration": jnp.asarray(noise[0], mean.dtype),
                f"{self.noise_site}_rate": noise[1],
            }
        return found

    def sample(self) -> dict[str, Array]:
        """The variance if unknown, then all coefficients together."""
        drawn: dict[str, Array] = {}
        spread = jnp.ones(())
        if self.noise_site is not None:
            value, variance = draw_variance(self.noise_site, self._priors[self.noise_site])
            drawn[self.noise_site] = value
            spread = jnp.sqrt(variance) if self.coupled else spread
        loc = param("coefficients_loc", self._loc)
        start_at = jnp.diag(self._precision**-0.5)
        tril = param("coefficients_scale_tril", start_at, constraints.lower_cholesky)
        law = dist.MultivariateNormal(loc, scale_tril=tril * spread)
        joint = jnp.asarray(numpyro.sample("_coefficients", law, infer={"is_auxiliary": True}))
        start = 0
        for name in self.sites:
            shape = self._priors[name].shape
            size = math.prod(shape)
            value = joint[start : start + size].reshape(shape)
            drawn[name] = draw(name, dist.Delta(value), self._priors[name].event_dim)
            start += size
        return drawn


Program = Callable[[Sequence[Array]], Array]


def _programs(reading: Reading, sites: Sequence[str]) -> tuple[Program, Program]:
    """One record's rows (outcomes by coefficients), and its outcome less the mean's offset."""
    what = "mean (it must be linear in the coefficients)"
    parts = [
        reading.of_record(reading.slopes.pruned(lambda label, n=name: label == ("loc", n)), what)
        for name in sites
    ]
    outcome, offset = reading.outcome(), reading.at_zero("loc")

    def row(record: Sequence[Array]) -> Array:
        return jnp.concatenate([part(record).reshape(reading.size, -1) for part in parts], axis=1)

    return row, lambda record: outcome(record) - offset(record)


def _shrink(squared: Array, norm: float) -> Array:
    """Factor that brings a vector of this squared norm to at most ``norm``."""
    if norm == math.inf:
        return jnp.ones_like(squared)
    return norm / jnp.maximum(jnp.sqrt(squared), norm)
