"""Stored notebooks can be read where they lie: outputs are there, and nothing of a machine."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STORED = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
OF_A_MACHINE = re.compile(r"/(?:home|Users|root|tmp|work|usr)/\w|Warning: |\d+%\|")


def test_there_are_twelve_and_all_are_listed():
    listed = re.findall(r"^\| \[[\w-]+\]\(([\w-]+)\.ipynb\)", _read("README.md"), re.MULTILINE)
    assert sorted(listed) == [path.stem for path in STORED]
    assert len(listed) == 12


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_a_notebook_was_run_in_full_and_shows_a_picture(path):
    assert path.stat().st_size < 500_000
    cells = json.loads(path.read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert not {output["output_type"] for output in outputs} & {"error"}
    assert any("image/png" in output.get("data", {}) for output in outputs)
    # "ε = " of a page's own text would not tell that anything was printed.
    texts = [_text(output) for output in outputs]
    assert any("ε" in text for text in texts)
    assert not [text for text in texts if OF_A_MACHINE.search(text)]


def _read(name: str) -> str:
    return (ROOT / "examples" / "notebooks" / name).read_text()


def _text(output: dict) -> str:
    """What an output says in words, HTML included."""
    found = output.get("data", {"text/plain": output.get("text", "")})
    return "\n".join("".join(v) for k, v in found.items() if not k.startswith("image/"))
