"""What is proved about one mechanism under one relation, in every form that composes.

A bound may know a pure ε, the shift of a Gaussian that is no better, Rényi divergences, or a
profile of a block of steps. Whoever composes takes the least ε that any of them gives. Constants
here have the relation in them already: what is registered with ``proves`` makes bounds from events.
"""

import math
from dataclasses import dataclass

import numpy as np

from numpyro_dp.accounting.pld.profiles import FARTHEST, Profile
from numpyro_dp.accounting.pld.renyi import ORDERS, Array, renyi_delta

Pieces = tuple[tuple[Profile, int], ...]

# Closed forms are right to about twelve digits; rounding must not point downwards.
UP = 1 + 1e-12


class Bound:
    """Everything proved about one step of a mechanism; what is not proved is infinite."""

    # Whether ``pure`` is what the event says; else it was computed, with rounding.
    exact = False

    @property
    def pure(self) -> float:
        """ε at which δ is zero."""
        return math.inf

    @property
    def shift(self) -> float:
        """Shift μ of a Gaussian pair that dominates the mechanism."""
        return math.inf

    def renyi(self) -> Array:
        """Rényi divergences of both orders of neighbours, at ``ORDERS``."""
        return np.full_like(ORDERS, math.inf)

    def quick_renyi(self) -> Array:
        """Divergences as cheap as a closed form, for runs of many different bounds."""
        return self.renyi()

    @property
    def variance(self) -> float:
        """Roughly the variance of the loss of one step; only first guesses rest on it."""
        return 2 * float(self.quick_renyi()[0])

    def pieces(self, count: int) -> Pieces | None:
        """Profiles with counts that ``count`` steps come to; None when there is none."""
        return None

    def delta(self, epsilon: float) -> float:
        """δ of a single step at ``epsilon`` ≥ 0."""
        return 1.0


@dataclass(frozen=True)
class RenyiProfile(Profile):
    """The best profile that Rényi divergences give; never a Gaussian.

    :param divergences: of everything composed, at ``ORDERS``.
    """

    divergences: tuple[float, ...]

    @property
    def variance(self) -> float:
        """Twice the divergence of order one, as for a Gaussian."""
        return 2 * self.divergences[0]

    @property
    def largest(self) -> float:
        """ε at a δ of 1e-22."""
        found = np.array(self.divergences) - math.log(1e-22) / (ORDERS - 1)
        return min(float(found.min()), FARTHEST)

    def deltas(self, epsilons: Array) -> tuple[Array, ...]:
        """Return the least δ over the orders."""
        return (renyi_delta(np.array(self.divergences), epsilons),)
