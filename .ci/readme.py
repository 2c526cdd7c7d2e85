"""Print the code of README.md that stands behind ``<!-- ci: NAME -->``, for each NAME given.

python .ci/readme.py example ledger | python -
"""

import re
import sys
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"
MARKED = re.compile(r"^<!-- ci: (\w+) -->\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def main() -> int:
    blocks = dict(MARKED.findall(README.read_text()))
    missing = [name for name in sys.argv[1:] if name not in blocks]
    if missing:
        print(f"README.md lacks the marked code {missing}", file=sys.stderr)
        return 1
    sys.stdout.write("".join(blocks[name] for name in sys.argv[1:]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
