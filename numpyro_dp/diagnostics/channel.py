"""What of a made-up signal comes through the noise of a private chain, to first order."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from numpyro_dp.diagnostics.made_up import MadeUp

__all__ = ["Channel"]


@dataclass(frozen=True, eq=False)
class Channel:
    """A private chain that learns from made-up records.

    :param made_up: gradients of made-up records.
    :param num_records: how many records they stand for.
    :param clip_norm: bound on a record's gradient.
    :param noise: standard deviation of the noise in one step's estimate of the full gradient.
    :param num_steps: steps of one chain.
    :param step_size: of the chain; ``None`` for a schedule, which is taken to arrive and to be free
        of privacy noise.
    """

    made_up: MadeUp
    num_records: int
    clip_norm: float
    noise: float
    num_steps: int
    step_size: float | None

    def signal_to_noise(self) -> float:
        """Length of the first step's clipped sum over that of its noise."""
        towards = np.linalg.norm(self._clipped(self.made_up.at_start).mean(1), axis=-1)
        dim = self.made_up.spread.shape[1]
        return self.num_records * float(np.median(towards)) / (self.noise * math.sqrt(dim))

    def clipped_at_truth(self) -> float:
        """Share of records whose gradient is longer than the bound where their outcomes came from.

        At a start far away gradients are longer, and clipping them costs time but no bias.
        """
        norms = np.linalg.norm(self.made_up.at_truth, axis=-1)
        return float(np.mean(norms[np.isfinite(norms)] > self.clip_norm))

    def gains(self) -> tuple[float, float]:
        """Share of what the records could teach that comes through: as expected, and at best."""
        longest = np.linalg.norm(self._clipped(self.made_up.at_start), axis=-1).mean(1)
        distance = float(np.sqrt(np.median((self.made_up.spread**2).mean(1))))
        came, all_of_it, at_best = 0.0, 0.0, []
        for gradients, length in zip(self.made_up.at_truth, longest, strict=True):
            # Whatever the geometry, the gradient is no longer than the records' together.
            most = self.num_records * length
            h = self._information(gradients)
            # What a direction teaches grows like the logarithm of its information.
            worth = np.log1p(h * distance**2)
            share = self._share(h, np.minimum(h * distance, most), 1 / 2)
            came += float((worth * share).sum())
            all_of_it += float(worth.sum())
            trace = h.sum()
            signal = np.minimum(trace * distance, most)
            at_best.append(float(self._share(trace, signal, 1.0, stable=True)))
        expected = came / all_of_it if all_of_it else 0.0
        return expected, max(expected, float(np.mean(at_best)))

    def _share(
        self, information: np.ndarray, signal: np.ndarray, part: float, *, stable: bool = False
    ) -> np.ndarray:
        """Share of directions of this information and gradient, after a part of the steps."""
        lost, arrived = np.float64(self.noise**2 / self.num_steps), np.float64(1.0)
        if self.step_size is not None:
            # Where privacy noise exceeds the Langevin noise, every draw is spread by the rest, and
            # long steps overshoot: variance grows as 1/(1 − ηh/4), without end from ηh = 4.
            room = 1.0 if stable else np.maximum(1 - self.step_size * information / 4, 1e-12)
            lost = lost + (max(self.step_size * self.noise**2 / 4, 1.0) / room - 1) * information
            # The distance falls as exp(−ηht/2), and what is missing of a quadratic gain twice so.
            arrived = -np.expm1(-self.step_size * information * self.num_steps * part)
        return arrived * signal**2 / (signal**2 + lost)

    def _clipped(self, gradients: np.ndarray) -> np.ndarray:
        norms = np.linalg.norm(gradients, axis=-1, keepdims=True)
        shrunk = gradients * np.minimum(1, self.clip_norm / np.maximum(norms, 1e-30))
        return np.where(np.isfinite(norms), shrunk, 0)

    def _information(self, gradients: np.ndarray) -> np.ndarray:
        """Eigenvalues of N·E[clip(g)gᵀ], without the zeros that are for want of made-up records."""
        kept = np.nan_to_num(gradients, posinf=0.0, neginf=0.0)
        # clip(g)gᵀ = w·ggᵀ: its eigenvalues are those of the smaller Gram matrix of √w·g.
        shrunk = np.linalg.norm(self._clipped(gradients), axis=1)
        weight = shrunk / np.maximum(np.linalg.norm(kept, axis=1), 1e-30)
        roots = np.sqrt(weight)[:, None] * kept
        gram = roots @ roots.T if len(roots) < roots.shape[1] else roots.T @ roots
        return np.maximum(np.linalg.eigvalsh(gram), 0.0) * self.num_records / len(roots)
