"""The models of *Models by name*: each row has one, and says what the log of its script says."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "reproduce" / "models"
PAGE = ROOT / "docs" / "howto" / "models-by-name.md"
ROW = re.compile(r"^\| (.+?) \| (.+) \| ([^|]+) \|$", re.M)


@pytest.fixture(scope="module")
def known():
    """Cases by row, and what the log says, as the script has them."""
    code = (
        f"import sys, json, runpy; sys.path.insert(0, {str(SCRIPT)!r})\n"
        f"own = runpy.run_path({str(SCRIPT / '__main__.py')!r})\n"
        "cases = {row: list(found) for row, found in own['CASES'].items()}\n"
        "told = {row: own['words'](said['width']) for row, said in own['told']().items()}\n"
        "print(json.dumps([cases, told]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def rows():
    return {name: width for name, _, width in ROW.findall(PAGE.read_text("utf-8"))[1:]}


def test_every_row_with_a_width_has_models_in_the_log(known):
    cases, told = known
    assert cases.keys() == told.keys()
    with_width = {row for row, width in rows().items() if width != "–"}
    assert len(with_width) > 30
    assert with_width <= cases.keys()


@pytest.mark.parametrize("row", [row for row, width in rows().items() if width != "–"])
def test_a_row_says_what_the_log_says(known, row):
    assert rows()[row].startswith(known[1][row])


@pytest.mark.slow
def test_a_case_prints_its_refusal_and_its_releases():
    command = [sys.executable, str(SCRIPT), "--only", "fixed_at_public_numbers", "--small"]
    done = subprocess.run([*command, "--releases", "1"], capture_output=True, text=True, check=True)
    refused, found = map(json.loads, done.stdout.splitlines())
    assert "product of latents" in refused["refused"]
    assert {"narrowest", "widest", "farthest", "notes"} <= found.keys()
