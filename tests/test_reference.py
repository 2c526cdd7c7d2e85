"""Every public name is documented: in the reference, with what it takes, gives and costs."""

import inspect
import re
from pathlib import Path

import pytest

import numpyro_dp as ndp

ROOT = Path(__file__).resolve().parents[1]
PAGES = "\n".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
GUIDES = {
    f"guides.{name}": getattr(ndp.guides, name) for name in dir(ndp.guides) if "Guide" in name
}
MODULES = ("events", "guides")
NAMES = {name: getattr(ndp, name) for name in ndp.__all__ if name not in MODULES} | GUIDES
# Their parameters are those of the class that they preset, which they name.
PRESETS = ("DPBarkerMH", "DPPenaltyMH")


def docstring(name):
    return inspect.getdoc(NAMES[name]) or ""


def is_error(name):
    return inspect.isclass(NAMES[name]) and issubclass(NAMES[name], Exception)


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_says_what_a_user_needs(name):
    text = docstring(name)
    assert re.search(rf"numpyro_dp\.(\w+\.)*{re.escape(name)}\b", PAGES), "not in docs/reference"
    if not is_error(name) and name not in PRESETS:
        assert ":param" in text or "- **" in text, "neither parameters nor fields"
    assert "**Privacy" in text, "no paragraph on privacy"
    assert "**Example**" in text, "no example, nor where one stands"
    if "**Example**::" in text:
        assert ">>>" in text, "an example that does not run"


@pytest.mark.parametrize("name", [n for n in NAMES if "**Example**: see" in docstring(n)])
def test_an_example_that_stands_elsewhere_stands_there(name):
    (said,) = re.findall(r"\*\*Example\*\*: (.*(?:\n.+)*)", docstring(name))
    targets = re.findall(r":(?:class|func|meth):`~?(?:numpyro_dp\.)?([\w.]+)`", said)
    pages = re.findall(r"\*([^*]+)\*", said)
    titles = [re.search(r"^# (.+)$", p.read_text(), re.M) for p in (ROOT / "docs").rglob("*.md")]
    known = {title[1] for title in titles if title}
    assert targets or pages
    for target in targets:
        assert ">>>" in docstring(target if target in NAMES else f"guides.{target}"), target
    for page in pages:
        assert page in known, f"no page is called {page!r}"
