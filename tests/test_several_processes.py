"""In one of several processes nothing touches records of its own, and nothing is charged."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import numpyro_dp as ndp
from tests import several_processes

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def outputs():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    both = [
        subprocess.Popen(
            [sys.executable, "-m", several_processes.__name__, address, str(number)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    try:
        ended = [process.communicate(timeout=300) for process in both]
    finally:
        for process in both:
            process.kill()
    assert [process.returncode for process in both] == [0, 0], ended
    return [json.loads(out.splitlines()[-1]) for out, _ in ended]


def test_every_entry_point_refuses_before_any_charge(outputs):
    for output in outputs:
        assert output["charges"] == 0
        for name, answer in output["answers"].items():
            assert answer.startswith("RuntimeError: "), (name, answer)
            if name == "clipping_rate":
                # Of chains that have run, which none could.
                assert "nothing has run yet" in answer
                continue
            assert "one of 2 processes" in answer
            assert "without jax.distributed.initialize()" in answer


class _ChargedError(Exception):
    """In place of a charge."""


@pytest.mark.usefixtures("no_compilation_cache")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in ("MCMC.run", "DPSVI.run") else pytest.mark.slow)
        for name in several_processes.entry_points(None)
    ],
)
def test_the_refusal_is_about_processes_alone(name, monkeypatch):
    """Alone in its process each call comes as far as its charge, or runs if it has none."""

    def stop(*_, **__):
        raise _ChargedError

    monkeypatch.setattr(ndp.Accountant, "charge", stop)
    answer = several_processes.said(several_processes.entry_points(ndp.Accountant())[name])
    last = {
        "clipping_rate": "RuntimeError: nothing has run yet",
        "MCMC.warmup": "accepted",
        "PrivateSum.release": "accepted",
        "audit": "accepted",
    }.get(name, "_ChargedError")
    assert answer.startswith(last), answer
