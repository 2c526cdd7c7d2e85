"""Every public name is documented: what it takes, gives, costs and rests on."""

import inspect
import re
from pathlib import Path

import pytest

import numpyro_dp as ndp
from numpyro_dp import events

ROOT = Path(__file__).resolve().parents[1]
PAGES = "\n".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
GUIDES = {
    f"guides.{name}": getattr(ndp.guides, name) for name in dir(ndp.guides) if "Guide" in name
}
MODULES = ("events", "guides")
NAMES = {name: getattr(ndp, name) for name in ndp.__all__ if name not in MODULES} | GUIDES
EVENTS = [
    f"events.{name}"
    for name in events.__all__
    if getattr(events, name).__module__.startswith("numpyro_dp")
]
NAMES |= {name: getattr(events, name.removeprefix("events.")) for name in EVENTS}
# What has no paper behind it: words for an event.
WORDS = {"events.describe", "events.from_json", "events.register", "events.to_json"}
# Their parameters are those of the class that they preset, which they name.
PRESETS = ("DPBarkerMH", "DPPenaltyMH")


# Of the package that is tested, which need not be the checkout's.
PACKAGE = Path(ndp.__file__).parent
MODULES_OF_PACKAGE = sorted(PACKAGE.rglob("*.py"))
# Put beside the modules when the package is built.
PACKED = {"ten-words.md"}


def title_of(page):
    heading = re.search(r"^# (.+)$", page.read_text(), re.M)
    return heading[1] if heading else ""


TITLES = {str(page.relative_to(ROOT)): title_of(page) for page in (ROOT / "docs").rglob("*.md")}


def docstring(name):
    return inspect.getdoc(NAMES[name]) or ""


def found(target):
    """The docstring that a reference leads to, as Sphinx resolves it."""
    for name in (target, f"guides.{target}"):
        if name in NAMES:
            return docstring(name)
    thing = ndp
    for part in target.split("."):
        thing = getattr(thing, part)
    return inspect.getdoc(thing)


def is_error(name):
    return inspect.isclass(NAMES[name]) and issubclass(NAMES[name], Exception)


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_says_what_a_user_needs(name):
    text = docstring(name)
    shown = rf"numpyro_dp\.(\w+\.)*{re.escape(name)}\b"
    # The module of the events is shown as a whole.
    assert name in EVENTS or re.search(shown, PAGES), "not in docs/reference"
    if not is_error(name) and name not in PRESETS:
        assert ":param" in text or "- **" in text, "neither parameters nor fields"
    assert "**Privacy" in text, "no paragraph on privacy"
    assert "**Example**" in text, "no example, nor where one stands"
    assert name in WORDS or re.search(r"\*\*References(\.\*\*|\*\*: see :)", text), "no source"
    if "**Example**::" in text:
        assert ">>>" in text, "an example that does not run"


@pytest.mark.parametrize("name", [n for n in NAMES if "**Example**: see" in docstring(n)])
def test_an_example_that_stands_elsewhere_stands_there(name):
    (said,) = re.findall(r"\*\*Example\*\*: (.*(?:\n.+)*)", docstring(name))
    targets = re.findall(r":(?:class|func|meth):`~?(?:numpyro_dp\.)?([\w.]+)`", said)
    pages = re.findall(r"\*([^*]+)\*", said)
    assert targets or pages
    for target in targets:
        assert ">>>" in found(target), target
    for page in pages:
        assert page in TITLES.values(), f"no page is called {page!r}"


@pytest.mark.parametrize("name", [n for n in NAMES if "**References**: see" in docstring(n)])
def test_a_source_that_stands_elsewhere_stands_there(name):
    (said,) = re.findall(r"\*\*References\*\*: (.*(?:\n.+)*)", docstring(name))
    targets = re.findall(r":(?:class|func|meth):`~?(?:numpyro_dp\.)?([\w.]+)`", said)
    assert targets
    for target in targets:
        assert "**References.**" in found(target), target


@pytest.mark.parametrize(
    "file", MODULES_OF_PACKAGE, ids=lambda file: str(file.relative_to(PACKAGE))
)
def test_a_page_that_is_named_is_one_that_users_have(file):
    # As one line, without the marks of comments.
    text = re.sub(r"\s+(# )?", " ", file.read_text())
    for path in re.findall(r"(?<![\w/.*-])[\w/-]+\.md\b", text):
        assert path in PACKED or path in TITLES, f"{path} is in no checkout"
    for path in re.findall(r"\((docs/[\w/-]+\.md)\)", text):
        titled = re.findall(rf"\*([^*]+)\* \({re.escape(path)}\)", text)
        assert set(titled) <= {TITLES[path]}, f"{path} is called {TITLES[path]!r}"
