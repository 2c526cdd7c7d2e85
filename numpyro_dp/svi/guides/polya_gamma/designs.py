"""Three schedules of releases for logistic regression: full matrix, diagonal, and the paper's."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from numpyro_dp.execution.releases import Phase
from numpyro_dp.families.losses import Row
from numpyro_dp.model.guided.model import Outline
from numpyro_dp.svi.guides.polya_gamma import algebra
from numpyro_dp.svi.guides.polya_gamma.base import (
    FIRST_MATRIX,
    KnownWeights,
    PolyaGammaSchedule,
    PolyaGammaSettings,
)
from numpyro_dp.svi.guides.polya_gamma.recognise import Regression

# Releases after centring: what suits, and what a design cannot do without.
DEFAULT_STEPS = {"full": 10, "diagonal": 16, "paper": 10, "exact": 50}
LEAST_STEPS = {"full": 4, "diagonal": 2, "paper": 1, "exact": 1}
# Shares of the squared privacy loss.
_ROUGH, _LOCAL, _FINE, _GROWTH = 0.12, 0.17, 0.60, 1.3
_DIAGONAL, _ROUNDS = 0.08, 0.87
_MOMENTUM, _TAIL = 0.5, 0.6
# Many rounds go in smaller steps, which average more of their noise.
_DAMPING, _FEW = 0.3, 15
_REMEMBERED = 3
# Of the noise's edge, what an interval takes for the curvature of a direction below it.
_UNRESOLVED = 0.1
_FORGETTING = 0.7


class _Scores(PolyaGammaSchedule):
    """Shared by the designs that release scores: their unit, and the model-centred clip."""

    def score_unit(self, state: KnownWeights) -> Float[Array, ""]:
        """Clip norm of a score: half of the rows' norm, times the spread of an outcome."""
        if self.settings.score_clip is not None:
            return jnp.asarray(self.settings.score_clip, self._dtype)
        return state.inputs.radius * (math.sqrt(self.regression.largest) / 2)

    def curvature_unit(self, state: KnownWeights) -> Float[Array, ""]:
        """Clip norm of a curvature: what a row of the rows' norm can have at most."""
        return state.inputs.radius**2 * (self.regression.largest / 4)

    def residual(self, state: KnownWeights, row: Row) -> algebra.Clipped:
        """Clipped residual at the current mean, and its slope."""
        loss, norm = self.regression.loss, jnp.linalg.norm(row.x)
        most = self.score_unit(state) / jnp.maximum(norm, 1e-12)
        predictor = row.x @ state.law.mean.astype(row.x.dtype) + row.offset
        return algebra.clipped_residual(loss, row, predictor, most)

    def score(self, state: KnownWeights, row: Row) -> Float[Array, " dim"]:
        """One record's clipped score, of norm at most 1."""
        return row.x * (self.residual(state, row).residual / self.score_unit(state))


class _Rounds(NamedTuple):
    """Work of the full design: curvature in its own basis, and the last rounds' targets.

    ``resolved`` is 1 along directions whose curvature is above its release's noise, else 0.
    """

    values: Float[Array, " dim"]
    resolved: Float[Array, " dim"]
    vectors: Float[Array, "dim dim"]
    targets: Float[Array, "rounds dim"]
    weights: Float[Array, " rounds"]


class FullScores(_Scores):
    """Scores often, matrices twice: a bound on the curvature first, the local one later.

    The posterior knows the noise: along each eigenvector of the curvature the released scores
    tell ``w² / (w + s²)`` of the precision ``w`` that exact ones would, s² the variance of their
    noise. A direction whose curvature is below the noise of its own release is not resolved: its
    steps take the noise's edge for curvature, which is safe; its interval takes a tenth of that,
    since the edge is more than was learnt there, and how much less nobody knows.
    """

    def __init__(
        self, regression: Regression, found: Outline, settings: PolyaGammaSettings, steps: int
    ) -> None:
        size = algebra.packed_size(regression.dim)
        rough = max(1, round(3 * (steps - 2) / 8))
        fine = steps - 2 - rough
        growing = np.power(_GROWTH, np.arange(fine))
        own = (
            Phase("bound on the curvature", size, 1.0, (FIRST_MATRIX,)),
            Phase("first scores", regression.dim, 1.0, (_ROUGH / rough,) * rough),
            Phase("local curvature", size, 1.0, (_LOCAL,)),
            Phase("scores", regression.dim, 1.0, tuple((_FINE * growing / growing.sum()).tolist())),
        )
        super().__init__(regression, found, settings, own)

    def begin(self) -> _Rounds:
        """Nothing is known of the curvature."""
        dim, dtype = self.regression.dim, self._dtype
        return _Rounds(
            jnp.ones(dim, dtype),
            jnp.ones(dim, dtype),
            jnp.eye(dim, dtype=dtype),
            jnp.zeros((_REMEMBERED, dim), dtype),
            jnp.zeros(_REMEMBERED, dtype),
        )

    def own_statistic(self, phase: int, state: KnownWeights, row: Row) -> Array:
        """A score, or a matrix."""
        if phase in (1, 3):
            return self.score(state, row)
        if phase == 0:
            weight = self.regression.loss.attempts(row) / 4
        else:
            weight = self.residual(state, row).slope
        return algebra.packed(row.x) * (weight / self.curvature_unit(state))

    def own_advance(
        self, phase: int, state: KnownWeights, released: Array, noise_sd: Array, step: Array
    ) -> KnownWeights:
        """A step, or the spectrum of a new matrix."""
        if phase in (0, 2):
            unit, dim = self.curvature_unit(state), self.regression.dim
            floor = jnp.maximum(algebra.edge(noise_sd, dim), 1e-6) * unit
            values, vectors = algebra.spectrum(algebra.unpacked(released * unit, dim), floor)
            resolved = (values > floor).astype(self._dtype)
            work = state.work._replace(values=values, resolved=resolved, vectors=vectors)
            return state._replace(work=work)
        unit = self.score_unit(state)
        if phase == 1:
            return self._bounded_step(state, released * unit)
        return self._newton_step(state, released * unit, (noise_sd * unit) ** 2)

    def _bounded_step(self, state: KnownWeights, score: Float[Array, " dim"]) -> KnownWeights:
        values, vectors = state.work.values, state.work.vectors
        precision = (vectors * values) @ vectors.T + self.prior_precision(state)
        covariance = jnp.linalg.inv(precision)
        mean = state.law.mean
        mean = mean + covariance @ (score + self.prior_gradient(state, mean))
        return self.with_law(state, mean, covariance)

    def _newton_step(
        self, state: KnownWeights, score: Float[Array, " dim"], variance: Float[Array, ""]
    ) -> KnownWeights:
        values, resolved, vectors, targets, weights = state.work
        mean = state.law.mean
        target = values * (vectors.T @ mean) + vectors.T @ score
        targets = jnp.roll(targets, 1, axis=0).at[0].set(target)
        weights = jnp.roll(weights, 1).at[0].set(1 / jnp.maximum(variance, 1e-12))
        total = weights.sum()
        told = values**2 / (values + 1 / total)
        seen = (weights @ targets) / total
        prior = self.prior_precision(state)
        linear = vectors @ (told * seen / values) + self.prior_gradient(state, jnp.zeros_like(mean))
        place = jnp.linalg.solve((vectors * told) @ vectors.T + prior, linear)
        trusted = values * jnp.where(resolved > 0, 1, _UNRESOLVED)
        sure = trusted**2 / (trusted + 1 / total)
        covariance = jnp.linalg.inv((vectors * sure) @ vectors.T + prior)
        work = state.work._replace(targets=targets, weights=weights)
        return self.with_law(state._replace(work=work), place, covariance)

    def learnt(self, state: KnownWeights) -> tuple[str, ...]:
        """Which coefficients lie along directions that were not resolved."""
        resolved, vectors = np.asarray(state.work.resolved), np.asarray(state.work.vectors)
        if resolved.all():
            return ()
        share = (vectors**2) @ (1 - resolved)
        # Other columns carry a little of every direction.
        named = [name for name, part in zip(self.coefficients(), share, strict=True) if part > 0.2]
        return (
            f"{int((1 - resolved).sum())} of {len(resolved)} directions of the curvature lie below "
            "the noise of its release and are not resolved: places and intervals there are rough "
            f"guesses. Mostly {', '.join(named) or 'no single coefficient'}: rare or "
            "collinear columns. Merge or drop them, or take more records or a larger budget.",
        )


class _Descent(NamedTuple):
    """Work of the diagonal design: the bound, and what the rounds add up to."""

    bound: Float[Array, " dim"]
    velocity: Float[Array, " dim"]
    here: Float[Array, " dim"]
    total: Float[Array, " dim"]
    weight: Float[Array, ""]
    precision: Float[Array, ""]


class DiagonalScores(_Scores):
    """The diagonal of the bound once, then scores: dim numbers a release, for wide inputs."""

    def __init__(
        self, regression: Regression, found: Outline, settings: PolyaGammaSettings, steps: int
    ) -> None:
        rounds = steps - 1
        own = (
            Phase("diagonal bound", regression.dim, 1.0, (_DIAGONAL,)),
            Phase("scores", regression.dim, 1.0, (_ROUNDS / rounds,) * rounds),
        )
        super().__init__(regression, found, settings, own)
        self._damping = _DAMPING * math.sqrt(min(1.0, _FEW / rounds))
        self._first = rounds - max(1, round(_TAIL * rounds))

    def begin(self) -> _Descent:
        """At rest."""
        zero = jnp.zeros(self.regression.dim, self._dtype)
        nothing = jnp.zeros((), self._dtype)
        return _Descent(zero, zero, zero, zero, nothing, nothing)

    def own_statistic(self, phase: int, state: KnownWeights, row: Row) -> Array:
        """The squares of a row, or its score."""
        if phase == 1:
            return self.score(state._replace(law=state.law._replace(mean=state.work.here)), row)
        weight = self.regression.loss.attempts(row) / 4
        return row.x**2 * (weight / self.curvature_unit(state))

    def own_advance(
        self, phase: int, state: KnownWeights, released: Array, noise_sd: Array, step: Array
    ) -> KnownWeights:
        """The bound, or a step and the average of the last rounds."""
        if phase == 0:
            unit = self.curvature_unit(state)
            floor = jnp.maximum(2 * noise_sd, 1e-6)
            return state._replace(
                work=state.work._replace(bound=jnp.maximum(released, floor) * unit)
            )
        unit, work = self.score_unit(state), state.work
        prior = jnp.diagonal(self.prior_precision(state))
        slope = released * unit + self.prior_gradient(state, work.here)
        velocity = _MOMENTUM * work.velocity + self._damping * slope / (work.bound + prior)
        counted = (step >= self._first).astype(self._dtype)
        here = work.here + velocity
        work = work._replace(
            velocity=velocity,
            here=here,
            total=work.total + counted * here,
            weight=work.weight + counted,
            precision=work.precision + counted / jnp.maximum((noise_sd * unit) ** 2, 1e-12),
        )
        mean = jnp.where(work.weight > 0, work.total / jnp.maximum(work.weight, 1), here)
        noise = 1 / jnp.maximum(work.precision, 1e-12)
        told = work.bound**2 / (work.bound + noise)
        return self.with_law(state._replace(work=work), mean, jnp.diag(1 / (told + prior)))


class _Sums(NamedTuple):
    """Work of the paper's algorithm: averaged statistics and the variance of their noise."""

    linear: Float[Array, " dim"]
    matrix: Float[Array, " packed"]
    variance: Float[Array, ""]


class PaperSums(PolyaGammaSchedule):
    """Both expected statistics in every step, released jointly.

    Without privacy every step is one of coordinate ascent, and the limit its fixed point.

    :param private: whether statistics are averaged over steps and eigenvalues floored.
    """

    def __init__(
        self,
        regression: Regression,
        found: Outline,
        settings: PolyaGammaSettings,
        steps: int,
        *,
        private: bool,
    ) -> None:
        self.private = private
        dim = regression.dim
        # |kappa| ≤ b/2 and E[ω] ≤ b/4 for rows of norm 1.
        bound = regression.largest * math.sqrt(5) / 4 if private else math.inf
        own = Phase("both statistics", dim + algebra.packed_size(dim), bound, (1.0,) * steps)
        super().__init__(regression, found, settings, [own])

    def begin(self) -> _Sums:
        """Nothing is known."""
        dim, dtype = self.regression.dim, self._dtype
        size = algebra.packed_size(dim)
        return _Sums(jnp.zeros(dim, dtype), jnp.zeros(size, dtype), jnp.zeros((), dtype))

    def own_statistic(self, phase: int, state: KnownWeights, row: Row) -> Array:
        """Kappa times the row, and the expected weight times its square."""
        loss, law = self.regression.loss, state.law
        x = row.x
        if self.private:
            x = x / state.inputs.radius
            x = x * jnp.minimum(1, 1 / jnp.maximum(jnp.linalg.norm(x), 1e-12))
        unscaled = x * state.inputs.radius if self.private else x
        predictor = unscaled @ law.mean.astype(x.dtype) + row.offset
        spread = unscaled @ law.covariance.astype(x.dtype) @ unscaled
        attempts = loss.attempts(row)
        weight = algebra.expected_weight(attempts, jnp.sqrt(predictor**2 + jnp.maximum(spread, 0)))
        # The score at a predictor of zero is kappa; the offset is known and goes to the left.
        kappa = -loss.slope(jnp.zeros_like(predictor), row) - weight * row.offset
        return jnp.concatenate([kappa * x, weight * algebra.packed(x)])

    def own_advance(
        self, phase: int, state: KnownWeights, released: Array, noise_sd: Array, step: Array
    ) -> KnownWeights:
        """Average the statistics, and solve."""
        dim, work = self.regression.dim, state.work
        rate = (step + 1.0) ** -_FORGETTING if self.private else jnp.ones(())
        rate = rate.astype(self._dtype)
        unit = state.inputs.radius if self.private else jnp.ones((), self._dtype)
        work = _Sums(
            (1 - rate) * work.linear + rate * released[:dim] * unit,
            (1 - rate) * work.matrix + rate * released[dim:] * unit**2,
            (1 - rate) ** 2 * work.variance + (rate * noise_sd * unit**2) ** 2,
        )
        matrix = algebra.unpacked(work.matrix, dim)
        if self.private:
            values, vectors = algebra.spectrum(matrix, algebra.edge(jnp.sqrt(work.variance), dim))
            matrix = (vectors * values) @ vectors.T
        covariance = jnp.linalg.inv(matrix + self.prior_precision(state))
        linear = work.linear + self.prior_gradient(state, jnp.zeros(dim, matrix.dtype))
        return self.with_law(state._replace(work=work), covariance @ linear, covariance)
