"""Private variational logistic regression on Adult: accuracy, AUC and log-loss against ε.

Usage::

    python examples/reproduce/vips.py PATH_TO_DATA [--epsilon 0.1 0.5 1] [--runs 5] [--small]
        [--clip centred plain]

``PATH_TO_DATA`` holds ``adult109.npz`` (109 columns, the last an intercept; bounds are fixed
constants). Every ε is the total of a run at δ = 1e-5 under zero-out: centring of the inputs (a
twentieth of the squared privacy loss), 100 full-batch steps of ``DPSVI`` with a mean-field normal
guide, and one release of the curvature for its scales. One JSON line a run goes to the screen.

Step size, clip norm and number of steps were chosen on other seeds of the same data: what that
cost is not in these ε. The columns' bounds and the bounds on row norms are public.
"""

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from numpyro.infer import init_to_uniform
from numpyro.infer.autoguide import AutoNormal
from scipy.special import expit
from scipy.stats import rankdata

import numpyro_dp as ndp
from numpyro_dp.accounting import privacy_curve

DELTA = 1e-5
CENTRING = 0.05
STEPS, CLIP_NORM = 100, 1.0
STEP_SIZE = {0.1: 1.6, 0.5: 2.0, 1.0: 2.5}  # by ε: the less noise, the longer
ROW_NORM = math.sqrt(14.0)  # eight one-hots and six numbers in [0, 1]; the intercept apart


class Task(NamedTuple):
    """Training rows and test rows; the last column is the intercept."""

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


def model(x, y=None):
    """Logistic regression."""
    w = numpyro.sample("w", dist.Normal(0, 3).expand([x.shape[-1]]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def load(folder: Path, small: bool) -> Task:
    """The task; every 16th row when ``small``."""
    with np.load(folder / "adult109.npz") as file:
        every = 16 if small else 1
        return Task(
            file["X_train"][::every].astype(np.float32),
            file["y_train"][::every].astype(np.int32),
            file["X_test"][::every].astype(np.float32),
            file["y_test"][::every].astype(np.int32),
        )


def shares(epsilon: float) -> tuple[float, ndp.Budget]:
    """Noise multiplier of the centring, and the budget that is left for the rest."""
    whole = 1 / ndp.calibrate(
        ndp.events.GaussianDpEvent, ndp.Budget(epsilon * (1 - 1e-4), DELTA), "zero_out"
    )
    rest = ndp.events.GaussianDpEvent(1 / (whole * math.sqrt(1 - CENTRING)))
    left = privacy_curve(rest, "zero_out").epsilon(DELTA)
    return 1 / (whole * math.sqrt(CENTRING)), ndp.Budget(left, DELTA)


def scores(draws: np.ndarray, task: Task) -> dict[str, float]:
    """Accuracy, AUC and log-loss of the posterior predictive on the test rows."""
    p = expit(task.x_test @ draws.T).mean(axis=1)
    positive = task.y_test == 1
    ranks = rankdata(p)[positive].sum() - positive.sum() * (positive.sum() + 1) / 2
    likelihood = np.where(positive, p, 1 - p)
    return {
        "accuracy": float(np.mean((p > 0.5) == positive)),
        "auc": float(ranks / (positive.sum() * (~positive).sum())),
        "log_loss": float(-np.log(np.maximum(likelihood, 1e-12)).mean()),
    }


def run(task: Task, epsilon: float, clip: str, seed: int, **settings: float) -> dict[str, object]:
    """One private fit; every charge goes to one ledger of (ε, δ)."""
    key = jax.random.key(seed)
    centring, left = shares(epsilon)
    accountant = ndp.Accountant(ndp.Budget(epsilon, DELTA))
    centred = ndp.PrivateCentre(
        row_norm=ROW_NORM, intercept=-1, noise_multiplier=centring, accountant=accountant
    ).run(key, task.x)
    guide = AutoNormal(model, init_loc_fn=init_to_uniform(radius=0.01), init_scale=0.02)
    step_size = settings.get("step_size", STEP_SIZE.get(epsilon, 1.5)) / len(task.x)
    svi = ndp.DPSVI(
        model,
        guide,
        optax.sgd(step_size, momentum=0.9),
        clip_norm=settings.get("clip_norm", CLIP_NORM),
        clip=clip,
        privacy=left,
        accountant=accountant,
    )
    steps = int(settings.get("steps", STEPS))
    x = np.asarray(centred.centre(task.x))
    result = svi.run(key, steps, x, task.y, progress_bar=False)
    draws = centred.restore(result.get_samples(key, 200)["w"])
    return {
        "epsilon": epsilon,
        "spent": accountant.epsilon(),
        "clip": clip,
        "seed": seed,
        **scores(np.asarray(draws), task),
    }


def runs(task: Task, options: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Every run that was asked for."""
    for epsilon in options.epsilon:
        for clip in options.clip:
            for seed in range(options.runs):
                yield run(task, epsilon, clip, seed)


def main(arguments: list[str] | None = None) -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.1, 0.5, 1.0])
    parser.add_argument("--clip", nargs="+", default=["centred"], choices=["centred", "plain"])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--small", action="store_true", help="every 16th row, one run")
    options = parser.parse_args(arguments)
    if options.small:
        options.runs = 1
    task = load(options.data, options.small)
    for point in runs(task, options):
        print(json.dumps(point), flush=True)


if __name__ == "__main__":
    main()
