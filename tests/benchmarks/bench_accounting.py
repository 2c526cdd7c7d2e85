"""What accounting costs: calibrating a run, and composing a thousand different noise levels.

Prints one JSON line a case; nothing is asserted. The baseline of a calibration is one evaluation of
the same run's ε by dp-accounting's own accountant, the two interleaved; that of the grouped noise
levels is their exact composition without grouping.

    taskset -c 0 python tests/benchmarks/bench_accounting.py [calibrate levels]
"""

import json
import sys
import time
from statistics import median

import numpy as np
from dp_accounting import pld

from numpyro_dp.accounting import Budget, calibrate, privacy_curve
from numpyro_dp.accounting.events import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)

BUDGET = Budget(1.0, 1e-5)
STEPS = 10_000
RATES = (1e-3, 1e-2, 1e-1, 1.0)
LEVELS = 1_000
LEVEL_RATE = 1e-2
ROUNDS = 3


def sampled(rate: float, noise: float) -> DpEvent:
    step = GaussianDpEvent(noise)
    return step if rate == 1 else PoissonSampledDpEvent(rate, step)


def their_epsilon(event: DpEvent) -> float:
    """ε by dp-accounting's accountant at its default discretisation."""
    return pld.PLDAccountant().compose(event).get_epsilon(BUDGET.delta)


def timed(call):
    start = time.perf_counter()
    return call(), time.perf_counter() - start


def calibration():
    """Seconds to find the noise of 10,000 steps at ε = 1."""
    for rate in RATES:

        def run(noise: float, rate: float = rate) -> DpEvent:
            return SelfComposedDpEvent(sampled(rate, noise), STEPS)

        taken = {"calibrate": [], "one dp-accounting epsilon": []}
        for number in range(ROUNDS):
            # Another δ each time, so that no curve is found in a cache; the last is BUDGET's own.
            budget = Budget(BUDGET.epsilon, BUDGET.delta * (1 + 0.1 * (ROUNDS - 1 - number)))
            noise, seconds = timed(lambda run=run, budget=budget: calibrate(run, budget))
            taken["calibrate"].append(seconds)
            theirs, seconds = timed(lambda run=run, noise=noise: their_epsilon(run(noise)))
            taken["one dp-accounting epsilon"].append(seconds)
        row = {"case": "calibrate", "steps": STEPS, "sampling_rate": rate}
        row["noise_multiplier"] = round(noise, 4)
        row["epsilon"] = round(privacy_curve(run(noise)).epsilon(BUDGET.delta), 5)
        row["epsilon_dp_accounting"] = round(theirs, 5)
        row["seconds"] = {name: round(median(rounds), 3) for name, rounds in taken.items()}
        print(json.dumps(row), flush=True)


def levels():
    """Seconds and ε of 1,000 steps with as many noise levels, against each level by itself."""
    noises = np.geomspace(1.0, 4.0, LEVELS)
    steps = [PoissonSampledDpEvent(LEVEL_RATE, GaussianDpEvent(float(noise))) for noise in noises]
    event = ComposedDpEvent(steps)
    grouped, own = timed(lambda: privacy_curve(event).epsilon(BUDGET.delta))
    ungrouped, theirs = timed(lambda: their_epsilon(event))
    row = {"case": "levels", "levels": LEVELS, "sampling_rate": LEVEL_RATE}
    row["seconds"] = {"grouped": round(own, 3), "dp-accounting, ungrouped": round(theirs, 3)}
    row["epsilon"] = {"grouped": round(grouped, 6), "ungrouped": round(ungrouped, 6)}
    row["excess"] = round(grouped / ungrouped - 1, 5)
    print(json.dumps(row), flush=True)


CASES = {"calibrate": calibration, "levels": levels}


def main(names):
    for name in names:
        CASES[name]()


if __name__ == "__main__":
    main(sys.argv[1:] or [*CASES])
