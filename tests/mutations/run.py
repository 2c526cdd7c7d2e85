"""Run a test on a package that is broken."""

import inspect
import re
import sys
import traceback
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

import jax
import pytest

from tests.mutations.registry import FOLDERS, Mutation


def failure(mutation: Mutation, request: pytest.FixtureRequest) -> str | None:
    """What the test of a mutation says while the package is broken; ``None`` if it passes.

    Anything but a failed assertion, or a refusal that did not come, is raised: a crash catches
    nothing.
    """
    path, _, name = mutation.caught_by.partition("::")
    module = import_module(path.removesuffix(".py").replace("/", "."))
    check = getattr(module, name)
    with _broken(mutation), pytest.MonkeyPatch.context() as own, ExitStack() as fixtures:
        given = {"monkeypatch": own, **_cases(mutation, module, check), **(mutation.given or {})}
        # Where data are made up by the hundred, one case is given.
        check = getattr(getattr(check, "hypothesis", None), "inner_test", check)
        try:
            check(
                **{each: _value(each, module, given, request, fixtures) for each in _names(check)}
            )
        except (AssertionError, pytest.fail.Exception) as error:
            return f"{error}\n{_failed_line(error)}"
    return None


@contextmanager
def _broken(mutation: Mutation) -> Generator[None]:
    assert mutation.patch is not None
    with pytest.MonkeyPatch.context() as patch:
        _forget(mutation)
        try:
            mutation.patch(patch)
            yield
        finally:
            patch.undo()
            _forget(mutation)


def _forget(mutation: Mutation) -> None:
    """What was computed before must neither hide what is broken nor outlive it."""
    if not mutation.fresh:
        return
    # Tables and losses of a part that is not broken stay: they take longest.
    kept = {"accounting", "mechanisms"} - {mutation.folder}
    for name, module in list(sys.modules.items()):
        package, _, rest = name.partition(".")
        if package == "numpyro_dp" and rest.partition(".")[0] in {*FOLDERS} - kept:
            for found in list(vars(module).values()):
                if hasattr(found, "cache_info"):  # as functools gives it
                    found.cache_clear()
    if mutation.folder != "accounting":
        jax.clear_caches()


def _names(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


def _cases(mutation: Mutation, module: ModuleType, check: Any) -> dict[str, Any]:
    """One case of each list that the test is parametrised by."""
    marks = [*getattr(check, "pytestmark", [])]
    own = getattr(module, "pytestmark", [])
    marks += own if isinstance(own, list) else [own]
    found: dict[str, Any] = {}
    for mark in marks:
        if mark.name != "parametrize":
            continue
        names, values = mark.args[:2]
        names = [n.strip() for n in names.split(",")] if isinstance(names, str) else list(names)
        chosen = _chosen(list(values), mutation.case)
        if hasattr(chosen, "marks"):
            chosen = chosen.values
        elif len(names) == 1:
            chosen = (chosen,)
        found.update(zip(names, chosen, strict=True))
    return found


def _chosen(values: list[Any], case: int | str) -> Any:
    if isinstance(case, int):
        return values[case]
    return next(each for each in values if getattr(each, "id", None) == case)


def _value(
    name: str,
    module: ModuleType,
    given: Mapping[str, Any],
    request: pytest.FixtureRequest,
    fixtures: ExitStack,
) -> Any:
    """An argument: given, made by a fixture of the test's own file, or by one of everybody's."""
    if name in given:
        return given[name]
    fixture = getattr(getattr(module, name, None), "__wrapped__", None)
    if fixture is None:
        return request.getfixturevalue(name)
    own = {each: _value(each, module, given, request, fixtures) for each in _names(fixture)}
    made = fixture(**own)
    if not inspect.isgenerator(made):
        return made
    # What follows its value runs when the test has ended.
    fixtures.callback(next, made, None)
    return next(made)


def _failed_line(error: BaseException) -> str:
    """The line of a test at which it failed."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f.line or "" for f in frames if re.search(r"[\\/]tests[\\/]", f.filename)]
    return lines[-1] if lines else ""
