"""Check the links of files that Sphinx does not read: README and its kin, stored notebooks.

    python .ci/links.py README.md CONTRIBUTING.md examples/notebooks/*.ipynb

A link to a file must lead to one that git knows, and its fragment to a heading there. Addresses on
the network are only listed when one has no host: CI machines reach none.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?[^)]*\)|(?:src|href)=\"([^\"]+)\"")
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")


def prose(path: Path) -> str:
    """Markdown of a file without its code."""
    text = path.read_text()
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    return CODE.sub("", FENCE.sub("", text))


def anchors(path: Path) -> set[str]:
    """Fragments that a page answers to: its headings, as hosts of git make them, and labels."""
    text = FENCE.sub("", path.read_text())
    headings = re.findall(r"^#+ +(.+?)\s*$", text, re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}
    return slugs | set(re.findall(r"^\(([\w-]+)\)=$", text, re.MULTILINE))


def faults(path: Path, known: set[Path]) -> list[str]:
    """What is wrong with the links of one file."""
    found = []
    for match in LINK.finditer(prose(path)):
        target = match[1] or match[2]
        parts = urlsplit(target)
        if parts.scheme in ("http", "https"):
            wrong = "has no host" if "." not in parts.netloc else None
        elif parts.scheme:
            wrong = None
        else:
            place = (path.parent / unquote(parts.path)).resolve() if parts.path else path.resolve()
            if place not in known and not (
                place.is_dir() and any(place in k.parents for k in known)
            ):
                wrong = "leads to no file of the repository"
            elif parts.fragment and place.suffix == ".md" and parts.fragment not in anchors(place):
                wrong = "leads to no heading"
            else:
                wrong = None
        if wrong:
            found.append(f"{path}: {target} {wrong}")
    return found


def main() -> int:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        check=True,
        capture_output=True,
        text=True,
    )
    known = {Path(line).resolve() for line in listed.stdout.splitlines()}
    paths = [Path(name) for name in sys.argv[1:]]
    wrong = [fault for path in paths for fault in faults(path, known)]
    print("\n".join(wrong) or f"links of {len(paths)} files lead somewhere")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
