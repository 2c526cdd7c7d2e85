"""A plate of all rows around what reads the records, for models that were written without one.

``data_plate="auto"`` asks for it. The model is wrapped before anything of it is judged: from there
on it is a model like any other, and what judges those judges it.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpyro
from numpyro.infer import init_to_uniform
from numpyro.primitives import Messenger

from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.model.messages import with_causes
from numpyro_dp.model.names import quoted
from numpyro_dp.model.records import ArrayLeaf, Layout
from numpyro_dp.model.structure import (
    AUTO,
    RECORDS,
    Structure,
    read_structure,
    sites_of_rows,
    why_not_rows,
)

Model = Callable[..., Any]


def read_with_plate(
    model: Model, layout: Layout, data_plate: str | None, private_size: bool
) -> tuple[Model, Structure]:
    """Read a model's structure, after a plate of all rows went round its outcome if it is to.

    :param data_plate: ``"auto"`` asks for that plate, where no plate encloses a site that reads
        the records; otherwise nothing is changed.
    :returns: The model, or :class:`InPlateOfRows` of it, and the structure of what is returned.
    :raises UnsupportedModelError: the plate is asked for and goes round no such model.
    """
    structure = read_structure(model, layout, init_to_uniform(), private_size=private_size)
    sites = sites_of_rows(structure)
    has_plate = any(site.plates for site in structure.sites if site.name in sites)
    # What observes nothing is refused as such.
    if data_plate != AUTO or has_plate or not structure.of_kind("observed", "factor"):
        return model, structure
    with with_causes(structure, layout):
        reason = why_not_rows(structure)
        if reason is not None:
            raise UnsupportedModelError(
                f'`data_plate="auto"` finds no record in each row of the arguments: {reason}'
            )
    place = next(i for i, leaf in enumerate(layout.leaves) if isinstance(leaf, ArrayLeaf))
    inside = InPlateOfRows(model, RECORDS, layout.tree, place, sites)
    structure = read_structure(inside, layout, init_to_uniform(), private_size=private_size)
    missed = [name for name in sites if name not in structure.inside(RECORDS, "observed", "factor")]
    if missed:
        raise UnsupportedModelError(
            f'`data_plate="auto"` does not reach site(s) {quoted(missed)}, which a handler or '
            "`block_plates` keeps out of plates: write `with numpyro.plate("
            f'"data", {layout.arrays[0].name}.shape[0]):` around them'
        )
    return inside, structure


class InPlateOfRows:
    """A model whose named sites lie in a plate of all rows of its record arguments.

    It is the model that was written with ``with numpyro.plate(name, x.shape[0]):`` around these
    sites, in everything that a handler can see.

    :param model: a model in which no plate is around these sites.
    :param plate: the name of the plate.
    :param tree: structure of the model's arguments.
    :param place: which of its leaves is a record argument.
    :param sites: names of the sites.
    """

    def __init__(
        self, model: Model, plate: str, tree: Any, place: int, sites: tuple[str, ...]
    ) -> None:
        # Its signature, its name, and the code that a lint reads.
        functools.update_wrapper(self, model, updated=())
        self.model, self.plate, self.tree, self.place, self.sites = model, plate, tree, place, sites

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model; the number of rows is that of the arguments of this call."""
        rows = jnp.shape(self.tree.flatten_up_to((args, kwargs))[self.place])[0]
        with _AroundSites(numpyro.plate(self.plate, rows, dim=-1), self.sites):
            return self.model(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, InPlateOfRows) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @property
    def _identity(self) -> tuple[Any, ...]:
        return self.model, self.plate, self.tree, self.place, self.sites


class _AroundSites(Messenger):
    """A plate around some sites alone."""

    def __init__(self, around: numpyro.plate, sites: tuple[str, ...]) -> None:
        super().__init__()
        self.around, self.sites = around, sites

    def process_message(self, msg: dict[str, Any]) -> None:
        """Let the plate answer for its sites."""
        if msg["type"] == "sample" and msg["name"] in self.sites:
            # Nothing is drawn here, and a plate alone would make it part of the law.
            msg["kwargs"]["sample_shape"] = ()
            self.around.process_message(msg)


def unit_of(model: Model | None, plate: str) -> str:
    """The unit of privacy of a model, in words."""
    if isinstance(model, InPlateOfRows):
        return (
            'one row of the record arguments, which data_plate="auto" took for a record '
            f"(plate '{plate}')"
        )
    return slice_of(plate)


def slice_of(plate: str) -> str:
    """The unit of privacy of a model with a plate of its own."""
    return f"one slice of plate '{plate}'"
