"""The compiled loop behind ``numpyro_dp.MCMC``: chunks of steps, one executable for all of them.

NumPyro's ``fori_collect`` recompiles on every run and pays a Python call per step for its bar.
Here one module-level jit with dynamic bounds serves every chunk, chain and run of equal shapes,
and the bar is updated between chunks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpyro.util import nested_attrgetter

from numpyro_dp._quick_compile import lightly_jitted, quickly_jitted
from numpyro_dp._sources import require_read
from numpyro_dp.mcmc.kernel import is_batched


class Steps(Protocol):
    """What the loop runs: a bound kernel, or NUTS on what was released."""

    @property
    def asks_records(self) -> bool:
        """Whether a transition computes with records."""
        ...

    def transition(self, state: Any, record_cache: Any, records: Any, /) -> tuple[Any, Any]: ...

    def record_caches(self, state: Any, records: Any, /) -> Any: ...

    def constrained(self, z: Any) -> dict[str, Any]: ...

    def told(self, state: Any, /) -> str:
        """What a bar says of a state, which was released."""
        ...

    def __hash__(self) -> int: ...


def over_devices(num_chains: int) -> tuple[NamedSharding, NamedSharding]:
    """Shardings that give each of ``num_chains`` devices one chain, and all of them everything."""
    mesh = Mesh(np.array(jax.local_devices()[:num_chains]), ("chains",))
    return NamedSharding(mesh, PartitionSpec("chains")), NamedSharding(mesh, PartitionSpec())


def at_once(run: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A ``chain_method`` of NumPyro's driver: chains run together and are collected by chain.

    Of its "vectorized" NumPyro turns the draws around itself, in a program for every field.
    """
    return run


def collect(
    kernel: Steps,
    state: Any,
    records: tuple,
    *,
    lower: int,
    upper: int,
    size: int,
    thinning: int,
    fields: tuple[str, ...],
    removed: tuple[str, ...],
    postprocess: Callable[[dict], dict] | None,
    chunks: int,
    apart: bool = False,
) -> Iterator[tuple[int, Any, dict]]:
    """Run transitions ``0 … upper`` in ``chunks`` pieces, keeping every ``thinning``-th draw.

    Yields ``(transitions done, state, collected fields)`` after each piece; only the last one's
    collection is complete. Draws before ``lower`` are not kept. Each collected array has ``size``
    rows, as NumPyro's has.

    :param apart: whether chains run one after another, see :func:`runs_apart`. Collected arrays
        then begin with the axis of chains.
    """
    gather = _Gather(kernel, postprocess, fields, removed, is_batched(state))
    shapes = jax.eval_shape(gather, state)
    # Rows beyond those asked for take the draws that are not kept, so that the body needs no
    # branch and XLA updates in place.
    each, tree = jax.tree.flatten(shapes)
    light = not kernel.asks_records and (apart or not gather.batched)
    spare = _block(each, apart) if light else 1
    rows = tuple(_with_rows(size + spare, x.shape, apart) for x in each)
    collection = _empty(tree, rows, tuple(x.dtype for x in each))
    start = lower + (upper - lower) % thinning
    bounds = [upper * k // chunks for k in range(chunks + 1)]
    chunk = _chunk if kernel.asks_records else _light_chains if apart else _light_chunk
    gather = replace(gather, batched=gather.batched and not apart)
    for low, high in pairwise(bounds):
        if low == high:
            continue
        state, collection = chunk(
            kernel, gather, size, thinning, low, high, start, state, collection, records
        )
        require_read(records, state.i)
        yield high, state, collection
    if upper == 0:
        yield 0, state, collection


def _steps(kernel, gather, size, thinning, low, high, start, state, collection, records):
    def body(index, carry):
        state, record_cache, collection = carry
        state, record_cache = kernel.transition(state, record_cache, records)
        row = (index - start) // thinning
        row = jnp.where(row < 0, size, row)
        collection = jax.tree.map(
            lambda rows, value: lax.dynamic_update_index_in_dim(rows, value, row, 0),
            collection,
            gather(state),
        )
        return state, record_cache, collection

    # What is recalled holds values of single records, and ends here.
    carry = state, kernel.record_caches(state, records), collection
    state, _, collection = lax.fori_loop(low, high, body, carry)
    return state, collection


def _chains(kernel, gather, size, thinning, low, high, start, state, collection, records):
    def run(chain):
        given = low, high, start, *chain, records
        return _blocks(kernel, gather, size, thinning, *given)

    return lax.map(run, (state, collection))


def _blocks(kernel, gather, size, thinning, low, high, start, state, collection, records):
    """Steps as of :func:`_steps`, whose rows are written in blocks of as many as are to spare."""
    block = len(jax.tree.leaves(collection)[0]) - size
    if block == 1:
        return _steps(kernel, gather, size, thinning, low, high, start, state, collection, records)
    steps = block * thinning

    def some(carry):
        index, state, collection = carry
        number = (index - start) // steps
        begin, row = start + number * steps, jnp.where(number < 0, size, number * block)
        # A piece may end within a block, of which the next one keeps what is there.
        rows = jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, row, block), collection)
        end = jnp.minimum(begin + steps, high)
        state, rows = _steps(
            kernel, gather, block, thinning, index, end, begin, state, rows, records
        )
        collection = jax.tree.map(
            lambda x, part: lax.dynamic_update_slice_in_dim(x, part, row, 0), collection, rows
        )
        return end, state, collection

    return lax.while_loop(lambda carry: carry[0] < high, some, (low, state, collection))[1:]


_JIT: dict[str, Any] = {
    "static_argnames": ("kernel", "gather", "size", "thinning"),
    "donate_argnames": "collection",
}
_chunk, _light_chunk = jax.jit(_steps, **_JIT), lightly_jitted(_blocks, **_JIT)
_light_chains = lightly_jitted(_chains, **_JIT)
# More chains than these are quicker in step.
_FEW = 8
# XLA runs a loop's body on one thread of a CPU where no array in it takes more bytes than these.
# Else threads hand each step on to each other, which takes longer than a step of a small model.
_SMALL = 512
# In smaller blocks the loop over them costs what is saved.
_LEAST = 4


def runs_apart(kernel: Steps, num_chains: int) -> bool:
    """Whether chains that are asked for together run one after another, in one program.

    In step, each iteration of each loop is taken as often as the chain that needs most of them
    asks for, and every carry is selected for those that are through: such a program of NUTS takes
    twice as long to compile. On a CPU it saves no time either, of up to some eight chains.
    """
    return not kernel.asks_records and num_chains <= _FEW and jax.default_backend() == "cpu"


def _block(rows: list[Any], apart: bool) -> int:
    """How many rows are written at once, where one row of each array is like these."""
    shapes = [x.shape[1:] if apart else x.shape for x in rows]
    sizes = [math.prod(shape) * x.dtype.itemsize for shape, x in zip(shapes, rows, strict=True)]
    most = max([1, *sizes])
    block = _SMALL // most
    return block if block >= _LEAST else 1


def _with_rows(number: int, shape: tuple[int, ...], apart: bool) -> tuple[int, ...]:
    return (shape[0], number, *shape[1:]) if apart else (number, *shape)


def _zeros(tree: Any, shapes: tuple, dtypes: tuple) -> Any:
    return jax.tree.unflatten(tree, map(jnp.zeros, shapes, dtypes))


# One program in place of one for each field.
_empty = quickly_jitted(_zeros, static_argnums=(0, 1, 2))


def _cut(collection: dict, size: int, by_chain: bool, apart: bool = False) -> dict:
    def first(rows: Any) -> Any:
        if apart:
            return rows[:, :size]
        return jnp.swapaxes(rows[:size], 0, 1) if by_chain else rows[:size]

    return jax.tree.map(first, collection)


cut = quickly_jitted(_cut, static_argnums=(1, 2, 3))
"""The first ``size`` rows of all that was collected; ``by_chain`` turns (draw, chain, …) around,
which those of chains that ran ``apart`` are."""


@dataclass(frozen=True)
class _Gather:
    """Collected fields of a state, the sample field constrained; compared by value."""

    kernel: Steps
    postprocess: Callable[[dict], dict] | None
    fields: tuple[str, ...]
    removed: tuple[str, ...]
    batched: bool

    def __call__(self, state: Any) -> dict[str, Any]:
        constrain = self.postprocess or self.kernel.constrained
        values = nested_attrgetter(*self.fields)(state)
        values = list(values) if len(self.fields) > 1 else [values]
        sites = (jax.vmap(constrain) if self.batched else constrain)(values[0])
        values[0] = {k: v for k, v in sites.items() if k not in self.removed}
        return dict(zip(self.fields, values, strict=True))
