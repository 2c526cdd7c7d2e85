"""Every method on JAX's default device, the float step beside the private one, and its bits.

Prints one JSON line a case: seconds of a first and of a further run with the posterior's means and
sds, then microseconds of wall clock a step and milliseconds a full pass. Run it once on the
accelerator and once beside it with ``JAX_PLATFORMS=cpu``; what a sum of integers releases must have
the same bits on both.

    python -m tests.benchmarks.bench_accelerator [methods sums]
"""

import json
import sys
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from jax import random
from numpyro.infer.autoguide import AutoMultivariateNormal, AutoNormal

import numpyro_dp as ndp
from numpyro_dp.mechanisms import PrivateSum
from tests.benchmarks import bench_release

BUDGET, ROW_NORM, GROUPS, ROUNDS = ndp.Budget(1.0, 1e-5), 4.0, 20, 7
NUM_RECORDS, DIM = 20_000, 10


def logistic(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[-1]]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def linear(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 2).expand([x.shape[-1]]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, sigma), obs=y)


def groups(group, y=None):
    mu, tau = numpyro.sample("mu", dist.Normal(0, 2)), numpyro.sample("tau", dist.HalfNormal(1))
    with numpyro.plate("groups", GROUPS):
        a = numpyro.sample("a", dist.Normal(mu, tau))
    with numpyro.plate("people", group.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=a[group]), obs=y)


def mixture(y):
    share = numpyro.sample("share", dist.Dirichlet(jnp.full(2, 3.0)))
    centre = numpyro.sample("centre", dist.Normal(jnp.array([-2.0, 2.0]), 0.5).to_event(1))
    with numpyro.plate("people", y.shape[0]):
        law = dist.MixtureSameFamily(dist.Categorical(share), dist.Normal(centre, 1.0))
        numpyro.sample("y", law, obs=y)


def data():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (NUM_RECORDS, DIM)).astype(np.float32)
    x[:, 0] = 1
    at = x @ rng.normal(0, 0.7, DIM)
    group, a = rng.integers(0, GROUPS, NUM_RECORDS), rng.normal(0.3, 0.5, GROUPS)
    return {
        "logistic": (x, (rng.random(NUM_RECORDS) < 1 / (1 + np.exp(-at))).astype(np.int32)),
        "linear": (x, (at + rng.normal(0, 0.8, NUM_RECORDS)).astype(np.float32)),
        "groups": (
            group,
            (rng.random(NUM_RECORDS) < 1 / (1 + np.exp(-a[group]))).astype(np.int32),
        ),
        "mixture": (rng.normal(np.where(rng.random(NUM_RECORDS) < 0.4, -2, 2)).astype("f4"),),
    }


def chains(make, args, num_chains=1, warmup=300, draws=500, **options):
    mcmc = ndp.MCMC(
        make(),
        num_warmup=warmup,
        num_samples=draws,
        num_chains=num_chains,
        progress_bar=False,
        **options,
    )
    mcmc.run(random.key(0), *args)
    return mcmc.get_samples(), mcmc.privacy


def fitted(make, args, *, steps):
    result = make().run(random.key(0), *steps, *args, progress_bar=False)
    return result.get_samples(), result.privacy


def estimate(args):
    estimator = ndp.ObjectivePerturbation(logistic, row_norm=ROW_NORM, privacy=BUDGET)
    result = estimator.run(random.key(0), *args)
    return {name: np.asarray(value)[None] for name, value in result.sites.items()}, result.privacy


def methods():
    found = data()
    xy = found["logistic"]
    batches = {"privacy": BUDGET, "sampling_rate": 0.02}
    strongly = ndp.StronglyLogConcave(row_norm=ROW_NORM)

    def nuts(name, model):
        return partial(
            chains, partial(ndp.DPNUTS, model, privacy=BUDGET), found[name], num_chains=4
        )

    def by_svi(guide, steps, *optimiser, **options):
        make = partial(ndp.DPSVI, logistic, guide(logistic), *optimiser, privacy=BUDGET, **options)
        return partial(fitted, make, xy, steps=(steps,))

    def vips():
        guide = ndp.guides.PolyaGammaGuide(logistic, row_norm=ROW_NORM)
        return ndp.VIPS(logistic, guide, privacy=BUDGET)

    return {
        "DPNUTS, logistic": nuts("logistic", logistic),
        "DPNUTS, linear": nuts("linear", linear),
        "DPNUTS, groups": nuts("groups", groups),
        "DPFastMH, mixture": partial(
            chains,
            partial(ndp.DPFastMH, mixture, privacy=ndp.Budget(5.0, 1e-5)),
            found["mixture"],
            warmup=200,
            draws=300,
        ),
        "DPSGLD": partial(chains, partial(ndp.DPSGLD, logistic, **batches), xy, draws=1_000),
        "DPSGHMC, 2 vectorized chains": partial(
            chains,
            partial(ndp.DPSGHMC, logistic, **batches),
            xy,
            num_chains=2,
            chain_method="vectorized",
        ),
        "DPSGNHT": partial(chains, partial(ndp.DPSGNHT, logistic, **batches), xy),
        "DPSGFS": partial(
            chains, partial(ndp.DPSGFS, logistic, step_size=1e-5, clip_norm=1.0, **batches), xy
        ),
        "DPSVI, adapted": by_svi(AutoMultivariateNormal, 60),
        "DPSVI, 2,000 mini-batches": by_svi(
            AutoNormal, 2_000, optax.adam(0.01), sampling_rate=0.02, clip_norm=1.0
        ),
        "VIPS": partial(fitted, vips, xy, steps=(None,)),
        "ObjectivePerturbation": partial(estimate, xy),
        "OPS": partial(
            chains,
            partial(ndp.OPS, logistic, guarantee=strongly, privacy=BUDGET),
            xy,
            warmup=0,
            draws=1,
        ),
    }


def tell(**row):
    print(json.dumps({"backend": jax.default_backend(), **row}), flush=True)


def time_method(name, run):
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        samples, privacy = run()
        seconds.append(round(time.perf_counter() - start, 2))
    about = {
        site: [
            np.round(of(np.asarray(value), 0), 4).ravel()[:5].tolist() for of in (np.mean, np.std)
        ]
        for site, value in samples.items()
    }
    tell(case=name, seconds=seconds, posterior=about, epsilon=float(privacy.epsilon))


def private_sum(num_records, dim, **options):
    size = {"num_records": num_records, "dim": dim}
    return PrivateSum.create(**size, clip_norm=1.0, num_steps=10, **options)


def time_sums():
    for name, (num_records, dim, batch) in bench_release.CASES.items():
        repeats = max(10, 100_000 // (batch * dim // 16))
        _, calls = bench_release.programs(bench_release.synthetic(num_records, dim), batch, repeats)
        micros = bench_release.slopes(calls, repeats, time.perf_counter)
        tell(case=name, us_per_step={key: round(value, 1) for key, value in micros.items()})
    few = jnp.asarray(np.random.default_rng(0).integers(-3, 4, (5_000, 6)) / 64, jnp.float32)
    total = private_sum(5_000, 6, sampling_rate=0.1, noise_multiplier=1.0, delta=1e-5)
    # Chosen so that nothing is rounded before it is an integer.
    released = total.release(random.key(3), lambda row: row[0][0], [few])
    tell(case="bits", released=[float(value).hex() for value in released])
    time_pass(1_000_000, 50)


def time_pass(num_records, dim):
    x, y = bench_release.synthetic(num_records, dim)
    total = private_sum(num_records, dim, sampling_rate=1.0, noise_multiplier=5.0, delta=1e-7)

    @jax.jit
    def private(key, w):
        return total.release(key, partial(bench_release.record_gradient, w), [x, y])

    @jax.jit
    def in_floats(_, w):
        gradients = jax.vmap(lambda *row: bench_release.record_gradient(w, [a[None] for a in row]))
        each = gradients(x, y)
        norms = jnp.maximum(jnp.linalg.norm(each, axis=1, keepdims=True), 1e-12)
        return jnp.sum(each * jnp.minimum(1.0, 1 / norms), axis=0)

    least = {}
    for number in range(ROUNDS + 1):
        for name, run in (("private", private), ("floats", in_floats)):
            start = time.perf_counter()
            run(random.key(number), jnp.zeros(dim)).block_until_ready()
            if number:  # The first compiles.
                taken = 1e3 * (time.perf_counter() - start)
                least[name] = round(min(least.get(name, np.inf), taken), 2)
    tell(case=f"full pass of {num_records} x {dim}", ms=least)


def main(parts):
    tell(case="device", device=str(jax.devices()[0]), jax=jax.__version__)
    if "methods" in parts:
        for name, run in methods().items():
            time_method(name, run)
    if "sums" in parts:
        time_sums()


if __name__ == "__main__":
    main(sys.argv[1:] or ["methods", "sums"])
