"""What a record's outcome might have been: every value of it, and its law given the inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.primitives import Messenger

from numpyro_dp._plate import RowRun, row_sites
from numpyro_dp._programs import require_no_closure, require_one_record, require_own_gradient
from numpyro_dp._prune import Pruned, prune, trace_program
from numpyro_dp._structure import Structure, explained, quoted
from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.records import Layout

__all__ = ["Outcomes", "enumerate_outcomes"]

_MOST = 64


class Outcomes(NamedTuple):
    """Programs of one record that take values of parameters and latents, then its arrays.

    - **terms**: log likelihood of the record with each outcome in turn, shape (outcomes,).
    - **law**: log probability of each outcome at the record's inputs, shape (outcomes,).
    """

    terms: Pruned
    law: Pruned


class _Outcome(Messenger):
    """Put another value in the place of an observed one."""

    def __init__(self, fn: Callable[..., Any], site: str, value: jax.Array) -> None:
        super().__init__(fn)
        self.site, self.value = site, value

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "sample" and msg["name"] == self.site:
            msg["value"] = self.value.astype(jnp.result_type(msg["value"]))


def enumerate_outcomes(
    model: Callable[..., Any],
    layout: Layout,
    structure: Structure,
    plate: str,
    num_records: int,
    values: Mapping[str, Any],
) -> Outcomes:
    """Trace the outcomes of one record.

    Raises:
        UnsupportedModelError: unless the plate has one observed site, with at most 64 values,
            and no latents of its own.
    """
    inside = [s for s in structure.sites if s.inside(plate)]
    observed = [s.name for s in inside if s.kind == "observed"]
    others = [s.name for s in inside if s.kind in ("latent", "discrete", "factor")]
    if len(observed) != 1 or others:
        raise UnsupportedModelError(
            f"clip='centred' needs one observed site in plate `{plate}` and nothing else, but "
            f"there is {quoted([*observed, *others])}: use clip='plain'"
        )
    site = observed[0]

    def support(values: dict[str, Any], arrays: list[Any]) -> tuple[jax.Array, jax.Array]:
        found = row_sites(model, plate, num_records, values, layout.fill(arrays), None, 1)[site]
        fn = found["fn"]
        if not fn.has_enumerate_support or fn.event_shape:
            raise UnsupportedModelError(
                f"clip='centred' needs outcomes that can be listed, and those of site `{site}` "
                "cannot: use clip='plain'"
            )
        listed = fn.enumerate_support(expand=True)
        if listed.shape[0] > _MOST or int(np.prod(listed.shape[1:])) != 1:
            raise UnsupportedModelError(
                f"clip='centred' needs one outcome a record with at most {_MOST} values, and "
                f"site `{site}` has {listed.shape}: use clip='plain'"
            )
        return listed, fn.log_prob(listed).reshape(listed.shape[0])

    def law(values: dict[str, Any], arrays: list[Any]) -> jax.Array:
        return support(values, arrays)[1]

    def terms(values: dict[str, Any], arrays: list[Any]) -> jax.Array:
        def term(outcome: jax.Array) -> jax.Array:
            run = RowRun(_Outcome(model, site, outcome), plate, num_records, 0)
            return run(values, layout.fill(arrays), jax.random.key(0), 1)

        return jax.vmap(term)(support(values, arrays)[0])

    return Outcomes(*(_traced(part, values, layout, plate, num_records) for part in (terms, law)))


def _traced(
    part: Callable[..., Any], values: Mapping[str, Any], layout: Layout, plate: str, size: int
) -> Pruned:
    with explained(plate, 1):
        program = trace_program(part, dict(values), [leaf.struct(1) for leaf in layout.arrays])
    pruned = prune(program, [True])
    require_one_record(pruned)
    require_no_closure(pruned, layout, size)
    require_own_gradient(pruned, layout, size, len(jax.tree.leaves(dict(values))))
    return pruned
