"""Objects that were judged, and therefore must not change; tokens that tell when values did."""

import hashlib
import pickle
from collections.abc import Hashable
from typing import Any, NoReturn, TypeAlias

import jax
import numpy as np

from numpyro_dp._arrays import is_numeric

STATIC_TYPES = (bool, int, float, complex, str, bytes)
Token: TypeAlias = tuple[Any, ...]


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


def static_token(value: Any) -> Token:
    """What stands for a plain value, its type included."""
    # repr tells 1 from True from 1.0, and a NaN from nothing else: == does neither.
    if value is None or isinstance(value, STATIC_TYPES):
        return (type(value), repr(value))
    return (type(value), value if isinstance(value, Hashable) else id(value))


def public_token(value: Any) -> Token:
    """What stands for a public value; of arrays a digest."""
    leaves, tree = jax.tree.flatten(value)
    return (tree, *map(_public_leaf_token, leaves))


def _public_leaf_token(value: Any) -> Token:
    if isinstance(value, (np.ndarray, np.generic, jax.Array)) and is_numeric(value):
        array = np.ascontiguousarray(np.asarray(value))
        return (array.shape, str(array.dtype), hashlib.sha256(array.tobytes()).hexdigest())
    if isinstance(value, STATIC_TYPES):
        return static_token(value)
    try:
        return (type(value), hashlib.sha256(pickle.dumps(value)).hexdigest())
    except Exception:
        # Not picklable: only the very same object counts as equal.
        return (type(value), id(value))
