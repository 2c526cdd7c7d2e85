"""Processes that charge one ledger at once, or are killed while they do.

Run as a script, so that one start of Python serves many forks:
``race PATH COUNT`` forks COUNT processes that charge until refused and prints their charges;
``kill PATH LOG ROUNDS SEED`` forks one process ROUNDS times, which notes every returned charge in
LOG and is killed at a random moment, and prints what the ledger and the log hold.
"""

import os
import random
import signal
import sys
import time

from numpyro_dp.accounting import Accountant
from numpyro_dp.accounting.events import GaussianDpEvent
from numpyro_dp.errors import BudgetExceededError


def spend(path):
    accountant = Accountant(path=path)
    charged = 0
    try:
        while True:
            accountant.charge(GaussianDpEvent(20.0), label=f"process {os.getpid()}")
            charged += 1
    except BudgetExceededError:
        return charged


def race(path, count):
    reading, writing = os.pipe()
    children = []
    for _ in range(count):
        child = os.fork()
        if child == 0:
            os.write(writing, f"{spend(path)}\n".encode())
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    print(*os.read(reading, 4096).decode().split())


def charge_for_ever(path, log):
    accountant = Accountant(path=path)
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    while True:
        accountant.charge(GaussianDpEvent(1e6), label="to be killed")
        os.write(handle, b"x")


def _size(log):
    return os.path.getsize(log) if os.path.exists(log) else 0


def kill(path, log, rounds, seed):
    random.seed(seed)
    for number in range(rounds):
        before = _size(log)
        child = os.fork()
        if child == 0:
            charge_for_ever(path, log)
        # Every other child lives until a charge has returned, however busy the machine is.
        while number % 2 and _size(log) == before:
            time.sleep(0.001)
        time.sleep(random.uniform(0.0, 0.1))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        print(len(Accountant(path=path).entries), _size(log))


if __name__ == "__main__":
    if sys.argv[1] == "race":
        race(sys.argv[2], int(sys.argv[3]))
    else:
        kill(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
