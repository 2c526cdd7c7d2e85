"""What of a made-up signal comes through the noise of a private run, to first order."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from numpyro_dp.diagnostics.plan.rehearsal import Rehearsal
from numpyro_dp.families.synthetic_records import SyntheticRecords

# More information than an optimiser is stable at does not help it: a part may serve it better.
_PARTS = (1.0, 1 / 8, 1 / 64, 1 / 512)
# A normal error's square is below this share of its mean in one run of ten.
_LUCK = 0.0158


class Gains(NamedTuple):
    """Shares of what the records could teach.

    - **expected**: the share that comes through.
    - **at_best**: the same where all records lie along one direction, in a lucky run of a fit.
    - **arrived**: the share that would come without privacy noise.
    - **averaged**: the share that would come if all arrived and all noise was averaged.
    - **shaken**: how far noise alone moves the end of a rehearsed fit, over the distance from the
      start to a prior draw; 0 for a chain.
    """

    expected: float
    at_best: float
    arrived: float
    averaged: float
    shaken: float


@dataclass(frozen=True, eq=False)
class SignalModel:
    """A private chain, or an optimiser, that learns from made-up records.

    :param synthetic: gradients of made-up records.
    :param num_records: how many records they stand for, times the power of the likelihood.
    :param clip_norm: bound on a record's gradient.
    :param noise: standard deviation of the noise in one step's estimate of the full gradient.
    :param num_steps: steps of one chain.
    :param step_size: of the chain; ``None`` for a schedule, which is taken to arrive and to be free
        of privacy noise.
    :param weights: of the coordinates in the clip.
    :param rehearsal: how the optimiser fares that takes the steps; ``None`` for a chain.
    """

    synthetic: SyntheticRecords
    num_records: float
    clip_norm: float
    noise: float
    num_steps: int
    step_size: float | None
    rehearsal: Rehearsal | None = None
    weights: np.ndarray | float = 1.0

    def signal_to_noise(self) -> float:
        """Length of the first step's clipped sum over that of its noise."""
        towards = np.linalg.norm(self._clipped(self.synthetic.at_start).mean(1), axis=-1)
        dim = self.synthetic.spread.shape[1]
        return self.num_records * float(np.median(towards)) / (self.noise * math.sqrt(dim))

    def clipped_at_truth(self) -> float:
        """Share of records whose gradient is longer than the bound where their outcomes came from.

        At a start far away gradients are longer, and clipping them costs time but no bias.
        """
        norms = np.linalg.norm(self.synthetic.at_truth * self.weights, axis=-1)
        return float(np.mean(norms[np.isfinite(norms)] > self.clip_norm))

    def gains(self) -> Gains:
        """Share of what the records could teach that comes through, under the prior predictive."""
        roots = [self._roots(gradients) for gradients in self.synthetic.at_truth]
        # Whatever the geometry, a gradient is no longer than the records' together.
        longest = np.linalg.norm(self._clipped(self.synthetic.at_start), axis=-1).mean(1)
        most = self.num_records * longest[:, None]
        if self.rehearsal is None:
            h, shaken = self.information(), 0.0
            arrived, heard = self._chain(h, np.minimum(h * self.distance, most))
        else:
            h, arrived, heard, shaken = self._rehearsed(
                self.rehearsal, roots, list(self.synthetic.spread)
            )
        averaged = self._heard(np.minimum(h * self.distance, most))
        # What a direction teaches grows like the logarithm of its information.
        worth = np.log1p(h * self.distance**2)
        worth = worth / max(float(worth.sum()), 1e-30)
        expected = float((worth * arrived * heard).sum())
        trace = h.sum(1, keepdims=True)
        signal = np.minimum(trace * self.distance, most)
        at_best = float(np.mean(np.multiply(*self._chain(trace, signal, 1.0, stable=True))))
        if self.rehearsal is not None:
            at_best = min(at_best, self._rehearsed_at_best(self.rehearsal, trace[:, 0]))
        return Gains(
            expected=expected,
            at_best=max(expected, at_best),
            arrived=float((worth * arrived).sum()),
            averaged=float((worth * averaged).sum()),
            shaken=shaken,
        )

    def information(self) -> np.ndarray:
        """Eigenvalues of the clipped records' information, one row for each draw."""
        return np.stack([_information(self._roots(rows)) for rows in self.synthetic.at_truth])

    @property
    def distance(self) -> float:
        """The typical distance from the start to a prior draw in one coordinate."""
        return float(np.sqrt(np.median((self.synthetic.spread**2).mean(1))))

    def curvature(self) -> float:
        """Median over coordinates of the information's diagonal."""
        diagonals = [(self._roots(g) ** 2).sum(0) for g in self.synthetic.at_truth]
        return float(np.median(diagonals))

    def _heard(self, signal: np.ndarray, heat: np.ndarray | float = 0.0) -> np.ndarray:
        """What is heard of a gradient through the noise of all steps together, and of heat."""
        return signal**2 / (signal**2 + self.noise**2 / self.num_steps + heat)

    def _chain(
        self,
        information: np.ndarray,
        signal: np.ndarray,
        part: float = 1 / 2,
        *,
        stable: bool = False,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Of directions of this information and gradient, what arrives, and is heard, of a chain.

        After a part of the steps; without a step size, as if all arrived.
        """
        if self.step_size is None:
            return np.ones_like(information), self._heard(signal)
        # Where privacy noise exceeds the Langevin noise, every draw is spread by the rest, and
        # long steps overshoot: variance grows as 1/(1 − ηh/4), without end from ηh = 4.
        room = 1.0 if stable else np.maximum(1 - self.step_size * information / 4, 1e-12)
        heat = (max(self.step_size * self.noise**2 / 4, 1.0) / room - 1) * information
        # The distance falls as exp(−ηht/2), and what is missing of a quadratic gain twice so.
        arrived = -np.expm1(-self.step_size * information * self.num_steps * part)
        return arrived, self._heard(signal, heat)

    def _rehearsed(
        self, rehearsal: Rehearsal, roots: list[np.ndarray], targets: list[np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
        """Information of directions, what arrives and is heard of a rehearsed fit, its shaking."""
        each = zip(roots, targets, strict=True)
        found = [self._rehearse(rehearsal, draw, *given) for draw, given in enumerate(each)]
        h, whole, missed, shaken = (np.stack(parts) for parts in zip(*found, strict=True))
        # One draw says little of a square's mean: directions of the same rank go together.
        whole, missed, shaken = (
            np.nan_to_num(part**2, nan=math.inf).mean(0) + 1e-30 for part in (whole, missed, shaken)
        )
        # A fit that ran away has learnt nothing.
        arrived = np.maximum(1 - missed / whole, 0)
        heard = whole / (whole + shaken)
        away = math.sqrt(float(shaken.mean())) / self.distance
        return h, np.broadcast_to(arrived, h.shape), np.broadcast_to(heard, h.shape), away

    def _rehearsed_at_best(self, rehearsal: Rehearsal, trace: np.ndarray) -> float:
        """What comes through of a fit to one direction, with the information that serves it best.

        It is one record with the bound of all, as if none pulled against another; and the luckiest
        run of ten, since a direction that noise moves is hit by chance.
        """
        spread = self.synthetic.spread
        along = spread / np.linalg.norm(spread, axis=1, keepdims=True)
        targets, best = list(self.distance * along), 0.0
        for part in _PARTS:
            roots = list((np.sqrt(part * trace)[:, None] * along)[:, None])
            _, arrived, heard, _ = self._rehearsed(rehearsal, roots, targets)
            hit = arrived - _LUCK * (1 / np.maximum(heard, 1e-30) - 1)
            best = max(best, float(hit.mean()))
        return best

    def _rehearse(
        self, rehearsal: Rehearsal, draw: int, roots: np.ndarray, target: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Of each direction: information, the whole way, what of it is missed, what noise adds."""
        bound = self.clip_norm * self.num_records / len(roots)
        way = rehearsal.way(roots, target, bound, draw)
        _, stretch, directions = np.linalg.svd(roots, full_matrices=False)
        h = stretch**2
        # Without privacy a fit goes this share of the way: the prior keeps the rest.
        kept = h * self.distance**2
        whole = kept / (1 + kept) * (directions @ target)
        return h, whole, directions @ way.gone - whole, directions @ way.shaken

    def _clipped(self, gradients: np.ndarray) -> np.ndarray:
        norms = np.linalg.norm(gradients * self.weights, axis=-1, keepdims=True)
        shrunk = gradients * np.minimum(1, self.clip_norm / np.maximum(norms, 1e-30))
        return np.where(np.isfinite(norms), shrunk, 0)

    def _roots(self, gradients: np.ndarray) -> np.ndarray:
        """Rows whose products sum to N·E[clip(g)gᵀ]."""
        kept = np.nan_to_num(gradients, posinf=0.0, neginf=0.0)
        # clip(g)gᵀ = w·ggᵀ.
        shrunk = np.linalg.norm(self._clipped(gradients), axis=1)
        weight = shrunk / np.maximum(np.linalg.norm(kept, axis=1), 1e-30)
        return np.sqrt(weight * self.num_records / len(kept))[:, None] * kept


def _information(roots: np.ndarray) -> np.ndarray:
    """Eigenvalues of the sum, without the zeros that are for want of made-up records."""
    gram = roots @ roots.T if len(roots) < roots.shape[1] else roots.T @ roots
    return np.maximum(np.linalg.eigvalsh(gram), 0.0)
