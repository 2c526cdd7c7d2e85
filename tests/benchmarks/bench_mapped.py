"""Records of 2 GB in a mapped file: anonymous memory and seconds, beside a copy in memory.

Prints one JSON line a run, two runs a case (the first compiles, and finds the file as cold as it
is). Needs the folder of the files, on a disk of its own speed:

    python -m tests.benchmarks.bench_mapped /tmp/records [MEGABYTES] [mini full nuts ...]
"""

import subprocess
import sys

from tests.scale import memory

LEAST = ("mini", "full", "nuts")


def main(folder, megabytes="2048", *kinds):
    memory.written(folder, memory.num_rows(megabytes))
    for kind in kinds or LEAST:
        for source in ("mapped", "copied"):
            command = [sys.executable, "-W", "ignore", "-m", memory.__name__]
            runs = "1" if kind == "nuts" else "2"
            subprocess.run([*command, kind, source, megabytes, folder, runs], check=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
