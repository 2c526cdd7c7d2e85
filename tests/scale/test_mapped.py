"""Records in a mapped file are read where they lie, and what happens to the file is noticed."""

import json
import os
import pickle
import subprocess
import sys
from functools import partial
from pathlib import Path

import jax
import numpy as np
import optax
import pytest
from numpyro.infer.autoguide import AutoNormal

import numpyro_dp as ndp
from numpyro_dp import _arrays
from numpyro_dp.model.records import as_records, read_arguments
from tests.models import logistic, normal_mean

ROOT = Path(__file__).parents[2]
COUNTS = {"num_warmup": 0, "num_samples": 4, "progress_bar": False, "secure": False}
STEPS = {"step_size": 1e-3, "clip_norm": 1.0, "noise_multiplier": 2.0}


def on_disk(folder, array, name="x", mode="r"):
    path = folder / f"{name}.npy"
    np.save(path, array)
    return np.load(path, mmap_mode=mode)


@pytest.fixture
def records(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 2)).astype(np.float32)
    y = rng.integers(0, 2, 400).astype(np.int32)
    return on_disk(tmp_path, x), on_disk(tmp_path, y, "y")


def address(array):
    return array.unsafe_buffer_pointer()


@pytest.mark.parametrize("mode", ["r", "r+", "c"])
def test_a_mapped_array_is_taken_where_it_lies(tmp_path, mode):
    x = on_disk(tmp_path, np.ones((64, 4), np.float32), mode=mode)
    for view in (x, np.asarray(x), x[4:], x.reshape(-1, 8)):
        layout, arrays = read_arguments(logistic, (view,), {})
        (taken,) = as_records(layout, arrays)
        assert address(taken) == view.ctypes.data
        np.testing.assert_array_equal(taken, view)


def test_what_was_computed_from_a_mapped_array_is_of_no_file(tmp_path):
    x = on_disk(tmp_path, np.ones((64, 4), np.float32))
    for made in (x * 2, x.astype(np.float64), x[[1, 2]], np.array(x)):
        assert _arrays.mapped_path(made) is None
    assert _arrays.mapped_path(x[1:]) == _arrays.mapped_path(np.asarray(x)) == str(x.filename)


@pytest.mark.parametrize(
    ("name", "given", "reason"),
    [
        ("wide", lambda x: x, "its dtype is float64 and not float32"),
        ("columns", lambda x: x[:, :2], "its rows do not follow each other"),
        ("fortran", lambda x: x, "its rows do not follow each other"),
        ("moved", lambda x: x[1:], "its first byte is not at a multiple of 64"),
    ],
)
def test_what_cannot_lie_where_it_is_is_copied_with_a_warning(tmp_path, name, given, reason):
    if name == "wide" and jax.config.values["jax_enable_x64"]:
        pytest.skip("with 64 bits nothing is converted")
    x = np.arange(256.0).reshape(64, 4).astype(np.float64 if name == "wide" else np.float32)
    if name == "fortran":
        x = np.asfortranarray(x)
    view = given(on_disk(tmp_path, x))
    with pytest.warns(UserWarning, match=reason):
        _arrays.warn_of_copies([view])
    layout, arrays = read_arguments(logistic, (view,), {})
    (taken,) = as_records(layout, arrays)
    assert address(taken) != view.ctypes.data
    np.testing.assert_array_equal(taken, view.astype(np.float32))


def test_a_warning_that_is_an_error_costs_nothing(tmp_path, records):
    """``filterwarnings = error`` of this suite makes it one."""
    accountant = ndp.Accountant()
    kernel = ndp.DPSGLD(logistic, **STEPS, accountant=accountant)
    wide = on_disk(tmp_path, np.asarray(records[0], np.float64), "wide")
    fortran = on_disk(tmp_path, np.asfortranarray(wide), "fortran")
    with pytest.raises(UserWarning, match="is copied into memory"):
        ndp.MCMC(kernel, **COUNTS).run(jax.random.key(0), fortran, records[1])
    with pytest.raises(UserWarning, match="is copied into memory"):
        ndp.count_missing(
            jax.random.key(0), fortran, noise_multiplier=2.0, accountant=accountant
        )  # fmt: skip
    assert not accountant.entries


def _mcmc(kernel, **options):
    def run(x, y):
        mcmc = ndp.MCMC(kernel, **{**COUNTS, **options})
        mcmc.run(jax.random.key(0), x, y)
        return mcmc.get_samples(), mcmc.privacy

    return run


def _svi(x, y):
    guide, steps = AutoNormal(logistic), {"clip_norm": 1.0, "noise_multiplier": 2.0}
    fit = ndp.DPSVI(logistic, guide, optax.sgd(1e-3), **steps, batch_size=40, secure=False)
    found = fit.run(jax.random.key(0), 4, x, y, progress_bar=False)
    return found.params, found.privacy


def _vips(x, y):
    guide = ndp.guides.ConjugateGuide(normal_mean, row_norm=3.0, outcome_bound=3.0)
    fit = ndp.VIPS(normal_mean, guide, noise_multiplier=2.0, secure=False)
    found = fit.run(jax.random.key(0), 2, x, progress_bar=False)
    return found.params, found.privacy


def _centre(x, y):
    found = ndp.PrivateCentre(row_norm=3.0, noise_multiplier=2.0, secure=False)
    centred = found.run(jax.random.key(0), x)
    return centred.shift, centred.privacy


def _estimator(x, y):
    found = ndp.OutputPerturbation(logistic, row_norm=3.0, noise_multiplier=2.0, secure=False)
    result = found.run(jax.random.key(0), x, y)
    return result.params, result.privacy


BUDGET = ndp.Budget(8.0, 1e-4)
FRONTS = {
    "mini-batches": _mcmc(ndp.DPSGLD(logistic, **STEPS, batch_size=40)),
    "full batches": _mcmc(ndp.DPSGLD(logistic, **STEPS), num_chains=2),
    "Metropolis": _mcmc(ndp.DPFastMH(logistic, step_size=0.3, lipschitz=2.0, max_move=0.6)),
    "DPNUTS": _mcmc(ndp.DPNUTS(logistic, privacy=BUDGET, allow_unresolved=True), num_warmup=4),
    "DPSVI": _svi,
    "VIPS": _vips,
    "PrivateCentre": _centre,
    "OutputPerturbation": _estimator,
}
CHEAP = ("mini-batches", "PrivateCentre")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in CHEAP else pytest.mark.slow) for n in FRONTS]
)
def test_mapped_records_give_the_bits_of_those_in_memory(name, records):
    found, report = FRONTS[name](*records)
    expected, of_copies = FRONTS[name](*map(np.array, records))
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    assert "read from mapped files" in report.full()
    assert "mapped files" not in of_copies.full()
    assert report.epsilon == of_copies.epsilon


def _changed_now(path, how):
    if how == "touched":
        stat = os.stat(path)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    elif how == "replaced":
        other = path.with_suffix(".new")
        other.write_bytes(path.read_bytes())
        stat = os.stat(path)
        os.utime(other, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        other.replace(path)
    else:
        path.unlink()


@pytest.fixture
def changing(monkeypatch):
    """Change a file in one way as soon as a run is charged."""

    def arranged(path, how):
        charge = ndp.Accountant.charge

        def charged(self, *args, **kwargs):
            charge(self, *args, **kwargs)
            _changed_now(path, how)

        monkeypatch.setattr(ndp.Accountant, "charge", charged)

    return arranged


@pytest.mark.parametrize("how", ["touched", "replaced", "removed"])
def test_a_file_that_changes_within_a_run_ends_it_after_the_charge(records, changing, how):
    accountant = ndp.Accountant()
    centre = ndp.PrivateCentre(row_norm=3.0, noise_multiplier=2.0, accountant=accountant)
    changing(Path(records[0].filename), how)
    with pytest.raises(RuntimeError) as error:
        centre.run(jax.random.key(0), records[0])
    assert str(error.value) == _arrays.CHANGED
    assert error.value.__cause__ is None
    assert error.value.__context__ is None
    assert "was charged before, and stays so" in error.value.__notes__[0]
    assert len(accountant.entries) == 1


@pytest.mark.parametrize("name", ["sampler", pytest.param("release", marks=pytest.mark.slow)])
def test_of_a_run_on_a_file_that_changed_nothing_is_given_out(records, changing, name):
    kernel = ndp.DPSGLD(logistic, **STEPS, batch_size=40)
    if name == "release":
        kernel = ndp.DPNUTS(logistic, privacy=BUDGET, allow_unresolved=True)
    mcmc = ndp.MCMC(kernel, **COUNTS)
    changing(Path(records[1].filename), "touched")
    with pytest.raises(RuntimeError, match="its result would be of no one set of records"):
        mcmc.run(jax.random.key(0), *records)
    assert mcmc._states is None
    assert mcmc.last_state is None
    if name == "release":
        with pytest.raises(RuntimeError, match="nothing was released"):
            mcmc.released  # noqa: B018


def test_a_file_that_is_gone_is_refused_before_the_charge(records):
    accountant = ndp.Accountant()
    centre = ndp.PrivateCentre(row_norm=3.0, noise_multiplier=2.0, accountant=accountant)
    Path(records[0].filename).unlink()
    with pytest.raises(ValueError, match="is gone") as error:
        centre.run(jax.random.key(0), records[0])
    assert error.value.__context__ is None
    assert not accountant.entries


def test_an_account_of_before_knows_no_mapped_file():
    account = ndp.PrivateCentre(row_norm=3.0, noise_multiplier=2.0)._account
    account.__dict__.pop("mapped", None)
    assert pickle.loads(pickle.dumps(account)).mapped is False


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mini", "full", "nuts", "metropolis_full", "vips"])
def test_a_mapped_file_takes_no_memory_of_its_size(kind, tmp_path_factory):
    """Peak anonymous memory over what was there before, beside a file of a tenth of 400 MB."""
    if not Path("/proc/self/status").exists():
        pytest.skip("anonymous memory is read from /proc")
    folder = tmp_path_factory.getbasetemp()
    ask = partial(subprocess.run, check=True, capture_output=True, text=True, cwd=ROOT)
    peak, released = {}, {}
    for case in (("mapped", "40"), ("mapped", "400"), ("copied", "400")):
        command = [sys.executable, "-m", "tests.scale.memory", kind, *case, str(folder)]
        row = json.loads(ask(command).stdout.splitlines()[-1])
        peak[case] = row["anonymous_peak_mb"] - row["anonymous_before_mb"]
        released[case] = row["released"]
    small, mapped, copied = peak
    assert released[mapped] == released[copied]
    # Few moves of a Metropolis chain are accepted: perhaps none, of few records and of many.
    assert kind == "metropolis_full" or released[mapped] != released[small]
    # The compiler alone takes 200 to 400 MB.
    assert peak[mapped] < peak[small] + 120, peak
    # The measure sees what it is meant to see.
    assert peak[copied] > peak[mapped] + 100, peak


def test_an_array_store_is_refused_with_the_lines_that_convert_it(tmp_path, monkeypatch):
    h5py = pytest.importorskip("h5py")
    given = np.arange(50.0).reshape(25, 2)
    with h5py.File(tmp_path / "x.h5", "w") as store:
        x = store.create_dataset("x", data=given)
        with pytest.raises(ndp.UnsupportedModelError, match="`x` is a Dataset") as error:
            read_arguments(normal_mean, (x,), {})
        said = str(error.value)
        lines = [line for line in said.split("`") if line.startswith(("out", "np.load"))]
        assert len(lines) == 3
        # As they stand there.
        names = {"np": np, "x": x}
        monkeypatch.chdir(tmp_path)
        exec(lines[0], names)
        for i in range(0, len(x), 10):
            exec(lines[1], {**names, "some": slice(i, i + 10)})
        taken = eval(lines[2], names)
    np.testing.assert_array_equal(taken, given.astype(np.float32))
    layout, arrays = read_arguments(normal_mean, (taken,), {})
    assert address(as_records(layout, arrays)[0]) == taken.ctypes.data


class Table:
    """What a table of columns offers, as pyarrow's do."""

    columns = ()


class Frame(Table):
    """What one of pandas or polars does."""

    shape = (3, 1)

    def __getitem__(self, name):
        raise AssertionError("it was read")

    def to_numpy(self):
        raise AssertionError("it was read")


@pytest.mark.parametrize(
    ("table", "remedy"),
    [
        (Table(), "its columns' `.to_numpy()`"),
        (Frame(), "`{c: x[c].to_numpy() for c in x.columns}`, by name"),
    ],
)
def test_a_table_is_refused_with_the_call_that_makes_an_array_of_it(table, remedy):
    with pytest.raises(ndp.UnsupportedModelError) as error:
        read_arguments(normal_mean, (table,), {})
    assert str(error.value).endswith(remedy)


def test_a_mapped_arrow_column_is_copied_and_its_conversion_is_not(tmp_path):
    """As the how-to converts it."""
    pyarrow = pytest.importorskip("pyarrow")
    given = np.arange(4_000, dtype=np.float32).reshape(-1, 4)
    lists = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(given.ravel()), 4)
    path = str(tmp_path / "records.arrow")
    with pyarrow.ipc.new_file(path, pyarrow.schema([("x", lists.type)])) as file:
        file.write_table(pyarrow.table({"x": lists}), max_chunksize=300)
    batches = pyarrow.ipc.open_file(pyarrow.memory_map(path))
    x = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, given.shape)
    first = 0
    for number in range(batches.num_record_batches):
        rows = batches.get_batch(number).column("x").flatten().to_numpy().reshape(-1, x.shape[1])
        assert not rows.flags.owndata
        assert _arrays.mapped_path(rows) is None
        x[first : first + len(rows)] = rows
        first += len(rows)
    np.testing.assert_array_equal(x, given)
    layout, arrays = read_arguments(normal_mean, (rows,), {})
    np.testing.assert_array_equal(as_records(layout, arrays)[0], given[-len(rows) :])
    assert address(_arrays.as_jax(x, np.float32)) == x.ctypes.data
