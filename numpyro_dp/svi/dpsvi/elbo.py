"""A private trace of the evidence lower bound: noisy sums of the records' clipped terms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from numpyro_dp import _validate
from numpyro_dp.accounting.events import DpEvent
from numpyro_dp.mechanisms import PrivateSum


@dataclass(frozen=True, kw_only=True)
class ElboTrace:
    """Asks :class:`~numpyro_dp.DPSVI` for losses, which are then paid for.

    After every so many steps the run releases the sum of the records' own terms of the bound, each
    clipped to a public interval; the data-free part is added exactly. The wider the interval, the
    noisier the losses: a Bernoulli outcome is rarely worse than −5.

    :param every: steps from one released loss to the next.
    :param lower: least value of one record's term that counts as it is, in nats.
    :param upper: largest value of one record's term; 0 for outcomes that can be listed.
    :param share: share of the run's squared privacy loss that the losses take, in (0, 1).
    :raises ValueError: for an argument out of range.

    **Privacy.** One Gaussian release each time, of the sum of clip(term, lower, upper) less the
    interval's middle: sensitivity half its length under zero-out and the whole of it under
    replace-one. Under add/remove, where the middle cannot be added back for an unknown number of
    records, nothing is subtracted, and the sensitivity is the larger of ``|lower|`` and
    ``|upper|``. A term that is not a number counts as the middle. The releases are part of the
    run's event, charged before the records are touched.

    **References.** *How a step is released* (docs/explanation/how-a-step-is-released.md), scores,
    applied to the training records.

    **Example**::

        >>> import numpyro_dp as ndp
        >>> ndp.ElboTrace(every=10, lower=-5.0, upper=0.0)
        ElboTrace(every=10, lower=-5.0, upper=0.0, share=0.05)
    """

    every: int
    lower: float
    upper: float
    share: float = 0.05

    def __post_init__(self) -> None:
        _validate.own_numbers(self)
        _validate.positive_int("every", self.every)
        bounds = [_validate.finite_float(name, getattr(self, name)) for name in ("lower", "upper")]
        if not bounds[0] < bounds[1]:
            raise ValueError(f"lower must be below upper, got {self.lower} and {self.upper}")
        if not 0 < _validate.finite_float("share", self.share) < 1:
            raise ValueError(f"share must lie in (0, 1), got {self.share!r}")

    def middle(self, private_size: bool) -> float:
        """What is subtracted from each clipped term."""
        return 0.0 if private_size else (self.lower + self.upper) / 2

    def sensitivity(self, private_size: bool) -> float:
        """Bound on what a clipped term less :meth:`middle` can be."""
        middle = self.middle(private_size)
        return max(self.upper - middle, middle - self.lower)


@dataclass(frozen=True)
class ElboRelease:
    """How losses leave the records.

    :param trace: when, and between which bounds.
    :param private_sum: one release, of a single number.
    :param middle: what is subtracted from each record's clipped term.
    """

    trace: ElboTrace
    private_sum: PrivateSum
    middle: float

    def count(self, num_steps: int) -> int:
        """Losses released in the first ``num_steps`` steps of a run."""
        return num_steps // self.trace.every

    def due(self, step: Any) -> Any:
        """Whether a loss belongs to a step, counted from 0."""
        return (step + 1) % self.trace.every == 0

    def spread(self, losses: Float[Array, " steps"]) -> Float[Array, " steps"]:
        """Losses with NaN at the steps that have none."""
        # These are no mistake: where JAX was asked to stop at NaN, a paid result would be lost.
        with jax.debug_nans(False):
            return jnp.where(self.due(jnp.arange(len(losses))), losses, jnp.nan)

    def cost(self, num_steps: int) -> list[DpEvent]:
        """Events of the first ``num_steps`` steps."""
        count = self.count(num_steps)
        return [self.private_sum.event(count)] if count else []

    def estimate(
        self, key: Any, term: Callable[[list[Array]], Float[Array, ""]], records: list[Array]
    ) -> Float[Array, ""]:
        """Noisy sum of all records' clipped terms."""

        def clipped(record: list[Array]) -> Float[Array, " 1"]:
            value = jnp.clip(term(record), self.trace.lower, self.trace.upper)
            return value[None] - self.middle

        total = self.private_sum.release(key, clipped, records)[0]
        return total + self.middle * self.private_sum.num_records
