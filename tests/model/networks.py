"""Bayesian neural networks by the modules of three libraries, each weight with a prior."""

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from flax import nnx
from numpyro.contrib.module import random_eqx_module, random_flax_module, random_nnx_module

HIDDEN = 4


class Linen(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(1)(nn.tanh(nn.Dense(HIDDEN)(x)))[..., 0]


class Eager(nnx.Module):
    def __init__(self, inputs, rngs):
        self.inner = nnx.Linear(inputs, HIDDEN, rngs=rngs)
        self.outer = nnx.Linear(HIDDEN, 1, rngs=rngs)

    def __call__(self, x):
        return self.outer(jnp.tanh(self.inner(x)))[..., 0]


def regressed(network, prior):
    """A regression by ``network(prior, number of inputs)``, as NumPyro's documentation has it."""

    def model(x, y=None):
        net = network(prior, x.shape[-1])
        sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(net(x), sigma), obs=y)

    return model


def linen(prior, inputs):
    return random_flax_module("net", Linen(), prior, input_shape=(inputs,))


def equinox(prior, inputs):
    module = eqx.nn.MLP(inputs, "scalar", HIDDEN, 1, key=jax.random.key(0))
    return jax.vmap(random_eqx_module("net", module, prior))


def eager(prior, inputs):
    return random_nnx_module("net", Eager(inputs, nnx.Rngs(0)), prior)


NETWORKS = {"linen": linen, "equinox": equinox, "nnx": eager}
