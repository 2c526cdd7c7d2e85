"""Private Pólya–Gamma regression: scores against ε, and whether its intervals cover the truth.

Usage::

    python examples/reproduce/vips_regression.py PATH_TO_DATA [--data adult109 adult14 ...]
        [--epsilon 0.1 0.5 1] [--design diagonal] [--runs 5] [--small]
    python examples/reproduce/vips_regression.py PATH_TO_DATA --coverage [--epsilon 0.5 1]
        [--design full paper] [--runs 10] [--small]

Every ε is the total of a run of ``VIPS`` at δ = 1e-5 under zero-out, centring of the inputs
included. Without ``--design`` the guide chooses by public numbers (``VIPS.forecast`` says how). One
JSON line a run goes to the screen; noise comes from the operating system, so no two are alike.

``--coverage`` takes the inputs of ``adult14`` cut to norm 6, draws outcomes from known coefficients
(the fit to the real ones), and counts how many of the 15 lie in their 95 % intervals. ``width`` is
that of the intervals over the non-private ones, ``error`` the root mean square error of the means
in non-private standard deviations.
"""

import argparse
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from regression_data import TASKS, Task, predictive, scores
from scipy.special import expit

import numpyro_dp as ndp

DELTA, DRAWS, PRIOR_SD = 1e-5, 200, 3.0
COVERAGE_NORM, NORMAL_95 = 6.0, 1.959964


def model(x, y=None):
    """Logistic regression; the last column of ``x`` is the intercept."""
    w = numpyro.sample("w", dist.Normal(0, PRIOR_SD).expand([x.shape[-1]]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


@cache
def guide(row_norm: float, design: str | None) -> ndp.guides.PolyaGammaGuide:
    """One guide for equal settings, so that repeated runs compile once."""
    return ndp.guides.PolyaGammaGuide(model, row_norm=row_norm, design=design, intercept=-1)


def fit(task: Task, epsilon: float, design: str | None, seed: int) -> ndp.DPSVIRunResult:
    """One private fit to the training rows."""
    vips = ndp.VIPS(model, guide(task.row_norm, design), privacy=ndp.Budget(epsilon, DELTA))
    return vips.run(jax.random.key(seed), None, task.x, task.y, progress_bar=False)


def scored(task: Task, epsilon: float, design: str | None, seed: int) -> dict[str, object]:
    """Scores of the posterior predictive on the test rows."""
    result = fit(task, epsilon, design, seed)
    draws = np.asarray(result.get_samples(jax.random.key(seed), DRAWS)["w"])
    found = scores(predictive(draws, task.x_test), task.y_test)
    return {"spent": result.privacy.epsilon, **found}


def non_private(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mode and standard deviations of the posterior, by Newton's method."""
    at = np.zeros(x.shape[1])
    for _ in range(30):
        p = expit(x @ at)
        precision = (x.T * (p * (1 - p))) @ x + np.eye(len(at)) / PRIOR_SD**2
        at = at + np.linalg.solve(precision, x.T @ (y - p) - at / PRIOR_SD**2)
    return at, np.sqrt(np.diag(np.linalg.inv(precision)))


def redrawn(task: Task, seed: int) -> tuple[Task, np.ndarray]:
    """Inputs cut to a norm, outcomes drawn from known coefficients; and these."""
    x = task.x.astype(float)
    inputs = x[:, :-1]
    x[:, :-1] *= np.minimum(1, COVERAGE_NORM / np.linalg.norm(inputs, axis=1, keepdims=True))
    truth, _ = non_private(x, task.y)
    y = np.random.default_rng(seed).random(len(x)) < expit(x @ truth)
    drawn = task._replace(x=x.astype(np.float32), y=y.astype(np.int32), row_norm=COVERAGE_NORM)
    return drawn, truth


def covered(task: Task, epsilon: float, design: str | None, seed: int) -> dict[str, object]:
    """Share of coefficients in their 95 % intervals, with width and error."""
    drawn, truth = redrawn(task, seed)
    result = fit(drawn, epsilon, design, seed)
    mean = np.asarray(result.params["auto_loc"], float)
    sd = np.linalg.norm(np.asarray(result.params["auto_scale_tril"], float), axis=1)
    _, own = non_private(drawn.x.astype(float), drawn.y)
    return {
        "spent": result.privacy.epsilon,
        "covered": float(np.mean(np.abs(mean - truth) <= NORMAL_95 * sd)),
        "width": float(np.mean(sd / own)),
        "error": float(np.sqrt(np.mean(((mean - truth) / own) ** 2))),
    }


def runs(options: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Every run that was asked for."""
    one = covered if options.coverage else scored
    for name in ["adult14"] if options.coverage else options.data:
        task = TASKS[name](options.folder)
        task = task.thinned(16) if options.small else task
        for epsilon in options.epsilon:
            for design in options.design:
                for seed in range(1 if options.small else options.runs):
                    wanted = None if design == "auto" else design
                    point = one(task, epsilon, wanted, seed)
                    yield {"data": name, "epsilon": epsilon, "design": design, **point}


def main(arguments: list[str] | None = None) -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.1, 0.5, 1.0])
    parser.add_argument("--design", nargs="+", default=["auto"],
                        choices=["auto", "full", "diagonal", "paper"])  # fmt: skip
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--coverage", action="store_true", help="intervals on redrawn outcomes")
    parser.add_argument("--small", action="store_true", help="every 16th row, one run")
    for point in runs(parser.parse_args(arguments)):
        print(json.dumps(point), flush=True)


if __name__ == "__main__":
    main()
