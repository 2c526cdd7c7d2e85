"""The sigmoid belief network's reproduction runs in its small mode, within its budget."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "reproduce" / "sbn.py"


@pytest.mark.slow
def test_sbn(data_folder, tmp_path):
    spec = importlib.util.spec_from_file_location("sbn", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    picture = tmp_path / "sbn.png"
    arguments = [str(data_folder), "--small", "--epsilon", "8", "--runs", "1"]
    (found,) = script.main([*arguments, "--picture", str(picture)])
    assert found["epsilon"] <= 8
    assert found["network"] > found["mean image"]
    assert (tmp_path / "sbn-8.png").stat().st_size > 5_000
