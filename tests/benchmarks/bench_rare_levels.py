"""Levels that few records have: how wide their intervals are, and what a release tells of that.

Beside the records' own mode and curvature, which NUTS's means and sds are close to with so many
records. For docs/howto/is-it-worth-having.md, docs/limitations.md and the limits ``faint_below``
and ``_FEW`` of numpyro_dp/scoring. A last column is a hundred times smaller than the others, under
a prior as much wider: it is not rare, and must not be called so.

    python tests/benchmarks/bench_rare_levels.py --family linear --epsilon 1 --releases 6
    python tests/benchmarks/bench_rare_levels.py --family poisson --levels 60 90 120 160 320
"""

import argparse
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.flatten_util import ravel_pytree
from numpyro.infer.util import initialize_model
from scipy.optimize import minimize

import numpyro_dp as ndp
from numpyro_dp.scoring.statistic import coordinate_names

FAMILIES = ("linear", "logistic", "poisson")
LEVELS = (20, 40, 80, 160, 320)
SMALL = 0.01


def regression(x, family, y=None):
    a = numpyro.sample("a", dist.Normal(0, 2.5))
    scales = jnp.append(jnp.ones(x.shape[1] - 1), 1 / SMALL)
    b = numpyro.sample("b", dist.Normal(0, scales).to_event(1))
    eta = a + x @ b
    sigma = numpyro.sample("sigma", dist.Exponential(1)) if family == "linear" else None
    with numpyro.plate("people", x.shape[0]):
        laws = {
            "linear": lambda: dist.Normal(eta, sigma),
            "logistic": lambda: dist.Bernoulli(logits=eta),
            "poisson": lambda: dist.Poisson(jnp.exp(eta)),
        }
        numpyro.sample("y", laws[family](), obs=y)


def made_up(rng, records, family, effect, levels):
    """Levels in random order, two ordinary columns and a small one; ``effect`` of the rarest."""
    level = np.repeat(np.arange(len(levels) + 1), [records - sum(levels), *levels])
    columns = rng.normal(size=(records, 3)) * [1, 1, SMALL]
    x = np.column_stack([np.eye(len(levels) + 1)[rng.permutation(level), 1:], columns])
    b = np.r_[0.5 * rng.normal(size=len(levels)), 0.4, -0.2, 0]
    b[0] = effect
    eta = 0.2 + x @ b
    if family == "linear":
        y = (eta + 0.6 * rng.normal(size=records)).astype(np.float32)
    elif family == "logistic":
        y = (rng.random(records) < 1 / (1 + np.exp(-eta))).astype(np.int32)
    else:
        y = rng.poisson(np.exp(eta)).astype(np.int32)
    return x.astype(np.float32), y


def mode(x, family, y):
    """Mode of the unconstrained posterior, and sds from the curvature there, by Newton's steps."""
    with jax.enable_x64(True):
        info = initialize_model(
            jax.random.key(0), regression, model_args=(x.astype(float), family, y.astype(float))
        )
        start, unravel = ravel_pytree(info.param_info.z)
        slope = jax.jit(jax.value_and_grad(lambda u: info.potential_fn(unravel(u))))
        curvature = jax.jit(jax.hessian(lambda u: info.potential_fn(unravel(u))))
        at = minimize(lambda u: [np.asarray(each) for each in slope(u)], start, jac=True).x
        for _ in range(3):
            at = at - np.linalg.solve(curvature(at), slope(at)[1])
        return at, np.sqrt(np.diag(np.linalg.inv(curvature(at))))


def named(text):
    """Entries of b that notes name, those of a range too."""
    ends = re.findall(r"\bb\[(\d+)\](?:–b\[(\d+)\])?", text)
    return {k for a, b in ends for k in range(int(a), int(b or a) + 1)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--family", choices=FAMILIES, default="linear")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--records", type=int, default=6_000)
    parser.add_argument("--effect", type=float, default=0.5)
    parser.add_argument("--releases", type=int, default=6)
    parser.add_argument("--centred", action="store_true", help="columns of levels less shares")
    parser.add_argument("--levels", type=int, nargs="+", default=LEVELS)
    given = parser.parse_args()
    family, levels, found, said = given.family, given.levels, [], []
    release = ndp.LikelihoodRelease(
        regression, privacy=ndp.Budget(given.epsilon, 1e-5), secure=False
    )
    for seed in range(given.releases):
        x, y = made_up(np.random.default_rng(seed), given.records, family, given.effect, levels)
        if given.centred:
            x[:, : len(levels)] -= np.float32(levels) / np.float32(given.records)
        private = release.run(jax.random.key(seed + 100), x, family, y, progress_bar=False)
        exact, sds = mode(x, family, y)
        at = private.located
        own = np.sqrt(np.diag(at.covariance))
        found.append([at.signal, own / sds, (at.mean - exact) / own])
        said.append(named(" ".join(private.diagnostics.verdicts)))
    names = [f"level of {number}" for number in levels] + ["column", "column", "small column"]
    few = release.forecast(x, family, y).few
    rows = np.transpose(found, (1, 2, 0))
    first = coordinate_names(private.private_model).index("b[0]")
    for k, name in enumerate(names, first):
        signal, width, off = rows[:, k]
        case = {
            "signal": np.median(signal),
            "least_signal": np.min(signal),
            "width": np.median(width),
            "widest": np.max(width),
            "named": np.mean([k - first in entries for entries in said]),
            "largest_off_in_own_sds": np.max(np.abs(off)),
        }
        shown = {key: round(float(value), 2) for key, value in case.items()}
        print(json.dumps({**vars(given), "few": few, "of": name, **shown}))


if __name__ == "__main__":
    main()
