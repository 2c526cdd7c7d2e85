"""The ledger from the shell: readable, read-only, and honest in its exit code."""

import json
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
import tomllib
import unicodedata
from pathlib import Path

import pytest

import numpyro_dp
from numpyro_dp.accounting import Accountant, Budget
from numpyro_dp.accounting.curve import privacy_curve
from numpyro_dp.accounting.events import (
    ComposedDpEvent,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
    TotalVariation,
    from_json,
)
from numpyro_dp.accounting.ledger.file import FileLedger
from numpyro_dp.cli import main, words
from numpyro_dp.errors import LedgerError
from tests.accounting.ledger import old_ledger

ROOT = Path(__file__).parents[1]
PACKAGE = Path(numpyro_dp.__file__).parent
BUDGET = Budget(1.0, 1e-5)
RUN = ComposedDpEvent(
    [
        SelfComposedDpEvent(PoissonSampledDpEvent(0.01, GaussianDpEvent(4.0)), 1000),
        TotalVariation(1e-10),
    ]
)


@pytest.fixture
def path(tmp_path):
    accountant = Accountant(BUDGET, path=tmp_path / "study.ledger")
    accountant.charge(GaussianDpEvent(8.0), label="a first look at the mean of the survey")
    accountant.charge(RUN, label="DPSGLD")
    return accountant.path


@pytest.fixture
def short(tmp_path):
    """Whatever is written to it, its totals are those of Gaussians, quickly known."""
    accountant = Accountant(BUDGET, path=tmp_path / "short.ledger")
    accountant.charge(GaussianDpEvent(8.0), label="a first look at the mean of the survey")
    return accountant.path


@pytest.fixture
def call(capsys):
    def run(*words):
        code = main([str(word) for word in words])
        return code, capsys.readouterr()

    return run


def columns(line):
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in line)
    return len(line) + wide - sum(unicodedata.combining(c) > 0 for c in line)


def test_show_fits_a_terminal_and_holds_every_charge(path, call):
    code, shown = call("ledger", "show", path)
    assert code == 0
    assert shown.err == ""
    lines = shown.out.splitlines()
    assert max(map(columns, lines)) <= 80
    total = Accountant(path=path).epsilon()
    spent = next(line for line in lines if line.startswith("charged"))
    assert total <= float(spent.split("ε = ")[1].split()[0]) <= total * 1.001
    for part in (
        "ε = 1 at δ = 1e-05",
        "a first look at the",
        "DPSGLD: 1000 ×",
        "left",
        "zero-out",
    ):
        assert part in shown.out


def test_show_states_the_total_under_every_delta(path, call):
    _, shown = call("ledger", "show", path)
    words = " ".join(shown.out.split())
    entries = [entry.event for entry in Accountant(path=path).entries]
    curve = privacy_curve(ComposedDpEvent(entries))
    for delta in (1e-4, 1e-6, 1e-9):
        stated = float(words.split(f" at {delta:.0e}")[0].split()[-1])
        assert curve.epsilon(delta) <= stated <= 1.002 * curve.epsilon(delta)


def test_the_ten_words_are_told_where_only_the_package_is(call):
    code, shown = call("words")
    assert code == 0
    names = re.findall(r"^\*\*(\w+)", shown.out, re.MULTILINE)
    assert " ".join(names[:10]) == "Record Unit ε δ Release Charge Ledger Clip Noise Relation"
    # What forecasts and diagnostics say beside these.
    assert " ".join(names[10:]) == "Score Information Round κ Verdict"
    assert "](" not in shown.out
    # And those of notes, each of which some note or refusal uses.
    # Of the package that is tested, which need not be the checkout's.
    said = " ".join(path.read_text("utf-8") for path in PACKAGE.rglob("*.py"))
    heads = re.findall(r"^- (\*.*?\*):", shown.out, re.MULTILINE)
    told = [word for head in heads for word in re.findall(r"\*(.+?)\*", head)]
    assert {"arrived", "heard", "told of", "level", "rounds disagree"} <= {*told}
    assert not [word for word in told if word not in said]
    # A wheel has no documentation: the page is put into it, where the command looks first.
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]
    (page, place), *_ = wheel["targets"]["wheel"]["force-include"].items()
    assert (ROOT / page).read_text("utf-8").startswith("# Ten words")
    assert place == f"numpyro_dp/cli/{words._PAGE}"


def test_labels_cannot_steer_the_terminal(short, call):
    # Accountants refuse such a label; whoever writes to the file need not be one.
    label = "\x1b[2Jgone\r\nledger ok"
    FileLedger(short, None, "zero_out").append(label, GaussianDpEvent(50.0), None, lambda _: True)
    _, shown = call("ledger", "show", short)
    assert "\x1b" not in shown.out
    assert "\r" not in shown.out
    assert "\\x1b[2Jgone" in shown.out


def test_an_empty_ledger_is_shown(tmp_path, call):
    Accountant(path=tmp_path / "empty.ledger")
    code, shown = call("ledger", "show", tmp_path / "empty.ledger")
    assert code == 0
    assert "nothing was charged" in shown.out


def test_verify_passes_an_honest_ledger(path, call):
    code, found = call("ledger", "verify", path)
    assert (code, found.err) == (0, "")
    assert "nothing is wrong" in found.out


def test_verify_finds_an_overspent_budget(short, call):
    # As a defective accountant might have done: admitted without a test.
    FileLedger(short, None, "zero_out").append("slipped in", GaussianDpEvent(1.0), None, bool)
    code, found = call("ledger", "verify", short)
    assert code == 1
    assert "overspent" in found.out
    assert call("ledger", "show", short)[0] == 0


def test_verify_fails_a_budget_that_holds_only_on_a_condition(tmp_path, call):
    accountant = Accountant(BUDGET, path=tmp_path / "c.ledger", allow_conditional=True)
    accountant.charge(GaussianDpEvent(8.0), label="draw", condition="the draw is exact")
    code, found = call("ledger", "verify", accountant.path)
    assert code == 1
    assert "the draw is exact" in found.out
    _, exported = call("ledger", "export", "--json", accountant.path)
    assert json.loads(exported.out)["epsilon"] == "inf"


def test_verify_finds_a_release_without_statement(tmp_path, call):
    accountant = Accountant(relation="replace_one", path=tmp_path / "r.ledger")
    nested = PoissonSampledDpEvent(0.1, TotalVariation(1e-9))
    FileLedger(accountant.path, None, "zero_out").append("odd", nested, None, lambda _: True)
    code, found = call("ledger", "verify", accountant.path)
    assert code == 1
    assert "no privacy statement" in " ".join(found.out.split())
    code, shown = call("ledger", "show", accountant.path)
    assert code == 0
    assert "ε = ∞" in shown.out


def test_export_can_be_recomputed_by_a_stranger(path, call):
    code, exported = call("ledger", "export", "--json", path)
    tree = json.loads(exported.out)
    assert code == 0
    events = [from_json(json.dumps(entry["event"])) for entry in tree["entries"]]
    curve = privacy_curve(ComposedDpEvent(events), tree["relation"])
    assert curve.epsilon(tree["delta"]) == tree["epsilon_as_one_list"] <= tree["epsilon"]
    assert tree["epsilon"] <= tree["budget"]["epsilon"]
    assert [entry["label"] for entry in tree["entries"]][1] == "DPSGLD"
    assert 0 < tree["left"] < 1


@pytest.mark.parametrize("command", [["show"], ["verify"], ["export", "--json"]], ids=str)
@pytest.mark.parametrize("damage", ["missing", "foreign", "folder", "changed", "cut"])
def test_what_is_no_sound_ledger_is_refused_untouched(path, tmp_path, call, command, damage):
    target = path
    if damage == "missing":
        target = tmp_path / "absent.ledger"
    elif damage == "foreign":
        target = tmp_path / "notes.txt"
        target.write_text("not a ledger, " * 50)
    elif damage == "folder":
        target = tmp_path
    elif damage == "changed":
        with sqlite3.connect(path) as connection:
            connection.execute("UPDATE entries SET body = replace(body, '8.0', '9.0')")
        connection.close()
    else:
        path.write_bytes(path.read_bytes()[:3000])
    before = target.read_bytes() if target.is_file() else None
    code, told = call("ledger", *command, target)
    assert code == 2
    assert told.out == ""
    assert told.err.startswith("error: ")
    assert (target.read_bytes() if target.is_file() else None) == before


def test_reading_works_while_another_writes_and_changes_nothing(path, call):
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("INSERT INTO entries VALUES (3, 'half', 'written')")
    before = path.read_bytes()
    code, shown = call("ledger", "show", path)
    assert code == 0
    assert "half" not in shown.out
    assert path.read_bytes() == before
    writer.execute("ROLLBACK")
    writer.close()
    assert len(Accountant(path=path).entries) == 2


@pytest.fixture
def locked(path, call):
    """The same ledger in a folder in which nothing can be made, as seen by its reader."""
    call("ledger", "show", path)  # What is imported late is out of that reader's reach.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / path.name).write_bytes(path.read_bytes())
        (folder / path.name).chmod(0o444)
        folder.chmod(0o555)
        own = os.geteuid()
        if own == 0:
            # Nothing is forbidden to the superuser.
            os.seteuid(65534)
        yield folder / path.name
        os.seteuid(own)
        folder.chmod(0o755)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs the permissions of POSIX")
def test_an_idle_ledger_is_read_where_nothing_can_be_written(path, locked, call):
    with pytest.raises(PermissionError):
        (locked.parent / "probe").touch()
    code, shown = call("ledger", "show", locked)
    assert (code, shown.err) == (0, "")
    assert "DPSGLD: 1000 ×" in shown.out
    assert call("ledger", "verify", locked)[0] == 0
    with pytest.raises(LedgerError, match="could not be used"):
        Accountant(path=locked).charge(GaussianDpEvent(100.0), label="one more")


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs the permissions of POSIX")
def test_a_log_that_cannot_be_followed_is_not_ignored(locked, call):
    reader = os.geteuid()
    os.seteuid(os.getuid())
    locked.parent.chmod(0o755)
    # A writer's log without its index: charges may stand in it that the file does not hold.
    locked.with_name(f"{locked.name}-wal").write_bytes(b"\0" * 64)
    locked.parent.chmod(0o555)
    os.seteuid(reader)
    code, told = call("ledger", "show", locked)
    assert (code, told.out) == (2, "")
    assert "its folder must be writable" in told.err


def test_what_changes_under_an_unlocked_reading_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "old.ledger"
    old_ledger.write(path, [GaussianDpEvent(8.0)] * 2).close()
    monkeypatch.setattr(os, "access", lambda *words, **options: False)
    ledger = FileLedger(path, None, "zero_out")
    with pytest.raises(LedgerError, match="while it was read"), ledger._reading():
        os.utime(path)
    assert len(ledger.read().entries) == 2


@pytest.mark.parametrize("words", [[], ["ledger"], ["ledger", "spend", "x"], ["ledger", "export"]])
def test_what_is_not_understood_exits_with_two(words, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2
    assert "usage" in capsys.readouterr().err


def test_the_shell_sees_text_and_exit_code_without_loading_jax(path):
    code = "import sys, runpy; sys.argv[1:] = sys.argv[1:]\n"
    code += "try: runpy.run_module('numpyro_dp', run_name='__main__')\n"
    code += "except SystemExit as stop: assert 'jax' not in sys.modules; raise"
    command = [sys.executable, "-c", code, "ledger", "verify", str(path)]
    environment = {"PYTHONIOENCODING": "ascii", "PATH": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert "nothing is wrong" in done.stdout


def test_a_reader_who_has_had_enough_gets_no_traceback():
    command = [sys.executable, "-m", "numpyro_dp", "words"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as process:
        process.stdout.close()
        said = process.stderr.read()
    assert (process.returncode, said) == (0, b"")


def test_every_report_says_where_its_words_are(path, call):
    ledger = Accountant(path=path)
    shown = call("ledger", "show", path)[1].out, str(ledger.report()), ledger.report()._repr_html_()
    assert all("numpyro_dp words" in text for text in shown)
