"""Records that the model's code names, without being handed them, are refused."""

import contextlib
import sys
from collections import deque
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pandas as pd
import pytest
from numpyro.infer import init_to_value
from numpyro.infer.autoguide import AutoNormal

import numpyro_dp as ndp
from numpyro_dp.model.private_model import PrivateModel, private_model
from tests.models import OutOfSight

N = 37
ROWS = np.random.default_rng(0).normal(size=(N, 2)).astype(np.float32)
this = sys.modules[__name__]
KNOTS = np.zeros((5, 2), np.float32)
TABLES = {"train": {"x": ROWS}}
# Keys that do not sort, and a cycle.
TANGLED: dict = {1: KNOTS, "told": [ROWS]}
TANGLED["again"] = TANGLED


def observe(x, y, scale=1.0, centre=0.0):
    w = numpyro.sample("w", dist.Normal(0, scale).expand([2]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Normal((x - centre) @ w, 1.0), obs=y)


def centred_by_a_global(x, y):
    observe(x, y, centre=ROWS.mean(0))


def scaled_by_a_table(x, y):
    observe(x, y, scale=float(TABLES["train"]["x"].std()))


def scaled_by_a_tangle(x, y):
    observe(x, y, scale=float(TANGLED["told"][0].std()))


def spread():
    return float(ROWS.std())


def scaled_by_a_helper(x, y):
    observe(x, y, scale=spread())


compiled_spread = jax.jit(spread)
bound_spread = partial(np.std, ROWS)
PRIOR = dist.Normal(ROWS[:, 0], 1.0)


def scaled_by_a_compiled_helper(x, y):
    observe(x, y, scale=compiled_spread())


def scaled_by_a_partial(x, y):
    observe(x, y, scale=float(bound_spread()))


def scaled_by_a_distribution(x, y):
    observe(x, y, scale=float(np.std(PRIOR.loc)))


HELD = SimpleNamespace(deep=SimpleNamespace(rows=ROWS))
LISTED = ROWS[:, 0].tolist()
TURNED = ROWS.T
TABULATED, ENTRIES = ROWS.tolist(), [{"x": float(a), "y": 0} for a in ROWS[:, 0]]
PIECES, QUEUE = list(ROWS), deque(ROWS[:, 0].tolist())
PERSONS = [SimpleNamespace(x=float(a)) for a in ROWS[:, 0]]
# Before a split: the records and those that were left out, of which the model is handed some.
EVERYBODY = np.concatenate([ROWS, ROWS[:12] + 1.0])
TRAINED, LEFT_OUT = EVERYBODY[:N], EVERYBODY[N:]
FIRST_ROWS, BACKWARDS = ROWS[:5], ROWS[::-7]
TABLE = pd.DataFrame(EVERYBODY, columns=["a", "b"], copy=False)


def centred_by_everybody(x, y):
    observe(x, y, centre=EVERYBODY.mean(0))


def centred_by_the_left_out(x, y):
    observe(x, y, centre=LEFT_OUT.mean(0))


def centred_by_the_first(x, y):
    observe(x, y, centre=FIRST_ROWS.mean(0))


def centred_by_some(x, y):
    observe(x, y, centre=BACKWARDS.mean(0))


def scaled_by_a_column(x, y):
    observe(x, y, scale=float(TABLE["a"].std()))


class Spread:
    """A class that finds the rows by itself."""

    told = ROWS

    def __init__(self):
        self.value = spread()

    def again(self):
        return spread()


class Quiet:
    def again(self):
        return spread()


QUIET = Quiet()


def scaled_by_an_attribute(x, y):
    observe(x, y, scale=float(HELD.deep.rows.std()))


def scaled_by_a_list(x, y):
    observe(x, y, scale=float(np.std(LISTED)))


def scaled_by_a_list_of_lists(x, y):
    observe(x, y, scale=float(np.std(TABULATED)))


def scaled_by_entries(x, y):
    observe(x, y, scale=sum(entry["x"] ** 2 for entry in ENTRIES))


def scaled_by_pieces(x, y):
    observe(x, y, scale=float(np.std(PIECES)))


def scaled_by_objects(x, y):
    observe(x, y, scale=sum(person.x**2 for person in PERSONS))


def scaled_by_a_queue(x, y):
    observe(x, y, scale=float(np.std(QUEUE)))


class Store:
    """Elements are found by code, of arrays whose names the model does not say."""

    def __init__(self):
        self.hidden = {"x": ROWS}

    def __getitem__(self, name):
        return self.hidden[name]


STORE = Store()


def scaled_by_an_element(x, y):
    observe(x, y, scale=float(STORE["x"].std()))


def scaled_by_turned_rows(x, y):
    observe(x, y, scale=float(TURNED.std()))


def scaled_by_a_class(x, y):
    observe(x, y, scale=Spread().value)


def scaled_by_another_object(x, y):
    observe(x, y, scale=QUIET.again())


def scaled_by_a_module(x, y):
    observe(x, y, scale=this.spread())


def by_closure(rows):
    def model(x, y):
        observe(x, y, scale=max(float(rows.std()) for _ in range(1)))

    return model


def by_default(x, y, told=ROWS):
    observe(x, y, scale=float(told.std()))


def by_keyword(x, y, *, told=ROWS):
    observe(x, y, scale=float(told.std()))


def by_argument(told, x, y):
    observe(x, y, scale=float(told.std()))


class Study:
    """Rows kept in an object, used by some of its methods."""

    def __init__(self):
        self.rows = ROWS
        self.given = by_argument

    def __call__(self, x, y):
        observe(x, y, scale=float(self.rows.std()))

    def by_method(self, x, y):
        self.observed_by(self.spread(), x, y)

    def by_property(self, x, y):
        self.observed_by(self.width, x, y)

    def spread(self):
        return float(self.rows.std())

    @property
    def width(self):
        return self.spread()

    @staticmethod
    def observed_by(scale, x, y):
        observe(x, y, scale=scale)

    def without_rows(self, x, y):
        self.observed_by(1.0, x, y)


def with_public_knots(x, y):
    observe(x, y, scale=1.0 + float(KNOTS.sum()))


def with_a_name_alike(x, y):
    # An attribute, not the global of that name.
    observe(x, y, scale=jnp.ones(2).T.shape[0] / 2)


T = rows = ROWS


def handed(x, y, told):
    observe(x, y, scale=1.0 + 0.0 * float(np.sum(ROWS)))


def data():
    return ROWS, np.zeros(N, np.float32)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (centred_by_a_global, "ROWS"),
        (scaled_by_a_table, "TABLES"),
        (scaled_by_a_helper, "ROWS"),
        (by_closure(ROWS), "rows"),
        (partial(by_closure(ROWS)), "rows"),
        (numpyro.handlers.scope(by_closure(ROWS), "a", hide_types=["plate"]), "rows"),
        (by_default, "told"),
        (by_keyword, "told"),
        (partial(by_argument, ROWS), "argument 0"),
        (partial(by_keyword, told=ROWS), "told"),
        (scaled_by_a_tangle, "TANGLED"),
        (scaled_by_a_compiled_helper, "ROWS"),
        (scaled_by_a_partial, "argument 0"),
        (scaled_by_a_distribution, "PRIOR"),
        (scaled_by_an_attribute, "rows"),
        (scaled_by_a_list, "LISTED"),
        (scaled_by_a_list_of_lists, "TABULATED"),
        (scaled_by_entries, "ENTRIES"),
        (scaled_by_pieces, "PIECES"),
        (scaled_by_objects, "PERSONS"),
        (scaled_by_an_element, "hidden"),
        (scaled_by_a_queue, "QUEUE"),
        (scaled_by_turned_rows, "TURNED"),
        (centred_by_the_first, "FIRST_ROWS"),
        (centred_by_some, "BACKWARDS"),
        (scaled_by_a_class, "ROWS|told"),
        (scaled_by_another_object, "ROWS"),
        (scaled_by_a_module, "ROWS"),
        (Study(), "rows"),
        (Study().by_method, "rows"),
        (Study().by_property, "rows"),
    ],
    ids=[
        "global",
        "table",
        "helper",
        "closure",
        "partial",
        "handler",
        "default",
        "keyword-only default",
        "bound argument",
        "bound keyword",
        "table with odd keys",
        "compiled helper",
        "partial helper",
        "distribution",
        "attribute",
        "list",
        "list of lists",
        "list of tables",
        "list of arrays",
        "list of objects",
        "element",
        "queue",
        "turned",
        "first rows",
        "some rows",
        "class",
        "another object",
        "module",
        "object",
        "method",
        "property",
    ],
)
def test_a_named_array_of_records_is_refused(model, name):
    with pytest.raises(ndp.UnsupportedModelError, match=f"`({name})`.*argument"):
        PrivateModel(model, data(), check=False)


def with_a_local_alike(x, y):
    rows, ROWS = x, 1.0

    def inner(told):
        return rows * told

    observe(inner(ROWS), y)


@pytest.mark.parametrize(
    "model", [with_public_knots, with_a_name_alike, with_a_local_alike, Study().without_rows]
)
def test_other_arrays_and_names_are_taken(model):
    PrivateModel(model, data(), check=False)


class MakesUpAttributes:
    """Any attribute is another object of the same kind, as of some configuration libraries."""

    def __getattr__(self, name):
        return MakesUpAttributes()

    def __float__(self):
        return 1.0


class Strict(dict):
    """Attributes are entries, and what is no entry is an error of another kind."""

    __getattr__ = dict.__getitem__


@jax.tree_util.register_pytree_node_class
class Unsorted:
    def tree_flatten(self):
        return ({1: 1.0, "two": 2.0},), None

    @classmethod
    def tree_unflatten(cls, _, __):
        return cls()


class Partly:
    """Only what a model uses of a class is read."""

    scale = 2.0

    @staticmethod
    def evaluate():
        return spread()


def cyclic():
    table: dict = {}
    table["link"] = partial(max, table)
    return table


# Made late: doctest, too, would ask them for what they do not have.
ODD = {
    "made up": (MakesUpAttributes, lambda odd: float(odd.scale.inner)),
    "strict": (lambda: Strict(scale=1.0), lambda odd: odd.scale),
    "unsorted": (Unsorted, lambda odd: float(odd is not None)),
    "class": (lambda: Partly, lambda odd: odd.scale),
    "cycle": (cyclic, lambda odd: float(len(odd))),
}


@pytest.mark.parametrize(("made", "used"), ODD.values(), ids=ODD)
def test_odd_objects_are_read_to_an_end(made, used):
    odd = made()

    def model(x, y):
        observe(x, y, scale=used(odd))

    PrivateModel(model, data(), check=False)


def test_a_split_of_the_same_memory_is_refused():
    for model in (centred_by_everybody, centred_by_the_left_out, scaled_by_a_column):
        with pytest.raises(ndp.UnsupportedModelError, match="may hold records"):
            PrivateModel(model, (TRAINED, np.zeros(N)), check=False)


def test_the_very_array_that_is_handed_is_refused_on_a_device_too():
    held = jnp.asarray(ROWS)

    def model(x, y):
        observe(x, y, scale=float(np.asarray(held).std()))

    with pytest.raises(ndp.UnsupportedModelError, match="names `held`"):
        PrivateModel(model, (held, np.zeros(N)), check=False)


def test_what_is_longer_is_named_in_a_warning_that_says_the_way_out():
    def declared(x, y, everybody):
        observe(x, y, centre=everybody.mean(0))

    text = (
        "names `EVERYBODY`, which may hold records.*argument of the model .wrapped in `numpyro_dp"
    )
    with pytest.warns(UserWarning, match=text):
        PrivateModel(centred_by_everybody, data(), check=False)
    PrivateModel(declared, (*data(), ndp.public(EVERYBODY)), check=False)


def test_a_longer_constant_of_the_trace_that_no_name_shows_is_warned_of():
    held = OutOfSight(rows=jnp.asarray(EVERYBODY))

    def model(x, y):
        observe(x, y, centre=jnp.mean(held.rows))

    with pytest.warns(UserWarning, match="closes over an array that may hold records"):
        PrivateModel(model, data(), check=False)


# --- what people hold that is no record

GRID = np.linspace(0, 1, 500)
VOCABULARY = {f"word {k}": k for k in range(900)}
EMBEDDING = np.random.default_rng(1).normal(size=(900, 2)).astype(np.float32)
ADJACENCY = np.eye(50, dtype=np.float32)
FEATURES = np.random.default_rng(2).normal(size=(2, 200)).astype(np.float32)
SPLINES = np.random.default_rng(3).normal(size=(365, 2)).astype(np.float32)
RATES = np.array([0.1, 0.2, 0.4])
DAYS = pd.date_range("2020-01-01", periods=366)
FRAME = pd.DataFrame(ROWS, columns=["a", "b"])


class Holder:
    """Keeps the table whose number of columns its model needs."""

    def __init__(self):
        self.X = ROWS

    def model(self, x, y):
        observe(x, y, scale=self.X.shape[1])

    def counted(self, x, y):
        observe(x, y, scale=1.0 + 0 * len(self.X) * self.X.ndim)


def framed(frame):
    def model(x, y):
        observe(x, y, scale=frame.shape[1] + 0 * len(frame.columns))

    return model


def by_shape(x, y):
    observe(x, y, scale=ROWS.shape[1])


def by_length(x, y):
    observe(x, y, scale=len(ROWS) / N)


def by_type(x, y, like=ROWS):
    observe(x, y, scale=1.0 if like.dtype == np.float32 else 2.0)


@pytest.mark.parametrize(
    "model",
    [Holder().model, Holder().counted, framed(FRAME), by_shape, by_length, by_type],
    ids=["attribute", "attribute's length", "table", "global", "length", "default"],
)
def test_what_is_only_asked_for_its_shape_passes(model):
    PrivateModel(model, data(), check=False)


@pytest.mark.parametrize("model", [by_shape, by_length], ids=["shape", "length"])
def test_lengths_do_not_pass_where_the_number_of_records_is_private(model):
    with pytest.raises(ndp.UnsupportedModelError, match="`ROWS`") as caught:
        PrivateModel(model, data(), check=False, private_size=True)
    assert not any(character.isdigit() for character in str(caught.value))


def used(compute):
    def model(x, y):
        observe(x, y, scale=1.0 + 0.0 * compute())

    return model


LONGER = {
    "grid": used(lambda: float(GRID[3])),
    "embedding": used(lambda: jnp.asarray(EMBEDDING)[2, 1]),
    "adjacency": used(lambda: float(ADJACENCY.sum())),
    "features": used(lambda: float(FEATURES[0, 0])),
    "splines": used(lambda: float(SPLINES[5, 1])),
    "dates": used(lambda: float(DAYS[3].day)),
    "words": used(lambda: float(VOCABULARY["word 3"])),
}
SHORTER = {
    "rates": used(lambda: float(RATES[1])),
    "knots": with_public_knots,
    "square": used(lambda: float(np.eye(2)[0, 0] + ADJACENCY.shape[0])),
    "dictionary by its length": used(lambda: float(len(VOCABULARY))),
}


@pytest.mark.parametrize("name", LONGER)
def test_public_tables_that_are_longer_get_a_warning_without_a_number(name):
    with pytest.warns(UserWarning, match="names") as caught:
        PrivateModel(LONGER[name], data(), check=False)
    assert not any(character.isdigit() for each in caught for character in str(each.message))


@pytest.mark.parametrize("length", [9, 10, N - 1, N, N + 1, 500])
def test_no_verdict_follows_a_private_number_of_records(length):
    """Neither a named array nor a list of any length tells how many records there are."""
    table = np.zeros(length)
    few = length < 10
    refused = contextlib.nullcontext() if few else pytest.raises(ndp.UnsupportedModelError)
    with refused:
        PrivateModel(used(lambda: float(table[0])), data(), check=False, private_size=True)

    def listed(x, y, told):
        observe(x, y, scale=1.0 + told[0])

    refused = contextlib.nullcontext() if few else pytest.raises(ndp.UnsupportedModelError)
    with refused:
        PrivateModel(listed, (*data(), [0.0] * length), check=False, private_size=True)


@pytest.mark.parametrize("name", SHORTER)
def test_public_tables_that_are_shorter_pass(name):
    PrivateModel(SHORTER[name], data(), check=False)


def test_a_declared_array_is_taken():
    PrivateModel(handed, (*data(), ndp.public(ROWS)), check=False)


def test_a_guide_is_read_too():
    def guide(x, y):
        loc = numpyro.param("loc", jnp.asarray(ROWS.mean(0)))
        numpyro.sample("w", dist.Normal(loc, 1.0).to_event(1))

    def fit(guide):
        return ndp.DPSVI(
            observe, guide, numpyro.optim.Adam(0.1), clip_norm=1.0, noise_multiplier=9.0
        )

    with pytest.raises(ndp.UnsupportedModelError, match="ROWS"):
        fit(guide).init(jax.random.key(0), *data())
    fit(AutoNormal(observe)).init(jax.random.key(0), *data())


def bound_from_records(here, there):
    return jnp.max(jnp.abs(jnp.asarray(ROWS) @ (there["w"] - here["w"])))


def start_at_the_mean(site=None):
    return jnp.asarray(ROWS.mean(0))


def shrinking(step):
    return 0.01 * float(ROWS.std()) / (1 + step)


def mirrored(z):
    return {"w": -z["w"] * np.sign(ROWS.size)}


WALK = {"step_size": 0.1, "lipschitz": 1.0, "max_move": 0.1}
LANGEVIN = {"step_size": 0.01, "clip_norm": 1.0, "noise_multiplier": 9.0}


@pytest.mark.parametrize(
    ("kernel", "others", "option", "value"),
    [
        (ndp.DPFastMH, {"step_size": 0.1, "rho": 0.1}, "record_bound", bound_from_records),
        (ndp.DPFastMH, WALK, "public_moves", (mirrored,)),
        (ndp.DPSGLD, LANGEVIN, "init_strategy", start_at_the_mean),
        (ndp.DPSGLD, LANGEVIN, "step_size", shrinking),
        (ndp.DPSGLD, LANGEVIN, "noise_multiplier", shrinking),
    ],
)
def test_an_option_that_names_the_records_is_refused_before_any_charge(
    kernel, others, option, value
):
    accountant = ndp.Accountant()
    built = kernel(observe, **{**others, option: value}, accountant=accountant)
    mcmc = ndp.MCMC(built, num_warmup=0, num_samples=2, progress_bar=False)
    with pytest.raises(ndp.UnsupportedModelError, match=f"{option}=.*`ROWS`.*free of data"):
        mcmc.run(jax.random.key(0), *data())
    assert not accountant.entries


def test_what_is_made_of_draws_may_not_name_the_records():
    kernel = ndp.DPSGLD(observe, **LANGEVIN)
    mcmc = ndp.MCMC(
        kernel,
        num_warmup=0,
        num_samples=2,
        postprocess_fn=lambda z: {"w": z["w"] + ROWS.mean(0)},
        progress_bar=False,
    )
    with pytest.raises(ndp.UnsupportedModelError, match=r"postprocess_fn=.*`ROWS`"):
        mcmc.run(jax.random.key(0), *data())


def starting_locations(site=None):
    if site["type"] == "sample" and site["name"] == "w":
        return jnp.asarray(ROWS.mean(0))
    return None


@pytest.mark.parametrize(
    "strategy",
    [partial(starting_locations), partial(init_to_value, values={"w": ROWS})],
    ids=["function", "values"],
)
def test_an_autoguide_may_not_start_at_what_the_records_say(strategy):
    accountant = ndp.Accountant()
    guide = AutoNormal(observe, init_loc_fn=strategy)
    with pytest.raises(ndp.UnsupportedModelError, match=r"init_loc_fn=.*free of data"):
        fit(accountant=accountant, guide=guide)
    assert not accountant.entries


def a_step_by_the_records(step):
    return 1e-3 * spread()


BY_THE_RECORDS = {
    "numpyro": lambda: numpyro.optim.SGD(a_step_by_the_records),
    "numpyro_momentum": lambda: numpyro.optim.Momentum(a_step_by_the_records, 0.9),
    "optax": lambda: optax.sgd(a_step_by_the_records),
    "chain": lambda: optax.chain(optax.clip(1.0), optax.adam(a_step_by_the_records)),
    "partial": lambda: optax.sgd(partial(lambda told, _: float(told.std()), ROWS)),
    "closure": lambda: optax.sgd((lambda told: lambda _: float(told.std()))(ROWS)),
    "hyperparameter": lambda: optax.inject_hyperparams(optax.sgd)(a_step_by_the_records),
    "masked": lambda: optax.masked(optax.sgd(a_step_by_the_records), {"w_auto_loc": True}),
    "joined": lambda: optax.sgd(
        optax.join_schedules([optax.constant_schedule(0.1), a_step_by_the_records], [1])
    ),
    "stateless": lambda: optax.stateless(lambda g, _: jax.tree.map(lambda v: v * spread(), g)),
    "wrapped": lambda: numpyro.optim.optax_to_numpyro(optax.sgd(a_step_by_the_records)),
    "captured": lambda: optax.stateless(
        lambda g, _: jax.tree.map(lambda v: v * HIDDEN.told.mean(), g)
    ),
}


HIDDEN = OutOfSight(told=jnp.asarray(ROWS))


def svi(optim=None, accountant=None, model=observe, guide=None, **more):
    guide = AutoNormal(model) if guide is None else guide
    optim = numpyro.optim.SGD(1e-9) if optim is None else optim
    options = {"clip_norm": 1.0, "noise_multiplier": 50.0, "accountant": accountant, **more}
    return ndp.DPSVI(model, guide, optim, **options)


def fit(*given, **options):
    return svi(*given, **options).run(jax.random.key(0), 2, *data(), progress_bar=False)


@pytest.mark.parametrize("made", BY_THE_RECORDS.values(), ids=BY_THE_RECORDS)
def test_an_optimiser_may_not_step_by_what_the_records_say(made):
    accountant = ndp.Accountant()
    with pytest.raises(ndp.UnsupportedModelError, match=r"optimiser.*free of data"):
        fit(made(), accountant)
    assert not accountant.entries


FREE = {
    "cosine": lambda: optax.adam(optax.cosine_decay_schedule(0.1, 10)),
    "piecewise": lambda: optax.sgd(optax.piecewise_constant_schedule(0.1, {5: 0.1})),
    "labels": lambda: optax.multi_transform(
        {"slow": optax.sgd(1e-3), "fast": optax.sgd(optax.linear_schedule(0.1, 0.01, 5))},
        {"w_auto_loc": "slow", "w_auto_scale": "fast"},
    ),
    "numpyro": lambda: numpyro.optim.Adam(lambda step: 1e-2 / (1 + step)),
    "clipped": lambda: numpyro.optim.ClippedAdam(optax.exponential_decay(0.1, 5, 0.9)),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] * (n != "cosine")) for n in FREE],
)
def test_an_optimiser_with_a_public_schedule_is_taken(name):
    assert fit(FREE[name]()).params


def told_by_a_function(x, y, tell):
    observe(x, y, scale=tell())


def test_functions_among_the_arguments_are_read_unless_declared_public():
    def tell():
        return float(ROWS.std())

    with pytest.raises(ndp.UnsupportedModelError, match=r"argument `tell` names `ROWS`"):
        PrivateModel(told_by_a_function, (*data(), tell), check=False)
    PrivateModel(told_by_a_function, (*data(), lambda: float(KNOTS.std()) + 1), check=False)
    PrivateModel(told_by_a_function, (*data(), ndp.public(tell)), check=False)


def test_a_function_as_static_argument_of_a_fit_is_read():
    with pytest.raises(ndp.UnsupportedModelError, match=r"argument `tell` names `ROWS`"):
        fit(model=told_by_a_function, tell=spread)


def test_the_model_of_an_autoguide_is_read_where_it_is_another():
    with pytest.raises(ndp.UnsupportedModelError, match=r"autoguide's model names `ROWS`"):
        fit(guide=AutoNormal(centred_by_a_global))


def normal_guide(x, y):
    numpyro.sample("w", dist.Normal(numpyro.param("loc", jnp.zeros(2)), 1.0).to_event(1))


def at_the_mean(site):
    return jnp.asarray(ROWS.mean(0)) if site["name"] == "loc" else None


@pytest.mark.parametrize("length", [3, 5, 20])
def test_what_a_library_keeps_of_a_compiled_function_is_no_table(length):
    """JAX keeps notes on a jitted function in a tuple with named fields, of whatever length."""
    bend = jax.custom_jvp(jnp.sin)
    bend.defjvp(lambda primals, tangents: (jnp.sin(*primals), jnp.cos(*primals) * tangents[0]))

    def bent(x, y):
        observe(bend(x), y)

    PrivateModel(bent, (ROWS[:length], ROWS[:length, 0]), check=False)


@pytest.mark.parametrize(
    "held", [{"substitute_fn": at_the_mean}, {"data": {"loc": ROWS}}], ids=["function", "data"]
)
def test_what_a_handler_holds_is_read(held):
    guide = numpyro.handlers.substitute(normal_guide, **held)
    with pytest.raises(ndp.UnsupportedModelError, match=r"the guide names `(ROWS|data)`"):
        fit(guide=guide)


LATER = None


def guide_by_later(x, y):
    start = jnp.zeros(2) if LATER is None else jnp.asarray(np.asarray(LATER).mean(0))
    numpyro.sample("w", dist.Normal(numpyro.param("loc", start), 1.0).to_event(1))


def model_by_later(x, y):
    observe(x, y, scale=1.0 if LATER is None else float(np.asarray(LATER).std()))


class ByLater(AutoNormal):
    """An autoguide with code of the caller's own."""

    def __call__(self, *args, **kwargs):
        assert LATER is None or np.isfinite(np.asarray(LATER).mean())
        return super().__call__(*args, **kwargs)


def tell_by_later():
    return 1.0 if LATER is None else float(np.asarray(LATER).std())


def test_own_code_of_an_autoguide_and_functions_given_are_read_each_time(monkeypatch):
    made = svi(guide=ByLater(observe))
    made.run(jax.random.key(0), 2, *data(), progress_bar=False)
    private_model(told_by_a_function, (*data(), tell_by_later), check=False)
    monkeypatch.setattr(this, "LATER", ROWS)
    with pytest.raises(ndp.UnsupportedModelError, match=r"the guide names `LATER`"):
        made.run(jax.random.key(0), 2, *data(), progress_bar=False)
    with pytest.raises(ndp.UnsupportedModelError, match=r"argument `tell` names `LATER`"):
        private_model(told_by_a_function, (*data(), tell_by_later), check=False)


def test_a_global_that_changes_between_two_runs_is_seen(monkeypatch):
    accountant = ndp.Accountant()
    made = svi(accountant=accountant, guide=guide_by_later)
    made.run(jax.random.key(0), 2, *data(), progress_bar=False)
    private_model(model_by_later, data(), check=False)
    spent = len(accountant.entries)
    monkeypatch.setattr(this, "LATER", ROWS)
    with pytest.raises(ndp.UnsupportedModelError, match=r"the guide names `LATER`"):
        made.run(jax.random.key(0), 2, *data(), progress_bar=False)
    with pytest.raises(ndp.UnsupportedModelError, match=r"the model names `LATER`"):
        private_model(model_by_later, data(), check=False)
    assert len(accountant.entries) == spent


EXPOSURE = np.ones(N, np.float32)


def scaled_by_row(x, y):
    observe(x, y, scale=1.0, centre=EXPOSURE[:, None])


def with_a_column(x, y):
    observe(jnp.concatenate([x[:, :1], EXPOSURE[:, None]], 1), y)


def in_a_factor(x, y):
    numpyro.factor("offset", jnp.sum(EXPOSURE) * 1.0)
    observe(x, y)


def closing_over(exposure):
    return lambda x, y: observe(x, y, centre=exposure[:, None])


def of_rows(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ w + EXPOSURE, 1.0), obs=y)


@pytest.mark.parametrize("private_size", [False, True])
@pytest.mark.parametrize(
    ("model", "name", "plate"),
    [
        (scaled_by_row, "EXPOSURE", None),
        (with_a_column, "EXPOSURE", None),
        (in_a_factor, "EXPOSURE", None),
        (closing_over(EXPOSURE), "exposure", None),
        (partial(lambda x, y, e: observe(x, y, centre=e[:, None]), e=EXPOSURE), "e", None),
        (of_rows, "EXPOSURE", "auto"),
    ],
    ids=["global", "column", "factor", "closure", "partial", "auto"],
)
def test_what_fails_on_one_record_names_the_array_that_has_more(model, name, plate, private_size):
    data = np.zeros((N, 2), np.float32), np.zeros(N, np.float32)
    with pytest.raises(ndp.UnsupportedModelError) as caught:
        PrivateModel(model, data, data_plate=plate, private_size=private_size)
    said = f"Perhaps the cause is `{name}`, which its code names: make it an argument"
    assert said in str(caught.value)
    assert not (private_size and str(N) in str(caught.value))


def test_what_fails_on_the_rows_names_an_array_that_is_longer():
    whole = np.zeros(2 * N, np.float32)
    data = np.zeros((N, 2), np.float32), np.zeros(N, np.float32)
    with pytest.raises(ndp.UnsupportedModelError, match="the cause is `exposure`, which"):
        PrivateModel(closing_over(whole), data)
    # A public argument of equal values is told of already, and a small table is none of records.
    with pytest.raises(ndp.UnsupportedModelError) as caught:
        PrivateModel(lambda x, y: observe(x @ KNOTS, y), data)
    assert "the cause" not in str(caught.value)
