"""How wide a regression's intervals are where outcomes lie far from where the prior has them.

Prints one JSON line a case, beside the records' own intervals (least squares): 5,000 records, four
slopes and an intercept about nought, ε = 1, five releases each. Nothing is asserted.

    python tests/benchmarks/bench_far_out.py
"""

import json

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist

import numpyro_dp as ndp

RECORDS, SEEDS = 5_000, range(5)
# Where outcomes lie, how they scatter, sds of the priors of intercept and slopes, the scale's law.
CASES = {
    "log costs, HalfNormal(1)": (7.5, 0.9, 10, 1, dist.HalfNormal(1)),
    "log costs, HalfCauchy(2)": (7.5, 0.9, 10, 2.5, dist.HalfCauchy(2)),
    "sixties, HalfNormal(10)": (60, 12, 100, 10, dist.HalfNormal(10)),
    "sixties, HalfCauchy(5)": (60, 12, 100, 10, dist.HalfCauchy(5)),
    "sixties, Exponential(1)": (60, 12, 100, 10, dist.Exponential(1)),
    "rents, HalfCauchy(100)": (830, 150, 1_000, 100, dist.HalfCauchy(100)),
    "rents, Exponential(1/100)": (830, 150, 1_000, 100, dist.Exponential(0.01)),
}


def main():
    rng = np.random.default_rng(0)
    x = np.c_[rng.normal(size=(RECORDS, 3)), rng.random(RECORDS) < 0.1]
    whole = np.c_[np.ones(RECORDS), x]
    for name, (middle, sd, wide, slope, scale) in CASES.items():
        y = middle + sd * (x @ [0.2, -0.1, 0.1, 0.3] + rng.normal(size=RECORDS))
        truth, (square,), *_ = np.linalg.lstsq(whole, y, rcond=None)
        own = np.sqrt(square / RECORDS * np.diag(np.linalg.inv(whole.T @ whole)))

        def model(x, y=None, wide=wide, slope=slope, scale=scale):
            a = numpyro.sample("a", dist.Normal(0, wide))
            b = numpyro.sample("b", dist.Normal(0, slope).expand([4]).to_event(1))
            sigma = numpyro.sample("sigma", scale)
            with numpyro.plate("people", len(x)):
                numpyro.sample("y", dist.Normal(a + x @ b, sigma), obs=y)

        release = ndp.LikelihoodRelease(model, privacy=ndp.Budget(1.0, 1e-5), secure=False)
        given = x.astype(np.float32), y.astype(np.float32)
        widths, off, refused = [], 0.0, 0
        for seed in SEEDS:
            found = release.run(jax.random.key(seed), *given, progress_bar=False)
            at, sds = found.located, np.sqrt(np.diag(found.located.covariance))[:5]
            widths.append(round(float(np.median(sds / own)), 2))
            off = max(off, float(np.max(np.abs(at.mean[:5] - truth) / sds)))
            refused += any(each.startswith("do not use") for each in found.diagnostics.verdicts)
        line = {"case": name, "widths": widths, "farthest_sds": round(off, 1), "refused": refused}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
