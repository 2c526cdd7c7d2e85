"""An integrator on a Gaussian target, its gradient noisy as privacy would make it."""

from functools import partial

import jax
import jax.numpy as jnp

from numpyro_dp.mcmc.sgmcmc.integrator import NoisyGradient


@partial(jax.jit, static_argnames=("integrator", "chains", "warmup", "steps", "prepare"))
def simulate(
    integrator, precision, *, sd=0.0, chains=256, warmup=500, steps=1_500, prepare=None, root=None
):
    """Positions and states of independent chains: leading axes step and chain.

    :param precision: diagonal of the target's precision; its mean is 0.
    :param sd: of the privacy noise, which the integrator is told.
    :param prepare: changes the first state of a chain.
    :param root: root of the covariance of further noise, which it is not told.
    """
    dim = precision.size

    def one(state, key):
        privacy, own, batch = jax.random.split(key, 3)
        position = state.z["x"]
        gradient = -precision * position + sd * jax.random.normal(privacy, (dim,))
        if root is not None:
            gradient = gradient + root * jax.random.normal(batch, (dim,))
        position, moved = integrator.step(own, state, position, NoisyGradient(gradient, sd, 1.0))
        return state._replace(z={"x": position}, i=state.i + 1, **moved)

    def every(states, key):
        states = jax.vmap(one)(states, jax.random.split(key, chains))
        return states, states._replace(rng_key=None)

    start = jnp.zeros(dim)
    first = integrator.start(None, {"x": start}, start, sd)
    first = first if prepare is None else prepare(first, precision)
    states = jax.tree.map(lambda x: jnp.broadcast_to(x, (chains, *jnp.shape(x))), first)
    keys = jax.random.split(jax.random.key(0), warmup + steps)
    states = jax.lax.scan(every, states, keys[:warmup])[0]
    return jax.lax.scan(every, states, keys[warmup:])[1]
