"""A model that is no sum over records is refused, however wide its noise, with a way out."""

import itertools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers

from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.model.private_model import PrivateModel

from .coupled import LIKELIHOODS, MORE_OVER_ROWS, OVER_ROWS, coupled, data

REFUSED = "not a sum over records: the log likelihood of a record at site `y` "
# One of each kind and likelihood by default; each is a compiled program.
QUICK = [*zip(OVER_ROWS, LIKELIHOODS, strict=False), ("mean", "normal 100"), ("sd", "poisson")]


def pairs(kinds, likelihoods, quick):
    return [
        pytest.param(*pair, marks=[] if pair in quick else pytest.mark.slow)
        for pair in itertools.product(kinds, likelihoods)
    ]


def refuse(over_rows, likelihood, *, keywords=False, match=REFUSED):
    *args, y = data(likelihood)
    given = (args, {"y": y}) if keywords else ([*args, y], {})
    with pytest.raises(UnsupportedModelError, match=match) as caught:
        PrivateModel(coupled(over_rows, LIKELIHOODS[likelihood]), *given)
    return str(caught.value)


@pytest.mark.parametrize(("kind", "likelihood"), pairs(OVER_ROWS, LIKELIHOODS, QUICK))
def test_statistics_over_rows_are_refused_whatever_the_noise(kind, likelihood):
    keywords = len(kind) % 2 == 0
    refuse(OVER_ROWS[kind], likelihood, keywords=keywords)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "likelihood"), pairs(OVER_ROWS, LIKELIHOODS, []))
def test_statistics_over_rows_are_refused_the_other_way_round(kind, likelihood):
    keywords = len(kind) % 2 == 1
    refuse(OVER_ROWS[kind], likelihood, keywords=keywords)


@pytest.mark.parametrize(
    ("kind", "likelihood"),
    pairs(MORE_OVER_ROWS, ["normal .1", "normal 100", "poisson"], [("count", "normal 100")]),
)
def test_more_ways_to_look_at_other_rows(kind, likelihood):
    refuse(MORE_OVER_ROWS[kind], likelihood)


def regression(change=lambda x, y: (x, y), sd=10.0):
    def model(x, y, mean=0.0, number=1):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[-1]]).to_event(1))
        x, y = change(x, y - mean)
        with numpyro.plate("people", x.shape[0]), handlers.scale(scale=1 / number):
            numpyro.sample("y", dist.Normal(x @ w, sd), obs=y)

    return model


def averaged(x, y):
    return regression()(x, y, number=len(y))


def rows():
    x, _, _, y = data("normal 1")
    return x, y


# The mistake, and what the message says of it done.
WAYS_OUT = {
    "other records": (regression(lambda x, y: (x, y - y.mean())), regression(), {"mean": 0.3}),
    "number of records": (averaged, regression(), {"number": 24}),
    "row number": (
        regression(lambda x, y: (x + 0.1 * jnp.arange(len(x))[:, None], y)),
        regression(lambda x, y: (x + 0.1 * x[:, :1], y)),
        {},
    ),
}


@pytest.mark.parametrize("most", [100.0, -400.0, 5000.0])
def test_what_only_far_values_of_others_change_is_refused(most):
    def changed(x, y):
        far = (y > most if most > 0 else y < most).sum() > 0
        return x, y + jnp.where(far, 1.0, 0.0)

    with pytest.raises(UnsupportedModelError, match="values of other records"):
        PrivateModel(regression(changed), rows())


@pytest.mark.parametrize("kind", WAYS_OUT)
def test_the_message_names_the_kind_and_its_remedy_works(kind):
    wrong, right, numbers = WAYS_OUT[kind]
    with pytest.raises(UnsupportedModelError, match=f"{REFUSED}.*{kind}"):
        PrivateModel(wrong, rows())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PrivateModel(right, rows(), numbers)


def test_one_row_that_is_finite_only_beside_others_is_refused():
    def spread(x, y):
        # Of others' values only whether there is any spread: 0 for a row alone.
        return x, y + jnp.log((jnp.ptp(jnp.arange(len(y))) > 0).astype(float))

    with pytest.raises(UnsupportedModelError, match=f"{REFUSED}is not finite for one record alone"):
        PrivateModel(regression(spread), rows())


# --- where the terms of a row are many, or come from elsewhere


def mixture(y):
    loc = numpyro.sample("loc", dist.Normal(0, 2).expand([2]).to_event(1))
    with numpyro.plate("people", y.shape[0]):
        k = numpyro.sample("k", dist.Categorical(jnp.ones(2) / 2))
        numpyro.sample("y", dist.Normal(loc[k], 50.0), obs=y - y.mean())


def visits(y):
    m = numpyro.sample("m", dist.Normal(0, 1))
    with (
        numpyro.plate("people", y.shape[0], dim=-2),
        numpyro.plate("visits", y.shape[1], dim=-1),
    ):
        numpyro.sample("y", dist.Normal(m, 50.0), obs=y - y.mean(0))


def shares(y):
    a = numpyro.sample("a", dist.Gamma(2.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.Dirichlet(a + y.mean(0)), obs=y)


@jax.custom_vjp
def steep(x):
    return 3 * x


steep.defvjp(lambda x: (3 * x, None), lambda _, g: (3 * g,))


@jax.custom_vjp
def steep_by_all(x):
    return 3 * x


steep_by_all.defvjp(lambda x: (3 * x, x), lambda x, g: (3 * g * x.mean(),))


def derived(of):
    def model(y):
        m = numpyro.sample("m", dist.Normal(0, 1))
        with numpyro.plate("people", y.shape[0]):
            numpyro.sample("y", dist.Normal(of(m + y), 2.0), obs=y)

    return model


def root(x):
    """Newton's method, to an accuracy that single precision reaches for small numbers only."""

    def one(x):
        return jax.lax.while_loop(
            lambda s: jnp.abs(s * s - x) > 1e-4, lambda s: 0.5 * (s + x / s), jnp.ones_like(x)
        )

    return jax.vmap(one)(x)


def rooted(shift):
    def model(x, y):
        w = numpyro.sample("w", dist.Normal(0, 1))
        with numpyro.plate("people", y.shape[0]):
            numpyro.sample("y", dist.Normal(w * root(jnp.abs(x) + 0.1) + shift(x), 30.0), obs=y)

    return lambda y: model(y, y)


def censored(shift):
    def model(y):
        loc = numpyro.sample("loc", dist.Normal(0, 1))
        with numpyro.plate("people", y.shape[0]):
            # Its distribution function is a loop, as long as the slowest row takes.
            below = dist.StudentT(4.0, loc + shift(y), 30.0).cdf(y)
            numpyro.factor("y", jnp.log(below))

    return model


real = rows()[1]
SHARES = np.random.default_rng(0).dirichlet([2.0, 3.0, 4.0], 12)


@pytest.mark.parametrize(
    ("model", "given", "plate"),
    [
        (mixture, real, None),
        (visits, real.reshape(8, 3), "people"),
        (shares, SHARES, None),
        (derived(steep_by_all), real, None),
        pytest.param(censored(lambda y: y.mean()), real, None, marks=pytest.mark.slow),
        (rooted(lambda y: y.mean()), real, None),
    ],
    ids=["enumerated", "nested", "drawn outcomes", "own derivative", "loop", "convergence"],
)
def test_other_shapes_of_models_are_judged_too(model, given, plate):
    with pytest.raises(UnsupportedModelError, match=REFUSED):
        PrivateModel(model, (given,), data_plate=plate)


@pytest.mark.parametrize(
    "model",
    [
        derived(steep),
        pytest.param(censored(jnp.zeros_like), marks=pytest.mark.slow),
        rooted(jnp.zeros_like),
    ],
    ids=["own derivative", "loop", "convergence"],
)
def test_derivatives_and_loops_of_the_models_own_are_accepted(model):
    PrivateModel(model, (real,))


def test_only_what_is_finite_on_no_synthetic_records_is_warned_of():
    def model(y):
        m = numpyro.sample("m", dist.Normal(0, 1))
        with numpyro.plate("people", y.shape[0]):
            numpyro.factor("late", jnp.log(y - 1e6) - m**2)

    with pytest.warns(UserWarning, match=r"could not be checked.*site.s. `late`"):
        PrivateModel(model, (real + 2e6,))


def test_keys_of_another_kind_are_no_obstacle():
    with jax.default_prng_impl("rbg"):
        PrivateModel(regression(), rows())
