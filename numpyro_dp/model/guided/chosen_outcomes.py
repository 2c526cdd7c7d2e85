"""Outcomes that another outcome of the record decides about, as a cost where there is one.

What else a record might have shown is drawn at its own inputs and masks. Where a mask reads another
outcome, the record's own outcome and those drawn would not be alike: all who have a cost say that
they have one, and their scores, of two parts, are clipped more than those of the others. If each
outcome is an argument as it is, all of them are drawn in turn, and masks follow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import random

from numpyro_dp.model.jaxprs import prune, trace_program
from numpyro_dp.model.plates import Trace, peeled, row_sites
from numpyro_dp.model.private_model import PrivateModel


class Chosen(NamedTuple):
    """Outcomes that a mask makes hang on another outcome.

    - **sites**: their names.
    - **places**: the record array that each observed site observes as it is, by its name in the
      order of the model, if all of them can be drawn in turn; else empty.
    """

    sites: tuple[str, ...] = ()
    places: Mapping[str, int] = {}

    @property
    def unlike(self) -> tuple[str, ...]:
        """Those of which nothing is drawn as the record's own came about."""
        return () if self.places else self.sites


def chosen_outcomes(sites_of: Callable[[Any, list], Trace], values: Any, structs: list) -> Chosen:
    """Look at the masks of one record's observed sites.

    Arrays of one number a record are looked at: of a table it is not known which column is read,
    and one that says what is missing is no outcome.

    :param sites_of: the sites of one record at values and arrays.
    :param values: parameters and latents, or their shapes; **structs**: the record's arrays.
    """
    places: dict[str, int | None] = {}

    def parts(values: Any, record: list) -> list[Any]:
        found = sites_of(values, record)
        sites = {name: site for name, site in found.items() if site["is_observed"]}
        for name, site in sites.items():
            places[name] = next((i for i, x in enumerate(record) if x is site["value"]), None)
        shown = [jnp.asarray(site["value"]) for site in sites.values()]
        return shown + [jnp.asarray(peeled(site["fn"]).kept) for site in sites.values()]

    program = trace_program(parts, values, structs)
    behind, count = len(jax.tree.leaves(values)), len(places)

    def read(k: int) -> set[int]:
        used = prune(program, [k == each for each in range(2 * count)]).used[behind:]
        return {i for i, is_used in enumerate(used) if is_used and structs[i].size == 1}

    shown, asked = [read(k) for k in range(count)], [read(count + k) for k in range(count)]
    chosen = tuple(
        name
        for k, name in enumerate(places)
        if any(asked[k] & shown[other] for other in range(count) if other != k)
    )
    # A mask that reads its own outcome tells who is missing, which a draw would not be.
    in_turn = not any(one & other for one, other in zip(shown, asked, strict=True))
    known = {name: place for name, place in places.items() if place is not None}
    alone = len(set(known.values())) == count
    return Chosen(chosen, known if chosen and in_turn and alone else {})


@lru_cache(maxsize=16)
def unlike_outcomes(model: PrivateModel) -> tuple[str, ...]:
    """Outcomes of a split model that hang on another one, and cannot be drawn in turn."""
    if len(model.structure.inside(model.plate, "observed")) < 2:
        return ()

    def sites_of(values: Any, record: list) -> Trace:
        shared = model.function, model.plate, model.num_records
        return row_sites(*shared, values, model.layout.fill(record), random.key(0), 1)

    return chosen_outcomes(sites_of, model.programs.constrained, model.layout.structs(1)).unlike
