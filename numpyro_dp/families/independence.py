"""Do records show the same beside others? For guides whose models are not split into terms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.model.guided.model import Outline
from numpyro_dp.model.messages import explained

_ROWS, _TRIES, _BELOW = 3, 4, 10
_CLOSE = 1e-5


def require_independence(found: Outline, site: str, read: Callable[[list[Array]], Any]) -> None:
    """Refuse a site that shows otherwise beside other records, as far as made-up ones tell.

    The check protects correctness: records are read one at a time whatever happens here, and what
    a model takes from all of them, a mean say, would be of one record.

    :param found: the model's outline.
    :param site: the observed site.
    :param read: from some rows of each record array to what the site observes, rows first.
    :raises UnsupportedModelError: naming the site.
    """
    draw = np.random.default_rng(0)
    # Under a caller's trace these are constants all the same.
    with explained(found.plate, _ROWS), jax.ensure_compile_time_eval():
        same = all(_same(found, draw, read) for _ in range(_TRIES))
    if not same:
        raise UnsupportedModelError(
            f"what site `{site}` observes of a record depends on other records (words kept by how "
            "often they occur in all, a mean subtracted): prepare the records by public numbers, "
            "one at a time"
        )


def _same(found: Outline, draw: np.random.Generator, read: Callable[[list[Array]], Any]) -> bool:
    records = [
        jnp.asarray(draw.integers(0, _BELOW, leaf.struct(_ROWS).shape), leaf.dtype)
        for leaf in found.layout.arrays
    ]
    together = jax.tree.leaves(read(records))
    alone = [jax.tree.leaves(read([rows[i : i + 1] for rows in records])) for i in range(_ROWS)]
    return all(
        np.allclose(whole, np.concatenate(parts), rtol=_CLOSE, equal_nan=True)
        for whole, *parts in zip(together, *alone, strict=True)
    )
