"""Tables as others have them: what is refused says what to do, of all arguments at once."""

import re
from collections import namedtuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import numpyro_dp as ndp
from numpyro_dp._arrays import listed_numbers
from numpyro_dp.model.private_model import PrivateModel

pandas = pytest.importorskip("pandas")
RNG = np.random.default_rng(0)
N = 80


@pytest.fixture
def table():
    """What a split and `dropna` leave: an index with gaps, and columns of several kinds."""
    whole = pandas.DataFrame(
        {
            "age": RNG.uniform(20, 65, N),
            "job": RNG.choice(["nurse", "cook"], N),
            "smoker": RNG.random(N) < 0.3,
            "income": RNG.normal(30_000, 9_000, N),
        }
    )
    whole.loc[::9, "age"] = np.nan
    return whole.sample(frac=0.8, random_state=0).dropna()


def by_number(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, 1), obs=y)


def by_name(table):
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("people", table["age"].shape[0]):
        numpyro.sample("y", dist.Normal(w * table["age"], 1), obs=table["income"])


def by_method(table):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([1]).to_event(1))
    with numpyro.plate("people", table.shape[0]):
        x = table.drop(columns="income").to_numpy()
        numpyro.sample("y", dist.Normal(x @ w, 1), obs=table["income"])


def refusal(model, *args):
    with pytest.raises(ndp.UnsupportedModelError) as caught:
        PrivateModel(model, args, {})
    return str(caught.value)


def test_all_arguments_are_told_of_at_once(table):
    said = refusal(by_number, table[["age"]], table.income)
    assert said.startswith("2 arguments are refused:\n- argument `x` is a DataFrame")
    assert "\n- argument `y` is a Series" in said
    assert said.endswith("`y.to_numpy()`")
    # One alone is told of in one sentence.
    assert refusal(by_number, table[["age"]].to_numpy(), table.income).startswith("argument `y` is")


def test_arrays_without_a_row_for_each_record_are_told_of_at_once():
    def model(x, knots, levels, y):
        w = numpyro.sample("w", dist.Normal(0, 1))
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("y", dist.Normal(w * x + knots.sum() + levels.sum(), 1), obs=y)

    x, y = RNG.normal(size=(2, N))
    said = refusal(model, x, np.arange(5.0), np.arange(7.0), y)
    assert said.startswith("2 arguments are refused:\n- argument `knots` (5,) has no record axis")
    assert "\n- argument `levels` (7,) has no record axis" in said
    knots, levels = ndp.public(np.arange(5.0)), ndp.public(np.arange(7.0))
    PrivateModel(model, (x, knots, levels, y), {})


def test_both_remedies_for_a_table_lead_to_an_accepted_model(table):
    """The first line that is written after the message is taken from it."""
    said = refusal(by_name, table[["age", "income"]])
    (names,) = re.findall(r"`(\{c: table.*?)`", said)
    PrivateModel(by_name, (eval(names, {"table": table[["age", "income"]]}),), {})
    assert "by number (`table[:, 0]`)" in said
    PrivateModel(by_number, (table[["age"]].to_numpy(), table.income.to_numpy()), {})


@pytest.mark.parametrize("model", [by_name, by_method])
def test_a_model_of_a_table_that_gets_its_array_is_told_what_becomes_of_columns(model, table):
    said = refusal(model, table[["age", "income"]].to_numpy())
    assert "columns of an array have numbers and no names" in said
    assert "{c: table[c].to_numpy() for c in table.columns}" in said


def test_other_errors_of_a_model_are_not_laid_to_a_table():
    def model(x, y):
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("y", dist.Normal(jnp.no_such_function(x), 1), obs=y)

    assert "table" not in refusal(model, *RNG.normal(size=(2, N)))


def test_one_hot_columns_beside_numbers_are_made_one_kind(table):
    x = pandas.get_dummies(table.drop(columns="income"), columns=["job"])
    said = refusal(by_number, x.to_numpy(), table.income.to_numpy())
    (remedy,) = re.findall(r"`\.(to_numpy\(.*?\))`", said)
    PrivateModel(by_number, (eval(f"x.{remedy}"), table.income.to_numpy()), {})
    # A column of words is of one kind already.
    assert "one kind" not in refusal(by_name, {c: table[c].to_numpy() for c in ("age", "job")})


def test_rows_that_were_left_out_of_one_argument_alone(table):
    holes = table.copy()
    holes.iloc[:4, 0] = np.nan
    said = refusal(by_number, holes[["age"]].dropna().to_numpy(), table.income.to_numpy())
    assert "not aligned" in said
    assert "before you take its columns apart" in said
    # A few public numbers beside the records are no such thing.
    few = jax.ShapeDtypeStruct((3,), jnp.float32)
    assert "same people" not in refusal(by_number, np.zeros((N, 4)), few)


MANY = 8_000
ONES = np.ones(MANY, np.float32)
Row = namedtuple("Row", "a b")
LISTS = {
    "list": (list(ONES), "list of 8,000 numbers"),
    "tuple": (tuple(ONES), "tuple of 8,000 numbers"),
    "of JAX": (list(jnp.ones(20)), "list of 20 numbers"),
    "holes": ([None, 1.0, *ONES], "list of 8,002 numbers"),
    "rows": ([list(row) for row in np.ones((MANY, 3))], "list of 8,000 rows of numbers"),
    "rows with names": ([Row(ONES[0], 2.0)] * MANY, "list of 8,000 rows of numbers"),
    "words": (list(np.full(MANY, "a")), "list of 8,000 array scalars"),
}


@pytest.mark.parametrize("name", LISTS)
def test_a_list_of_array_scalars_is_told_of_in_one_line(name):
    given, told = LISTS[name]
    assert refusal(by_number, np.ones((MANY, 3)), given) == (
        f"argument `y` is a {told}: pass `np.asarray(y)`"
    )


def test_lists_inside_of_arguments_are_named_one_by_one():
    said = refusal(by_number, {"y": list(ONES), "z": ({"deep": list(ONES)},)}, list(ONES[:3]))
    assert said == (
        "3 arguments are refused:"
        "\n- argument `x['y']` is a list of 8,000 numbers: pass `np.asarray(x['y'])`"
        "\n- argument `x['z'][0]['deep']` is a list of 8,000 numbers: "
        "pass `np.asarray(x['z'][0]['deep'])`"
        "\n- argument `y` is a list of 3 numbers: pass `np.asarray(y)`, or `numpyro_dp.public(y)` "
        "if they are known without the records"
    )
    # Fields with names are no list, nor are positional arguments.
    assert "`x.a` is an array scalar" in refusal(by_number, Row(ONES[0], 2.0), ONES)
    assert "`y` is an array scalar" in refusal(by_number, 2.0, ONES[0])
    held = [ONES[0]]
    held.append(held)
    assert not listed_numbers(held)


@pytest.mark.parametrize("private_size", [False, True])
@pytest.mark.parametrize(
    "given",
    [
        {f"person {i}": ONES[0] for i in range(MANY)},
        {f"column {i}": list(ONES[:2]) for i in range(MANY)},
        {f"column {i}": [1.0, 2.0] for i in range(MANY)},
        {f"column {i}": ONES[: i + 1] for i in range(200)},
        {f"column {i}": ONES for i in range(200)},
        [object()] * MANY,
    ],
    ids=["scalars", "lists", "Python lists", "odd arrays", "arrays", "objects"],
)
def test_no_number_of_arguments_makes_a_long_message(given, private_size):
    with pytest.raises(ndp.UnsupportedModelError) as caught:
        PrivateModel(by_name, (given,), {}, private_size=private_size)
    said = str(caught.value)
    assert len(said) < 2_000
    # As many sentences as records would tell their number.
    assert said.count("\n") < 10
    assert not (private_size and re.search(r"8,?000|\d\d", said))


def test_other_values_of_many_public_numbers_are_told_of_in_short():
    def model(x, table):
        w = numpyro.sample("w", dist.Normal(0, 1))
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("x", dist.Normal(w, 1 + sum(table)), obs=x)

    split = PrivateModel(model, (ONES[:50], [1.0] * 200), {})
    with pytest.raises(ndp.UnsupportedModelError, match=r"`table\[0\]`.* and others: ") as caught:
        split.records((ONES[:50], [2.0] * 200))
    assert len(str(caught.value)) < 1_000
