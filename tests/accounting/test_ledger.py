"""Ledgers: never overspent, never undercharged, never written to when they are not ours."""

import json
import os
import pickle
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from numpyro_dp.accounting import Accountant, Budget
from numpyro_dp.accounting.events import GaussianDpEvent
from numpyro_dp.errors import BudgetExceededError, LedgerError

WORKER = Path(__file__).with_name("ledger_worker.py")
BUDGET = Budget(1.0, 1e-5)
# μ = 0.268 fits the budget: 28 charges of μ = 1/20.
MOST = 28


@pytest.fixture
def path(tmp_path):
    return tmp_path / "study.ledger"


def work(*arguments):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, str(WORKER), *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def spend(accountant):
    charged = 0
    try:
        while True:
            accountant.charge(GaussianDpEvent(20.0), label="thread")
            charged += 1
    except BudgetExceededError:
        return charged


@pytest.mark.parametrize("shared", ["memory", "one object", "two objects"])
def test_threads_never_overspend(shared, path):
    if shared == "memory":
        accountants = [Accountant(BUDGET)] * 2
    else:
        first = Accountant(BUDGET, path=path)
        accountants = [first, first if shared == "one object" else Accountant(path=path)]
    charged = []
    threads = [
        threading.Thread(target=lambda one=one: charged.append(spend(one))) for one in accountants
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(charged) == MOST == len(accountants[0].entries)
    assert accountants[0].epsilon() <= BUDGET.epsilon


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_processes_never_overspend(path):
    accountant = Accountant(BUDGET, path=path)
    charged = [int(count) for count in work("race", path, 8).split()]
    assert len(charged) == 8
    assert sum(charged) == MOST == len(accountant.entries)
    assert accountant.epsilon() <= BUDGET.epsilon


def check_kills(path, rounds, seed):
    Accountant(path=path)
    lines = work("kill", path, path.with_suffix(".log"), rounds, seed).splitlines()
    assert len(lines) == rounds
    for round_number, line in enumerate(lines, start=1):
        held, noted = map(int, line.split())
        # Each kill can hit between the charge and the note: at most one more a round.
        assert noted <= held <= noted + round_number
    assert noted > 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_processes_leave_every_returned_charge(path):
    check_kills(path, 10, seed=1)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_two_hundred_kills(path):
    check_kills(path, 200, seed=2)


def test_entries_are_kept(path):
    first = Accountant(BUDGET, path=path, relation="replace_one")
    first.charge(GaussianDpEvent(30.0), label="mean")
    again = Accountant(path=path)
    assert (again.budget, again.relation, again.path) == (BUDGET, "replace_one", path)
    (entry,) = again.entries
    assert (entry.id, entry.label, entry.event) == (1, "mean", GaussianDpEvent(30.0))
    assert entry.condition is None
    assert "numpyro-dp" in json.loads(entry.versions)
    assert again.epsilon() == first.epsilon() > 0


@pytest.mark.parametrize(
    "terms",
    [
        {"budget": Budget(2.0, 1e-5)},
        {"budget": Budget(1.0, 1e-6)},
        {"budget": BUDGET, "relation": "add_remove"},
        {"budget": None, "relation": "replace_one"},
    ],
    ids=str,
)
def test_other_terms_are_refused(path, terms):
    Accountant(BUDGET, path=path)
    with pytest.raises(LedgerError, match="was created with"):
        Accountant(terms["budget"], path=path, relation=terms.get("relation", "zero_out"))


def test_a_ledger_without_budget_never_gets_one(path):
    Accountant(path=path)
    with pytest.raises(LedgerError, match="was created with"):
        Accountant(BUDGET, path=path)


def other_database(path):
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE patients (name TEXT)")
    connection.commit()
    connection.close()


def filled(path, entries=40):
    accountant = Accountant(Budget(50.0, 1e-5), path=path)
    for _ in range(entries):
        accountant.charge(GaussianDpEvent(30.0), label="a label of some length " * 8)


def cut(path):
    filled(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flipped(path):
    filled(path, 3)
    content = path.read_bytes().replace(b"30.0", b"90.0", 1)
    path.write_bytes(content)


def other_format(path):
    filled(path, 1)
    content = bytearray(path.read_bytes())
    content[60:64] = (99).to_bytes(4, "big")
    path.write_bytes(bytes(content))


def extra_table(path):
    filled(path, 1)
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE more (x)")
    connection.commit()
    connection.close()


def forgotten(path):
    filled(path, 3)
    connection = sqlite3.connect(path)
    connection.execute("DELETE FROM entries WHERE id = 3")
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"name,age\nada,36\n"),
        lambda path: path.write_bytes(os.urandom(5000)),
        other_database,
        cut,
        flipped,
        other_format,
        extra_table,
        forgotten,
    ],
    ids=["empty", "text", "noise", "database", "cut", "flipped", "format", "table", "forgotten"],
)
def test_foreign_and_damaged_files_are_left_untouched(path, spoil):
    spoil(path)
    before = path.read_bytes()
    for arguments in ((), (BUDGET,)):
        with pytest.raises(LedgerError, match=r"ledger"):
            Accountant(*arguments, path=path)
    assert path.read_bytes() == before


def test_a_ledger_spoilt_while_open_is_refused(path):
    accountant = Accountant(BUDGET, path=path)
    flipped_content = b"not a ledger any more"
    path.write_bytes(flipped_content)
    with pytest.raises(LedgerError, match="not a numpyro_dp ledger"):
        accountant.charge(GaussianDpEvent(30.0), label="late")
    assert path.read_bytes() == flipped_content


def test_a_vanished_ledger_is_not_recreated(path):
    accountant = Accountant(BUDGET, path=path)
    pickled = pickle.dumps(accountant)
    path.unlink()
    with pytest.raises(LedgerError, match="cannot be read"):
        accountant.charge(GaussianDpEvent(30.0), label="late")
    with pytest.raises(LedgerError, match="no longer exists"):
        pickle.loads(pickled)
    assert not path.exists()


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(LedgerError, match="does not exist"):
        Accountant(BUDGET, path=tmp_path / "nowhere" / "study.ledger")


def test_nothing_is_left_beside_the_ledger(path):
    Accountant(BUDGET, path=path).charge(GaussianDpEvent(30.0), label="one")
    assert {file.name for file in path.parent.iterdir()} <= {
        path.name,
        f"{path.name}-wal",
        f"{path.name}-shm",
    }
