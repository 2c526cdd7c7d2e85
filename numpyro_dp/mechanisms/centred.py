"""The model-centred clip: what a clipped score is off zero by, for one record alone.

Clipping a score s(y) to a small norm C biases its sum, because the clipped score no longer has
mean zero under the model. Shifted by the c that solves E[clip(s(y') − c)] = 0 over the outcomes
y' that the model thinks possible for this record's own inputs, it has mean zero for every C.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

__all__ = ["centre"]

_STEPS = 30
_TINY = 1e-12


def centre(
    scores: Float[Array, "outcomes dim"],
    weights: Float[Array, " outcomes"],
    clip_norm: float | Float[Array, ""],
) -> Float[Array, " dim"]:
    """The shift c at which clipped scores have mean zero under ``weights``.

    Args:
        scores: the record's vector for each outcome that it might have had.
        weights: their probabilities at the record's own inputs.
        clip_norm: the norm that ``score - c`` is going to be clipped to.

    Returns:
        c, after a fixed number of reweighting steps.

    Privacy:
        A function of one record and released values. The caller clips ``score - c``, so the
        sensitivity is that of a plain clip, whatever c is.

    References:
        privacy.md section 2. The equation is that of Huber's estimate of location (1964), solved
        by iterative reweighting.

    Example:
        >>> import jax.numpy as jnp
        >>> scores, weights = jnp.array([[-0.1, 0.0], [0.9, 0.0]]), jnp.array([0.9, 0.1])
        >>> [round(float(x), 3) for x in centre(scores, weights, clip_norm=0.18)]
        [-0.08, 0.0]
    """
    # All shifts are mixtures of the scores, so their inner products are all that is needed.
    inner = jnp.matmul(scores, scores.T, precision=lax.Precision.HIGHEST)
    own = jnp.diagonal(inner)

    def step(_: Array, mixture: Float[Array, " outcomes"]) -> Float[Array, " outcomes"]:
        # Written out: batched over records, matrix products this small are slow.
        along = jnp.sum(inner * mixture, axis=1)
        squared = jnp.maximum(own - 2 * along + jnp.sum(mixture * along), _TINY)
        kept = weights * jnp.minimum(1, clip_norm * lax.rsqrt(squared))
        return kept / jnp.maximum(jnp.sum(kept), _TINY)

    return lax.fori_loop(0, _STEPS, step, weights) @ scores
