"""What the step size of a planned chain allows: how long it may be, and how far it gets."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from numpyro_dp.mcmc.sgmcmc.integrator import Integrator

# Variance of the draws over the posterior's that is let pass, by definition: twice as wide.
WIDENED = 4.0
_HALVINGS = 60


@dataclass(frozen=True, eq=False)
class ChainSteps:
    """A chain in directions of known curvature, one row for each truth drawn from the prior.

    :param integrator: how a gradient moves the position.
    :param curvatures: of the clipped log posterior density, shape (draws, directions).
    :param distance: the typical distance from the start to a prior draw in one coordinate.
    :param noise: standard deviation of the privacy noise in one step's gradient.
    :param num_steps: of one chain.
    :param batches: variance of a mini-batch's gradient over the curvature.
    """

    integrator: Integrator
    curvatures: Float[np.ndarray, "draws directions"]
    distance: float
    noise: float
    num_steps: int
    batches: float

    def on_full_batches(self) -> ChainSteps:
        """The same chain without the noise of mini-batches."""
        return replace(self, batches=0.0)

    def stable_size(self) -> float:
        """Longest step at which the steepest direction is at most twice too wide; may be inf.

        Longer ones overshoot, and give the noise of mini-batches more weight than the noise that
        the sampler asks for. It is the median over truths.
        """
        return float(np.median([self._longest(c) for c in self.curvatures.max(1)]))

    def _longest(self, curvature: float) -> float:
        low, high = 1e-12 / curvature, 1e6 / curvature
        if self._widened(high, curvature) <= WIDENED:
            return math.inf
        for _ in range(_HALVINGS):
            middle = math.sqrt(low * high)
            if self._widened(middle, curvature) <= WIDENED:
                low = middle
            else:
                high = middle
        return low

    def _widened(self, step_size: float, curvature: float) -> float:
        return self.integrator.widened(step_size, curvature, self.batches)

    def temperature(self, step_size: float) -> float:
        """Of the draws, by the privacy noise."""
        return max(self.integrator.reached(step_size, self.noise), 1.0)

    def missing(self) -> float:
        """How far the slowest direction is from its place after half of the steps.

        In posterior standard deviations, at the median truth.
        """
        left = (
            self.distance * np.sqrt(self.curvatures) * np.exp(-self._paces() * self.num_steps / 2)
        )
        return float(np.median(left.max(1)))

    def times(self) -> float:
        """Relaxation times that the steps hold in the slowest direction, at the median truth."""
        return float(np.median(self._paces().min(1))) * self.num_steps

    def _paces(self) -> np.ndarray:
        return np.asarray(self.integrator.relaxation(0, self.noise, 1 / self.curvatures), float)
