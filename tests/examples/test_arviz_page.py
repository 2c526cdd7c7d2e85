"""The page on ArviZ under ArviZ 1: it is built with 0.23, which takes its other branches."""

import re
from pathlib import Path

import arviz as az
import matplotlib.pyplot as plt
import pytest

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "inspect-in-arviz.md"
CELL = re.compile(r"^```\{code-cell\}.*?\n(?::[^\n]*\n)*(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.skipif(az.__version__.startswith("0."), reason="the build of the pages executes it")
def test_the_page_runs_under_arviz_1():
    cells = CELL.findall(PAGE.read_text())
    assert len(cells) > 4
    names = {}
    for cell in cells:
        exec(compile(cell, str(PAGE), "exec"), names)
    # Beside the forest ArviZ 1 draws a figure of its own, and what was saved has its statement.
    assert len(plt.get_fignums()) >= 2
    assert float(names["attributes"]["dp_epsilon"]) <= 1.0
    assert names["attributes"]["dp_relation"] == "zero_out"
    plt.close("all")
