"""The reproduction of private regressions runs in its small mode, within its budget."""

import importlib.util
import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
_SCRIPT = Path(__file__).parents[3] / "examples" / "reproduce" / "vips_regression.py"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(_SCRIPT.parent)
    spec = importlib.util.spec_from_file_location("vips_regression", _SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_small_modes(data_folder, capsys, script):
    folder = str(data_folder)
    script.main([folder, "--small", "--data", "adult14", "--epsilon", "1"])
    script.main([folder, "--small", "--coverage", "--epsilon", "1"])
    scored, covered = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert max(scored["spent"], covered["spent"]) <= 1.0
    # 611 test rows: a coin's AUC is .5 with a standard error of .027.
    assert scored["auc"] > 0.7
    assert covered["covered"] > 0.5
    assert covered["width"] > 1.0


def test_small_modes_of_other_data(data_folder, capsys, script):
    names = ["abalone", "readmitted_any"]
    script.main([str(data_folder), "--small", "--data", *names, "--epsilon", "8"])
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [point["data"] for point in found] == names
    assert all(point["spent"] <= 8.0 for point in found)
    assert all(0 < point["log_loss"] < 10 for point in found)
    # 53 test rows: a coin's AUC is .5 with a standard error of .08.
    assert found[0]["auc"] > 0.7
