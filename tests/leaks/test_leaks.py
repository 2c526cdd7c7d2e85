"""No surface of any algorithm shows a record; and the scan that says so is not blind."""

import functools
import logging
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tqdm.auto

import numpyro_dp as ndp
from numpyro_dp.accounting import PrivacyReport
from numpyro_dp.execution import account as module
from numpyro_dp.execution.account import Account
from tests.leaks import scan
from tests.leaks.cases import CASES, NAMES, WITH_NEIGHBOURS
from tests.leaks.scan import (
    PLANTED,
    compilation_cache,
    differing,
    forget_other_tests,
    leaks,
    locals_left,
    watch,
    without_frames,
)


@pytest.fixture(autouse=True)
def nothing_of_other_tests():
    forget_other_tests()


every_algorithm = pytest.mark.parametrize("name", NAMES)


def run(name, folder, arrays, *, secure=True):
    """A watched run, with a ledger in ``folder``."""
    folder.mkdir(exist_ok=True)

    def act(held):
        held["accountant"] = accountant = ndp.Accountant(path=folder / "study.ledger")
        CASES[name].run(held, accountant, secure, *arrays)

    return watch(act, folder)


@every_algorithm
def test_a_planted_record_is_on_no_surface(name, tmp_path):
    """Also not in JAX's compilation cache."""
    arrays = CASES[name].with_row(PLANTED)
    with compilation_cache(tmp_path / "run" / "cache"):
        seen = run(name, tmp_path / "run", arrays)
    assert seen.raised is None
    assert len(seen.held["accountant"].entries) >= 1
    assert any(path.name.endswith("-cache") for path in tmp_path.rglob("*"))
    assert leaks(seen) == {}


def spent_by(seen):
    """What the caller is told of what was spent: by the object, or by the error's note."""
    if "kernel" not in seen.held:
        # What is outside the run, such as the report of an estimator, has no note.
        return seen.held["accountant"].report()
    assert "stays so" in seen.raised.__notes__[0]
    try:
        return seen.held["mcmc"].privacy
    except RuntimeError as error:
        return error


@every_algorithm
def test_an_interrupted_run_is_charged_and_shows_nothing(name, tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    # Whichever comes first is after the charge and after a look at the records.
    with monkeypatch.context() as patch:
        patch.setattr(tqdm.auto.tqdm, "update", interrupted)
        patch.setattr(PrivacyReport, "build", interrupted)
        seen = run(name, tmp_path / "run", CASES[name].with_row(PLANTED))
    assert isinstance(seen.raised, KeyboardInterrupt)
    assert len(seen.held["accountant"].entries) == 1
    assert "ε" in str(spent_by(seen))
    assert locals_left(seen.raised) == []
    assert leaks(without_frames(seen)) == {}


@pytest.mark.parametrize("name", WITH_NEIGHBOURS)
def test_neighbours_of_equal_releases_differ_nowhere(name, tmp_path):
    """One data set has a broken record, the other one that adds nothing; noise is fixed."""
    one, other = (CASES[name].with_row(value) for value in (np.nan, CASES[name].nothing))
    # The first run compiles, which is logged.
    seen = [
        run(name, tmp_path / str(number), arrays, secure=False)
        for number, arrays in enumerate((one, one, other))
    ]
    assert [each.raised for each in seen] == [None] * 3
    assert differing(*seen[1:]) == []


@every_algorithm
def test_no_error_of_jax_tells_of_a_broken_record(name, tmp_path):
    """Who debugs their own program for NaN learns nothing of a record's."""
    with jax.debug_nans(True), jax.debug_infs(True):
        seen = run(name, tmp_path / "run", CASES[name].with_row(np.nan))
    assert seen.raised is None
    assert len(seen.held["accountant"].entries) == 1


def test_debugging_for_nan_is_off_within_a_run():
    def root():
        return jnp.sqrt(jnp.float32(-PLANTED))

    with jax.debug_nans(True):
        with Account("test", None, secure=True).opened("test"):
            assert jnp.isnan(root())
        with pytest.raises(FloatingPointError):
            root()


# What the controls below hide, where no walk from what is held comes by.
RECORD = np.full(3, PLANTED, np.float32)


class Sly:
    """Tells the record when it is pickled or shown."""

    def __reduce__(self):
        return Sly, (), {"record": RECORD.tolist()}

    def __repr__(self):
        return f"Sly({RECORD[0]})"


class Group:
    attrs = {"mean": float(RECORD[0])}  # noqa: RUF012
    variables = {}  # noqa: RUF012

    def groups(self):
        return ["posterior"]

    def __getitem__(self, _):
        return self


@functools.cache
def remembered(_):
    return RECORD.copy()


def closure():
    record = RECORD.tolist()
    return lambda: record


def waiting():
    record = RECORD.copy()
    yield
    yield record


def started():
    generator = waiting()
    next(generator)
    return generator


def hold(value):
    return lambda held, _: held.update(result=value())


def log(_, __):
    logging.getLogger("numpyro_dp.tests").debug("a batch %s", RECORD)


def warn(_, __):
    warnings.warn(f"{RECORD[0]:.4g} is large", stacklevel=1)


def fail(_, __):
    try:
        raise ValueError(RECORD.astype(float))
    except ValueError:
        raise RuntimeError("not finite") from None


def fail_with_a_note(_, __):
    error = RuntimeError("not finite")
    error.add_note(f"in {RECORD[0]}")
    raise error


def compile_a_constant(_, folder):
    with compilation_cache(folder / "cache"):
        jax.jit(lambda x: x + jnp.asarray(RECORD))(jnp.ones(3)).block_until_ready()


def keep_alive(held, _):
    # Nothing that is walked refers to it: only JAX itself says that it lives.
    Sly.alive = jnp.asarray(RECORD)


CONTROLS = {
    "an attribute": ("reachable", hold(lambda: {"state": [jnp.asarray(RECORD)]})),
    "a double": ("reachable", hold(lambda: PLANTED)),
    "a closure": ("reachable", hold(closure)),
    "a cache": ("reachable", hold(lambda: (remembered(0), remembered)[1])),
    "a generator": ("reachable", hold(started)),
    "objects in an array": ("reachable", hold(lambda: np.array([{"x": PLANTED}], object))),
    "a global": ("package", lambda *_: setattr(ndp.errors, "last_batch", RECORD)),
    "a live array": ("live arrays", keep_alive),
    "output": ("printed", lambda *_: print(RECORD)),
    "a bar": ("printed", lambda *_: print(f"loss={RECORD[0]:.3g}", file=sys.stderr)),
    "a warning": ("warnings", warn),
    "a log record": ("logs", log),
    "a file": ("files", lambda _, folder: np.save(folder / "x.npy", RECORD)),
    "a compiled constant": ("files", compile_a_constant),
    "a pickle": ("pickles", hold(Sly)),
    "a repr": ("repr", hold(Sly)),
    "a group": ("arviz", hold(Group)),
    "an exception's context": ("exceptions", fail),
    "an exception's note": ("exceptions", fail_with_a_note),
}


@pytest.mark.parametrize("name", CONTROLS)
def test_a_record_planted_on_a_surface_is_found_there(name, tmp_path):
    surface, act = CONTROLS[name]
    try:
        seen = watch(lambda held: act(held, tmp_path), tmp_path)
        assert surface in leaks(seen)
    finally:
        vars(ndp.errors).pop("last_batch", None)
        Sly.alive = None
        remembered.cache_clear()


def test_nothing_is_found_where_nothing_was_planted(tmp_path):
    assert leaks(watch(lambda held: held.update(x=np.ones(3)), tmp_path)) == {}


def interrupted_in(account, inside):
    """A run of an account that fails in ``inside`` after its charge."""

    def act(_):
        with account.opened("test") as charged:
            inside(charged)

    return act


def test_locals_of_a_run_are_found_and_a_charged_run_leaves_none(tmp_path, monkeypatch):
    def inside(charged):
        key = charged.charge(
            ndp.events.GaussianDpEvent(9.0), None, of=None, steps=1, total_variation=0.0
        )
        record = RECORD.copy()
        raise KeyboardInterrupt(bool(key is record))

    # As a module of the package, in whose frames records and keys are looked for.
    monkeypatch.setitem(inside.__globals__, "__name__", "numpyro_dp.tests")
    act = interrupted_in(Account("test", None, secure=True), inside)
    seen = watch(act, tmp_path)
    assert isinstance(seen.raised, KeyboardInterrupt)
    assert locals_left(seen.raised) == []
    monkeypatch.setattr(module, "_forget_locals", lambda *_: None)
    seen = watch(interrupted_in(Account("test", None, secure=True), inside), tmp_path)
    assert any("key" in place for place in locals_left(seen.raised))


@pytest.mark.parametrize("leaking", ["held", "printed", "warned", "logged"])
def test_what_differs_between_neighbours_is_found(leaking, tmp_path):
    def act(value):
        def leak(held):
            held["report"] = {"mean": value if leaking == "held" else 0.0}
            if leaking == "printed":
                print(value)
            if leaking == "warned":
                warnings.warn(str(value), stacklevel=1)
            if leaking == "logged":
                logging.getLogger("numpyro_dp.tests").debug("mean %s", value)

        return watch(leak, tmp_path)

    assert differing(act(0.25), act(0.75)) != []
    assert differing(act(0.25), act(0.25)) == []
    assert scan.flat(act(0.25))
