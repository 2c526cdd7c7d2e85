"""What the pages claim of the code is checked when they are built.

``{guard}`tests/file.py::name``` names a test, which must exist; and every public name of
``numpyro_dp`` must stand in the reference. Either failing is a warning, which ``-W`` makes fatal.
"""

import ast
from functools import cache
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst.states import Inliner
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

import numpyro_dp

__all__ = ["setup"]

_ROOT = Path(__file__).parents[2]
_logger = logging.getLogger(__name__)


@cache
def _tests(path: Path) -> frozenset[str]:
    """Names of the test functions in a file; empty when there is no such file."""
    if not path.is_file():
        return frozenset()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef))


def _guard(
    role: str,
    rawtext: str,
    text: str,
    lineno: int,
    inliner: Inliner,
    options: dict | None = None,
    content: list | None = None,
) -> tuple[list[nodes.Node], list[nodes.system_message]]:
    path, _, name = text.partition("::")
    if not name.startswith("test_") or name not in _tests(_ROOT / path):
        _logger.warning(
            "no such test: %s", text, location=(inliner.document.current_source, lineno)
        )
    return [nodes.literal(rawtext, name, classes=["guard"])], []


def _every_public_name(app: Sphinx, env: BuildEnvironment) -> None:
    documented = env.domains["py"].data["objects"]
    for name in numpyro_dp.__all__:
        if f"numpyro_dp.{name}" not in documented:
            _logger.warning("numpyro_dp.%s is public and not in docs/reference", name)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_role("guard", _guard)
    app.connect("env-check-consistency", _every_public_name)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
