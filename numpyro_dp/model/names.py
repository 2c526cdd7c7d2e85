"""What the arguments of a model are called in messages."""

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from typing import Any

import jax
import numpy as np
from numpyro.primitives import Messenger

# Parts of a message, and characters of them together.
_MOST, _LONGEST = 20, 600


def parameter_names(
    model: Callable[..., Any], model_args: Sequence[Any], model_kwargs: Mapping[str, Any]
) -> list[str]:
    """Names of the parameters that positional arguments go to."""
    while isinstance(model, Messenger) and callable(model.fn):
        # A handler that was used as a decorator has no signature of its model.
        model = model.fn
    try:
        bound = inspect.signature(model).bind_partial(*model_args, **model_kwargs)
    except (TypeError, ValueError):
        return [f"model_args[{i}]" for i in range(len(model_args))]
    names: list[str] = []
    for key, parameter in bound.signature.parameters.items():
        if key not in bound.arguments or key in model_kwargs:
            continue
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            names += [f"{key}[{i}]" for i in range(len(bound.arguments[key]))]
        elif parameter.kind is not inspect.Parameter.VAR_KEYWORD:
            names.append(key)
    return names


def coordinates_of(shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """What each number of these sites is called, such as ``w[2]``, site by site."""
    return [
        f"{site}[{','.join(map(str, at))}]" if at else site
        for site, shape in shapes.items()
        for at in np.ndindex(*shape)
    ]


def labelled(site: str, shape: tuple[int, ...], labels: Sequence[Any]) -> list[str]:
    """What somebody calls the numbers of a site, row by row, such as ``w[age]``.

    :raises ValueError: for labels of another number.
    """
    if not isinstance(labels, Sized):
        raise ValueError(f"labels[{site!r}] must be a row of names, such as the columns of a table")
    if len(labels) != math.prod(shape):
        raise ValueError(
            f"labels[{site!r}] names {len(labels)} coordinates, the site has {math.prod(shape)}"
        )
    return [f"{site}[{label}]" if shape else site for label in labels]


def path_name(path: tuple[Any, ...], names: list[str]) -> str:
    """What a leaf of the arguments is called: its parameter, and the way to it."""
    which, first, *rest = path
    if which.idx == 0 and first.idx < len(names):
        root = names[first.idx]
    else:
        root = f"model_args[{first.idx}]" if which.idx == 0 else str(first.key)
    return root + jax.tree_util.keystr(tuple(rest))


def quoted(names: Iterable[str]) -> str:
    """Join names for a message."""
    return joined(f"`{name}`" for name in names)


def joined(parts: Iterable[str], separator: str = ", ") -> str:
    """Join parts of a message, as many as somebody reads.

    Of more it does not say how many: that may be the number of records.
    """
    given = list(parts)
    shown: list[str] = []
    for part in given[:_MOST]:
        if shown and len(separator.join((*shown, part))) > _LONGEST:
            break
        shown.append(part)
    return separator.join(shown) + (" and others" if len(shown) < len(given) else "")
