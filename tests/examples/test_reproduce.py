"""The reproductions run in their small mode, and every private point stays within its budget."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "examples" / "reproduce"


def lines(script, folder, *arguments):
    command = [sys.executable, SCRIPTS / script, *arguments, "--small", "--out", folder]
    finished = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "MPLBACKEND": "agg"},
    )
    return [json.loads(line) for line in finished.stdout.splitlines()]


@pytest.mark.slow
def test_privacy_for_free(tmp_path):
    found = lines("privacy_for_free.py", tmp_path)
    trajectories = [row for row in found if row.get("figure") == "1"]
    assert [row["method"] for row in trajectories] == ["DP-SGLD", "DP-SGHMC", "DP-SGNHT", "DP-SGFS"]
    assert all(9.9 < row["epsilon"] <= 10 for row in trajectories)
    private = [row for row in found if row.get("task") and row["epsilon"] is not None]
    budgets = [0.1] * 7 + [0.5] * 7 + [1.0] * 7 + [5.0] * 7
    assert [row["epsilon"] <= budget for row, budget in zip(private, budgets, strict=True)] == [
        True
    ] * 28
    # At ε = 5 whatever learns at all beats the majority class.
    assert min(row["mean"] for row in private[-7:]) > 0.7
    assert (tmp_path / "privacy_for_free_1.png").stat().st_size > 10_000
    assert (tmp_path / "privacy_for_free_2a.png").stat().st_size > 10_000


@pytest.mark.slow
def test_calibration(tmp_path):
    """One data set of the cheapest cell, appended to a log of its own."""
    log, picture = tmp_path / "log.jsonl", tmp_path / "picture.png"
    options = ["--cells", "logistic-5000", "--methods", "DPNUTS", "VIPS", "--datasets", "2"]
    command = [sys.executable, SCRIPTS / "calibration.py", *options]
    finished = subprocess.run(
        [*map(str, command), "--log", str(log), "--picture", str(picture)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "MPLBACKEND": "agg"},
    )
    found = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(x["method"], x["epsilon"]) for x in found] == [
        ("DPNUTS", 0.5),
        ("DPNUTS", 1.0),
        ("VIPS", 0.5),
        ("VIPS", 1.0),
    ]
    assert "| logistic-5000 | 0.5 | 2 |" in finished.stdout
    assert picture.exists()


@pytest.mark.slow
def test_dpnuts():
    """One run of the regression whose misfit is largest: its report names it."""
    command = [sys.executable, SCRIPTS / "dpnuts.py", "--only", "poisson", "--small"]
    finished = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
    (found,) = map(json.loads, finished.stdout.splitlines())
    assert found["epsilon"] <= 1
    assert any("do not fit the model" in verdict for verdict in found["verdicts"])
