"""The best that an analyst can do who chooses each charge by the outcome of those before.

An own code, independent of the package: exact loss distributions on a grid, rounded *down*, and
backward induction over ε − Σ losses. Every δ is thus a lower bound on what the analyst reaches.
"""

import numpy as np
from scipy.signal import fftconvolve
from scipy.stats import norm

from numpyro_dp.accounting.events import (
    ComposedDpEvent,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    PureObjectivePerturbationRelease,
    SelfComposedDpEvent,
)

STEP = 2.0**-10
_REACH = 40.0
_HALF = int(_REACH / STEP)
GRID = STEP * np.arange(-_HALF, _HALF + 1)


def _on_grid(losses, weights):
    places = np.clip(np.floor(losses / STEP).astype(int), -_HALF, _HALF) + _HALF
    return np.bincount(places, weights, minlength=len(GRID))


def _sampled(rate, sd, steps):
    """Both orders of Poisson-sampled Gaussian steps: losses under the first of each pair."""
    z, dz = np.linspace(-12 * sd, 1 + 12 * sd, 400_001, retstep=True)
    without, with_ = norm.pdf(z, 0, sd) * dz, norm.pdf(z, 1, sd) * dz
    mixed = (1 - rate) * without + rate * with_
    losses = np.log1p(rate * np.expm1((2 * z - 1) / (2 * sd**2)))
    once = _on_grid(losses, mixed), _on_grid(-losses, without)
    return [_folded(one, steps) for one in once]


def _folded(mass, steps):
    found = mass
    for _ in range(steps - 1):
        wide = np.maximum(fftconvolve(found, mass), 0.0)
        found = wide[_HALF:-_HALF].copy()
        found[0] += wide[:_HALF].sum()
        found[-1] += wide[-_HALF:].sum()
    return found


class Kind:
    """A family of events by one number, louder when it is smaller, and their exact losses."""

    def __init__(self, name, **fixed):
        self.name, self.fixed = name, fixed

    def event(self, noise):
        if self.name == "gaussian":
            return GaussianDpEvent(noise)
        if self.name == "response":
            return PureObjectivePerturbationRelease(1.0, 0.0, 1.0, noise)
        step = PoissonSampledDpEvent(self.fixed["rate"], GaussianDpEvent(noise))
        return SelfComposedDpEvent(step, self.fixed.get("steps", 1))

    def losses(self, noise):
        """Masses on ``GRID``, for each order of neighbours."""
        if self.name == "gaussian":
            shift = 1 / noise
            z, dz = np.linspace(-12, 12, 400_001, retstep=True)
            return [_on_grid(shift**2 / 2 + shift * z, norm.pdf(z) * dz)]
        if self.name == "response":
            epsilon = 1 / noise
            chance = 1 / (1 + np.exp(-epsilon))
            return [_on_grid(np.array([epsilon, -epsilon]), np.array([chance, 1 - chance]))]
        return _sampled(self.fixed["rate"], noise, self.fixed.get("steps", 1))


MENU = (
    Kind("gaussian"),
    Kind("sampled", rate=1e-4),
    Kind("sampled", rate=1e-3),
    Kind("sampled", rate=1e-2),
    Kind("sampled", rate=0.1),
    Kind("sampled", rate=0.5),
    Kind("sampled", rate=0.02, steps=10),
    Kind("response"),
)


def loudest(kind, admitted, precision=1e-3):
    """The least noise of ``kind`` that ``admitted`` takes, and a little more; None without any."""
    low, high = 0.25, 0.25
    while not admitted(kind.event(high)):
        low, high = high, 2 * high
        if high > 2e4:
            return None
    while high > low * (1 + precision):
        middle = np.sqrt(low * high)
        low, high = (low, middle) if admitted(kind.event(middle)) else (middle, high)
    return high


def delta_at(mass):
    """δ of ``mass`` at every ε of ``GRID``, negative ones included."""
    beyond = np.cumsum(mass[::-1])[::-1]
    weighted = np.cumsum((mass * np.exp(-GRID))[::-1])[::-1]
    return np.maximum(beyond - np.exp(GRID) * weighted, 0.0)


def best_of(orders):
    """The better order at every ε."""
    return np.max([delta_at(mass) for mass in orders], axis=0)


def after(mass, value):
    """E[value(ε − loss)] at every ε of ``GRID``; beyond the grid 1 below and 0 above."""
    padded = np.concatenate([np.full(_HALF, value[0]), value, np.full(_HALF, value[-1])])
    return fftconvolve(padded, mass, mode="valid")


def at(value, epsilon):
    """``value`` at the first point of the grid from ``epsilon`` on: never more than it is."""
    return float(value[int(np.ceil(epsilon / STEP)) + _HALF])


def composed(*events):
    """The events as one list."""
    return ComposedDpEvent(list(events))


# An analyst may also stop.
NOTHING = _on_grid(np.zeros(1), np.ones(1))
