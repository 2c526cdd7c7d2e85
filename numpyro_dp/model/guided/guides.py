"""Guides made without data, and those that cannot be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.infer import autoguide
from numpyro.primitives import Messenger

from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.model.checks.closures import refuse_captured_arrays
from numpyro_dp.model.jaxprs import fingerprint, prune, trace_program
from numpyro_dp.model.plates import WholePlates, in_plate
from numpyro_dp.model.records import Layout

_REFUSED = {
    autoguide.AutoLaplaceApproximation: (
        "its covariance is the Hessian of the data's own log density, an un-noised release: use "
        "`AutoNormal` with scale='curvature', which releases the curvature with noise"
    ),
    autoguide.AutoDAIS: (
        "it runs Hamiltonian steps on the density of the data inside the guide: use "
        "`AutoMultivariateNormal` or `AutoIAFNormal`"
    ),
    autoguide.AutoSemiDAIS: (
        "it runs Hamiltonian steps on the density of the data inside the guide: use a "
        "hand-written guide for the records' latents"
    ),
    autoguide.AutoGuideList: (
        "its parts each run the model on the data when they are set up: write one guide with "
        "`numpyro.param` and `numpyro.sample`"
    ),
}


class _WithoutRecords:
    """A model run on made-up records whose sites count for nothing; takes and ignores arguments.

    Autoguides run their model to learn its latents, and keep closures over the arguments. This
    is what they get instead: prior, supports and shapes are the model's own.
    """

    # Also of what was pickled before there were few.
    rows: int | None = None

    def __init__(
        self,
        model: Callable[..., Any],
        layout: Layout,
        plate: str,
        hidden: Sequence[str],
        rows: int | None,
    ) -> None:
        self.model, self.layout, self.plate = model, layout, plate
        self.hidden, self.rows = tuple(hidden), rows

    def __call__(self, *_: Any, **__: Any) -> Any:
        args, kwargs = synthetic_arguments(self.layout, self.rows)
        silent = _Silent(WholePlates(self.model), self.plate)
        # Made-up records need not be what NumPyro asks of a parameter, such as whole trials.
        with dist.distribution.validation_enabled(False):
            return handlers.block(silent, hide=list(self.hidden))(*args, **kwargs)


class _Silent(Messenger):
    """Mask the sites of the private plate; its discrete latents are hidden, and always 0."""

    def __init__(self, fn: Callable[..., Any], plate: str) -> None:
        super().__init__(fn)
        self.plate = plate

    def process_message(self, msg: dict[str, Any]) -> None:
        """Mask, or answer and hide."""
        if msg["type"] != "sample" or not in_plate(msg, self.plate):
            return
        if not msg["is_observed"] and msg["fn"].support.is_discrete:
            msg["value"] = jnp.zeros(msg["fn"].shape(), int)
            msg["stop"] = True
        msg["fn"] = msg["fn"].mask(False)


def synthetic_arguments(
    layout: Layout, rows: int | None = None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with constants in the place of every record array.

    :param layout: the arguments of the model, without values.
    :param rows: how many records; ``None`` for as many as there are.
    """
    arrays = [
        jnp.full(each.shape, 0.5 if jnp.issubdtype(each.dtype, jnp.inexact) else 0, each.dtype)
        for each in layout.structs(rows)
    ]
    return layout.fill(arrays)


def same_on(rows: int, start: Callable[[int | None, Any], Any], key: Any) -> bool:
    """Say whether a start computes the same from few made-up records as from all of them.

    :param rows: few.
    :param start: what of made-up records, ``None`` for all, and of a key is computed; nothing is.
    :param key: of the kind that it is started with.
    """

    def computed(rows: int | None) -> tuple[Any, str]:
        program = trace_program(partial(start, rows), key)
        return fingerprint(prune(program)), str(jax.tree.structure(program.out))

    return computed(rows) == computed(None)


def prepare(
    guide: Callable[..., Any],
    layout: Layout,
    plate: str,
    hidden: Sequence[str] = (),
    rows: int | None = None,
) -> None:
    """Have an autoguide learn its model without data; other guides are left alone.

    :param guide: an autoguide, which is changed in place (as NumPyro itself does at first use), or
        any callable.
    :param layout: the arguments of the model, without values.
    :param plate: the private plate.
    :param hidden: deterministic sites that read a record, which the guide must not compute.
    :param rows: made-up records that its model is run on; ``None`` for as many as there are.
    :raises UnsupportedModelError: for an autoguide that needs data, or that has seen some already.
    """
    for kind, reason in _REFUSED.items():
        if isinstance(guide, kind):
            raise UnsupportedModelError(f"{type(guide).__name__} cannot be private: {reason}")
    if not isinstance(guide, autoguide.AutoGuide):
        return
    inner = guide.model
    if isinstance(inner, _WithoutRecords):
        same = (inner.layout, inner.plate, inner.hidden) == (layout, plate, tuple(hidden))
        # One that was set up on all needs no few.
        if same and inner.rows in (None, rows):
            return
        inner = inner.model
    elif guide.prototype_trace is not None:
        raise UnsupportedModelError(
            f"this {type(guide).__name__} was already set up, and holds the data that it saw: "
            "make a new one and use it here only"
        )
    guide.model = _WithoutRecords(inner, layout, plate, hidden, rows)
    guide.prototype_trace = None


def require_public_start(
    guide: Callable[..., Any],
    layout: Layout,
    num_records: int,
    records: Sequence[Any] = (),
    model: Callable[..., Any] | None = None,
) -> None:
    """Refuse a guide whose code names the records: a fit would start at them.

    Asked before every run, since the guide runs in each, and its globals may have changed.

    :param guide: any callable; of an autoguide its model and ``init_loc_fn`` are read as well.
    :param layout: the model's arguments, some of them declared public.
    :param num_records: number of records.
    :param records: the record arguments as they were given.
    :param model: what was read already, and need not be again as the guide's own.
    :raises UnsupportedModelError: with the array's name and the remedy.
    """
    read = partial(refuse_captured_arrays, layout=layout, num_records=num_records, arrays=records)
    read(guide, whose="the guide")
    if not isinstance(guide, autoguide.AutoGuide):
        return
    own = guide.model.model if isinstance(guide.model, _WithoutRecords) else guide.model
    if own is not model:
        read(own, whose="the autoguide's model")
    remedy = "It has to be free of data: compute it from public numbers alone"
    read(guide.init_loc_fn, whose="init_loc_fn=", remedy=remedy)
