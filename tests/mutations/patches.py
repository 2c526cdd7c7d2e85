"""What several mutations need to break."""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpyro_dp.accounting.bounds import proved

if TYPE_CHECKING:
    import pytest


class Instead:
    """A module in which some names mean something else."""

    def __init__(self, module: Any, **changed: Any) -> None:
        self._module, self._changed = module, changed

    def __getattr__(self, name: str) -> Any:
        return self._changed[name] if name in self._changed else getattr(self._module, name)


def everywhere(patch: pytest.MonkeyPatch, honest: Any, broken: Any) -> None:
    """Put ``broken`` where any module, a test's included, has imported ``honest``."""
    for name, module in list(sys.modules.items()):
        if name.startswith(("numpyro_dp", "tests.")):
            for place, value in list(vars(module).items()):
                if value is honest:
                    patch.setattr(module, place, broken)


def proof(patch: pytest.MonkeyPatch, event: type, seen: Any) -> None:
    """Let what is proved of an event be that of ``seen(event)``."""
    honest = proved._PROOFS[event]
    patch.setitem(proved._PROOFS, event, lambda e, relation: honest(seen(e), relation))


def one_key(key: Any, number: int = 2) -> tuple[Any, ...]:
    """In place of ``jax.random.split``: the same key again and again."""
    return (key,) * number


@cache
def _rows() -> dict[str, Any]:
    text = (Path(__file__).parents[1] / "vectors.json").read_text(encoding="utf-8")
    return {row["name"]: row for row in json.loads(text)["rows"]}


def row(name: str) -> Any:
    """A row of the reference values."""
    return _rows()[name]
