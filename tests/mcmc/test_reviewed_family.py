"""Holes that a hostile review of the kernel family found; each test is one of its attacks."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import numpyro_dp as ndp
from numpyro_dp.model import PrivateModel

X = np.linspace(-1, 1, 24).reshape(12, 2).astype(np.float32)
Y = np.arange(12) % 2


@jax.custom_batching.custom_vmap
def everyone(v):
    return v


@everyone.def_vmap
def _(size, batched, v):
    return jnp.broadcast_to(v.sum(0), v.shape), True


def printed(v):
    jax.debug.print("{}", v)
    return v


def called(v):
    shape = jax.ShapeDtypeStruct(v.shape, v.dtype)
    return jax.pure_callback(lambda v: v, shape, v, vmap_method="expand_dims")


def closed_over(v):
    return v * jnp.sum(jnp.asarray(X) * jnp.ones_like(v))


@pytest.mark.parametrize("peek", [everyone, printed, called, closed_over, lambda v: v])
@pytest.mark.parametrize("rule", ["vjp", "jvp"])
def test_a_custom_derivative_that_sees_more_than_its_record_is_refused(peek, rule):
    """The likelihood is plain; only its derivative, which clipping rests on, looks around."""

    def product(x, w):
        return x @ w

    if rule == "vjp":
        linear = jax.custom_vjp(product)
        linear.defvjp(
            lambda x, w: (x @ w, (x, w)),
            lambda kept, g: (jnp.outer(g, kept[1]), g @ peek(kept[0])),
        )
    else:
        linear = jax.custom_jvp(product)
        linear.defjvp(lambda at, d: (at[0] @ at[1], peek(at[0]) @ d[1] + d[0] @ at[1]))

    def model(x, y):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=linear(x, w)), obs=y)

    if peek in (everyone, printed, called, closed_over):
        with pytest.raises(ndp.UnsupportedModelError, match=r"many records|single records|closes"):
            PrivateModel(model, (X, Y))
    else:
        assert PrivateModel(model, (X, Y)).num_records == 12


def test_a_model_without_a_derivative_is_still_split():
    def model(y):
        rate = numpyro.sample("rate", dist.Normal(0, 1))
        grown = jax.lax.while_loop(lambda v: v < 10, lambda v: 2 * v, 1 + rate**2)
        with numpyro.plate("people", y.shape[0]):
            numpyro.sample("y", dist.Normal(grown, 1), obs=y)

    assert PrivateModel(model, (X[:, 0],)).latents == ("rate",)
