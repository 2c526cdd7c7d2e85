"""Rounds of a sigmoid belief network: a private start, one matrix, then scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Float

from numpyro_dp.execution.releases import Phase
from numpyro_dp.families.sites import Prior
from numpyro_dp.svi.guides.sigmoid_belief.recognise import Network
from numpyro_dp.svi.vips.statistics import Schedule

# Shares of the squared privacy loss, from prototypes on other data than any test.
_START, _MATRIX = 0.25, 0.15
_ROUNDS = 5
# The mean's weight beside the second moments': .2 of their noise suffices for it.
_MEAN = 0.2
# Logits of a pixel per unit of its linear reconstruction.
_STEEPNESS = 6.0
_DAMPING = 0.5
_HYPER_ROUNDS = 5
_START_PHASE, _MATRIX_PHASE, _SCORE_PHASE = range(3)


@dataclass(frozen=True)
class BeliefSettings:
    """Options of a run, all public.

    :param record_norm: bound on a record's L2 norm in the start's second moments.
    :param code_clip: bound on the Frobenius norm of a record's zz'/4.
    :param score_clip: bound on the norm of a record's score.
    :param inner_steps: mean-field steps of one record.
    """

    record_norm: float
    code_clip: float
    score_clip: float
    inner_steps: int


class Layers(NamedTuple):
    """What a record's hidden units are inferred from."""

    weights: Float[Array, "pixels units"]
    bias: Float[Array, " pixels"]
    base: Float[Array, " units"]


class KnownUnits(NamedTuple):
    """What releases have told.

    - **layers**: means; **variance**: of the rows of (W, b), elementwise.
    - **shrinkage**: expected inverse variances of the weights, a priori.
    - **rates**: rates of the variances' inverse-gamma law and of their rates' Gamma law.
    - **moments**, **mean**, **edge**: of the start: second moments and mean of the records, and
      the eigenvalue up to which the former are noise.
    - **matrix**: bound on the scores' slope.
    """

    layers: Layers
    variance: Float[Array, "pixels units_and_one"]
    shrinkage: Float[Array, "pixels units"]
    rates: tuple[Float[Array, "pixels units"], Float[Array, "pixels units"]]
    moments: Float[Array, "basis basis"]
    mean: Float[Array, " pixels"]
    edge: Float[Array, ""]
    matrix: Float[Array, "units_and_one units_and_one"]


def codes(layers: Layers, x: Float[Array, " pixels"], steps: int) -> Float[Array, " units"]:
    """Mean-field probabilities of one record's hidden units, after a fixed number of steps.

    Every unit moves half-way to its optimum under the Böhning bound of the likelihood (curvature
    1/4), all at once.
    """
    weights, bias, base = layers
    square = jnp.sum(weights**2, axis=0) / 8

    def once(_: Array, z: Array) -> Array:
        rest = x - jax.nn.sigmoid(weights @ z + bias)
        wanted = jax.nn.sigmoid(base + weights.T @ rest - (1 - 2 * z) * square)
        return z + _DAMPING * (wanted - z)

    return lax.fori_loop(0, steps, once, jnp.full(base.shape, 0.5, weights.dtype))


def principal_components(known: KnownUnits, count: int) -> tuple[Array, Array]:
    """Eigenvalues and eigenvectors of the released second moments, the largest first."""
    values, vectors = jnp.linalg.eigh(known.moments)
    return values[::-1][:count], vectors[:, ::-1][:, :count]


class BeliefSchedule(Schedule):
    """The three phases for one network at known shapes."""

    def __init__(
        self,
        network: Network,
        num_records: int,
        basis: np.ndarray | None,
        settings: BeliefSettings,
        num_steps: int | None,
        private: bool,
    ) -> None:
        self.network, self.num_records, self.settings = network, num_records, settings
        self._basis = basis
        steps = _ROUNDS + 2 if num_steps is None else num_steps
        if steps < 3:
            raise ValueError("num_steps must be at least 3: the start, the matrix, and scores")
        self._size = network.pixels if basis is None else len(basis)
        self._upper = np.triu_indices(self._size)
        self._codes = np.triu_indices(network.units + 1)
        scores = (1 - _START - _MATRIX) / (steps - 2)
        squared = settings.record_norm**2

        def phase(name: str, dim: int, clip: float, weights: tuple[float, ...]) -> Phase:
            return Phase(name, dim, clip if private else math.inf, weights)

        self.phases = (
            phase(
                "second moments",
                len(self._upper[0]) + network.pixels,
                squared * math.sqrt(1 + _MEAN**2),
                (_START,),
            ),
            phase("codes' matrix", len(self._codes[0]), settings.code_clip, (_MATRIX,)),
            phase(
                "scores",
                network.pixels * (network.units + 1),
                settings.score_clip,
                (scores,) * (steps - 2),
            ),
        )

    @property
    def prior(self) -> dict[str, Prior]:
        """Laws of the latents."""
        return self.network.priors

    def start(self, key: Array) -> KnownUnits:
        """Priors alone; the first release replaces them."""
        pixels, units = self.network.pixels, self.network.units
        base = self.prior[self.network.base].params["loc"] if self.network.base else None
        logits = jnp.asarray(self.network.logits if base is None else base, float)
        table = jnp.zeros((pixels, units))
        shrinkage, rates = self._shrinkage(table, table)
        return KnownUnits(
            layers=Layers(table, jnp.zeros(pixels), logits),
            variance=jnp.zeros((pixels, units + 1)),
            shrinkage=shrinkage,
            rates=rates,
            moments=jnp.zeros((self._size, self._size)),
            mean=jnp.zeros(pixels),
            edge=jnp.zeros(()),
            matrix=jnp.zeros((units + 1, units + 1)),
        )

    def statistic(self, phase: int, state: KnownUnits, record: Sequence[Array]) -> Array:
        """Second moments, or zz'/4, or the score, of one record."""
        x = jnp.clip(self.network.outcome(record).astype(float), 0, 1)
        if phase == _START_PHASE:
            y = x if self._basis is None else jnp.asarray(self._basis, x.dtype) @ x
            moments = _packed(jnp.outer(y, y), self._upper)
            return jnp.concatenate([moments, _MEAN * self.settings.record_norm * x])
        z = codes(state.layers, x, self.settings.inner_steps)
        extended = jnp.append(z, 1.0)
        if phase == _MATRIX_PHASE:
            own = jnp.append(z * (1 - z), 0.0)
            return _packed((jnp.outer(extended, extended) + jnp.diag(own)) / 4, self._codes)
        rest = x - jax.nn.sigmoid(state.layers.weights @ z + state.layers.bias)
        return jnp.outer(rest, extended).reshape(-1)

    def advance(
        self, phase: int, state: KnownUnits, released: Array, noise_sd: Array, step: Array
    ) -> KnownUnits:
        """The start's layers, the matrix, or a step of the weights."""
        released, sd = released.astype(state.mean.dtype), noise_sd[0].astype(state.mean.dtype)
        if phase == _START_PHASE:
            return self._started(state, released, sd)
        if phase == _MATRIX_PHASE:
            return self._with_matrix(state, released, sd)
        return self._stepped(state, released)

    def _started(self, state: KnownUnits, released: Array, sd: Array) -> KnownUnits:
        """Weights along the principal components that stand out of the noise."""
        units, count = self.network.units, len(self._upper[0])
        moments = _unpacked(released[:count], self._upper, self._size) / self.num_records
        mean = released[count:] / (_MEAN * self.settings.record_norm * self.num_records)
        edge = sd * math.sqrt(2 * self._size) / self.num_records
        state = state._replace(moments=moments, mean=mean, edge=edge)
        values, vectors = principal_components(state, min(units, self._size))
        if self._basis is not None:
            vectors = jnp.asarray(self._basis, vectors.dtype).T @ vectors
        spread = jnp.sqrt(jnp.maximum(values - (mean @ vectors) ** 2, 0))
        scale = jnp.where(values > edge, spread, 0)
        weights = 2 * _STEEPNESS * vectors * scale
        weights = jnp.pad(weights, ((0, 0), (0, units - weights.shape[1])))
        bias = _STEEPNESS * (mean - 0.5) - weights.sum(axis=1) / 2
        shrinkage, rates = self._shrinkage(weights, jnp.zeros_like(weights))
        layers = state.layers._replace(weights=weights, bias=bias)
        return state._replace(layers=layers, shrinkage=shrinkage, rates=rates)

    def _with_matrix(self, state: KnownUnits, released: Array, sd: Array) -> KnownUnits:
        """The shared bound, floored at the edge of its noise; hidden logits from its last row."""
        size = self.network.units + 1
        matrix = _unpacked(released, self._codes, size)
        on = 4 * matrix[-1, :-1]
        values, vectors = jnp.linalg.eigh(matrix)
        floor = sd * math.sqrt(2 * size)
        matrix = (vectors * jnp.maximum(values, floor)) @ vectors.T
        state = state._replace(matrix=matrix)
        if self.network.base is None:
            return state
        base = self._base(self.prior[self.network.base], on)
        return state._replace(layers=state.layers._replace(base=base))

    def _base(self, prior: Prior, on: Array) -> Array:
        """Posterior mode of the hidden logits, by steps that the bound 1/4 makes safe."""
        loc, precision = (jnp.asarray(prior.params[name]) for name in ("loc", "scale"))
        precision = precision**-2.0
        on = jnp.clip(on, 0, self.num_records)

        def once(_: Array, base: Array) -> Array:
            slope = on - self.num_records * jax.nn.sigmoid(base) - precision * (base - loc)
            return base + slope / (self.num_records / 4 + precision)

        return lax.fori_loop(0, 50, once, loc.astype(on.dtype))

    def _stepped(self, state: KnownUnits, released: Array) -> KnownUnits:
        """One step of every pixel's weights to the mode of its bound, then the hyper-posterior."""
        pixels, units = self.network.pixels, self.network.units
        scores = released.reshape(pixels, units + 1)
        layers = state.layers
        now = jnp.concatenate([layers.weights, layers.bias[:, None]], axis=1)
        loc, precision = self._prior_rows(state)

        def pixel(score: Array, at: Array, loc: Array, precision: Array) -> tuple[Array, Array]:
            inverse = jnp.linalg.inv(state.matrix + jnp.diag(precision))
            return at + inverse @ (score - precision * (at - loc)), jnp.diagonal(inverse)

        rows, variance = jax.vmap(pixel)(scores, now, loc, precision)
        weights, bias = rows[:, :-1], rows[:, -1]
        shrinkage, rates = self._shrinkage(weights, variance[:, :-1])
        return state._replace(
            layers=layers._replace(weights=weights, bias=bias),
            variance=variance,
            shrinkage=shrinkage,
            rates=rates,
        )

    def _prior_rows(self, state: KnownUnits) -> tuple[Array, Array]:
        """Prior means and precisions of (W, b), pixel by pixel."""
        law, bias = self.prior[self.network.weights], self.prior[self.network.bias].params
        loc = self._table(law.params["loc"])
        both = (loc, bias["loc"]), (state.shrinkage, bias["scale"] ** -2.0)
        first, second = (jnp.concatenate([a, jnp.asarray(b)[:, None]], 1) for a, b in both)
        return first, second

    def _table(self, values: Any) -> Array:
        table = jnp.asarray(values, float)
        return table.T if self.network.turned else table

    def _shrinkage(self, weights: Array, variance: Array) -> tuple[Array, tuple[Array, Array]]:
        """Expected inverse prior variances, and the rates of the hyper-posterior behind them.

        A variance t ~ InverseGamma(b, λ) with λ ~ Gamma(a, r) is t = λ / Gamma(b): the weight is
        three-parameter beta normal, and both conditionals are conjugate.
        """
        network, prior = self.network, self.prior
        law = prior[network.weights]
        ones = jnp.ones_like(weights)
        if network.spread is None:
            return ones * self._table(law.params["scale"]) ** -2.0, (ones, ones)
        ratio = self._table(law.params["ratio"])
        shape = self._table(prior[network.spread].params["concentration"])
        square = ((weights - self._table(law.params["loc"])) ** 2 + variance) / ratio / 2
        if network.spread_rate is None:
            rate = self._table(prior[network.spread].params["rate"]) + square
            return (shape + 0.5) / rate / ratio, (rate, ones)
        above = prior[network.spread_rate].params
        a, r = (self._table(above[name]) for name in ("concentration", "rate"))

        def once(_: Array, rates: tuple[Array, Array]) -> tuple[Array, Array]:
            rate = (a + shape) / rates[1] + square
            return rate, r + (shape + 0.5) / rate

        rates = lax.fori_loop(0, _HYPER_ROUNDS, once, (ones, (r + 1) * ones))
        return (shape + 0.5) / rates[0] / ratio, rates

    def params(self, state: KnownUnits) -> dict[str, Array]:
        """Means and standard deviations of W, b and c, and the hyper-posterior."""
        network, layers = self.network, state.layers
        sd = jnp.sqrt(state.variance)

        def table(values: Array) -> Array:
            return values.T if network.turned else values

        found = {
            f"{network.weights}_loc": table(layers.weights),
            f"{network.weights}_scale": table(sd[:, :-1]),
            f"{network.bias}_loc": layers.bias,
            f"{network.bias}_scale": sd[:, -1],
        }
        if network.base is not None:
            precision = jnp.asarray(self.prior[network.base].params["scale"]) ** -2.0
            found[f"{network.base}_loc"] = layers.base
            found[f"{network.base}_scale"] = (self.num_records / 4 + precision) ** -0.5
        if network.spread is not None:
            found[f"{network.spread}_rate"] = table(state.rates[0])
        if network.spread_rate is not None:
            found[f"{network.spread_rate}_rate"] = table(state.rates[1])
        return found


def _packed(matrix: Array, upper: tuple[np.ndarray, np.ndarray]) -> Array:
    """Upper triangle with off-diagonals times √2: the same norm with half the numbers."""
    weights = np.where(upper[0] == upper[1], 1.0, math.sqrt(2.0)).astype(np.float32)
    return matrix[upper] * weights


def _unpacked(values: Array, upper: tuple[np.ndarray, np.ndarray], size: int) -> Array:
    weights = np.where(upper[0] == upper[1], 1.0, math.sqrt(0.5))
    half = jnp.zeros((size, size), values.dtype).at[upper].set(values * weights)
    return half + jnp.triu(half, 1).T


def checked_basis(basis: ArrayLike | None, pixels: int) -> np.ndarray | None:
    """Orthonormal public rows for the start's second moments, or a refusal."""
    if basis is None:
        return None
    rows = np.asarray(basis, np.float32)
    if rows.ndim != 2 or rows.shape[1] != pixels:
        raise ValueError(f"basis must have shape (rows, {pixels}), got {rows.shape}")
    if not np.allclose(rows @ rows.T, np.eye(len(rows)), atol=1e-4):
        raise ValueError("basis must have orthonormal rows: divide by their norms, or take a QR")
    return rows
