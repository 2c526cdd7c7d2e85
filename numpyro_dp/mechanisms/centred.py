"""The model-centred clip: what a clipped score is off zero by, for one record alone.

Clipping a score s(y) to a small norm C biases its sum, because the clipped score no longer has
mean zero under the model. Shifted by the c that solves E[clip(s(y') − c)] = 0 over the outcomes
y' that the model thinks possible for this record's own inputs, it has mean zero for every C.

Where the outcomes are drawn, the record's own score belongs into the set: c is an estimate of
location from a few points, whose own bias would add up over records. If the model is right, own and
drawn scores are exchangeable, so each clipped score has the mean of them all, and that is zero.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

_STEPS = 30
_TINY = 1e-12
_FEW = 4


def centre(
    scores: Float[Array, "outcomes dim"],
    weights: Float[Array, " outcomes"],
    clip_norm: float | Float[Array, ""],
) -> Float[Array, " dim"]:
    """The shift c at which clipped scores have mean zero under ``weights``.

    :param scores: the record's vector for each outcome that it might have had.
    :param weights: their probabilities at the record's own inputs.
    :param clip_norm: the norm that ``score - c`` is going to be clipped to.
    :returns: c, after a fixed number of reweighting steps.

    **Privacy.** A function of one record and released values. The caller clips ``score - c``, so
    the sensitivity is that of a plain clip, whatever c is.

    **References.** *How a step is released* (docs/explanation/how-a-step-is-released.md). The
    equation is that of Huber's estimate of location (1964), solved by iterative reweighting.

    **Example**::

        >>> import jax.numpy as jnp
        >>> scores, weights = jnp.array([[-0.1, 0.0], [0.9, 0.0]]), jnp.array([0.9, 0.1])
        >>> [round(float(x), 3) for x in centre(scores, weights, clip_norm=0.18)]
        [-0.08, 0.0]
    """
    # All shifts are mixtures of the scores, so their inner products are all that is needed.
    inner = jnp.matmul(scores, scores.T, precision=lax.Precision.HIGHEST)
    solve = _mixture_of_few if len(scores) <= _FEW else _mixture_of_many
    return solve(inner, weights, clip_norm) @ scores


def _mixture_of_many(inner: Array, weights: Array, clip_norm: Any) -> Float[Array, " outcomes"]:
    own = jnp.diagonal(inner)

    def step(_: Array, mixture: Float[Array, " outcomes"]) -> Float[Array, " outcomes"]:
        # Written out: batched over records, matrix products this small are slow.
        along = jnp.sum(inner * mixture, axis=1)
        squared = jnp.maximum(own - 2 * along + jnp.sum(mixture * along), _TINY)
        kept = weights * jnp.minimum(1, clip_norm * lax.rsqrt(squared))
        return kept / jnp.maximum(jnp.sum(kept), _TINY)

    return lax.fori_loop(0, _STEPS, step, weights)


def _mixture_of_few(inner: Array, weights: Array, clip_norm: Any) -> Float[Array, " outcomes"]:
    """The same by single numbers: batched over records, axes of two or three are slow."""
    few = range(len(weights))

    def step(_: Array, mixture: tuple[Array, ...]) -> tuple[Array, ...]:
        along = [sum(inner[i, j] * mixture[j] for j in few) for i in few]
        middle = sum(mixture[i] * along[i] for i in few)
        gaps = [jnp.maximum(inner[i, i] - 2 * along[i] + middle, _TINY) for i in few]
        kept = [weights[i] * jnp.minimum(1, clip_norm * lax.rsqrt(gaps[i])) for i in few]
        total = jnp.maximum(sum(kept), _TINY)
        return tuple(each / total for each in kept)

    return jnp.stack(lax.fori_loop(0, _STEPS, step, tuple(weights[i] for i in few)))


def centred_clip(
    score: Float[Array, " dim"],
    scores: Float[Array, "outcomes dim"],
    weights: Float[Array, " outcomes"],
    clip_norm: float | Float[Array, ""],
) -> Float[Array, " dim"]:
    """A record's score, shifted by :func:`centre` and clipped.

    What the equation for the shift still lacks after a fixed number of steps is taken off all
    clipped scores alike, so that their mean under ``weights`` is zero but for rounding.

    :param score: the record's own vector.
    :param scores: the record's vector for each outcome that it might have had; the own one among
        them where they are drawn.
    :param weights: their probabilities at the record's own inputs.
    :param clip_norm: largest norm of the result.
    :returns: A vector of norm ``clip_norm`` at most.

    **Privacy.** A function of one record and released values, of norm ``clip_norm`` at most: the
    sensitivity is that of a plain clip.

    **References.** *How a step is released*.

    **Example**::

        >>> import jax.numpy as jnp
        >>> scores, weights = jnp.array([[-0.1], [0.9]]), jnp.array([0.9, 0.1])
        >>> both = [centred_clip(score, scores, weights, 0.18) for score in scores]
        >>> [round(float(x[0]), 3) for x in both]
        [-0.02, 0.18]
    """
    shift = centre(scores, weights, clip_norm)
    left = weights @ jax.vmap(lambda each: _clip(each - shift, clip_norm))(scores)
    clipped = _clip(score - shift, clip_norm) - left
    # Divided so for the clip norm of a run without privacy, which is infinite.
    return clipped / (1 + jnp.linalg.norm(left) / clip_norm)


def _clip(vector: Float[Array, " dim"], norm: float | Float[Array, ""]) -> Float[Array, " dim"]:
    return vector * jnp.minimum(1, norm * lax.rsqrt(jnp.maximum(vector @ vector, _TINY)))
