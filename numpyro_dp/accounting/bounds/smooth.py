"""What is proved about a Barker bit with a Gaussian proposal where records are smooth.

A record whose log likelihood has a gradient of at most L and a Hessian of at most β in norm changes
by at most |g·δ| + β‖δ‖²/2 in a move δ (Taylor). For δ ~ N(0, s²I) in d dimensions, and whatever the
direction of g, this is at most a width W = sL|Z| + βs²(Z² + C)/2, with Z standard normal and
C ~ χ²(d − 1) independent of it. Given δ, which is free of data, the bit is a Barker bit of bound W,
so the profile of one step is the average over W of that of the bit. A record that is replaced by
another counts as removed and added: δ(ε) is at most (1 + e^{ε/2}) times the former δ at ε/2, and
Rényi divergences obey the weak triangle inequality (Mironov, 2017, Proposition 11).
"""

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy.special import logsumexp, ndtr
from scipy.stats import chi2

from numpyro_dp.accounting.bounds.directional import AveragedBit, averaged
from numpyro_dp.accounting.bounds.proved import Proved, of_bound, proves
from numpyro_dp.accounting.events import SmoothBarkerBit
from numpyro_dp.accounting.pld.bound import UP
from numpyro_dp.accounting.pld.profiles import FARTHEST, Profile
from numpyro_dp.accounting.pld.renyi import ORDERS, Array
from numpyro_dp.accounting.relation import Relation

_ROUNDED = 1e-12
_CELLS = 4000
# Beyond these the chance is below 1e-21, and counted in full.
_SIDE, _TAIL = 9.8, 1e-22


@dataclass(frozen=True)
class SmoothBit(AveragedBit):
    """Proposal and Barker bit; a record's term is at most W in either direction.

    :param slope: sL.
    :param curvature: βs².
    :param dim: d, the dimensions of the move.
    :param replaced: whether a record is replaced by another, or by a null record.

    **References.** *Events* (docs/reference/events.md), direction-averaged charge.
    """

    slope: float
    curvature: float
    dim: int
    replaced: bool

    @property
    def profile(self) -> "SmoothProfile":
        """The average of Barker profiles."""
        return SmoothProfile(self.slope, self.curvature, self.dim, self.replaced)

    @property
    def variance(self) -> float:
        return self.profile.variance

    def renyi(self) -> Array:
        """log E e^{(α − 1)·min(αW²/8, W)} / (α − 1), by way of the null record if replaced."""
        if not self.replaced:
            return self._renyi_at(ORDERS)
        share = (ORDERS - 0.5) / (ORDERS - 1)
        return share * self._renyi_at(2 * ORDERS) + self._renyi_at(2 * ORDERS - 1)

    def _renyi_at(self, orders: Array) -> Array:
        edges, mass, _, excess = _widths(self.slope, self.curvature, self.dim)
        rate, width = orders - 1, edges[1:]
        exponents = rate[:, None] * np.minimum(orders[:, None] * width**2 / 8, width)
        with np.errstate(divide="ignore"):
            parts = [logsumexp(exponents + np.log(mass[:, 0]), axis=1)]
        parts += [self._log_beyond(rate, edges[-1] - excess), self._log_across(rate)]
        # A sum of so many shares rounds to below 1, and no expectation of these is.
        return np.maximum(logsumexp(parts, axis=0) + _ROUNDED, 0.0) / rate * UP

    def _log_moment(self, rate: Array, dim: int) -> Array:
        """A bound on log E e^{rate·W}, W in ``dim`` dimensions; infinite where it may be."""
        left = 1 - self.curvature * rate
        known = np.where(left > 0, left, 1.0)
        found = math.log(2) + (rate * self.slope) ** 2 / (2 * known) - dim / 2 * np.log(known)
        return np.where(left > 0, found, math.inf)

    def _log_beyond(self, rate: Array, last: float) -> Array:
        """Chernoff's bound on log E e^{rate·W} over widths beyond ``last``."""
        # Steeper and steeper tilts, up to where the expectation is infinite.
        room = 1 / self.curvature - rate if self.curvature else np.full_like(rate, math.inf)
        steep = 10 * _SIDE / self.slope if self.slope else math.inf
        most = np.maximum(np.minimum(room * 0.999, steep), 1e-300)
        tilt = np.multiply.outer(most, np.geomspace(1e-3, 1.0, 40))
        return (self._log_moment(rate[:, None] + tilt, self.dim) - tilt * last).min(axis=1)

    def _log_across(self, rate: Array) -> Array:
        """log E e^{rate·W} over what C alone puts in no cell, however wide."""
        if self.dim == 1:
            return np.full_like(rate, -math.inf)
        across = chi2(self.dim - 1)
        left = np.maximum(1 - self.curvature * rate, 0.0)
        # A tilted chi-squared law is a chi-squared law.
        return self._log_moment(rate, self.dim) + across.logsf(across.isf(_TAIL) * left)


@dataclass(frozen=True)
class SmoothProfile(Profile):
    """The average over the proposal of the profile of a Barker bit."""

    slope: float
    curvature: float
    dim: int
    replaced: bool

    @property
    def variance(self) -> float:
        """About that of losses uniform over the range."""
        typical = self.slope + self.curvature * self.dim / 2
        return (typical * (2 if self.replaced else 1)) ** 2 / 3

    @property
    def largest(self) -> float:
        """Where the width is beyond reach."""
        edges, *_ = _widths(self.slope, self.curvature, self.dim)
        return min(float(edges[-1]) * (2 if self.replaced else 1), FARTHEST)

    def deltas(self, epsilons: Array) -> tuple[Array, ...]:
        """Return the average over cells of the width, each at its upper, worst edge."""
        edges, mass, beyond, _ = _widths(self.slope, self.curvature, self.dim)
        if not self.replaced:
            return (averaged(epsilons, self.largest, edges[1:], mass, beyond),)
        half = averaged(epsilons / 2, self.largest, edges[1:], mass, beyond)
        # Past 700 no δ is left, and e^ε is no number.
        factor = 1 + np.exp(np.minimum(epsilons / 2, 700.0))
        return (np.minimum(factor * half * UP, 1.0),)


@cache
def _widths(slope: float, curvature: float, dim: int) -> tuple[Array, Array, Array, float]:
    """Return edges of cells of the width, their chances as a column, and the chance beyond.

    Last, by how much a width is taken for larger than it is, C being rounded up.
    """
    half, excess = curvature / 2, 0.0
    if dim > 1:
        across = chi2(dim - 1)
        sides = np.linspace(across.ppf(_TAIL), across.isf(_TAIL), _CELLS + 1)
        # Each cell stands at its upper edge, what lies below the first one in the first cell.
        chances = -np.diff(across.sf(sides))
        chances[0] += across.cdf(sides[0])
        offsets, lost = half * sides[1:], float(across.sf(sides[-1]))
        excess = half * float(sides[1] - sides[0])
    else:
        offsets, chances, lost = np.zeros(1), np.ones(1), 0.0
    edges = np.linspace(0.0, slope * _SIDE + half * _SIDE**2 + offsets[-1], _CELLS + 1)
    beyond = np.full_like(edges, lost)
    for offset, chance in zip(offsets, chances, strict=True):
        rest = np.maximum(edges - offset, 0.0)
        # Where sL|Z| + βs²Z²/2 reaches what is left; 0 where C alone is past the edge.
        root = np.maximum(slope + np.sqrt(slope**2 + 4 * half * rest), 1e-300)
        beyond += chance * 2 * ndtr(-2 * rest / root)
    beyond = np.minimum(beyond, 1.0)
    return edges, -np.diff(beyond)[:, None], beyond[-1:], excess


@proves(SmoothBarkerBit)
def _smooth(event: SmoothBarkerBit, relation: Relation) -> Proved:
    slope = event.step_size * event.lipschitz
    curvature = event.step_size**2 * event.smoothness
    if slope == curvature == 0:
        return Proved()
    return of_bound(SmoothBit(slope, curvature, event.dim, relation == "replace_one"))
