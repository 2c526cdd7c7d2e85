"""A step of d3p's DPSVI, timed on request: run by ``bench_svi.py`` with the Python that has d3p.

Reads ``records dim batch steps`` from the command line, then measures once for each line of its
input: batches without replacement (d3p's default), or with it where the line says so. d3p 0.2.0
needs an old JAX::

    pip install d3p==0.2.0 jax==0.4.30 jaxlib==0.4.30 numpyro==0.15.3 "scipy<1.14"
"""

import importlib.metadata
import json
import sys
import time

import d3p.random
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from d3p.minibatch import subsample_batchify_data
from d3p.svi import DPSVI
from jax import lax
from numpyro.distributions import constraints
from numpyro.infer import Trace_ELBO


def main() -> None:
    """Compile, say which versions, then measure on request."""
    records, dim, batch, steps = map(int, sys.argv[1:])
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(records, dim)), jnp.float32)
    y = jnp.asarray(rng.integers(0, 2, records))

    def model(x, y):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([dim]).to_event(1))
        with numpyro.plate("people", records, subsample_size=x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    def guide(x, y):
        loc = numpyro.param("loc", jnp.zeros(dim))
        scale = numpyro.param("scale", 0.1 * jnp.ones(dim), constraint=constraints.positive)
        numpyro.sample("w", dist.Normal(loc, scale).to_event(1))

    svi = DPSVI(
        model, guide, numpyro.optim.SGD(1e-5), Trace_ELBO(),
        clipping_threshold=1.0, dp_scale=1.0,
    )  # fmt: skip
    state = svi.init(d3p.random.PRNGKey(1), x[:1], y[:1])

    def steps_with(replacement):
        # d3p's batches hold the records by closure.
        start, get_batch = subsample_batchify_data((x, y), batch, with_replacement=replacement)
        _, batches = start(d3p.random.PRNGKey(0))

        @jax.jit
        def run(state):
            def step(number, state):
                return svi.update(state, *get_batch(number, batches))[0]

            return lax.fori_loop(0, steps, step, state)

        jax.block_until_ready(run(state).optim_state)
        return run

    runs = [steps_with(False), steps_with(True)]
    names = ("d3p", "jax", "numpyro")
    print(json.dumps({name: importlib.metadata.version(name) for name in names}), flush=True)
    for line in sys.stdin:
        run = runs["with" in line]
        begin = time.perf_counter()
        jax.block_until_ready(run(state).optim_state)
        print((time.perf_counter() - begin) / steps * 1e6, flush=True)


if __name__ == "__main__":
    main()
