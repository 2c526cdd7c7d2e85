"""A DPSVI step against the same step written by hand, on the same release; run as a script.

Both use one PrivateSum and one optimiser; what is compared is what the wall, the guide and the
driver add. Minimum over interleaved repeats, in microseconds a step.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax import lax, random
from jax.flatten_util import ravel_pytree
from numpyro.infer.autoguide import AutoNormal

import numpyro_dp as ndp
from numpyro_dp.mechanisms.keys import seeded_key
from numpyro_dp.svi.fit import Carry
from tests.models import logistic

RECORDS, DIM, BATCH, STEPS, REPEATS = 20_000, 50, 1_000, 100, 7


def prepared(x, y):
    """The fit of a DPSVI run, and what it starts from."""
    svi = ndp.DPSVI(
        logistic,
        AutoNormal(logistic),
        numpyro.optim.SGD(1e-5),
        clip_norm=1.0,
        noise_multiplier=1.0,
        batch_size=BATCH,
        scale="gradient",
    )
    state = svi.init(random.key(0), x, y)
    found = svi._outline((x, y), {})
    fit, _ = svi._bind(svi._target(found), state, STEPS)
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


def main() -> None:
    """Measure and print."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(RECORDS, DIM)), jnp.float32)
    y = jnp.asarray(rng.integers(0, 2, RECORDS))
    fit, state = prepared(x, y)
    noise_key = seeded_key(random.key(2))
    ways = {
        name: jax.jit(lambda records, way=way: way(fit, state, noise_key, records))
        for name, way in {"library": by_library, "by hand": by_hand}.items()
    }
    best = dict.fromkeys(ways, float("inf"))
    for repeat in range(REPEATS + 1):
        for name, way in ways.items():
            begin = time.perf_counter()
            jax.block_until_ready(way([x, y]))
            if repeat:
                best[name] = min(best[name], (time.perf_counter() - begin) / STEPS * 1e6)
    print({name: round(value) for name, value in best.items()})
    print(f"ratio {best['library'] / best['by hand']:.2f}")


if __name__ == "__main__":
    main()
