"""A document on its own: its words in order, and its part of each topic."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import digamma
from jaxtyping import Array, Float, Int

from numpyro_dp.svi.guides.lda.recognise import Corpus

_TINY = 1e-30


class Mixture(NamedTuple):
    """What a document is made of.

    - **concentration**: of the Dirichlet posterior of its topics.
    - **responsibility**: of each topic for each of its words; rows add to one, or to zero where
      there is no word.
    """

    concentration: Float[Array, " topics"]
    responsibility: Float[Array, "words topics"]


def in_order(document: Corpus, num_words: int, most: int) -> Corpus:
    """Distinct words in rising order with their counts, the ``most`` frequent of them.

    A document with a negative, infinite or undefined count comes out empty. Word numbers outside
    the vocabulary count as padding, which is ``num_words`` and stands at the end.
    """
    ids, counts = document
    usable = jnp.all(jnp.isfinite(counts) & (counts >= 0))
    there = usable & (ids >= 0) & (ids < num_words) & (counts > 0)
    ids = jnp.where(there, ids, num_words).astype(jnp.int32)
    ids, counts = lax.sort_key_val(ids, jnp.where(there, counts, 0))
    fresh = jnp.concatenate([jnp.ones(1, bool), ids[1:] != ids[:-1]])
    place = jnp.cumsum(fresh) - 1
    counts = jnp.zeros_like(counts).at[place].add(counts)
    ids = jnp.full_like(ids, num_words).at[place].set(ids)
    if len(ids) > most:
        counts, kept = lax.top_k(counts, most)
        ids, counts = lax.sort_key_val(ids[kept], counts)
    return Corpus(ids, counts)


def word_weights(concentration: Float[Array, "topics words"]) -> Float[Array, "words topics"]:
    """``exp(E[log topics])``, up to a factor for each word, which no responsibility feels."""
    log = digamma(concentration) - digamma(concentration.sum(1, keepdims=True))
    return jnp.exp(log - log.max(0)).T


def mixture(
    document: Corpus,
    weights: Float[Array, "words topics"],
    prior: Float[Array, " topics"],
    num_steps: int,
) -> Mixture:
    """Coordinate ascent on one document, a fixed number of steps from an even start.

    :param document: in order.
    :param weights: of topics for words, as :func:`word_weights` gives them.
    :param prior: concentration of the document's Dirichlet prior.
    """
    ids, counts = document
    own = weights.at[ids].get(mode="fill", fill_value=0.0)

    def step(_: Int[Array, ""], carry: tuple[Array, Array]) -> tuple[Array, Array]:
        share, _ = carry
        # Where there is no word, an even denominator: plain SVI differentiates this.
        mass = jnp.where(counts > 0, own @ share, 1)
        ratio = counts / jnp.maximum(mass, _TINY)
        concentration = prior + share * (ratio @ own)
        # Up to a factor, which the next ratio takes out.
        return jnp.exp(digamma(concentration)), concentration

    even = jnp.full(prior.shape, 1 / len(prior), own.dtype)
    share, concentration = lax.fori_loop(0, num_steps, step, (even, prior.astype(own.dtype)))
    joint = own * share
    return Mixture(concentration, joint / jnp.maximum(joint.sum(1, keepdims=True), _TINY))


def mixtures(
    corpus: Corpus,
    weights: Float[Array, "words topics"],
    prior: Float[Array, " topics"],
    num_steps: int,
) -> Float[Array, "documents topics"]:
    """Concentrations of many (public) documents."""

    def one(ids: Array, counts: Array) -> Array:
        document = in_order(Corpus(ids, counts), weights.shape[0], len(ids))
        return mixture(document, weights, prior, num_steps).concentration

    return jax.vmap(one)(*corpus)
