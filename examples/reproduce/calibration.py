"""Do 95 % intervals hold 95 % of the truths? Every method of the package on data of known truths.

``python examples/reproduce/calibration.py [--cells logistic-1000 ...] [--methods DPNUTS ...]
[--datasets 60] [--log FILE] [--picture FILE]`` appends one JSON line a cell, ε and method to the
log (hours for all of them), and draws coverage and width against ε from the whole log. δ = 1e-5,
zero-out; no method has a setting of a cell's own. ``exact`` is NUTS on the same data sets, or the
normal at the mode, which agrees with it: where NUTS would take hours, and beside other methods than
``DPNUTS``.

Inputs are uniform with variance 1 beside an intercept. ``one-hot`` cells have six groups (the least
of 1 %), binary columns of 1.5 % and .3 %, and two columns that correlate by .99; their truths come
from a narrower prior than the one that is fitted, since counts overflow under it.
"""

import argparse
import functools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import optax
from calibration_cells import CELLS, Cell
from jax.flatten_util import ravel_pytree
from numpyro.infer.autoguide import AutoNormal

import numpyro_dp as ndp
from numpyro_dp.model.private_model import PrivateModel, private_model

DELTA = 1e-5
HERE = Path(__file__).parents[2] / "docs" / "_static"


def exact(cell: Cell, method: str, model: Callable[..., Any]) -> Any:
    """The exact posterior of a cell's data sets."""
    model = cell.exact or cell.fitted or model
    by_mode = cell.by_mode or method != "DPNUTS"
    return normal_at_mode(model) if by_mode else numpyro.infer.NUTS(model)


def normal_at_mode(model: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    """Draws from the normal approximation at the posterior's mode, not private."""

    def mode(rng_key, *args):
        split = private_model(model, args, {})
        z = split.init(jax.random.key(0), numpyro.infer.init_to_median)
        return _normal_draws(split, z, split.records(args, {}), rng_key)

    return mode


@functools.partial(jax.jit, static_argnums=0)
def _normal_draws(split: PrivateModel, start: dict, records: list, rng_key: Any) -> dict:
    first, unravel = ravel_pytree(start)

    def loss(u):
        z = unravel(u)
        rows = [leaf[:, None] for leaf in records]
        terms = jax.vmap(lambda *row: split.record_log_likelihood(z, list(row)))(*rows)
        return -jnp.sum(terms) - split.log_prior(z)

    def newton(_, u):
        step = jnp.linalg.solve(jax.hessian(loss)(u), jax.grad(loss)(u))
        return u - step / jnp.maximum(1, jnp.abs(step).max())

    u = jax.lax.fori_loop(0, 25, newton, first)
    root = jnp.linalg.cholesky(jnp.linalg.inv(jax.hessian(loss)(u)))
    draws = u + jax.random.normal(rng_key, (2_000, len(u))) @ root.T
    return jax.vmap(lambda row: split.constrain(unravel(row)))(draws)


def dpnuts(model: Any, budget: ndp.Budget, num_records: int) -> Any:
    return ndp.DPNUTS(model, privacy=budget)


def dpsgld(model: Any, budget: ndp.Budget, num_records: int) -> Any:
    return ndp.DPSGLD(model, privacy=budget)


def dpfastmh(model: Any, budget: ndp.Budget, num_records: int) -> Any:
    return ndp.DPFastMH(model, privacy=budget)


def dpsvi(model: Any, budget: ndp.Budget, num_records: int) -> Any:
    return ndp.DPSVI(model, AutoNormal(model), privacy=budget)


def dpsvi_by_hand(model: Any, budget: ndp.Budget, num_records: int) -> Any:
    """Centred, with curvature; of three steps tried on the smallest cell the one that held most."""
    optimiser = optax.sgd(0.25 / num_records, momentum=0.9)
    options = {"clip_norm": 1.1, "clip": "centred", "scale": "curvature", "privacy": budget}
    return ndp.DPSVI(model, AutoNormal(model), optimiser, **options)


def vips(model: Any, budget: ndp.Budget, num_records: int) -> Any:
    guide = ndp.guides.PolyaGammaGuide(model, row_norm=(1 + 3 * 4) ** 0.5)
    return ndp.VIPS(model, guide, privacy=budget)


METHODS = {
    "DPNUTS": dpnuts,
    "DPSGLD": dpsgld,
    "DPFastMH": dpfastmh,
    "DPSVI": dpsvi,
    "DPSVI by hand": dpsvi_by_hand,
    "VIPS": vips,
}
STEPS = {"DPSVI": 100, "DPSVI by hand": 80}


def measured(name: str, cell: Cell, method: str, epsilon: float, datasets: int) -> dict[str, Any]:
    """One cell of the table."""
    inputs, budget, began = cell.inputs(), ndp.Budget(epsilon, DELTA), time.time()
    num_records = inputs[-1].shape[0]
    found = ndp.coverage(
        lambda model: METHODS[method](cell.fitted or model, budget, num_records),
        cell.model,
        *inputs,
        num_datasets=datasets,
        reference=functools.partial(exact, cell, method),
        num_steps=STEPS.get(method),
        rng_key=jax.random.key(18),
    )
    # Who is told not to use a posterior has none.
    own = (np.abs(found.fitted.mean - found.reference.mean) / found.fitted.sd)[found.fitted.usable]
    print(name, method, f"ε = {epsilon}\n{found}", flush=True)
    return {
        "cell": name,
        "method": method,
        "epsilon": epsilon,
        "datasets": datasets,
        "seconds": round(time.time() - began),
        "pooled": _rounded(found.pooled),
        "sites": {site: _rounded(of) for site, of in found.sites.items()},
        "verdicts": found.verdicts,
        "own_z": {
            "within 2.5": round(float(np.mean(own <= 2.5)), 4),
            "largest": round(float(own.max()), 2),
        },
    }


def _rounded(found: Any) -> dict[str, float]:
    return {name: round(value, 4) for name, value in found._asdict().items()}


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """What was measured so far; of several lines of one cell the last."""
    found = map(json.loads, path.read_text().splitlines())
    yield from {(x["cell"], x["method"], x["epsilon"]): x for x in found}.values()


def table(log: Path) -> str:
    """The log as a Markdown table: first what has a bar, then the other methods."""
    rows = [
        "| cell | ε | sets | covered | exact | difference | width | error | largest own distance "
        "| bar | |",
        "|---" * 11 + "|",
    ]
    others = ["| cell | ε | method | covered | exact | width | error |", "|---" * 7 + "|"]
    for line in sorted(lines(log), key=lambda x: (list(CELLS).index(x["cell"]), x["epsilon"])):
        cell, pooled, epsilon = CELLS[line["cell"]], line["pooled"], f"{line['epsilon']:g}"
        held = _with_error(pooled["coverage"], pooled["standard_error"])
        exact = _with_error(pooled["reference"], pooled["reference_error"])
        sizes = [f"{pooled['width']:.2f}", f"{pooled['rmse']:.2f}"]
        if line["method"] != "DPNUTS":
            others.append(_row([line["cell"], epsilon, line["method"], held, exact, *sizes]))
            continue
        missed = cell.bar.missed(line, cell.epsilons.index(line["epsilon"]))
        own, verdict = f"{line['own_z']['largest']:.1f}", f"missed: {missed}" if missed else "met"
        difference = _with_error(pooled["difference"], pooled["difference_error"], "+")
        first = [line["cell"], epsilon, str(line["datasets"]), held, exact, difference]
        rows.append(_row([*first, *sizes, own, str(cell.bar), verdict]))
    return "\n".join([*rows, "", *others])


def _row(entries: list[str]) -> str:
    return f"| {' | '.join(entries)} |"


def _with_error(value: float, error: float, sign: str = "") -> str:
    return f"{value:{sign}.3f} ± {error:.3f}"


def picture(log: Path, to: Path) -> None:
    """Coverage and width against ε of every method on the logistic regressions."""
    figure, axes = plt.subplots(2, 2, figsize=(8, 6), sharex=True, sharey="row")
    for column, cell in enumerate(("logistic-1000", "logistic-5000")):
        of_cell = [x for x in lines(log) if x["cell"] == cell]
        for method in METHODS:
            found = sorted(
                (x for x in of_cell if x["method"] == method), key=lambda x: x["epsilon"]
            )
            epsilons = [x["epsilon"] for x in found]
            pooled = [x["pooled"] for x in found]
            held, error = ([p[k] for p in pooled] for k in ("coverage", "standard_error"))
            axes[0, column].errorbar(epsilons, held, yerr=error, marker="o", label=method)
            widths = [p["width"] for p in pooled]
            axes[1, column].plot(epsilons, widths, marker="o", label=method)
        axes[0, column].axhline(0.95, color="k", linewidth=0.8)
        axes[1, column].axhline(1, color="k", linewidth=0.8)
        axes[0, column].set_title(f"logistic, n = {cell.split('-')[1]}")
        axes[1, column].set(xlabel="ε", xscale="log", xlim=(0.4, 5))
        axes[1, column].set_xticks([0.5, 1, 4], [".5", "1", "4"], minor=False)
        axes[1, column].set_xticks([], minor=True)
    axes[0, 0].set_ylabel("truths in 95 % intervals")
    axes[1, 0].set_ylabel("width beside NUTS's")
    axes[0, 1].legend(loc="center right")
    figure.tight_layout()
    figure.savefig(to, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", nargs="*", default=list(CELLS), choices=list(CELLS))
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--datasets", type=int, default=60)
    parser.add_argument("--log", type=Path, default=HERE / "calibration.jsonl")
    parser.add_argument("--picture", type=Path, default=HERE / "calibration.png")
    options = parser.parse_args()
    for name in options.cells:
        cell = CELLS[name]
        for method in (each for each in options.methods if each in cell.only):
            for epsilon in cell.epsilons:
                try:
                    found = measured(name, cell, method, epsilon, options.datasets)
                except ValueError as refused:
                    print(name, method, f"ε = {epsilon} is refused: {refused}", flush=True)
                    continue
                with options.log.open("a") as log:
                    log.write(json.dumps(found) + "\n")
    print(table(options.log))
    picture(options.log, options.picture)


if __name__ == "__main__":
    main()
