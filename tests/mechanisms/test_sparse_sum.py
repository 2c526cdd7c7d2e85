"""A sparse private sum releases what the dense one does, and holds each record to its bound."""

import math
import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp
from jax import random

from numpyro_dp.mechanisms import PrivateSum
from numpyro_dp.mechanisms.sparse_sum import SparsePrivateSum, Touched

ROWS, WIDTH, TOUCHED = 12, 3, 4
SHAPE = {
    "num_records": 40,
    "dim": ROWS * WIDTH,
    "sampling_rate": 1.0,
    "clip_norm": 4.0,
    "num_steps": 10,
    "delta": 1e-5,
}
DITHERED = ("dither",)
FORMS = {
    "dither": {"noise_multiplier": 1.0, "num_records": 400},
    "no dither": {"noise_multiplier": 20.0},
    "norm check past 2^24": {"noise_multiplier": 0.5},
    "two draws": {"noise_multiplier": 300.0},
    "batches": {"noise_multiplier": 1.0, "sampling_rate": 0.3},
    "schedule, in blocks": {"noise_multiplier": (8.0, 4.0), "microbatch_size": 7},
}

COSTLY = ("norm check past 2^24", "two draws", "schedule, in blocks")
EACH_FORM = pytest.mark.parametrize(
    "form", [pytest.param(f, marks=[pytest.mark.slow] * (f in COSTLY)) for f in FORMS]
)


def sparse(**changes) -> SparsePrivateSum:
    shape = {**SHAPE, "noise_multiplier": 1.0, "entries": TOUCHED * WIDTH, **changes}
    return SparsePrivateSum.create(**shape)


def dense(total: SparsePrivateSum) -> PrivateSum:
    """The plain sum of the same lattice."""
    kept = {name: getattr(total, name) for name in total.__dataclass_fields__ if name != "entries"}
    return PrivateSum(**kept)


def documents(count, seed=0, whole=True):
    """Strictly rising slots with padding at the end; halves, whose squares add exactly."""
    draw = np.random.default_rng(seed)
    slots = np.full((count, TOUCHED), ROWS, np.int32)
    for row in slots:
        size = draw.integers(0, TOUCHED + 1)
        row[:size] = np.sort(draw.choice(ROWS, size, replace=False))
    values = draw.integers(-4, 5, (count, TOUCHED, WIDTH)) / 2
    if not whole:
        values = draw.normal(size=values.shape)
    return jnp.asarray(slots), jnp.asarray(values, jnp.float32)


def touched(record):
    return Touched(record[0][0], record[1][0])


def spread(record):
    """The dense vector of a record, written without the code under test."""
    slots, values = record[0][0], record[1][0]
    one_hot = (slots[:, None] == jnp.arange(ROWS)).astype(jnp.float32)
    return (one_hot.T @ values).reshape(-1)


@EACH_FORM
def test_sparse_and_dense_release_the_same_bits(form):
    total = sparse(**FORMS[form])
    records = list(documents(total.num_records))
    # The longest vectors, of norm up to 6, are clipped at 4.
    both = jax.jit(
        lambda key, records: (
            total.release(key, touched, records, 1),
            dense(total).release(key, spread, records, 1),
        )
    )(random.key(1), records)
    np.testing.assert_array_equal(*both)
    assert total.lattice.dither == (form in DITHERED)


def test_without_privacy_it_is_the_plain_sum():
    records = list(documents(40, whole=False))
    total = sparse(noise_multiplier=0, clip_norm=math.inf)
    plain = np.asarray(jax.vmap(spread)([r[:, None] for r in records])).sum(0)
    released = total.release(random.key(0), touched, records)
    np.testing.assert_allclose(released, plain, atol=1e-5)


ANY_FLOAT = st.floats(width=32, allow_nan=True, allow_infinity=True, allow_subnormal=True)


@pytest.mark.parametrize("form", ["dither", "no dither", "two draws"])
@settings(max_examples=40, deadline=None)
@given(
    slots=hnp.arrays(np.int32, (5, TOUCHED), elements=st.integers(-3, ROWS + 3)),
    ordered=st.booleans(),
    values=hnp.arrays(
        np.float32, (5, TOUCHED, WIDTH), elements=ANY_FLOAT | st.floats(-2, 2, width=32)
    ),
)
def test_a_record_of_any_kind_moves_the_integer_sum_by_its_bound(form, slots, ordered, values):
    slots = np.sort(slots, axis=1) if ordered else slots
    total = TOTALS[form]
    sums = np.asarray(_sums(form, jnp.asarray(slots), jnp.asarray(values))).astype(object)
    shift = sums[0] - sums[1]
    assert (shift * shift).sum() <= total.lattice.squared_bound
    real = slots[2][slots[2] < ROWS]
    # Padding is all alike, whatever its numbers.
    places = list(np.minimum(slots[2], ROWS))
    lawful = len(set(real)) == len(real) and places == sorted(places)
    if slots[2].min() < 0 or not lawful:
        assert not shift.any()


TOTALS = {form: sparse(**FORMS[form]) for form in ("dither", "no dither", "two draws")}


def _sums(form, slots, values):
    """Integer sums of five records, with and without the third."""
    return _COMPILED[form](slots, values)


def _compiled(total):
    words = random.bits(random.key(3), (total.dim,), jnp.uint32)
    numbers = jnp.arange(5, dtype=jnp.int32)

    @jax.jit
    def sums(slots, values):
        def one(mask):
            block = Touched(slots, values)
            lattice = total.lattice
            return total._integer_sum(lattice, block, numbers, mask, words, words[0], lattice.bound)

        return one(jnp.ones(5, bool)), one(jnp.arange(5) != 2)

    return sums


_COMPILED = {form: _compiled(total) for form, total in TOTALS.items()}


@pytest.mark.parametrize(
    "spoilt",
    [
        ("a duplicate", lambda s, v: (s.at[3].set(jnp.array([2, 2, 5, ROWS])), v)),
        ("disorder", lambda s, v: (s.at[3].set(jnp.array([5, 2, 7, ROWS])), v)),
        ("a negative slot", lambda s, v: (s.at[3].set(jnp.array([-1, 2, 5, ROWS])), v)),
        ("padding in between", lambda s, v: (s.at[3].set(jnp.array([1, ROWS, 5, ROWS])), v)),
        ("NaN", lambda s, v: (s.at[3].set(jnp.arange(4)), v.at[3, 1, 0].set(jnp.nan))),
        ("infinity", lambda s, v: (s.at[3].set(jnp.arange(4)), v.at[3, 1, 0].set(-jnp.inf))),
        ("nothing but padding", lambda s, v: (s.at[3].set(ROWS), v.at[3].set(jnp.nan))),
    ],
    ids=lambda case: case[0],
)
@pytest.mark.parametrize("form", ["dither", "no dither"])
def test_a_useless_record_adds_exactly_zero(spoilt, form):
    total = TOTALS[form]
    slots, values = documents(total.num_records)
    release = _RELEASES[form]
    null = release(slots, values.at[3].set(0))
    present = release(slots.at[3].set(jnp.arange(4)), values.at[3].set(1.0))
    assert not np.array_equal(present, null)
    np.testing.assert_array_equal(release(*spoilt[1](slots, values)), null)


_RELEASES = {
    form: jax.jit(
        lambda slots, values, total=total: total.release(random.key(1), touched, [slots, values])
    )
    for form, total in TOTALS.items()
}


def test_dither_leaves_what_was_not_touched_at_zero():
    total = TOTALS["dither"]
    assert total.lattice.dither
    slots = jnp.tile(jnp.array([[1, 4, ROWS, ROWS]]), (5, 1))
    with_it, _ = _sums("dither", slots, jnp.full((5, TOUCHED, WIDTH), 0.7).at[:, 1, 2].set(0))
    table = np.asarray(with_it).reshape(ROWS, WIDTH)
    assert np.flatnonzero(table.any(axis=1)).tolist() == [1, 4]
    assert table[4, 2] == 0


@EACH_FORM
def test_compiled_release_rounds_once(form):
    total = sparse(**FORMS[form])
    records = list(documents(total.num_records, whole=False))

    def vector(scale, record):
        return Touched(record[0][0], jnp.tanh(scale * record[1][0]))

    text = (
        jax.jit(lambda key, s, r: total.release(key, lambda x: vector(s, x), r))
        .lower(random.key(0), jnp.ones(()), records)
        .compile()
        .as_text()
    )
    assert len(re.findall(r" (?:round-nearest-even|floor)\(", text)) == 1


def test_lattice_is_planned_for_what_a_record_touches():
    wide = {"dim": 60_000, "noise_multiplier": 5.0, "num_records": 1000}
    assert sparse(**wide).lattice.coarse == 0
    whole = PrivateSum.create(**{**SHAPE, **wide})
    assert whole.lattice is not None
    assert whole.lattice.coarse > 0
    # The noise still falls on every coordinate, and so does its distance to the ideal law.
    assert sparse(**wide).tv_per_step == 60_000 * sparse(**wide).lattice.tv
    assert sparse(**wide).event(3) == replace(sparse(**wide)).event(3)


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"entries": None}, "entries="), ({"scale": (1.0,) * 36}, "scale=")],
)
def test_arguments_out_of_range_are_refused_by_name(changes, words):
    with pytest.raises(ValueError, match=words):
        sparse(**changes)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda r: Touched(r[0][0][:2], r[1][0][:2]), "touches 12 numbers"),
        (lambda r: Touched(jnp.arange(12), r[1][0].reshape(12)), "touches 12 numbers"),
    ],
)
def test_vectors_of_another_shape_are_refused(function, words):
    with pytest.raises(ValueError, match=words):
        sparse().release(random.key(0), function, list(documents(40)))
