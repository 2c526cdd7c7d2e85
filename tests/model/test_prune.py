"""Dead-code elimination tells exactly which inputs an output reads."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_dp.model.jaxprs import constants, fingerprint, prune, trace_program

VECTOR = jax.ShapeDtypeStruct((4,), "float32")


@pytest.mark.parametrize(
    ("function", "reads"),
    [
        (lambda a, b: a.sum(), (True, False)),
        (lambda a, b: jnp.zeros_like(a).sum() + b.shape[0], (False, False)),
        (lambda a, b: (a * b)[0] * 0 + jax.lax.stop_gradient(b)[0], (True, True)),
        (lambda a, b: jax.jit(lambda u, v: (u, v))(a, b)[0], (True, False)),
        (lambda a, b: jax.lax.scan(lambda c, v: (c, v), b[0], a)[0], (False, True)),
        (lambda a, b: jax.lax.cond(True, lambda u, v: u, lambda u, v: u * 2, b, a), (False, True)),
    ],
    ids=["direct", "shape only", "both", "jit", "scan", "cond"],
)
def test_used_inputs(function, reads):
    program = trace_program(function, VECTOR, VECTOR)
    assert prune(program, [True]).used == reads


def test_pruned_program_evaluates_without_the_dropped_inputs():
    program = trace_program(lambda a, b: (2 * a, b), VECTOR, VECTOR)
    (doubled,) = prune(program, [True, False])([np.arange(4.0, dtype="float32")])
    np.testing.assert_array_equal(doubled, [0, 2, 4, 6])


def test_constants_of_dropped_outputs_go_with_them():
    kept, dropped = jnp.arange(5.0), jnp.arange(7.0)
    program = trace_program(lambda a: (kept.sum() + a[0], dropped.sum()), VECTOR)
    pruned = prune(program, [True, False])
    assert [np.shape(c) for c in constants(pruned.jaxpr, pruned.consts)] == [(5,)]


def test_constants_are_found_inside_calls():
    hidden = jnp.arange(6.0)
    program = trace_program(
        lambda a: jax.lax.cond(a[0] > 0, lambda: hidden.sum(), lambda: jax.jit(lambda: 0.0)()),
        VECTOR,
    )
    pruned = prune(program, [True])
    assert (6,) in [np.shape(c) for c in constants(pruned.jaxpr, pruned.consts)]


def test_fingerprint_tells_numbers_shapes_and_constants_apart():
    def of(function, struct=VECTOR):
        return fingerprint(prune(trace_program(function, struct), [True]))

    table, other = jnp.arange(3.0), jnp.arange(3.0) + 1
    assert of(lambda a: a * 2) == of(lambda a: a * 2)
    assert of(lambda a: a * 2) != of(lambda a: a * 3)
    assert of(lambda a: a * 0.1) != of(lambda a: a * 0.1000001)
    assert of(lambda a: a.sum()) != of(lambda a: a.sum(), jax.ShapeDtypeStruct((5,), "float32"))
    assert of(lambda a: a[0] * table) != of(lambda a: a[0] * other)
    assert of(jax.nn.relu) == of(jax.nn.relu)
