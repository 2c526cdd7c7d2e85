"""An oracle that shares nothing with the package: δ(ε) by a contour integral, nothing discretised.

δ(ε) = (1/π) ∫₀^∞ Re[M(z) e^{−zε} / (z (z + 1))] dt with z = λ + it and M the moment generating
function of the composed privacy loss.
"""

import math

import numpy as np
from scipy.optimize import brentq
from scipy.stats import norm


class Contour:
    """δ of ``steps`` Poisson-sampled Gaussian releases around a given ε."""

    def __init__(self, rate, noise, steps, relation, delta, near, swap=False):
        # Outcomes so rare that all of them together change δ by less than 1e-6 of itself are
        # left out: their losses would rule the moments.
        width = noise * norm.isf(1e-7 * delta / steps)
        x = np.linspace(-1 - width, 1 + width, 6001)
        plain, up, down = (-0.5 * ((x - shift) / noise) ** 2 for shift in (0.0, 1.0, -1.0))
        first = np.logaddexp(math.log1p(-rate) + plain, math.log(rate) + up)
        second = plain
        if relation == "replace_one":
            second = np.logaddexp(math.log1p(-rate) + plain, math.log(rate) + down)
        if swap:
            first, second = second, first
        self.loss = first - second
        self.log_mass = first + math.log((x[1] - x[0]) / (noise * math.sqrt(2 * math.pi)))
        self.steps = steps
        self.tilt = brentq(lambda tilt: self._mean(tilt) - near, 1e-9, 1e7)
        exponent = self.log_mass + self.tilt * self.loss
        # Rare large losses widen the tilted loss; the transform decays as slowly as for the rest.
        spread = min(self._variance(0.0), self._variance(self.tilt))
        t = np.linspace(0, 14 / math.sqrt(steps * spread), 4001)
        self.z = self.tilt + 1j * t
        self.dt = t[1]
        peak = exponent.max()
        total = np.array([np.exp(exponent - peak + 1j * s * self.loss).sum() for s in t])
        self.log_mgf = steps * (np.log(total) + peak)

    def _weights(self, tilt):
        exponent = self.log_mass + tilt * self.loss
        weights = np.exp(exponent - exponent.max())
        return weights / weights.sum()

    def _mean(self, tilt):
        return self.steps * (self._weights(tilt) @ self.loss)

    def _variance(self, tilt):
        weights = self._weights(tilt)
        return weights @ (self.loss - weights @ self.loss) ** 2

    def delta(self, epsilon):
        value = np.exp(self.log_mgf - self.z * epsilon) / (self.z * (self.z + 1))
        return float((value.sum() - value[0] / 2).real * self.dt / math.pi)


def exact_epsilon(rate, noise, steps, relation, delta, near):
    """Return ε at ``delta``, searched within 2 % of ``near``; both orders of the pair."""
    found = []
    for swap in (False,) if relation == "replace_one" else (False, True):
        try:
            contour = Contour(rate, noise, steps, relation, delta, near, swap)
        except ValueError:  # this order cannot lose as much as ``near``
            continue
        if contour.delta(near * 0.98) < delta:
            continue
        found.append(brentq(lambda e, c=contour: c.delta(e) - delta, near * 0.98, near * 1.02))
    return max(found)
