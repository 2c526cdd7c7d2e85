"""Accuracy of one posterior sample on Abalone and Adult, at a total ε and δ = 1e-5.

    python examples/reproduce/ops_accuracy.py DATA [--small] [--runs 5]

DATA is the folder with ``abalone_dpvi.npz`` and ``adult109.npz``. Rows are scaled to norm 1. Two
settings a data set, both public rules with nothing tuned on the test set: ``last iterate`` has a
flat prior and T Langevin steps, τ following from the budget; ``posterior draw`` has a Gaussian
prior of curvature m = (τ/μ)², μ the shift that the budget allows.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist

import numpyro_dp as ndp
from numpyro_dp.accounting.calibrate import gaussian_shift

DELTA = 1e-5
# (data, ε) -> T of the last iterate, τ of the posterior draw.
SETTINGS = {
    ("abalone", 0.1): (50, 0.02),
    ("abalone", 0.5): (200, 0.05),
    ("abalone", 1.0): (1_000, 0.05),
    ("adult", 0.1): (200, 0.02),
    ("adult", 0.5): (800, 0.05),
}
SMALL = {("abalone", 1.0): (100, 0.05)}


def classifier(x, y=None):
    flat = dist.ImproperUniform(dist.constraints.real, (), ())
    w = numpyro.sample("w", flat.expand([x.shape[-1]]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def load(folder: Path, name: str) -> tuple[np.ndarray, ...]:
    """Training and test rows, scaled to norm 1 one by one, and labels."""
    if name == "abalone":
        data = np.load(folder / "abalone_dpvi.npz")
        x, y, n = data["X"], data["y"], int(data["n_train"])
        parts = x[:n], y[:n], x[n:], y[n:]
    else:
        data = np.load(folder / "adult109.npz")
        parts = tuple(data[k] for k in ("X_train", "y_train", "X_test", "y_test"))
    x, y, xt, yt = parts
    unit = [(a / np.linalg.norm(a, axis=1, keepdims=True)).astype(np.float32) for a in (x, xt)]
    return unit[0], y.astype(np.int32), unit[1], yt.astype(np.int32)


def kernel(rule: str, budget: ndp.Budget, steps: int, power: float) -> ndp.OPS:
    if rule == "last iterate":
        return ndp.OPS(
            classifier,
            guarantee=ndp.StronglyLogConcave(row_norm=1.0),
            sampler=ndp.Langevin(iterations=steps),
            privacy=budget,
        )
    curvature = (power / gaussian_shift(budget)) ** 2
    return ndp.OPS(
        classifier,
        guarantee=ndp.StronglyLogConcave(row_norm=1.0, strong_convexity=curvature),
        likelihood_power=power,
        privacy=budget,
    )


def accuracy(
    data: tuple[np.ndarray, ...], rule: str, epsilon: float, steps: int, power: float, seed: int
) -> tuple[float, ndp.MCMC]:
    """Accuracy on the test rows of one draw, and the run that made it."""
    x, y, test, labels = data
    made = kernel(rule, ndp.Budget(epsilon, DELTA), steps, power)
    mcmc = ndp.MCMC(made, num_warmup=0, num_samples=1, progress_bar=False, secure=False)
    mcmc.run(jax.random.key(seed), x, y)
    w = np.asarray(mcmc.get_samples()["w"])[0]
    return float(np.mean((test @ w > 0) == labels)), mcmc


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--small", action="store_true", help="one quick setting")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--rule", choices=["last iterate", "posterior draw"], default=None)
    parser.add_argument("--only", default=None, help="one data set")
    options = parser.parse_args()
    rules = [options.rule] if options.rule else ["last iterate", "posterior draw"]
    for (name, epsilon), (steps, power) in (SMALL if options.small else SETTINGS).items():
        if options.only not in (None, name):
            continue
        data = load(options.data, name)
        for rule in rules:
            start = time.perf_counter()
            runs = [
                accuracy(data, rule, epsilon, steps, power, seed) for seed in range(options.runs)
            ]
            scores, last = [score for score, _ in runs], runs[-1][1].privacy
            print(
                f"{name:8} ε = {last.epsilon:.4f}  {rule:14}  accuracy {np.mean(scores):.4f} "
                f"(sd {np.std(scores):.4f}, {len(scores)} runs, "
                f"{time.perf_counter() - start:.0f} s)\n    {last.mechanism}\n"
                f"    clip {last.clip_norm:.4g}; {last.notes[-1]}",
                flush=True,
            )


if __name__ == "__main__":
    main()
