"""Privacy profiles: for one step of a mechanism, δ as a function of ε, both ways round.

A profile belongs to a dominating pair (P, Q). ``forward`` is ε ↦ sup over events of
P(S) − e^ε·Q(S), ``backward`` the same with P and Q exchanged; both for ε ≥ 0, which determines
the whole privacy loss distribution. A new mechanism needs one frozen class here and one handler in
``curve``.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfcx, log_ndtr, ndtr

__all__ = ["Gaussian", "PoissonGaussian", "PoissonGaussianReplace", "Profile", "gaussian_delta"]

_Floats = NDArray[np.float64]


class Profile(Protocol):
    """The privacy profile of one step; hashable, so that equal steps merge."""

    def __hash__(self) -> int:
        """Return a hash of the value."""
        ...

    @property
    def symmetric(self) -> bool:
        """Whether ``forward`` and ``backward`` agree."""
        ...

    def forward(self, epsilon: _Floats) -> _Floats:
        """Return the hockey-stick divergence of P from Q at each ε ≥ 0."""
        ...

    def backward(self, epsilon: _Floats) -> _Floats:
        """Return the hockey-stick divergence of Q from P at each ε ≥ 0."""
        ...


def _tail_gap(near: _Floats, far: _Floats) -> _Floats:
    """Return SF(near) − exp((far² − near²)/2)·SF(far) for near < far, without cancellation."""
    # Mills ratios keep relative accuracy in the tail, where both terms underflow; far to the left
    # they overflow, but there the two terms differ by almost one.
    clipped_near, clipped_far = np.maximum(near, -6.0), np.maximum(far, -6.0)
    mills = math.sqrt(math.pi / 2) * (
        erfcx(clipped_near / math.sqrt(2)) - erfcx(clipped_far / math.sqrt(2))
    )
    density = np.exp(-0.5 * clipped_near**2) / math.sqrt(2 * math.pi)
    exponent = (far - near) * (far + near) / 2 + log_ndtr(-far)
    direct = ndtr(-near) - np.exp(np.minimum(exponent, 0.0))
    return np.where(near > -6.0, density * mills, np.maximum(direct, 0.0))


def gaussian_delta(epsilon: _Floats, mu: float) -> _Floats:
    """Return δ(ε) = Φ(μ/2 − ε/μ) − e^ε·Φ(−μ/2 − ε/μ), the profile of N(μ, 1) against N(0, 1).

    Args:
        epsilon: values of ε ≥ 0.
        mu: the shift μ > 0 in standard deviations.

    Returns:
        δ at each ε, with relative accuracy kept in the tail.

    References:
        Balle and Wang, *Improving the Gaussian mechanism for differential privacy* (2018),
        Theorem 5.
    """
    centre = epsilon / mu
    return _tail_gap(centre - mu / 2, centre + mu / 2)


@dataclass(frozen=True)
class Gaussian:
    """N(μ, 1) against N(0, 1): any number of Gaussian releases, merged in closed form."""

    mu: float

    @property
    def symmetric(self) -> bool:
        """Whether both directions agree: always."""
        return True

    def forward(self, epsilon: _Floats) -> _Floats:
        """Return δ at each ε ≥ 0."""
        return gaussian_delta(epsilon, self.mu)

    def backward(self, epsilon: _Floats) -> _Floats:
        """Return δ at each ε ≥ 0."""
        return gaussian_delta(epsilon, self.mu)


@dataclass(frozen=True)
class PoissonGaussian:
    """(1−q)N(0, σ²) + qN(1, σ²) against N(0, σ²): one record present or not in a Poisson batch.

    References:
        Zhu, Dong and Wang, *Optimal accounting of differential privacy via characteristic
        function* (2022), Proposition 30; privacy.md section 2.
    """

    rate: float
    noise_multiplier: float

    @property
    def symmetric(self) -> bool:
        """Whether both directions agree: never below rate 1."""
        return False

    def forward(self, epsilon: _Floats) -> _Floats:
        """Return δ when the mixture comes first (the record is present)."""
        # log(1 + (e^ε − 1)/q), written so that a large ε does not overflow.
        inner = np.where(
            epsilon > 30.0,
            epsilon - math.log(self.rate) + np.log1p(-(1 - self.rate) * np.exp(-epsilon)),
            np.log1p(np.expm1(np.minimum(epsilon, 30.0)) / self.rate),
        )
        return self.rate * gaussian_delta(inner, 1 / self.noise_multiplier)

    def backward(self, epsilon: _Floats) -> _Floats:
        """Return δ when the plain Gaussian comes first (the record is absent)."""
        ratio = 1 + np.expm1(-epsilon) / self.rate
        # The privacy loss is at most −log(1 − q): beyond it δ is exactly zero.
        possible = ratio > 0
        inner = -np.log(np.where(possible, ratio, 1.0))
        near_zero = -np.log1p(np.where(possible, np.expm1(-epsilon) / self.rate, 0.0))
        inner = np.where(ratio > 0.5, near_zero, inner)
        delta = self.rate * np.exp(np.minimum(epsilon, 700.0) - inner)
        return np.where(possible, delta * gaussian_delta(inner, 1 / self.noise_multiplier), 0.0)


@dataclass(frozen=True)
class PoissonGaussianReplace:
    """(1−q)N(0, σ²) + qN(1, σ²) against (1−q)N(0, σ²) + qN(−1, σ²): one record's value changes.

    References:
        privacy.md section 2: this pair dominates in every dimension.
    """

    rate: float
    noise_multiplier: float

    @property
    def symmetric(self) -> bool:
        """Whether both directions agree: always."""
        return True

    def forward(self, epsilon: _Floats) -> _Floats:
        """Return δ at each ε ≥ 0."""
        q, sigma = self.rate, self.noise_multiplier
        with np.errstate(divide="ignore"):
            log_sinh = np.where(
                epsilon > 1.0,
                epsilon / 2 + np.log1p(-np.exp(-epsilon)) - math.log(2),
                np.log(np.sinh(np.minimum(epsilon, 1.0) / 2)),
            )
        log_s = math.log1p(-q) - math.log(q) + log_sinh + 1 / (2 * sigma**2)
        # x/σ² where the two densities stand in the ratio e^ε is ε/2 + asinh(s).
        small = np.arcsinh(np.exp(np.minimum(log_s, 1.0)))
        large = log_s + np.log1p(np.sqrt(1 + np.exp(-2 * np.maximum(log_s, 1.0))))
        arc = np.where(log_s > 1.0, large, small)
        centre = sigma * (epsilon / 2 + arc)
        outer = np.exp(-2 * arc) * _tail_gap(centre - 1 / sigma, centre + 1 / sigma)
        inner = -np.expm1(-2 * arc) * _tail_gap(centre - 1 / sigma, centre)
        return q * (outer + inner)

    def backward(self, epsilon: _Floats) -> _Floats:
        """Return δ at each ε ≥ 0."""
        return self.forward(epsilon)
