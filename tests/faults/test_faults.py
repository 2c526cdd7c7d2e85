"""What a fault may cost: never a charge that was made, never half a file, never in silence."""

import gc
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import jax
import numpy as np
import pytest

import numpyro_dp as ndp
from numpyro_dp._whole_file import write_whole
from numpyro_dp.accounting.events import GaussianDpEvent
from numpyro_dp.accounting.ledger import book, file
from numpyro_dp.diagnostics import missing
from numpyro_dp.errors import LedgerError

ROOT = Path(__file__).parents[2]
BUDGET = ndp.Budget(1.0, 1e-5)
EVENT = GaussianDpEvent(30.0)
posix = pytest.mark.skipif(os.name != "posix", reason="needs fork and limits")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "study.ledger"


def script(module, *arguments):
    """The last line that a module of these tests printed, as JSON."""
    command = [sys.executable, "-m", f"tests.faults{module}", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@posix
def test_ten_kills_lose_nothing():
    made = script("", "--kills", 10)
    assert made["kills"] >= 10
    assert len(made) == 8


@posix
@pytest.mark.slow
def test_three_hundred_kills_lose_nothing():
    made = script("", "--kills", 300, "--seed", 1)
    assert made["kills"] >= 300
    assert made["while_running"] >= 5


BREAKING = {
    "while_charging": "kills.Accountant.charge = lambda *_, **__: time.sleep(0.001)",
    "while_saving": """
def by_half(path, content):
    path.write_bytes(content[:1000])
    time.sleep(0.05)
    path.write_bytes(content)
kills.write_whole = by_half
""",
}


@posix
@pytest.mark.slow
@pytest.mark.parametrize("kind", BREAKING)
def test_kills_find_a_charge_that_is_not_made_and_a_file_left_by_half(kind, tmp_path):
    lines = (
        "import pathlib, random, sys, time",
        "from tests.faults import kills",
        BREAKING[kind],
        f"kills.{kind}(pathlib.Path(sys.argv[1]), random.Random(0), 16)",
    )
    command = [sys.executable, "-c", "\n".join(lines), str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode
    assert re.search("AssertionError|JSONDecodeError", done.stderr)


@pytest.fixture
def full_disk():
    """Switch on and off that no file may grow past a size, as on a full disk."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield lambda size: resource.setrlimit(
        resource.RLIMIT_FSIZE, (before[0] if size is None else size, before[1])
    )
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, ignored)


def charge_until_refused(accountant):
    for _ in range(30):
        accountant.charge(GaussianDpEvent(1e5), label="a label of some length " * 8)


def test_a_charge_on_a_full_disk_is_refused_and_the_ledger_stays_whole(path, full_disk):
    accountant = ndp.Accountant(BUDGET, path=path)
    for _ in range(3):
        accountant.charge(EVENT, label="before")
    size = path.stat().st_size
    # From no room for the journal to nearly enough for all.
    for room in (0, 100, size // 2, size):
        full_disk(room)
        with pytest.raises(LedgerError, match="release nothing"):
            charge_until_refused(accountant)
        full_disk(None)
        held = [entry.label for entry in ndp.Accountant(path=path).entries]
        assert held[:3] == ["before"] * 3
        assert len(held) == len(accountant.entries)
        path.with_name(f"{path.name}-journal").unlink(missing_ok=True)
    accountant.charge(EVENT, label="after")
    assert accountant.entries[-1].label == "after"


def test_a_ledger_that_does_not_fit_is_not_made_by_half(path, full_disk):
    full_disk(5_000)
    with pytest.raises(LedgerError):
        ndp.Accountant(BUDGET, path=path)
    full_disk(None)
    assert list(path.parent.iterdir()) == []
    ndp.Accountant(BUDGET, path=path).charge(EVENT, label="one")


def test_a_file_that_cannot_be_saved_leaves_the_old_one(tmp_path, full_disk):
    saved = tmp_path / "released.pkl"
    write_whole(saved, b"old" * 1_000)
    full_disk(50_000)
    with pytest.raises(OSError, match="too large"):
        write_whole(saved, b"new" * 100_000)
    full_disk(None)
    assert saved.read_bytes() == b"old" * 1_000
    assert [each.name for each in tmp_path.iterdir()] == [saved.name]


def test_a_read_only_ledger_is_read_and_refuses_charges(path, monkeypatch):
    ndp.Accountant(BUDGET, path=path).charge(EVENT, label="one")
    connect = sqlite3.connect
    # As for a user without the right: permissions do not hold a test that is run by root.
    monkeypatch.setattr(
        sqlite3, "connect", lambda at, **rest: connect(at.replace("mode=rw", "mode=ro"), **rest)
    )
    accountant = ndp.Accountant(path=path)
    assert accountant.epsilon() > 0
    with pytest.raises(LedgerError, match=r"readonly.*release nothing"):
        accountant.charge(EVENT, label="two")
    assert len(accountant.entries) == 1


def test_a_lock_that_is_never_let_go_ends_in_an_error_without_a_charge(path, monkeypatch):
    accountant = ndp.Accountant(BUDGET, path=path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    monkeypatch.setattr(file, "_BUSY_SECONDS", 0.02)
    with pytest.raises(LedgerError, match=r"locked.*release nothing"):
        accountant.charge(EVENT, label="one")
    other.execute("ROLLBACK")
    other.close()
    accountant.charge(EVENT, label="one")
    assert len(accountant.entries) == 1


@pytest.mark.parametrize("left", [b"", b"\0" * 512, b"pid 4711 on another-host\n" * 30])
def test_what_another_machine_left_beside_the_ledger_changes_nothing(path, left):
    accountant = ndp.Accountant(BUDGET, path=path)
    accountant.charge(EVENT, label="one")
    for ending in ("-journal", ".lock"):
        path.with_name(path.name + ending).write_bytes(left)
    accountant.charge(EVENT, label="two")
    assert [entry.label for entry in ndp.Accountant(path=path).entries] == ["one", "two"]


def test_a_clock_that_was_moved_back_changes_no_order_and_no_epsilon(path, monkeypatch):
    class Back(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime(1999, 1, 1, tzinfo=UTC)

    accountant, other = ndp.Accountant(BUDGET, path=path), ndp.Accountant(BUDGET)
    for number, label in enumerate(("one", "two")):
        accountant.charge(EVENT, label=label)
        other.charge(EVENT, label=label)
        if not number:
            monkeypatch.setattr(book, "datetime", Back)
    assert accountant.entries[0].time > accountant.entries[1].time
    assert [entry.label for entry in ndp.Accountant(path=path).entries] == ["one", "two"]
    assert accountant.epsilon() == other.epsilon()
    assert "two" in str(accountant.report())


def interrupting(number):
    """A tracer that raises KeyboardInterrupt at one line of the ledger's code, and counts them."""
    count = 0

    def trace(frame, event, _):
        nonlocal count
        if "accounting" not in frame.f_code.co_filename:
            return None
        if event == "line" and "ledger" in frame.f_code.co_filename:
            count += 1
            if count == number:
                raise KeyboardInterrupt
        return trace

    return trace


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_at_any_line_of_a_charge_loses_nothing(path):
    accountant = ndp.Accountant(BUDGET, path=path)
    accountant.charge(EVENT, label="first")
    before, lines, lasted = path.read_bytes(), 0, []
    while True:
        lines += 1
        path.write_bytes(before)
        tracer = sys.gettrace()
        sys.settrace(interrupting(lines))
        try:
            accountant.charge(EVENT, label="interrupted")
            break
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(tracer)
        # At the one line that lets go of the lock among threads this thread keeps it and may go on.
        while file._ONE_AT_A_TIME._is_owned():
            file._ONE_AT_A_TIME.release()
        lasted.append(len(accountant.entries) - 1)
        assert [each.name for each in path.parent.iterdir()] == [path.name]
    # A file that was only read may be left to the collector: here, not in whatever test comes next.
    gc.collect()
    assert lines > 100
    # Until it is committed nothing is charged, from then on everything is.
    assert lasted == sorted(lasted)
    assert set(lasted) == {0, 1}
    assert len(accountant.entries) == 2


@pytest.fixture
def income():
    return np.where(np.arange(100) % 10 == 0, np.nan, 1.0).astype(np.float32)


@pytest.mark.parametrize(
    "fault",
    [
        KeyboardInterrupt(),
        MemoryError(),
        jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 bytes."),
    ],
    ids=lambda fault: type(fault).__name__,
)
def test_a_run_that_fails_inside_says_what_it_spent(fault, path, income, monkeypatch):
    accountant = ndp.Accountant(ndp.Budget(8.0, 1e-5), path=path)
    count = {"noise_multiplier": 5.0, "accountant": accountant}

    def fail(*_):
        raise fault

    with monkeypatch.context() as patch:
        patch.setattr(missing, "_centred_count", fail)
        with pytest.raises(type(fault)) as told:
            ndp.count_missing(jax.random.key(0), income, **count)
    (note,) = told.value.__notes__
    epsilon = accountant.epsilon()
    assert f"ε={epsilon:.3g}"[:5] in note
    assert "at δ=1e-05 (zero_out)" in note
    assert str(path) in note
    assert len(ndp.Accountant(path=path).entries) == 1
    again = ndp.count_missing(jax.random.key(0), income, **count)
    assert accountant.epsilon() > max(epsilon, again.privacy.epsilon)


def test_what_fails_before_the_charge_has_no_note(path, income):
    accountant = ndp.Accountant(ndp.Budget(0.01, 1e-5), path=path)
    with pytest.raises(ndp.BudgetExceededError) as told:
        ndp.count_missing(jax.random.key(0), income, noise_multiplier=1.0, accountant=accountant)
    assert not hasattr(told.value, "__notes__")
    assert accountant.entries == ()


@posix
@pytest.mark.slow
def test_forked_and_spawned_processes_charge_the_file_and_no_copy_of_a_budget(path):
    found = script(".processes", path)
    assert found["fork"] == ["charged", "LedgerError"]
    # What has no file cannot be sent to another process.
    assert found["spawn"] == ["charged", "PicklingError"]
    assert found["entries"] == [2, 0]
