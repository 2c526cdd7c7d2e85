"""The parts add up to NumPyro's own potential energy, and each term sees one record."""

import contextlib
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro import handlers
from numpyro.infer.util import potential_energy

from numpyro_dp._quick_compile import quickly_compiled
from numpyro_dp.model.plates import WholePlates
from numpyro_dp.model.private_model import PrivateModel
from numpyro_dp.model.records import Public

from .examples import EXAMPLES
from .zoo import ACCEPTED, Case

POINTS = 3
RELATIVE = 2e-6


def plain(leaf_tree):
    """Arguments as plain NumPyro wants them: data as JAX arrays, public ones as they are."""

    def one(leaf):
        if isinstance(leaf, Public):
            return leaf.value
        return jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf

    return jax.tree.map(one, leaf_tree, is_leaf=lambda leaf: isinstance(leaf, Public))


def split(case: Case):
    model, args, kwargs = case.build()
    expected = contextlib.nullcontext()
    if case.dropped:
        expected = pytest.warns(UserWarning, match="Predictive")
    with expected:
        private = PrivateModel(model, args, kwargs, data_plate=case.data_plate)
    return private, model, args, kwargs


def reference(case: Case, model, args, kwargs):
    """NumPyro's own log density; models that subsample are switched to their full size first."""
    whole = WholePlates(model) if case.subsampled else model

    def log_joint(z):
        body = handlers.seed(whole, jax.random.key(0))
        if case.enum:
            from numpyro.contrib.funsor import config_enumerate, enum

            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)
                body = enum(config_enumerate(body), -3)
        return -potential_energy(body, plain(args), plain(kwargs), z, enum=case.enum)

    return log_joint


def relative(a, b):
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return float(np.max(np.abs(a - b)) / (1.0 + np.max(np.abs(b))))


def quickly(function, *arguments):
    """Compile without XLA's expensive passes: the program runs only a few times."""
    return quickly_compiled(function, *arguments)


def positions(private: PrivateModel):
    for i in range(POINTS):
        z = private.init(jax.random.key(100 + i))
        assert all(bool(jnp.isfinite(v).all()) for v in z.values())
        yield z


CASES = [
    pytest.param(c, id=c.name, marks=[] if c.quick else pytest.mark.slow)
    for c in ACCEPTED + EXAMPLES
]


@pytest.mark.parametrize("case", CASES)
def test_parts_add_up_and_each_term_reads_one_record(case: Case):
    private, model, args, kwargs = split(case)
    records = private.records(args, kwargs)
    rows = [a[:, None] for a in records]

    def terms(z, data):
        return jax.vmap(lambda record: private.record_log_likelihood(z, record))(data)

    def ours(z, data):
        each = terms(z, data)
        return private.log_prior(z) + jnp.sum(each), each

    def compare(z, data):
        theirs = jax.value_and_grad(reference(case, model, args, kwargs))(z)
        return jax.value_and_grad(ours, has_aux=True)(z, data), theirs

    both = quickly(compare, private.init(jax.random.key(0)), rows)
    neighbours = [a.at[5].set(a[6]) for a in rows]
    assert any(bool(jnp.any(a != b)) for a, b in zip(rows, neighbours, strict=True))
    for z in positions(private):
        ((value, each), gradient), (their_value, their_gradient) = both(z, rows)
        assert np.isfinite(float(their_value))
        scale = float(jnp.sum(jnp.abs(each)))
        assert abs(float(value) - float(their_value)) <= RELATIVE * (1.0 + scale)
        worst = max(relative(gradient[k], their_gradient[k]) for k in private.latents)
        assert worst <= RELATIVE * case.rounding
        (_, moved), _ = both(z, neighbours)[0]
        changed = np.flatnonzero(np.asarray(moved) != np.asarray(each))
        assert set(changed) <= {5}
    assert set(private.dropped_deterministics) == set(case.dropped)
