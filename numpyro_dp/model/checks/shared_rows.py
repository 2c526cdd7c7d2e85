"""Record arguments of which one value stands in the rows of two records.

The lag of a series as a column, ``y[:-1]`` beside ``y[1:]``, or windows of one: the records are no
longer one person's each, and an ε that is true of a row is half of what a value spends. Where the
arrays lie tells it; no value is looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from numpyro_dp.errors import UnsupportedModelError


def require_rows_of_their_own(names: Sequence[str], arrays: Sequence[Any]) -> None:
    """Refuse record arguments whose rows share memory with other rows.

    :param names: of the arguments, for the message.
    :param arrays: as they were given; others than NumPy's are copies or tell nothing.
    :raises UnsupportedModelError: naming both arguments, with the remedy.
    """
    told = [
        (name, array)
        for name, array in zip(names, arrays, strict=True)
        # A row that is repeated by a stride of none holds nothing of one record's own.
        if isinstance(array, np.ndarray) and array.ndim and len(array) > 1 and array.strides[0]
    ]
    for (name, array), (other, beside) in product(told, repeat=2):
        if _first_among_later(array, beside):
            same = name == other
            raise UnsupportedModelError(
                f"rows of argument `{name}` share memory with other rows of "
                f"{'it' if same else f'`{other}`'}, as the lags or windows of a time series do: "
                "one value would stand in several records, and spend their ε together. Make each "
                "person a record whose array holds that person's series, of whose values the "
                "terms may depend on each other; or pass a copy (`.copy()`) if a row is all that "
                "is to be protected"
            )


def _first_among_later(array: np.ndarray, beside: np.ndarray) -> bool:
    # Bounds first: they are known at once.
    first, later = array[:1], beside[1:]
    return np.may_share_memory(first, later) and np.shares_memory(first, later)
