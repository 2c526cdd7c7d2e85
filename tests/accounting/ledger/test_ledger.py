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

from numpyro_dp.accounting import Accountant, Budget, privacy_curve
from numpyro_dp.accounting.admission import charged
from numpyro_dp.accounting.events import ComposedDpEvent, GaussianDpEvent
from numpyro_dp.errors import BudgetExceededError, LedgerError
from tests.accounting.ledger import old_ledger

WORKER = Path(__file__).with_name("ledger_worker.py")
BUDGET = Budget(1.0, 1e-5)
# μ = 0.265 fits the budget after a first charge: 28 charges of μ = 1/20.
MOST = 28
UNDOING = (
    "CREATE TRIGGER undo AFTER INSERT ON entries BEGIN DELETE FROM entries WHERE id = new.id; END"
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "study.ledger"


def work(*arguments):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
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


def empty(path):
    path.write_bytes(b"")


def text(path):
    path.write_bytes(b"name,age\nada,36\n")


def noise(path):
    path.write_bytes(os.urandom(5000))


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


def extra_trigger(path):
    filled(path, 1)
    connection = sqlite3.connect(path)
    connection.execute(UNDOING)
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    "spoil",
    [
        empty,
        text,
        noise,
        other_database,
        cut,
        flipped,
        other_format,
        extra_table,
        extra_trigger,
        forgotten,
    ],
    ids=lambda spoil: spoil.__name__,
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
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_copy_of_the_file_is_complete_while_it_is_open(path):
    accountant = Accountant(BUDGET, path=path)
    accountant.charge(GaussianDpEvent(30.0), label="one")
    other = path.with_name("copy.ledger")
    other.write_bytes(path.read_bytes())
    assert Accountant(path=other).entries == accountant.entries


@pytest.mark.parametrize("made", ["CREATE TABLE more (x)", UNDOING, "CREATE VIEW v AS SELECT 1"])
def test_what_is_added_to_an_open_ledger_is_refused_by_every_use(path, made):
    accountant = Accountant(BUDGET, path=path)
    accountant.charge(GaussianDpEvent(30.0), label="one")
    connection = sqlite3.connect(path)
    connection.execute(made)
    connection.commit()
    connection.close()
    before = path.read_bytes()
    for use in (
        lambda: accountant.charge(GaussianDpEvent(30.0), label="two"),
        lambda: accountant.fits(GaussianDpEvent(30.0)),
        accountant.report,
        accountant.epsilon,
    ):
        with pytest.raises(LedgerError, match="tables or triggers that no ledger has"):
            use()
    assert path.read_bytes() == before


def test_a_trigger_for_one_connection_cannot_undo_a_charge(path):
    # A trigger added within a writer's transaction would have to wait for its end.
    accountant = Accountant(BUDGET, path=path)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(UNDOING.replace("CREATE TRIGGER", "CREATE TEMP TRIGGER"))
    accountant.charge(GaussianDpEvent(30.0), label="one")
    assert len(accountant.entries) == 1
    connection.close()


OLD = [GaussianDpEvent(9.0), GaussianDpEvent(9.5)]


def test_a_ledger_of_format_one_is_read_and_its_entries_count_as_one_list(path):
    old_ledger.write(path, OLD).close()
    before = path.read_bytes()
    accountant = Accountant(path=path)
    planned = privacy_curve(ComposedDpEvent(OLD)).epsilon(1e-5)
    assert accountant.epsilon() == planned
    assert (accountant.budget, len(accountant.entries)) == (BUDGET, 2)
    assert "first 2 charges, made under an older rule, were fixed in advance" in str(
        accountant.report()
    )
    assert path.read_bytes() == before


def test_the_first_charge_turns_format_one_into_two(path):
    old_ledger.write(path, OLD).close()
    accountant, other = Accountant(path=path), Accountant(path=path)
    accountant.charge(GaussianDpEvent(12.0), label="new")
    assert int.from_bytes(path.read_bytes()[60:64], "big") == 2
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    first = privacy_curve(ComposedDpEvent(OLD))
    entries = (first, privacy_curve(GaussianDpEvent(12.0)))
    for one in (accountant, other, Accountant(path=path)):
        assert one.epsilon() == charged(entries, BUDGET)
        assert [entry.label for entry in one.entries] == ["old", "old", "new"]
        assert "first 2 charges" in str(one.report())


def test_a_log_that_is_still_open_is_kept_and_nothing_of_it_is_lost(path):
    reader = old_ledger.write(path, OLD)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM entries").fetchall()
    Accountant(path=path).charge(GaussianDpEvent(12.0), label="new")
    reader.execute("COMMIT")
    reader.close()
    accountant = Accountant(path=path)
    assert len(accountant.entries) == 3
    accountant.charge(GaussianDpEvent(100.0), label="newer")
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert len(Accountant(path=path).entries) == 4


def test_an_overspent_ledger_of_format_one_admits_nothing_more(path):
    old_ledger.write(path, [GaussianDpEvent(2.0)]).close()
    accountant = Accountant(path=path)
    assert accountant.epsilon() > BUDGET.epsilon
    assert accountant.remaining() == 0
    with pytest.raises(BudgetExceededError, match="used up"):
        accountant.charge(GaussianDpEvent(1e4), label="new")
