"""Outcomes that are the same of all who are asked: how probable something is, and none observed.

Such a term of the likelihood is no outcome: what else might have been observed there never was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from numpyro.distributions import constraints

from numpyro_dp.model.guided.reads import Read
from numpyro_dp.model.jaxprs import prune, trace_program
from numpyro_dp.model.plates import Trace, peeled

Part = Callable[[jax.Array, jax.Array], jax.Array]


def fixed_outcomes(sites_of: Callable[[Any, list], Trace], values: Any, structs: list) -> list[str]:
    """Observed sites whose outcome no record decides, or is always 0 or always 1 where asked.

    :param sites_of: the sites of one record at values and arrays.
    :param values: parameters and latents, or their shapes; **structs**: the record's arrays.
    """
    leaves = [*jax.tree.leaves(values), *structs]
    record = range(len(leaves) - len(structs), len(leaves))
    masked: dict[str, bool] = {}

    def look(values: Any, record: list) -> None:
        for name, site in sites_of(values, record).items():
            if site["is_observed"]:
                law = peeled(site["fn"])
                masked[name] = law.fn.support is constraints.boolean and law.kept is not True

    def read(name: str, what: Part) -> Read:
        def part(values: Any, record: list) -> jax.Array:
            site = sites_of(values, record)[name]
            return what(jnp.asarray(site["value"]), jnp.asarray(peeled(site["fn"]).kept))

        return Read(prune(trace_program(part, values, structs)), leaves, record)

    def where_asked(name: str) -> bool:
        """Whether it is always 0 or always 1, of a mask that the record decides."""

        def told(shown: jax.Array, kept: jax.Array) -> jax.Array:
            each = [~kept | (shown == 0), ~kept | (shown == 1), ~kept]
            return jnp.stack([jnp.all(part) for part in each])

        found = read(name, told)
        nought, one, nobody = found.truths() if found.arrays else (False, False, True)
        return bool((nought or one) and not nobody)

    jax.eval_shape(look, values, structs)
    return [
        name
        for name, some in masked.items()
        if (some and where_asked(name)) or not read(name, lambda shown, _: shown).arrays
    ]
