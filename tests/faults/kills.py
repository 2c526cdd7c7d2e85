"""Processes that are killed while they charge, make a ledger, convert one, draw, save or run.

A child is forked before anything imports JAX, does its work until it is killed at a random moment,
and tells of each act only after it has returned. Whatever it told must have lasted; what it did not
tell may have lasted or not; nothing may be there by half.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from numpyro_dp._whole_file import write_whole
from numpyro_dp.accounting import Accountant, Budget
from numpyro_dp.accounting.events import GaussianDpEvent
from numpyro_dp.errors import LedgerError
from tests.accounting.ledger import old_ledger

BUDGET = Budget(1.0, 1e-5)
# Small enough for more charges than any child lives to make.
SMALL = GaussianDpEvent(1e5)
# A child that told nothing for so long, on however busy a machine, is stuck.
_STUCK = 300.0

Tell = Callable[[], None]


def _child(act: Callable[[Tell], None]) -> tuple[int, int]:
    """Fork a process that acts; its number, and where a byte comes for each act that returned."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            act(lambda: os.write(writing, b"x"))
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(writing)
    os.set_blocking(reading, False)
    return child, reading


def _heard(reading: int) -> int:
    """Acts that were told of since the last look."""
    try:
        return len(os.read(reading, 1 << 16))
    except BlockingIOError:
        return 0


def _await(reading: int, most: float) -> int:
    until, told = time.monotonic() + most, 0
    while not told and time.monotonic() < until:
        time.sleep(0.001)
        told = _heard(reading)
    return told


def _kill(child: int, reading: int) -> int:
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "the child failed by itself"
    told = _heard(reading)
    os.close(reading)
    return told


def killed(act: Callable[[Tell], None], rng: random.Random, most: float) -> int:
    """Acts that a child told of before it was killed; every other one lives until its first."""
    child, reading = _child(act)
    told = _await(reading, _STUCK) if rng.random() < 0.5 else 0
    time.sleep(rng.uniform(0.0, most))
    return told + _kill(child, reading)


def charge_for_ever(path: Path) -> Callable[[Tell], None]:
    def act(tell):
        accountant = Accountant(path=path)
        while True:
            accountant.charge(SMALL, label="to be killed")
            tell()

    return act


def while_charging(folder: Path, rng: random.Random, rounds: int) -> None:
    """Every charge that returned is in the ledger; at most one more for each kill."""
    path, told = folder / "charged.ledger", 0
    Accountant(BUDGET, path=path)
    for number in range(1, rounds + 1):
        told += killed(charge_for_ever(path), rng, 0.05)
        accountant = Accountant(path=path)
        held = len(accountant.entries)
        assert told <= held <= told + number, (told, held)
        assert accountant.epsilon() <= BUDGET.epsilon
        assert accountant.budget == BUDGET
    assert told or rounds < 3


def while_drawing(folder: Path, rng: random.Random, rounds: int) -> None:
    """No part of a plan is drawn twice, and every draw that returned is in the ledger."""
    for number in range(rounds):
        path = folder / f"plan{number}.ledger"
        parts = [GaussianDpEvent(100.0 + k) for k in range(6)]
        plan = Accountant(BUDGET, path=path).plan(parts, label="looks")

        def act(tell, plan=plan, parts=parts):
            for part in parts:
                plan.charge(part, label="look")
                tell()

        told = killed(act, rng, 0.05)
        (left,) = Accountant(path=path).plans
        unused = [part for part in parts if left.fits(part)]
        assert told <= len(parts) - len(unused) <= told + 1
        # In turn, so that what is left are the last ones.
        assert unused == parts[len(parts) - len(unused) :]


def while_making(folder: Path, rng: random.Random, rounds: int) -> None:
    """A ledger is there with its budget, or not there."""
    for number in range(rounds):
        path = folder / f"made{number}.ledger"

        def act(tell, path=path):
            Accountant(BUDGET, path=path)
            tell()
            time.sleep(_STUCK)

        told = killed(act, rng, 0.01)
        assert path.exists() >= bool(told)
        # Another process goes on where this one ended.
        Accountant(BUDGET, path=path).charge(SMALL, label="next")
        assert Accountant(path=path).budget == BUDGET
        assert len(Accountant(path=path).entries) == 1


def while_converting(folder: Path, rng: random.Random, rounds: int) -> None:
    """What a ledger of format 1 held is there, whether or not the first new charge is."""
    old = [GaussianDpEvent(90.0), GaussianDpEvent(95.0)]
    for number in range(rounds):
        path = folder / f"old{number}.ledger"
        old_ledger.write(path, old).close()
        told = killed(charge_for_ever(path), rng, 0.02)
        held = Accountant(path=path).entries
        assert [entry.event for entry in held[:2]] == old
        assert told <= len(held) - 2 <= told + 1


def while_saving(folder: Path, rng: random.Random, rounds: int) -> None:
    """A saved file holds one whole version, no older than the last that was told of."""
    path, told = folder / "saved.bin", 0

    def act(tell):
        for version in range(told, 1 << 30):
            write_whole(path, json.dumps([version] * 100_000).encode())
            tell()

    for number in range(1, rounds + 1):
        told += killed(act, rng, 0.05)
        if told:
            found = json.loads(path.read_bytes())
            assert len(found) == 100_000
            assert found == found[:1] * 100_000
            assert told - number <= found[0] <= told


def while_another_is_stopped(folder: Path, rng: random.Random, rounds: int) -> None:
    """A process that is stopped, lock in hand, loses nothing and lets nobody charge unseen."""
    path, told = folder / "stopped.ledger", 0
    Accountant(BUDGET, path=path)
    for number in range(1, rounds + 1):
        children = [_child(charge_for_ever(path)) for _ in range(2)]
        time.sleep(rng.uniform(0.0, 0.05))
        os.kill(children[0][0], signal.SIGSTOP)
        told += _await(children[1][1], rng.uniform(0.0, 0.1))
        if rng.random() < 0.5:
            os.kill(children[0][0], signal.SIGCONT)
            told += _await(children[0][1], _STUCK)
        told += sum(_kill(*child) for child in children)
        held = len(Accountant(path=path).entries)
        assert told <= held <= told + 2 * number, (told, held)


def while_running(folder: Path, rng: random.Random, rounds: int) -> None:
    """A run of MCMC that printed its draws is in the ledger; so is one that was cut short."""
    path = folder / "runs.ledger"
    Accountant(path=path)
    told = 0
    for number in range(1, rounds + 1):
        command = [sys.executable, "-m", "tests.faults.runs", str(path)]
        child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        lines = [child.stdout.readline() for _ in range(rng.randint(1, 3))]
        time.sleep(rng.uniform(0.0, 0.5))
        child.kill()
        lines += child.communicate()[0].splitlines()
        told += sum(line.strip() == "drawn" for line in lines)
        assert told <= len(Accountant(path=path).entries) <= told + number
    assert told


# What is killed, and of how many hundred kills.
KINDS: dict[Callable[[Path, random.Random, int], None], int] = {
    while_charging: 32,
    while_saving: 18,
    while_drawing: 16,
    while_making: 12,
    while_converting: 10,
    while_another_is_stopped: 10,
    while_running: 2,
}


def kill(kills: int, folder: Path, seed: int) -> dict[str, int]:
    """Some ``kills`` in proportion, at least one of each kind that comes to one.

    :returns: how many of each kind were made; whatever is wrong is raised.
    """
    made = {}
    for kind, share in KINDS.items():
        rounds = round(kills * share / 100)
        if not rounds:
            continue
        place = folder / kind.__name__
        place.mkdir()
        kind(place, random.Random(f"{seed} {kind.__name__}"), rounds)
        # A second process is killed in each of these rounds.
        made[kind.__name__] = rounds * (2 if kind is while_another_is_stopped else 1)
        halves = [path for path in place.iterdir() if ".new-" in path.name]
        for path in halves:
            # A journal goes when the half that it belongs to is opened.
            if path.exists():
                _refused(path)
    return made


def _refused(aside: Path) -> None:
    """What a killed process left aside is never taken for a finished ledger that is empty."""
    # Linked and not yet unlinked, it is the finished ledger itself by its other name.
    if aside.name.startswith("saved") or aside.stat().st_nlink > 1:
        return
    try:
        assert Accountant(path=aside).entries == ()
    except LedgerError:
        return
