"""``data_plate="auto"``: the model with a plate of all rows, to the last bit; and its refusals."""

import pickle
import re

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.contrib.control_flow import scan

from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.model.private_model import PrivateModel

N = 23
RNG = np.random.default_rng(5)
X = RNG.normal(size=(N, 3)).astype(np.float32)
Y = RNG.normal(size=N).astype(np.float32)
GROUP = RNG.integers(0, 4, N)
WRITTEN = []


def written(function):
    """A model of ``around``: a plate around what reads the records, or nothing."""
    WRITTEN.append(function)
    return function


def weights():
    return numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))


@written
def regression(around, x, y):
    w = weights()
    numpyro.deterministic("length", jnp.sum(w**2))
    with around(x):
        numpyro.sample("y", dist.Normal(x @ w, 1), obs=y)


@written
def groups_and_a_soft_constraint(around, x, y, group):
    spread = numpyro.sample("spread", dist.HalfNormal(1))
    with numpyro.plate("groups", 4):
        a = numpyro.sample("a", dist.Normal(0, spread))
    numpyro.sample("sums to zero", dist.Normal(a.sum(), 0.1), obs=0.0)
    numpyro.factor("ridge", -jnp.sum(a**2))
    with around(x):
        numpyro.sample("y", dist.Normal(a[group], 1), obs=y)


@written
def masked_and_scaled(around, x, y):
    w = weights()
    with handlers.mask(mask=x[:, 0] > 0), handlers.scale(scale=0.5), around(x):
        numpyro.sample("y", dist.StudentT(4, x @ w, 1), obs=y)


@written
def two_outcomes_and_a_factor(around, x, y, group):
    w, rate = weights(), numpyro.sample("rate", dist.Exponential(1))
    with around(x):
        numpyro.sample("y", dist.Normal(x @ w, 1), obs=y)
        numpyro.sample("count", dist.Poisson(rate), obs=group)
        numpyro.factor("penalty", -jnp.abs(y - rate))


@written
def law_of_one_number(around, x, y):
    mean = numpyro.sample("mean", dist.Normal(0, 10))
    with around(x):
        numpyro.sample("y", dist.Normal(mean, 1), obs=y)


@written
def columns_of_a_record(around, x, y):
    mean = numpyro.sample("mean", dist.Normal(0, 1).expand([3]).to_event(1))
    with around(x):
        numpyro.sample("x", dist.Normal(mean, 1).to_event(1), obs=x)


def without(model):
    return lambda *data, **named: model(lambda _: handlers.block(hide=[]), *data, **named)


def within(model):
    return lambda *data, **named: model(
        lambda x: numpyro.plate("records", x.shape[0]), *data, **named
    )


def data_of(model, rows=N):
    named = {"group": GROUP[:rows]} if "group" in model.__code__.co_varnames else {}
    return (X[:rows], Y[:rows]), named


@pytest.mark.parametrize("private_size", [False, True])
@pytest.mark.parametrize("model", WRITTEN, ids=lambda m: m.__name__)
def test_the_same_as_written_with_the_plate(model, private_size):
    args, kwargs = data_of(model)
    auto = PrivateModel(without(model), args, kwargs, data_plate="auto", private_size=private_size)
    plain = PrivateModel(within(model), args, kwargs, private_size=private_size)
    assert (auto.plate, auto.num_records, auto.latents) == ("records", N, plain.latents)
    assert auto.structure == plain.structure
    # The very same programs, and so the same bits.
    assert str(auto.term.jaxpr) == str(plain.term.jaxpr)
    for name in ("log_prior", "constrain", "deterministics"):
        own, other = (getattr(each.programs, name).jaxpr for each in (auto, plain))
        assert str(own) == str(other)
    z = auto.init(jax.random.key(0))
    np.testing.assert_array_equal(auto.log_prior(z), plain.log_prior(z))
    for row in range(0, N, 7):
        record = [a[row : row + 1] for a in auto.records(args, kwargs)]
        np.testing.assert_array_equal(
            auto.record_log_likelihood(z, record), plain.record_log_likelihood(z, record)
        )


def as_many_effects_as_records(around, x, y, group):
    effect = numpyro.sample("effect", dist.Normal(0, 1).expand([N]))
    with around(x):
        numpyro.sample("y", dist.Normal(effect[group] + x[:, 0], 1), obs=y)


def test_an_effect_for_each_row_is_refused_unless_the_plate_is_written():
    args, kwargs = data_of(as_many_effects_as_records)
    for how in ({}, {"data_plate": "auto"}):
        with pytest.raises(UnsupportedModelError, match="`effect` have an entry for each of 23"):
            PrivateModel(without(as_many_effects_as_records), args, kwargs, **how)
    # Whoever writes the plate says that these are no records.
    assert PrivateModel(within(as_many_effects_as_records), args, kwargs).plate == "records"


def test_one_record_is_a_data_set_too():
    args, kwargs = data_of(law_of_one_number, rows=1)
    split = PrivateModel(without(law_of_one_number), args, kwargs, data_plate="auto")
    assert (split.num_records, split.plate) == (1, "records")


def test_a_scan_over_the_rows_is_a_product_of_terms():
    def model(y):
        mean = numpyro.sample("mean", dist.Normal(0, 1))

        def step(carry, row):
            numpyro.sample("y", dist.Normal(mean, 1), obs=row)
            return carry, None

        scan(step, 0, y)

    split = PrivateModel(model, (Y,), data_plate="auto")
    z = {"mean": jnp.asarray(0.3)}
    terms = [split.record_log_likelihood(z, [jnp.asarray(Y[i : i + 1])]) for i in range(N)]
    np.testing.assert_allclose(terms, dist.Normal(0.3, 1).log_prob(Y), rtol=1e-6)


def test_what_is_said_of_several_numbers_a_row_is_accepted():
    def of_law(law, outcome):
        def model(y):
            mean = numpyro.sample("mean", dist.Normal(0, 1).expand([3]).to_event(1))
            numpyro.sample("y", law(mean), obs=y)

        return PrivateModel(model, (outcome,), data_plate="auto")

    laws = {
        r"`\.to_event\(1\)`": lambda mean: dist.Normal(mean, 1),
        r"`\.expand\(\[3\]\)\.to_event\(1\)`": lambda mean: dist.Normal(mean.sum(), 1),
    }
    for said, law in laws.items():
        with pytest.raises(UnsupportedModelError, match=said):
            of_law(law, X)
    assert of_law(lambda mean: dist.Normal(mean, 1).to_event(1), X).plate == "records"
    widened = of_law(lambda mean: dist.Normal(mean.sum(), 1).expand([3]).to_event(1), X)
    assert widened.plate == "records"


def test_the_shape_of_draws_is_no_part_of_what_is_observed():
    def model(x, y, **shape):
        numpyro.sample("y", dist.Normal(x @ weights(), 1), obs=y, **shape)

    def drawn(x, y):
        model(x, y, sample_shape=y.shape)

    shaped, plain = (PrivateModel(m, (X, Y), data_plate="auto") for m in (drawn, model))
    assert str(shaped.term.jaxpr) == str(plain.term.jaxpr)


def regression_of_its_own(x, y):
    w = weights()
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, 1), obs=y)


def bare_regression(x, y):
    numpyro.sample("y", dist.Normal(x @ weights(), 1), obs=y)


def test_a_plate_of_the_models_own_stays_the_private_one():
    auto = PrivateModel(regression_of_its_own, (X, Y), data_plate="auto")
    plain = PrivateModel(regression_of_its_own, (X, Y))
    assert auto.plate == plain.plate == "people"
    assert auto.unit == plain.unit == "one slice of plate 'people'"
    assert auto.function is regression_of_its_own


def test_its_unit_is_a_row_and_says_who_took_it_for_a_record():
    split = PrivateModel(bare_regression, (X, Y), data_plate="auto")
    assert split.unit == (
        'one row of the record arguments, which data_plate="auto" took for a record '
        "(plate 'records')"
    )
    # A plate of that name in the model is the model's.
    assert PrivateModel(within(regression), (X, Y)).unit == "one slice of plate 'records'"


def test_it_is_compared_pickled_and_named_like_any_other():
    split = PrivateModel(bare_regression, (X, Y), data_plate="auto")
    again = pickle.loads(pickle.dumps(split))
    assert again == split
    assert again != PrivateModel(regression_of_its_own, (X, Y))
    assert again.unit == split.unit
    assert again.function == split.function
    assert hash(again.function) == hash(split.function)
    assert "PrivateModel(bare_regression, plate='records'" in repr(split)
    # Arguments keep the names that the model gave them.
    assert [leaf.name for leaf in again.layout.arrays] == ["x", "y"]


def test_the_code_behind_it_is_read():
    outside = RNG.normal(size=N)

    def model(x, y):
        numpyro.sample("y", dist.Normal(x @ weights() + outside.mean(), 1), obs=y)

    with pytest.raises(UnsupportedModelError, match="names `outside`"):
        PrivateModel(model, (X, Y), data_plate="auto")


def test_no_message_tells_a_private_number_of_records():
    def model(y):
        mean = numpyro.sample("mean", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(mean, 1), obs=y)

    table = np.stack([Y, Y], axis=1)
    with pytest.raises(UnsupportedModelError, match="batch shape") as caught:
        PrivateModel(model, (table,), data_plate="auto", private_size=True)
    assert not re.search(r"\d{2}", str(caught.value))
    assert "records=" not in repr(PrivateModel(model, (Y,), data_plate="auto", private_size=True))


OFFER = 'where each row is another person, `data_plate="auto"` does that'


def test_the_missing_plate_is_offered_where_it_would_go():
    with pytest.raises(UnsupportedModelError, match="no plate encloses") as caught:
        PrivateModel(bare_regression, (X, Y))
    assert OFFER in str(caught.value)


def test_it_is_not_offered_where_it_would_not_go():
    def model(x):
        mean = numpyro.sample("mean", dist.Normal(0, 1))
        numpyro.sample("x", dist.Normal(mean, 1), obs=x)

    with pytest.raises(UnsupportedModelError, match="no plate encloses") as caught:
        PrivateModel(model, (X,))
    assert "auto" not in str(caught.value)


def test_anything_but_a_name_is_refused_before_the_model_runs():
    with pytest.raises(ValueError, match='name of a plate or "auto", got list'):
        PrivateModel(bare_regression, (X, Y), data_plate=[1])
