"""The reproduction on Adult runs, and its small mode learns something at every ε."""

import importlib.util
import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
_SCRIPT = Path(__file__).parents[2] / "examples" / "reproduce" / "vips.py"


def test_small_mode_beats_the_majority_within_its_ledger(data_folder, capsys):
    spec = importlib.util.spec_from_file_location("vips", _SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    script.main([str(data_folder), "--small", "--epsilon", "1"])
    (point,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    # 1,018 test rows: a coin's AUC is .5 with a standard error of .02.
    assert point["spent"] <= 1.0
    assert point["auc"] > 0.75
