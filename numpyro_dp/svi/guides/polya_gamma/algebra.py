"""The algebra of private logistic regression: packed matrices, clipped scores, noisy spectra."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array, Float

from numpyro_dp.families.losses import Loss, Row
from numpyro_dp.mechanisms.centred import centre

# Outcomes of a count that are listed one by one; more are represented by as many of them.
_LISTED = 24
_TINY = 1e-12


def packed_size(dim: int) -> int:
    """Numbers in a symmetric matrix."""
    return dim * (dim + 1) // 2


def packed(x: Float[Array, " dim"]) -> Float[Array, " packed"]:
    """Upper triangle of ``xx'``, off-diagonals times √2: its norm is ``‖x‖²``."""
    rows, columns = np.triu_indices(x.shape[0])
    weights = np.where(rows == columns, 1.0, math.sqrt(2.0))
    return x[rows] * x[columns] * jnp.asarray(weights, x.dtype)


def unpacked(values: Float[Array, " packed"], dim: int) -> Float[Array, "dim dim"]:
    """The symmetric matrix of a packed triangle."""
    rows, columns = np.triu_indices(dim)
    weights = np.where(rows == columns, 1.0, math.sqrt(0.5))
    entries = values * jnp.asarray(weights, values.dtype)
    upper = jnp.zeros((dim, dim), values.dtype).at[rows, columns].set(entries)
    return upper + upper.T - jnp.diag(jnp.diagonal(upper))


def edge(noise_sd: Float[Array, ""], dim: int) -> Float[Array, ""]:
    """Largest eigenvalue of the noise alone in a matrix released packed."""
    return noise_sd * math.sqrt(2 * dim)


def spectrum(
    matrix: Float[Array, "dim dim"], floor: Float[Array, ""]
) -> tuple[Float[Array, " dim"], Float[Array, "dim dim"]]:
    """Eigenvalues, none below ``floor``, and eigenvectors.

    Below the edge of the noise an eigenvalue says nothing: kept as it is, it would make steps of
    any length (floored at 0, nothing is learnt at all).
    """
    values, vectors = jnp.linalg.eigh(matrix)
    return jnp.maximum(values, floor), vectors


def expected_weight(attempts: Float[Array, ""], tilt: Float[Array, ""]) -> Float[Array, ""]:
    """Mean of a Pólya–Gamma variable PG(attempts, tilt): at most a quarter of ``attempts``."""
    safe = jnp.maximum(jnp.abs(tilt), 1e-4)
    ratio = jnp.where(jnp.abs(tilt) < 1e-3, 0.25 - tilt**2 / 48, jnp.tanh(safe / 2) / (2 * safe))
    return attempts * ratio


class Clipped(NamedTuple):
    """One record's clipped residual, and how fast its mean moves with the predictor."""

    residual: Float[Array, ""]
    slope: Float[Array, ""]


def clipped_residual(
    loss: Loss, row: Row, predictor: Float[Array, ""], most: Float[Array, ""]
) -> Clipped:
    """The residual, of absolute value at most ``most`` and of mean zero under the model.

    :param most: bound; the score's norm over that of the record's inputs.

    **Privacy.** A function of one record and of released values.
    """
    residual = -loss.slope(predictor, row)
    if loss.family == "bernoulli":
        # The two outcomes' residuals have opposite signs, so one factor keeps the mean at zero.
        p = jax.nn.sigmoid(predictor)
        factor = jnp.minimum(1, most / (loss.weight * jnp.maximum(p, 1 - p)))
        slope = jnp.where(row.kept, loss.weight * p * (1 - p), 0)
        return Clipped(residual * factor, slope * factor)
    scores, weights = _outcomes(loss, row, predictor)
    # Clipping below rounding would divide zero by zero.
    limit = jnp.maximum(most, _TINY)
    shift = centre(scores[:, None], weights, limit)[0]
    kept = jnp.clip(scores - shift, -limit, limit)
    own = jnp.where(row.kept, jnp.clip(residual - shift, -limit, limit), 0)
    return Clipped(own, jnp.where(row.kept, jnp.sum(weights * kept * scores), 0))


def _outcomes(
    loss: Loss, row: Row, predictor: Float[Array, ""]
) -> tuple[Float[Array, " outcomes"], Float[Array, " outcomes"]]:
    """Residuals that the model thinks possible, and their probabilities."""
    negative = loss.family == "negative_binomial"
    most = loss.max_count if negative else loss.max_trials
    count = min(_LISTED, math.ceil(most)) + 1
    y = jnp.asarray(np.unique(np.round(np.linspace(0, most, count))), predictor.dtype)
    n = row.trials
    every = Row(row.x, row.offset, y, n, jnp.asarray(True))
    ways = (
        gammaln(y + n) - gammaln(y + 1)
        if negative
        else -gammaln(y + 1) - gammaln(jnp.maximum(n - y, 0) + 1)
    )
    log_p = ways - loss.value(predictor, every) / loss.weight
    possible = jnp.asarray(True) if negative else y <= n
    return -loss.slope(predictor, every), jax.nn.softmax(jnp.where(possible, log_p, -jnp.inf))
