"""The notebooks of ``examples/notebooks`` are MyST pages of ``docs/tutorials``, executed.

``check`` says which notebook is not its page any more; ``write [name ...]`` executes pages in full
and stores them with their outputs. The text is what is edited and reviewed, never the notebook.
"""

import argparse
import os
import re
import sys
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "docs" / "tutorials"
STORED = ROOT / "examples" / "notebooks"
NAMES = (
    "quickstart",
    "which-method",
    "hierarchy",
    "patients",
    "counts",
    "ab-test",
    "metropolis",
    "topics",
    "neural-net",
    "plan-before-you-spend",
    "one-budget",
    "does-the-guarantee-hold",
)
# What Sphinx shows and Jupyter does not: directives, roles, and links without a text.
SPHINX_ONLY = re.compile(r"^(?:```|:::+)\{(?!code-cell)\S*|\{[a-z:]+\}`|\[\]\(", re.MULTILINE)
PAGE_LINK = re.compile(r"\]\(([\w./-]+)\.md(#[\w-]*)?\)")
TEMPORARY = re.compile(r"/tmp/\w+/")
WIDGET = "application/vnd.jupyter.widget-view+json"
MOST_BYTES = 500_000


def linked(match: re.Match) -> str:
    """The link of a page as its notebook needs it: to another notebook, else to a page's text."""
    target, fragment = match[1], match[2] or ""
    if target in NAMES:
        return f"]({target}.ipynb{fragment})"
    return f"]({os.path.relpath(PAGES / target, STORED)}.md{fragment})"


def from_page(name: str) -> nbformat.NotebookNode:
    """The page as a notebook without outputs."""
    text = (PAGES / f"{name}.md").read_text()
    if found := SPHINX_ONLY.search(text):
        raise SystemExit(f"docs/tutorials/{name}.md: Jupyter cannot show {found[0]!r}")
    cells = []
    for number, cell in enumerate(jupytext.reads(text, fmt="md:myst").cells):
        if cell.cell_type == "markdown":
            made = nbformat.v4.new_markdown_cell(PAGE_LINK.sub(linked, cell.source))
        else:
            made = nbformat.v4.new_code_cell(cell.source)
        made["id"] = f"cell-{number}"
        cells.append(made)
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return nbformat.v4.new_notebook(cells=cells, metadata=metadata)


def executed(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The notebook run from its own folder, without what differs between machines."""
    NotebookClient(
        notebook,
        timeout=None,
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": str(STORED)}},
    ).execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            # Progress bars and warnings of libraries, which name files of this machine.
            cell.outputs = [each for each in cell.outputs if not _is_passing(each)]
            for each in cell.outputs:
                if "text" in each:
                    each["text"] = TEMPORARY.sub("", each["text"])
    # The state of bars that are widgets.
    notebook.metadata.pop("widgets", None)
    return notebook


def _is_passing(output: nbformat.NotebookNode) -> bool:
    return output.get("name") == "stderr" or WIDGET in output.get("data", {})


def drifted(name: str) -> bool:
    path = STORED / f"{name}.ipynb"
    if not path.exists():
        return True
    kept = [(cell.cell_type, cell.source) for cell in nbformat.read(path, 4).cells]
    return kept != [(cell.cell_type, cell.source) for cell in from_page(name).cells]


def check() -> int:
    """The exit code: 0 if every notebook holds what its page holds, and no other is there."""
    changed = [name for name in NAMES if drifted(name)]
    for name in changed:
        print(f"examples/notebooks/{name}.ipynb is not docs/tutorials/{name}.md any more")
    unknown = {path.stem for path in STORED.glob("*.ipynb")} - set(NAMES)
    for name in sorted(unknown):
        print(f"examples/notebooks/{name}.ipynb has no page")
    if changed:
        print("To mend it: .venv/bin/python .ci/notebooks.py write", *changed)
    return int(bool(changed or unknown))


def write(names: list[str]) -> int:
    """Execute pages in full and store them; the exit code."""
    os.environ.pop("NUMPYRO_DP_SMALL", None)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    for name in names or NAMES:
        text = nbformat.writes(executed(from_page(name)))
        if len(text.encode()) > MOST_BYTES:
            raise SystemExit(f"{name}: {len(text.encode())} bytes, more than {MOST_BYTES}")
        (STORED / f"{name}.ipynb").write_text(text + "\n")
        print(f"wrote examples/notebooks/{name}.ipynb", flush=True)
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("check", "write"))
    parser.add_argument("names", nargs="*", help="pages to execute; all of them by default")
    options = parser.parse_args()
    sys.exit(check() if options.what == "check" else write(options.names))
