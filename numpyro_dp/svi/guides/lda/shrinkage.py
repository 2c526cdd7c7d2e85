"""From noisy counts of words in topics to counts: post-processing with the known noise."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

# Which part of a word's occurrences may belong to one topic.
_SHARES = np.concatenate([[0.0], np.geomspace(1e-4, 1.0, 40)]).astype(np.float32)
# Frequencies of words that are told apart, from this part of the noise upwards.
_FREQUENCIES, _LEAST = 60, 0.05
_ITERATIONS = 30

Table = Float[Array, "topics words"]


def _zero(noisy: Table, noise_sd: Float[Array, ""], per_word: Float[Array, " words"]) -> Table:
    """Cut at zero."""
    return jnp.maximum(noisy, 0)


def _wiener(noisy: Table, noise_sd: Float[Array, ""], per_word: Float[Array, " words"]) -> Table:
    """Cut at zero, each entry shrunk by its own estimate of signal over signal and noise."""
    square = jnp.square(noisy)
    kept = jnp.maximum(square - noise_sd**2, 0) / jnp.maximum(square, 1e-12)
    return jnp.maximum(noisy, 0) * kept


def _posterior_mean(
    noisy: Table, noise_sd: Float[Array, ""], per_word: Float[Array, " words"]
) -> Table:
    """Posterior mean under a prior on each topic's share of a word, itself fitted to the table.

    A topic's prior is the discrete law on shares that makes its noisy row most likely (EM). A rare
    word, lost in noise, so gets the topic's mean share; a frequent one its own.
    """
    shares = jnp.asarray(_SHARES)
    sd = jnp.maximum(noise_sd, 1e-6)
    miss = (noisy[..., None] - per_word[:, None] * shares) / sd
    mean = (_posterior(miss) * shares).sum(-1) * per_word
    return jnp.where(noise_sd > 0, mean, jnp.maximum(noisy, 0))


def _posterior(
    miss: Float[Array, "rows words values"],
) -> Float[Array, "rows words values"]:
    """Weights of candidate values, under the prior that makes a row of misses most likely.

    :param miss: of each observation by each candidate, in standard deviations of the noise.
    """
    log_likelihood = -0.5 * jnp.square(miss)
    likelihood = jnp.exp(log_likelihood - log_likelihood.max(-1, keepdims=True))

    def posterior(prior: Array) -> Array:
        joint = likelihood * prior[:, None]
        return joint / joint.sum(-1, keepdims=True)

    rows, _, values = miss.shape
    start = jnp.full((rows, values), 1 / values, miss.dtype)
    return posterior(lax.fori_loop(0, _ITERATIONS, lambda _, p: posterior(p).mean(1), start))


def frequencies(
    noisy: Float[Array, " words"], noise_sd: Float[Array, ""]
) -> Float[Array, " words"]:
    """Word frequencies, adding to one, from noisy ones: posterior means under a fitted prior.

    :param noisy: unbiased estimates of them.
    :param noise_sd: standard deviation of their noise; 0 where privacy is off.
    """
    sd = jnp.maximum(noise_sd, 1e-12)
    ends = jnp.log(_LEAST * sd), jnp.log(jnp.maximum(noisy.max(), sd))
    values = jnp.exp(jnp.linspace(*ends, _FREQUENCIES))
    mean = (_posterior(((noisy[:, None] - values) / sd)[None])[0] * values).sum(-1)
    kept = jnp.where(noise_sd > 0, mean, jnp.maximum(noisy, 0))
    return kept / jnp.maximum(kept.sum(), 1e-12)


SHRINKAGES = {"posterior_mean": _posterior_mean, "wiener": _wiener, "zero": _zero}


def shared_out(
    kind: str,
    noisy: Table,
    noise_sd: Float[Array, ""],
    unigram: Float[Array, " words"],
) -> Table:
    """Nonnegative counts whose sum over topics follows the released word frequencies.

    :param kind: a key of ``SHRINKAGES``.
    :param noisy: released counts.
    :param noise_sd: standard deviation of their noise; 0 where privacy is off.
    :param unigram: frequencies of the words, adding to one.
    """
    total = jnp.maximum(noisy.sum(), 1.0)
    per_word = total * unigram
    kept = SHRINKAGES[kind](noisy, noise_sd, per_word)
    column = kept.sum(0)
    even = jnp.full_like(kept, 1 / kept.shape[0])
    return jnp.where(column > 0, kept / jnp.maximum(column, 1e-12), even) * per_word
