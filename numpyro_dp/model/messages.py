"""Why a model does not split: what JAX raised, or what the shapes of sites and arguments show.

A refusal names what failed first. Often that is a consequence: of one outcome too many, of a latent
for each record, of a list in the place of an array. The cause is looked for here, and said instead.
"""

import linecache
import re
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro

from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.model.checks.closures import unhanded
from numpyro_dp.model.names import joined, quoted
from numpyro_dp.model.plates import peeled
from numpyro_dp.model.records import MANY, ArrayLeaf, FixedLeaf, Layout

_QUOTABLE = tuple(str(Path(file).parent) for file in (jax.__file__, numpyro.__file__, __file__))
# Characters of it: JAX may print a whole tree of arguments.
_QUOTED = 300
_LIBRARIES = (*_QUOTABLE, str(Path(np.__file__).parent))
_VALUE_ERRORS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerBoolConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)
_BOOLEAN = (
    "a Boolean mask picks records by their values: keep every row, put a number where one is "
    "missing, as in `jnp.where(ok, y, 0)`, and leave these terms out with "
    "`numpyro.handlers.mask(mask=ok)` around the observed site"
)
_MISSING = (
    "how many values are missing is private: ask with `jnp.isnan`, not NumPy, give those rows a "
    "number with `jnp.where` and leave their terms out with `numpyro.handlers.mask`; "
    "`numpyro_dp.count_missing` releases the number for a charge"
)
_CONSTANTS = (
    "compute such constants from public knowledge, never from the records, and pass them as Python "
    "numbers (or wrap a public argument in `numpyro_dp.public`); of missing values see "
    "`numpyro.handlers.mask` and `numpyro_dp.count_missing`; an array held by a closure or "
    "`functools.partial` must be an argument"
)
_NUMBER = (
    "how many different values there are is private: pass the number of groups, known beforehand, "
    "as a Python number, such as `num_groups=4`"
)
_BY_NUMBER = (
    ". Perhaps the model was written for a table: columns of an array have numbers and no names. "
    "Take `x[:, 0]`, or pass a dictionary of columns, `{c: table[c].to_numpy() for c in "
    'table.columns}`, of which `x["age"]` is one'
)
# What Python says of a function that is called with other arguments than it takes.
_OF_CALL = re.compile(r"[\w.<>]+\(\) (got an unexpected|got multiple|missing|takes)")
_NOWHERE = "inside NumPyro"
_COUNTING = ("set(", "unique(", "max(", ".nunique", "bincount(")


@contextmanager
def explained(
    plate: str | None = None, rows: int = 1, given: str = "", perhaps: Callable[[], str] = str
) -> Generator[None]:
    """Turn whatever a traced model raises into a message with cause and remedy.

    ``plate`` is given when the model is being run on a few of its rows; ``given`` describes its
    arrays, and ``perhaps`` is asked what of them or of the code may be the cause. An error's text
    is quoted only where JAX or NumPyro wrote it: shapes, never values.
    """
    try:
        yield
    except UnsupportedModelError as error:
        cause = perhaps() if plate is not None else ""
        if not cause:
            raise
        raise UnsupportedModelError(f"{error}{cause}") from error
    except _VALUE_ERRORS as error:
        raise UnsupportedModelError(_of_values(error)) from error
    except Exception as error:
        # What `set` says of a traced array's entries.
        if isinstance(error, TypeError) and "unhashable" in str(error) and "Tracer" in str(error):
            raise UnsupportedModelError(_of_values(error)) from error
        problem = problem_of(error)
        if plate is None and _OF_CALL.match(str(error)) and _place(error) == _NOWHERE:
            text = (
                f"the model does not take these arguments: {_summary(error)}. What a run is given "
                "goes to the model; settings, as `secure` and `privacy`, go where the kernel or "
                "release is made"
            )
        elif plate is None:
            text = f"the model cannot be traced on arrays of these shapes{given}: {problem}"
            text = f"{text}{perhaps()}{_of_table(error)}"
        else:
            text = (
                f"the model cannot be run on {'one record' if rows == 1 else f'{rows} records'} of "
                f"plate `{plate}`: {problem}. Derive sizes from `x.shape[0]`, not from a constant"
                f"{perhaps()}"
            )
        raise UnsupportedModelError(text) from error


def problem_of(error: Exception) -> str:
    """What was raised, and where; its text only where JAX or NumPyro wrote it."""
    return f"{_summary(error)} ({_place(error)})"


def _of_table(error: Exception) -> str:
    """What helps a model that was written for a table and got an array; empty of other errors."""
    asked = isinstance(error, AttributeError) and isinstance(error.obj, jax.Array)
    return _BY_NUMBER if asked or "string indexing" in str(error) else ""


def _of_values(error: Exception) -> str:
    place = _place(error)
    return f"the model looks at the values of its data ({place}): {_looks_at_values(error, place)}"


def _summary(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    quotable = bool(frames) and frames[-1].filename.startswith(_QUOTABLE)
    lines = str(error).splitlines()
    told = f"{type(error).__name__}: {lines[0][:_QUOTED]}" if lines else ""
    return told if quotable and told else type(error).__name__


def _place(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not f.filename.startswith(_LIBRARIES)]
    if not own:
        return _NOWHERE
    frame = own[-1]
    code = linecache.getline(frame.filename, frame.lineno or 0).strip()
    return f"`{code}`, line {frame.lineno}" if code else f"line {frame.lineno}"


class Shapes(NamedTuple):
    """Shapes of a sample site.

    - **law**: the batch shape of its distribution.
    - **event**: the event shape of its distribution.
    - **value**: the shape of its value.
    - **independent**: whether the event is made of independent parts by ``to_event``.
    """

    law: tuple[int, ...]
    event: tuple[int, ...]
    value: tuple[int, ...]
    independent: bool

    @property
    def batches(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Batch shapes of the value and of the law."""
        return self.value[: len(self.value) - len(self.event)], self.law


def site_shapes(site: Any) -> Shapes:
    """Read the shapes of a traced sample site."""
    fn = site["fn"]
    return Shapes(
        tuple(fn.batch_shape),
        tuple(fn.event_shape),
        np.shape(site["value"]),
        peeled(fn).folded > 0,
    )


def _looks_at_values(error: Exception, code: str) -> str:
    """What to do where code asked a traced array for a value.

    :param error: what JAX raised.
    :param code: the line that asked, as far as it is known.
    """
    if isinstance(error, jax.errors.NonConcreteBooleanIndexError):
        return _BOOLEAN
    if "isnan" in code or "isfinite" in code:
        return _MISSING
    if any(call in code for call in _COUNTING):
        return f"{_NUMBER}; likewise for other constants: {_CONSTANTS}"
    return _CONSTANTS


def arrays_of(layout: Layout) -> str:
    """What was taken as data, for a message: a list or a missing row is then seen at once."""
    lists = tuple(f"{name}[" for name in _lists(layout))
    told = [leaf for leaf in layout.arrays if not leaf.name.startswith(lists)]
    shapes = joined(f"`{leaf.name}` {leaf.shape}" for leaf in told)
    return f"arrays are {shapes or 'none'}; all else counts as a plain Python value"


def _lists(layout: Layout) -> tuple[str, ...]:
    """Names of arguments that are lists of numbers, of such lists, or of many arrays."""
    args, kwargs = jax.tree.unflatten(layout.tree, layout.leaves)
    given = [*args, *kwargs.values()]
    given += [each for value in given if isinstance(value, dict) for each in value.values()]
    lists = [v for v in given if isinstance(v, (list, tuple)) and jax.tree.leaves(v)]
    names = ((jax.tree.leaves(v)[0].name, v) for v in lists if _is_table(v))
    # What a leaf's name says of its place within the list is left out.
    return tuple(name.rsplit("[", _depth(value))[0] for name, value in names)


def _depth(value: Any) -> int:
    """How many lists stand around the first leaf."""
    return 1 + _depth(value[0]) if isinstance(value, (list, tuple)) and len(value) else 0


def _is_table(value: Sequence[Any]) -> bool:
    """Tell whether a list looks like an array that nobody made one of."""
    leaves = jax.tree.leaves(value)
    if all(isinstance(leaf, ArrayLeaf) for leaf in leaves):
        return len(value) >= MANY and len({leaf.shape for leaf in leaves}) == 1
    numbers = (bool, int, float)
    return all(isinstance(leaf, FixedLeaf) and type(leaf.value) in numbers for leaf in leaves)


def misfits(model: Callable[..., Any], layout: Layout) -> str:
    """What of its arguments or code explains that a model cannot be traced; empty of others."""
    lists = _lists(layout)
    texts = [f"argument `{name}` is a Python list: pass `np.asarray({name})`" for name in lists]
    rows = [leaf.shape[0] for leaf in layout.arrays]
    usual = max(rows, key=rows.count, default=0)
    odd = [
        leaf
        for leaf in layout.arrays
        if leaf.shape[0] != usual and not any(leaf.name.startswith(f"{name}[") for name in lists)
    ]
    tables = [leaf for leaf in odd if rows.count(usual) > 1 and len(leaf.shape) > 1]
    texts += [
        f"argument `{leaf.name}` {leaf.shape} is no array of records, which have {usual} rows: if "
        f"it holds nothing private, pass `numpyro_dp.public({leaf.name})`"
        for leaf in tables
    ]
    if odd and not tables:
        # Where their number is private, the arrays have been made of equal length before.
        like = next(leaf for leaf in layout.arrays if leaf.shape[0] == usual)
        told = joined(f"`{leaf.name}` {leaf.shape[0]}" for leaf in odd)
        texts.append(
            f"the rows are not aligned: `{like.name}` has {usual}, {told}. Give all that holds "
            "records a row for each, in the same order (split a table, and leave rows out, before "
            "you take its columns apart), and wrap what holds nothing private in "
            "`numpyro_dp.public`"
        )
    captured = unhanded(model, layout, layout.rows) if layout.arrays else ""
    return joined((f". Perhaps {text}" for text in texts), "") + captured


def require_outcomes_fit(name: str, shapes: Shapes, dims: Sequence[int], plate: str) -> None:
    """Refuse an observed site that is broadcast to a table of each record against each.

    :param name: of the site.
    :param shapes: its shapes.
    :param dims: of its plates.
    :param plate: the private one, which is the first of them.
    """
    value, law = shapes.batches
    batch = tuple(jnp.broadcast_shapes(value, law))
    size = _axis(batch, dims[0])
    beside = [-k for k in range(1, len(batch) + 1) if -k not in dims and batch[-k] == size > 1]
    # A table of as many columns as rows is no broadcast: both axes are its own.
    if not beside or all(_axis(value, k) == size for k in (dims[0], *beside)):
        return
    what = f"every outcome of `{name}` beside every record's distribution"
    if any(_axis(value, k) == size for k in beside):
        raise UnsupportedModelError(
            f"`{name}` is {value}: broadcast against plate `{plate}` to {batch}, {what}; hand in "
            "one value a record, such as `y[:, 0]`"
        )
    raise UnsupportedModelError(
        f"the distribution of `{name}` is broadcast against plate `{plate}` to {batch}, {what}; "
        "its parameters must be one number a record, such as `(x @ w)[:, 0]`"
    )


def _axis(shape: tuple[int, ...], dim: int) -> int:
    """Length of an axis counted from the right; 1 where there is none."""
    return shape[dim] if len(shape) >= -dim else 1


@contextmanager
def with_causes(structure: Any, layout: Layout) -> Generator[None]:
    """Say that a site has an entry for each record where that is why a model does not split."""
    try:
        yield
    except UnsupportedModelError as error:
        text = _entry_for_each(structure, layout)
        if text is None:
            raise
        raise UnsupportedModelError(text) from error


def _entry_for_each(structure: Any, layout: Layout) -> str | None:
    rows = [leaf.shape[0] for leaf in layout.arrays]
    observed = structure.of_kind("observed")
    if not rows or not observed:
        return None
    # Soft constraints on the latents are observed too, and need no plate.
    observed = [site for site in observed if site.uses_arrays] or observed
    around = [p for p in structure.plates if all(s.inside(p) for s in observed)]
    # A table that is handed in on its side has another first axis than the plate.
    plates = {structure.plates[p][0] for p in around} & set(rows)
    size = max(plates or rows, key=lambda length: (rows.count(length), length))
    latents = [
        name
        for name, struct in structure.latents.items()
        if size > 1
        and size in struct.shape
        and not any(s.name == name and s.inside(p) for s in structure.sites for p in around)
    ]
    if latents:
        return (
            f"latent site(s) {quoted(latents)} have an entry for each of {size} records: what a "
            "draw says of such an entry is about one person, and no noise can hide that and leave "
            "anything. "
            "Give the records' effect to public groups (a plate of groups, indexed by each "
            "record's group); integrate it out (`NegativeBinomial2` for `Poisson` with an effect a "
            "record, `StudentT` for a scale a record); draw it inside the records' plate and use "
            "`DPSVI` with a guide for local latents; or, for a Gaussian process or a random walk, "
            "put it on a public grid of which each record reads one cell, or give weights to "
            "public basis functions (docs/howto/models-by-name.md, on a public grid)"
        )
    summed = [
        site.name
        for site in structure.of_kind("discrete")
        if not site.plates and size > 1 and size in (*site.shapes.law, *site.shapes.value)
    ]
    if summed:
        return (
            f"discrete latent site(s) {quoted(summed)} have an entry for each of {size} records: "
            'put them and the outcome into one `with numpyro.plate("data", ...)`, its size from '
            "`x.shape[0]` of an argument, one slice a person; there they are summed out"
        )
    for site in observed:
        if site.plates or site.shapes is None or size not in site.shapes.event or size == 1:
            continue
        if site.shapes.independent:
            return (
                f"observed site `{site.name}` is one event of {size} records, which `.to_event` "
                "made of independent ones: take `.to_event` off and put the site into "
                '`with numpyro.plate("data", ...)`, its size from `x.shape[0]` of an argument, '
                "one slice a person"
            )
        return (
            f"observed site `{site.name}` is one joint event of {size} records: it is no product "
            "of terms of one record each, which privacy needs. Where the dependence comes from a "
            "Gaussian process or a time series, put that on a public grid of which each record "
            "reads one cell (docs/howto/models-by-name.md), or give weights to public basis "
            "functions (`numpyro.contrib.hsgp`; for `DPNUTS` with `non_centered=False`), and "
            "observe each record by itself given these"
        )
    return None
