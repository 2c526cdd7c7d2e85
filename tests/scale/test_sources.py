"""Records that a store hands out by row number: the bits of an array, and nothing told of rows."""

import gc
import weakref
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.infer
import optax
import pytest
from jax import random
from numpyro.infer.autoguide import AutoNormal

import numpyro_dp as ndp
from numpyro_dp import _sources
from numpyro_dp._shards import Shards
from numpyro_dp._sources import UNREAD, Reading, RecordSource, Storage
from numpyro_dp.accounting import events
from numpyro_dp.execution.facts import TRUSTED
from numpyro_dp.mcmc.progress import ChainsCost
from numpyro_dp.mechanisms import PrivateSum
from numpyro_dp.mechanisms.random import CHACHA20
from numpyro_dp.model.private_model import PrivateModel
from numpyro_dp.model.records import as_records, read_arguments
from tests.leaks.scan import PLANTED, forget_other_tests, leaks, locals_left, watch, without_frames
from tests.models import logistic

ROWS, KEY = 400, jax.random.key(5)
COUNTS = {"num_warmup": 0, "num_samples": 6, "progress_bar": False, "secure": False}
STEPS = {"step_size": 1e-3, "clip_norm": 1.0, "noise_multiplier": 2.0, "batch_size": 40}
_rng = np.random.default_rng(0)
X = _rng.normal(size=(ROWS, 2)).astype(np.float32)
Y = _rng.integers(0, 2, ROWS).astype(np.int32)


class Store:
    """Records as dictionaries, or in one of the other forms; it remembers what it was asked."""

    def __init__(self, x=X, y=Y, form="records"):
        self.x, self.y, self.form, self.asked = x, y, form, []

    def __len__(self):
        return len(self.x)

    def __getitems__(self, rows):
        self.asked.append(np.array(rows))
        x, y = self.x[rows], self.y[rows]
        if self.form == "stacked":
            return {"x": x, "y": y}
        return [{"x": each, "y": of} for each, of in zip(x.astype(float), y, strict=True)]


class Column:
    """One array, whose shape and dtype it tells."""

    def __init__(self, array):
        self.array, self.shape, self.dtype = array, array.shape, array.dtype
        self.form = np.asarray

    def __len__(self):
        return len(self.array)

    def __getitems__(self, rows):
        return self.form(self.array[rows])


def sources(store, *, trusted=False):
    """The two arguments of the model."""
    shared = {"trusted_storage": trusted}
    return (
        RecordSource(store, shape=(2,), dtype="float32", field="x", **shared),
        RecordSource(store, shape=(), dtype="int32", field="y", **shared),
    )


# --- one release


def released(mechanism, chains, records):
    """Sums of the rows' own numbers, of one key or of several side by side."""

    def one(key):
        return mechanism.release(key, lambda r: r[0][0] * (1 + r[1][0]), records)

    key = random.key(3, impl=CHACHA20)
    return one(key) if chains is None else jax.vmap(one)(random.split(key, chains))


def sum_of(rate, **options):
    fixed = {"num_records": ROWS, "dim": 2, "clip_norm": 1.0, "noise_multiplier": 2.0}
    planned = {**fixed, "sampling_rate": rate, "num_steps": 10, "delta": 1e-5, **options}
    return PrivateSum.create(**{"storage": Storage(trusted=False), **planned})


@pytest.fixture
def reading():
    made = Reading()
    yield made
    made.close()


def opened(reading, *given):
    return [reading.open(each, np.dtype(each.dtype)) for each in given]


@pytest.mark.parametrize(
    ("rate", "microbatch_size", "chains"),
    [pytest.param(0.1, 16, None, marks=pytest.mark.slow), (0.1, 16, 3), (1.0, 150, 3)],
)
def test_rows_that_are_fetched_give_the_bits_of_rows_at_hand(
    rate, microbatch_size, chains, reading
):
    store = Store()
    mechanism = sum_of(rate, microbatch_size=microbatch_size)
    compiled = jax.jit(partial(released, mechanism, chains))
    found = compiled(opened(reading, *sources(store)))
    reading.require_read()
    np.testing.assert_array_equal(found, compiled([jnp.asarray(X), jnp.asarray(Y)]))
    blocks, size = mechanism._blocks()
    together = 1 if rate == 1 or chains is None else chains
    # Full in every call, one call for all chains and for both arrays of the store.
    assert [each.shape for each in store.asked] == [(together * size,)] * blocks
    assert blocks > 1
    if rate < 1:
        # What only fills up asks for row 0, as it does of an array.
        assert sum(np.sum(each == 0) for each in store.asked) > 20


def test_arrays_at_hand_may_stand_beside_a_source(reading):
    mechanism = sum_of(0.1)
    compiled = jax.jit(partial(released, mechanism, None))
    found = compiled(opened(reading, sources(Store())[0], Y))
    np.testing.assert_array_equal(found, compiled([jnp.asarray(X), jnp.asarray(Y)]))


@pytest.mark.parametrize("form", [np.asarray, list, lambda rows: rows.astype(np.float64)])
def test_a_store_may_return_an_array_or_a_sequence(form, reading):
    column = Column(X)
    column.form = form
    (leaf,) = opened(reading, RecordSource(column))
    (found,) = _fetched(leaf, [3, 0, 3])
    np.testing.assert_array_equal(found, X[[3, 0, 3]])
    assert found.dtype == np.float32


def test_a_store_may_return_a_mapping_to_arrays(reading):
    leaves = opened(reading, *sources(Store(form="stacked")))
    np.testing.assert_array_equal(_fetched(leaves[1], [7, 8])[0], Y[[7, 8]])


@pytest.mark.parametrize("form", [np.asanyarray, list])
def test_a_missing_value_is_no_number(form, reading):
    """NumPy would give what lies beneath a mask."""
    for hidden, failed in ((False, False), (True, True)):
        column = Column(np.ma.masked_array(X, mask=hidden))
        column.form = form
        (leaf,) = opened(reading, RecordSource(column, shape=(2,), dtype="float32"))
        (found,) = _fetched(leaf, [3, 0])
        np.testing.assert_array_equal(found, 0 * X[:2] if hidden else X[[3, 0]])
        assert reading.failed == failed


def _fetched(leaf, rows):
    fetch = _sources._Fetch((leaf.place,), (leaf.shape[1:],), (leaf.dtype,))
    return fetch(np.asarray(leaf.reading), np.asarray(rows, np.int32))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_record_that_is_not_finite_adds_nothing(value, reading):
    compiled, found = jax.jit(partial(released, sum_of(1.0), None)), []
    for row in (value, 0.0):
        x = X.copy()
        x[7] = row
        found.append(compiled(opened(reading, *sources(Store(x)))))
        reading.require_read()
    assert np.all(np.isfinite(found[0]))
    np.testing.assert_array_equal(*found)


def test_a_sum_for_records_at_hand_fetches_none(reading):
    """Its event would claim what a store may tell."""
    for rate in (0.1, 1.0):
        with pytest.raises(ValueError, match="made for records at hand"):
            released(sum_of(rate, storage=None), None, opened(reading, *sources(Store())))


# --- what is charged


def bound_on(*given, **changes):
    kernel = ndp.DPSGLD(logistic, **{**STEPS, **changes})
    model = PrivateModel(logistic, given, check=False)
    return kernel.bind(model, num_steps=10, relation="zero_out", delta=1e-6)


def test_a_storage_that_is_not_trusted_gets_no_amplification():
    told, at_hand = bound_on(*sources(Store())), bound_on(X, Y)
    one = events.GaussianDpEvent(2.0)
    drawn = at_hand.private_sum.tv_per_step
    noise = drawn - at_hand.private_sum.sampler.tv
    assert told.private_sum.tv_per_step == pytest.approx(noise, rel=1e-9)
    distance = events.TotalVariation(10 * told.private_sum.tv_per_step)
    assert told.event(10) == events.ComposedDpEvent([events.SelfComposedDpEvent(one, 10), distance])
    assert at_hand.event(10) == events.ComposedDpEvent(
        [
            events.SelfComposedDpEvent(events.PoissonSampledDpEvent(0.1, one), 10),
            events.TotalVariation(10 * drawn),
        ]
    )
    assert told.facts().conditions == ()
    assert "without amplification by sampling" in told.facts().sampler


def test_a_trusted_storage_is_a_condition():
    trusted = bound_on(*sources(Store(), trusted=True))
    assert trusted.event(10) == bound_on(X, Y).event(10)
    assert trusted.facts().conditions == (TRUSTED,)
    assert bound_on(X, Y).facts().conditions == ()
    # One that is not trusted is told as much as all of them.
    mixed = bound_on(sources(Store(), trusted=True)[0], sources(Store())[1])
    assert mixed.event(10) == bound_on(*sources(Store())).event(10)
    beside = bound_on(sources(Store(), trusted=True)[0], Y)
    assert beside.facts().conditions == (TRUSTED,)


def test_who_reads_all_records_tells_nothing_by_their_order():
    for trusted in (False, True):
        told = bound_on(*sources(Store(), trusted=trusted), batch_size=None)
        assert told.event(10) == bound_on(X, Y, batch_size=None).event(10)
        assert told.facts().conditions == ()


def test_a_ledger_with_a_budget_must_allow_the_condition():
    accountant = ndp.Accountant(ndp.Budget(50.0, 1e-5))
    kernel = ndp.DPSGLD(logistic, **STEPS, accountant=accountant)
    mcmc, store = ndp.MCMC(kernel, **{**COUNTS, "secure": True}), Store()
    told = "trusted not to look at which rows are fetched.*allow_conditional=True"
    with pytest.raises(ndp.BudgetExceededError, match=told):
        mcmc.run(KEY, *sources(store, trusted=True))
    assert not accountant.entries
    assert not store.asked


@pytest.mark.slow
def test_a_plan_says_what_its_cost_depends_on():
    kernel = ndp.DPSGLD(logistic, **STEPS)
    planned = ndp.plan(kernel, *sources(Store(), trusted=True), num_steps=50)
    assert planned.conditions == (TRUSTED,)
    assert f"(zero_out, if {TRUSTED})" in " ".join(str(planned).split())
    assert ndp.plan(kernel, X, Y, num_steps=50).conditions == ()


def test_what_was_paid_for_without_a_condition_covers_nothing_with_one():
    """The events are the same."""
    at_hand, trusted = bound_on(X, Y), bound_on(*sources(Store(), trusted=True))
    state = at_hand.start(random.key(0), {"w": jnp.zeros(2)})._replace(i=jnp.asarray(4))
    for paid, of in ((at_hand, trusted), (trusted, at_hand)):
        reserved = ChainsCost(paid, None, 10, 0, 1, False).reserved(4, 6)
        assert reserved.covers(paid, 6, 1, state)
        assert not reserved.covers(of, 6, 1, state)


@pytest.mark.slow
def test_samples_paid_for_arrays_are_not_those_of_a_trusted_store():
    kernel = ndp.DPSGLD(logistic, **STEPS)
    mcmc = ndp.MCMC(kernel, **{**COUNTS, "num_warmup": 2, "num_samples": 2})
    mcmc.warmup(KEY, X, Y)
    mcmc.run(KEY, *sources(Store(), trusted=True))
    assert TRUSTED in mcmc.privacy.conditions
    assert len(mcmc._account.charges) == 2


# --- a whole run


def ran(kernel, *given, **options):
    mcmc = ndp.MCMC(kernel, **{**COUNTS, **options})
    mcmc.run(KEY, *given)
    return mcmc


KERNELS = {
    "DPSGLD": ndp.DPSGLD(logistic, **STEPS),
    "DPSGLD full": ndp.DPSGLD(logistic, **{**STEPS, "batch_size": None}),
    "DPSGLD without privacy": ndp.DPSGLD(
        logistic, **{**STEPS, "clip_norm": np.inf, "noise_multiplier": 0}
    ),
    "DPSGHMC": ndp.DPSGHMC(logistic, **STEPS, friction=28.0),
    "DPSGNHT": ndp.DPSGNHT(logistic, **STEPS, diffusion=28.0),
    "DPSGFS": ndp.DPSGFS(logistic, **STEPS),
}


@pytest.mark.parametrize(
    ("name", "chains", "method"),
    [
        pytest.param(name, *way, marks=() if (name, way[0]) == ("DPSGLD", 1) else pytest.mark.slow)
        for name in KERNELS
        for way in ((1, "vectorized"), (2, "vectorized"), (2, "sequential"))
    ],
)
def test_a_run_on_a_store_is_that_on_arrays(name, chains, method):
    kernel, options = KERNELS[name], {"num_chains": chains, "chain_method": method}
    at_hand, store = ran(kernel, X, Y, **options), Store()
    told = ran(kernel, *sources(store), **options)
    np.testing.assert_array_equal(told.get_samples()["w"], at_hand.get_samples()["w"])
    steps = 6 * (1 if method == "vectorized" else chains)
    assert len(store.asked) == steps
    if "full" in name or "without" in name:
        assert told.privacy.epsilon == at_hand.privacy.epsilon
    else:
        assert told.privacy.epsilon > 2 * at_hand.privacy.epsilon
        assert "without amplification by sampling" in told.privacy.full().replace("\n", " ")
    del told
    gone = weakref.ref(store)
    del store
    gc.collect()
    assert gone() is None
    assert not _sources._OPEN


@pytest.mark.slow
@pytest.mark.parametrize("centred", ["plain", "centred"])
def test_a_variational_run_on_a_store_is_that_on_arrays(centred):
    settings = {"clip_norm": 1.0, "noise_multiplier": 2.0, "batch_size": 40, "secure": False}
    elbo = ndp.ElboTrace(every=2, lower=-3.0, upper=0.0)

    def fit(*given):
        guide = AutoNormal(logistic)
        svi = ndp.DPSVI(
            logistic, guide, optax.sgd(1e-3), clip=centred, elbo=elbo, **settings
        )  # fmt: skip
        return svi.run(KEY, 6, *given, progress_bar=False)

    at_hand, trusted, told = fit(X, Y), fit(*sources(Store(), trusted=True)), fit(*sources(Store()))
    jax.tree.map(np.testing.assert_array_equal, trusted.params, at_hand.params)
    np.testing.assert_array_equal(trusted.losses, at_hand.losses)
    assert TRUSTED in trusted.privacy.conditions
    assert trusted.privacy.epsilon == at_hand.privacy.epsilon
    assert TRUSTED not in told.privacy.conditions
    assert told.privacy.epsilon > 2 * at_hand.privacy.epsilon
    kinds = str([event for _, event in told.privacy.events])
    assert "PoissonSampled" not in kinds


# --- failures


class Failing(Store):
    """Tells whose records it was asked for, in an error."""

    def __init__(self, after, error):
        super().__init__()
        self.after, self.error = after, error

    def __getitems__(self, rows):
        if len(self.asked) == self.after:
            self.asked.append(None)
            secret = [PLANTED, *rows]
            raise self.error(f"{secret}")
        return super().__getitems__(rows)


class Short(Store):
    def __getitems__(self, rows):
        return super().__getitems__(rows)[1:]


class Wide(Store):
    def __getitems__(self, rows):
        return [{**each, "y": each["y"] + PLANTED} for each in super().__getitems__(rows)]


def ends(store, tmp_path, *, fails=RuntimeError):
    """A watched run that ends in an error after its charge."""

    def act(held):
        held["accountant"] = accountant = ndp.Accountant(path=tmp_path / "study.ledger")
        kernel = ndp.DPSGLD(logistic, **STEPS, accountant=accountant)
        mcmc = held["mcmc"] = ndp.MCMC(kernel, **{**COUNTS, "secure": True})
        mcmc.run(KEY, *sources(store))

    forget_other_tests()
    seen = watch(act, tmp_path)
    assert type(seen.raised) is fails
    assert len(seen.held["accountant"].entries) == 1
    assert seen.raised.__cause__ is None
    assert seen.raised.__context__ is None
    assert "was charged before, and stays so" in seen.raised.__notes__[0]
    assert seen.held["mcmc"]._states is None
    assert seen.held["mcmc"].last_state is None
    assert locals_left(seen.raised) == []
    assert leaks(without_frames(seen)) == {}
    # As JAX says of a callback that raises.
    assert not any("callback failed" in each.getMessage() for each in seen.logged)
    return seen


@pytest.mark.parametrize("error", [OSError, pytest.param(SystemExit, marks=pytest.mark.slow)])
def test_an_error_of_the_store_ends_the_run_and_tells_nothing(error, tmp_path):
    store = Failing(1, error)
    seen = ends(store, tmp_path)
    assert str(seen.raised) == UNREAD
    # It was not asked again.
    assert len(store.asked) == 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Short, Wide])
def test_what_is_no_such_record_ends_the_run_alike(kind, tmp_path):
    store = kind()
    assert str(ends(store, tmp_path).raised) == UNREAD
    assert len(store.asked) == 1


@pytest.mark.parametrize(
    ("store", "raised"),
    [
        (partial(Failing, 0, OSError), RuntimeError),
        (partial(Failing, 0, GeneratorExit), RuntimeError),
        (partial(Failing, 0, KeyboardInterrupt), KeyboardInterrupt),
        (Short, RuntimeError),
        (Wide, RuntimeError),
    ],
)
def test_a_failing_store_is_asked_once_and_known_to_have_failed(store, raised, reading):
    store = store()
    leaf = opened(reading, *sources(store))[1]
    for _ in range(2):
        np.testing.assert_array_equal(_fetched(leaf, [3, 4])[0], [0, 0])
    assert len(store.asked) == 1
    with pytest.raises(raised) as error:
        _sources.require_read([leaf], jnp.zeros(()))
    assert PLANTED not in error.value.args
    assert error.value.__context__ is None


@pytest.mark.slow
def test_who_stops_a_run_that_is_fetching_has_stopped_it(tmp_path):
    ends(Failing(1, KeyboardInterrupt), tmp_path, fails=KeyboardInterrupt)


def test_a_reading_that_is_closed_asks_nobody(reading):
    store = Store()
    leaf, _ = opened(reading, *sources(store))
    reading.close()
    np.testing.assert_array_equal(_fetched(leaf, [3])[0], np.zeros((1, 2)))
    assert not store.asked


# --- refusals, all before a charge


def _svi_adapted(accountant, *given):
    svi = ndp.DPSVI(
        logistic, AutoNormal(logistic), privacy=ndp.Budget(12.0, 1e-5), accountant=accountant
    )
    svi.run(KEY, 6, *given, progress_bar=False)


def _kernel(constructor, **options):
    def run(accountant, *given):
        ran(constructor(logistic, accountant=accountant, **options), *given)

    return run


def _parallel(accountant, *given):
    ran(ndp.DPSGLD(logistic, **STEPS, accountant=accountant), *given, chain_method="parallel")


def _plain(accountant, *given):
    kernel = ndp.DPSGLD(logistic, **STEPS, accountant=accountant, num_steps=4)
    counts = {"num_warmup": 0, "num_samples": 4, "progress_bar": False}
    mcmc = numpyro.infer.MCMC(kernel, **counts, jit_model_args=True)
    mcmc.run(KEY, *given)


def _first(accountant, *given):
    first = ndp.OPS(logistic, guarantee=ndp.StronglyLogConcave(row_norm=1.0), likelihood_power=0.2)
    ran(ndp.DPSGLD(logistic, **STEPS, accountant=accountant, init_kernel=first), *given)


def _front(constructor, **options):
    def run(accountant, *given):
        constructor(logistic, **options, accountant=accountant).run(KEY, *given)

    return run


def _metropolis():
    return ran(ndp.DPFastMH(logistic, step_size=0.3, lipschitz=2.0, max_move=0.6), X, Y)


def _vips(accountant, *given):
    guide = ndp.guides.PolyaGammaGuide(logistic, row_norm=3.0)
    ndp.VIPS(logistic, guide, noise_multiplier=2.0, accountant=accountant).run(KEY, 12, *given)


BUDGET = ndp.Budget(12.0, 1e-5)
_DRAWS = {"w": np.zeros((5, 2), np.float32)}
REFUSING = {
    "parallel": (_parallel, "chain_method='vectorized'"),
    "plain NumPyro": (_plain, "numpyro_dp.MCMC"),
    "private size": (
        lambda _, *given: PrivateModel(logistic, given, private_size=True),
        "the number of records is private",
    ),
    "count_missing": (
        lambda accountant, x, _: ndp.count_missing(
            KEY, x, noise_multiplier=2.0, accountant=accountant
        ),
        "open_memmap",
    ),
    "PrivateCentre": (
        lambda accountant, x, _: ndp.PrivateCentre(
            row_norm=2.0, noise_multiplier=2.0, accountant=accountant
        ).run(KEY, x),
        "open_memmap",
    ),
    "DPSGLD adapted": (_kernel(ndp.DPSGLD, privacy=BUDGET), "open_memmap"),
    "DPFastMH": (_kernel(ndp.DPFastMH, step_size=0.3, lipschitz=2.0, max_move=0.6), "open_memmap"),
    "DPNUTS": (_kernel(ndp.DPNUTS, privacy=BUDGET, allow_unresolved=True), "open_memmap"),
    "init_kernel": (_first, "open_memmap"),
    "DPSVI adapted": (_svi_adapted, "open_memmap"),
    "VIPS": (_vips, "open_memmap"),
    "OPS": (
        _kernel(ndp.OPS, guarantee=ndp.StronglyLogConcave(row_norm=1.0), likelihood_power=0.2),
        "open_memmap",
    ),
    "private_accuracy": (
        lambda accountant, *given: ndp.private_accuracy(
            KEY, logistic, _DRAWS, *given, noise_multiplier=3.0, accountant=accountant
        ),
        "open_memmap",
    ),
    "clipping_rate": (
        lambda accountant, *given: ndp.clipping_rate(
            KEY, _metropolis(), *given, noise_multiplier=2.0, accountant=accountant
        ),
        "open_memmap",
    ),
    "LikelihoodRelease": (
        _front(ndp.LikelihoodRelease, privacy=BUDGET, allow_unresolved=True),
        "open_memmap",
    ),
    "OutputPerturbation": (
        _front(ndp.OutputPerturbation, row_norm=3.0, noise_multiplier=2.0),
        "open_memmap",
    ),
}
DEAR = {
    "OPS",
    "private_accuracy",
    "clipping_rate",
    "DPSGLD adapted",
    "DPNUTS",
    "DPSVI adapted",
    "LikelihoodRelease",
    "VIPS",
    "init_kernel",
    "OutputPerturbation",
}


@pytest.mark.usefixtures("no_compilation_cache")
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in DEAR else ()) for n in REFUSING]
)
def test_everything_else_refuses_a_source_before_the_charge(name):
    act, said = REFUSING[name]
    accountant, store = ndp.Accountant(), Store()
    with pytest.raises(ValueError, match=said):
        act(accountant, *sources(store))
    assert not accountant.entries
    assert not store.asked
    assert not _sources._OPEN


def test_divided_arrays_stand_beside_no_source(reading):
    layout, arrays = read_arguments(logistic, (sources(Store())[0], Y), {})
    with pytest.raises(ValueError, match="divided among devices"):
        as_records(replace(layout, shards=Shards((0, 1))), arrays, padded=True, reading=reading)


@pytest.mark.parametrize(
    ("name", "found", "said"),
    [("process_count", 2, "one of several"), ("local_devices", None, "JAX_PLATFORMS")],
)
def test_nobody_fetches_in_several_processes_or_without_a_host(
    name, found, said, reading, monkeypatch
):
    def answered(*_, **__):
        if found is None:
            raise RuntimeError
        return found

    monkeypatch.setattr(jax, name, answered)
    with pytest.raises(ValueError, match=said):
        opened(reading, *sources(Store()))


class Blind:
    def __getitems__(self, rows):
        raise AssertionError("it was read")


@pytest.mark.parametrize(
    ("given", "options", "said"),
    [
        (X, {}, "has no __getitems__"),
        (Blind(), {}, "has no __len__"),
        (Store(), {}, "give shape= and dtype="),
        (Column(X), {"field": "x"}, "give shape= and dtype="),
        (Column(X), {"shape": (0,)}, "positive sizes"),
        (Column(X), {"shape": 2}, "tuple of integers"),
        (Column(X), {"shape": (2.7,)}, "tuple of integers"),
        (Column(X), {"trusted_storage": 1}, "must be True or False"),
    ],
)
def test_what_is_no_source_is_refused_without_a_look_at_records(given, options, said):
    with pytest.raises(ValueError, match=said):
        RecordSource(given, **options)


def test_a_source_shows_no_record():
    source = RecordSource(Column(X))
    assert repr(source) == "RecordSource(float32[400, 2])"
    assert (source.shape, source.ndim, len(source), source.dtype) == ((400, 2), 2, 400, np.float32)
