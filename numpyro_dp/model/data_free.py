"""A model without its records: the global sites, as they are, and nothing of the private plate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import random
from numpyro.primitives import Messenger

from numpyro_dp.model.plates import WholePlates, in_plate
from numpyro_dp.model.private_model import PrivateModel


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
    rows = [jnp.full(s.shape, 0.5, s.dtype) for s in model.layout.structs(model.num_records)]
    body = _OutsidePlate(WholePlates(model.function), model.plate, model.dropped_deterministics)
    args, kwargs = model.layout.fill(rows)
    body(*args, **kwargs)
