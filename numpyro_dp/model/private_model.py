"""The wall: an ordinary NumPyro model as a prior plus one independent term per record.

A record's term is computed from that record alone, by construction: the unchanged model is run on
a single row. The prior, the transforms, the initial values and the deterministic sites are what
dead-code elimination leaves of a trace on all rows in which no value exists; if any of them still
reads a record, the model is refused. Nothing here knows of budgets or mechanisms.
"""

import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from numpyro.infer import init_to_uniform

from numpyro_dp import _validate
from numpyro_dp._arrays import x64
from numpyro_dp._shards import Shards, row_numbers
from numpyro_dp._sources import Reading
from numpyro_dp.errors import UnsupportedModelError, caller, redacted
from numpyro_dp.model.checks.additivity import dummy_records
from numpyro_dp.model.checks.closures import refuse_captured_arrays, require_all_handed
from numpyro_dp.model.checks.shared_rows import require_rows_of_their_own
from numpyro_dp.model.frozen import Frozen
from numpyro_dp.model.initial import draw_position, initial_program
from numpyro_dp.model.jaxprs import Pruned
from numpyro_dp.model.names import quoted
from numpyro_dp.model.programs import GlobalPrograms, holds_longer
from numpyro_dp.model.records import Layout, as_records, read_arguments
from numpyro_dp.model.rows_plate import unit_of
from numpyro_dp.model.split import Spec, check_additive, split
from numpyro_dp.model.structure import Structure

Model = Callable[..., Any]
Position = Mapping[str, Any]


class PrivateModel(Frozen):
    """A NumPyro model split into its prior and one independent term for each record.

    A *record* is one slice of the private plate, the plate that encloses every observed site. Its
    term is the log likelihood of the unchanged model run on that slice only. Together the parts
    add up to ``-numpyro.infer.util.potential_energy``. The object is frozen, keeps no value of
    any record, and is hashable and comparable by value, so that it can be a static argument of
    ``jax.jit``.

    :param model: a NumPyro model. It must be a pure function of its arguments.
    :param model_args: positional arguments; every array has one row for each record, or is wrapped
        in :func:`numpyro_dp.public`.
    :param model_kwargs: keyword arguments, likewise.
    :param data_plate: the name of the private plate, where several plates enclose the observations;
        its slices are the unit of privacy. ``"auto"``: where none does, one of all rows is put in.
    :param check: compare the model on three made-up records together with the sum of the three, to
        catch models that are no sum over records. Privacy never rests on this check.
    :param private_size: the number of records is private too (relation ``add_remove``): the model
        is traced on a public number of made-up rows, and prior, supports and initial values must be
        the same program with one row more and with three. Pickles hold no number.
    :raises UnsupportedModelError: when the model cannot be split; the message names the site or the
        argument, the cause and the remedy, and holds no value of the data.

    What was read stands in ``function`` (the model that was judged), ``layout`` (its arguments
    without a value), ``structure`` (its sites), ``programs`` (of the prior), ``term`` (of one).

    **Privacy.** ``log_prior``, ``constrain``, ``deterministics`` and ``init`` provably read no
    record. ``record_log_likelihood`` reads one. What is wrapped in ``public``, Python numbers and
    everything the model takes from elsewhere than its arguments is *not* protected. A lint refuses
    arrays of one entry per record there, in the trace or where the code names them, and warns of
    longer ones; numbers computed from data before it cannot see.

    **Example**::

        >>> import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist
        >>> def model(y):
        ...     mean = numpyro.sample("mean", dist.Normal(0, 10))
        ...     with numpyro.plate("people", y.shape[0]):
        ...         numpyro.sample("y", dist.Normal(mean, 1), obs=y)
        >>> split = PrivateModel(model, (jnp.arange(5.0),))
        >>> split.plate, split.num_records, split.latents
        ('people', 5, ('mean',))
        >>> (row,) = split.records((jnp.arange(5.0),), {})
        >>> round(float(split.record_log_likelihood({"mean": 2.0}, [row[2:3]])), 4)
        -0.9189
    """

    num_records: int
    plate: str
    latents: tuple[str, ...]
    dropped_deterministics: tuple[str, ...]
    public_inputs: tuple[str, ...]
    function: Model
    layout: Layout
    structure: Structure
    programs: GlobalPrograms
    term: Pruned
    private_size: bool
    _identity: Spec

    def __init__(
        self,
        model: Model,
        model_args: Sequence[Any] = (),
        model_kwargs: Mapping[str, Any] | None = None,
        *,
        data_plate: str | None = None,
        check: bool = True,
        private_size: bool = False,
    ) -> None:
        spec = _specify(model, model_args, model_kwargs, data_plate, private_size)
        self._fill(spec, check=check)
        self._read(model_args, model_kwargs)

    def _fill(self, spec: Spec, *, check: bool) -> None:
        parts = split(spec)
        if check:
            check_additive(spec, parts)
        self._keep(
            spec,
            num_records=parts.num_records,
            plate=parts.plate,
            latents=tuple(s.name for s in parts.structure.of_kind("latent")),
            dropped_deterministics=parts.programs.dropped,
            public_inputs=spec.layout.public_names,
            function=parts.model,
            layout=spec.layout,
            structure=parts.structure,
            programs=parts.programs,
            term=parts.term,
            private_size=spec.private_size,
        )
        if self.dropped_deterministics:
            warnings.warn(
                f"deterministic site(s) {quoted(self.dropped_deterministics)} depend on the "
                "records and are not part of the private posterior; compute them with "
                "`Predictive` on public inputs",
                stacklevel=caller(),
            )

    def _read(self, model_args: Sequence[Any], model_kwargs: Mapping[str, Any] | None) -> None:
        """Read the code of the model, and of functions among its arguments."""
        layout, records = read_arguments(self.function, model_args, model_kwargs)
        require_rows_of_their_own([leaf.name for leaf in layout.arrays], records)
        warned = require_all_handed(self.function, self.layout, self.num_records, records)
        programs = self.programs.log_prior, self.programs.constrain, self.term
        if not warned and any(holds_longer(program, self.layout) for program in programs):
            warnings.warn(
                "the model closes over an array that may hold records: if it does, they are "
                "unprotected. Pass it as an argument (wrapped in `numpyro_dp.public` if it holds "
                "nothing private)",
                stacklevel=caller(),
            )

    def __repr__(self) -> str:
        name = getattr(self.function, "__name__", type(self.function).__name__)
        size = "" if self.private_size else f", num_records={self.num_records}"
        return f"PrivateModel({name}, plate={self.plate!r}{size}, latents={self.latents})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Jaxprs do not pickle; the specification holds no record and rebuilds them. A number of
        # records that is private stays behind.
        return _rebuild, tuple(self._identity)[:-1]

    @property
    def unit(self) -> str:
        """The unit of privacy, in words."""
        return unit_of(self.function, self.plate)

    @property
    def shards(self) -> Shards | None:
        """Devices among which the records are divided; ``None`` for one."""
        return self.layout.shards

    def row_numbers(self) -> Array:
        """One more record array: the number of each row."""
        return row_numbers(self.num_records, self.shards)

    def redacted(self) -> "PrivateModel":
        """The same without the number of records, where that is private: what a result may keep."""
        if not self.private_size:
            return self
        made = object.__new__(PrivateModel)
        made.__dict__.update(self.__dict__, num_records=self.layout.rows)
        made._keep(self._identity._replace(num_records=None))
        return made

    def records(
        self,
        model_args: Sequence[Any] = (),
        model_kwargs: Mapping[str, Any] | None = None,
        *,
        padded: bool = False,
        reading: Reading | None = None,
    ) -> list[Any]:
        """Return the record arguments as one flat list of JAX arrays, a row for each record.

        :param model_args: arguments of the same structure, shapes and public values as those the
            model was split with.
        :param model_kwargs: keyword arguments, likewise.
        :param padded: whether the caller masks rows that only fill up the last device's part.
        :param reading: by which the caller fetches rows of a :class:`numpyro_dp.RecordSource`.
        :returns: Arrays of shape ``(num_records, ...)``; one record is ``[a[i : i + 1], ...]``.
        :raises UnsupportedModelError: when the arguments differ in anything but the arrays' values.
        """
        read = self.function, model_args, model_kwargs
        given, arrays = redacted(self.private_size, read_arguments, *read)
        layout = given.redacted() if self.private_size else given
        if layout != self.layout:
            raise UnsupportedModelError(
                f"the arguments differ from those the model was split with "
                f"({self.layout.difference(layout)}): build a new PrivateModel for them"
            )
        # From a pickle, no number is known where that is private, and any is as good.
        known = self._identity.num_records
        if known is not None and given.arrays[0].shape[0] != known:
            raise UnsupportedModelError(
                "the arguments differ from those the model was split with (their number of rows): "
                "build a new PrivateModel for them"
            )
        return as_records(layout, arrays, padded=padded, reading=reading)

    def init(
        self, rng_key: Array, strategy: Callable[..., Any] = init_to_uniform
    ) -> dict[str, Array]:
        """Draw an unconstrained starting position without data.

        :param rng_key: a typed or raw key.
        :param strategy: any NumPyro initialisation strategy. The values of ``init_to_value`` are
            taken as public: values computed from the data are the caller's own release.
        :returns: A position with a finite prior. Coordinates that come out as exactly 0 are moved
            by at most 1e-4, because NumPyro's Bernoulli score is wrong at logits of exactly 0.
        :raises UnsupportedModelError: when the strategy reads a record (or its number, if private).
        """
        start = initial_program(
            self.function,
            self.layout,
            self.structure,
            rng_key,
            strategy,
            self.num_records,
            self.private_size,
        )
        return draw_position(start, self.log_prior, rng_key)

    def constrain(self, z: Position) -> dict[str, Array]:
        """Map an unconstrained position to the latents' own supports; reads no record."""
        programs = self.programs
        flat = programs.constrain(self._position(z))
        return jax.tree.unflatten(jax.tree.structure(programs.constrained), flat)

    def deterministics(self, z: Position) -> dict[str, Array]:
        """Return the deterministic sites that read no record, at an unconstrained position."""
        programs = self.programs
        flat = programs.deterministics(self._position(z))
        return jax.tree.unflatten(jax.tree.structure(programs.deterministic), flat)

    def log_prior(self, z: Position) -> Float[Array, ""]:
        """Log density of the prior over unconstrained positions, Jacobians included once.

        Sites and factors outside the private plate belong to it. It reads no record.
        """
        return sum(self.programs.log_prior(self._position(z)), start=jnp.asarray(0.0))

    def record_log_likelihood(self, z: Position, record: Sequence[Array]) -> Float[Array, ""]:
        """Log likelihood of one record at an unconstrained position.

        :param z: an unconstrained position, shared by all records.
        :param record: one row of each array of :meth:`records`, the leading axis (of 1) kept.
        :returns: The record's term; it depends on no other record and on no number of records,
            except through the public arguments. Discrete latents of the record are summed out.
        """
        constrained = self.constrain(z)
        leaves = self._rows(record, 1)
        (value,) = self.term([*jax.tree.leaves(constrained), *leaves])
        return value

    def refuse_captured_arrays(
        self, name: str, function: Callable[..., Any], records: Sequence[Any] = ()
    ) -> None:
        """Refuse a function of the caller's, other than the model, whose code names the records.

        :param name: the function's name in a message.
        :param function: an option such as a schedule or a bound, which has to be free of data.
        :param records: the record arguments as they were given, where they are at hand.
        :raises UnsupportedModelError: when the code names an array with one entry for each record,
            or of a record argument's memory, that is not declared public.
        """
        refuse_captured_arrays(
            function,
            self.layout,
            self.num_records,
            records,
            whose=f"{name}=",
            remedy="It has to be free of data: compute it from public numbers alone",
        )

    def dummy_records(self, rng_key: Array, m: int) -> list[Array]:
        """Make up ``m`` records of the right shapes: floats in (0.1, 0.9), the rest 0 or 1."""
        return dummy_records(self.layout, rng_key, m)

    def _position(self, z: Position) -> list[Array]:
        latents = self.structure.latents
        if set(z) != set(latents):
            raise ValueError(
                f"a position holds the latents {quoted(sorted(latents))}, got {quoted(sorted(z))}"
            )
        return [jnp.asarray(z[name], latents[name].dtype) for name in sorted(latents)]

    def _rows(self, record: Sequence[Array], rows: int) -> list[Array]:
        expected = self.layout.structs(rows)
        got = [jnp.shape(a) for a in record]
        if got != [s.shape for s in expected]:
            raise ValueError(
                f"a record holds arrays of shapes {[s.shape for s in expected]}, got {got}: keep "
                "the leading axis of length 1"
            )
        return [jnp.asarray(a, s.dtype) for a, s in zip(record, expected, strict=True)]


def private_model(
    model: Model,
    model_args: Sequence[Any] = (),
    model_kwargs: Mapping[str, Any] | None = None,
    *,
    data_plate: str | None = None,
    check: bool = True,
    private_size: bool = False,
) -> PrivateModel:
    """Return ``PrivateModel(...)``, from a bounded cache when an equal one was built before.

    Equal means: the same model function, the same structure and shapes, equal public and static
    arguments. The values of the records play no part, and none is kept. The arguments are those
    of :class:`PrivateModel`.
    """
    spec = _specify(model, model_args, model_kwargs, data_plate, private_size)
    built = _cached(spec, check)
    # Starting positions run the model again, and its globals may have changed since it was judged.
    built._read(model_args, model_kwargs)
    return built


def _specify(
    model: Model,
    model_args: Sequence[Any],
    model_kwargs: Mapping[str, Any] | None,
    data_plate: str | None,
    private_size: bool,
) -> Spec:
    _validate.plate_name(data_plate)
    if not isinstance(model, Hashable):
        raise UnsupportedModelError(
            f"the model is an unhashable {type(model).__name__}: pass a function"
        )
    layout, _ = redacted(private_size, read_arguments, model, model_args, model_kwargs)
    if private_size and (layout.shards is not None or layout.storage is not None):
        raise UnsupportedModelError(
            "the number of records is private, and cannot stay so where records are divided among "
            "devices or fetched from a store: give arrays that lie on one device"
        )
    if not private_size or not layout.arrays:
        return Spec(model, layout, data_plate, private_size, x64())
    num_records = layout.rows
    public = redacted(private_size, layout.redacted)
    return Spec(model, public, data_plate, private_size, x64(), num_records)


@lru_cache(maxsize=64)
def _cached(spec: Spec, check: bool) -> PrivateModel:
    built = object.__new__(PrivateModel)
    built._fill(spec, check=check)
    return built


def _rebuild(
    model: Model, layout: Layout, data_plate: str | None, private_size: bool, wide: bool
) -> PrivateModel:
    if wide != x64():
        raise ValueError(
            f"this PrivateModel was pickled with jax_enable_x64={wide}: set the same before loading"
        )
    with warnings.catch_warnings():
        # Whoever built it has seen them.
        warnings.simplefilter("ignore", UserWarning)
        built = _cached(Spec(model, layout, data_plate, private_size, wide), False)
        if not private_size:
            require_all_handed(model, layout, built.num_records)
        return built
