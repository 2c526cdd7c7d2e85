"""What a check asks of each record, and when its noise would drown the answer."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Array, Float, Key

from numpyro_dp.accounting import Relation, privacy_curve, rounded_up
from numpyro_dp.mechanisms import PrivateSum
from numpyro_dp.model.private_model import PrivateModel

Draws = dict[str, Array]

# Of the range of an answer: past this, the 95 % interval that noise alone makes spans half of it.
_MOST_NOISE = 0.125


@dataclass(frozen=True)
class Question(ABC):
    """One bounded vector of each record, summed over all of them; hashable.

    :param model: the model, split.
    """

    model: PrivateModel

    remedy: ClassVar[str] = ""
    """What else would lower the noise."""
    summands: ClassVar[str]
    """What is summed, in words."""
    released: ClassVar[tuple[str, ...]]
    """What leaves, in words."""

    @property
    @abstractmethod
    def dim(self) -> int:
        """Numbers in a vector."""

    @property
    @abstractmethod
    def bound(self) -> float:
        """Largest L2 norm of a vector."""

    @property
    @abstractmethod
    def coarseness(self) -> float:
        """Noise of the answer over its range, where the means of all vectors have noise 1."""

    @abstractmethod
    def vector(
        self, draws: Draws, record: list[Array], key: Key[Array, ""]
    ) -> Float[Array, " dim"]:
        """What a record adds: a function of this record, its key and public numbers.

        :param draws: constrained latents, draws first.
        :param record: its arrays, each with a leading axis of 1.
        :param key: of its own, from a public one and its row number.
        """


def require_resolved(
    question: Question,
    planned: Callable[[float], PrivateSum],
    mechanism: PrivateSum,
    relation: Relation,
    delta: float,
) -> None:
    """Refuse noise that would drown the answer, whatever the records are.

    :param planned: from a noise multiplier to the mechanism that would have it.
    :param mechanism: the one that is about to be charged.
    :raises ValueError: with the ε and the number of records that would do.
    """
    records = mechanism.num_records
    noise = mechanism.noise_multiplier * question.bound / records
    excess = question.coarseness * noise / _MOST_NOISE
    if excess <= 1:
        return
    try:
        cost = planned(mechanism.noise_multiplier / excess).event(1)
        epsilon = rounded_up(privacy_curve(cost, relation).epsilon(delta), 2)
        enough = f", or ε = {epsilon} at δ = {delta:.3g}"
    except ValueError:  # So little noise is on no lattice.
        enough = ""
    raise ValueError(
        f"this would tell next to nothing: noise alone, one standard deviation of it, is "
        f"{excess * _MOST_NOISE:.2g} of the whole range of the answer. "
        f"{math.ceil(1.01 * excess * records):,} records{enough}{question.remedy} would do. "
        "allow_unresolved=True releases anyway. Nothing was charged"
    )
