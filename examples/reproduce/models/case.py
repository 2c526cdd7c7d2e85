"""What a model of the page *Models by name* is tried on, and how it is found by its row."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np


class Case(NamedTuple):
    """A model and made-up records for it.

    - **model**: as the page says that it is written.
    - **records**: its arguments, NumPy arrays or what is public.
    - **refused**: the model as a textbook writes it, where that is refused and its message names
      the change that leads to ``model``; ``None`` where the textbook's is taken as it is.
    - **options**: of `DPNUTS`, beside the budget.
    """

    model: Callable[..., Any]
    records: tuple[Any, ...]
    refused: Callable[..., Any] | None = None
    options: Mapping[str, Any] = {}


Maker = Callable[[np.random.Generator], Case]

# By row of the page, then by name of the case: a row may have several.
CASES: dict[str, dict[str, Maker]] = {}


def case(row: str) -> Callable[[Maker], Maker]:
    """Say which row of the page a maker is of; its name is the function's."""

    def known(maker: Maker) -> Maker:
        CASES.setdefault(row, {})[maker.__name__] = maker
        return maker

    return known
