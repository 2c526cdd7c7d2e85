"""A private sum over records on two devices, beside one: CPU, wall clock and temporaries.

Each number of devices has a process of its own, and they take turns; one device on one core is
shown beside, since JAX lets one device of two cores share out single operations, and two processes
of one device and one core each. Prints one JSON line a case, of two processes one each:

    python -m tests.benchmarks.bench_sharded [ROWS] [COLUMNS] [ROUNDS]

On other machines, ``python -m tests.benchmarks.bench_sharded one ROWS COLUMNS full ADDRESS NUMBER
OF``, once for each of ``OF`` processes, measures the same there.
"""

import json
import os
import socket
import subprocess
import sys
import time


def measured(rows, columns, kind, address, number, of):
    import jax
    import jax.numpy as jnp
    import numpy as np

    if of > 1:
        jax.distributed.initialize(address, num_processes=of, process_id=number)

    import numpyro_dp as ndp
    from numpyro_dp._shards import shards_of
    from numpyro_dp.mechanisms import PrivateSum

    x = ndp.shard(np.random.default_rng(0).normal(size=(rows, columns)).astype(np.float32))
    mechanism = PrivateSum.create(
        num_records=rows,
        dim=columns,
        sampling_rate=1.0 if kind == "full" else 1024 / rows,
        clip_norm=1.0,
        noise_multiplier=2.0,
        num_steps=1_000,
        delta=1e-6,
        shards=shards_of([x]),
    )

    def gradient(position):
        # That of a logistic regression: as much work as a record's gradient usually is.
        return lambda record: record[0][0] * jax.nn.sigmoid(record[0][0] @ position)

    def steps(key, position, x):
        def step(position, key):
            return 1e-6 * mechanism.release(key, gradient(position), [x]), None

        return jax.lax.scan(step, position, jax.random.split(key, repeats))[0]

    repeats = 20 if kind == "full" else 2_000
    position = jnp.zeros(columns)
    program = jax.jit(steps).lower(jax.random.key(0), position, x).compile()
    for seed in (1, 2):
        program(jax.random.key(seed), position, x).block_until_ready()
    cpu, wall = time.process_time(), time.perf_counter()
    program(jax.random.key(1), position, x).block_until_ready()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return {
        "case": kind,
        "devices": jax.device_count(),
        "processes": of,
        "cores": len(os.sched_getaffinity(0)),
        "rows": rows,
        "cpu_ms": round(1e3 * cpu / repeats, 3),
        "wall_ms": round(1e3 * wall / repeats, 3),
        "temporaries_mb": round(program.memory_analysis().temp_size_in_bytes / 1e6, 3),
    }


def free_address():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def main(rows="1000000", columns="20", rounds="3"):
    for kind in ("full", "mini"):
        for _ in range(int(rounds)):
            for devices, *cores in ((1, "0"), (1, "0,1"), (2, "0,1"), (1, "0", "1")):
                flags = f"--xla_force_host_platform_device_count={devices}"
                address, running = free_address(), []
                for number, own in enumerate(cores):
                    command = ["taskset", "-c", own, sys.executable, "-m", __spec__.name, "one"]
                    command += [rows, columns, kind, address, str(number), str(len(cores))]
                    env = {**os.environ, "XLA_FLAGS": flags}
                    running.append(subprocess.Popen(command, env=env))
                if any(process.wait() for process in running):
                    raise SystemExit(1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["one"]:
        size, width, what, where, own, all_of_them = sys.argv[2:]
        row = measured(int(size), int(width), what, where, int(own), int(all_of_them))
        print(json.dumps(row), flush=True)
    else:
        main(*sys.argv[1:])
