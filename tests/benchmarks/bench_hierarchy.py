"""A scale in a hierarchy: how far above the records' mode, and why; for docs/limitations.md.

A round that asks at effects u sees residuals whose squares are larger by the distance of u from the
effects' mode, so it says that log sigma is larger by half of that, relative to the number of
records. Beside it: whether intervals of 95 % hold the truth, and with --nuts how many times as wide
as NUTS's on the records the effects' intervals are, by NUTS on the release.

    python tests/benchmarks/bench_hierarchy.py --groups 30 --epsilon 1 --releases 40
"""

import argparse
import json

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist

import numpyro_dp as ndp
from numpyro_dp.scoring import release as module
from numpyro_dp.scoring.rounds import pool
from numpyro_dp.scoring.statistic import coordinate_names

RECORDS, SIGMA = 3_000, 0.8


def hierarchy(x, group, num_groups, y=None):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    tau = numpyro.sample("tau", dist.HalfNormal(1))
    with numpyro.plate("groups", num_groups):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
    beta = numpyro.sample("beta", dist.Normal(0, 1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Normal(theta[group] + beta * x, sigma), obs=y)


def made_up(rng, groups):
    shares = 0.7 * rng.dirichlet(np.full(groups, 1.5)) + 0.3 / groups
    rest = rng.choice(groups, RECORDS - groups, p=shares)
    group = np.concatenate([np.arange(groups), rest]).astype(np.int32)
    theta, x = rng.normal(0.5, 0.5, groups), rng.normal(size=RECORDS)
    y = theta[group] + 0.5 * x + SIGMA * rng.normal(size=RECORDS)
    return x.astype(np.float32), group, y.astype(np.float32)


def spread(model, *args):
    """Standard deviations of the effects under NUTS."""
    kernel = numpyro.infer.NUTS(model)
    mcmc = numpyro.infer.MCMC(kernel, num_warmup=300, num_samples=600, progress_bar=False)
    mcmc.run(jax.random.key(0), *args)
    return np.asarray(mcmc.get_samples()["theta"]).std(0)


def one(seed, groups, epsilon, rounds_of, nuts):
    """How far sigma is above the mode, what was foretold, and above the truth, in its own sds."""
    x, group, y = made_up(np.random.default_rng(seed), groups)
    privacy = ndp.Budget(epsilon, 1e-5)
    release = ndp.LikelihoodRelease(hierarchy, privacy=privacy, secure=False, allow_unresolved=True)
    key = jax.random.key(seed + 900)
    found = release.run(key, x, group, groups, y, progress_bar=False)
    at, (rounds, prior, records, to) = found.located, rounds_of[-1]
    names = coordinate_names(found.private_model)
    k = names.index("sigma")
    effects = [names.index("beta"), *(names.index(f"theta[{g}]") for g in range(groups))]
    columns = np.column_stack([x, np.eye(groups)[group]])
    mode = np.linalg.lstsq(columns, y, rcond=None)[0]
    variance = np.mean((y - columns @ mode) ** 2)
    centre = to.inverse @ (at.mean - to.origin)
    weights = pool(rounds, prior, records, centre, final=True).weights
    asked = [(to.origin + to.basis @ each.at.u)[effects] for each in rounds]
    away = [np.sum((columns @ (effect - mode)) ** 2) for effect in asked]
    foretold = weights @ away / variance / (2 * records)
    own, log_sigma = np.sqrt(at.covariance[k, k]), at.mean[k]
    above = [log_sigma - np.log(variance) / 2, foretold, log_sigma - np.log(SIGMA)]
    ratio = spread(found.model) / spread(hierarchy, x, group, groups, y) if nuts else []
    return np.array(above) / own, np.max(at.widened), ratio


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--groups", type=int, default=30)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--releases", type=int, default=40)
    parser.add_argument("--nuts", action="store_true")
    given = parser.parse_args()
    rounds_of, honest = [], module.located

    def watched(*of):
        rounds_of.append(of)
        return honest(*of)

    module.located = watched
    found = [
        one(k, given.groups, given.epsilon, rounds_of, given.nuts) for k in range(given.releases)
    ]
    rows = np.array([row for row, *_ in found])
    above, foretold, _ = rows.mean(0)
    case = {
        **vars(given),
        "above_mode_in_own_sds": above,
        "sd_of_that": rows[:, 0].std(),
        "foretold": foretold,
        "hold_the_truth": np.mean(np.abs(rows[:, 2]) < 1.96),
        "largest_widened": np.median([most for _, most, _ in found]),
    }
    if given.nuts:
        ratios = np.concatenate([ratio for *_, ratio in found])
        case |= {f"wider_{q}_percent": np.percentile(ratios, q) for q in (0, 50, 100)}
    print(json.dumps({name: round(float(value), 3) for name, value in case.items()}))


if __name__ == "__main__":
    main()
