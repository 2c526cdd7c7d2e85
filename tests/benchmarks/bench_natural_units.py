"""Columns in the units that they come in: how wide and how far off, beside NUTS on the records.

Four models of made-up records: patients of 40 hospitals, with a column in years that is not quite
centred and two others (logistic, 5,000 records), people of 28 uneven wards beside an age of 20 to
80 and a distance (linear, 6,000 records), rents with an area, a year, a yes-or-no and three rare
kinds of heating in natural units under wide priors (linear, 2,600 records), and thirty measurements
of patients, six of them numbers of years to blood pressures and the rest yes or no, some rare,
under priors of one (logistic, 7,000 records). For each how many
times as wide as NUTS's the intervals of the release are, how many of their own standard deviations
they are off, and how many releases say that they hardly arrived, or did not.

    python tests/benchmarks/bench_natural_units.py --epsilon 1 --releases 8
"""

import argparse
import json

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist

import numpyro_dp as ndp

HOSPITALS, PATIENTS, WARDS, PEOPLE, RENTS, ADMITTED = 40, 5_000, 28, 6_000, 2_600, 7_000


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


def measurements(x, y=None):
    base = numpyro.sample("base", dist.Normal(0, 5))
    slope = numpyro.sample("slope", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("admitted", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=base + x @ slope), obs=y)


def admitted(rng):
    columns = (
        rng.normal(58, 13, ADMITTED).clip(18, 96),
        rng.normal(135, 19, ADMITTED),
        rng.normal(5.2, 1.1, ADMITTED),
        rng.lognormal(0.8, 1, ADMITTED).clip(0.1, 200),
        rng.normal(78, 20, ADMITTED).clip(8, 130),
        rng.gamma(1.5, 3, ADMITTED),
    )
    often = np.array([0.5, 0.4, 0.33, 0.3, 0.27, 0.25, 0.22, 0.2, 0.15, 0.1, 0.08, 0.06])
    often = np.concatenate([often, often / 2])
    x = np.column_stack([*columns, rng.random((ADMITTED, 24)) < often]).astype(np.float32)
    slope = np.concatenate([[0.035, -0.006, 0.12, 0.008, -0.01, 0.02], rng.normal(0, 0.4, 24)])
    y = rng.random(ADMITTED) < 1 / (1 + np.exp(2.5 - x @ slope))
    return x, y.astype(np.int32)


def sampled(model, *args):
    # Columns that are not centred hang together.
    mcmc = numpyro.infer.MCMC(
        numpyro.infer.NUTS(model, dense_mass=model is measurements),
        num_warmup=400,
        num_samples=800,
        progress_bar=False,
    )
    mcmc.run(jax.random.key(0), *args)
    return {name: np.atleast_1d(np.asarray(draws).T) for name, draws in mcmc.get_samples().items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--releases", type=int, default=8)
    given = parser.parse_args()
    cases = (hospitals, patients), (wards, people), (rents, flats), (measurements, admitted)
    for model, made_up in cases:
        data = made_up(np.random.default_rng(12))
        own = sampled(model, *data)
        release = ndp.LikelihoodRelease(
            model, privacy=ndp.Budget(given.epsilon, 1e-5), secure=False
        )
        wider, off, late = [], [], 0
        for seed in range(given.releases):
            found = release.run(jax.random.key(seed), *data, progress_bar=False)
            late += any("arrived" in said for said in found.diagnostics.verdicts)
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
        print(json.dumps(case | {"late": late}), flush=True)


if __name__ == "__main__":
    main()
