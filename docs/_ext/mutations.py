"""The table of mutations, made of their registry whenever the page is built.

``{mutations}`` stands for the table. A mutation whose test does not exist is a warning, which
``-W`` makes fatal; that each is caught is for the tests to say.
"""

import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

__all__ = ["setup"]

_ROOT = Path(__file__).parents[2]
_logger = logging.getLogger(__name__)


def _registry() -> Any:
    if str(_ROOT) not in sys.path:
        sys.path.insert(0, str(_ROOT))
    from tests.mutations import registry

    return registry


class MutationTable(SphinxDirective):
    """Every mutation: what is broken, where, what catches it, and when that is run."""

    def run(self) -> list[nodes.Node]:
        registry = _registry()
        found = registry.mutations()
        lines = ["| what is broken | in | caught by | run |", "|---|---|---|---|"]
        for each in found:
            path, _, name = each.caught_by.partition("::")
            if not registry.makers(path, name):
                _logger.warning("no such test: %s", each.caught_by, location=self.get_location())
            place = path.removeprefix("tests/")
            when = "slow" if each.slow else "by default"
            lines.append(f"| {each.broken} | `{each.folder}` | `{name}` in `{place}` | {when} |")
        quick = sum(not each.slow for each in found)
        count = f"{len(found)} mutations, {quick} of them caught by the default run."
        made = nodes.container()
        self.state.nested_parse(StringList([count, "", *lines]), self.content_offset, made)
        return made.children


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("mutations", MutationTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
