"""Corpora of ``lda.py``: 20 Newsgroups, documents drawn from a model of it, public topics.

Everything here is public to the reproduction: corpora that generate, and start values.
"""

from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

ALPHA = 0.1
PLACES, MEAN_LENGTH = 256, 82
SEED_OF_CORPUS, GENERATOR_PLACES = 20, 96


class Documents(NamedTuple):
    """Padded word numbers (−1 for none) and counts, one document a row."""

    ids: np.ndarray
    counts: np.ndarray


class Task(NamedTuple):
    """Training documents, and test documents in two halves."""

    train: Documents
    first: Documents
    second: Documents
    vocabulary: np.ndarray
    noise_factor: float = 1.0


def padded(found: Any, part: str, places: int = PLACES) -> Documents:
    """Rows of a sparse table as the most frequent words of each, in ``places`` places."""
    data, words, start = (found[f"{part}_{name}"] for name in ("data", "indices", "indptr"))
    ids = np.full((len(start) - 1, places), -1, np.int16)
    counts = np.zeros(ids.shape, np.float32)
    for row, (low, high) in enumerate(pairwise(start)):
        most = np.argsort(-data[low:high].astype(int), kind="stable")[:places]
        ids[row, : len(most)] = words[low:high][most]
        counts[row, : len(most)] = data[low:high][most]
    return Documents(ids, counts)


def newsgroups(folder: Path) -> Task:
    """20 Newsgroups."""
    found = np.load(folder / "ng20_bow.npz", allow_pickle=True)
    parts = [padded(found, part) for part in ("train", "test_h1", "test_h2")]
    return Task(*parts, vocabulary=found["vocab"])


def generated(
    real: Task, num_documents: int, num_tests: int, num_topics: int, noise_factor: float
) -> Task:
    """Documents of a model fitted to real ones; the generator is remade at every run."""
    most = Documents(*(array[:, :GENERATOR_PLACES] for array in real.train))
    topics = fitted(most, num_topics, len(real.vocabulary), SEED_OF_CORPUS, rounds=15, inner=8)
    draw = np.random.default_rng(SEED_OF_CORPUS)
    train = drawn(draw, topics, num_documents)
    mixtures = draw.dirichlet(np.full(num_topics, ALPHA), num_tests)
    halves = [drawn(draw, topics, num_tests, mixtures) for _ in range(2)]
    return Task(train, *halves, vocabulary=real.vocabulary, noise_factor=noise_factor)


def drawn(
    draw: np.random.Generator,
    topics: np.ndarray,
    number: int,
    mixtures: np.ndarray | None = None,
    places: int = 128,
) -> Documents:
    """Documents of geometric length, word by word."""
    num_topics, num_words = topics.shape
    cumulative = np.cumsum(topics, axis=1)
    cumulative /= cumulative[:, -1:]
    ids = np.full((number, places), -1, np.int16)
    counts = np.zeros((number, places), np.int16)
    for low in range(0, number, 20_000):
        high = min(low + 20_000, number)
        share = (
            draw.dirichlet(np.full(num_topics, ALPHA), high - low)
            if mixtures is None
            else mixtures[low:high]
        )
        lengths = np.minimum(draw.geometric(1 / MEAN_LENGTH, high - low), 8 * MEAN_LENGTH)
        document = np.repeat(np.arange(high - low), lengths)
        # Inverse cdf for topic and word; row k of the stacked cdf lies in [k, k + 1).
        edges = np.cumsum(share, axis=1)
        edges[:, -1] = 1.0
        topic = (draw.random((len(document), 1)) > edges[document]).sum(1)
        stacked = (cumulative + np.arange(num_topics)[:, None]).reshape(-1)
        word = np.searchsorted(stacked, topic + draw.random(len(document))) - topic * num_words
        word = np.clip(word, 0, num_words - 1)
        code, count = np.unique(document * num_words + word, return_counts=True)
        owner = code // num_words
        place = np.arange(len(code)) - np.searchsorted(owner, np.arange(high - low))[owner]
        kept = place < places
        ids[low + owner[kept], place[kept]] = (code % num_words)[kept]
        counts[low + owner[kept], place[kept]] = count[kept]
    return Documents(ids, counts)


def fitted(
    documents: Documents,
    num_topics: int,
    num_words: int,
    seed: int,
    rounds: int,
    inner: int = 15,
) -> np.ndarray:
    """Topics by plain expectation maximisation, for public documents."""
    draw = np.random.default_rng(seed)
    topics = draw.exponential(size=(num_topics, num_words)) + 0.2
    ids, counts = jnp.asarray(documents.ids), jnp.asarray(documents.counts, jnp.float32)

    @jax.jit
    def expected(topics: Any) -> Any:
        table = topics / topics.sum(1, keepdims=True)

        def one(document: Any) -> Any:
            words, often = document
            own = table.T.at[words].get(mode="fill", fill_value=0.0) * (words >= 0)[:, None]

            def step(_: Any, share: Any) -> Any:
                share = ALPHA + share * ((often / jnp.maximum(own @ share, 1e-30)) @ own)
                return share / share.sum()

            share = jax.lax.fori_loop(0, inner, step, jnp.full(num_topics, 1 / num_topics))
            joint = own * share
            joint *= (often / jnp.maximum(joint.sum(1), 1e-30))[:, None]
            return jnp.zeros((num_words, num_topics)).at[words].add(joint, mode="drop")

        def add(total: Any, block: Any) -> tuple[Any, None]:
            return total + jax.vmap(one)(block).sum(0), None

        size = len(ids) // 64 * 64
        blocks = [x[:size].reshape(-1, 64, x.shape[1]) for x in (ids, counts)]
        return jax.lax.scan(add, jnp.zeros((num_words, num_topics)), blocks)[0].T + 0.05

    for _ in range(rounds):
        topics = expected(topics)
    topics = np.asarray(topics, float)
    return topics / topics.sum(1, keepdims=True)


def public_topics(folder: Path, task: Task, num_topics: int, seed: int) -> np.ndarray:
    """Topics of the public Reuters items, in the words of the private corpus."""
    found = np.load(folder / "reuters_bow.npz", allow_pickle=True)
    place = {word: number for number, word in enumerate(task.vocabulary)}
    rename = np.array([place.get(word, -1) for word in found["vocab"]])
    items = padded(found, "all")
    ids = np.where(items.ids >= 0, rename[items.ids], -1)
    return fitted(Documents(ids, items.counts), num_topics, len(task.vocabulary), seed, rounds=60)
