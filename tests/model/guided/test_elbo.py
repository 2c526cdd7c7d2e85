"""The bound by parts: equal to NumPyro's, its data-free part proved so, its terms one record's."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from numpyro.infer import SVI, Trace_ELBO, autoguide

import numpyro_dp as ndp
from numpyro_dp.model.guided.guides import prepare, synthetic_arguments
from numpyro_dp.model.guided.model import outline, variational_model
from tests.models import logistic

KEY = jax.random.key(3)


def by_parts(model, guide, args):
    """The split bound of a model and guide, set up without data."""
    found = outline(model, args, {}, data_plate=None, private_size=False)
    prepare(guide, found.layout, found.plate, found.dropped)
    synthetic, _ = synthetic_arguments(found.layout)
    svi = SVI(model, guide, numpyro.optim.SGD(0.1), Trace_ELBO())
    params = svi.optim.get_params(svi.init(KEY, *synthetic).optim_state)
    return variational_model(model, guide, found, None, False, False), params


def total(target, params, key, records):
    terms = jax.vmap(lambda record: target.record_elbo(params, key, record))
    return target.global_elbo(params, key) + terms([leaf[:, None] for leaf in records]).sum()


def reference(model, guide, args):
    """NumPyro's own bound and starting values, from the data."""
    svi = SVI(model, guide, numpyro.optim.SGD(0.1), Trace_ELBO())
    params = svi.optim.get_params(svi.init(KEY, *args).optim_state)

    def bound(params):
        return -svi.loss.loss(KEY, svi.constrain_fn(params), model, guide, *args)

    return params, jax.jit(jax.value_and_grad(bound))(params)


def gamma_poisson(y):
    """A positive latent and a parameter of the model's own."""
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    factor = numpyro.param("factor", 1.5, constraint=constraints.positive)
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.Poisson(rate * factor), obs=y)


def by_hand(y):
    loc = numpyro.param("loc", jnp.array(0.3))
    scale = numpyro.param(
        "scale", lambda key: jax.random.exponential(key), constraint=constraints.positive
    )
    numpyro.sample("rate", dist.LogNormal(loc, scale))


def noisy_mean(y):
    """Each record has a latent of its own."""
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    with numpyro.plate("people", y.shape[0]):
        own = numpyro.sample("own", dist.Normal(mu, 1))
        numpyro.sample("y", dist.Normal(own, 0.5), obs=y)


def amortised(y):
    """A record's latent from the record itself; without randomness, so that draws agree."""
    numpyro.sample("mu", dist.Normal(numpyro.param("m", 0.1), 0.2))
    slope = numpyro.param("slope", 0.7)
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("own", dist.Delta(slope * y))


@pytest.fixture
def data(records):
    return jnp.asarray(records["x"][:40]), jnp.asarray(records["y"][:40])


@pytest.mark.parametrize(
    "kind",
    [
        "AutoDelta",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in (
                "AutoNormal",
                "AutoDiagonalNormal",
                "AutoMultivariateNormal",
                "AutoLowRankMultivariateNormal",
                "AutoIAFNormal",
                "AutoBNAFNormal",
            )
        ),
    ],
)
def test_bound_gradient_and_start_are_numpyros(kind, data):
    make = getattr(autoguide, kind)
    params, (value, gradient) = reference(logistic, make(logistic), data)
    target, start = by_parts(logistic, make(logistic), data)
    jax.tree.map(np.testing.assert_array_equal, start, params)
    records = target.records(data, {})
    ours = jax.jit(jax.value_and_grad(lambda p: total(target, p, KEY, records)))(params)
    np.testing.assert_allclose(ours[0], value, rtol=1e-5)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), ours[1], gradient
    )


@pytest.mark.slow
@pytest.mark.parametrize("pair", [(gamma_poisson, by_hand), (noisy_mean, amortised)])
def test_hand_written_guides_agree_too(pair):
    y = jnp.arange(12.0) % 5
    params, (value, gradient) = reference(*pair, (y,))
    target, start = by_parts(*pair, (y,))
    jax.tree.map(np.testing.assert_array_equal, start, params)
    records = target.records((y,), {})
    ours = jax.jit(jax.value_and_grad(lambda p: total(target, p, KEY, records)))(params)
    np.testing.assert_allclose(ours[0], value, rtol=1e-5)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), ours[1], gradient
    )


def random_amortised(y):
    numpyro.sample("mu", dist.Normal(numpyro.param("m", 0.1), 0.2))
    slope = numpyro.param("slope", 0.7)
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("own", dist.Normal(slope * y, 0.3))


def test_a_record_moves_its_own_gradient_alone_and_draws_differ_by_row():
    y = jnp.ones(12)
    target, params = by_parts(noisy_mean, random_amortised, (y,))

    @jax.jit
    def gradients(y):
        def one(record):
            return jax.grad(lambda p: target.record_elbo(p, KEY, record))(params)["slope"]

        return jax.vmap(one)([leaf[:, None] for leaf in target.records((y,), {})])

    calm, moved = gradients(y), gradients(y.at[4].set(2.0))
    assert np.flatnonzero(np.asarray(calm != moved)).tolist() == [4]
    assert len(np.unique(np.asarray(calm))) == 12, "equal records shared their draws"


def test_the_data_free_part_needs_no_record(data):
    target, params = by_parts(logistic, autoguide.AutoNormal(logistic), data)
    latents, sites = jax.jit(target.draw)(params, KEY)
    np.testing.assert_allclose(sites["norm"], jnp.sum(latents["w"] ** 2), rtol=1e-6)
    assert jnp.isfinite(target.global_elbo(params, KEY))
    assert target.params["w_auto_loc"].shape == (3,)


def reads_data(y):
    numpyro.sample("mu", dist.Normal(y.mean(), 1))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("own", dist.Normal(0, 1))


def starts_from_data(y):
    numpyro.sample("mu", dist.Normal(numpyro.param("m", y.mean()), 1))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("own", dist.Delta(y))


def forgets(y):
    numpyro.sample("mu", dist.Normal(0, 1))


def outside(y):
    numpyro.sample("mu", dist.Normal(0, 1))
    numpyro.sample("own", dist.Normal(0, 1).expand(y.shape).to_event(1))


def listed(y):
    numpyro.sample("mu", dist.Normal(0, 1))
    loc = numpyro.param("places", jnp.zeros(y.shape[0]))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("own", dist.Normal(loc, 1))


@pytest.mark.parametrize(
    ("guide", "words"),
    [
        (reads_data, ["`mu`", "depends on record argument(s) `y`", "parameters alone"]),
        (forgets, ["no site `own`", "give it a law"]),
        (outside, ["`own`", "inside plate `people`", "put it there too"]),
        (listed, ["`places`", "(12,)", "amortised"]),
        pytest.param(
            autoguide.AutoNormal(noisy_mean),
            ["`own_auto_loc`", "amortised"],
            marks=pytest.mark.slow,
        ),
        (autoguide.AutoLaplaceApproximation(noisy_mean), ["Hessian", "AutoNormal"]),
        (autoguide.AutoDAIS(noisy_mean), ["AutoDAIS", "AutoMultivariateNormal"]),
    ],
)
def test_guides_that_cannot_be_private_are_refused(guide, words):
    with pytest.raises(ndp.UnsupportedModelError) as caught:
        by_parts(noisy_mean, guide, (jnp.arange(12.0),))
    for word in words:
        assert word in str(caught.value)


def centred_with_a_parameter(y):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    shift = numpyro.param("shift", 0.5)
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.Normal(mu + shift * (y - y.mean()), 0.5), obs=y)


def centred_outcomes(y):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    with numpyro.plate("people", y.shape[0]):
        own = numpyro.sample("own", dist.Normal(mu, 1))
        numpyro.sample("y", dist.Normal(own, 0.5), obs=y - y.mean())


def amortised_by_the_batch(y):
    numpyro.sample("mu", dist.Normal(numpyro.param("m", 0.1), 0.2))
    slope = numpyro.param("slope", 0.7)
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("own", dist.Normal(slope * (y - y.mean()), 0.3))


def for_mu_alone(y):
    numpyro.sample("mu", dist.Normal(numpyro.param("m", 0.1), 0.2))


@pytest.mark.parametrize(
    ("model", "guide"),
    [
        (centred_with_a_parameter, for_mu_alone),
        (centred_outcomes, random_amortised),
        pytest.param(noisy_mean, amortised_by_the_batch, marks=pytest.mark.slow),
    ],
    ids=["parameter", "own latents", "guide"],
)
def test_batch_statistics_are_refused_where_no_wall_is_built(model, guide):
    with pytest.raises(ndp.UnsupportedModelError, match="not a sum over records"):
        by_parts(model, guide, (jnp.arange(12.0),))


@pytest.mark.parametrize("scale", [jax.nn.softplus, jnp.exp, lambda s: 0 * s + 0.3])
def test_a_network_that_makes_latents_of_records_is_accepted(scale):
    """Its density at its own draw is mostly rounding wherever positions are wide."""

    def model(x):
        loadings = numpyro.sample("loadings", dist.Normal(0, 1).expand([2, 6]).to_event(2))
        with numpyro.plate("people", x.shape[0]):
            z = numpyro.sample("z", dist.Normal(0, 1).expand([2]).to_event(1))
            numpyro.sample("x", dist.Bernoulli(logits=z @ loadings).to_event(1), obs=x)

    def encoder(x):
        at = numpyro.param("at", jnp.full((2, 6), 0.1))
        numpyro.sample("loadings", dist.Delta(at, event_dim=2))
        inner = numpyro.param("inner", jnp.full((6, 8), 0.1))
        outer = numpyro.param("outer", jnp.full((8, 4), 0.1))
        with numpyro.plate("people", x.shape[0]):
            out = jnp.tanh(x @ inner) @ outer
            z = dist.Normal(out[..., :2], scale(out[..., 2:])).to_event(1)
            numpyro.sample("z", z)

    by_parts(model, encoder, (jnp.zeros((12, 6)),))


def placed_by_the_number(y):
    numpyro.sample("mu", dist.Normal(numpyro.param("m", 0.1), 0.2))
    slope = numpyro.param("slope", 0.7)
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("own", dist.Normal(slope * y / len(y), 0.3))


def spread_by_the_number(y):
    numpyro.sample("mu", dist.Normal(numpyro.param("m", 0.1), 0.2))
    slope = numpyro.param("slope", 0.7)
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("own", dist.Normal(slope * y, 1 / len(y)))


@pytest.mark.parametrize("guide", [placed_by_the_number, spread_by_the_number])
def test_latents_of_records_that_hang_on_the_number_of_records_are_refused(guide):
    with pytest.raises(ndp.UnsupportedModelError, match="depends on the number of records"):
        by_parts(noisy_mean, guide, (jnp.arange(12.0),))


def test_a_start_computed_from_records_is_computed_from_synthetic_ones():
    _, params = by_parts(noisy_mean, starts_from_data, (jnp.full(12, 77.0),))
    assert params["m"] == 0.5


def test_a_guide_that_has_seen_data_is_refused(data):
    guide = autoguide.AutoNormal(logistic)
    SVI(logistic, guide, numpyro.optim.SGD(0.1), Trace_ELBO()).init(KEY, *data)
    with pytest.raises(ndp.UnsupportedModelError, match="already set up"):
        by_parts(logistic, guide, data)


def test_private_size_is_judged(records):
    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        with numpyro.plate("people", y.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=mu), obs=y)

    def tells(y):
        numpyro.sample("mu", dist.Normal(0, 1 / y.shape[0]))

    args = (jnp.asarray(records["y"]),)
    found = outline(model, args, {}, data_plate=None, private_size=True)
    with pytest.raises(ndp.UnsupportedModelError, match="number of records"):
        variational_model(model, tells, found, None, True, False)
    with pytest.raises(ndp.UnsupportedModelError, match="not checked for that"):
        outline(noisy_mean, (jnp.ones(5),), {}, data_plate=None, private_size=True)
