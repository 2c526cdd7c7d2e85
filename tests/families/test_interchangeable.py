"""Entries that may trade places are found, and nothing else is taken for such."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.autoguide import AutoNormal

import numpyro_dp as ndp
from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.families.interchangeable import interchangeable
from numpyro_dp.model.private_model import PrivateModel
from tests.model.examples import EXAMPLES
from tests.model.zoo import ACCEPTED

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(3_000, 4)).astype(np.float32), RNG.normal(size=3_000).astype(np.float32)
GROUP = RNG.integers(0, 3, 3_000)


def found(model, *args):
    return interchangeable(PrivateModel(model, args))


def vector(name, *shape):
    return numpyro.sample(name, dist.Normal(0, 1).expand(shape).to_event(len(shape)))


def observed(mean, y):
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 1), obs=y)


@pytest.mark.parametrize("bend", [jnp.tanh, lambda x: jnp.maximum(x, 0)])
def test_units_of_a_network_are(bend):
    def network(x, y):
        hidden = bend(x @ vector("w1", 4, 3) + vector("b1", 3))
        observed(hidden @ vector("w2", 3) + vector("b2"), y)

    assert found(network, X, Y) == ("b1", "w1", "w2")
    with pytest.raises(UnsupportedModelError, match=r"entries of latents `b1`, `w1`, `w2` may"):
        ndp.DPNUTS(network, privacy=ndp.Budget(1.0, 1e-5)).forecast(X, Y)


def test_what_cannot_adapt_sends_nobody_to_a_kernel_that_refuses():
    def network(x, y, units):
        hidden = jnp.tanh(x @ vector("w1", 4, units) + vector("b1", units))
        observed(hidden @ vector("w2", units) + vector("b2"), y)

    def regression(x, y):
        observed(x @ vector("w", 4) + vector("b"), y)

    for model, *args, sent in (network, X, Y, 8, False), (regression, X[:300], Y[:300], True):
        svi = ndp.DPSVI(model, AutoNormal(model), privacy=ndp.Budget(0.5, 1e-5))
        with pytest.raises(ValueError, match="tells next to nothing of where") as refused:
            svi.run(jax.random.key(0), 10, *args)
        assert ("DPNUTS makes more" in str(refused.value)) == sent


def test_components_of_a_density_written_out_are():
    def mixture(y):
        shares, centre = jax.nn.log_softmax(vector("log_share", 2)), vector("centre", 2)
        with numpyro.plate("people", y.shape[0]):
            each = shares + dist.Normal(centre, 0.5).log_prob(y[:, None])
            numpyro.factor("y", jax.nn.logsumexp(each, -1))

    assert found(mixture, Y) == ("centre", "log_share")


def test_columns_groups_outcomes_and_sums_are_not():
    def columns(x, y):
        observed(jnp.tanh(x @ vector("w", 4)) + (x**2) @ vector("v", 4), y)

    def groups(x, group, y):
        observed(vector("a", 3)[group] + vector("b", 3)[group] * x[:, 0], y)

    def apart(x, y):
        # As above, but each unit's prior has a place of its own.
        centres = jnp.array([-2.0, 0.0, 2.0])
        b1 = numpyro.sample("b1", dist.Normal(centres, 1).to_event(1))
        observed(jnp.tanh(x @ vector("w1", 4, 3) + b1) @ vector("w2", 3), y)

    def horseshoe(x, y):
        scale = numpyro.sample("scale", dist.HalfCauchy(1).expand([4]).to_event(1))
        observed(x @ (vector("w", 4) * scale), y)

    assert not found(columns, X, Y)
    assert not found(groups, X, GROUP, Y)
    # Weights of the units have one prior still, and only all three together are exchanged.
    assert not found(apart, X, Y)
    assert not found(horseshoe, X, Y)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:deterministic site")
def test_of_models_that_others_wrote_networks_are():
    named = []
    for case in (*ACCEPTED, *EXAMPLES):
        model, args, kwargs = case.build()
        split = PrivateModel(model, args, kwargs, data_plate=case.data_plate)
        named += [case.name] * bool(interchangeable(split))
    assert named == ["small_neural_network", "bnn", "stein_bnn"]
