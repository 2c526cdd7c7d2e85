"""The plan of the package: no circle, no crowded folder, no way around the one door to a model."""

import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp

import numpyro_dp

PACKAGE = Path(numpyro_dp.__file__).parent
MOST_FILES = 14


def lines_with(pattern, files):
    """Places where a line of some files matches."""
    return [
        f"{file.relative_to(PACKAGE)}:{number}: {line.strip()}"
        for file in files
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if re.search(pattern, line)
    ]


def test_no_module_imports_itself_by_way_of_others():
    # Imports for type checkers only, and those inside functions, count as well.
    graph = grimp.build_graph("numpyro_dp", cache_dir=None)
    arrows = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    assert arrows["numpyro_dp.model.private_model"]
    circle = []
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        circle = error.args[1]
    assert not circle, " <- ".join(circle)


def test_no_folder_is_crowded():
    folders = {file.parent for file in PACKAGE.rglob("*.py")} - {PACKAGE}
    crowded = {f.name: n for f in folders if (n := len(list(f.glob("*.py")))) > MOST_FILES}
    assert not crowded


def test_what_a_model_was_split_into_is_read_by_public_names():
    assert not lines_with(r"\._(spec|parts)\b", PACKAGE.rglob("*.py"))


def test_only_packages_list_what_they_export():
    modules = [file for file in PACKAGE.rglob("*.py") if file.name != "__init__.py"]
    assert not lines_with(r"^__all__\b", modules)


def test_one_module_charges_and_makes_keys():
    code = [file for file in PACKAGE.rglob("*.py") if file.parent.name != "accounting"]
    charging = lines_with(r"accountant\.charge\(", code)
    assert {place.split(":")[0] for place in charging if ">>>" not in place} == {
        "execution/account.py"
    }
    # Whoever draws noise gets its key from a charge; an audit charges nothing, on made-up data.
    keys = lines_with(r"\b(os_key|seeded_key)\(", code)
    assert {place.split(":")[0] for place in keys if "def " not in place} <= {
        "execution/account.py",
        "diagnostics/audit/audit.py",
        "diagnostics/audit/one_run.py",
        "mechanisms/random.py",
    }


def test_what_is_assumed_public_and_what_steps_cost_is_said_once():
    files = list(PACKAGE.rglob("*.py"))
    for pattern in (r"the number of records \(\{", r"_EPSILON_POINTS = ", r"tqdm\.auto\.tqdm\("):
        assert len(lines_with(pattern, files)) == 1, pattern
