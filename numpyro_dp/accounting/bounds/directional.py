"""What is proved about a Barker bit whose Gaussian proposal is released with it.

The proposal δ is free of data, so the profile of one step is the average over δ of that of the bit.
A record's term is at most s|g| in absolute value, g = x·δ/s normal with standard deviation ‖P^½x‖ ≤
R. Against a null record the loss ranges over sR|Z|. Against another record it ranges over
s(|g| + |g'|) with *any* correlation of g and g': 2sR|Z| has the larger moments (Cauchy and
Schwarz), so Rényi divergences may double R, but |Z| + |Z'| is more often large and its profile is
larger where ε is small. Since |g| + |g'| = max(|g + g'|, |g − g'|), two independent normals whose
variances add up to 4R², the profile is the largest over how those 4R² are shared.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy.special import ndtr

from numpyro_dp.accounting.bounds.proved import Proved, of_bound, proves
from numpyro_dp.accounting.events import DirectionalBarkerBit
from numpyro_dp.accounting.pld.bound import UP, Bound, Pieces
from numpyro_dp.accounting.pld.profiles import FARTHEST, Profile
from numpyro_dp.accounting.pld.renyi import ORDERS, Array
from numpyro_dp.accounting.relation import Relation


class AveragedBit(Bound, ABC):
    """A Barker bit whose bound is random, released, and free of data."""

    @property
    @abstractmethod
    def profile(self) -> Profile:
        """The average of Barker profiles."""

    def pieces(self, count: int) -> Pieces:
        """The average itself."""
        return ((self.profile, count),)

    def delta(self, epsilon: float) -> float:
        """The average itself."""
        return float(self.profile.deltas(np.array([epsilon]))[0][0])


@dataclass(frozen=True)
class DirectionalBit(AveragedBit):
    """Proposal and Barker bit, the term bounded by ``scale``·|N(0, 1)| in either direction.

    :param scale: sR.
    :param replaced: whether a record is replaced by another, or by a null record.

    **References.** *Events* (docs/reference/events.md), direction-averaged charge.
    """

    scale: float
    replaced: bool

    def renyi(self) -> Array:
        """−log(1 − α(α − 1)w²/4) / (2(α − 1)), w = sR or 2sR, from D_α ≤ αΔ²/8."""
        width = self.scale * (2 if self.replaced else 1)
        share = ORDERS * (ORDERS - 1) * width**2 / 4
        inside = np.minimum(share, 1.0)
        with np.errstate(divide="ignore"):
            found = -np.log1p(-inside) / (2 * (ORDERS - 1))
        return found * UP

    @property
    def profile(self) -> "DirectionalProfile":
        """The average of Barker profiles."""
        return DirectionalProfile(self.scale, self.replaced)


@dataclass(frozen=True)
class DirectionalProfile(Profile):
    """The largest average over the proposal of the profile of a Barker bit."""

    scale: float
    replaced: bool

    @property
    def variance(self) -> float:
        """About that of losses uniform over the range."""
        return (self.scale * (2 if self.replaced else 1)) ** 2 / 3

    @property
    def largest(self) -> float:
        """Where a normal variable is beyond reach."""
        return min(_widths(self.replaced)[0][-1] * self.scale, FARTHEST)

    def deltas(self, epsilons: Array) -> tuple[Array, ...]:
        """Return the average over cells of the width, each at its upper, worst edge."""
        edges, mass, beyond = _widths(self.replaced)
        return (averaged(epsilons, self.largest, self.scale * edges[1:], mass, beyond),)


def averaged(epsilons: Array, largest: float, widths: Array, mass: Array, beyond: Array) -> Array:
    """Return δ of a Barker bit whose bound is random, released, and free of data.

    :param epsilons: increasing, ≥ 0.
    :param largest: a bound beyond which δ is negligible.
    :param widths: shape (cells,), the largest bound in each cell.
    :param mass: shape (cells, ways), the chance of each cell; the worst way counts.
    :param beyond: shape (ways,), the chance of no cell.
    """
    farthest = min(max(largest, float(epsilons[-1])), 700.0)
    points = np.linspace(0.0, farthest, 1025)
    excess = np.minimum(np.subtract.outer(points, widths) / 2, 0.0)
    found = (np.expm1(excess) ** 2 / -np.expm1(-widths)) @ mass + beyond
    row = np.minimum(found.max(axis=1) * UP, 1.0)
    at = np.minimum(epsilons, farthest)
    return np.interp(np.expm1(at), np.expm1(points), row)


_CELLS = 2000
_SIDE = 9.8
# How the variance is shared: all of one sign first, equally last.
_SHARES: Array = np.concatenate([[0.0], np.geomspace(1e-4, 1.0, 65)])


@cache
def _widths(replaced: bool) -> tuple[Array, Array, Array]:
    """Return the edges of cells of the width over sR, their chances, and the chance beyond.

    One column for each way to share the variance, each cell of ways at its larger variances.
    """
    if not replaced:
        sds = np.array([[1.0], [0.0]])
    else:
        sds = np.sqrt(np.array([4 - 2 * _SHARES[:-1], 2 * _SHARES[1:]]))
    edges = np.linspace(0.0, _SIDE * (2 if replaced else 1), _CELLS + 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        one, other = (np.nan_to_num(2 * ndtr(-np.divide.outer(edges, sd))) for sd in sds)
    beyond = one + other - one * other
    return edges, -np.diff(beyond, axis=0), beyond[-1]


@proves(DirectionalBarkerBit)
def _directional(event: DirectionalBarkerBit, relation: Relation) -> Proved:
    if event.row_norm == 0:
        return Proved()
    return of_bound(DirectionalBit(event.step_size * event.row_norm, relation == "replace_one"))
