"""A variational fit rehearsed on the model's own gradients of made-up records.

A quadratic knows nothing of gradients that grow faster than the way, such as those of a Poisson
rate, through which an optimiser that is safe on quadratics can run away.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jaxtyping import Array, Float

from numpyro_dp.diagnostics.plan.rehearsal import GuideGradient, Rehearsal
from numpyro_dp.families.synthetic_records import SyntheticRecords
from numpyro_dp.svi.dpsvi.fit import Fit


@dataclass(frozen=True, eq=False)
class _OwnGradients(Fit):
    """The fit, on made-up records that stand for all, with ordinary noise in place of a release.

    Records come after a factor of the noise, 0 or 1.
    """

    def released(
        self, key: Any, flat: Float[Array, " dim"], vector: Callable, records: list[Array], i: Any
    ) -> Float[Array, " dim"]:
        """The weighted sum of the records' clipped vectors, and noise of batches and privacy."""
        loud, *rows = records
        each = jax.vmap(vector)([leaf[:, None] for leaf in self.numbered(rows)])
        norms = jnp.linalg.norm(each, axis=1, keepdims=True)
        private = self.private_sum
        shrunk = each * jnp.minimum(1, private.clip_norm / jnp.maximum(norms, 1e-30))
        # As in the run, a vector that is not finite adds nothing.
        clipped = jnp.where(jnp.isfinite(norms), shrunk, 0)
        stands_for = (private.max_records or private.num_records) / len(each)
        rate = private.sampling_rate
        batch_key, privacy_key = random.split(key)
        # Of the records that one stands for, a binomial number is in the batch.
        chance = (stands_for * (1 - rate) / rate) ** 0.5
        weights = stands_for + loud * chance * random.normal(batch_key, norms.shape[:1])
        privacy = private.noise_sd(i) / rate * random.normal(privacy_key, flat.shape, flat.dtype)
        return weights @ clipped + loud * privacy


@dataclass(frozen=True, eq=False)
class SimulatedFit:
    """What a private variational run would learn from made-up records.

    :param rehearsal: the run.
    :param gradient: what a record adds to a step of it.
    :param synthetic: the records.
    """

    rehearsal: Rehearsal
    gradient: GuideGradient
    synthetic: SyntheticRecords

    def reached(self) -> float:
        """Of the mean log likelihood from start to truth, what the run gains, over all draws.

        Few made-up records are fitted better than by their truth: where the run without noise ends
        higher, its end is the goal. A fit that runs away has minus infinity.
        """
        each = [self._scores(draw) for draw in range(len(self.synthetic.spread))]
        start, truth, quiet, loud = np.nan_to_num(
            np.stack(each, 1), nan=-np.inf, posinf=-np.inf, neginf=-np.inf
        )
        # A truth so extreme that its records have no finite likelihood says nothing of a run.
        known = np.isfinite(start) & np.isfinite(truth)
        possible = float((np.maximum(truth, quiet) - start)[known].sum())
        if possible <= 0:
            return -np.inf
        return float((loud - start)[known].sum()) / possible

    def _scores(self, draw: int) -> Float[np.ndarray, "4"]:
        """Mean log likelihood at the start, the truth, and the ends in quiet and through noise."""
        rows = [leaf[draw] for leaf in self.synthetic.records]
        start = self.rehearsal.start
        ends = (
            self.rehearsal.end(_OwnGradients, np.float32(loud), *rows, draw=draw) for loud in (0, 1)
        )
        places = np.stack([start, start + self.synthetic.spread[draw], *ends])
        return np.asarray(_mean_log_likelihood(self.gradient, places, rows), float)


@partial(jax.jit, static_argnums=0)
def _mean_log_likelihood(
    gradient: GuideGradient, places: Float[Array, "places dim"], rows: list[Array]
) -> Float[Array, " places"]:
    records = [leaf[:, None] for leaf in rows]

    def mean(flat: Float[Array, " dim"]) -> Float[Array, ""]:
        score = partial(gradient.private_model.record_log_likelihood, gradient.place(flat))
        return jax.vmap(score)(records).mean()

    return jax.lax.map(mean, places)
