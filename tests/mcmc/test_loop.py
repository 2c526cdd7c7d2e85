"""The compiled loop that collects draws, with steps that only count."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_dp.mcmc import loop


class Count(NamedTuple):
    i: Any
    z: Any


@dataclass(frozen=True)
class Counting:
    """Steps whose state says how many there were, in columns of ``width`` bytes' quarters."""

    width: int
    asks_records: ClassVar[bool] = False

    def transition(self, state, record_cache, records):
        return Count(state.i + 1, jax.tree.map(lambda x: x + 1, state.z)), record_cache

    def record_caches(self, state, records):
        return ()

    def constrained(self, z):
        return {"a": z["a"], "b": z["a"].sum() % 2 == 0}

    def told(self, state):
        return ""


def collected(chains, apart, *, width, lower, size, thinning, chunks):
    shape = (chains,) if chains else ()
    upper = lower + size * thinning + thinning - 1
    start = jnp.zeros((*shape, width)) + jnp.arange(max(chains, 1)).reshape(*shape, 1) * 1_000
    state = Count(jnp.zeros(shape, int), {"a": start})
    pieces = loop.collect(
        Counting(width),
        state,
        (),
        lower=lower,
        upper=upper,
        size=size,
        thinning=thinning,
        fields=("z", "i"),
        removed=(),
        postprocess=None,
        chunks=chunks,
        apart=apart,
    )
    *_, (done, state, rows) = pieces
    assert done == upper
    np.testing.assert_array_equal(state.i, upper)
    return jax.tree.map(np.asarray, loop.cut(rows, size, bool(chains), apart))


@pytest.mark.parametrize("width", [1, 3, 30, 33, 200])
@pytest.mark.parametrize(
    "asked",
    [
        {"lower": 0, "size": 3, "thinning": 1, "chunks": 1},
        {"lower": 17, "size": 100, "thinning": 1, "chunks": 7},
        {"lower": 300, "size": 131, "thinning": 3, "chunks": 10},
        {"lower": 5, "size": 128, "thinning": 2, "chunks": 3},
    ],
)
@pytest.mark.parametrize(("chains", "apart"), [(0, False), (2, True), (2, False)])
def test_every_row_is_of_its_step_however_rows_are_written(chains, apart, width, asked):
    rows = collected(chains, apart, width=width, **asked)
    size, thinning = asked["size"], asked["thinning"]
    # The last draw is of the last step, as NumPyro's is.
    last = asked["lower"] + size * thinning + thinning - 1
    steps = last - thinning * np.arange(size)[::-1]
    steps = np.broadcast_to(steps, (chains, size)) if chains else steps
    np.testing.assert_array_equal(rows["i"], steps)
    behind = 1_000 * np.arange(max(chains, 1)).reshape(-1, 1) if chains else 0
    np.testing.assert_array_equal(rows["z"]["a"], np.repeat((steps + behind)[..., None], width, -1))
    np.testing.assert_array_equal(rows["z"]["b"], (steps + behind) * width % 2 == 0)


def test_rows_are_written_in_blocks_of_little():
    def rows(*shapes):
        return [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]

    assert loop._block(rows((4, 7), (4,)), True) == 18
    assert loop._block(rows((7,), ()), False) == 18
    assert loop._block(rows((2, 33)), True) == 1
    assert loop._block([jax.ShapeDtypeStruct((), bool)], False) == 512
    assert loop._block(rows((4, 0)), True) == 512
