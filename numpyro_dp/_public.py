"""What a caller declares public: the wrapper that says so, and what tells its values apart.

A private method takes the wrapper off before the model is called. Plain NumPyro (``NUTS``,
``Predictive``, ``log_likelihood``) knows nothing of it and hands it to the model, so it behaves
there as what it wraps. Only the wrapper is a declaration: whatever is read from it or computed of
it is an ordinary value, which nobody declared.
"""

import hashlib
import operator
import pickle
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.core import Tracer

from numpyro_dp._arrays import is_numeric
from numpyro_dp._shards import PaddedRecords

STATIC_TYPES = (bool, int, float, complex, str, bytes)
Token: TypeAlias = tuple[Any, ...]

_BINARY = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"),
    *("and", "or", "xor", "lshift", "rshift"),
)
_COMPARED = ("eq", "ne", "lt", "le", "gt", "ge")
_UNARY = ("neg", "pos", "abs", "invert", "index")


class PublicArray(np.ndarray):
    """A NumPy array that a traced index may pick from, as a record's own group does.

    NumPy's own would ask the index for its value.
    """

    def __getitem__(self, index: Any) -> Any:
        picked = index if isinstance(index, tuple) else (index,)
        if any(isinstance(each, Tracer) for each in picked):
            return jax.numpy.asarray(np.asarray(self))[index]
        return super().__getitem__(index)


@dataclass(frozen=True, eq=False)
class Public:
    """A model argument that its owner declared to hold nothing private. Made by :func:`public`."""

    value: Any

    def __repr__(self) -> str:
        kind = np.ndarray if type(self.value) is PublicArray else type(self.value)
        return f"public({kind.__name__})"

    def __getattr__(self, name: str) -> Any:
        # Not while it is unpickled, nor protocols that would take it for something else.
        if name == "value" or name.startswith("__"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.value, name)

    # NumPy's operators leave these to the wrapper, as they do for a JAX array.
    __array_priority__ = 1_000

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.value, dtype=dtype, copy=copy)

    def __jax_array__(self) -> jax.Array:
        return jax.numpy.asarray(self.value)

    def __getitem__(self, index: Any) -> Any:
        return self.value[_bare(index)]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.value(*args, **kwargs)

    def __contains__(self, item: Any) -> bool:
        return item in self.value

    def __iter__(self) -> Any:
        return iter(self.value)

    def __len__(self) -> int:
        return len(self.value)

    def __bool__(self) -> bool:
        return bool(self.value)

    def __int__(self) -> int:
        return int(self.value)

    def __float__(self) -> float:
        return float(self.value)

    # Equal values are asked of the wrapped; which wrapper it is, of its address.
    __hash__ = object.__hash__


def _bare(value: Any) -> Any:
    return value.value if isinstance(value, Public) else value


def _operators() -> dict[str, Callable[..., Any]]:
    """Python's operators, of what is wrapped."""

    def forward(apply: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, *other: apply(self.value, *map(_bare, other))

    def reflected(apply: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, other: apply(other, self.value)

    made = {
        f"__{name}__": forward(getattr(operator, f"__{name}__"))
        for name in (*_BINARY, *_COMPARED, *_UNARY)
    }
    return made | {f"__r{n}__": reflected(getattr(operator, f"__{n}__")) for n in _BINARY}


for _name, _method in _operators().items():
    setattr(Public, _name, _method)


class _Declared:
    """The wrapper as a constant of a program: one with equal values finds the same program."""

    def __init__(self, public: Public) -> None:
        self.public = public

    def __hash__(self) -> int:
        return hash(public_token(self.public.value))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Declared) and (
            self.public is other.public
            or public_token(self.public.value) == public_token(other.public.value)
        )


# Without leaves: what maps or traces the arguments of a model cannot take the declaration off.
jax.tree_util.register_pytree_node(
    Public, lambda public: ((), _Declared(public)), lambda declared, _: declared.public
)


def is_public(value: Any) -> bool:
    """Whether an argument was declared public; as ``is_leaf``, such arguments are leaves."""
    return isinstance(value, Public)


def public(value: Any) -> Public:
    """Declare a model argument public: it reaches the model as it is and is never protected.

    Use it for lookup tables, covariates of groups, knots of a spline, category names,
    configuration objects: things known before anybody's data were collected. A number *computed*
    from the data (a mean, the largest group label) is not public unless it was released by a
    private mechanism.

    The same arguments may be given to plain NumPyro (``NUTS``, ``SVI``, ``Predictive``,
    ``log_likelihood``), where the wrapper behaves as what it wraps; but as an index of a JAX array
    it is converted by hand, ``u[jnp.asarray(district)]``.

    :param value: any object or pytree; arrays inside are copied, so later edits have no effect.
    :returns: A wrapper to be put in the place of the argument, at any depth of a list or
        dictionary. Only the wrapper is a declaration: ``public(beds) / 100`` is an array like
        any other, to be declared in its turn.
    :raises ValueError: inside a JAX transformation, where values are not known.

    **Privacy.** No guarantee covers what is wrapped. It is kept with the model, hashed, and
    pickled.

    **References.** What may be declared public: *Covariates of groups*
    (docs/howto/covariates-of-groups.md).

    **Example**::

        >>> import numpy as np
        >>> public(np.array([0.0, 0.5, 1.0]))
        public(ndarray)
    """
    copied = jax.tree.map(_frozen_copy, value, is_leaf=is_public)
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(copied)):
        raise ValueError(
            "public was called inside a model or a JAX transformation, where a value may follow "
            "from a record: declare arguments where they are handed over, as in "
            "mcmc.run(key, numpyro_dp.public(table), x, y)"
        )
    return Public(copied)


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


def _frozen_copy(value: Any) -> Any:
    if isinstance(value, Public):
        return value.value
    if isinstance(value, PaddedRecords):
        return np.asarray(value)
    if not isinstance(value, np.ndarray):
        return value
    copy = value.copy()
    if type(copy) in (np.ndarray, np.memmap):
        copy = np.asarray(copy).view(PublicArray)
    copy.flags.writeable = False
    return copy
