"""What the README's example costs: a first call, a further one of it, and one of a new object.

Prints one JSON line a case: CPU and wall seconds, each from a process of its own, beside NumPyro's
NUTS on the same records, the least of some processes in turn. With ``small_loops`` XLA compiles
loops over little into one piece each (docs/troubleshooting.md). Nothing is asserted.

    python -m tests.benchmarks.bench_first_call [processes]
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpyro

import numpyro_dp as ndp

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import quickstart

SMALL_LOOPS = "--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold=20000"
CHAINS = {"num_warmup": 500, "num_samples": 1_000, "num_chains": 4, "progress_bar": False}


def private():
    kernel = ndp.DPNUTS(quickstart.model, privacy=ndp.Budget(1.0, 1e-5))
    return ndp.MCMC(kernel, **CHAINS)


def plain():
    kernel = numpyro.infer.NUTS(quickstart.model)
    return numpyro.infer.MCMC(kernel, chain_method="vectorized", **CHAINS)


def measure(method):
    """Seconds of three calls: a first one, of the same object, of another object."""
    data, found = quickstart.load(), []
    one, other = method(), method()
    for number, mcmc in enumerate((one, one, other)):
        cpu, wall = time.process_time(), time.perf_counter()
        mcmc.run(jax.random.key(number), *data)
        jax.block_until_ready(mcmc.get_samples())
        found.append((time.process_time() - cpu, time.perf_counter() - wall))
    return found


def main(processes=3):
    cases = [("private", ""), ("plain", ""), ("private", SMALL_LOOPS), ("plain", SMALL_LOOPS)]
    found = {case: [] for case in cases}
    for _ in range(processes):
        for method, flags in cases:
            ran = subprocess.run(
                [sys.executable, "-m", "tests.benchmarks.bench_first_call", method],
                env={**os.environ, "XLA_FLAGS": flags},
                check=True,
                capture_output=True,
                text=True,
            )
            found[method, flags].append(json.loads(ran.stdout.splitlines()[-1]))
    for (method, flags), seconds in found.items():
        line = {"method": method, "small_loops": bool(flags), "processes": processes}
        for name, calls in zip(
            ("first", "same", "another"), zip(*seconds, strict=True), strict=True
        ):
            line |= {f"{name}_cpu_s": min(x[0] for x in calls)}
            line |= {f"{name}_wall_s": min(x[1] for x in calls)}
        print(json.dumps({k: round(v, 2) if isinstance(v, float) else v for k, v in line.items()}))


if __name__ == "__main__":
    given = sys.argv[1] if len(sys.argv) > 1 else "3"
    if given.isdigit():
        main(int(given))
    else:
        print(json.dumps(measure({"private": private, "plain": plain}[given])))
