"""What a topic model says of itself: its sites, its priors, and which words a document holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Float, Int
from numpyro import handlers
from numpyro.distributions.discrete import (
    CategoricalLogits,
    CategoricalProbs,
    MultinomialLogits,
    MultinomialProbs,
)
from numpyro.infer import init_to_uniform

from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.families.independence import require_independence
from numpyro_dp.families.sites import record_sites
from numpyro_dp.model.guided.model import Outline
from numpyro_dp.model.jaxprs import Pruned, prune, trace_program
from numpyro_dp.model.messages import explained
from numpyro_dp.model.names import quoted
from numpyro_dp.model.plates import peeled
from numpyro_dp.model.programs import require_no_closure, require_one_record
from numpyro_dp.model.structure import Structure, read_structure

_FITS = (
    "LDAGuide fits `topics = sample(…, Dirichlet(eta))` of shape (topics, words), a `theta = "
    "sample(…, Dirichlet(alpha))` in the plate of the documents, and words with "
    "`Multinomial(total, probs=theta @ topics)` or `Categorical(probs=theta @ topics)` of each "
    "word; for other models use DPSVI"
)
_TOLERANCE = 1e-3


class Corpus(NamedTuple):
    """Words of documents, one a row.

    - **ids**: numbers of words; of any order, repeated, or outside the vocabulary for none.
    - **counts**: how often each stands there.
    """

    ids: Int[Array, "documents words"]
    counts: Float[Array, "documents words"]


@dataclass(frozen=True, eq=False)
class TopicModel:
    """A model that was recognised: names of its sites, priors, and how to read a document.

    :param topics: the global site, of shape (K, V).
    :param theta: the documents' own site.
    :param words: the observed site.
    :param topics_prior: concentration of the topics' prior, shape (K, V).
    :param theta_prior: concentration of a document's prior, shape (K,).
    :param width: numbers in a document: places for tokens, or words in the vocabulary.
    :param reader: from one record's arrays to its words, judged like a record's term.
    """

    model: Callable[..., Any]
    found: Outline
    topics: str
    theta: str
    words: str
    topics_prior: np.ndarray
    theta_prior: np.ndarray
    width: int
    reader: Pruned

    @property
    def num_topics(self) -> int:
        """K."""
        return self.topics_prior.shape[0]

    @property
    def num_words(self) -> int:
        """V, the size of the vocabulary."""
        return self.topics_prior.shape[1]

    def document(self, record: Sequence[Array]) -> Corpus:
        """The words of one record, a function of that record alone."""
        ids, counts = self.reader(record)
        return Corpus(ids.reshape(-1), counts.reshape(-1))


def read_topic_model(model: Callable[..., Any], found: Outline) -> TopicModel:
    """Recognise latent Dirichlet allocation on made-up records; no value of a record is used.

    :raises UnsupportedModelError: naming the site that does not fit, and what would.
    """
    structure = read_structure(model, found.layout, init_to_uniform())
    topics, theta, words = _names(structure, found.plate)
    rows = [jnp.ones((1, *leaf.shape[1:]), leaf.dtype) for leaf in found.layout.arrays]
    # Under a caller's trace these are constants all the same.
    with explained(found.plate), jax.ensure_compile_time_eval():
        read = _read(_sites_of(model, found, rows), topics, theta, words)
    reader = _reader(model, found, (topics, theta, words))
    require_independence(found, words, lambda rows: words_of(_sites_of(model, found, rows)[words]))
    return TopicModel(
        model,
        found,
        topics,
        theta,
        words,
        read.topics_prior,
        read.theta_prior,
        read.width,
        reader,
    )


def _reader(model: Callable[..., Any], found: Outline, names: tuple[str, str, str]) -> Pruned:
    """The program of one document's words; nothing that sees other documents may be in it."""

    def read(arrays: list[Any]) -> dict[str, Any]:
        sites = _sites_of(model, found, arrays)
        *laws, words = names
        priors = {name: peeled(sites[name]["fn"]).fn.concentration for name in laws}
        return {"priors": priors, "words": words_of(sites[words])}

    with explained(found.plate):
        program = trace_program(read, found.layout.structs(1))
    require_no_closure(prune(program), found.layout, found.num_records)
    for name in names[:2]:
        wanted = {"priors": {each: each == name for each in names[:2]}, "words": (False, False)}
        if any(prune(program, jax.tree.leaves(wanted)).used):
            raise UnsupportedModelError(
                f"the prior of site `{name}` reads the documents: use public constants. {_FITS}"
            )
    wanted = {"priors": dict.fromkeys(names[:2], False), "words": (True, True)}
    reader = prune(program, jax.tree.leaves(wanted))
    require_one_record(reader)
    return reader


def words_of(site: Mapping[str, Any]) -> Corpus:
    """Words and counts of an observed site: every handler that weights or masks it counts.

    :returns: rows as the site's own leading axis.
    """
    (fn, kept, folded), value = peeled(site["fn"]), jnp.asarray(site["value"])
    weight = jnp.asarray(1.0 if site["scale"] is None else site["scale"], jnp.float32)
    batch = site["fn"].batch_shape
    weight = jnp.broadcast_to(weight, batch).reshape(batch + (1,) * folded)
    weight = jnp.where(kept, weight, 0)
    rows = value.shape[0]
    if isinstance(fn, (MultinomialProbs, MultinomialLogits)):
        counts = value * weight[..., None]
        ids = jnp.broadcast_to(jnp.arange(value.shape[-1], dtype=jnp.int32), counts.shape)
        return Corpus(ids.reshape(rows, -1), counts.astype(jnp.float32).reshape(rows, -1))
    counts = jnp.broadcast_to(weight, value.shape)
    return Corpus(value.astype(jnp.int32).reshape(rows, -1), counts.reshape(rows, -1))


class _Reading(NamedTuple):
    topics_prior: np.ndarray
    theta_prior: np.ndarray
    width: int


def _names(structure: Structure, plate: str) -> tuple[str, str, str]:
    """Sites of topics, of a document's mixture, and of words."""
    for site in structure.of_kind("discrete"):
        raise UnsupportedModelError(
            f"site `{site.name}` is a discrete latent: sum the topic of each word out, which is "
            f"`probs=theta @ topics`. {_FITS}"
        )
    for site in structure.of_kind("param", "factor"):
        raise UnsupportedModelError(f"site `{site.name}` ({site.kind}) is not part of it. {_FITS}")
    outside, inside = structure.outside(plate, "latent"), structure.inside(plate, "latent")
    observed = [s.name for s in structure.of_kind("observed")]
    for names, what in (
        (outside, f"latent outside plate `{plate}` (the topics)"),
        (inside, f"latent inside plate `{plate}` (a document's mixture of topics)"),
        (observed, "observed (the words)"),
    ):
        if len(names) != 1:
            raise UnsupportedModelError(
                f"one site must be {what}; found {quoted(names) or 'none'}. {_FITS}"
            )
    return outside[0], inside[0], observed[0]


def _sites_of(
    model: Callable[..., Any], found: Outline, rows: Sequence[Array]
) -> dict[str, dict[str, Any]]:
    """All sample sites of the model run on some rows, latents being arbitrary probabilities."""
    draw = np.random.default_rng(0)

    def arbitrary(message: Mapping[str, Any]) -> np.ndarray | None:
        if message["type"] != "sample" or message["is_observed"]:
            return None
        drawn = draw.exponential(size=message["fn"].shape()).astype(np.float32)
        return drawn / drawn.sum(-1, keepdims=True)

    filled = handlers.substitute(model, substitute_fn=arbitrary)
    with handlers.block(), handlers.trace() as sites:
        record_sites(filled, found, {}, rows, jax.random.key(0))
    return {name: site for name, site in sites.items() if site["type"] == "sample"}


def _read(sites: Mapping[str, Any], topics: str, theta: str, words: str) -> _Reading:
    """Priors and widths, from one record run; checks that the words are a mixture of topics."""
    phi, topics_prior = _dirichlet(sites[topics], topics)
    mix, theta_prior = _dirichlet(sites[theta], theta)
    mix, theta_prior = mix.reshape(-1), theta_prior.reshape(-1)
    if phi.ndim != 2 or mix.shape != phi.shape[:1]:
        raise UnsupportedModelError(
            f"site `{topics}` has shape {phi.shape} and `{theta}` shape {mix.shape} for one "
            f"document, where (K, V) and (K,) are needed. {_FITS}"
        )
    site = sites[words]
    fn = peeled(site["fn"]).fn
    if not isinstance(
        fn, (MultinomialProbs, MultinomialLogits, CategoricalProbs, CategoricalLogits)
    ):
        raise UnsupportedModelError(
            f"site `{words}` is {type(fn).__name__}, not Multinomial or Categorical. {_FITS}"
        )
    probs = np.asarray(fn.probs)
    if probs.shape[-1] != phi.shape[1] or not np.allclose(
        probs, mix @ phi, rtol=_TOLERANCE, atol=1e-7
    ):
        raise UnsupportedModelError(
            f"the probabilities of site `{words}` are not `{theta} @ {topics}`. {_FITS}"
        )
    return _Reading(topics_prior, theta_prior, words_of(site).ids.shape[1])


def _dirichlet(site: Mapping[str, Any], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Value and concentration of a Dirichlet site, both of the value's shape."""
    fn = peeled(site["fn"]).fn
    if not isinstance(fn, dist.Dirichlet):
        raise UnsupportedModelError(f"site `{name}` is {type(fn).__name__}, not Dirichlet. {_FITS}")
    value = np.asarray(site["value"])
    return value, np.broadcast_to(np.asarray(fn.concentration, np.float32), value.shape)
