"""Effective draws that a unit of privacy buys: κ in the law κ·μ²/(τ·C²·v), in 1 to 50 dimensions.

``python examples/reproduce/effective_draws.py [--small] [--runs 2] [--only 1 2 5] [--out FOLDER]``
prints one JSON line a sampler and dimension and draws ``effective_draws.png``.

The target is a logistic regression whose rows are unit vectors along the axes, so that no gradient
of a record is longer than C = 1 and the coordinates are independent, nearly Gaussian, of a variance
v that quadrature gives; τ = 1. ``draws`` is what ε = 10 at δ = 1e-5 buys: as many steps as it
pays for, by the ledger's own accounting, over the integrated autocorrelation time of a long run of
the same kernel (mean over coordinates, by ArviZ). μ is the Gaussian shift of the same ε and δ, and
κ = draws·C²·v/μ². Walks take steps of 0.3 posterior standard deviations, 0.15 in 50 dimensions;
``DPSGLD`` the step 0.2·v at which privacy noise is all its noise.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import arviz as az
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist

import numpyro_dp as ndp
from numpyro_dp.accounting import privacy_curve
from numpyro_dp.accounting.calibrate import gaussian_shift
from numpyro_dp.model.private_model import PrivateModel

BUDGET = ndp.Budget(10.0, 1e-5)
DIMENSIONS = (1, 2, 5, 10, 50)
# Rows along each axis: even, one half of each outcome.
ROWS = 200
STEPS = {1: 60_000, 2: 60_000, 5: 60_000, 10: 60_000, 50: 15_000}
# Bounds on the length of a move, in standard deviations of a step: rarely reached.
SPARE = 2.0


def regression(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[-1]]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def data(dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors along every axis, with as many ones as zeros on each."""
    x = np.repeat(np.eye(dim, dtype=np.float32), ROWS, axis=0)
    return x, np.tile(np.arange(ROWS) % 2, dim)


def variance() -> float:
    """Posterior variance of a coordinate, by quadrature."""
    w = np.linspace(-2, 2, 20_001)
    log_density = -ROWS / 2 * (np.logaddexp(0, w) + np.logaddexp(0, -w)) - w**2 / 2
    mass = np.exp(log_density - log_density.max())
    return float(np.sum(mass * w**2) / np.sum(mass))


def stride(dim: int) -> float:
    return (0.15 if dim == 50 else 0.3) * variance() ** 0.5


def fixed(dim: int) -> dict[str, float]:
    longest = stride(dim) * (dim**0.5 + SPARE)
    return {"step_size": stride(dim), "lipschitz": 1.0, "max_move": longest}


def averaged_barker(dim: int) -> ndp.DPFastMH:
    return ndp.DPFastMH(regression, step_size=stride(dim), lipschitz=1.0)


def fixed_barker(dim: int) -> ndp.DPFastMH:
    return ndp.DPFastMH(regression, **fixed(dim))


def fixed_penalty(dim: int) -> ndp.DPPenaltyMH:
    return ndp.DPPenaltyMH(regression, noise_scale=1.0, **fixed(dim))


def langevin(dim: int) -> ndp.DPSGLD:
    step = 0.2 * variance()
    # The whole variance of a step, h, is (h/2)²·noise_multiplier².
    return ndp.DPSGLD(regression, step_size=step, clip_norm=1.0, noise_multiplier=2 / step**0.5)


SAMPLERS: dict[str, Callable[[int], ndp.DPFastMH | ndp.DPSGLD]] = {
    "DPSGLD": langevin,
    "Barker, direction-averaged": averaged_barker,
    "Barker, fixed bound": fixed_barker,
    "penalty, noise 1, fixed bound": fixed_penalty,
}


def affordable(kernel: ndp.DPFastMH | ndp.DPSGLD, arrays: tuple) -> int:
    """Steps that the budget pays for."""
    wall = PrivateModel(regression, arrays)

    def fits(steps: int) -> bool:
        bound = kernel.bind(wall, num_steps=steps, relation="zero_out", delta=BUDGET.delta)
        curve = privacy_curve(bound.event(steps), "zero_out")
        return curve.epsilon(BUDGET.delta) <= BUDGET.epsilon

    low, high = 1, 2
    while fits(high):
        low, high = high, 2 * high
    while high - low > max(1, low // 200):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def autocorrelation_time(kernel: ndp.DPFastMH | ndp.DPSGLD, arrays: tuple, seed: int) -> float:
    """Steps for one effective draw, mean over coordinates."""
    dim = arrays[0].shape[1]
    steps = STEPS[dim]
    mcmc = ndp.MCMC(kernel, num_warmup=0, num_samples=steps, progress_bar=False, secure=False)
    mcmc.run(jax.random.key(seed), *arrays, init_params={"w": jnp.zeros(dim)})
    draws = np.asarray(mcmc.get_samples()["w"])
    effective = [az.ess(draws[None, :, k], method="mean") for k in range(dim)]
    return steps / float(np.mean(effective))


def measure(name: str, dim: int, runs: int) -> dict:
    """One sampler in one dimension."""
    kernel, arrays = SAMPLERS[name](dim), data(dim)
    steps = affordable(kernel, arrays)
    times = [autocorrelation_time(kernel, arrays, seed) for seed in range(runs)]
    draws = steps / np.asarray(times)
    kappa = draws * variance() / gaussian_shift(BUDGET) ** 2
    return {
        "sampler": name,
        "dim": dim,
        "epsilon": BUDGET.epsilon,
        "steps": steps,
        "steps_per_draw": round(float(np.mean(times)), 1),
        "draws": round(float(np.mean(draws)), 2),
        "kappa": round(float(np.mean(kappa)), 4),
        "runs": [round(float(each), 4) for each in kappa],
    }


def draw(rows: list[dict], path: Path) -> None:
    figure, axes = plt.subplots(figsize=(5.5, 4), layout="constrained")
    for name in SAMPLERS:
        mine = [row for row in rows if row["sampler"] == name]
        axes.plot([row["dim"] for row in mine], [row["kappa"] for row in mine], "o-", label=name)
    axes.set(xscale="log", yscale="log", xlabel="dimensions", ylabel="κ")
    axes.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="two dimensions, one run of each")
    parser.add_argument("--runs", type=int, default=2, help="long runs of each sampler")
    parser.add_argument("--only", type=int, nargs="+", choices=DIMENSIONS, default=DIMENSIONS)
    parser.add_argument("--out", type=Path, default=Path("."), help="folder for the picture")
    options = parser.parse_args()
    dimensions = (1, 5) if options.small else options.only
    rows = []
    for dim in dimensions:
        for name in SAMPLERS:
            rows.append(measure(name, dim, 1 if options.small else options.runs))
            print(json.dumps(rows[-1], ensure_ascii=False), flush=True)
    draw(rows, options.out / "effective_draws.png")


if __name__ == "__main__":
    main()
