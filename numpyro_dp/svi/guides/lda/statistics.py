"""What :class:`~numpyro_dp.guides.LDAGuide` releases, and how topics come of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random
from jaxtyping import Array, Float

from numpyro_dp.execution.releases import Phase
from numpyro_dp.mechanisms import Touched
from numpyro_dp.svi.guides.lda.document import in_order, mixture, word_weights
from numpyro_dp.svi.guides.lda.recognise import Corpus, TopicModel
from numpyro_dp.svi.guides.lda.shrinkage import frequencies, shared_out
from numpyro_dp.svi.vips.statistics import Schedule, StatisticsGuide

# Later rounds decide: each gets so much more of the budget.
_GROWTH = 1.3
# Of the squared privacy loss, for the word frequencies; their clip over a document's own.
_UNIGRAM_SHARE, _UNIGRAM_CLIP = 0.1, 2.0
# Of the median norm: a bias that costs less than the noise it saves.
_CLIP = 0.7
# How much of a public start is overruled by the words' frequencies.
_BACKGROUND = 0.1
# Hoffman's online rule, as the paper uses it.
_DELAY, _FORGETTING, _PAPER_SPREAD = 1024.0, 0.7, 0.1
_PREPARED_AT_A_TIME = 1024


class KnownTopics(NamedTuple):
    """What has been released, and what follows.

    - **seen**: noisy frequencies of the words from the first release alone.
    - **seen_sd**: of their noise.
    - **unigram**: frequencies of the words by all releases, adding to one.
    - **totals**: noisy, averaged counts of words in topics.
    - **variance**: of their noise.
    - **concentration**: of the Dirichlet posterior of the topics.
    - **weights**: of topics for words, as the documents read them.
    """

    seen: Float[Array, " words"]
    seen_sd: Float[Array, ""]
    unigram: Float[Array, " words"]
    totals: Float[Array, "topics words"]
    variance: Float[Array, ""]
    concentration: Float[Array, "topics words"]
    weights: Float[Array, "words topics"]


@dataclass(frozen=True)
class Choice:
    """What a user chose for a run: see :class:`~numpyro_dp.guides.LDAGuide`."""

    document_length: float
    max_words: int
    schedule: str
    shrinkage: str
    averaging: float
    inner_steps: int
    topic_weight: float
    init_topics: np.ndarray | None = field(repr=False, compare=False)


def parameter_of(topics: str) -> str:
    """Name of the guide's parameter for a site of topics."""
    return f"{topics}_concentration"


class Topics(Schedule):
    """Word frequencies once, then rounds of topic counts from the roots of word counts."""

    def __init__(
        self,
        guide: StatisticsGuide,
        choice: Choice,
        read: TopicModel,
        rounds: int,
        clip_norm: float | None,
    ) -> None:
        self.guide, self.choice, self.read = guide, choice, read
        self.touched = min(self.choice.max_words, read.width)
        self.phases = self._phases(rounds, clip_norm)
        self.notes = self._notes(rounds)
        self._arranged = jax.jit(self._arrange)

    def _phases(self, rounds: int, clip_norm: float | None) -> tuple[Phase, ...]:
        norm = math.sqrt(self.choice.document_length)
        growth = _GROWTH if self.choice.schedule == "growth" else 1.0
        weights = tuple(growth**t for t in range(rounds))
        unigram = sum(weights) * _UNIGRAM_SHARE / (1 - _UNIGRAM_SHARE)
        unclipped = clip_norm == math.inf
        first = math.inf if unclipped else _UNIGRAM_CLIP * norm
        return (
            Phase("word frequencies", self.read.num_words, first, (unigram,), entries=self.touched),
            self._topic_counts(weights, _CLIP * norm if clip_norm is None else clip_norm),
        )

    def _topic_counts(self, weights: tuple[float, ...], clip_norm: float) -> Phase:
        topics = self.read.num_topics
        entries = self.touched * topics
        dim = topics * self.read.num_words
        return Phase("topic counts", dim, clip_norm, weights, entries=entries)

    def _notes(self, rounds: int) -> tuple[str, ...]:
        return (
            f"Topics from {rounds} rounds; a document counts with the roots of its word counts, "
            f"cut to norm {self.phases[-1].clip_norm:.4g}, and its {self.touched} most frequent "
            "words.",
            "The posterior of the topics takes the counts as they are: it does not widen for the "
            "privacy noise.",
        )

    def start(self, key: Array) -> KnownTopics:
        """Random topics, to be bent to the word frequencies once these are known."""
        topics, words = self.read.topics_prior.shape
        drawn = random.exponential(key, (topics, words), jnp.float32)
        zeros = jnp.zeros((topics, words), jnp.float32)
        even = jnp.full(words, 1 / words, jnp.float32)
        zero = jnp.zeros((), jnp.float32)
        return KnownTopics(even, zero, even, zeros, zero, self._prior() + drawn, drawn.T)

    def statistic(self, phase: int, state: KnownTopics, record: Sequence[Array]) -> Touched:
        """Roots of a document's word counts, shared out among the topics after the first phase."""
        ids, counts = (leaf[0] for leaf in record)
        roots = self._counted(counts)[:, None]
        if phase == len(self.phases) - 1:
            own = mixture(
                Corpus(ids, counts),
                state.weights,
                jnp.asarray(self.read.theta_prior),
                self.choice.inner_steps,
            )
            roots = roots * own.responsibility
        return Touched(ids, roots)

    def _counted(self, counts: Array) -> Array:
        return jnp.sqrt(counts)

    def advance(
        self, phase: int, state: KnownTopics, released: Array, noise_sd: Array, step: Array
    ) -> KnownTopics:
        """Frequencies, then averaged counts and the topics' posterior."""
        sd = noise_sd[0]
        if phase == 0:
            return self._begin(state, released, sd)
        noisy = released.reshape(self.read.num_words, -1).T
        rho = jnp.where(step == 0, 1.0, self.choice.averaging)
        totals = (1 - rho) * state.totals + rho * noisy
        variance = (1 - rho) ** 2 * state.variance + (rho * sd) ** 2
        unigram = self._frequencies(state, totals, variance)
        shared = shared_out(self.choice.shrinkage, totals, jnp.sqrt(variance), unigram)
        concentration = self._prior() + shared
        return state._replace(
            unigram=unigram,
            totals=totals,
            variance=variance,
            concentration=concentration,
            weights=word_weights(concentration),
        )

    def _frequencies(
        self, state: KnownTopics, totals: Array, variance: Array
    ) -> Float[Array, " words"]:
        """Frequencies by the first release and by the words' sums over topics, by precision."""
        rows = totals.sum(0)
        total = jnp.maximum(rows.sum(), 1.0)
        row_sd = jnp.sqrt(variance * len(totals)) / total
        both = jnp.square(state.seen_sd) + jnp.square(row_sd)
        part = jnp.where(both > 0, jnp.square(row_sd) / jnp.where(both > 0, both, 1), 0.5)
        noisy = part * state.seen + (1 - part) * rows / total
        sd = jnp.where(both > 0, state.seen_sd * row_sd / jnp.sqrt(jnp.maximum(both, 1e-30)), 0)
        return frequencies(noisy, sd)

    def _begin(self, state: KnownTopics, released: Array, sd: Array) -> KnownTopics:
        total = jnp.maximum(released.sum(), 1.0)
        seen, seen_sd = released / total, sd / total
        unigram = frequencies(seen, seen_sd)
        if self.choice.init_topics is None:
            topics = state.weights.T * unigram
        else:
            public = jnp.asarray(self.choice.init_topics)
            topics = (1 - _BACKGROUND) * public + _BACKGROUND * unigram
        topics = topics / jnp.maximum(topics.sum(1, keepdims=True), 1e-12)
        peak = jnp.maximum(topics.max(0), 1e-30)
        return state._replace(
            seen=seen,
            seen_sd=seen_sd,
            unigram=unigram,
            concentration=self._prior() + topics,
            weights=(topics / peak).T,
        )

    def _prior(self) -> Float[Array, "topics words"]:
        """Concentration of the prior, with the public topics' pseudo-counts."""
        prior = jnp.asarray(self.read.topics_prior)
        if self.choice.init_topics is None:
            return prior
        return prior + self.choice.topic_weight * jnp.asarray(self.choice.init_topics)

    def params(self, state: KnownTopics) -> Mapping[str, Array]:
        """The one parameter of the guide."""
        return {parameter_of(self.read.topics): state.concentration}

    def records(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Array]:
        """The arguments' own arrays."""
        return self.read.found.records(self.read.model, args, kwargs)

    def prepared(self, records: Sequence[Array]) -> list[Array]:
        """Word numbers and counts of each document, distinct and in order, ``touched`` places."""
        return list(self._arranged(list(records)))

    def _arrange(self, records: list[Array]) -> Corpus:
        def one(record: list[Array]) -> Corpus:
            document = self.read.document([leaf[None] for leaf in record])
            return in_order(document, self.read.num_words, self.touched)

        return lax.map(one, records, batch_size=_PREPARED_AT_A_TIME)

    def target(self) -> TopicsLaw:
        """Topics alone: a document's mixture belongs to the document."""
        return TopicsLaw(self.guide, self.read.topics)


class PaperTopics(Topics):
    """The schedule of the paper: rounds of topic counts alone, mixed in ever more slowly."""

    def _phases(self, rounds: int, clip_norm: float | None) -> tuple[Phase, ...]:
        longest = self.choice.document_length if clip_norm is None else clip_norm
        return (self._topic_counts((1.0,) * rounds, longest),)

    def _notes(self, rounds: int) -> tuple[str, ...]:
        return (
            f"The paper's schedule: {rounds} rounds, word counts cut to norm "
            f"{self.phases[-1].clip_norm:.4g}.",
        )

    def start(self, key: Array) -> KnownTopics:
        """Entries near one, as in Hoffman's online algorithm."""
        state = super().start(key)
        drawn = jnp.exp(
            _PAPER_SPREAD * random.normal(key, self.read.topics_prior.shape, jnp.float32)
        )
        return state._replace(totals=drawn, concentration=drawn, weights=word_weights(drawn))

    def _counted(self, counts: Array) -> Array:
        return counts

    def advance(
        self, phase: int, state: KnownTopics, released: Array, noise_sd: Array, step: Array
    ) -> KnownTopics:
        """Natural parameters move a step of ``(delay + t)^-forgetting`` towards the noisy ones."""
        noisy = released.reshape(self.read.num_words, -1).T
        rho = (_DELAY + step + 1.0) ** -_FORGETTING
        aim = self._prior() + jnp.maximum(noisy, 0)
        concentration = (1 - rho) * state.concentration + rho * aim
        return state._replace(
            totals=concentration, concentration=concentration, weights=word_weights(concentration)
        )


@dataclass(frozen=True)
class TopicsLaw:
    """Draws topics from their Dirichlet posterior.

    :param guide: the guide.
    :param topics: name of its site.
    """

    guide: StatisticsGuide
    topics: str

    def unconstrain(self, params: Mapping[str, Array]) -> dict[str, Array]:
        """The parameters as they are: draws need no other."""
        return dict(params)

    def draw(
        self, params: Mapping[str, Array], key: Array
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Topics, and no deterministic site."""
        concentration = params[parameter_of(self.topics)]
        return {self.topics: random.dirichlet(key, concentration)}, {}
