"""Columns in the units that they come in: how wide and how far off, beside NUTS on the records.

Three models of made-up records: patients of 40 hospitals, with a column in years that is not quite
centred and two others (logistic, 5,000 records), people of 28 uneven wards beside an age of 20 to
80 and a distance (linear, 6,000 records), and rents with an area, a year, a yes-or-no and three
rare kinds of heating in natural units under wide priors (linear, 2,600 records). For each how many
times as wide as NUTS's the intervals of the release are, how many of their own standard deviations
they are off, and how many releases say that they hardly arrived.

    python tests/benchmarks/bench_natural_units.py --epsilon 1 --releases 8
"""

import argparse
import json

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist

import numpyro_dp as ndp

HOSPITALS, PATIENTS, WARDS, PEOPLE, RENTS = 40, 5_000, 28, 6_000, 2_600


def hospitals(x, hospital, y=None):
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    tau = numpyro.sample("tau", dist.HalfNormal(1))
    slope = numpyro.sample("slope", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("hospitals", HOSPITALS):
        alpha = numpyro.sample("alpha", dist.Normal(mu, tau))
    with numpyro.plate("patients", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=alpha[hospital] + x @ slope), obs=y)


def patients(rng):
    size = np.round(np.exp(rng.normal(4.6, 0.8, HOSPITALS))) + 12
    hospital = rng.choice(HOSPITALS, PATIENTS, p=size / size.sum()).astype(np.int32)
    age, others = rng.normal(67, 13, PATIENTS), rng.poisson(1.6, PATIENTS)
    x = np.column_stack([age - 65, others - 2, rng.random(PATIENTS) < 0.35]).astype(np.float32)
    logits = rng.normal(-1.5, 0.5, HOSPITALS)[hospital] + x @ [0.015, 0.2, 0.4]
    return x, hospital, (rng.random(PATIENTS) < 1 / (1 + np.exp(-logits))).astype(np.int32)


def wards(x, ward, y=None):
    mu = numpyro.sample("mu", dist.Normal(110, 30))
    tau = numpyro.sample("tau", dist.HalfNormal(10))
    slope = numpyro.sample("slope", dist.Normal(0, 1).expand([2]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(15))
    with numpyro.plate("wards", WARDS):
        alpha = numpyro.sample("alpha", dist.Normal(mu, tau))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Normal(alpha[ward] + x @ slope, sigma), obs=y)


def people(rng):
    ward = rng.choice(WARDS, PEOPLE, p=rng.dirichlet(np.full(WARDS, 1.5))).astype(np.int32)
    x = np.column_stack([rng.uniform(20, 80, PEOPLE), rng.gamma(2, 6, PEOPLE)]).astype(np.float32)
    effects = 120 + 7 * rng.normal(size=WARDS)
    y = effects[ward] + x @ [0.45, -0.2] + 11 * rng.normal(size=PEOPLE)
    return x, ward, y.astype(np.float32)


def rents(x, y=None):
    level = numpyro.sample("level", dist.Normal(0, 100))
    slope = numpyro.sample("slope", dist.Normal(0, 50).expand([x.shape[1]]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(50))
    with numpyro.plate("flats", x.shape[0]):
        numpyro.sample("y", dist.Normal(level + x @ slope, sigma), obs=y)


def flats(rng):
    heating = rng.choice(4, RENTS, p=[0.72, 0.2, 0.06, 0.02])
    columns = rng.lognormal(4.3, 0.35, RENTS), rng.normal(0, 25, RENTS), rng.random(RENTS) < 0.6
    x = np.column_stack([*columns, np.eye(4)[heating][:, 1:]]).astype(np.float32)
    y = 40 + x @ [2.6, 0.5, 12, -15, -20, 25] + 45 * rng.normal(size=RENTS)
    return x, y.astype(np.float32)


def sampled(model, *args):
    mcmc = numpyro.infer.MCMC(
        numpyro.infer.NUTS(model), num_warmup=400, num_samples=800, progress_bar=False
    )
    mcmc.run(jax.random.key(0), *args)
    return {name: np.atleast_1d(np.asarray(draws).T) for name, draws in mcmc.get_samples().items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--releases", type=int, default=8)
    given = parser.parse_args()
    for model, made_up in ((hospitals, patients), (wards, people), (rents, flats)):
        data = made_up(np.random.default_rng(12))
        own = sampled(model, *data)
        release = ndp.LikelihoodRelease(
            model, privacy=ndp.Budget(given.epsilon, 1e-5), secure=False
        )
        wider, off, late = [], [], 0
        for seed in range(given.releases):
            found = release.run(jax.random.key(seed), *data, progress_bar=False)
            late += any("hardly arrived" in said for said in found.diagnostics.verdicts)
            drawn = sampled(found.model)
            sd = {name: draws.std(-1) for name, draws in drawn.items()}
            wider.append({name: sd[name] / draws.std(-1) for name, draws in own.items()})
            off.append({n: (drawn[n].mean(-1) - own[n].mean(-1)) / sd[n] for n in own})
        case = {"model": model.__name__, "epsilon": given.epsilon, "releases": given.releases}
        for name in own:
            widths = np.median([each[name] for each in wider], axis=0)
            root = np.sqrt(np.mean([np.square(each[name]) for each in off], axis=0))
            if name == "alpha":
                widths, root = np.median(widths), np.median(root)
            case[f"{name}_wider"] = np.round(np.asarray(widths, float), 2).tolist()
            case[f"{name}_off"] = np.round(np.asarray(root, float), 2).tolist()
        print(json.dumps(case | {"hardly_arrived": late}), flush=True)


if __name__ == "__main__":
    main()
