"""A refusal says what to do: each text alone leads to a model that is accepted.

``wrong`` is what people write, ``right`` is the same with nothing but the advice of the text.
"""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pandas as pd
import pytest
from numpyro import handlers
from numpyro.contrib.hsgp.approximation import hsgp_squared_exponential

import numpyro_dp as ndp
from numpyro_dp.model.private_model import PrivateModel

N = 60
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 3)).astype(np.float32)
Y = RNG.normal(size=N).astype(np.float32)
HOLES = np.where(RNG.random(N) < 0.2, np.nan, Y).astype(np.float32)
COUNTS = RNG.poisson(2.0, size=N)
GROUP = RNG.integers(0, 4, N)
NEIGHBOURS = np.eye(4, k=1) + np.eye(4, k=-1)


def weights(k=3):
    return numpyro.sample("w", dist.Normal(0, 1).expand([k]).to_event(1))


def regression(x, y):
    w = weights()
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def by_group(number_of):
    def model(group, y, **public):
        effects = dist.Normal(0, 1).expand([number_of(group, **public)]).to_event(1)
        effect = numpyro.sample("effect", effects)
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Normal(effect[group], 1.0), obs=y)

    return model


def given(_, num_groups):
    return num_groups


def column(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([3, 1]).to_event(2))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def one_number_a_record(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([3, 1]).to_event(2))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal((x @ w)[:, 0], 1.0), obs=y)


def picked(x, y):
    w, ok = weights(), ~jnp.isnan(y)
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal((x @ w)[ok], 1.0), obs=y[ok])


def imputed(x, y):
    w = weights()
    holes = int(np.isnan(y).sum())
    filled = numpyro.sample("filled", dist.Normal(0, 1).expand([holes]).to_event(1))
    y = jnp.asarray(y).at[np.flatnonzero(np.isnan(y))].set(filled)
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def masked(x, y):
    w, ok = weights(), ~jnp.isnan(y)
    with numpyro.plate("data", x.shape[0]), handlers.mask(mask=ok):
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=jnp.where(ok, y, 0))


def areas(adjacency, area, y, sparse=False):
    effects = dist.CAR(jnp.zeros(4), 0.5, 1.0, adjacency, is_sparse=sparse)
    effect = numpyro.sample("effect", effects)
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(effect[area], 1.0), obs=y)


def overdispersed(y):
    level = numpyro.sample("level", dist.Normal(0, 1))
    effect = numpyro.sample("effect", dist.Normal(0, 1).expand([y.shape[0]]).to_event(1))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(level + effect)), obs=y)


def negative_binomial(y):
    level = numpyro.sample("level", dist.Normal(0, 1))
    concentration = numpyro.sample("concentration", dist.Gamma(2, 1))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.NegativeBinomial2(jnp.exp(level), concentration), obs=y)


def effect_in_another_plate(x, y):
    w = weights()
    with numpyro.plate("effects", y.shape[0]):
        effect = numpyro.sample("effect", dist.Normal(0, 1))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w + effect, 1.0), obs=y)


def effect_without_a_plate(x, y):
    effect = numpyro.sample("effect", dist.Normal(0, 1).expand([y.shape[0]]).to_event(1))
    numpyro.sample("y", dist.Normal(effect, 1.0).to_event(1), obs=y)


def scaled_by_record(x, y):
    w = weights()
    scale = numpyro.sample("scale", dist.HalfCauchy(1).expand([y.shape[0]]).to_event(1))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, scale), obs=y)


def heavy_tailed(x, y):
    w = weights()
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.StudentT(3.0, x @ w, 1.0), obs=y)


def effect_by_row_number(y):
    effect = numpyro.sample("effect", dist.Normal(0, 1).expand([N]).to_event(1))
    with numpyro.plate("data", N) as row:
        numpyro.sample("y", dist.Normal(effect[row], 1.0), obs=y[row])


def random_walk(y):
    level = numpyro.sample("level", dist.GaussianRandomWalk(0.1, num_steps=y.shape[0]))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(level, 1.0), obs=y)


def kernel(x):
    return jnp.exp(-((x[:, None] - x) ** 2)) + 0.1 * jnp.eye(x.shape[0])


def latent_process(x, y):
    f = numpyro.sample("f", dist.MultivariateNormal(jnp.zeros(x.shape[0]), kernel(x[:, 0])))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(f, 1.0), obs=y)


def marginal_process(x, y):
    numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(x.shape[0]), kernel(x[:, 0])), obs=y)


def basis_functions(x, y):
    f = hsgp_squared_exponential(x[:, :1], alpha=1.0, length=1.0, ell=5.0, m=8)
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(f, 1.0), obs=y)


def event_of_records(x, y):
    numpyro.sample("y", dist.Normal(x @ weights(), 1.0).to_event(1), obs=y)


def two_arms(a, b):
    mean = numpyro.sample("mean", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("A", a.shape[0]):
        numpyro.sample("in A", dist.Normal(mean[0], 1.0), obs=a)
    with numpyro.plate("B", b.shape[0]):
        numpyro.sample("in B", dist.Normal(mean[1], 1.0), obs=b)


def one_array(group, y):
    mean = numpyro.sample("mean", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean[group], 1.0), obs=y)


ARMS = (np.arange(N) >= 20).astype(int)
EACH = (r"latent site\(s\) `effect` have an entry for each of 60 records",)

# name: (wrong, its arguments), words of the refusal, (right, its arguments)
CASES = {
    "outcomes as a column": (
        (regression, (X, Y[:, None])),
        (r"`y` is \(60, 1\): broadcast against plate `data` to \(60, 60\)", r"`y\[:, 0\]`"),
        (regression, (X, Y[:, None][:, 0])),
    ),
    "predictors as a column": (
        (column, (X, Y)),
        (r"the distribution of `y` is broadcast .* to \(60, 60\)", r"`\(x @ w\)\[:, 0\]`"),
        (one_number_a_record, (X, Y)),
    ),
    "nested lists": (
        (regression, (X.tolist(), Y)),
        (r"`x` is a Python list: pass `np.asarray\(x\)`",),
        (regression, (np.asarray(X.tolist()), Y)),
    ),
    "a list of outcomes": (
        (regression, (X, Y.tolist())),
        (r"`y` is a Python list: pass `np.asarray\(y\)`",),
        (regression, (X, np.asarray(Y.tolist()))),
    ),
    "lists in a dictionary": (
        (lambda data: regression(data["x"], data["y"]), ({"x": X.tolist(), "y": Y},)),
        (r"`data\['x'\]` is a Python list: pass `np.asarray\(data\['x'\]\)`",),
        (lambda data: regression(data["x"], data["y"]), ({"x": np.asarray(X.tolist()), "y": Y},)),
    ),
    "a list of rows": (
        (regression, (list(X), Y)),
        (r"`x` is a Python list: pass `np.asarray\(x\)`",),
        (regression, (np.asarray(list(X)), Y)),
    ),
    "a set of values": (
        (by_group(lambda group: len(set(group))), (GROUP, Y)),
        (r"len\(set\(group\)\)", "number of groups", "Python number", "num_groups=4"),
        (functools.partial(by_group(given), num_groups=4), (GROUP, Y)),
    ),
    "unique values": (
        (by_group(lambda group: len(np.unique(group))), (GROUP, Y)),
        ("number of groups", "Python number", "num_groups=4"),
        (functools.partial(by_group(given), num_groups=4), (GROUP, Y)),
    ),
    "the largest label": (
        (by_group(lambda group: int(group.max()) + 1), (GROUP, Y)),
        ("number of groups", "Python number", "num_groups=4"),
        (functools.partial(by_group(given), num_groups=4), (GROUP, Y)),
    ),
    "a Boolean mask": (
        (picked, (X, HOLES)),
        (r"jnp.where\(ok, y, 0\)", r"numpyro.handlers.mask\(mask=ok\)"),
        (masked, (X, HOLES)),
    ),
    "the number of missing values": (
        (imputed, (X, HOLES)),
        ("jnp.where", "numpyro.handlers.mask", "numpyro_dp.count_missing"),
        (masked, (X, HOLES)),
    ),
    "adjacency": (
        (areas, (NEIGHBOURS, GROUP, Y)),
        (r"argument `adjacency` \(4, 4\)", r"numpyro_dp.public\(adjacency\)"),
        (areas, (ndp.public(NEIGHBOURS), GROUP, Y)),
    ),
    "sparse adjacency": (
        (functools.partial(areas, sparse=True), (NEIGHBOURS, GROUP, Y)),
        (r"argument `adjacency` \(4, 4\)", r"numpyro_dp.public\(adjacency\)"),
        (functools.partial(areas, sparse=True), (ndp.public(NEIGHBOURS), GROUP, Y)),
    ),
    "an effect a record": (
        (overdispersed, (COUNTS,)),
        (*EACH, "`NegativeBinomial2` for `Poisson`"),
        (negative_binomial, (COUNTS,)),
    ),
    "an effect in another plate": (
        (effect_in_another_plate, (X, Y)),
        (*EACH, "public groups"),
        (functools.partial(by_group(given), num_groups=4), (GROUP, Y)),
    ),
    "an effect without a plate": (
        (effect_without_a_plate, (X, Y)),
        (*EACH, "public groups"),
        (functools.partial(by_group(given), num_groups=4), (GROUP, Y)),
    ),
    "an effect by row number": (
        (effect_by_row_number, (Y,)),
        (*EACH, "public groups"),
        (functools.partial(by_group(given), num_groups=4), (GROUP, Y)),
    ),
    "a scale a record": (
        (scaled_by_record, (X, Y)),
        ("`scale` have an entry", "`StudentT` for a scale a record"),
        (heavy_tailed, (X, Y)),
    ),
    "a random walk": (
        (random_walk, (Y,)),
        ("`level` have an entry", "random walk", "public basis functions"),
        (basis_functions, (X, Y)),
    ),
    "a latent process": (
        (latent_process, (X, Y)),
        ("`f` have an entry", "Gaussian process", "public basis functions"),
        (basis_functions, (X, Y)),
    ),
    "a joint event": (
        (marginal_process, (X, Y)),
        ("`y` is one joint event of 60 records", "numpyro.contrib.hsgp", "each record by itself"),
        (basis_functions, (X, Y)),
    ),
    "an event of independent records": (
        (event_of_records, (X, Y)),
        ("take `.to_event` off", "numpyro.plate", r"`x.shape\[0\]`"),
        (regression, (X, Y)),
    ),
    "two arms": (
        (two_arms, (Y[:20], Y[20:])),
        ("concatenate", "one plate", r"`dist.Normal\(mean\[group\], 1\)`"),
        (one_array, (ARMS, Y)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_text_says_what_to_do(name):
    (model, arguments), words, _ = CASES[name]
    with pytest.raises(ndp.UnsupportedModelError) as caught:
        PrivateModel(model, arguments)
    for word in words:
        assert re.search(word, str(caught.value)), caught.value


@pytest.mark.parametrize("right", {case[2][0]: case[2] for case in CASES.values()}.values())
def test_what_it_says_is_accepted(right):
    model, arguments = right
    PrivateModel(model, arguments)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "have an" in str(case)])
def test_an_entry_for_each_record_is_never_answered_by_a_plate_or_by_public(name):
    (model, arguments), _, _ = CASES[name]
    with pytest.raises(ndp.UnsupportedModelError) as caught:
        PrivateModel(model, arguments)
    assert "numpyro.plate" not in str(caught.value)
    assert "public(" not in str(caught.value)


@pytest.mark.slow
def test_the_effects_of_records_are_drawn_by_a_guide():
    """Its last way: inside the records' plate, with DPSVI and a guide for local latents."""

    def model(y):
        level = numpyro.sample("level", dist.Normal(0, 1))
        with numpyro.plate("data", y.shape[0]):
            effect = numpyro.sample("effect", dist.Normal(0, 1))
            numpyro.sample("y", dist.Poisson(jnp.exp(level + effect)), obs=y)

    def guide(y):
        numpyro.sample("level", dist.Normal(numpyro.param("loc", 0.0), 0.1))
        slope = numpyro.param("slope", 0.0)
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("effect", dist.Normal(slope * jnp.log(y + 1.0), 0.5))

    svi = ndp.DPSVI(model, guide, optax.sgd(1e-3), clip_norm=1.0, noise_multiplier=1.0)
    svi.run(jax.random.key(0), 2, COUNTS, progress_bar=False)


def test_an_outcome_is_never_to_be_declared_public():
    def model(y):
        mean = numpyro.sample("mean", dist.Normal(0, 1).expand([5]).to_event(1))
        with numpyro.plate("visits", 5):
            numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    with pytest.raises(ndp.UnsupportedModelError, match=r"`y` .60, 5.*is observed") as caught:
        PrivateModel(model, (RNG.normal(size=(N, 5)),))
    assert "public(" not in str(caught.value)

    def mended(y):
        mean = numpyro.sample("mean", dist.Normal(0, 1).expand([5]).to_event(1))
        with numpyro.plate("persons", y.shape[0], dim=-2), numpyro.plate("visits", 5, dim=-1):
            numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    PrivateModel(mended, (RNG.normal(size=(N, 5)),), data_plate="persons")


@pytest.mark.parametrize(
    "wrapped",
    [
        handlers.scale(regression, scale=0.5),
        handlers.scale(scale=0.5)(regression),
        handlers.reparam(config={})(handlers.scale(scale=0.5)(regression)),
        functools.partial(regression),
    ],
    ids=["handler", "decorator", "two decorators", "partial"],
)
def test_arguments_of_wrapped_models_keep_their_names(wrapped):
    with pytest.raises(ndp.UnsupportedModelError, match="argument `y` is an array scalar"):
        PrivateModel(wrapped, (X, Y.mean()))


def test_many_weights_and_few_records_are_no_effects_of_records():
    """As many weights as records, by chance: such a model is a sum, and is taken."""
    PrivateModel(regression, (X[:3], Y[:3]))


def test_as_many_visits_as_persons_are_no_broadcast():
    def model(y):
        mean = numpyro.sample("mean", dist.Normal(0, 1).expand([y.shape[1]]).to_event(1))
        with numpyro.plate("persons", y.shape[0], dim=-2):
            numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    for visits in (5, N):
        PrivateModel(model, (RNG.normal(size=(N, visits)),))


def refusal(model, *arguments, **options):
    """The text with which a model is refused."""
    with pytest.raises(ndp.UnsupportedModelError) as caught:
        PrivateModel(model, arguments, **options)
    return str(caught.value)


def test_a_list_of_outcomes_warns_of_nothing():
    """Tests turn warnings into errors, which the refusal would then quote."""
    assert "Warning" not in refusal(regression, X, Y.tolist())


def test_rows_that_are_not_aligned_are_counted_where_their_number_is_public():
    assert "not aligned: `x` has 60, `y` 59" in refusal(regression, X, Y[:-1])
    private = refusal(regression, X, Y[:-1], private_size=True)
    assert "differ in their number of rows" in private
    assert not re.search(r"\d", private)


def test_the_plate_that_is_missing_is_as_long_as_the_outcome():
    def model(centre, data):
        w = weights()
        numpyro.sample("y", dist.Normal((data["x"] - centre) @ w, 1.0), obs=data["y"])

    said = refusal(model, np.zeros(3), {"x": X, "y": Y})
    assert """`with numpyro.plate("data", data['x'].shape[0]):`""" in said


def test_a_frame_of_bool_and_floats_is_taken_after_what_its_refusals_say():
    """``get_dummies`` beside numbers: without a dtype these become objects."""
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "c": GROUP > 1})
    assert '`x.to_numpy("float32")`' in refusal(regression, frame, Y)
    assert frame.to_numpy().dtype == object
    assert '`.to_numpy("float32")`' in refusal(regression, frame.to_numpy(), Y)
    PrivateModel(regression, (frame.to_numpy("float32"), Y))
