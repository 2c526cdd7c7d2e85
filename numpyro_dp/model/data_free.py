"""A model without its records: its global sites as they are, and which of them a record reads."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from numpyro import handlers
from numpyro.primitives import Messenger

from numpyro_dp.model.jaxprs import fingerprint, prune, trace_program
from numpyro_dp.model.plates import WholePlates, in_plate
from numpyro_dp.model.private_model import PrivateModel

FEW_ROWS = 3


class _OutsidePlate(Messenger):
    """Hide a plate and everything in it, and deterministic sites that read a record."""

    def __init__(self, fn: Callable[..., Any], plate: str, hidden: tuple[str, ...]) -> None:
        super().__init__(fn)
        self.plate, self.hidden = plate, hidden

    def process_message(self, msg: dict[str, Any]) -> None:
        """Let no handler outside see what belongs to records."""
        if msg["type"] == "plate":
            msg["stop"] = msg["name"] == self.plate
        elif msg["type"] == "deterministic":
            msg["stop"] = msg["name"] in self.hidden
        elif msg["type"] == "sample" and in_plate(msg, self.plate):
            msg["stop"] = True
            if msg["value"] is None:
                # Nothing outside the plate reads it: the model was split.
                msg["value"] = msg["fn"].sample(random.key(0), msg["kwargs"]["sample_shape"])


def run_data_free(model: PrivateModel) -> None:
    """Run a split model on placeholders in place of its records, for its global sites.

    That these do not depend on a record was proved when the model was split.
    """
    _run(model, enough_rows(model))


def _run(model: PrivateModel, num_rows: int) -> None:
    rows = [jnp.full(s.shape, 0.5, s.dtype) for s in model.layout.structs(num_rows)]
    body = _OutsidePlate(WholePlates(model.function), model.plate, model.dropped_deterministics)
    args, kwargs = model.layout.fill(rows)
    body(*args, **kwargs)


@lru_cache(maxsize=64)
def enough_rows(model: PrivateModel) -> int:
    """As few rows of placeholders as tell the global sites all that the records' own number does.

    NumPyro runs models outside of programs too, where as many rows take as much memory.
    """
    few = min(FEW_ROWS, model.num_records)
    # Whatever a model makes of few rows (a public array that has one entry for each, say): it is
    # run on all of them then.
    with contextlib.suppress(Exception):
        if _global_sites(model, few) == _global_sites(model, model.num_records):
            return few
    return model.num_records


@lru_cache(maxsize=64)
def read_latents(model: PrivateModel) -> frozenset[str]:
    """Latents whose unconstrained values a record's term reads, by itself or by their supports.

    Of the others, such as the scale of groups, records tell through these and the prior alone.
    """
    latents = dict(model.structure.latents)
    program = trace_program(model.record_log_likelihood, latents, model.layout.structs(1))
    used = prune(program).used[: len(latents)]
    return frozenset(name for name, needed in zip(sorted(latents), used, strict=True) if needed)


@lru_cache(maxsize=64)
def pooled_latents(model: PrivateModel) -> frozenset[str]:
    """Latents whose law is learned: it reads others that no record's term reads.

    Effects of groups, say, under a mean and scale of all of them. A law that reads what records
    tell of directly, such as the scale of outcomes, is none.
    """
    latents = dict(model.structure.latents)
    unread = set(latents) - read_latents(model)

    def law(z: dict[str, Any], name: str) -> Any:
        body = handlers.substitute(lambda: run_data_free(model), data=model.constrain(z))
        with handlers.block():
            sites = handlers.trace(handlers.seed(body, random.key(0))).get_trace()
        return sites[name]["fn"].log_prob(sites[name]["value"])

    found = set()
    for name in read_latents(model) if unread else ():
        program = trace_program(lambda z, name=name: law(z, name), latents)
        used = prune(program).used
        if any(on and each in unread for each, on in zip(sorted(latents), used, strict=True)):
            found.add(name)
    return frozenset(found)


def read_coordinates(model: PrivateModel) -> list[bool]:
    """Which unconstrained coordinates, in the order of their names, a record's term reads."""
    latents, read = model.structure.latents, read_latents(model)
    return [name in read for name in sorted(latents) for _ in np.ndindex(*latents[name].shape)]


def _global_sites(model: PrivateModel, num_rows: int) -> tuple[Any, ...]:
    """What computes the global sites, as a value; equal only where the same is computed."""
    plates: list[tuple[Any, ...]] = []

    def traced(key: Any) -> dict[str, Any]:
        found = {}
        # Whoever runs the model has handlers of their own.
        with handlers.block(), handlers.trace() as sites, handlers.seed(rng_seed=key):
            _run(model, num_rows)
        for name, site in sites.items():
            if site["type"] == "plate":
                plates.append((name, site["args"], site.get("cond_indep_stack")))
            else:
                found[name] = {k: site.get(k) for k in ("fn", "value", "scale", "is_observed")}
                plates.append((name, site["type"], site.get("cond_indep_stack"), site.get("infer")))
        return found

    program = trace_program(traced, jax.eval_shape(lambda: random.key(0)))
    return fingerprint(prune(program)), str(jax.tree.structure(program.out)), str(plates)
