"""Objects that were judged, and therefore must not change."""

from collections.abc import Hashable
from typing import Any, NoReturn


class Frozen:
    """A value that was judged: no attribute of it changes, and its identity says what equals it."""

    _identity: Hashable
    _hash: int

    def _keep(self, identity: Hashable, **attributes: Any) -> None:
        self.__dict__.update(attributes, _identity=identity, _hash=hash(identity))

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is frozen: cannot set {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is frozen: cannot delete {name!r}")

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self._identity == other._identity
