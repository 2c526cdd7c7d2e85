"""DP-Fast MH's figures with the total ε of a run in place of its ε per step; δ = 1e-5.

    python examples/reproduce/dp_fast_mh.py DATA [--small] [--only mixture|mnist|chi] [--runs 2]
        [--seed 0] [--out FOLDER]

DATA is the folder with ``gmm_dp_fast_mh.npz`` and ``mnist79_pca50.npz``. The mixture is scored by
the symmetric KL divergence between the draws on 99 × 99 bins and the exact posterior, with
smoothing 1e-12 (the paper's) and 1e-5, and by the mass of the mode with θ₂ > 0; every draw counts,
the way from the start (0, 0) included. MNIST 7 against 9 is scored by the accuracy of the mean of
the last seven tenths of the released positions. The sweep over χ draws the accuracy of the mean of
their second half, and the mean batch, against ε. It shows what the paper's λ is for: with
λ = χ·N·b, b the bound on a record, a mini-batch has (1 + χ)·N·b draws and costs as b·(1 + 1/χ) at
most. ε and the number of steps are the same for every χ; what the budget chooses is the likelihood
power, so that a small batch is paid for in power. (The paper's λ = 10 is χ below 1 here, refused.)
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist

import numpyro_dp as ndp
from numpyro_dp.accounting.events import BarkerBit, DpEvent, MinibatchBit, SelfComposedDpEvent

DELTA = 1e-5
TEMPERATURE = 500.0
# Public range of an observation; what lies outside is cut to the bound that it gives.
RANGE = 8.0
_GRID = jnp.linspace(-RANGE, RANGE, 41)


def components(theta: Any, x: Any) -> Any:
    """Log density of the two-component mixture, up to a constant; written out for speed."""
    return jnp.logaddexp(-((x - theta[0]) ** 2) / 4, -((x - theta[0] - theta[1]) ** 2) / 4)


@dataclass(frozen=True)
class Coordinates:
    """What the walk moves: θ itself, or the means of the components.

    A move costs as much as the larger shift of a mean, for the most extreme observation tells by
    it: of all walks, one with equal steps in both means goes farthest at a price. That follows
    from the model and from no data.
    """

    theta: Callable[[Any], Any]
    exchanged: Callable[[Any], Any]

    def model(self, x: Any) -> None:
        flat = dist.ImproperUniform(dist.constraints.real, (), ())
        theta = self.theta(numpyro.sample("z", flat.expand([2]).to_event(1)))
        numpyro.factor("box", jnp.where(jnp.all(jnp.abs(theta) <= 3), 0.0, -jnp.inf))
        with numpyro.plate("people", x.shape[0]):
            numpyro.factor("x", components(theta, x))

    def record_bound(self, here: dict, there: dict) -> Any:
        """The most by which an observation in [−8, 8] can tell two positions apart."""
        before, after = (components(self.theta(z["z"]), _GRID) for z in (here, there))
        return jnp.max(jnp.abs(after - before))

    def swap(self, position: dict) -> dict:
        """Exchange the components: the same likelihood for every record."""
        return {"z": self.exchanged(position["z"])}


THETA = Coordinates(lambda z: z, lambda z: jnp.stack([z[0] + z[1], -z[1]]))
MEANS = Coordinates(lambda z: jnp.stack([z[0], z[1] - z[0]]), lambda z: z[::-1])


class Row(NamedTuple):
    """A kernel of the mixture; steps are always 20,000."""

    epsilon: float
    where: Coordinates
    swap: bool
    settings: dict[str, Any]


MIXTURE = {
    "Barker + label swap": Row(0.3, MEANS, True, {"step_size": 0.12, "max_move": 0.3}),
    "two candidates + label swap": Row(
        0.3, MEANS, True, {"step_size": 0.09, "max_move": 0.225, "num_candidates": 2}
    ),
    "multi-candidate, K = 6": Row(
        0.6, THETA, False, {"step_size": 0.12, "max_move": 0.12, "num_candidates": 6}
    ),
    "TunaMH Barker + label swap": Row(
        0.349, THETA, True, {"step_size": 0.1, "max_move": 0.25, "batch_size": 300.0}
    ),
}


class Exact:
    """The posterior on 99 × 99 bins, from its log mass on a fine grid."""

    def __init__(self, data: Any) -> None:
        grid = data["grid"]
        mass = np.exp(data["log_post_raw"].astype(float))
        self.edges = np.linspace(-3, 3, 100)
        place = np.digitize(grid, self.edges) - 1
        self.mass = np.zeros((99, 99))
        np.add.at(self.mass, (place[:, None], place[None, :]), mass / mass.sum())

    def divergence(self, draws: np.ndarray, smoothing: float) -> float:
        """Symmetric KL divergence of draws to the posterior, both smoothed."""
        counts = np.histogram2d(draws[:, 0], draws[:, 1], bins=[self.edges, self.edges])[0]
        p, q = self.mass + smoothing, counts / len(draws) + smoothing
        p, q = p / p.sum(), q / q.sum()
        return float(np.sum((p - q) * np.log(p / q)))


def run_mixture(x: np.ndarray, row: Row, steps: int, seed: int) -> tuple[ndp.MCMC, np.ndarray]:
    """A run and its draws of θ."""
    kernel = ndp.DPFastMH(
        row.where.model,
        record_bound=row.where.record_bound,
        public_moves=(row.where.swap,) if row.swap else (),
        likelihood_power=1 / TEMPERATURE,
        privacy=ndp.Budget(row.epsilon, DELTA),
        **row.settings,
    )
    mcmc = ndp.MCMC(kernel, num_warmup=0, num_samples=steps, progress_bar=False, secure=False)
    mcmc.run(jax.random.key(seed), x, init_params={"z": jnp.zeros(2)})
    return mcmc, np.asarray(jax.vmap(row.where.theta)(mcmc.get_samples()["z"]))


def report_mixture(folder: Path, small: bool, seeds: range, only: str | None, out: Path) -> None:
    figure, panels = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
    data = np.load(folder / "gmm_dp_fast_mh.npz")
    exact, x, steps = Exact(data), data["x"], 500 if small else 20_000
    for name, row in MIXTURE.items():
        if only is not None and only not in name:
            continue
        for seed in seeds:
            start = time.perf_counter()
            mcmc, draws = run_mixture(x, row, steps, seed)
            seconds = time.perf_counter() - start
            at = [n for n in (steps // 5, steps // 2, steps) if n]
            path = ", ".join(f"{exact.divergence(draws[:n], 1e-12):.2f} at {n}" for n in at)
            moved = np.mean(np.any(np.diff(draws, axis=0) != 0, axis=1))
            print(
                f"{name:28} ε = {mcmc.privacy.epsilon:.4f}  KL {path} "
                f"({exact.divergence(draws, 1e-5):.2f} with smoothing 1e-5)  "
                f"mass {np.mean(draws[:, 1] > 0):.3f}  moves {moved:.2f}  {seconds:.0f} s",
                flush=True,
            )
            taken = np.linspace(steps // 20, steps, 20).astype(int)
            reached = [exact.divergence(draws[:n], 1e-12) for n in taken]
            label = f"{name}, ε = {mcmc.privacy.epsilon:.2g}" if seed == seeds[0] else None
            colour = f"C{list(MIXTURE).index(name)}"
            panels[0].plot(taken, reached, color=colour, label=label)
            # Every step costs the same; compilation is shared out among them.
            panels[1].plot(taken / steps * seconds, reached, color=colour)
    panels[0].set(xlabel="iterations", ylabel="symmetric KL divergence", yscale="log")
    panels[1].set(xlabel="seconds, compilation included")
    panels[0].legend(fontsize=8)
    save(figure, out / "dp_fast_mh_mixture.png")


def save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


# One unit of the scaled rows; the prior has standard deviation 1 before scaling.
PIXELS = 8.0


def classifier(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, PIXELS).expand([x.shape[-1]]).to_event(1))
    with numpyro.plate("images", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


# ε -> steps, likelihood power, step size, and the budget of a private start (None: zero). Powers at
# 0.5 and 1, and over how many positions to average, were chosen by the accuracy on training images
# of runs that no ε here covers.
MNIST: dict[float, tuple[int, float, float, ndp.Budget | None]] = {
    0.1: (150, 0.02, 0.1, ndp.Budget(0.085, 5e-6)),
    0.5: (2_100, 0.04, 0.14, None),
    1.0: (2_480, 0.07, 0.14, None),
}


def descent(budget: ndp.Budget) -> ndp.DPSGLD:
    """Noisy gradient descent, as one sample of Langevin dynamics at no temperature."""
    return ndp.DPSGLD(
        classifier,
        step_size=2e-3,
        clip_norm=1.0,
        temperature=1e-9,
        steps_per_sample=50,
        privacy=budget,
    )


def run_mnist(data: Any, epsilon: float, steps: int, seed: int) -> ndp.MCMC:
    _, power, step, start = MNIST[epsilon]
    kernel = ndp.DPFastMH(
        classifier,
        step_size=step,
        # No max_move: rows are projected to norm 1 and the charge is averaged over directions.
        lipschitz=1.0,
        likelihood_power=power,
        init_kernel=None if start is None else descent(start),
        accountant=ndp.Accountant(ndp.Budget(epsilon, DELTA)),
    )
    mcmc = ndp.MCMC(kernel, num_warmup=0, num_samples=steps, progress_bar=False)
    return from_zero(mcmc, data, seed)


def from_zero(mcmc: ndp.MCMC, data: Any, seed: int) -> ndp.MCMC:
    """Run on the scaled images, from the public start 0."""
    x = (data["X_train"] / PIXELS).astype(np.float32)
    zero = {"w": jnp.zeros(x.shape[1])}
    mcmc.run(jax.random.key(seed), x, data["y_train"].astype(np.int32), init_params=zero)
    return mcmc


def accuracy(w: np.ndarray, data: Any) -> float:
    """Share of test images that a weight vector tells apart."""
    return float(np.mean((data["X_test"] @ w > 0) == data["y_test"]))


def report_mnist(folder: Path, small: bool, seeds: range, out: Path) -> None:
    data = np.load(folder / "mnist79_pca50.npz")
    figure, axes = plt.subplots(figsize=(5.5, 4), layout="constrained")
    for epsilon, (steps, power, _, _) in MNIST.items():
        for seed in seeds:
            begun = time.perf_counter()
            mcmc = run_mnist(data, epsilon, 100 if small else steps, seed)
            w = np.asarray(mcmc.get_samples()["w"])
            mean = w[3 * len(w) // 10 :].mean(0)
            scores = [accuracy(each, data) for each in (mean, w[-1], w[0])]
            print(
                f"MNIST 7v9, power {power:<5} ε = {mcmc.privacy.epsilon:.4f}  accuracy of the "
                f"mean {scores[0]:.4f}, last {scores[1]:.4f}, first {scores[2]:.4f}  "
                f"{time.perf_counter() - begun:.0f} s",
                flush=True,
            )
            axes.plot(mcmc.privacy.epsilon, scores[0], "o", color="C0")
            axes.plot(mcmc.privacy.epsilon, scores[1], "x", color="C1")
    axes.set(xscale="log", xlabel="total ε (δ = 1e-5)", ylabel="test accuracy, 7 against 9")
    axes.legend(["mean of the last 70 %", "last position"])
    save(figure, out / "dp_fast_mh_mnist.png")


# Every χ at these ε takes as many steps of one size; without χ a step reads all records. Half of
# all moves are longer than the longest allowed, and shortened to it.
CHI = (1.0, 2.0, 4.0, 8.0, None)
CHI_EPSILONS = (0.1, 0.5, 1.0)
CHI_STEPS, CHI_STEP_SIZE = 2_000, 0.3
LONGEST = CHI_STEP_SIZE * 50**0.5


def mean_batch(power: float, chi: float, num_records: int) -> float:
    """Rows have norm 1, so a record's term is power · LONGEST."""
    # χ = 1 is the least there is: rounded below it, a batch would be refused.
    return (1 + chi) * num_records * power * LONGEST * (1 + 1e-9)


def accept_bit(power: float, chi: float | None, num_records: int) -> DpEvent:
    """One step at a likelihood power."""
    if chi is None:
        return BarkerBit(power * LONGEST)
    batch = mean_batch(power, chi, num_records)
    return MinibatchBit(num_records, power, LONGEST, batch, "barker", 0.0)


def run_chi(data: Any, epsilon: float, chi: float | None, steps: int, seed: int) -> ndp.MCMC:
    size, budget = len(data["X_train"]), ndp.Budget(epsilon, DELTA)

    def run(noise: float) -> DpEvent:
        return SelfComposedDpEvent(accept_bit(1 / noise, chi, size), steps)

    # A thousandth for the tables, which the ledger charges beside the bits.
    power = 0.999 / ndp.calibrate(run, budget, "zero_out")
    kernel = ndp.DPFastMH(
        classifier,
        step_size=CHI_STEP_SIZE,
        lipschitz=1.0,
        max_move=LONGEST,
        likelihood_power=power,
        batch_size=None if chi is None else mean_batch(power, chi, size),
        accountant=ndp.Accountant(budget),
    )
    mcmc = ndp.MCMC(kernel, num_warmup=0, num_samples=steps, progress_bar=False)
    return from_zero(mcmc, data, seed)


def report_chi(folder: Path, small: bool, seeds: range, out: Path) -> None:
    data = np.load(folder / "mnist79_pca50.npz")
    figure, panels = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    # Every run compiles its own step, which is most of a short run's time.
    swept = CHI[::2] if small else CHI
    scores, batches = (np.zeros((len(swept), len(CHI_EPSILONS), len(seeds))) for _ in range(2))
    for (row, epsilon), (column, chi) in itertools.product(
        enumerate(CHI_EPSILONS), enumerate(swept)
    ):
        for place, seed in enumerate(seeds):
            begun = time.perf_counter()
            mcmc = run_chi(data, epsilon, chi, 100 if small else CHI_STEPS, seed)
            w = np.asarray(mcmc.get_samples()["w"])
            moved = np.mean(np.any(np.diff(w, axis=0) != 0, axis=1))
            kernel = mcmc.sampler
            batch = kernel.batch_size or len(data["X_train"])
            score = accuracy(w[len(w) // 2 :].mean(0), data)
            print(
                f"MNIST 7v9, χ = {chi or '∞':<4} ε = {mcmc.privacy.epsilon:.4f}  mean batch "
                f"{batch:6.0f} ({batch / len(data['X_train']):.1%})  power "
                f"{kernel.likelihood_power:.4f}  accuracy of the mean {score:.4f}  "
                f"moves {moved:.2f}  {time.perf_counter() - begun:.0f} s",
                flush=True,
            )
            scores[column, row, place], batches[column, row, place] = score, batch
    for chi, each, batch in zip(swept, scores.mean(2), batches.mean(2), strict=True):
        label = "all records" if chi is None else f"χ = {chi:g}"
        panels[0].plot(CHI_EPSILONS, each, "o-", label=label)
        panels[1].plot(CHI_EPSILONS, batch, "o-", label=label)
    for axes in panels:
        axes.set(xscale="log", xlabel="total ε (δ = 1e-5)", xticks=CHI_EPSILONS)
        axes.set_xticks([], minor=True)
        axes.set_xticklabels([f"{epsilon:g}" for epsilon in CHI_EPSILONS])
    panels[0].set(ylabel="test accuracy of the mean")
    panels[1].set(ylabel="mean batch", yscale="log")
    panels[0].legend(fontsize=8)
    save(figure, out / "dp_fast_mh_chi.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--small", action="store_true", help="few steps, for a quick look")
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0, help="the first run's; one more each")
    parser.add_argument("--only", default=None, help="mnist, chi, mixture, or part of a row's name")
    parser.add_argument("--out", type=Path, default=Path("."), help="folder for the pictures")
    options = parser.parse_args()
    seeds = range(options.seed, options.seed + options.runs)
    if options.only not in ("mnist", "chi"):
        only = None if options.only == "mixture" else options.only
        report_mixture(options.data, options.small, seeds, only, options.out)
    if options.only in (None, "mnist"):
        report_mnist(options.data, options.small, seeds, options.out)
    if options.only in (None, "chi"):
        report_chi(options.data, options.small, seeds, options.out)


if __name__ == "__main__":
    main()
