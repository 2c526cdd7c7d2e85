"""The DP-Fast MH reproduction runs in its small mode, and every run stays within its budget."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "reproduce" / "dp_fast_mh.py"


@pytest.fixture(scope="module")
def printed(data_folder, tmp_path_factory):
    """What the script prints, a line for each run."""
    out = tmp_path_factory.mktemp("pictures")
    command = [sys.executable, SCRIPT, data_folder, "--small", "--runs", "1", "--out", out]
    finished = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "MPLBACKEND": "agg"},
    )
    assert len(list(out.glob("dp_fast_mh_*.png"))) == 3
    return finished.stdout.splitlines()


def number(pattern, line):
    return float(re.search(pattern, line)[1])


@pytest.mark.slow
def test_every_run_costs_no_more_than_it_may(printed):
    spent = [number(r"ε = ([\d.]+)", line) for line in printed]
    budgets = [0.3, 0.3, 0.6, 0.35, 0.1, 0.5, 1.0] + 3 * [0.1] + 3 * [0.5] + 3 * [1.0]
    assert [e <= b for e, b in zip(spent, budgets, strict=True)] == [True] * len(budgets)
    # The sweep is calibrated to its steps, whatever their number.
    assert all(e > 0.97 * b for e, b in zip(spent[7:], budgets[7:], strict=True))


@pytest.mark.slow
def test_a_larger_chi_buys_power_with_records(printed):
    for sweep in (printed[7:10], printed[10:13], printed[13:]):
        batches = [number(r"mean batch +(\d+)", line) for line in sweep]
        powers = [number(r"power ([\d.]+)", line) for line in sweep]
        assert batches == sorted(batches)
        assert batches[-1] == 12_214
        assert powers == sorted(powers)
        assert 1.3 < powers[-1] / powers[0] <= 2.01
