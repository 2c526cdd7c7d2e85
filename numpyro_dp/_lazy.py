"""Public names that are imported on first use, so that a package can be used in part."""

from collections.abc import Callable, Mapping
from importlib import import_module


def on_first_use(
    module: str, home: Mapping[str, str], *also: str
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a module whose names live elsewhere.

    :param module: public name of the module, for refusals.
    :param home: full name of the module that each public name lives in.
    :param also: names that the module holds itself.
    """

    def found(name: str) -> object:
        if name not in home:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return getattr(import_module(home[name]), name)

    def names() -> list[str]:
        return [*sorted(home), *also]

    return found, names
