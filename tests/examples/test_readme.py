"""The README's tables name what exists, and pages whose code does what they say."""

import json
import re
import runpy
from dataclasses import replace
from pathlib import Path

import jax
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


def executed(path):
    """The code of a page that CI runs, or of a notebook that is stored with its outputs."""
    if path.suffix != ".ipynb":
        page = path.read_text()
        assert "file_format: mystnb" in page
        return "\n".join(CELLS.findall(page))
    cells = [c for c in json.loads(path.read_text())["cells"] if c["cell_type"] == "code"]
    assert any(cell["outputs"] for cell in cells)
    return "\n".join("".join(cell["source"]) for cell in cells)


@pytest.mark.parametrize("row", HAVE, ids=[row[0] for row in HAVE])
def test_what_to_use_is_used_on_an_executed_page(row):
    _, use, link = row
    path = ROOT / re.search(r"\]\(([^)#]+)", link)[1]
    code = executed(path)
    assert code, "no code that CI runs"
    # A host of git shows a notebook with its outputs, and a page of text without.
    assert path.suffix == ".ipynb" or not (ROOT / f"examples/notebooks/{path.stem}.ipynb").exists()
    for name in re.findall(r"`(\w+)", use):
        if name in OURS or hasattr(ndp, name) or "=" in use:
            assert name in code, f"the page does not use {name}"


@pytest.mark.parametrize("row", INSTEAD, ids=[row[0] for row in INSTEAD])
def test_what_to_write_instead_exists(row):
    names = re.findall(r"ndp\.(\w+)", row[1])
    assert names or row[1].startswith("the same")
    assert set(names) <= set(ndp.__all__)


def test_the_statement_is_what_the_quickstart_prints():
    """To the letter, notes apart, which chance may add: all else is public beforehand."""
    printed = re.search(r"^```text\n(privacy .*?)^```$", TEXT, re.MULTILINE | re.DOTALL)[1]
    quickstart = runpy.run_path(str(ROOT / "examples" / "quickstart.py"))
    accountant = ndp.Accountant(ndp.Budget(1.2, 1e-5))
    kernel = ndp.DPNUTS(quickstart["model"], privacy=ndp.Budget(1.0, 1e-5), accountant=accountant)
    # The chain is free, and no word of the statement is about it.
    mcmc = ndp.MCMC(kernel, num_warmup=20, num_samples=20, progress_bar=False)
    mcmc.run(jax.random.key(0), *quickstart["load"]())
    assert str(replace(mcmc.privacy, notes=())).strip() == printed.strip()


def test_the_two_lines_are_those_of_the_example():
    (changed,) = re.findall(r"```diff\n(.*?)```", TEXT, re.S)
    new = [line[2:] for line in changed.splitlines() if line.startswith("+")]
    (example,) = re.findall(r"<!-- ci: example -->\n```python\n(.*?)```", TEXT, re.S)
    assert len(new) == 2
    assert all(line in example.splitlines() for line in new)
