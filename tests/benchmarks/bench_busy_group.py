"""What few records tell, each of them far more than others: how wide its interval is.

Twenty uneven groups under Poisson with exposure, one of which has several events a record where the
others have less than one; with --column a flag of that kind, and a skewed column with its
logarithm. Beside NUTS on the same records. For docs/limitations.md.

    python tests/benchmarks/bench_busy_group.py --releases 4
"""

import argparse
import json

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import numpyro_dp as ndp

GROUPS, RECORDS, BUSY = 20, 7_000, 200


def model(group, x, exposure, y=None):
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    tau = numpyro.sample("tau", dist.HalfNormal(1))
    b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("groups", GROUPS):
        a = numpyro.sample("a", dist.Normal(mu, tau))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Poisson(exposure * jnp.exp(a[group] + b * x)), obs=y)


def made_up(rng, rate):
    """Group 0 has ``BUSY`` records and this many events a unit of exposure."""
    others = 1 + rng.choice(GROUPS - 1, RECORDS - BUSY, p=rng.dirichlet(3 * np.ones(GROUPS - 1)))
    group = rng.permutation(np.r_[np.zeros(BUSY, int), others]).astype(np.int32)
    a = np.r_[np.log(rate), rng.normal(-1, 0.5, GROUPS - 1)]
    x = rng.uniform(-1, 1, RECORDS).astype(np.float32)
    exposure = rng.uniform(0.2, 3, RECORDS).astype(np.float32)
    y = rng.poisson(exposure * np.exp(a[group] + 0.3 * x)).astype(np.int32)
    return group, x, exposure, y


def counts(x, y=None):
    a = numpyro.sample("a", dist.Normal(0, 1))
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(a + x @ w)), obs=y)


def line(x, y=None):
    a = numpyro.sample("a", dist.Normal(0, 1))
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Normal(a + x @ w, sigma), obs=y)


def columns(rng, records=5_000):
    """Cases of five columns, of which the first is the one in question."""
    x = rng.normal(size=(records, 5)).astype(np.float32)
    flag, skewed, logs = x.copy(), x.copy(), x.copy()
    flag[:, 0] = rng.permutation(records) < 127
    skewed[:, 0] = rng.lognormal(0, 1, records)
    logs[:, 0] = np.log1p(skewed[:, 0])
    events = rng.poisson(np.exp(-0.5 + flag @ [1.45, 0.2, -0.1, 0.1, 0.2])).astype(np.int32)
    yield "a flag of 127 of 5,000, 2.6 events each for 0.6", counts, (flag, events)
    for name, column in (("log-normal", skewed), ("its log1p", logs)):
        y = column @ [0.3, 0.2, -0.1, 0.1, 0.2] + 0.8 * rng.normal(size=records)
        yield f"a column, {name}", line, (column, y.astype(np.float32))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--releases", type=int, default=4)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--column", action="store_true")
    options = parser.parse_args()
    cases, site = list(columns(np.random.default_rng(5))), "w"
    if not options.column:
        said, site = f"{BUSY} of {RECORDS} records, {{}} events a unit", "a"
        rates = (0.35, 0.7, 1.5, 3.0)
        cases = [(said.format(r), model, made_up(np.random.default_rng(5), r)) for r in rates]
    for case, law, data in cases:
        settings = {"num_warmup": 400, "num_samples": 800, "progress_bar": False}
        nuts = numpyro.infer.MCMC(numpyro.infer.NUTS(law), **settings)
        nuts.run(jax.random.key(0), *data)
        width = np.asarray(nuts.get_samples()[site]).std(0)
        ratios, signals, named = [], [], 0
        for release in range(options.releases):
            kernel = ndp.DPNUTS(law, privacy=ndp.Budget(options.epsilon, 1e-5))
            mcmc = ndp.MCMC(kernel, **settings)
            mcmc.run(jax.random.key(release), *data)
            ratios.append(np.asarray(mcmc.get_samples()[site]).std(0) / width)
            signals.append(float(mcmc.released.diagnostics.signal[site][0]))
            named += any(f"{site}[0]" in said for said in mcmc.verdicts)
        found = {
            "case": case,
            "first": [round(float(each[0]), 2) for each in ratios],
            "others": round(float(np.median([each[1:] for each in ratios])), 2),
            "signal": [round(each, 1) for each in signals],
            "named": named,
        }
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
