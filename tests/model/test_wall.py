"""The contract of PrivateModel: frozen, equal by value, and free of records where it says so."""

import itertools
import pickle
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import infer

from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.model.plates import peeled
from numpyro_dp.model.private_model import PrivateModel, private_model
from numpyro_dp.model.records import public
from tests.models import logistic

N, D = 17, 2
CALLS = SimpleNamespace(number=0)
# Bytes that no program or shape could produce by chance.
MARKED = np.full((N, D), 123.456789, np.float32)
OUTCOME = np.full(N, -98.7654321, np.float32)


def linear(x, y, power=2, table=None):
    CALLS.number += 1
    w = numpyro.sample("w", dist.Normal(0, 1).expand([D]).to_event(1))
    s = numpyro.sample("s", dist.HalfNormal(1.0))
    numpyro.deterministic("norm", jnp.sum(jnp.abs(w) ** power))
    with numpyro.plate("data", x.shape[0]):
        loc = x @ w if table is None else x @ w + jnp.asarray(table)[0]
        numpyro.sample("y", dist.Normal(loc, s), obs=y)


def data(seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(N, D)), rng.normal(size=N)


def wall(*args, model=linear, **kwargs):
    return PrivateModel(model, args or data(), check=False, **kwargs)


# --- identity


def test_equal_by_value_whatever_the_records_say():
    first, second = wall(*data(0)), wall(*data(1))
    assert first == second
    assert hash(first) == hash(second)


@pytest.mark.parametrize(
    "other",
    [
        lambda x, y: (x[:-1], y[:-1]),
        lambda x, y: (x, (y > 0)),
        lambda x, y: (x, y, 3),
        lambda x, y: (x, y, 2.0),
        lambda x, y: (x, y, 2, public(np.array([1.0, 2.0]))),
    ],
    ids=["rows", "dtype", "static value", "static type", "public"],
)
def test_different_shapes_static_or_public_parts_differ(other):
    assert wall(*other(*data())) != wall(*data(), 2)


def test_public_parts_are_compared_by_their_bytes():
    tables = [
        public(np.array([1.0, 2.0])),
        public(np.array([1.0, 2.0])),
        public(np.array([1.0, 3])),
    ]
    first, same, other = (wall(*data(), 2, t) for t in tables)
    assert first == same
    assert hash(first) == hash(same)
    assert first != other
    assert first.public_inputs == ("table",)


def test_the_private_plate_and_the_model_are_part_of_the_identity():
    def twin(x, y):
        linear(x, y)

    assert wall(model=twin) != wall()
    assert wall(data_plate="data") != wall()


def test_frozen():
    with pytest.raises(AttributeError, match="frozen"):
        wall().num_records = 3
    with pytest.raises(AttributeError, match="frozen"):
        del wall().plate


def test_what_was_read_stands_in_public_names_without_a_value():
    split = wall(MARKED, OUTCOME)
    assert split.function is linear
    assert [leaf.name for leaf in split.layout.arrays] == ["x", "y"]
    assert split.structure.inside("data", "observed") == ("y",)
    assert split.structure.outside("data", "latent") == split.latents == ("w", "s")
    assert set(split.programs.constrained) == {"w", "s"}
    for program in (split.programs.log_prior, split.programs.constrain, split.term):
        shapes = [np.shape(c) for c in program.consts]
        assert not any({N} & {*shape} for shape in shapes)


@pytest.mark.parametrize(
    ("fn", "kept", "folded"),
    [
        (dist.Normal(jnp.zeros((2, 3)), 1.0), True, 0),
        (dist.Normal(0.0, 1.0).expand([2, 3]).to_event(1), True, 1),
        (dist.Normal(jnp.zeros((2, 3)), 1.0).mask(False), False, 0),
        (
            dist.Normal(0.0, 1.0).expand([2, 3]).to_event(1).mask(jnp.array([True, False])),
            [[True] * 3, [False] * 3],
            1,
        ),
        (
            dist.ExpandedDistribution(dist.Normal(jnp.zeros(3), 1.0).to_event(1), (2,)).mask(
                jnp.array([True, False])
            ),
            [[True] * 3, [False] * 3],
            1,
        ),
        (
            dist.Normal(0.0, 1.0).expand([2, 3]).mask(jnp.eye(2, 3) > 0).to_event(2),
            [[True, False, False], [False, True, False]],
            2,
        ),
    ],
)
def test_what_stands_around_a_distribution_is_taken_off(fn, kept, folded):
    found = peeled(fn)
    assert type(found.fn) is dist.Normal
    assert (found.kept is True) == (kept is True)
    assert np.array_equal(np.broadcast_to(found.kept, (2, 3)), np.broadcast_to(kept, (2, 3)))
    assert found.folded == folded


def test_an_unhashable_model_is_refused():
    class Listed(list):
        def __call__(self, x, y):
            linear(x, y)

    for build in (PrivateModel, private_model):
        with pytest.raises(UnsupportedModelError, match="unhashable Listed: pass a function"):
            build(Listed(), data())


def test_static_argument_of_jit_is_traced_once_for_equal_walls():
    traces = []

    def density(split, z):
        traces.append(1)
        return split.log_prior(z)

    compiled = jax.jit(density, static_argnums=0)
    z = {"w": jnp.ones(D), "s": jnp.array(0.4)}
    assert compiled(wall(*data(0)), z) == compiled(wall(*data(1)), z)
    assert len(traces) == 1


def test_pickle_holds_no_record_and_loads_equal():
    split = wall(MARKED, OUTCOME, 2, public(np.array([7.0, 8.0])))
    text = pickle.dumps(split)
    for array in (MARKED, OUTCOME):
        for dtype in (np.float32, np.float64):
            assert array.astype(dtype)[:1].tobytes() not in text
    assert np.array([7.0, 8.0]).tobytes() in text
    loaded = pickle.loads(text)
    assert loaded == split
    assert hash(loaded) == hash(split)
    z = split.init(jax.random.key(0))
    record = [a[:1] for a in split.records((MARKED, OUTCOME, 2, public(np.array([7.0, 8.0]))), {})]
    assert loaded.record_log_likelihood(z, record) == split.record_log_likelihood(z, record)


def test_pickle_refuses_another_precision():
    text = pickle.dumps(wall())
    with jax.enable_x64(True), pytest.raises(ValueError, match="jax_enable_x64=False"):
        pickle.loads(text)


def test_no_array_of_the_wall_is_a_record():
    held = jax.tree.leaves([wall(MARKED, OUTCOME).__getstate__() or {}])
    assert not [a for a in held if isinstance(a, (np.ndarray, jax.Array)) and a.size >= N]


def test_second_construction_runs_no_model_code():
    first = private_model(linear, data(0))
    CALLS.number = 0
    assert private_model(linear, data(1)) is first
    assert CALLS.number == 0
    assert private_model(linear, (*data(0), 3)) is not first
    assert CALLS.number > 0


def test_an_unchecked_wall_does_not_stand_in_for_a_checked_one():
    def coupled(x, y):
        linear(x - x.mean(0), y)

    assert private_model(coupled, data(), check=False).num_records == N
    with pytest.raises(UnsupportedModelError, match="not a sum over records"):
        private_model(coupled, data())


# --- arguments


def test_records_come_as_jax_arrays_of_one_row_a_record():
    x, y = data()
    first, second = wall().records((x, y))
    assert first.shape == (N, D)
    assert first.dtype == jnp.float32
    np.testing.assert_allclose(second, y, rtol=1e-6)


@pytest.mark.parametrize("change", [lambda x, y: (x[1:], y[1:]), lambda x, y: (x, y, 5)])
def test_records_of_another_layout_are_refused(change):
    with pytest.raises(UnsupportedModelError, match="differ from those"):
        wall().records(change(*data()))


def test_a_record_without_its_leading_axis_is_refused():
    split = wall()
    z = split.init(jax.random.key(0))
    with pytest.raises(ValueError, match="leading axis"):
        split.record_log_likelihood(z, [jnp.zeros(D), jnp.zeros(())])
    with pytest.raises(ValueError, match="`s`, `w`"):
        split.log_prior({"w": z["w"]})


def test_shapes_alone_are_enough():
    structs = (jax.ShapeDtypeStruct((N, D), "float32"), jax.ShapeDtypeStruct((N,), "float32"))
    assert wall(*structs) == wall()


def test_public_arrays_are_copied():
    table = np.array([1.0, 2.0])
    before = wall(*data(), 2, public(table))
    record = [jnp.ones((1, D)), jnp.ones(1)]
    z = before.init(jax.random.key(0))
    value = before.record_log_likelihood(z, record)
    table[0] = 50.0
    assert before == wall(*data(), 2, public(np.array([1.0, 2.0])))
    assert before.record_log_likelihood(z, record) == value


def test_public_objects_reach_the_model_as_they_are():
    class Options:
        shift = 2.0

    options = Options()
    seen = []

    def model(y, config):
        seen.append(config["options"])
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Normal(config["options"].shift, 1.0), obs=y)
        numpyro.sample("m", dist.Normal(0, 1))

    split = wall(data()[1], {"options": public(options)}, model=model)
    assert all(one is options for one in seen)
    assert split.public_inputs == ("config['options']",)


def test_dummy_records_have_the_shapes_of_records():
    split = wall(data()[0], data()[1] > 0)
    drawn = [split.dummy_records(jax.random.key(seed), 4) for seed in range(8)]
    for floats, flags in drawn:
        assert floats.shape == (4, D)
        assert flags.shape == (4,)
        assert flags.dtype == jnp.bool_
    between = [bool(((floats > 0.1) & (floats < 0.9)).all()) for floats, _ in drawn]
    whole = [bool(jnp.isin(floats, jnp.array([0.0, 1.0])).all()) for floats, _ in drawn]
    assert any(between)
    assert any(whole)
    assert all(a or b for a, b in zip(between, whole, strict=True))


def test_an_outcome_held_as_floats_is_checked_too(recwarn):
    PrivateModel(logistic, (data()[0], (data()[1] > 0).astype(np.float32)))
    assert not recwarn


# --- values


def test_prior_and_deterministics_by_hand():
    split = wall()
    z = {"w": jnp.array([0.3, -1.2]), "s": jnp.array(0.4)}
    by_hand = jax.scipy.stats.norm.logpdf(z["w"]).sum()
    by_hand += np.log(2) + jax.scipy.stats.norm.logpdf(jnp.exp(0.4)) + 0.4
    np.testing.assert_allclose(split.log_prior(z), by_hand, rtol=1e-6)
    np.testing.assert_allclose(split.constrain(z)["s"], np.exp(0.4), rtol=1e-6)
    np.testing.assert_allclose(split.deterministics(z)["norm"], 0.09 + 1.44, rtol=1e-6)


def test_double_precision():
    x, y = data()
    with jax.enable_x64(True):
        split = wall(x, y)
        assert split != wall(x.astype(np.float32), y)
        records = split.records((x, y))
        z = {"w": jnp.array([0.3, -1.2]), "s": jnp.array(0.4)}

        def both(z):
            rows = [a[:, None] for a in records]
            terms = jax.vmap(lambda record: split.record_log_likelihood(z, record))(rows)
            theirs = -infer.util.potential_energy(linear, tuple(records), {}, z)
            return split.log_prior(z) + terms.sum(), theirs

        ours, theirs = jax.jit(both)(z)
        assert ours.dtype == jnp.float64
        np.testing.assert_allclose(ours, theirs, rtol=1e-13)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_few_records(n):
    x, y = data()
    split = PrivateModel(linear, (x[:n], y[:n]))
    assert split.num_records == n


# --- starting values

STRATEGIES = [
    infer.init_to_uniform,
    infer.init_to_uniform(radius=0.5),
    infer.init_to_feasible,
    infer.init_to_median,
    infer.init_to_mean,
    infer.init_to_sample,
    infer.init_to_value(values={"w": jnp.zeros(D)}),
]


@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param(each, marks=[pytest.mark.slow] * (place > 0))
        for place, each in enumerate(STRATEGIES)
    ],
)
def test_every_strategy_starts_finite_and_off_zero(strategy):
    split = wall()
    z = split.init(jax.random.key(3), strategy)
    assert set(z) == {"s", "w"}
    assert bool(jnp.isfinite(split.log_prior(z)))
    # NumPyro's Bernoulli score is wrong at logits of exactly 0.
    assert all(bool((value != 0).all()) for value in z.values())


@pytest.mark.slow
def test_init_maps_over_keys_of_any_kind():
    split = wall()
    for keys in (
        jax.random.split(jax.random.key(0), 3),
        jax.random.split(jax.random.PRNGKey(0), 3),
    ):
        z = jax.jit(jax.vmap(split.init))(keys)
        assert z["w"].shape == (3, D)
        assert len(np.unique(np.asarray(z["w"]))) == 3 * D
        np.testing.assert_allclose(split.init(keys[0])["w"], z["w"][0], rtol=1e-6)


def test_init_tries_again_until_the_prior_is_finite():
    def model(y):
        m = numpyro.sample("m", dist.Normal(0, 1))
        numpyro.factor("positive", jnp.where(m > 0, 0.0, -jnp.inf))
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Normal(m, 1.0), obs=y)

    split = wall(data()[1], model=model)
    # A prior that is finite on half the line: twenty starts all negative would be 1 in a million.
    starts = jax.jit(jax.vmap(split.init))(jax.random.split(jax.random.key(0), 20))["m"]
    assert bool((starts > 0).all())


def test_a_strategy_that_reads_records_is_refused():
    x = jnp.asarray(data()[0])

    def from_data(site=None):
        if site is None:
            return from_data
        return x.mean(0) if site["name"] == "w" else infer.init_to_uniform(site)

    with pytest.raises(UnsupportedModelError, match=r"closes over an array \(17, 2\)"):
        wall().init(jax.random.key(0), from_data)


# --- a private number of records


def sized(prior_scale=lambda n: 1.0, high=lambda n: 5.0, shape=lambda n: D, note=lambda n: 1):
    def model(x, y):
        n = x.shape[0]
        w = numpyro.sample("w", dist.Normal(0, prior_scale(n)).expand([shape(n)]).to_event(1))
        u = numpyro.sample("u", dist.Uniform(0, high(n)))
        numpyro.deterministic("note", note(n) * u)
        with numpyro.plate("data", n):
            numpyro.sample("y", dist.Normal(x @ w[:D] + u, 1.0), obs=y)

    return model


def test_a_model_blind_to_the_number_of_records_is_accepted():
    split = wall(model=sized(), private_size=True)
    assert split != wall(model=sized())
    assert bool(jnp.isfinite(split.log_prior(split.init(jax.random.key(0)))))
    assert "17" not in repr(split)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prior_scale": lambda n: n**-0.5}, "prior or factor of site `w`.*private under"),
        ({"high": lambda n: float(n)}, "support of site `u`.*private under add_remove"),
        ({"shape": lambda n: n}, "`w` have an entry for each of … records"),
    ],
    ids=["prior", "support", "shape"],
)
def test_a_prior_that_tells_the_number_of_records_is_refused(change, message):
    model = sized(**change)
    assert wall(model=model).num_records == N
    with pytest.raises(UnsupportedModelError, match=message):
        wall(model=model, private_size=True)


def test_a_constant_plate_size_is_refused_when_the_number_is_private():
    def model(y):
        m = numpyro.sample("m", dist.Normal(0, 1))
        with numpyro.plate("data", N):
            numpyro.sample("y", dist.Normal(m, 1.0), obs=y)

    assert wall(data()[1], model=model).num_records == N
    with pytest.raises(UnsupportedModelError, match=r"constant: use `x.shape\[0\]`"):
        wall(data()[1], model=model, private_size=True)


def test_a_deterministic_site_that_tells_the_number_of_records_is_dropped():
    model = sized(note=lambda n: n)
    assert wall(model=model).dropped_deterministics == ()
    with pytest.warns(UserWarning, match="`note`"):
        assert wall(model=model, private_size=True).dropped_deterministics == ("note",)


def test_a_start_that_tells_the_number_of_records_is_refused():
    split = wall(model=sized(), private_size=True)
    sizes = itertools.count(2)

    def counting(site=None):
        return counting if site is None else infer.init_to_uniform(site, radius=1.0 / next(sizes))

    with pytest.raises(UnsupportedModelError, match="initial values depend on the number"):
        split.init(jax.random.key(0), counting)


@pytest.mark.parametrize("order", ["C", "F"])
def test_records_in_large_pages_are_a_copy_of_the_callers(monkeypatch, order):
    """Buffers of many records are the wall's own: later edits of the caller's have no effect."""
    monkeypatch.setattr("numpyro_dp._arrays.LARGE", 0)
    x = np.asarray(np.random.default_rng(0).normal(size=(60, 3)), order=order)
    y = np.arange(60) % 2
    wall = PrivateModel(logistic, (x, y))
    expected = x.astype(np.float32), y.copy()
    records = wall.records((x, y))
    x[:], y[:] = 0, 0
    for leaf, exact in zip(records, expected, strict=True):
        np.testing.assert_array_equal(leaf, exact)
        assert isinstance(leaf, jax.Array)
        assert leaf.dtype == (np.float32 if leaf.ndim == 2 else np.int32)
