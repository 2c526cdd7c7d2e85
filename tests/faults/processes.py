"""``python -m tests.faults.processes LEDGER``: what forked and spawned ones charge, as JSON."""

import json
import multiprocessing
import sys

from numpyro_dp.accounting import Accountant, Budget
from numpyro_dp.accounting.events import GaussianDpEvent


def charge(accountant, answers):
    try:
        accountant.charge(GaussianDpEvent(30.0), label="child")
        answers.put("charged")
    except Exception as error:
        answers.put(type(error).__name__)


def asked(way, accountant):
    """What a child process that is started ``way`` says of its charge."""
    context = multiprocessing.get_context(way)
    answers = context.Queue()
    child = context.Process(target=charge, args=(accountant, answers))
    try:
        child.start()
    except Exception as error:
        return type(error).__name__
    answer = answers.get()
    child.join()
    return answer


if __name__ == "__main__":
    budget = Budget(1.0, 1e-5)
    shared, own = Accountant(budget, path=sys.argv[1]), Accountant(budget)
    found = {way: [asked(way, shared), asked(way, own)] for way in ("fork", "spawn")}
    print(json.dumps({**found, "entries": [len(shared.entries), len(own.entries)]}))
