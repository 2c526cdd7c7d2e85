"""Several processes make one run: the draws of one, one charge, and ends that leave none."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import numpyro_dp as ndp
from tests.scale import ends

ROOT = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def both(*arguments):
    """Two processes of a program that know each other."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    program, *rest = arguments
    pair = [
        subprocess.Popen(
            [sys.executable, "-m", program, address, str(number), *rest],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    try:
        yield pair
    finally:
        for process in pair:
            process.kill()
            process.communicate()


def said(*arguments, timeout=300):
    """What both print, as JSON, a list for each."""
    with both(*arguments) as pair:
        ended = [process.communicate(timeout=timeout) for process in pair]
    assert [process.returncode for process in pair] == [0, 0], [err[-3_000:] for _, err in ended]
    # Gloo says something of its own.
    return [
        [json.loads(line) for line in out.splitlines() if line.startswith("{")] for out, _ in ended
    ]


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ledgers")
    (first,), (second,) = said("tests.scale.protocol", str(folder))
    return first, second, ndp.Accountant(ndp.Budget(4.0, 1e-5), path=folder / "ledger.db")


def test_a_run_is_charged_once_and_the_same_on_both(answers):
    first, second, ledger = answers
    assert first["run"]["said"] == second["run"]["said"]
    assert np.shape(first["run"]["said"]) == (8, 3)
    # A run and its going on, in the file of the first process and in the memory of the other.
    assert first["run"]["charged"] == second["run"]["charged"] == 2
    assert len(ledger.entries) == 2
    assert first["reproducible"] == second["reproducible"]
    assert (first["bar"]["said"], second["bar"]["said"]) == (True, False)


@pytest.mark.parametrize(
    ("name", "of_first", "of_second"),
    [
        ("budget", "BudgetExceededError: 'DPSGLD' asks", "BudgetExceededError: 'DPSGLD' asks"),
        ("ledger of others", "given up", "belongs to process 0"),
        ("settings", "differ", "differ"),
        ("public", "differ", "differ"),
        ("key", "differ", "differ"),
        ("starts", "differ", "differ"),
        ("one fails", r"by process \[1\]", "UnsupportedModelError"),
        ("records of its own", "not divided among all", "not divided among all"),
        ("devices of its own", "not divided among all", "not divided among all"),
    ],
)
def test_what_not_all_can_do_is_refused_by_all_before_the_charge(
    answers, name, of_first, of_second
):
    for answer, expected in zip(answers, (of_first, of_second), strict=False):
        with pytest.raises(RuntimeError, match=expected):
            raise RuntimeError(answer[name]["said"])
        assert answer[name]["charged"] == 0


def test_processes_that_drift_apart_end(answers):
    for answer in answers[:2]:
        assert "not the same on all processes" in answer["drift"]["said"]
        assert answer["drift"]["charged"] == 1


@pytest.mark.slow
def test_every_algorithm_draws_the_same_in_two_processes():
    first, second = said("tests.scale.together", "2", timeout=1_500)
    alone = subprocess.run(
        [sys.executable, "-m", "tests.scale.together", "", "0", "1"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
        timeout=900,
    )
    known = [json.loads(line) for line in alone.stdout.splitlines()]
    assert len(known) > 20
    for one, other, single in zip(first, second, known, strict=True):
        if single["case"] in ("ObjectivePerturbation", "OutputPerturbation"):
            assert "one of 2 processes" in one["refused"]
            continue
        assert one == other, single["case"]
        # The room of a part has an overflow of its own.
        costs = [
            [re.sub(r"distance=\S+?\)", "", each) for each in row["charged"]]
            for row in (one, single)
        ]
        assert costs[0] == costs[1] != [], single["case"]
        numbers, expected = np.array(one["numbers"]), np.array(single["numbers"])
        # As on several devices: one unit of the lattice in few coordinates.
        assert len(numbers) > 0
        assert np.nanmax(np.abs(numbers - expected) / (1e-3 + np.abs(expected))) < 0.02, single


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kill worker", "kill first", "freeze worker", "crash"])
def test_one_that_ends_ends_all_and_the_charge_stands(how, tmp_path):
    with both("tests.scale.ends", str(tmp_path), how) as pair:
        deadline = time.monotonic() + 120
        ledger = tmp_path / "ledger.db"
        # The charge is in the ledger, and some steps were taken.
        while how != "crash" and not (ledger.exists() and entries(ledger)):
            assert time.monotonic() < deadline
            time.sleep(0.5)
        time.sleep(0 if how == "crash" else 10)
        ending, survivor = pair if how in ("kill first", "crash") else pair[::-1]
        if how != "crash":
            assert [process.poll() for process in pair] == [None, None]
            ending.send_signal(signal.SIGSTOP if how.startswith("freeze") else signal.SIGKILL)
        else:
            ending.wait(timeout=120)
        survivor.communicate(timeout=ends.HEARTBEAT + 10)
        assert survivor.returncode != 0
    assert len(entries(ledger)) == 1
    assert not list(tmp_path.glob("result-*"))


def entries(path):
    return ndp.Accountant(ndp.Budget(4.0, 1e-5), path=path).entries
