"""Print the tests of what changed since a commit, folders with most changed lines first."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

# Folders whose tests stand elsewhere, or beside their own.
ALSO = {
    "families": ("families", "model", "estimators"),
    "execution": ("execution", "scoring", "mcmc", "svi", "estimators"),
    "mechanisms": ("mechanisms", "contract", "scoring"),
    "mcmc": ("mcmc", "contract", "statistical"),
}


def folders(base: str) -> list[str]:
    """Folders and files below ``tests/`` to run; none for a base that is not there."""
    command = ["git", "diff", "--numstat", "-M", base, "HEAD"]
    diff = subprocess.run(command, capture_output=True, text=True, check=False)
    lines: Counter[str] = Counter()
    for row in diff.stdout.splitlines():
        added, removed, path = row.split("\t")
        top, _, rest = path.replace("{", "").partition("/")
        name = rest.split("/")[0]
        changed = sum(int(count) for count in (added, removed) if count.isdigit())
        if top in ("numpyro_dp", "tests") and changed and name != "benchmarks":
            for folder in ALSO.get(name, (name,)) if top == "numpyro_dp" else (name,):
                lines[folder] += changed
            if top == "numpyro_dp":
                # No mutation may survive a change.
                lines["mutations"] += 1
    paths = [Path("tests", name) for name, _ in lines.most_common()]
    return [str(p) for p in paths if p.is_dir() or (p.exists() and p.match("test_*.py"))]


if __name__ == "__main__":
    print("\n".join(folders(sys.argv[1])) if sys.argv[1] else "", end="")
