"""``LDAGuide``: topics of private documents from noisy counts of words in topics."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import random
from jaxtyping import Array, ArrayLike
from numpyro import handlers

from numpyro_dp import _validate
from numpyro_dp.model.guided.model import Outline
from numpyro_dp.model.records import read_arguments
from numpyro_dp.svi.guides.lda.document import mixtures, word_weights
from numpyro_dp.svi.guides.lda.recognise import TopicModel, read_topic_model, words_of
from numpyro_dp.svi.guides.lda.shrinkage import SHRINKAGES
from numpyro_dp.svi.guides.lda.statistics import Choice, PaperTopics, Topics, parameter_of
from numpyro_dp.svi.vips.statistics import StatisticsGuide

# Rounds of topic counts that suit a schedule.
_ROUNDS = {"growth": 18, "flat": 30, "paper": 20}
# Tokens over noise in an entry above which no round needs more budget than another.
_RESOLVED = 2.0


class LDAGuide(StatisticsGuide):
    """The guide of :class:`~numpyro_dp.VIPS` for topic models, read off the model itself.

    A document is a record. Its words may come as counts, one number for each word of the
    vocabulary, or as the numbers of its words in padded places, each with a weight or a mask (both
    are read; a number outside the vocabulary, −1 say, is padding too):

    .. code-block:: python

        def model(counts):  # (documents, V)
            topics = numpyro.sample("topics", dist.Dirichlet(jnp.full((K, V), 0.1)).to_event(1))
            with numpyro.plate("documents", len(counts)):
                theta = numpyro.sample("theta", dist.Dirichlet(jnp.full(K, 0.1)))
                words = dist.Multinomial(counts.sum(-1), theta @ topics)
                numpyro.sample("words", words, obs=counts)

        def model(ids, counts):  # (documents, places) each
            topics = numpyro.sample("topics", dist.Dirichlet(jnp.full((K, V), 0.1)).to_event(1))
            with numpyro.plate("documents", len(ids), dim=-2):
                theta = numpyro.sample("theta", dist.Dirichlet(jnp.full(K, 0.1)))
                often = numpyro.handlers.scale(scale=jnp.maximum(counts, 1))
                with numpyro.plate("places", ids.shape[1]), often:
                    words = dist.Categorical(theta @ topics).mask(counts > 0)
                    numpyro.sample("words", words, obs=ids)

    The second form needs ``data_plate="documents"``. The run returns the parameter
    ``topics_concentration`` (name of the topics' site first), shape (K, V): a Dirichlet posterior
    with ``Predictive`` at public documents through the guide, which finds their ``theta``.

    A release is a noisy table of expected counts of words in topics. Word frequencies are released
    once, with a tenth of the budget (the rounds add to them later); then come rounds in which every
    document, from its own words and released topics alone, is shared out among the topics. Counts
    enter by their roots (a repeated word says little more), which clipping and noise disturb less.

    :param model: the NumPyro model.
    :param document_length: public guess of the median number of words of a document. Roots of
        counts are cut to norm ``0.7 * sqrt(document_length)`` (``VIPS``'s ``clip_norm`` replaces
        that).
    :param data_plate: name of the plate of the documents, when several enclose the words.
    :param max_words: distinct words of a document that are read, the most frequent ones: a public
        number, which memory and time grow with.
    :param init_topics: public topics to start from (of a public corpus, say), shape (K, V), rows
        adding to one; random ones by default.
    :param topic_weight: words of each topic that ``init_topics`` counts for in the posterior;
        0: a start only.
    :param schedule: ``"growth"``, each round with 1.3 times the budget of the one before;
        ``"flat"``; ``"paper"``, without frequencies, roots or averages, for comparison; ``None``
        for growth unless an entry's expected count is twice its noise.
    :param shrinkage: of noisy counts: ``"posterior_mean"`` (a prior on each topic's shares is
        fitted to the table), ``"wiener"`` or ``"zero"`` (cut there).
    :param averaging: weight of a new round against the rounds before, in (0, 1].
    :param inner_steps: steps of coordinate ascent on each document, the same for all.
    :raises ValueError: for arguments out of range.

    **Privacy.** That of :class:`~numpyro_dp.VIPS`: every round is one Gaussian event (Poisson-
    subsampled for batches), sensitivity the clip norm of a document's own table. A document that
    holds a negative or undefined count, or none, contributes exactly zero; one with more distinct
    words than ``max_words`` contributes its most frequent. Released: the noisy tables. Lengths,
    mixtures and likelihoods of single documents are not.

    **References.** Park, Foulds, Chaudhuri, Welling, *Variational Bayes in Private Settings (VIPS)*
    (JAIR 2020), the section on latent Dirichlet allocation, for ``schedule="paper"``; Blei, Ng,
    Jordan, *Latent Dirichlet Allocation* (JMLR 2003) for the documents' steps; Efron, *Tweedie's
    formula and selection bias* (JASA 2011) for the kind of shrinkage.

    **Example**

    >>> import jax, jax.numpy as jnp, numpy as np, numpyro, numpyro.distributions as dist
    >>> import numpyro_dp as ndp
    >>> def model(counts):
    ...     topics = numpyro.sample("topics", dist.Dirichlet(jnp.full((2, 6), 0.5)).to_event(1))
    ...     with numpyro.plate("documents", len(counts)):
    ...         theta = numpyro.sample("theta", dist.Dirichlet(jnp.full(2, 0.1)))
    ...         words = dist.Multinomial(counts.sum(-1), theta @ topics)
    ...         numpyro.sample("words", words, obs=counts)
    >>> counts = np.repeat([[4, 4, 4, 0, 0, 0], [0, 0, 0, 4, 4, 4]], 500, axis=0)
    >>> guide = ndp.guides.LDAGuide(model, document_length=12)
    >>> vips = ndp.VIPS(model, guide, noise_multiplier=8.0)
    >>> print(vips.forecast(11, counts).splitlines()[2])
      topic counts: 10 x 12 numbers, noise 8.04 x the bound on a record
    >>> result = vips.run(jax.random.key(0), 11, counts)  # doctest: +SKIP
    >>> result.params["topics_concentration"].shape  # doctest: +SKIP
    (2, 6)
    """

    def __init__(
        self,
        model: Callable[..., Any],
        *,
        document_length: float,
        data_plate: str | None = None,
        max_words: int = 128,
        init_topics: ArrayLike | None = None,
        topic_weight: float = 0.0,
        schedule: str | None = None,
        shrinkage: str = "posterior_mean",
        averaging: float = 0.6,
        inner_steps: int = 15,
    ) -> None:
        super().__init__(model, data_plate=data_plate)
        if schedule is not None and schedule not in _ROUNDS:
            raise ValueError(f"schedule must be one of {sorted(_ROUNDS)} or None, got {schedule!r}")
        if shrinkage not in SHRINKAGES:
            raise ValueError(f"shrinkage must be one of {sorted(SHRINKAGES)}, got {shrinkage!r}")
        if not 0 < _validate.finite_float("averaging", averaging) <= 1:
            raise ValueError(f"averaging must lie in (0, 1], got {averaging!r}")
        self.choice = Choice(
            document_length=_validate.positive("document_length", document_length),
            max_words=_validate.positive_int("max_words", max_words),
            schedule=schedule or "",
            shrinkage=shrinkage,
            averaging=float(averaging),
            inner_steps=_validate.positive_int("inner_steps", inner_steps),
            topic_weight=_validate.nonnegative("topic_weight", topic_weight),
            init_topics=_checked_topics(init_topics),
        )
        if topic_weight and init_topics is None:
            raise ValueError("topic_weight counts words of init_topics, which was not given")

    def parameter(self, topics: str) -> str:
        """Name of the parameter of a site of topics."""
        return parameter_of(topics)

    def settled(
        self, found: Outline, num_steps: int | None, signal: Callable[[int], float]
    ) -> LDAGuide:
        """This guide with its schedule chosen by what the budget resolves."""
        if self.choice.schedule:
            return self
        resolved = self._resolved(_read(self, found), found, num_steps, signal)
        return _with_schedule(self, "flat" if resolved > _RESOLVED else "growth")

    def outlook(
        self, found: Outline, num_steps: int | None, signal: Callable[[int], float]
    ) -> tuple[str, ...]:
        """What an entry of the table is resolved to, and how many topics that is enough for."""
        read = _read(self, found)
        resolved = self._resolved(read, found, num_steps, signal)
        wanted = max(1, math.floor(read.num_topics * min(resolved, 1e6)))
        schedule = self.settled(found, num_steps, signal).choice.schedule
        advice = (
            f"with {wanted} of them it would be about as large"
            if resolved < 1
            else "enough to tell topics apart"
        )
        return (
            f"  a word's expected count in one of {read.num_topics} topics is {resolved:.2g} x its "
            f"noise in a round: {advice} (schedule: {schedule})",
        )

    def _resolved(
        self,
        read: TopicModel,
        found: Outline,
        num_steps: int | None,
        signal: Callable[[int], float],
    ) -> float:
        """Expected count of an entry of the table, over its noise in a round."""
        steps = num_steps or _ROUNDS["growth"] + 1
        # A cut document's roots add to about its norm times the root of its length.
        tokens = found.num_records * math.sqrt(self.choice.document_length)
        return tokens * signal(steps) / math.sqrt(steps) / (read.num_topics * read.num_words)

    def scheduled(
        self, found: Outline, num_steps: int | None, *, clip_norm: float | None
    ) -> Topics:
        """Bind to a model: its priors, its sites, and the schedule of releases."""
        read = _read(self, found)
        start = self.choice.init_topics
        if start is not None and start.shape != read.topics_prior.shape:
            raise ValueError(
                f"init_topics has shape {start.shape}, site `{read.topics}` "
                f"{read.topics_prior.shape}: give one row a topic"
            )
        before = 0 if self.choice.schedule == "paper" else 1
        rounds = _ROUNDS[self.choice.schedule] if num_steps is None else num_steps - before
        if rounds < 1:
            raise ValueError(
                f"num_steps={num_steps} leaves no round of topic counts: the first step releases "
                "the word frequencies; 15 to 30 are useful"
            )
        kind = PaperTopics if before == 0 else Topics
        return kind(self, self.choice, read, rounds, clip_norm)

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Array]:
        """Sample topics, and the mixtures of the documents given (of the prior without words)."""
        with handlers.block():
            found = self.outlined(self.model, args, kwargs, self.data_plate)
            read = _read(self, found)
            sites = _whole(self.model, args, kwargs)
        concentration = numpyro.param(
            self.parameter(read.topics),
            jnp.asarray(read.topics_prior),
            constraint=dist.constraints.positive,
        )
        table = jnp.asarray(concentration)
        topics = numpyro.sample(read.topics, dist.Dirichlet(table).to_event(1))
        prior = jnp.asarray(read.theta_prior)
        own = mixtures(
            words_of(sites[read.words]), word_weights(table), prior, self.choice.inner_steps
        )
        site = sites[read.theta]
        frame = next(f for f in site["cond_indep_stack"] if f.name == found.plate)
        with numpyro.plate(found.plate, frame.size, dim=frame.dim):
            law = dist.Dirichlet(own.reshape(jnp.shape(site["value"])))
            theta = numpyro.sample(read.theta, law)
        return {read.topics: jnp.asarray(topics), read.theta: jnp.asarray(theta)}


def _whole(model: Callable[..., Any], args: Any, kwargs: Any) -> dict[str, Any]:
    """Sites of the model at its arguments."""
    layout, arrays = read_arguments(model, args, kwargs)
    given, named = layout.fill([jnp.asarray(array) for array in arrays])
    return handlers.trace(handlers.seed(model, random.key(0))).get_trace(*given, **named)


@lru_cache(maxsize=16)
def _read(guide: LDAGuide, found: Outline) -> TopicModel:
    return read_topic_model(guide.model, found)


@lru_cache(maxsize=16)
def _with_schedule(guide: LDAGuide, schedule: str) -> LDAGuide:
    """A copy of a guide; the same one again, so that nothing is compiled twice."""
    settled = copy.copy(guide)
    settled.choice = replace(guide.choice, schedule=schedule)
    return settled


def _checked_topics(topics: ArrayLike | None) -> np.ndarray | None:
    if topics is None:
        return None
    table = np.asarray(topics, np.float32)
    if table.ndim != 2 or not np.all(np.isfinite(table)) or table.min() < 0:
        raise ValueError("init_topics must be a table (topics, words) of finite numbers ≥ 0")
    rows = table.sum(1, keepdims=True)
    if not np.allclose(rows, 1, atol=1e-3):
        raise ValueError("every row of init_topics must add to one")
    return table / rows
