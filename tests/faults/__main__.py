"""``python -m tests.faults [--kills 300] [--seed 0]``: kill processes at random moments.

Prints how many were killed at what, as JSON; ends with an error where a charge was lost, a part
drawn twice, or a file left by half.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

from tests.faults.kills import kill


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    began = time.time()
    with tempfile.TemporaryDirectory() as folder:
        made = kill(options.kills, Path(folder), options.seed)
    print(json.dumps({"kills": sum(made.values()), "seconds": round(time.time() - began), **made}))


if __name__ == "__main__":
    main()
