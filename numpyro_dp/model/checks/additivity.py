"""Is the model a sum over records? Three made-up records tell, without any data.

One row of the three is changed, and the terms of the others have to stay what they were, to the
last bit: the same compiled program ran, and nothing that it reads for them has changed. Then each
row is run alone, which shows terms that know how many rows there are, or their own number.
"""

import itertools
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from numpyro_dp._quick_compile import quickly_compiled
from numpyro_dp.errors import UnsupportedModelError, caller
from numpyro_dp.model.jaxprs import Pruned, primitives, prune, trace_program
from numpyro_dp.model.messages import explained
from numpyro_dp.model.names import quoted
from numpyro_dp.model.plates import OF_THE_GUIDE, GuidedRowRun, RowRun
from numpyro_dp.model.records import Layout
from numpyro_dp.model.structure import key_struct

_DUMMIES = 3
# What a row's columns are moved by, many at once where there are many.
_MOVES = (0.05, 40.0, -1e3, 1e5)
_GROUPS = 16
# Narrow and wide positions in turn; a model is most often finite at one of them.
_SIZES = (0.5, 0.1, 2.5)
_TRIES = 21
# Rounding alone stays below 3e-7 on the CPU; accelerators multiply matrices with 10-bit mantissas.
_CPU_TOLERANCE, _TOLERANCE = 1e-4, 2e-3
# Of the largest derivative: what cancellation leaves where a likelihood is flat or saturated.
_ROUNDING = 1e-6
# A loop runs on, for all rows, until the slowest is done: the others' last bits may differ. On
# accelerators they may whenever a record's own entries are added in no fixed order.
_LOOPS, _SLACK = {"while", "regularized_incomplete_beta"}, 1e-5
# Derivatives of a model's own that run backwards only.
_BACKWARDS = {"custom_vjp_call", "custom_vjp_call_jaxpr"}
_VALUE, _SIZE, _FINITE, _SLOPE, _SLOPES = range(5)

_REMEDY = "a record's likelihood may read that record only"
_OTHERS = (
    "changes with the values of other records (a mean, spread, maximum, rank or sum over the rows, "
    "batch norm, the row before): {remedy}. Replace such a statistic by a public number, or "
    "release it by a private mechanism before, and pass it to the model as a Python number; a "
    "maximum that is subtracted for safety has to be one row's own (`axis=-1`)"
)
_ALONE = (
    "is not finite for one record alone, though it is beside others (it divides by their spread?): "
    "{remedy}. Replace what is computed over the rows by a public number, or release it by a "
    "private mechanism before, and pass it to the model as a Python number"
)
_NUMBER = (
    "depends on the number of records it is run with (`x.shape[0]`, `len(x)`, a mean over the "
    "rows): {remedy}. Pass the number as a public constant, a Python number of its own"
)
_ROW = (
    "depends on the record's row number (the plate's indices, `jnp.arange(n)`): {remedy}. Make "
    "what differs between rows a column of the data"
)


class Subject(NamedTuple):
    """What is judged, as functions to be traced; ``values`` are of parameters and latents.

    - **starts**: shapes of an unconstrained position.
    - **values**: values at such a position, some of them drawn with a key.
    - **terms**: log probability of each site of the records, of shape (rows, entries), at values,
      rows of all arrays and a key for each row.
    - **outcomes**: what is observed at each site, and a draw in its place, at the same.
    """

    layout: Layout
    plate: str
    starts: list[jax.ShapeDtypeStruct]
    values: Callable[[list[Array], Array], dict[str, Any]]
    terms: Callable[[dict[str, Any], list[Array], Array], dict[str, Array]]
    outcomes: Callable[[dict[str, Any], list[Array], Array], dict[str, tuple[Array, Array]]]

    @classmethod
    def of(
        cls,
        run: RowRun | GuidedRowRun,
        layout: Layout,
        starts: list[jax.ShapeDtypeStruct],
        values: Callable[[list[Array], Array], dict[str, Any]],
        own: Callable[[dict[str, Any], list[Array], Array], dict[str, Any]] | None = None,
    ) -> "Subject":
        """What a run on a few rows gives; ``own`` draws latents that each row has of its own."""

        def on_rows(of: Callable[..., Any]) -> Callable[..., Any]:
            def run_on(values: dict[str, Any], rows: list[Array], keys: Array) -> Any:
                drawn = own(values, rows, keys) if own else {}
                return of({**values, **drawn}, layout.fill(rows), keys[0], len(keys))

            return run_on

        return cls(layout, run.plate, starts, values, on_rows(run.terms), on_rows(run.outcomes))


def require_additive(subject: Subject) -> None:
    """Run the model on three made-up records, changed one at a time, and on each alone.

    The check protects correctness: a term that passes is still computed from one record alone
    whatever happens here. A site that is finite on no made-up records only gets a warning.

    :raises UnsupportedModelError: when a record's term reads another record, their number or its
        own.
    """
    program = _Program(subject)
    met = [_Met.on(program, each) for each in map(program.synthetic, range(_TRIES))]
    if not _seen(met, _DUMMIES).all():
        met += [_Met.on(program, each) for each in _with_drawn_outcomes(subject, met)]
    for each in _telling(met):
        _require_apart(program, each)
    _require_the_same_alone(program, met)
    blind = [site for site, seen in zip(program.sites, _seen(met), strict=True) if not seen]
    if blind:
        warnings.warn(
            f"the model could not be checked to be a sum over records at site(s) {quoted(blind)}: "
            "its density is not finite on made-up records. Privacy does not rest on this check; "
            "see for yourself that no record's likelihood uses other records, which it would not "
            "find: it is computed from one alone",
            stacklevel=caller(),
        )


class _Input(NamedTuple):
    """A made-up position, the direction of a derivative, keys (first the values'), and records."""

    start: list[Any]
    direction: list[Any]
    keys: Any
    records: list[Any]

    def rolled(self) -> "_Input":
        """The same with each record in the place of the one before."""
        keys = np.concatenate([self.keys[:1], np.roll(self.keys[1:], -1, 0)])
        return self._replace(keys=keys, records=[np.roll(a, -1, 0) for a in self.records])


class _Program:
    """The compiled program: statistics of the terms of three rows, and of one of them alone."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.key_shape = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0))).shape
        values = jax.eval_shape(subject.values, subject.starts, key_struct())
        self.directions = jax.tree.leaves(values)
        self.sites, together = _traced_terms(subject, values, _DUMMIES)
        on_cpu = jax.default_backend() == "cpu"
        used = {*primitives(together.jaxpr)}
        self.slack = 0.0 if on_cpu and not _LOOPS & used else _SLACK
        # A loop that waits for convergence may wait for ever at values that nobody has.
        self.gently = "while" in used
        _, alone = _traced_terms(subject, values, 1)

        def measure(at: _Input, row: Array) -> tuple[Array, Array]:
            first, *rest = jax.random.wrap_key_data(at.keys)
            flat = jax.tree.leaves(subject.values(at.start, first))
            rows = [*at.records, jnp.stack(rest)]
            one = [jax.lax.dynamic_slice_in_dim(a, row, 1) for a in rows]
            return (
                _statistics(together, flat, at.direction, rows),
                _statistics(alone, flat, at.direction, one),
            )

        self.compiled = quickly_compiled(measure, self.synthetic(0), np.int32(0))

    def synthetic(self, seed: int) -> _Input:
        """Draw an input; the size of its position goes by the seed."""
        rng = np.random.default_rng(seed)
        size = _SIZES[seed % len(_SIZES)]
        return _Input(
            [np.asarray(size * rng.normal(size=s.shape), s.dtype) for s in self.subject.starts],
            [np.asarray(rng.normal(size=s.shape), s.dtype) for s in self.directions],
            rng.integers(0, 2**32, (1 + _DUMMIES, *self.key_shape), np.uint32),
            [_synthetic_rows(rng, leaf.struct(_DUMMIES)) for leaf in self.subject.layout.arrays],
        )

    def together(self, at: _Input) -> np.ndarray:
        """Statistics of shape (sites, rows, statistics)."""
        return np.asarray(self.compiled(at, np.int32(0))[0], np.float64)


def _traced_terms(subject: Subject, values: Any, rows: int) -> tuple[tuple[str, ...], Pruned]:
    records = subject.layout.structs(rows)
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), rows))
    with explained(subject.plate, rows):
        program = trace_program(subject.terms, values, records, keys)
    return tuple(program.out), prune(program)


def _statistics(program: Pruned, flat: list[Array], direction: list[Array], rows: list) -> Array:
    """Of the terms of each site and row: value, size, finite entries, slope and its size."""

    def terms(flat: list[Array]) -> list[Array]:
        return program([*flat, *rows])

    if _BACKWARDS & {*primitives(program.jaxpr)}:
        entries = terms(flat)
        each = range(len(entries))
        slopes = [_backwards(lambda f, i=i: terms(f)[i], flat, direction) for i in each]
    else:
        # Backwards, a row that overflows would spoil the others' derivatives by 0 * inf.
        entries, slopes = jax.jvp(terms, (flat,), (direction,))
    found = []
    for entry, slope in zip(entries, slopes, strict=True):
        finite = jnp.isfinite(entry)
        value = jnp.where(finite, entry, 0)
        parts = (value, jnp.abs(value), finite, slope, jnp.abs(slope))
        found.append(jnp.stack([part.sum(axis=1).astype(entry.dtype) for part in parts], axis=-1))
    return jnp.stack(found)


def _backwards(term: Callable[[list[Array]], Array], flat: list[Array], to: list[Array]) -> Array:
    jacobians = jax.jacrev(lambda f: term(f).sum(axis=1))(flat)
    along = (jnp.tensordot(j, d, jnp.ndim(d)) for j, d in zip(jacobians, to, strict=True))
    return sum(along, start=jnp.asarray(0.0))[:, None]


class _Met(NamedTuple):
    """Statistics found on one input: of three rows together, and of each alone."""

    at: _Input
    together: np.ndarray
    alone: np.ndarray

    @classmethod
    def on(cls, program: _Program, at: _Input) -> "_Met":
        """Run the program once for each row."""
        found = [program.compiled(at, np.int32(row)) for row in range(_DUMMIES)]
        alone = np.concatenate([np.asarray(each, np.float64) for _, each in found], axis=1)
        return cls(at, np.asarray(found[0][0], np.float64), alone)


def _seen(met: list[_Met], rows: int = 1) -> np.ndarray:
    """Which sites were finite in so many rows of some input."""
    return np.any([(each.together[..., _FINITE] > 0).sum(axis=1) >= rows for each in met], axis=0)


def _telling(met: list[_Met]) -> list[_Met]:
    """For each size of positions, and for each site, the input with the most that is finite."""
    finite = np.stack([each.together[..., _FINITE] > 0 for each in met]).sum(axis=2)
    by_size = [finite[i :: len(_SIZES)].sum(axis=1).argmax() * len(_SIZES) + i for i in range(3)]
    return [met[i] for i in {*map(int, by_size), *map(int, finite.argmax(axis=0))}]


def _require_apart(program: _Program, met: _Met) -> None:
    """Change each row in turn; what was found of the others must stay the same to the last bit."""
    for row, records in _moved(met.at.records, gently=program.gently):
        after = program.together(met.at._replace(records=records))
        same_size = met.together[..., _FINITE] == after[..., _FINITE]
        differs = ~same_size | _differs(met.together, after, program.slack, 0.0)
        reads = np.delete(differs, row, axis=1).any(axis=1)
        if reads.any():
            _refuse(program.sites[int(reads.argmax())], _OTHERS)


def _require_the_same_alone(program: _Program, met: list[_Met]) -> None:
    """Compare each row's terms beside others with those of that row alone."""
    tolerance = _CPU_TOLERANCE if jax.default_backend() == "cpu" else _TOLERANCE
    slopes = np.stack([each.together[..., _SLOPES] for each in met])
    rounding = _ROUNDING * np.max(slopes, where=np.isfinite(slopes), initial=0.1)
    # A guide's density at its own draw: slopes along the draw cancel down to rounding, and so does
    # the draw less its mean wherever it is far out. Values at ordinary positions tell enough.
    drawn = np.array([site.endswith(OF_THE_GUIDE) for site in program.sites])
    rounding = np.where(drawn, np.inf, rounding)[:, None]
    apart = [_differs(each.together, each.alone, tolerance, rounding).any(axis=1) for each in met]
    mostly = np.mean(apart, axis=0) > 0.5
    for each, differs in zip(met, apart & (mostly | ~drawn), strict=True):
        lost = (each.together[..., _FINITE] > each.alone[..., _FINITE]).any(axis=1)
        if lost.any():
            _refuse(program.sites[int(lost.argmax())], _ALONE)
        if differs.any():
            rolled = np.roll(program.together(each.at.rolled()), 1, axis=1)
            by_number = _differs(each.together, rolled, tolerance, rounding).any()
            _refuse(program.sites[int(differs.argmax())], _ROW if by_number else _NUMBER)


def _differs(a: np.ndarray, b: np.ndarray, tolerance: float, rounding: Any) -> np.ndarray:
    """Which rows of which sites have a term or slope apart by more than the tolerance."""
    comparable = a[..., _FINITE] == b[..., _FINITE]
    slopes = a[..., _SLOPES]
    largest = np.max(slopes, axis=1, keepdims=True, where=np.isfinite(slopes), initial=0)
    # What is not finite compares as the same: a slope may be spoiled where it runs backwards.
    with np.errstate(invalid="ignore"):
        value, slope = (np.abs(a[..., i] - b[..., i]) for i in (_VALUE, _SLOPE))
    by_value = value > tolerance * (1 + a[..., _SIZE])
    return comparable & (by_value | (slope > tolerance * largest + rounding))


def _refuse(site: str, how: str) -> NoReturn:
    raise UnsupportedModelError(
        f"the model is not a sum over records: the log likelihood of a record at site `{site}` "
        + how.format(remedy=_REMEDY)
    )


def _with_drawn_outcomes(subject: Subject, met: list[_Met]) -> Iterator[_Input]:
    """The same inputs, with records' outcomes drawn from the model: inside of their supports."""

    def outcomes(at: _Input) -> dict[str, tuple[Array, Array]]:
        first, *rest = jax.random.wrap_key_data(at.keys)
        return subject.outcomes(subject.values(at.start, first), list(at.records), jnp.stack(rest))

    rng = np.random.default_rng(0)
    # No two alike, so that an outcome tells which argument it is.
    marks = [rng.permutation(100 * a.size)[: a.size].reshape(a.shape) for a in met[0].at.records]
    marked = [m.astype(a.dtype) for m, a in zip(marks, met[0].at.records, strict=True)]
    with explained(subject.plate, _DUMMIES):
        compiled = quickly_compiled(outcomes, met[0].at)
    found = compiled(met[0].at._replace(records=marked))
    places = {
        site: place
        for site, (value, _) in found.items()
        for place, mark in enumerate(marked)
        if np.array_equal(value, mark)
    }
    if places:
        for each in met:
            drawn = compiled(each.at)
            records = list(each.at.records)
            for site, place in places.items():
                records[place] = np.asarray(drawn[site][1]).astype(records[place].dtype)
            yield each.at._replace(records=records)


def dummy_records(layout: Layout, rng_key: Array, m: int) -> list[Array]:
    """Make up ``m`` records of the right shapes: 0 or 1, and for every other array (0.1, 0.9).

    Outcomes that must be 0 or 1 are often held as floats; other columns must be positive. Which
    array begins hangs on the key. They protect nothing: NumPy, which has nothing to compile, draws.
    """
    rng = np.random.default_rng(np.asarray(jax.random.key_data(rng_key)).ravel())
    first = rng.integers(2)
    return [
        jnp.asarray(_dummy(rng, struct, between=(place + first) % 2 == 0))
        for place, struct in enumerate(layout.structs(m))
    ]


def _dummy(rng: np.random.Generator, struct: jax.ShapeDtypeStruct, *, between: bool) -> np.ndarray:
    if between and jnp.issubdtype(struct.dtype, jnp.inexact):
        return rng.uniform(0.1, 0.9, struct.shape).astype(struct.dtype)
    return rng.integers(0, 2, struct.shape).astype(struct.dtype)


def _synthetic_rows(rng: np.random.Generator, struct: jax.ShapeDtypeStruct) -> np.ndarray:
    """Draw what outcomes and groups may have to be, mostly: 0 or 1, or positive."""
    kind = rng.choice(3, p=(0.25, 0.5, 0.25))
    if not jnp.issubdtype(struct.dtype, jnp.inexact):
        return rng.integers(0, 5 if kind == 2 else 2, struct.shape).astype(struct.dtype)
    made = (
        rng.integers(0, 2, struct.shape),
        rng.uniform(0.1, 0.9, struct.shape),
        rng.normal(0, 3, struct.shape),
    )
    return made[kind].astype(struct.dtype)


def _moved(records: list[np.ndarray], *, gently: bool) -> Iterator[tuple[int, list[np.ndarray]]]:
    """Yield each row, with each of its columns moved by several amounts, and with all of them.

    ``gently``: by a small amount only.
    """
    rng = np.random.default_rng(0)
    sizes = [math.prod(a.shape[1:]) for a in records]
    columns = np.arange(sum(sizes))
    groups = [columns, *np.array_split(columns, min(len(columns), _GROUPS))]
    ends = np.cumsum(sizes)[:-1]
    for row, group, move in itertools.product(
        range(_DUMMIES), groups, _MOVES[: 1 if gently else None]
    ):
        amounts = np.zeros(len(columns))
        amounts[group] = move * rng.uniform(0.5, 1.0, len(group))
        parts = zip(records, np.split(amounts, ends), strict=True)
        yield row, [_with_row_moved(a, row, by.reshape(a.shape[1:])) for a, by in parts]


def _with_row_moved(array: np.ndarray, row: int, by: np.ndarray) -> np.ndarray:
    changed = array.copy()
    if jnp.issubdtype(array.dtype, jnp.inexact):
        changed[row] += by.astype(array.dtype)
    else:
        # A small amount makes a 1 of a 0 and a 0 of all else.
        small = np.abs(by) < 1
        moved = np.where(small, changed[row] == 0, changed[row] + by.astype(np.int64))
        with np.errstate(invalid="ignore"):
            changed[row] = np.where(by == 0, changed[row], moved).astype(array.dtype)
    return changed
