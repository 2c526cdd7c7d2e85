"""What a review of the variational objects found, kept closed."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.infer.autoguide import AutoNormal

import numpyro_dp as ndp
from tests.mcmc.test_reviewed_family import everyone

linear = jax.custom_vjp(lambda x, w: x @ w)
linear.defvjp(
    lambda x, w: (x @ w, (x, w)), lambda kept, g: (jnp.outer(g, kept[1]), g @ everyone(kept[0]))
)


@pytest.mark.parametrize("with_param", [False, True])
def test_a_derivative_that_sees_other_records_is_refused(with_param):
    def model(x, y):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        shift = numpyro.param("shift", jnp.zeros(2)) if with_param else 0.0
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=linear(x, w + shift)), obs=y)

    accountant = ndp.Accountant()
    svi = ndp.DPSVI(
        model,
        AutoNormal(model),
        optax.sgd(1e-3),
        clip_norm=1.0,
        noise_multiplier=2.0,
        sampling_rate=0.5,
        accountant=accountant,
    )
    x = np.linspace(-1, 1, 24).reshape(12, 2).astype(np.float32)
    with pytest.raises(ndp.UnsupportedModelError, match="see many records"):
        svi.run(jax.random.key(0), 3, x, np.arange(12) % 2, progress_bar=False)
    assert accountant.entries == ()


@jax.custom_jvp
def cosine(x):
    return jnp.cos(x)


@cosine.defjvp
def _(primals, tangents):
    jax.debug.print("{}", primals[0])
    return jnp.cos(primals[0]), -jnp.sin(primals[0]) * tangents[0]


@jax.custom_jvp
def sine(x):
    """A rule without fault, which calls a function whose own rule shows single records."""
    return jnp.sin(x)


@sine.defjvp
def _(primals, tangents):
    return jnp.sin(primals[0]), cosine(primals[0]) * tangents[0]


once, twice = jax.custom_vjp(jnp.cos), jax.custom_vjp(jnp.sin)
once.defvjp(lambda x: (jnp.cos(x), x), lambda x, g: (-g * jnp.sin(x),))
twice.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (g * once(x),))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bend", "error", "words"),
    [(sine, ndp.UnsupportedModelError, "side effects"), (twice, TypeError, "forward-mode")],
)
def test_the_curvature_runs_no_code_that_nobody_judged(bend, error, words):
    """Second derivatives run the rules of what a custom derivative calls, or there are none."""

    def model(x):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("x", dist.Normal(bend(mu + x), 1), obs=x)

    accountant = ndp.Accountant()
    options = {"clip_norm": 1.0, "noise_multiplier": 2.0, "clip": "plain"}
    svi = ndp.DPSVI(model, AutoNormal(model), optax.sgd(1e-3), accountant=accountant, **options)
    x = np.linspace(-1, 1, 5, dtype=np.float32)
    with pytest.raises(error, match=words):
        svi.run(jax.random.key(0), 2, x, progress_bar=False)
    assert accountant.entries == ()
