"""The wall for variational inference: a bound as one part without data and one term per record.

Like :mod:`numpyro_dp.model.private_model`, but for a model with a guide. The part outside the
private plate (prior, entropy of the guide, its draws) is what dead-code elimination leaves of a
trace in which no value exists; a record's term is model and guide run on that record's row alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from numpyro.infer import autoguide, init_to_uniform

from numpyro_dp import _validate
from numpyro_dp._arrays import LARGE, x64
from numpyro_dp._shards import row_numbers
from numpyro_dp._sources import Reading
from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.model.checks.closures import refuse_captured_arrays, require_all_handed
from numpyro_dp.model.checks.shared_rows import require_rows_of_their_own
from numpyro_dp.model.data_free import FEW_ROWS, enough_rows
from numpyro_dp.model.frozen import Frozen
from numpyro_dp.model.guided.elbo import ModelAndGuide, TracedElbo, check_sum, trace_bound
from numpyro_dp.model.guided.outcomes import CENTRED_CLIP, Outcomes, Simulated, possible_outcomes
from numpyro_dp.model.messages import with_causes
from numpyro_dp.model.private_model import PrivateModel, private_model
from numpyro_dp.model.records import Layout, as_records, read_arguments
from numpyro_dp.model.rows_plate import InPlateOfRows, read_with_plate, unit_of
from numpyro_dp.model.structure import choose_plate, read_structure, require_supported_sites

Params = Mapping[str, Any]
# Folded into a step's key for the outcomes that are drawn, apart from the guide's own draws.
_OUTCOMES = 0x6F757463


class Outline(NamedTuple):
    """What a model says of its records before it meets a guide.

    - **private_model**: the model split without a guide, where that is possible.
    - **inside**: the model in the plate that ``data_plate="auto"`` put around its outcome, if so.
    """

    layout: Layout
    plate: str
    num_records: int
    private_model: PrivateModel | None
    inside: InPlateOfRows | None = None

    def judged(self, model: Callable[..., Any]) -> Callable[..., Any]:
        """The model, as it was judged."""
        return model if self.inside is None else self.inside

    @property
    def unit(self) -> str:
        """The unit of privacy, in words."""
        return unit_of(self.inside, self.plate)

    @property
    def dropped(self) -> tuple[str, ...]:
        """Deterministic sites that read a record, as far as is known without a guide."""
        return () if self.private_model is None else self.private_model.dropped_deterministics

    @property
    def few_rows(self) -> int | None:
        """So few made-up records tell a model's global sites what all do; ``None`` for all.

        Records that are few anyway stand for themselves.
        """
        model = self.private_model
        # Without one, records may have latents of their own.
        if self._is_small or model is None or enough_rows(model) != FEW_ROWS:
            return None
        return FEW_ROWS

    def start_rows(self, guide: Callable[..., Any]) -> int | None:
        """So many made-up records may stand for all where a guide is started; ``None`` for all.

        An autoguide keeps what it learnt of its model; whether anything else differs is left to
        be compared.
        """
        if isinstance(guide, autoguide.AutoGuide):
            return self.few_rows
        return None if self._is_small else FEW_ROWS

    @property
    def _is_small(self) -> bool:
        sizes = [math.prod(each.shape) * each.dtype.itemsize for each in self.layout.structs()]
        return sum(sizes) < LARGE

    def records(
        self, model: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> list[Array]:
        """Record arrays of the same arguments with other values, in the order they were traced."""
        layout, arrays = read_arguments(model, args, kwargs)
        if layout != self.layout:
            raise UnsupportedModelError("the arguments differ from those that were traced")
        # Read by private sums alone, which mask what is no record.
        return as_records(layout, arrays, padded=True)


def outline(
    model: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    data_plate: str | None,
    private_size: bool,
    summed: bool = True,
) -> Outline:
    """Read a model's arguments, find its private plate, and check it as far as a guide allows.

    ``summed=False`` is for guides that take care of discrete latents themselves: the model is not
    split, and no density of it may be used.
    """
    _validate.plate_name(data_plate)
    given, records = read_arguments(model, args, kwargs)
    layout = given.redacted() if private_size else given
    judged, structure = read_with_plate(model, layout, data_plate, private_size)
    with with_causes(structure, layout):
        plate, rows = choose_plate(structure, data_plate)
    require_supported_sites(structure, plate, variational=True)
    layout.require_records(rows, plate, structure.outcomes)
    num_records = given.arrays[0].shape[0]
    layout.require_no_listed_data(num_records)
    require_all_handed(model, layout, num_records, records)
    require_rows_of_their_own([leaf.name for leaf in given.arrays], records)
    own = structure.inside(plate, "latent")
    target = None
    if summed and not own and not structure.of_kind("param") and structure.of_kind("latent"):
        target = private_model(
            model, args, kwargs, data_plate=data_plate, private_size=private_size
        )
    elif private_size:
        raise UnsupportedModelError(
            "under add_remove the number of records is private, and models with parameters or "
            "with latents of single records are not checked for that: use zero_out or replace_one"
        )
    inside = judged if isinstance(judged, InPlateOfRows) else None
    return Outline(layout, plate, num_records, target, inside)


class VariationalModel(Frozen):
    """A model with its guide, as a data-free part of the bound and one term for each record.

    The evidence lower bound of one draw of the guide is ``global_elbo`` plus the sum of
    ``record_elbo`` over the records; its mean over keys is NumPyro's ``Trace_ELBO``. The object is
    frozen, keeps no value of any record, and is hashable and comparable by value of its arguments,
    so that it can be a static argument of ``jax.jit``. Made by :func:`variational_model`.

    :param model: a NumPyro model.
    :param guide: its guide; an autoguide must have been prepared without data.
    :param found: the model's outline.
    :param data_plate: name of the private plate, when several enclose the observations.
    :param private_size: whether the number of records is private.
    :param read: read the guide's code, as at every making but that from a pickle, which holds no
        number of records to look for where that is private.
    :raises UnsupportedModelError: when model or guide cannot be split, with site, cause, remedy.

    **Privacy.** ``draw`` and ``global_elbo`` provably read no record; ``record_elbo`` reads one.
    """

    model: Callable[..., Any]
    guide: Callable[..., Any]
    plate: str
    num_records: int
    private_model: PrivateModel | None
    local_latents: tuple[str, ...]
    layout: Layout
    private_size: bool
    _identity: tuple[Any, ...]
    _bound: TracedElbo

    def __init__(
        self,
        model: Callable[..., Any],
        guide: Callable[..., Any],
        found: Outline,
        data_plate: str | None,
        private_size: bool,
        read: bool = True,
    ) -> None:
        model = found.judged(model)
        structure = read_structure(model, found.layout, init_to_uniform())
        if read:
            refuse_captured_arrays(guide, found.layout, found.num_records, whose="the guide")
        pair = ModelAndGuide(model, guide, found.layout, structure, found.plate, found.num_records)
        bound = trace_bound(pair, private_size)
        if read and found.private_model is None:
            check_sum(pair, bound)
        self._keep(
            (model, guide, found.layout, data_plate, private_size, x64()),
            model=model,
            guide=guide,
            plate=found.plate,
            num_records=found.num_records,
            private_model=found.private_model,
            local_latents=pair.local,
            layout=found.layout,
            private_size=private_size,
            _bound=bound,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # Jaxprs do not pickle; model, guide and layout hold no record and rebuild them.
        model, guide, layout, data_plate, private_size, _ = self._identity
        found = Outline(layout, self.plate, layout.rows, self.private_model)
        return VariationalModel, (model, guide, found, data_plate, private_size, False)

    def redacted(self) -> VariationalModel:
        """The same without the number of records, where that is private: what a result may keep."""
        if not self.private_size:
            return self
        made = object.__new__(VariationalModel)
        model = None if self.private_model is None else self.private_model.redacted()
        rows = self.layout.rows
        made.__dict__.update(self.__dict__, num_records=rows, private_model=model)
        return made

    @property
    def unit(self) -> str:
        """The unit of privacy, in words."""
        return unit_of(self.model, self.plate)

    @property
    def latents(self) -> tuple[str, ...]:
        """Latent sites outside the private plate."""
        return tuple(self._bound.latents)

    @property
    def params(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes of the unconstrained parameters of guide and model."""
        return dict(self._bound.params)

    @property
    def public_inputs(self) -> tuple[str, ...]:
        """Names of the arguments declared public."""
        return self.layout.public_names

    def constrain(self, params: Params) -> dict[str, Array]:
        """Unconstrained parameters on their own supports; reads no record."""
        return {name: self._bound.transforms[name](value) for name, value in params.items()}

    def unconstrain(self, params: Params) -> dict[str, Array]:
        """The inverse of :meth:`constrain`."""
        return {name: self._bound.transforms[name].inv(value) for name, value in params.items()}

    def draw(self, params: Params, key: Array) -> tuple[dict[str, Array], dict[str, Array]]:
        """Global latents drawn from the guide, and the deterministic sites that follow."""
        inputs = [*self._flat(params), key]
        bound = self._bound
        latents = jax.tree.unflatten(jax.tree.structure(bound.latents), bound.latent(inputs))
        sites = bound.deterministics(inputs)
        return latents, jax.tree.unflatten(jax.tree.structure(bound.deterministic), sites)

    def global_elbo(self, params: Params, key: Array) -> Float[Array, ""]:
        """Log prior less log density of the guide at one draw; reads no record."""
        inputs = [*self._flat(params), key]
        prior = sum(self._bound.prior(inputs), start=jnp.asarray(0.0))
        return prior - sum(self._bound.guide(inputs), start=jnp.asarray(0.0))

    def record_elbo(self, params: Params, key: Array, record: Sequence[Array]) -> Float[Array, ""]:
        """One record's term at the same draw: its log likelihood, less its own latents' cost.

        :param params: unconstrained parameters.
        :param key: the draw's key, shared by all records; a record's own latents are drawn from
            this key and its row number.
        :param record: one row of each array of :meth:`records`, the leading axis (of 1) kept.
        """
        latents, _ = self.draw(params, key)
        flat = jax.tree.leaves({**self.constrain(params), **latents})
        rows = list(record)
        own = []
        if self.local_latents:
            own = [jax.random.fold_in(key, rows.pop()[0])]
        (term,) = self._bound.term([*flat, *rows, *own])
        return term

    def outcomes(self, *, drawn: bool = True) -> Outcomes:
        """Programs of what a record might have shown; see :meth:`record_outcomes`.

        :param drawn: draw outcomes from the model where they cannot be listed.
        :raises UnsupportedModelError: when that can be neither listed nor drawn.
        """
        structure = read_structure(self.model, self.layout, init_to_uniform())
        return possible_outcomes(
            self.model,
            self.layout,
            structure,
            self.plate,
            self.num_records,
            {**self._bound.constrained, **self._bound.latents},
            private_size=self.private_size,
            drawn=drawn,
            asker=CENTRED_CLIP,
        )

    def record_outcomes(
        self, outcomes: Outcomes, params: Params, keys: Array, record: Sequence[Array]
    ) -> tuple[Float[Array, " outcomes"], Float[Array, " outcomes"]]:
        """One record's term with each possible outcome in turn, and the outcomes' weights.

        :param keys: of the step's draws of the guide, over which both are averaged.
        :param record: a row of each array of :meth:`records`, then its number where outcomes are
            drawn.
        """
        rows = list(record)
        drawn_from = keys[0]
        if isinstance(outcomes, Simulated):
            drawn_from = jax.random.fold_in(jax.random.fold_in(keys[0], _OUTCOMES), rows.pop()[0])

        def values(key: Array) -> list[Array]:
            return jax.tree.leaves({**self.constrain(params), **self.draw(params, key)[0]})

        return outcomes.scored(jax.vmap(values)(keys), rows, drawn_from)

    def records(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], reading: Reading | None = None
    ) -> list[Any]:
        """Record arrays, with the row numbers where records draw latents of their own.

        :param reading: as for :meth:`PrivateModel.records`.
        """
        given, arrays = read_arguments(self.model, args, kwargs)
        layout = given.redacted() if self.private_size else given
        if layout != self.layout or given.arrays[0].shape[0] != self.num_records:
            raise UnsupportedModelError("the arguments differ from those that were traced")
        records = as_records(layout, arrays, padded=True, reading=reading)
        if not self.local_latents:
            return records
        return [*records, row_numbers(self.num_records, layout.shards)]

    def _flat(self, params: Params) -> list[Array]:
        return jax.tree.leaves(self.constrain(params))


@lru_cache(maxsize=64)
def variational_model(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    found: Outline,
    data_plate: str | None,
    private_size: bool,
    wide: bool,
) -> VariationalModel:
    """Return ``VariationalModel(...)``, from a bounded cache when an equal one was built before."""
    return VariationalModel(model, guide, found, data_plate, private_size)
