"""The README's tables name what exists, and pages whose code does what they say."""

import re
from pathlib import Path

import pytest

import numpyro_dp as ndp

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "README.md").read_text()
CELLS = re.compile(r"^```\{code-cell\}.*?^```", re.MULTILINE | re.DOTALL)


def rows(head):
    """Cells of the table whose first row begins with ``head``."""
    _, _, rest = TEXT.partition(f"| {head} |")
    lines = rest.splitlines()[2:]
    table = lines[: next(k for k, line in enumerate(lines) if not line.startswith("|"))]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table]


HAVE, INSTEAD = rows("you have"), rows("instead of")
OURS = {name for name in (*ndp.__all__, *dir(ndp.guides)) if name[0].isupper()}


def test_the_tables_are_read():
    assert len(HAVE) > 9
    assert len(INSTEAD) > 6


@pytest.mark.parametrize("row", HAVE, ids=[row[0] for row in HAVE])
def test_what_to_use_is_used_on_an_executed_page(row):
    _, use, link = row
    page = (ROOT / re.search(r"\]\(([^)#]+)", link)[1]).read_text()
    code = "\n".join(CELLS.findall(page))
    assert "file_format: mystnb" in page
    assert code, "no code that CI runs"
    for name in re.findall(r"`(\w+)", use):
        if name in OURS or hasattr(ndp, name) or "=" in use:
            assert name in code, f"the page does not use {name}"


@pytest.mark.parametrize("row", INSTEAD, ids=[row[0] for row in INSTEAD])
def test_what_to_write_instead_exists(row):
    names = re.findall(r"ndp\.(\w+)", row[1])
    assert names or row[1].startswith("the same")
    assert set(names) <= set(ndp.__all__)
