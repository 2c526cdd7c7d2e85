"""A private sum that is overheard: what each release tells of one record, beside the release.

Who knows all records but one knows what that one would add, and weighs the noisy sum by it. The
log likelihood ratios of the sums of a run add up to that of everything it released.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from numpyro_dp.diagnostics.audit.likelihood_ratio import vector_in_sum
from numpyro_dp.diagnostics.audit.neighbours import NeighbourPair
from numpyro_dp.mechanisms import PrivateSum, Touched


class Canaries(NamedTuple):
    """Records of which each was in one run or not, by the toss of a coin.

    - **rows**: leaves of all of them, as if each had been in.
    """

    rows: list[Array]


class Told(NamedTuple):
    """What one release tells, or all of a run.

    - **ratio**: log likelihood ratio, ``pair.own`` over ``pair.other``; of canaries one for each,
      present over absent.
    - **null**: whether ``own`` added nothing, or what ``other`` added; and the same of ``other``.
    """

    ratio: Float[Array, "*canaries"]
    null: Bool[Array, " two"]

    def and_then(self, told: list[Told], heard: Any = True) -> Told:
        """Releases one after another; those of ``told`` only where they were ``heard``."""
        ratio = self.ratio + sum(jnp.where(heard, each.ratio, 0) for each in told)
        null = self.null
        for each in told:
            null = null & (each.null | ~jnp.asarray(heard))
        return Told(ratio.astype(self.ratio.dtype), null)

    @classmethod
    def nothing(cls, of: NeighbourPair | Canaries) -> Told:
        """Before the first release."""
        shape = of.rows[0].shape[:1] if isinstance(of, Canaries) else ()
        return cls(jnp.zeros(shape), jnp.ones(2, bool))


@dataclass(frozen=True, eq=False)
class Overheard:
    """A :class:`~numpyro_dp.mechanisms.PrivateSum` in all that is asked of it, and a listener.

    It lives within one trace of the program that releases, whose tracers it holds.

    :param private_sum: the mechanism.
    :param pair: the two data sets, in the arrays that the sum is given; or canaries.
    :param told: takes what every release tells.
    """

    private_sum: PrivateSum
    pair: NeighbourPair | Canaries
    told: list[Told]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.private_sum, name)

    def release(
        self,
        key: Any,
        record_vector: Callable[[list[Array]], Any],
        records: list[Array],
        step: Any = 0,
    ) -> Float[Array, " dim"]:
        """One noisy sum, as :meth:`~numpyro_dp.mechanisms.PrivateSum.release`."""
        released = self.private_sum.release(key, record_vector, records, step)
        self.told.append(self._told(released, record_vector, step))
        return released

    def _told(
        self, released: Float[Array, " dim"], record_vector: Callable[[list[Array]], Any], step: Any
    ) -> Told:
        """Exact where the shared records add nothing or are in every batch; else a weaker score."""
        each = self.private_sum
        rate, noise_sd = each.sampling_rate, each.noise_sd(step)
        scale = 1.0 if each.scale is None else jnp.asarray(each.scale, released.dtype)

        def vectors(leaves: list[Array]) -> Float[Array, "records dim"]:
            def one(record: list[Array]) -> Float[Array, " dim"]:
                vector = _dense(record_vector(record), each.dim) * scale
                return vector_in_sum(vector, each.clip_norm)

            return jax.vmap(one)([leaf[:, None] for leaf in leaves])

        def added(leaves: list[Array]) -> Float[Array, " dim"]:
            return vectors(leaves).sum(0)

        if isinstance(self.pair, Canaries):
            found = vectors(self.pair.rows)
            # Half of the canaries are expected, and which of them is noise to the others.
            left = (released * scale - found.sum(0) / 2) * rate
            noise = noise_sd**2 * jnp.eye(each.dim) + rate**2 * found.T @ found / 4
            return Told(found @ jnp.linalg.solve(noise, left), jnp.ones(2, bool))
        own, other = added(self.pair.own), added(self.pair.other)
        left = (released * scale - added(self.pair.shared)) * (rate / noise_sd)

        def log_mixture(vector: Float[Array, " dim"]) -> Float[Array, ""]:
            shift = vector / noise_sd
            present = jnp.sum(left * shift - shift**2 / 2)
            return jnp.logaddexp(jnp.log1p(-rate), jnp.log(rate) + present)

        alike = jnp.all(own == other)
        null = jnp.stack([jnp.all(own == 0) | alike, jnp.all(other == 0) | alike])
        return Told(log_mixture(own) - log_mixture(other), null)


def overheard(
    private_sum: PrivateSum, pair: NeighbourPair | Canaries, told: list[Told]
) -> PrivateSum:
    """An :class:`Overheard`, as the mechanism that it stands for."""
    return cast("PrivateSum", Overheard(private_sum, pair, told))


def _dense(vector: Any, dim: int) -> Float[Array, " dim"]:
    if not isinstance(vector, Touched):
        return vector
    width = vector.values.shape[-1]
    table = jnp.zeros((dim // width, width), vector.values.dtype)
    return table.at[vector.slots].add(vector.values, mode="drop").reshape(-1)
