"""Mutations: one part of the package broken on purpose, and the test that must then fail.

A mutation is declared beside the patch that makes it. ``tests/mutations/test_mutations.py`` applies
each and runs its test; ``docs/reference/mutations.md`` lists all of them.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = (
    "mechanisms",
    "accounting",
    "execution",
    "model",
    "families",
    "scoring",
    "mcmc",
    "svi",
    "estimators",
    "diagnostics",
    "cli",
)


@dataclass(frozen=True)
class Mutation:
    """One broken package.

    :param folder: folder of ``numpyro_dp`` that is broken.
    :param name: of the mutation, unique in its folder.
    :param broken: what is broken, in a sentence.
    :param caught_by: ``file::name`` of the test, or of the claim that a test of the same file
        makes of the unbroken package.
    :param slow: whether it is run with the slow tests only.
    :param patch: breaks the package; ``None`` where the test does so by itself.
    :param because: what the failure must say, as a regular expression: a patch that merely crashes
        the package is caught by anything.
    :param given: arguments of the test, if it takes any, and of its fixtures.
    :param case: number, or id, of the values the test is parametrised by, where ``given`` does not
        say.
    :param fresh: whether compiled programs and tables made before are forgotten, before and after.
    """

    folder: str
    name: str
    broken: str
    caught_by: str
    slow: bool = False
    patch: Callable[[pytest.MonkeyPatch], None] | None = None
    because: str = ""
    given: Mapping[str, Any] | None = None
    case: int | str = 0
    fresh: bool = False

    @property
    def id(self) -> str:
        """Folder and name."""
        return f"{self.folder}-{self.name}"

    @property
    def test(self) -> str:
        """The test whose failure keeps the mutation out: its own, or the one that runs them all."""
        return self.caught_by if self.patch is None else f"{RUNNER}[{self.id}]"


RUNNER = "tests/mutations/test_mutations.py::test_a_mutation_is_caught"
_FOUND: list[Mutation] = []


def mutation(
    broken: str, caught_by: str, because: str, **more: Any
) -> Callable[[Callable[[pytest.MonkeyPatch], None]], Callable[[pytest.MonkeyPatch], None]]:
    """Register a patch as the mutation called like it, of the folder that its module is about."""

    def keep(patch: Callable[[pytest.MonkeyPatch], None]) -> Callable[[pytest.MonkeyPatch], None]:
        folder, name = patch.__module__.rpartition(".")[2], patch.__name__.replace("_", "-")
        made = Mutation(folder, name, broken, f"tests/{caught_by}", patch=patch, because=because)
        _FOUND.append(Mutation(**{**vars(made), **more}))
        return patch

    return keep


def stands(folder: str, file: str, slow: bool = False, **broken: str) -> None:
    """Register mutations that the tests of a file make by themselves.

    :param folder: of the package, that is broken.
    :param file: below ``tests/``.
    :param slow: whether they are run with the slow tests only.
    :param broken: what is broken, by the test's name.
    """
    for test, what in broken.items():
        name = f"{Path(file).stem}-{test}".replace("test_", "").replace("_", "-")
        _FOUND.append(Mutation(folder, name, what, f"tests/{file}::{test}", slow=slow))


@cache
def mutations() -> tuple[Mutation, ...]:
    """All mutations, by folder from the records outwards, quick ones first."""
    for name in (*FOLDERS, "standing"):
        if Path(__file__).with_name(f"{name}.py").exists():
            import_module(f"tests.mutations.{name}")
    return tuple(sorted(_FOUND, key=lambda m: (FOLDERS.index(m.folder), m.slow)))


@cache
def _parsed(path: str) -> tuple[ast.stmt, ...]:
    return tuple(ast.parse((ROOT / path).read_text(encoding="utf-8")).body)


def functions(path: str) -> dict[str, ast.FunctionDef]:
    """The functions of a file below the repository's root, by name."""
    return {node.name: node for node in _parsed(path) if isinstance(node, ast.FunctionDef)}


def is_slow(path: str, name: str) -> bool:
    """Whether a test is marked slow, itself or its file; cases of it may be without that."""
    marks = [
        each for each in functions(path)[name].decorator_list if isinstance(each, ast.Attribute)
    ]
    own = (node for node in _parsed(path) if isinstance(node, ast.Assign))
    marks += [node.value for node in own if ast.unparse(node.targets[0]) == "pytestmark"]
    return any(ast.unparse(each) == "pytest.mark.slow" for each in marks)


def makers(path: str, name: str) -> list[str]:
    """The tests of a file that make a claim of the unbroken package: itself, or who calls it."""
    known = functions(path)
    if name not in known or name.startswith("test_"):
        return [name] if name in known else []

    def claims(function: ast.FunctionDef) -> bool:
        calls = (node for node in function.body if isinstance(node, ast.Expr))
        return any(ast.unparse(call).startswith(f"{name}(") for call in calls)

    return [test for test in known if test.startswith("test_") and claims(known[test])]
