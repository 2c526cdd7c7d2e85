"""What a record counts for, where ``handlers.scale`` says so: survey weights, tempering.

A record that counts w times has scores of w times the size, and w times, not w², the information.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from numpyro.distributions.util import is_identically_one

from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.model.guided.chosen_outcomes import Read, parts_of
from numpyro_dp.model.jaxprs import Pruned, trace_program
from numpyro_dp.model.names import quoted


def record_scale(
    sites_of: Callable[[Any, list], list[Mapping[str, Any]]],
    values: Any,
    structs: list,
    names: tuple[str, ...],
    asker: str,
    instead: str,
) -> Pruned | None:
    """A program of the one number that a record counts for; ``None`` where each counts once.

    :param sites_of: the observed sites of one record at values and arrays.
    :param values: parameters and latents, or their shapes; **structs**: the record's arrays.
    :param names: of the sites.
    :param asker: who asks, as the subject of a refusal; **instead**: what may be done instead.
    :raises UnsupportedModelError: it is several numbers, or hangs on what is observed.
    """
    plain: list[bool] = []

    def parts(values: Any, record: list) -> list[Any]:
        sites = sites_of(values, record)
        scales = [1.0 if site["scale"] is None else site["scale"] for site in sites]
        plain.append(all(map(is_identically_one, scales)))
        shown = [jnp.asarray(site["value"]) for site in sites]
        return [jnp.asarray(each, float) for each in scales] + shown

    program = trace_program(parts, values, structs)
    if plain[0]:
        return None
    each = parts_of(program)
    scales, shown = each[: len(names)], each[len(names) :]
    leaves = [*jax.tree.leaves(values), *structs]
    record = range(len(leaves) - len(structs), len(leaves))
    counts = [Read(part, leaves, record) for part in scales]
    if math.prod(scales[0].out_shapes[0]) > 1 or any(part != counts[0] for part in counts):
        raise UnsupportedModelError(
            f"{asker} takes one number that a record counts for, and those of {quoted(names)} are "
            "several: put one handlers.scale, of one number a record, round all of them; "
            f"{instead}"
        )
    read = counts[0].entries()
    if any(read & Read(part, leaves, record).entries() for part in shown):
        raise UnsupportedModelError(
            f"what a record counts for hangs on its own outcome (handlers.scale reads what "
            f"{quoted(names)} observes), and {asker} draws what might have been observed: let "
            f"inputs alone decide what it counts for; {instead}"
        )
    return scales[0]
