"""Print the test folders of what changed since a commit, those with most changed lines first."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

# Folders whose tests stand elsewhere, or beside their own.
ALSO = {
    "families": ("families", "model", "estimators"),
    "execution": ("execution", "mcmc", "svi", "estimators"),
    "mechanisms": ("mechanisms", "contract"),
    "mcmc": ("mcmc", "contract", "statistical"),
}


def folders(base: str) -> list[str]:
    """Folders below ``tests/`` to run; none for a base that is not there."""
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
    return [f"tests/{name}" for name, _ in lines.most_common() if Path("tests", name).is_dir()]


if __name__ == "__main__":
    print("\n".join(folders(sys.argv[1])) if sys.argv[1] else "", end="")
