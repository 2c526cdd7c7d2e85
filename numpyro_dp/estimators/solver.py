"""Nesterov's method with a number of steps fixed in advance, and what rounding does to it.

**Theorem** (the textbook's potential argument, carried through with gradients that are off by at
most e). Let J be m-strongly convex and M-smooth, α = √(m/M), and for k = 0, 1, … from y = z = x₀::

    x  = (y + αz)/(1 + α)
    y' = x − (∇J(x) + e₁)/M                  ‖e₁‖ ≤ e
    z' = (1 − α)z + αx − (α/m)(∇J(x) + e₂)   ‖e₂‖ ≤ e

Then Φ = J(y) − J* + (m/2)‖z − θ*‖² obeys Φ' ≤ (1 − ¾α)Φ + αe²(2 + α)/m, so that after T steps
‖∇J(y)‖ ≤ √(2MΦ_T) ≤ √(2M)·[(1 − ¾α)^{T/2}·√Φ₀ + 2e/√m].

*Proof.* Smoothness gives J(y') ≤ J(x) − ‖∇J(x)‖²/2M + e²/2M. With v = z' − θ* for e₂ = 0,
(m/2)‖z' − θ*‖² ≤ (m/2)‖v‖² + αe‖v‖ + e²/2M. Without errors Φ' ≤ (1 − α)Φ (Nesterov, *Lectures on
Convex Optimization* 2018, section 2.2; Bansal and Gupta, *Potential-Function Proofs for Gradient
Methods* 2019, section 5.2), and since J(x) − ‖∇J(x)‖²/2M ≥ J*, also (m/2)‖v‖² ≤ (1 − α)Φ. Hence
Φ' ≤ (1 − α)Φ + αe√(2Φ/m) + e²/M; the middle term is at most ¼αΦ + 2αe²/m, and e²/M = α²e²/m. The
fixed point of the recursion is at most (2 + α)e²/(¾m) ≤ 4e²/m. ∎

Both errors hold everything the machine does: rounding of the predictor, of the slope, of the sum,
and of the three updates. All of it is bounded before data is seen, so the count is a public number.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from numpyro_dp._arrays import host_device
from numpyro_dp.estimators.problem import Problem
from numpyro_dp.families.losses import Loss, Row

_UNIT = 2.0**-53
_BLOCK = 256
# Roundings of one slope, sigmoid and exponential included: XLA's are right to a few units in the
# last place.
_SLOPE_ROUNDINGS = 64
_UPDATE_ROUNDINGS = 24


class Design(NamedTuple):
    """The rows of all records in float64, in blocks: shapes (blocks, rows, …), zeros as padding.

    NumPy's on the way in, JAX's inside; the fields are those of
    :class:`~numpyro_dp.families.glm.Row`.
    """

    x: Any
    offset: Any
    outcome: Any
    trials: Any
    kept: Any


def _roundings(count: int) -> float:
    """The relative error of ``count`` roundings in any order: γ_n of Higham (2002), Lemma 3.1."""
    return count * _UNIT / (1 - count * _UNIT)


def _gradient_error(problem: Problem) -> float:
    """e: how far a computed gradient and update can be off, in norm, on the solver's way."""
    n, dim = problem.num_records, problem.dim
    # Φ, which bounds the distance of every iterate from θ*, stays below twice its first value
    # unless errors are so large that nothing is claimed at all (the last lines).
    way = problem.distance + 2 * math.sqrt(_potential(problem) / problem.strong_convexity)
    largest = float(np.linalg.norm(problem.start)) + way
    predictor = (
        _roundings(dim + 2) * problem.row_norm * largest + _UNIT * 2 * problem.largest_offset
    )
    slopes = n * problem.row_norm * problem.loss.smoothness * predictor
    slopes += n * problem.lipschitz * _roundings(_SLOPE_ROUNDINGS)
    sums = n * problem.lipschitz * _roundings(_BLOCK + -(-n // _BLOCK) + 2)
    prior = math.sqrt(dim) * _roundings(dim + 4) * problem.prior_smoothness * way
    updates = _UPDATE_ROUNDINGS * _UNIT * (problem.smoothness * (largest + way) + problem.tilt)
    error = (slopes + sums + prior + updates) * (1 + 1e-6)
    steady = 4 * error**2 / problem.strong_convexity <= _potential(problem)
    return error if steady else math.inf


def _potential(problem: Problem) -> float:
    """Φ₀ at y = z = start: J(start) − J* + (m/2)‖start − θ*‖² ≤ 2(J(start) − J*)."""
    return 2 * problem.excess


def arithmetic_tolerance(problem: Problem) -> float:
    """The gradient norm that rounding alone may leave, however many steps are taken."""
    return math.sqrt(8 * problem.condition) * _gradient_error(problem)


def gradient_norm_after(problem: Problem, iterations: int) -> float:
    """γ: bound on the gradient norm after ``iterations`` steps, for every data set, as computed."""
    contraction = 1 - 0.75 / math.sqrt(problem.condition)
    left = math.sqrt(2 * problem.smoothness * _potential(problem)) * contraction ** (iterations / 2)
    return (left + arithmetic_tolerance(problem)) * (1 + 1e-9)


def num_iterations(problem: Problem, tolerance: float) -> int:
    """The number of steps after which the gradient norm is at most ``tolerance``.

    :raises ValueError: when rounding in float64 alone could leave more than that.
    """
    room = tolerance * (1 - 1e-6) - arithmetic_tolerance(problem)
    if room <= 0:
        raise ValueError(
            f"gradient_tolerance={tolerance:.3g} is below what float64 can guarantee here: ask "
            f"for at least {2 * arithmetic_tolerance(problem):.3g}, or use a larger "
            "regularisation or a smaller row_norm"
        )
    first = math.sqrt(2 * problem.smoothness * _potential(problem))
    if first <= room:
        return 0
    contraction = -math.log1p(-0.75 / math.sqrt(problem.condition))
    return math.ceil(2 * math.log(first / room) / contraction)


def design(problem: Problem, rows: Row) -> Design:
    """Bring float32 rows, exactly, to float64, in blocks whose sums lose few digits."""
    x, offset, outcome, trials = (np.asarray(column, np.float64) for column in rows[:4])
    if problem.loss.family == "normal":
        # Only the difference counts, and it may be of any size.
        outcome, offset = outcome - offset, np.zeros_like(offset)
    columns = [x, np.clip(offset, -problem.largest_offset, problem.largest_offset), outcome, trials]
    kept = np.asarray(rows.kept)
    blocks = max(1, -(-len(kept) // _BLOCK))

    def blocked(column: np.ndarray) -> np.ndarray:
        padding = [(0, blocks * _BLOCK - len(column))] + [(0, 0)] * (column.ndim - 1)
        return np.pad(column, padding).reshape(blocks, _BLOCK, *column.shape[1:])

    return Design(*map(blocked, columns), kept=blocked(kept))


def minimise(
    problem: Problem, design: Design, tilt: Float[np.ndarray, "*runs dim"], iterations: int
) -> Float[np.ndarray, "*runs dim"]:
    """The point after ``iterations`` steps of float64 arithmetic on the host's processor.

    :param problem: the constants.
    :param design: rows of norm at most ``problem.row_norm``.
    :param tilt: b, of norm at most ``problem.tilt``; rows of it are solved for one by one.
    :param iterations: the count; it must not be computed from the data.

    **Privacy.** The point is secret until noise is added to it. Nothing else leaves this function,
    and nothing here stops or fails on account of a value.
    """
    with jax.enable_x64(True), jax.default_device(host_device()):
        solve = partial(
            _descend,
            problem.loss,
            Design(*map(jnp.asarray, design)),
            jnp.asarray(problem.precision),
            jnp.asarray(problem.start),
            least=problem.strong_convexity,
            most=problem.smoothness,
            iterations=iterations,
        )
        if tilt.ndim == 1:
            return np.asarray(solve(jnp.asarray(tilt)))
        return np.asarray(lax.map(solve, jnp.asarray(tilt), batch_size=64))


@partial(jax.jit, static_argnums=0)
def _descend(
    loss: Loss,
    design: Design,
    precision: Float[Array, "dim dim"],
    start: Float[Array, " dim"],
    tilt: Float[Array, " dim"],
    least: Float[Array, ""],
    most: Float[Array, ""],
    iterations: Array,
) -> Float[Array, " dim"]:
    alpha = jnp.sqrt(least / most)

    def gradient(theta: Float[Array, " dim"]) -> Float[Array, " dim"]:
        return objective_gradient(loss, design, precision, start, theta) + tilt

    def step(_: Array, points: tuple[Array, Array]) -> tuple[Array, Array]:
        y, z = points
        x = (y + alpha * z) / (1 + alpha)
        slope = gradient(x)
        return x - slope / most, (1 - alpha) * z + alpha * x - (alpha / least) * slope

    return lax.fori_loop(0, iterations, step, (start, start))[0]


def objective_gradient(
    loss: Loss,
    design: Design,
    precision: Float[Array, "dim dim"],
    start: Float[Array, " dim"],
    theta: Float[Array, " dim"],
) -> Float[Array, " dim"]:
    """Gradient of the objective without its linear term, in float64 within a program."""
    slope = loss.slope(jnp.einsum("brd,d->br", design.x, theta) + design.offset, Row(*design))
    # The compiler must not merge both sums into one long one, which rounds more often.
    sums = lax.optimization_barrier(jnp.einsum("brd,br->bd", design.x, slope)).sum(0)
    return sums + precision @ (theta - start)
