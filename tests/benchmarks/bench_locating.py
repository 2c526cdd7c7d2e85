"""How wide intervals are beside the records' own, as priors widen and records get fewer.

For the settings of ``numpyro_dp/scoring``: which floor locates, and when a step is taken. One JSON
line a case: median, nine in ten and largest of the releases' widths (geometric mean over the
coefficients), share of releases more than three times as wide, the largest distance from the
records' mode in the release's own sds, and how often intervals of 90 % held the truth.

    python tests/benchmarks/bench_locating.py --releases 12
"""

import argparse
import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import numpyro_dp as ndp

NINETY = 1.645
LAWS = {
    "normal": lambda eta, scale: dist.Normal(eta, scale),
    "logistic": lambda eta, _: dist.Bernoulli(logits=eta),
    "poisson": lambda eta, _: dist.Poisson(jnp.exp(eta)),
}
# Family, records, coefficients, epsilon, the coefficients' prior sd, a Normal's prior of sigma and,
# where it is not 1, sigma.
CASES = [
    *(
        (family, 5_000, 5, 1.0, sd, scale)
        for family in ("logistic", "poisson")
        for sd, scale in ((2.0, None), (100.0, None))
    ),
    ("normal", 5_000, 5, 1.0, 2.0, dist.HalfNormal(1)),
    ("normal", 5_000, 5, 1.0, 10.0, dist.HalfCauchy(5)),
    ("normal", 5_000, 5, 1.0, 10.0, dist.Uniform(0, 50)),
    ("normal", 5_000, 5, 1.0, 10.0, dist.Uniform(0, 50), 0.3),
    ("normal", 5_000, 5, 1.0, 10.0, dist.Uniform(0, 50), 0.1),
    ("normal", 5_000, 5, 1.0, 100.0, dist.HalfNormal(5)),
    ("normal", 5_000, 5, 1.0, 100.0, dist.HalfCauchy(5)),
    *(
        (family, records, 12, epsilon, 2.0, dist.HalfNormal(2))
        for family in LAWS
        for records, epsilon in ((1_000, 1.0), (2_000, 0.5), (5_000, 0.5))
    ),
]


def regression(x, y=None, *, family, sd, scale):
    b = numpyro.sample("b", dist.Normal(0, sd).expand([x.shape[1]]).to_event(1))
    sigma = numpyro.sample("sigma", scale) if family == "normal" else None
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", LAWS[family](x @ b, sigma), obs=y)


def made_up(rng, family, records, dim, sigma):
    """Inputs, the first of which is 1, outcomes, and the truth."""
    x = np.column_stack([np.ones(records), rng.normal(size=(records, dim - 1))])
    truth = np.resize([0.5, -0.3, 0.2, 0.0], dim) / max(1.0, (dim / 5) ** 0.5)
    truth[0] = 0.5
    eta = x @ truth
    draw = {
        "normal": partial(rng.normal, eta, sigma),
        "poisson": partial(rng.poisson, np.exp(eta)),
        "logistic": partial(rng.binomial, 1, 1 / (1 + np.exp(-eta))),
    }
    return x.astype(np.float32), draw[family]().astype(np.float32), truth


def of_records(x, y, family):
    """The records' own mode and standard deviations, by Newton's method."""
    x, y = x.astype(float), y.astype(float)
    if family == "normal":
        mode = np.linalg.lstsq(x, y, rcond=None)[0]
        return mode, np.sqrt(np.diag(np.linalg.inv(x.T @ x)) * np.mean((y - x @ mode) ** 2))
    mode = np.zeros(x.shape[1])
    for _ in range(30):
        mean = np.exp(x @ mode) if family == "poisson" else 1 / (1 + np.exp(-x @ mode))
        curvature = (x * (mean if family == "poisson" else mean * (1 - mean))[:, None]).T @ x
        mode = mode + np.linalg.solve(curvature, x.T @ (y - mean))
    return mode, np.sqrt(np.diag(np.linalg.inv(curvature)))


def case(releases, family, records, dim, epsilon, sd, scale, sigma=1.0):
    model = partial(regression, family=family, sd=sd, scale=scale)
    privacy = ndp.Budget(epsilon, 1e-6)
    release = ndp.LikelihoodRelease(model, privacy=privacy, secure=False, allow_unresolved=True)
    widths, away, held, arrived = [], [], [], []
    for seed in range(releases):
        x, y, truth = made_up(np.random.default_rng(seed), family, records, dim, sigma)
        mode, own = of_records(x, y, family)
        at = release.run(jax.random.key(seed), x, y, progress_bar=False).located
        arrived.append(at.arrived)
        mean, sds = at.mean[:dim], np.sqrt(np.diag(at.covariance))[:dim]
        widths.append(np.exp(np.mean(np.log(sds / own))))
        away.append(np.max(np.abs(mean - mode) / sds))
        held.append(np.mean(np.abs(mean - truth) < NINETY * sds))
    said = {
        "family": family,
        "records": records,
        "coefficients": dim,
        "epsilon": epsilon,
        "prior_sd": sd,
        "sigma_under": scale and type(scale).__name__,
        "sigma": sigma,
        "width": np.quantile(widths, [0.5, 0.9, 1.0]).round(2).tolist(),
        "over_three": float(np.mean(np.array(widths) > 3)),
        "away": round(float(max(away)), 1),
        "arrived": float(np.mean(arrived)),
        "held": round(float(np.mean(held)), 3),
    }
    print(json.dumps(said), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--releases", type=int, default=12)
    releases = parser.parse_args().releases
    for each in CASES:
        case(releases, *each)


if __name__ == "__main__":
    main()
