"""What the words of a plan are worth: verdicts and suggested clip norms, held against runs.

Usage::

    python examples/reproduce/plan_words.py PATH_TO_DATA [--part words clips]
        [--data adult breast ng20] [--method chain fit] [--runs N]

``words`` prints, one JSON line a case: the verdict, and the mean gain of the runs over the prior,
in held-out log score and in accuracy, each as a share of what the fit without privacy gains, with
standard errors. ``clips`` prints, one line a data set: the suggested clip norm, the mean gain at
each clip norm of a grid, and the suggestion over the best of these. Noise comes from the operating
system, so no two runs are alike.

Logistic regressions on Adult (109 columns) and on breast cancer (scikit-learn's, standardised on
the whole data, which is not private), and the rates of the 200 most frequent words of 20 Newsgroups
(counted on the training data, likewise), which have no accuracy. Before any record a logistic
regression gives each answer the probability one half: an accuracy of one half.
"""

import argparse
import json
import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from numpyro.infer import autoguide, init_to_median
from regression_data import Task, adult109, predictive, scores
from scipy.optimize import minimize
from scipy.sparse import csr_matrix
from scipy.special import expit

import numpyro_dp as ndp

DRAWS, WORDS, MANY = 400, 200, 10
# Log rates beyond these give no finite score.
LOWEST, HIGHEST = -14.0, 9.0

Score = Callable[[np.ndarray], np.ndarray]


class Study(NamedTuple):
    """A model with its records, and what draws of ``w`` are worth on held-out ones.

    - **score**: log score and, where there is one, accuracy of draws of shape (draws, dim).
    - **prior**: the score before any record.
    - **best**: that of the fit without privacy.
    """

    model: Callable
    records: tuple[np.ndarray, ...]
    score: Score
    prior: np.ndarray
    best: np.ndarray

    def gain(self, draws: np.ndarray) -> np.ndarray:
        """What of the way from the prior to the fit without privacy, by each score."""
        return (self.score(draws) - self.prior) / (self.best - self.prior)


class Case(NamedTuple):
    """A run to plan and to make.

    - **step**: of a chain, over the largest at which the privacy noise is free; of a fit, the
      learning rate.
    - **batch**: ``None`` for all records.
    - **guide**: of a fit; ``None`` for a chain.
    """

    data: str
    epsilon: float
    steps: int
    clip_norm: float
    step: float
    batch: int | None = None
    guide: str | None = None
    delta: float = 1e-5


def logistic(x, y=None):
    """Logistic regression; one row is one record."""
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[-1]]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def rates(counts):
    """How often each word stands in a document; one document is one record."""
    w = numpyro.sample("w", dist.Normal(-2, 1).expand([counts.shape[-1]]).to_event(1))
    with numpyro.plate("documents", counts.shape[0]):
        numpyro.sample("counts", dist.Poisson(jnp.exp(w)).to_event(1), obs=counts)


def regression(load: Callable[[Path], Task], folder: Path) -> Study:
    """A logistic regression on the records of a task."""
    task = load(folder)
    x, y = task.x.astype(float), task.y

    def score(draws: np.ndarray) -> np.ndarray:
        found = scores(np.clip(predictive(draws, task.x_test), 1e-6, 1 - 1e-6), task.y_test)
        return np.array([-found["log_loss"], found["accuracy"]])

    def objective(w: np.ndarray) -> tuple[float, np.ndarray]:
        logits = x @ w
        value = np.logaddexp(0, logits).sum() - y @ logits + w @ w / 2
        return value, x.T @ (expit(logits) - y) + w

    best = score(minimize(objective, np.zeros(x.shape[1]), jac=True).x[None])
    return Study(logistic, (task.x, task.y), score, np.array([-math.log(2), 0.5]), best)


def breast_cancer(folder: Path) -> Task:
    """Malignant or benign: 400 tumours to learn from, 169 held out."""
    from sklearn.datasets import load_breast_cancer  # ty: ignore

    x, y = load_breast_cancer(return_X_y=True)
    x = np.c_[(x - x.mean(0)) / x.std(0), np.ones(len(x))].astype(np.float32)
    order = np.random.default_rng(7).permutation(len(x))
    x, y = x[order], y[order].astype(np.int32)
    return Task(x[:400], y[:400], x[400:], y[400:], row_norm=math.sqrt(31.0))


def newsgroups(folder: Path) -> Study:
    """Rates of frequent words in 11,214 documents; held out are 7,531."""
    with np.load(folder / "ng20_bow.npz") as file:
        train, test = (
            csr_matrix(
                (file[f"{part}_data"], file[f"{part}_indices"].astype(int), file[f"{part}_indptr"]),
                shape=(len(file[f"{part}_indptr"]) - 1, len(file["vocab"])),
            )
            for part in ("train", "test")
        )
    frequent = np.argsort(-np.asarray(train.sum(0)).ravel())[:WORDS]
    counts, held_out = (
        np.asarray(part[:, frequent].todense(), np.float32) for part in (train, test)
    )
    heard = held_out.mean(0)

    def score(draws: np.ndarray) -> np.ndarray:
        # Words are clumpier than Poisson's: whatever spreads the rates scores well, so that only
        # the middle of the draws is judged, up to what the counts alone contribute.
        w = np.clip(draws.mean(0), LOWEST, HIGHEST)
        return np.array([heard @ w - np.exp(w).sum()])

    prior = score(np.full((1, WORDS), -2.0))
    return Study(rates, (counts,), score, prior, score(np.log(counts.mean(0))[None]))


STUDIES: dict[str, Callable[[Path], Study]] = {
    "adult": partial(regression, adult109),
    "breast": partial(regression, breast_cancer),
    "ng20": newsgroups,
}


def planned(case: Case, study: Study) -> tuple[Any, ndp.Plan]:
    """The kernel or fit of a case, and its plan."""
    options: dict[str, Any] = {"clip_norm": case.clip_norm}
    options |= {"privacy": ndp.Budget(case.epsilon, case.delta), "batch_size": case.batch}
    if case.guide is not None:
        guide = getattr(autoguide, case.guide)(study.model, init_loc_fn=init_to_median)
        run = ndp.DPSVI(study.model, guide, optax.sgd(case.step, momentum=0.9), **options)
        return run, ndp.plan(run, *study.records, num_steps=case.steps)
    # From the middle of the prior, like the fits: a start elsewhere predicts something by itself.
    options["init_strategy"] = init_to_median
    free = ndp.plan(
        ndp.DPSGLD(study.model, step_size=1e-4, **options), *study.records, num_steps=case.steps
    ).free_step_size
    run = ndp.DPSGLD(study.model, step_size=case.step * float(free or 1), **options)
    return run, ndp.plan(run, *study.records, num_steps=case.steps)


def drawn(run: Any, case: Case, study: Study, seed: int) -> np.ndarray:
    """Draws of ``w`` from one run: the second half of a chain, or of a fitted guide."""
    key = jax.random.key(seed)
    if isinstance(run, ndp.DPSVI):
        fitted = run.run(key, case.steps, *study.records, progress_bar=False)
        draws = run.guide.sample_posterior(key, fitted.params, sample_shape=(DRAWS,))
    else:
        half = case.steps // 2
        mcmc = ndp.MCMC(run, num_warmup=half, num_samples=case.steps - half, progress_bar=False)
        mcmc.run(key, *study.records)
        draws = mcmc.get_samples()
    w = np.asarray(draws["w"], float)
    return w[:: max(1, len(w) // DRAWS)]


def gains(run: Any, case: Case, study: Study, runs: int) -> np.ndarray:
    """Gains of several runs, shape (runs, scores)."""
    return np.stack([study.gain(drawn(run, case, study, seed)) for seed in range(runs)])


def _mean(column: np.ndarray) -> list[float]:
    """Mean and standard error."""
    return [round(float(v), 3) for v in (column.mean(), column.std(ddof=1) / len(column) ** 0.5)]


WORD_CASES = (
    Case("breast", 5e-4, 300, 1.5, 1.0, batch=80),
    Case("breast", 0.03, 300, 1.5, 1.0, batch=80),
    Case("breast", 10.0, 300, 1.5, 1.0, batch=80),
    Case("breast", 5e-4, 100, 1.5, 2e-3, batch=40, guide="AutoDelta"),
    Case("breast", 1.0, 100, 1.5, 1e-2, guide="AutoDelta"),
    Case("breast", 12.0, 100, 1.5, 2e-3, guide="AutoDelta"),
    Case("adult", 2e-6, 100, 2.5, 1.0, batch=100, delta=1e-6),
    Case("adult", 0.003, 200, 2.5, 1.0, batch=1500),
    Case("adult", 4.0, 200, 2.5, 1.0, batch=1500),
    Case("adult", 2e-6, 100, 1.0, 1e-3, batch=100, guide="AutoDelta", delta=1e-6),
    Case("adult", 0.001, 100, 1.0, 1e-3, guide="AutoDelta"),
    Case("adult", 4.0, 200, 1.0, 1e-4, guide="AutoNormal"),
    Case("ng20", 5e-6, 100, 6.0, 1.0, batch=50, delta=1e-6),
    Case("ng20", 0.002, 30, 6.0, 1.0),
    Case("ng20", 3.0, 100, 12.0, 1.0),
    Case("ng20", 4.0, 100, 12.0, 1.0),
    Case("ng20", 5e-6, 100, 12.0, 1e-4, batch=50, guide="AutoDelta", delta=1e-6),
    Case("ng20", 0.1, 100, 12.0, 1e-4, guide="AutoNormal"),
    Case("ng20", 3.0, 100, 12.0, 3e-5, guide="AutoNormal"),
    # Both run away on records drawn from the model, the second one on real ones too.
    Case("ng20", 3.0, 100, 12.0, 1e-4, guide="AutoNormal"),
    Case("ng20", 3.0, 100, 12.0, 3e-4, guide="AutoNormal"),
)
CLIP_CASES = {
    "breast": (Case("breast", 3.0, 300, 1.0, 1.0, batch=80), (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)),
    "adult": (Case("adult", 0.3, 200, 1.0, 1.0, batch=1500), (0.5, 1.0, 2.0, 4.0, 8.0)),
    "ng20": (Case("ng20", 3.0, 100, 8.0, 1.0), (4.0, 8.0, 12.0, 16.0, 24.0, 32.0)),
}


def words(case: Case, study: Study, runs: int) -> dict[str, Any]:
    """A plan's word beside what runs gain."""
    run, plan = planned(case, study)
    # Which answers pure noise gives is a coin, whose mean takes many runs to see.
    runs *= MANY if plan.verdict == "swamped" else 1
    reached = gains(run, case, study, runs)
    return {
        **case._asdict(),
        "kind": plan.kernel,
        "verdict": plan.verdict,
        "influence": round(plan.influence, 3),
        "range": [round(plan.gain, 3), round(plan.gain_at_best, 3)],
        "log_score_gain": _mean(reached[:, 0]),
        "accuracy_gain": _mean(reached[:, 1]) if reached.shape[1] > 1 else None,
        "runs": runs,
    }


def clips(case: Case, grid: tuple[float, ...], study: Study, runs: int) -> dict[str, Any]:
    """The suggested clip norm beside the best of a grid."""
    suggested, found = math.nan, {}
    for clip_norm in grid:
        at = case._replace(clip_norm=clip_norm)
        run, plan = planned(at, study)
        suggested, found[clip_norm] = plan.suggested_clip_norm, gains(run, at, study, runs)[:, 0]
    best = max(found, key=lambda clip_norm: found[clip_norm].mean())
    return {
        "data": case.data,
        "epsilon": case.epsilon,
        "suggested": round(suggested, 3),
        "best": best,
        "suggested_over_best": round(suggested / best, 2),
        "log_score_gain": {str(clip_norm): _mean(each) for clip_norm, each in found.items()},
        "runs": runs,
    }


def lines(chosen: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The lines that were asked for, as each is done."""
    for name in chosen.data:
        study = STUDIES[name](chosen.folder)
        if "words" in chosen.part:
            for case in WORD_CASES:
                if case.data == name and ("fit" if case.guide else "chain") in chosen.method:
                    yield words(case, study, chosen.runs)
        if "clips" in chosen.part:
            yield clips(*CLIP_CASES[name], study, chosen.runs)


def arguments() -> argparse.Namespace:
    """What to run; by default everything."""
    parser = argparse.ArgumentParser(description="One JSON line a case, printed as it is done.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", nargs="+", choices=STUDIES, default=list(STUDIES))
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--method", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--runs", type=int, default=10)
    return parser.parse_args()


PARTS, METHODS = ("words", "clips"), ("chain", "fit")

if __name__ == "__main__":
    for line in lines(arguments()):
        print(json.dumps(line), flush=True)
