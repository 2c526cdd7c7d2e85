"""How far a Normal's scale is off where outcomes have heavier tails, and whether a note says so.

Made-up records with errors of Student's t, fitted by a linear model with normal errors. One JSON
line a case: of each release how many of its own standard deviations the logarithm of sigma is from
that of the residuals' root mean square, and in how many a verdict speaks of the records' fit.

    python tests/benchmarks/bench_tails.py --releases 6
"""

import argparse
import json

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist

import numpyro_dp as ndp
from numpyro_dp.scoring.statistic import coordinate_names

RECORDS = 5_000
SLOPES = [1.0, 0.5, -0.3, 0.2, 0.0]


def regression(x, y=None):
    b = numpyro.sample("b", dist.Normal(0, 2).expand([x.shape[1]]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ b, sigma), obs=y)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--releases", type=int, default=6)
    given = parser.parse_args()
    budget = ndp.Budget(given.epsilon, 1e-5)
    release = ndp.LikelihoodRelease(regression, privacy=budget, secure=False)
    for freedom in (4, 6, 8, 12, 30):
        off, named = [], 0
        for seed in range(given.releases):
            rng = np.random.default_rng(100 + seed)
            x = np.column_stack([np.ones(RECORDS), rng.normal(size=(RECORDS, 4))])
            y = x @ SLOPES + rng.standard_t(freedom, size=RECORDS)
            rest = y - x @ np.linalg.lstsq(x, y, rcond=None)[0]
            data = x.astype(np.float32), y.astype(np.float32)
            found = release.run(jax.random.key(seed), *data, progress_bar=False)
            at, k = found.located, coordinate_names(found.private_model).index("sigma")
            gap = at.mean[k] - np.log(np.sqrt(np.mean(rest**2)))
            off.append(round(float(gap / np.sqrt(at.covariance[k, k])), 1))
            named += any("do not fit" in said for said in found.diagnostics.verdicts)
        case = {"freedom": freedom, "epsilon": given.epsilon, "releases": given.releases}
        print(json.dumps(case | {"sigma_off": off, "named": named}), flush=True)


if __name__ == "__main__":
    main()
