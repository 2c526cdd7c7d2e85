"""Figures 1 and 2 of *Privacy for Free* (Wang, Fienberg, Smola 2015), with total ε on every point.

Usage::

    python examples/reproduce/privacy_for_free.py PATH_TO_DATA [--figure 1 2a 2b 2c] [--runs 5]
        [--out FOLDER] [--small]

``PATH_TO_DATA`` holds ``abalone_dpvi.npz`` and ``adult109.npz`` (figures 2b and 2c only). Figure 1
shows trajectories over the exact posterior of a two-dimensional regression at ε = 10. Figures 2a
to 2c show test accuracy against ε for one posterior sample (OPS), the hybrid, the four
stochastic-gradient kernels, objective perturbation and the same model without privacy. Every ε is
the total of a run, warm-up and starting draw included, at δ = 1e-5 (zero-out). One JSON line a
point goes to the screen and a picture to the folder.

Settings (steps, clip norms, tempering) were found on other seeds of the same data: what finding
them cost is not in these ε, as in the paper. Abalone comes standardised on the whole data: that is
treated as public.
"""

import argparse
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import jax
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.optimize import minimize
from scipy.special import expit

import numpyro_dp as ndp
from numpyro_dp.accounting import calibrate

DELTA = 1e-5
EPSILONS = (0.1, 0.5, 1.0, 5.0)
TAIL = 0.6


class Setting(NamedTuple):
    """What serves at one ε: private steps, step size times likelihood power, likelihood power."""

    num_steps: int
    stride: float
    power: float
    draw_power: float


@dataclass(frozen=True)
class Task:
    """A classification task and the settings that serve on it.

    Args:
        name: title of its panel.
        train, test: rows and 0/1 outcomes.
        row_norm: public bound to which OPS and perturbation project a row.
        prior_sd: of a coefficient.
        clip_norm: of a record's gradient.
        settings: by ε; ``draw_power`` is that of one posterior sample.
    """

    name: str
    train: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]
    row_norm: float
    prior_sd: float
    clip_norm: float
    settings: dict[float, Setting]

    def accuracy(self, w: np.ndarray) -> float:
        """Share of test rows on the right side of ``x·w = 0``."""
        x, y = self.test
        return float(np.mean((x @ w > 0) == y))


@lru_cache
def logistic(prior_sd: float) -> Callable:
    """Logistic regression with independent normal priors."""

    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, prior_sd).expand([x.shape[-1]]).to_event(1))
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    return model


def unit_rows(x: np.ndarray) -> np.ndarray:
    """Rows scaled to norm 1: a function of each record alone."""
    return (x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-9)).astype(np.float32)


def two_normals(small: bool) -> Task:
    """Two overlapping normal classes in two dimensions."""
    count = 600 if small else 6_000
    rng = np.random.default_rng(0)
    y = (rng.random(2 * count) < 0.5).astype(np.float32)
    centres = np.array([[-0.5, 0.0], [0.5, 0.5]])
    x = centres[y.astype(int)] + rng.normal(0, 0.7, (2 * count, 2))
    x = unit_rows(np.c_[x, np.ones(2 * count)])
    return Task(
        name="two normals",
        train=(x[:count], y[:count]),
        test=(x[count:], y[count:]),
        row_norm=1.0,
        prior_sd=3.0,
        clip_norm=0.5,
        settings={
            0.1: Setting(300, 1e-2, 0.05, 0.02),
            0.5: Setting(300, 1e-2, 0.2, 0.05),
            1.0: Setting(300, 1e-2, 0.5, 0.05),
            5.0: Setting(300, 1e-2, 1.0, 0.2),
        },
    )


def abalone(folder: Path) -> Task:
    """Abalone as in *DPVI*, an intercept added and rows scaled to norm 1."""
    with np.load(folder / "abalone_dpvi.npz") as stored:
        x, y, count = stored["X"], stored["y"].astype(np.float32), int(stored["n_train"])
    x = unit_rows(np.c_[x, np.ones(len(x))])
    return Task(
        name="Abalone",
        train=(x[:count], y[:count]),
        test=(x[count:], y[count:]),
        row_norm=1.0,
        prior_sd=10.0,
        clip_norm=0.5,
        settings={
            0.1: Setting(400, 4e-3, 0.05, 0.02),
            0.5: Setting(1000, 1e-2, 0.2, 0.05),
            1.0: Setting(1000, 3e-2, 0.2, 0.05),
            5.0: Setting(2000, 3e-2, 1.0, 0.2),
        },
    )


def adult(folder: Path) -> Task:
    """Adult with 109 columns between fixed bounds; samplers that need it project rows to norm 1."""
    with np.load(folder / "adult109.npz") as stored:
        train = stored["X_train"], stored["y_train"].astype(np.float32)
        test = stored["X_test"], stored["y_test"].astype(np.float32)
    return Task(
        name="Adult",
        train=train,
        test=test,
        row_norm=1.0,
        prior_sd=1.0,
        clip_norm=0.5,
        settings={
            0.1: Setting(400, 1e-3, 1.0, 0.02),
            0.5: Setting(400, 1e-3, 1.0, 0.05),
            1.0: Setting(400, 1e-3, 1.0, 0.1),
            5.0: Setting(400, 1e-3, 1.0, 0.3),
        },
    )


def shift_of(epsilon: float) -> float:
    """μ of the Gaussian mechanism that costs ε at δ = 1e-5."""
    budget = ndp.Budget(epsilon, DELTA)
    return 1 / calibrate(ndp.events.GaussianDpEvent, budget)


def epsilon_of(shift: float) -> float:
    """ε at δ = 1e-5 of the Gaussian mechanism with shift μ."""
    accountant = ndp.Accountant()
    accountant.charge(ndp.events.GaussianDpEvent(1 / shift), label="part of a budget")
    return accountant.epsilon(DELTA)


def posterior_sample(task: Task, epsilon: float, budget: ndp.Budget) -> ndp.OPS:
    """One tempered posterior sample, its prior by the public rule m = (τ·R/μ)²."""
    tau = task.settings[epsilon].draw_power
    prior_sd = shift_of(budget.epsilon) / (tau * task.row_norm)
    guarantee = ndp.StronglyLogConcave(row_norm=task.row_norm)
    return ndp.OPS(logistic(prior_sd), guarantee=guarantee, likelihood_power=tau, privacy=budget)


def gradient_kernel(name: str, task: Task, epsilon: float, **terms) -> ndp.MCMC:
    """A stochastic-gradient kernel at the same drift for all: η below is DP-SGLD's step size."""
    setting = task.settings[epsilon]
    tau, step = setting.power, setting.stride / setting.power
    kept = {"clip_norm": task.clip_norm, "likelihood_power": tau, **terms}
    model = logistic(task.prior_sd)
    # DP-SGHMC at momentum share f is DP-SGLD at step size 2η/f.
    lost = 0.1
    friction = {"step_size": lost * step / 2}
    damping = lost / math.sqrt(friction["step_size"])
    if name == "DP-SGHMC":
        return ndp.DPSGHMC(model, friction=damping, **friction, **kept)
    if name == "DP-SGNHT":
        return ndp.DPSGNHT(model, diffusion=damping, **friction, **kept)
    if name == "DP-SGFS":
        return ndp.DPSGFS(model, step_size=step, **kept)
    return ndp.DPSGLD(model, step_size=step, **kept)


def run(kernel, task: Task, num_steps: int, seed: int) -> tuple[np.ndarray, float]:
    """Draws after burn-in (the only one, of a posterior sample) and the total ε."""
    kept = 1 if isinstance(kernel, ndp.OPS) else round(TAIL * num_steps)
    warmup = 0 if isinstance(kernel, ndp.OPS) else num_steps - kept
    mcmc = ndp.MCMC(kernel, num_warmup=warmup, num_samples=kept, progress_bar=False)
    mcmc.run(jax.random.key(seed), *task.train)
    return np.asarray(mcmc.get_samples()["w"]), mcmc.privacy.epsilon


def hybrid(task: Task, epsilon: float) -> ndp.MCMC:
    """DP-SGNHT from a posterior sample that takes a quarter of μ²."""
    shift = shift_of(epsilon)
    first, rest = (
        # A thousandth less: the release's own distance adds to the sum of the two.
        ndp.Budget(0.999 * epsilon_of(shift * math.sqrt(share)), DELTA)
        for share in (0.25, 0.75)
    )
    start = posterior_sample(task, epsilon, first)
    return gradient_kernel("DP-SGNHT", task, epsilon, privacy=rest, init_kernel=start)


def perturbed(task: Task, budget: ndp.Budget, seed: int) -> tuple[np.ndarray, float]:
    """Coefficients by objective perturbation, and the total ε."""
    estimator = ndp.ObjectivePerturbation(
        logistic(task.prior_sd), row_norm=task.row_norm, privacy=budget
    )
    result = estimator.run(jax.random.key(seed), *task.train)
    return np.asarray(result.params["w_auto_loc"]), result.privacy.epsilon


def without_privacy(task: Task) -> dict:
    """Accuracy at the posterior mode, and the posterior's width by its curvature there."""
    x, y = (a.astype(float) for a in task.train)
    prior = np.eye(x.shape[1]) / task.prior_sd**2

    def loss(w):
        margin = x @ w
        value = np.logaddexp(0, margin).sum() - y @ margin + w @ prior @ w / 2
        return value, x.T @ (expit(margin) - y) + prior @ w

    mode = minimize(loss, np.zeros(x.shape[1]), jac=True, options={"maxiter": 10_000}).x
    weight = expit(x @ mode) * expit(-x @ mode)
    covariance = np.linalg.inv((x * weight[:, None]).T @ x + prior)
    return {
        "method": "no privacy",
        "epsilon": None,
        "accuracy": [task.accuracy(mode)],
        "width": float(np.sqrt(np.diag(covariance)).mean()),
    }


def points(task: Task, runs: int) -> Iterator[dict]:
    """Accuracy and total ε of every method, one point at a time."""
    yield without_privacy(task)
    for epsilon in EPSILONS:
        budget = ndp.Budget(epsilon, DELTA)
        methods = {"OPS": posterior_sample(task, epsilon, budget), "hybrid": hybrid(task, epsilon)}
        names = ["DP-SGLD", "DP-SGHMC", "DP-SGNHT"]
        # Its second moment is a d × d matrix in every step.
        names += ["DP-SGFS"] if task.train[0].shape[1] <= 20 else []
        for name in names:
            methods[name] = gradient_kernel(name, task, epsilon, privacy=budget)
        for name, kernel in methods.items():
            steps = task.settings[epsilon].num_steps
            found = [run(kernel, task, steps, seed) for seed in range(runs)]
            yield {
                "method": name,
                "epsilon": max(spent for _, spent in found),
                "accuracy": [task.accuracy(draws.mean(0)) for draws, _ in found],
                "width": float(np.mean([draws.std(0).mean() for draws, _ in found])),
            }
        found = [perturbed(task, budget, seed) for seed in range(runs)]
        yield {
            "method": "objective perturbation",
            "epsilon": max(spent for _, spent in found),
            "accuracy": [task.accuracy(w) for w, _ in found],
        }


def draw_points(panels: tuple[plt.Axes, plt.Axes], found: list[dict]) -> None:
    """Accuracy (mean, two standard errors) and width of the draws against total ε."""
    accuracy, width = panels
    (free,) = (point for point in found if point["epsilon"] is None)
    accuracy.axhline(np.mean(free["accuracy"]), color="0.3", ls="--", lw=1, label="no privacy")
    for place, name in enumerate(dict.fromkeys(p["method"] for p in found if p["epsilon"])):
        line = [point for point in found if point["method"] == name]
        mean = [np.mean(point["accuracy"]) for point in line]
        error = [2 * np.std(p["accuracy"]) / math.sqrt(len(p["accuracy"])) for p in line]
        # Set apart sideways a little, so that bars do not hide each other.
        spent = [point["epsilon"] * 1.03 ** (place - 3) for point in line]
        look = {"marker": "o", "ms": 4, "lw": 1, "label": name, "color": f"C{place}"}
        accuracy.errorbar(spent, mean, error, capsize=2, **look)
        if line[0].get("width"):
            width.plot(spent, [point["width"] for point in line], **look)
    width.axhline(free["width"], color="0.3", ls="--", lw=1)
    accuracy.set_ylabel("test accuracy")
    width.set(ylabel="standard deviation of a coefficient's draws", yscale="log")
    for axes in panels:
        axes.set(xscale="log", xlabel="total ε (δ = 1e-5)")
        axes.grid(alpha=0.3)


def figure_two(task: Task, runs: int, path: Path) -> None:
    """One panel of Figure 2 and the width of the draws, its points printed as they come."""
    found = []
    for point in points(task, runs):
        found.append(point)
        shown = {**point, "mean": round(float(np.mean(point["accuracy"])), 4)}
        print(json.dumps({"task": task.name, **shown}), flush=True)
    save_figure_two(task.name, found, path)


def save_figure_two(name: str, found: list[dict], path: Path) -> None:
    """The picture of printed points."""
    figure, panels = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    draw_points(panels, found)
    figure.suptitle(f"{name}: what a total ε buys")
    panels[0].legend(fontsize=8, loc="lower right")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def line(x, y=None):
    """Linear regression in two dimensions, noise known."""
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def figure_one(small: bool, path: Path) -> None:
    """Trajectories of the kernels at ε = 10 over the exact posterior, which is normal."""
    count, steps = (1_000, 200) if small else (5_000, 1_500)
    rng = np.random.default_rng(1)
    x = unit_rows(rng.normal(size=(count, 2)) @ np.array([[1.0, 0.6], [0.0, 0.8]]))
    y = (x @ [0.8, -0.4] + rng.normal(size=count)).astype(np.float32)
    precision = np.eye(2) + x.T @ x
    mean, covariance = np.linalg.solve(precision, x.T @ y), np.linalg.inv(precision)
    step = 0.2 / np.linalg.eigvalsh(precision)[-1]
    kept = {"clip_norm": 3.0, "privacy": ndp.Budget(10.0, DELTA)}
    lost = 0.2
    rate = lost * step / 2
    damping = lost / math.sqrt(rate)
    kernels = {
        "DP-SGLD": ndp.DPSGLD(line, step_size=step, **kept),
        "DP-SGHMC": ndp.DPSGHMC(line, step_size=rate, friction=damping, **kept),
        "DP-SGNHT": ndp.DPSGNHT(line, step_size=rate, diffusion=damping, **kept),
        "DP-SGFS": ndp.DPSGFS(line, step_size=step, **kept),
    }
    figure, panels = plt.subplots(2, 2, figsize=(8, 7), layout="constrained")
    for axes, (name, kernel) in zip(panels.flat, kernels.items(), strict=True):
        mcmc = ndp.MCMC(kernel, num_warmup=0, num_samples=steps, progress_bar=False)
        mcmc.run(jax.random.key(0), x, y)
        draws = np.asarray(mcmc.get_samples()["w"])
        half = draws[steps // 2 :]
        shown = {
            "figure": "1",
            "method": name,
            "epsilon": mcmc.privacy.epsilon,
            "sd_over_exact": (half.std(0) / np.sqrt(np.diag(covariance))).round(2).tolist(),
        }
        print(json.dumps(shown), flush=True)
        axes.plot(*draws.T, color="tab:blue", lw=0.4, alpha=0.8)
        draw_contours(axes, mean, covariance)
        axes.set(title=f"{name}, ε = {mcmc.privacy.epsilon:.3g}", xlabel="w₁", ylabel="w₂")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def draw_contours(axes: plt.Axes, mean: np.ndarray, covariance: np.ndarray) -> None:
    """The exact posterior's regions of 50, 90 and 99 % mass."""
    angle = np.linspace(0, 2 * np.pi, 200)
    circle = np.linalg.cholesky(covariance) @ np.stack([np.cos(angle), np.sin(angle)])
    for mass in (0.5, 0.9, 0.99):
        radius = math.sqrt(-2 * math.log(1 - mass))
        axes.plot(*(mean[:, None] + radius * circle), color="tab:orange", lw=1.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", type=Path, nargs="?", help="folder of the data files")
    parser.add_argument("--figure", nargs="+", choices=("1", "2a", "2b", "2c"))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("."))
    parser.add_argument("--small", action="store_true", help="a quick look: one run, little data")
    given = parser.parse_args()
    figures = given.figure or (("1", "2a", "2b", "2c") if given.data else ("1", "2a"))
    if given.data is None and not {"1", "2a"}.issuperset(figures):
        parser.error("figures 2b and 2c need the folder of the data files")
    runs = 1 if given.small else given.runs
    given.out.mkdir(parents=True, exist_ok=True)
    for name in figures:
        path = given.out / f"privacy_for_free_{name}.png"
        if name == "1":
            figure_one(given.small, path)
            continue
        task = {
            "2a": lambda: two_normals(given.small),
            "2b": lambda: abalone(given.data),
            "2c": lambda: adult(given.data),
        }[name]()
        figure_two(task, runs, path)


if __name__ == "__main__":
    main()
