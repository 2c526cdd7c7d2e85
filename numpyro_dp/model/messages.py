"""Why a model does not split, where the shapes of its sites and arguments show it.

A refusal names what failed first. Often that is a consequence: of one outcome too many, of a latent
for each record, of a list in the place of an array. The cause is looked for here, and said instead.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.model.records import Layout

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
_COUNTING = ("set(", "unique(", "max(", ".nunique", "bincount(")


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
    while type(fn).__name__ in ("ExpandedDistribution", "MaskedDistribution"):
        fn = fn.base_dist
    return Shapes(
        tuple(site["fn"].batch_shape),
        tuple(site["fn"].event_shape),
        jnp.shape(site["value"]),
        type(fn).__name__ == "Independent",
    )


def looks_at_values(error: Exception, code: str) -> str:
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


def misfits(layout: Layout) -> str:
    """What of the arguments explains that a model cannot be traced; empty where nothing does."""
    lists = layout.list_names()
    texts = [f"argument `{name}` is a Python list: pass `np.asarray({name})`" for name in lists]
    rows = [leaf.shape[0] for leaf in layout.arrays]
    usual = max(rows, key=rows.count, default=0)
    texts += [
        f"argument `{leaf.name}` {leaf.shape} is no array of records, which have {usual} rows: if "
        f"it holds nothing private, pass `numpyro_dp.public({leaf.name})`"
        for leaf in layout.arrays
        if rows.count(usual) > 1
        and leaf.shape[0] != usual
        and len(leaf.shape) > 1
        and not any(leaf.name.startswith(f"{name}[") for name in lists)
    ]
    return "".join(f". Perhaps {text}" for text in texts)


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
        names = ", ".join(f"`{name}`" for name in latents)
        return (
            f"latent site(s) {names} have an entry for each of {size} records: what a draw says of "
            "such an entry is about one person, and no noise can hide that and leave anything. "
            "Give the records' effect to public groups (a plate of groups, indexed by each "
            "record's group); integrate it out (`NegativeBinomial2` for `Poisson` with an effect a "
            "record, `StudentT` for a scale a record); draw it inside the records' plate and use "
            "`DPSVI` with a guide for local latents; or, for a Gaussian process or a random walk, "
            "give weights to a fixed number of public basis functions"
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
            "Gaussian process or a time series, give weights to a fixed number of public basis "
            "functions (`numpyro.contrib.hsgp`), and observe each record by itself given these"
        )
    return None
