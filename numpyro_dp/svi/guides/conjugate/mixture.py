"""Mixtures of normals with diagonal scales: responsibilities of single records, and their sums."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.special import digamma
from jaxtyping import Array, ArrayLike
from numpyro.distributions import constraints

from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.families.sites import FITS
from numpyro_dp.model.names import quoted
from numpyro_dp.svi.guides.conjugate.family import (
    Family,
    draw,
    draw_variance,
    flat,
    gathered,
    needed,
    param,
    positive_params,
)
from numpyro_dp.svi.guides.conjugate.recognise import Reading

State = Mapping[str, Array]


class NormalMixture(Family):
    """Mean-field variational Bayes: Dirichlet weights, normal locations, inverse-gamma variances.

    The state is the law of the latents and the sums it was made from; sums of the second half of
    the rounds are averaged.
    """

    rounds = 10

    def __init__(
        self,
        reading: Reading,
        row_norm: float | None,
        init_loc: ArrayLike | Mapping[str, ArrayLike] | None,
        private: bool,
    ) -> None:
        self.weights_site, order = reading.selection("weights", "Dirichlet")
        self.loc_site, self._at = reading.selection("loc", "Normal")
        self.noise_site, entry = reading.variance()
        reading.require_latents(
            [self.weights_site, self.loc_site, *([self.noise_site] if self.noise_site else [])]
        )
        self._priors, self._outcome = reading.priors, reading.outcome()
        self.count, self.size = self._at.shape
        if not np.array_equal(order, np.arange(self.count)):
            raise UnsupportedModelError(
                f"the weights of site `{reading.site}` are not `{self.weights_site}` in its own "
                f"order: {FITS}"
            )
        self._of = entry if self.noise_site else np.zeros(self._at.shape, int)
        self._known = None if self.noise_site else entry
        self._prior_of_locations(reading)
        norm = needed(row_norm, "row_norm", "a record's L2 norm; longer ones shrink", private)
        self._norm, self._init_loc = norm, init_loc
        powers = 3 if self.noise_site else 2
        width = self.count * self.size
        repeats = [self.count, width, width][:powers]
        self.weights = np.concatenate([np.full(n, norm**-p) for p, n in enumerate(repeats)])
        self.dim, self.bound = self.weights.size, math.sqrt(powers)
        self.statistics = "responsibilities and their " + " and ".join(["x", "x²"][: powers - 1])

    def _prior_of_locations(self, reading: Reading) -> None:
        prior = reading.priors[self.loc_site]
        self._places = math.prod(prior.shape)
        self.coupled = prior.scales_with is not None
        self._prior_loc = flat(prior, "loc")
        self._prior_precision = 1 / (
            flat(prior, "ratio") if self.coupled else flat(prior, "scale") ** 2
        )
        if self.coupled and prior.scales_with != self.noise_site:
            raise UnsupportedModelError(
                f"the prior of `{self.loc_site}` scales with `{prior.scales_with}`, which is not "
                f"the variance of the components: {FITS}"
            )
        self._variance_of = np.zeros(self._places, int)
        self._variance_of[self._at.reshape(-1)] = self._of.reshape(-1)
        if prior.entry is not None and (
            not np.array_equal(self._variance_of[self._at], self._of)
            or not np.array_equal(prior.entry, self._variance_of)
        ):
            raise UnsupportedModelError(
                f"each entry of `{self.loc_site}` must share one variance with its prior: {FITS}"
            )

    def start(self, key: Array, steps: int) -> dict[str, Array]:
        """Locations drawn from the prior, within the records' bound; the rest as a priori."""
        if self._init_loc is not None:
            loc = self._given_start(self._init_loc)
        else:
            sd = jnp.minimum(self._prior_precision**-0.5, self._norm / (2 * math.sqrt(self.size)))
            loc = self._prior_loc + sd * jax.random.normal(key, (self._places,))
        a, b = self._prior_variance()
        law = {
            "alpha": flat(self._priors[self.weights_site], "concentration"),
            "loc": loc,
            "precision": self._prior_precision,
            "concentration": a,
            "rate": b,
        }
        law = {name: jnp.asarray(value, float) for name, value in law.items()}
        zero = jnp.zeros(self.dim)
        half = jnp.asarray(steps // 2, jnp.int32)
        return {**law, "sums": zero, "noise_sd": zero, "averaged_from": half}

    def _given_start(self, init_loc: ArrayLike | Mapping[str, ArrayLike]) -> Array:
        """Locations as the caller gave them: by component, or by the name of the latent site."""
        if not isinstance(init_loc, Mapping):
            column = np.ndim(init_loc) == 1 and self.size == 1
            given = np.reshape(init_loc, (-1, 1)) if column else init_loc
            start = _broadcast(given, self._at.shape, "(components, dimensions)")
            return jnp.zeros(self._places).at[self._at].set(start)
        if set(init_loc) != {self.loc_site}:
            raise ValueError(
                f"init_loc names {quoted(sorted(init_loc)) or 'no site'}, but the components' "
                f"locations are `{self.loc_site}`: give init_loc={{'{self.loc_site}': array}}"
            )
        shape = self._priors[self.loc_site].shape
        return _broadcast(init_loc[self.loc_site], shape, f"of `{self.loc_site}`").reshape(-1)

    def _prior_variance(self) -> tuple[Array, Array]:
        if self.noise_site is None:
            return jnp.ones(1), jnp.ones(1)
        prior = self._priors[self.noise_site]
        return flat(prior, "concentration"), flat(prior, "rate")

    def _mean_precision(self, state: State) -> Array:
        """Expected 1/variance, component by dimension."""
        if self._known is not None:
            return 1 / jnp.asarray(self._known, float)
        return (state["concentration"] / state["rate"])[self._of]

    def _responsibilities(self, state: State, x: Array) -> Array:
        loc, precision = state["loc"][self._at], self._mean_precision(state)
        own = 1 / state["precision"][self._at]
        square = ((x - loc) ** 2 + (0.0 if self.coupled else own)) * precision
        if self.coupled:
            square = square + own
        if self._known is None:
            log_precision = (digamma(state["concentration"]) - jnp.log(state["rate"]))[self._of]
        else:
            log_precision = jnp.log(precision)
        return jax.nn.softmax(digamma(state["alpha"]) + (log_precision - square).sum(axis=1) / 2)

    def statistic(self, state: State, record: Sequence[Array]) -> Array:
        """One record's responsibilities r, then r x, then r x²."""
        x = self._outcome(record).astype(float)
        if self._norm < math.inf:
            x = x * (self._norm / jnp.maximum(jnp.sqrt(jnp.sum(x**2)), self._norm))
        r = self._responsibilities(state, x)
        parts = [r, jnp.outer(r, x).reshape(-1)]
        if self.noise_site is not None:
            parts.append(jnp.outer(r, x**2).reshape(-1))
        return jnp.concatenate(parts)

    def advance(
        self, state: State, released: Array, noise_sd: Array, step: Array
    ) -> dict[str, Array]:
        """Average the sums of late rounds, then update the law of every latent."""
        rate = 1 / jnp.maximum(step - state["averaged_from"] + 1, 1)
        rate = rate.astype(state["sums"].dtype)
        sums = state["sums"] + rate * (released.astype(rate.dtype) - state["sums"])
        noise = jnp.hypot((1 - rate) * state["noise_sd"], rate * noise_sd)
        law = self._updated(state, sums, noise)
        return {
            **law,
            "sums": sums,
            "noise_sd": noise.astype(rate.dtype),
            "averaged_from": state["averaged_from"],
        }

    def _updated(self, state: State, sums: Array, noise_sd: Array) -> dict[str, Array]:
        """Coordinate ascent given sums: weights, then locations, then variances."""
        n, first, within = self._projected(sums, noise_sd)
        each = jnp.broadcast_to(n[:, None], self._at.shape)
        weight = jnp.ones_like(each) if self.coupled else self._mean_precision(state)
        at, places = self._at, self._places
        precision = self._prior_precision + gathered(weight * each, at, places)
        pull = self._prior_precision * self._prior_loc + gathered(weight * first, at, places)
        loc = pull / precision
        alpha = flat(self._priors[self.weights_site], "concentration") + n
        law = {"alpha": alpha, "loc": loc, "precision": precision}
        a, b = self._prior_variance()
        if self.noise_site is None:
            return {**law, "concentration": state["concentration"], "rate": state["rate"]}
        mean = first / jnp.maximum(each, 1e-12)
        square = within + each * (mean - loc[at]) ** 2
        if not self.coupled:
            square = square + each / precision[at]
        rate = b + gathered(square, self._of, b.size) / 2
        if self.coupled:
            pull = self._prior_precision * (loc - self._prior_loc) ** 2
            rate = rate + gathered(pull, self._variance_of, b.size) / 2
        return {**law, "concentration": a + gathered(each, self._of, a.size) / 2, "rate": rate}

    def _projected(self, sums: Array, noise_sd: Array) -> tuple[Array, Array, Array]:
        """Counts, sums and scatter within components that records could have made."""
        width = self.count * self.size
        n = jnp.maximum(sums[: self.count], 0)
        first = sums[self.count : self.count + width].reshape(self._at.shape)
        if self._norm < math.inf:
            length = jnp.sqrt(jnp.sum(first**2, axis=1))
            first = first * jnp.minimum(1, self._norm * n / jnp.maximum(length, 1e-12))[:, None]
        if self.noise_site is None:
            return n, first, jnp.zeros_like(first)
        square = sums[self.count + width :].reshape(self._at.shape)
        within = square - first**2 / jnp.maximum(n[:, None], 1e-12)
        return n, first, jnp.maximum(within, noise_sd[-1])

    def params(self, state: State) -> dict[str, Array]:
        """Dirichlet, normal and inverse-gamma parameters of the latents."""
        shape = self._priors[self.loc_site].shape
        found = {
            f"{self.weights_site}_concentration": state["alpha"],
            f"{self.loc_site}_loc": state["loc"].reshape(shape),
            f"{self.loc_site}_scale": state["precision"].reshape(shape) ** -0.5,
        }
        if self.noise_site is not None:
            of_noise = self._priors[self.noise_site].shape
            for name in ("concentration", "rate"):
                found[f"{self.noise_site}_{name}"] = state[name].reshape(of_noise)
        return found

    def sample(self) -> dict[str, Array]:
        """Weights, variances if unknown, locations."""
        drawn: dict[str, Array] = {}
        site, prior = self.weights_site, self._priors[self.weights_site]
        (alpha,) = positive_params(site, prior, "concentration")
        drawn[site] = draw(site, dist.Dirichlet(alpha), prior.event_dim)
        site, prior = self.loc_site, self._priors[self.loc_site]
        spread = jnp.ones(prior.shape)
        if self.noise_site is not None:
            value, variance = draw_variance(self.noise_site, self._priors[self.noise_site])
            drawn[self.noise_site] = value
            if self.coupled:
                spread = jnp.sqrt(variance.reshape(-1)[self._variance_of]).reshape(prior.shape)
        loc = param(f"{site}_loc", prior.params["loc"])
        first = self._prior_precision.reshape(prior.shape) ** -0.5
        scale = param(f"{site}_scale", first, constraints.positive)
        drawn[site] = draw(site, dist.Normal(loc, scale * spread), prior.event_dim)
        return drawn


def _broadcast(start: ArrayLike, shape: tuple[int, ...], what: str) -> Array:
    given = jnp.asarray(start, float)
    try:
        return jnp.broadcast_to(given, shape)
    except ValueError as error:
        raise ValueError(
            f"init_loc has shape {given.shape}, but the components' locations have the shape "
            f"{shape} {what}"
        ) from error
