"""`DPNUTS` on records that no model was made for: how far a misfit moves it, and what it predicts.

    python examples/reproduce/dpnuts.py DATA [--small] [--runs 10] [--only poisson adult ...]

DATA is the folder with ``adult109.npz``, which ``adult`` alone asks for; the 20,190 people of the
RAND health insurance experiment come with statsmodels. ε = 1, δ = 1e-5, nothing is tuned.
Regressions of the visits to a doctor, none of which fits them: ``poisson`` (they vary far more),
``linear`` (tens of visits, skewed) and ``negative binomial``. Each run prints a JSON line: the
largest distance of a private mean from that of NUTS on the records, in standard deviations of the
private posterior; by how much a scale is larger or smaller (``ratio``); and the verdicts. ``adult``
prints test accuracy of the posterior mean.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS
from statsmodels.datasets import randhie

import numpyro_dp as ndp

BUDGET = ndp.Budget(1.0, 1e-5)
# Public upper ends of the columns that are not between 0 and 1.
ENDS = {"lncoins": 4.7, "lpi": 7.2, "fmde": 8.3, "disea": 60.0}


def weights(x: jax.Array) -> jax.Array:
    return numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))


def poisson(x, y):
    w = weights(x)
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Poisson(jax.numpy.exp(x @ w)), obs=y)


def linear(x, y):
    w, sigma = weights(x), numpyro.sample("sigma", dist.LogNormal(0, 1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, sigma), obs=y / 10)


def negative_binomial(x, y):
    w, concentration = weights(x), numpyro.sample("concentration", dist.LogNormal(0, 1))
    with numpyro.plate("people", x.shape[0]):
        law = dist.NegativeBinomial2(jax.numpy.exp(x @ w), concentration)
        numpyro.sample("y", law, obs=y)


def logistic(x, y):
    w = weights(x)
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


VISITS = {"poisson": poisson, "linear": linear, "negative binomial": negative_binomial}


def visits() -> tuple[np.ndarray, np.ndarray]:
    """Inputs with an intercept, and visits to a doctor in a year."""
    people = randhie.load_pandas().data
    columns = [people[name] / ENDS.get(name, 1.0) for name in people.columns if name != "mdvis"]
    x = np.stack([np.ones(len(people)), *columns], axis=1)
    return x.astype(np.float32), people["mdvis"].to_numpy("int32")


def run(model: Callable[..., Any], key: int, draws: int, x: Any, y: Any) -> ndp.MCMC:
    kernel = ndp.DPNUTS(model, privacy=BUDGET)
    mcmc = ndp.MCMC(kernel, num_warmup=draws, num_samples=draws, progress_bar=False)
    mcmc.run(jax.random.key(key), x, y)
    return mcmc


def compared(name: str, runs: int, small: bool) -> Iterator[dict[str, Any]]:
    """Private posteriors beside NUTS on the same records."""
    model, (x, y), draws = VISITS[name], visits(), 200 if small else 500
    exact = MCMC(NUTS(model), num_warmup=draws, num_samples=draws, progress_bar=False)
    exact.run(jax.random.key(0), x, y)
    means = {site: np.mean(value, 0) for site, value in exact.get_samples().items()}
    for key in range(runs):
        mcmc = run(model, key, draws, x, y)
        found = {
            site: float(np.max(np.abs(np.mean(value, 0) - means[site]) / np.std(value, 0)))
            for site, value in mcmc.get_samples().items()
        }
        site = max(found, key=found.__getitem__)
        yield {
            "model": name,
            "epsilon": mcmc.privacy.epsilon,
            "distance": round(found[site], 2),
            "site": site,
            "sites": {each: round(distance, 2) for each, distance in found.items()},
            "ratio": {
                each: round(float(np.mean(value) / means[each]), 3)
                for each, value in mcmc.get_samples().items()
                if np.ndim(means[each]) == 0
            },
            "verdicts": list(mcmc.released.diagnostics.verdicts),
        }


def predicted(folder: Path, runs: int) -> Iterator[dict[str, Any]]:
    """Accuracy of the posterior mean on Adult's test people."""
    adult = np.load(folder / "adult109.npz")
    for key in range(runs):
        mcmc = run(logistic, key, 500, adult["X_train"], adult["y_train"])
        mean = np.mean(mcmc.get_samples()["w"], 0)
        right = (adult["X_test"] @ mean > 0) == adult["y_test"]
        yield {
            "model": "adult",
            "epsilon": mcmc.privacy.epsilon,
            "accuracy": round(float(np.mean(right)), 4),
            "verdicts": list(mcmc.released.diagnostics.verdicts),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, nargs="?", default=Path())
    parser.add_argument("--small", action="store_true", help="one short run")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--only", nargs="+", default=[*VISITS, "adult"])
    options = parser.parse_args()
    runs = 1 if options.small else options.runs
    for name in options.only:
        found = predicted(options.data, runs) if name == "adult" else None
        for line in found or compared(name, runs, options.small):
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
