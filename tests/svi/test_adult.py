"""The reproduction on Adult runs, and its small mode learns something at every ε."""

import importlib.util
import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
_SCRIPT = Path(__file__).parents[2] / "examples" / "reproduce" / "vips.py"


def points(folder, capsys, monkeypatch, *options):
    """What the script prints in its small mode."""
    monkeypatch.syspath_prepend(_SCRIPT.parent)
    spec = importlib.util.spec_from_file_location("vips", _SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    script.main([str(folder), "--small", *options])
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_small_mode_beats_the_majority_within_its_ledger(data_folder, capsys, monkeypatch):
    guides = ["delta", "normal"]
    found = points(data_folder, capsys, monkeypatch, "--epsilon", "1", "--guide", *guides)
    assert [point["guide"] for point in found] == guides
    for point in found:
        # 1,018 test rows: a coin's AUC is .5 with a standard error of .02.
        assert point["spent"] <= 1.0
        assert point["auc"] > 0.75


def test_small_modes_of_other_tasks_stay_within_their_ledger(data_folder, capsys, monkeypatch):
    tasks = ["abalone", "readmitted_any"]
    found = points(data_folder, capsys, monkeypatch, "--epsilon", "8", "--task", *tasks)
    assert [point["task"] for point in found] == tasks
    for point in found:
        assert point["spent"] <= 8.0
        assert 0 < point["log_loss"] < 10
    # 53 test rows: a coin's AUC is .5 with a standard error of .08.
    assert found[0]["auc"] > 0.7


def test_other_tasks_have_the_columns_that_are_said(data_folder, monkeypatch):
    monkeypatch.syspath_prepend(_SCRIPT.parent)
    from regression_data import TASKS

    shapes = {name: TASKS[name](data_folder).x.shape for name in ("adult14", "abalone")}
    assert shapes == {"adult14": (39073, 15), "abalone": (3341, 9)}
    task = TASKS["readmitted_30"](data_folder)
    assert task.x.shape == (55978, 245)
    assert task.x.min() >= 0
    assert task.x.max() <= 1
    assert (task.x[:, -1] == 1).all()
    assert 0.08 < task.y.mean() < 0.1
