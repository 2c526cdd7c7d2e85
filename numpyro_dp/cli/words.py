"""The page "Ten words" of the documentation, for whoever has the package alone."""

from pathlib import Path

_PAGE = "ten-words.md"


def ten_words() -> str:
    """Return the page as plain text, without the links that only a site resolves."""
    here = Path(__file__).parent
    installed = here / _PAGE
    # A wheel brings the page along; a checkout has it where the documentation is built from.
    page = installed if installed.exists() else here.parents[1] / "docs" / "explanation" / _PAGE
    text, _, _ = page.read_text(encoding="utf-8").partition("\n## Where to go on")
    return text.strip()
