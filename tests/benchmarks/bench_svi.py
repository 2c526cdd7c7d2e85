"""A DPSVI step beside what it is compared with; run as a script, one JSON line a case.

    taskset -c 0 python tests/benchmarks/bench_svi.py [--d3p /path/to/python/with/d3p]

``by hand``: the same step with the bound written out, on the same release. ``numpyro``: the
*non-private* ``numpyro.infer.SVI`` with ``plate(subsample_size=)`` over a million records.
``d3p``: d3p's DPSVI, in a process of its own (see ``d3p_step.py``). Minimum over interleaved
repeats, in microseconds of a step after compilation.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import lax, random
from jax.flatten_util import ravel_pytree
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal

import numpyro_dp as ndp
from numpyro_dp.execution.keys import seeded_key
from numpyro_dp.svi.dpsvi.fit import Carry

RECORDS, MANY, DIM, BATCH, STEPS, REPEATS = 20_000, 1_000_000, 50, 1_000, 100, 9


def model(x, y):
    """Logistic regression."""
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[-1]]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def subsampled(x, y):
    """The same, on a batch, as NumPyro offers it without privacy."""
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[-1]]).to_event(1))
    with numpyro.plate("people", x.shape[0], subsample_size=BATCH):
        x, y = (numpyro.subsample(part, event_dim=n) for part, n in ((x, 1), (y, 0)))
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def data(records):
    """Inputs and outcomes without a pattern."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((records, DIM), dtype=np.float32)
    return jnp.asarray(x), jnp.asarray(rng.integers(0, 2, records))


def prepared(args):
    """The fit of a DPSVI run, and what it starts from."""
    svi = ndp.DPSVI(
        model,
        AutoNormal(model),
        numpyro.optim.SGD(1e-5),
        clip_norm=1.0,
        noise_multiplier=1.0,
        batch_size=BATCH,
        scale="gradient",
        clip="plain",
    )
    _, fit, _, state = svi._prepared(STEPS, args, {})
    return fit, state


def by_library(fit, state, noise_key, records):
    """Steps of the library's own loop body."""
    zero = jax.tree.map(jnp.zeros_like, fit.optim.get_params(state.optim_state))

    def step(carry, _):
        optim_state, draws_key, noise_key, _ = fit.step(carry, records)
        return Carry(carry.i + 1, optim_state, draws_key, noise_key, zero), None

    start = Carry(jnp.zeros((), int), state.optim_state, random.key(1), noise_key, zero)
    return lax.scan(step, start, length=STEPS)[0].optim_state


def by_hand(fit, state, noise_key, records):
    """The same steps with the bound written out."""
    start, unravel = ravel_pytree(fit.optim.get_params(state.optim_state))

    def step(carry, _):
        flat, draws_key, noise_key = carry
        draws_key, draw = random.split(draws_key)
        noise_key, fresh = random.split(noise_key)
        noise = random.normal(draw, (DIM,))

        def drawn(flat):
            params = unravel(flat)
            scale = jax.nn.softplus(params["w_auto_scale"])
            return params["w_auto_loc"] + scale * noise, scale

        def term(flat, record):
            eta = record[0][0] @ drawn(flat)[0]
            return record[1][0] * eta - jnp.logaddexp(0.0, eta)

        def data_free(flat):
            w, scale = drawn(flat)
            return -jnp.sum(w**2) / 2 + jnp.sum(jnp.log(scale))

        released = fit.private_sum.release(fresh, lambda r: jax.grad(term)(flat, r), records)
        return (flat + 1e-5 * (released + jax.grad(data_free)(flat)), draws_key, noise_key), None

    return lax.scan(step, (start, random.key(1), noise_key), length=STEPS)[0][0]


def without_privacy(records):
    """NumPyro's own steps."""
    svi = SVI(subsampled, AutoNormal(subsampled), numpyro.optim.SGD(1e-5), Trace_ELBO())
    state = svi.init(random.key(0), *records)

    def steps(records):
        def step(state, _):
            return svi.update(state, *records)[0], None

        return lax.scan(step, state, length=STEPS)[0].optim_state

    return steps


def timed(way: Callable, records: list) -> Callable[[], float]:
    """What measures a step of ``way`` once, in microseconds, compiled beforehand."""
    compiled = jax.jit(way)
    jax.block_until_ready(compiled(records))

    def measure() -> float:
        begin = time.perf_counter()
        jax.block_until_ready(compiled(records))
        return (time.perf_counter() - begin) / STEPS * 1e6

    return measure


def d3p(python: str) -> tuple[dict[str, str], dict[str, Callable[[], float]]]:
    """Versions in d3p's process, and what measures its steps with each way to draw a batch."""
    sizes = map(str, (RECORDS, DIM, BATCH, STEPS))
    script = Path(__file__).with_name("d3p_step.py")
    process = subprocess.Popen(
        [python, str(script), *sizes], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    if process.stdin is None or process.stdout is None:
        sys.exit("d3p's process has no pipes")
    ask, answer = process.stdin, process.stdout
    versions = json.loads(answer.readline())

    def measure(how: str) -> float:
        ask.write(f"{how}\n")
        ask.flush()
        return float(answer.readline())

    ways = {"d3p": "", "d3p with replacement": "with"}
    return versions, {name: partial(measure, how) for name, how in ways.items()}


def report(case: str, ways: dict[str, Callable[[], float]], **more: object) -> None:
    """Measure in turn; print the least of each and every other one over the first."""
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(REPEATS):
        for name, measure in ways.items():
            best[name] = min(best[name], measure())
    first, *others = best
    ratios = {f"{name} ÷ {first}": round(best[name] / best[first], 2) for name in others}
    microseconds = {name: round(value) for name, value in best.items()}
    print(json.dumps({"case": case, **microseconds, **ratios, **more}, ensure_ascii=False))


def ours(records: list, way: Callable = by_library) -> Callable[[], float]:
    """A step of DPSVI on these records, or by hand."""
    fit, state = prepared(tuple(records))
    noise_key = seeded_key(random.key(2))
    return timed(lambda rows: way(fit, state, noise_key, rows), records)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--d3p", help="a Python that has d3p 0.2.0")
    options = parser.parse_args()
    records = list(data(RECORDS))
    step = ours(records)
    report("by hand", {"ours": step, "by hand": ours(records, by_hand)})
    if options.d3p:
        versions, theirs = d3p(options.d3p)
        report("d3p", {"ours": step, **theirs}, versions=versions)
    many = list(data(MANY))
    ways = {"ours": ours(many), "numpyro": timed(without_privacy(many), many)}
    report("numpyro, no privacy, a million records", ways)


if __name__ == "__main__":
    main()
