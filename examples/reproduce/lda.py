"""Topics of private documents: perplexity at equal ε, by accounting and by schedule.

Usage::

    python examples/reproduce/lda.py PATH_TO_DATA [--corpus ng20|synthetic|emulated]
        [--arms none pld moments strong paper] [--start random|public] [--runs 5]
        [--topics 5] [--small] [--no-words]

As it stands it is the table of 20 Newsgroups, with ``--corpus synthetic`` that of 400,000 documents
(50 topics): every arm once, with the words of its topics.

``PATH_TO_DATA`` holds ``ng20_bow.npz`` (20 Newsgroups, 11,214 training documents, 3,072 words) and
``reuters_bow.npz`` (395 public items). δ = 1e-4 and ε = 2.44 under zero-out, the total of a run.
A JSON line a run goes to the screen: perplexity of the second halves of the test documents, each
with its mixture from 50 EM steps on the first half (prior .1).

Arms: ``none`` (no privacy), ``pld`` (the noise that exact accounting needs), ``moments`` and
``strong`` (what the moments accountant and strong composition say is needed for the same ε: ours
with more noise), ``paper`` (one epoch of Poisson batches, q = .05, and the paper's slow averaging;
exact accounting). Beside each stands what the released word frequencies alone reach.

Corpora: ``synthetic`` draws 400,000 documents from a 50-topic model fitted to 20 Newsgroups (public
here: it only generates), at run time; ``emulated`` draws 40,000 and divides the noise by 10, the
same signal over noise, without a guarantee of its own. Settings were fixed on other seeds.
"""

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from dp_accounting.rdp import RdpAccountant
from topic_corpora import ALPHA, Documents, Task, generated, newsgroups, public_topics

import numpyro_dp as ndp

EPSILON, DELTA = 2.44, 1e-4
ARMS = ("none", "pld", "moments", "strong", "paper")
SMALL = 16


def model_of(num_topics: int, num_words: int, prior: float = 0.05):
    """Latent Dirichlet allocation with the topic of each word summed out."""

    def model(ids, counts):
        concentration = jnp.full((num_topics, num_words), prior)
        topics = numpyro.sample("topics", dist.Dirichlet(concentration).to_event(1))
        with numpyro.plate("documents", len(ids), dim=-2):
            theta = numpyro.sample("theta", dist.Dirichlet(jnp.full(num_topics, ALPHA)))
            often = numpyro.handlers.scale(scale=jnp.maximum(counts, 1))
            with numpyro.plate("places", ids.shape[1]), often:
                words = dist.Categorical(theta @ topics).mask(counts > 0)
                numpyro.sample("words", words, obs=ids)

    return model


@jax.jit
def _log_likelihood(table: Any, first: Any, second: Any) -> Any:
    def one(documents: Any) -> Any:
        known, new = documents
        own, other = (
            table.T.at[ids].get(mode="fill", fill_value=0.0) * (ids >= 0)[:, None]
            for ids, _ in (known, new)
        )

        def step(_: Any, share: Any) -> Any:
            share = ALPHA + share * ((known[1] / jnp.maximum(own @ share, 1e-30)) @ own)
            return share / share.sum()

        share = jax.lax.fori_loop(0, 50, step, jnp.full(len(table), 1 / len(table)))
        there = new[1] > 0
        log = jnp.log(jnp.where(there, jnp.maximum(other @ share, 1e-12), 1.0))
        return (new[1] * log).sum(), new[1].sum()

    return jax.tree.map(jnp.sum, jax.lax.map(one, (first, second), batch_size=256))


def perplexity(topics: np.ndarray, task: Task) -> float:
    """Document completion."""
    halves = [
        tuple(jnp.asarray(part, kind) for part, kind in zip(half, (int, jnp.float32), strict=True))
        for half in (task.first, task.second)
    ]
    total, number = _log_likelihood(jnp.asarray(topics, jnp.float32), *halves)
    return float(np.exp(-total / number))


def moments_multiplier(num_steps: int) -> float:
    """Noise multiplier of each of ``num_steps`` releases by the moments accountant."""

    def needs(noise: float) -> float:
        accountant = RdpAccountant()
        accountant.compose(ndp.events.GaussianDpEvent(noise), num_steps)
        return accountant.get_epsilon(DELTA)

    return bisected(needs)


def strong_multiplier(num_steps: int) -> float:
    """The same by strong composition of classical Gaussian mechanisms, δ split in halves."""
    slack = DELTA / 2
    each = DELTA / 2 / num_steps

    def needs(noise: float) -> float:
        one = math.sqrt(2 * math.log(1.25 / each)) / noise
        return math.sqrt(2 * num_steps * math.log(1 / slack)) * one + num_steps * one * (
            math.expm1(one)
        )

    return bisected(needs)


def bisected(needs: Any) -> float:
    """The least noise multiplier that ``needs`` no more than ε."""
    low, high = 0.1, 1e4
    while high / low > 1 + 1e-6:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if needs(middle) > EPSILON else (low, middle)
    return high


def settings(arm: str, task: Task, num_steps: int | None, schedule: str | None) -> dict[str, Any]:
    """Noise of an arm, as arguments of ``VIPS``."""
    if arm == "none":
        return {"noise_multiplier": 0.0, "clip_norm": math.inf}
    steps = num_steps or {"growth": 19, "flat": 31, "paper": 20}[schedule or "growth"]
    if arm == "moments":
        return {"noise_multiplier": moments_multiplier(steps)}
    if arm == "strong":
        return {"noise_multiplier": strong_multiplier(steps)}
    batches = {"sampling_rate": 0.05} if arm == "paper" else {}
    return {"privacy": ndp.Budget(EPSILON, DELTA), **batches}


def schedule_of(arm: str, options: argparse.Namespace) -> str | None:
    """Schedule of an arm; ``None`` leaves it to the guide."""
    if arm == "paper":
        return "paper"
    if options.schedule is None and arm in ("moments", "strong"):
        # Their noise follows from the number of releases: what ``pld`` comes to by itself.
        return "growth" if options.corpus == "ng20" else "flat"
    return options.schedule


def run(folder: Path, task: Task, arm: str, options: argparse.Namespace, seed: int) -> dict:
    """One fit and its perplexity; all charges in one account."""
    num_words = len(task.vocabulary)
    schedule = schedule_of(arm, options)
    model = model_of(options.topics, num_words)
    start = None
    if options.start == "public":
        start = public_topics(folder, task, options.topics, seed)
    guide = ndp.guides.LDAGuide(
        model,
        document_length=53,
        data_plate="documents",
        max_words=options.max_words,
        init_topics=start,
        schedule=schedule,
        inner_steps=options.inner_steps,
    )
    arguments = settings(arm, task, options.steps, schedule)
    if task.noise_factor != 1 and arm != "none":
        arguments = emulated_noise(model, guide, arguments, task, options.steps)
    account = ndp.Accountant(ndp.Budget(1e3, DELTA), allow_conditional=True)
    if arm == "none" or task.noise_factor != 1:
        account = ndp.Accountant()  # no guarantee is claimed
    vips = ndp.VIPS(model, guide, **arguments, accountant=account, secure=False)
    key = jax.random.key(seed)
    result = vips.run(key, options.steps, *task.train, progress_bar=options.bar)
    topics = np.asarray(result.params["topics_concentration"], float)
    topics /= topics.sum(1, keepdims=True)
    line = {
        "corpus": options.corpus,
        "arm": arm,
        "start": options.start,
        "topics": options.topics,
        "documents": len(task.train.ids),
        "seed": seed,
        # By exact accounting; without meaning where the noise was divided or left out.
        "epsilon": result.privacy.epsilon if task.noise_factor == 1 and arm != "none" else None,
        "perplexity": round(perplexity(topics, task), 1),
    }
    if arm != "paper":
        unigram = np.asarray(result.state.unigram, float)[None]
        line["unigram"] = round(perplexity(unigram, task), 1)
    if options.words:
        best = np.argsort(-topics / topics.sum(0).clip(1e-12) ** 0.5, axis=1)[:, :8]
        line["words"] = [" ".join(task.vocabulary[row]) for row in best]
    return line


def emulated_noise(
    model: Any, guide: Any, arguments: dict[str, Any], task: Task, num_steps: int | None
) -> dict[str, Any]:
    """The noise of an arm over ``noise_factor``: what as many more documents would leave of it."""
    if "privacy" in arguments:
        steps = num_steps or 31
        whole = ndp.calibrate(ndp.events.GaussianDpEvent, ndp.Budget(EPSILON, DELTA), "zero_out")
        noise = whole * math.sqrt(steps)
        if "sampling_rate" in arguments:
            raise ValueError("the paper's batches cannot be emulated by less noise")
    else:
        noise = arguments["noise_multiplier"]
    return {"noise_multiplier": noise / task.noise_factor}


def thinned(task: Task) -> Task:
    """A sixteenth of all documents, for a test."""
    few = [Documents(*(array[::SMALL] for array in part)) for part in task[:3]]
    return Task(*few, vocabulary=task.vocabulary)


def runs(options: argparse.Namespace) -> Iterator[dict]:
    """Every run that was asked for."""
    task, share = newsgroups(options.data), SMALL if options.small else 1
    if options.small:
        task = thinned(task)
    if options.corpus != "ng20":
        whole = options.corpus == "synthetic"
        number, factor = (400_000, 1.0) if whole else (40_000, 10.0)
        task = generated(task, number // share, 2_000 // share, 50, factor)
    for arm in options.arms:
        for seed in range(options.first_seed, options.first_seed + options.runs):
            yield run(options.data, task, arm, options, seed)


def main(arguments: list[str] | None = None) -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--corpus", default="ng20", choices=["ng20", "synthetic", "emulated"])
    parser.add_argument("--arms", nargs="+", choices=ARMS, help="default: all")
    parser.add_argument("--start", default="random", choices=["random", "public"])
    parser.add_argument("--topics", type=int, help="default: 5, of made-up documents 50")
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--schedule", default=None, choices=["growth", "flat"])
    parser.add_argument("--max-words", type=int, default=128)
    parser.add_argument("--inner-steps", type=int, default=15)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--small", action="store_true", help="a sixteenth of the documents")
    parser.add_argument("--no-words", dest="words", action="store_false")
    parser.add_argument("--bar", action="store_true")
    options = parser.parse_args(arguments)
    if options.arms is None:
        # The paper's batches cannot be emulated by less noise.
        options.arms = [arm for arm in ARMS if (arm, options.corpus) != ("paper", "emulated")]
    if options.topics is None:
        options.topics = 5 if options.corpus == "ng20" else 50
    for line in runs(options):
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
