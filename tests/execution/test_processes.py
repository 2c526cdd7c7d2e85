"""What processes compare before a run: settings and code, by value."""

import dataclasses
from functools import partial

import jax
import numpy as np
import pytest

import numpyro_dp as ndp
from numpyro_dp.execution.processes import fingerprint
from numpyro_dp.mechanisms import PrivateSum
from numpyro_dp.model.private_model import PrivateModel
from tests.models import logistic

SUM = {
    "num_records": 8, "dim": 2, "sampling_rate": 0.5, "clip_norm": 1.0, "noise_multiplier": 2.0,
    "num_steps": 3, "delta": 1e-5,
}  # fmt: skip


def split(model=logistic, rows=8, *public):
    return PrivateModel(model, (np.ones((rows, 2), np.float32), np.ones(rows, np.int32), *public))


def scaled(by):
    def model(x, y):
        return logistic(by * x, y)

    return model


def test_equal_things_are_equal():
    pairs = [
        (PrivateSum.create(**SUM), PrivateSum.create(**SUM)),
        (split(), split()),
        (split(scaled(2.0)), split(scaled(2.0))),
        ({"a": 1, "b": {3, "x"}}, {"b": {"x", 3}, "a": 1}),
        (jax.random.key(1), jax.random.key(1)),
        (partial(logistic, y=1), partial(logistic, y=1)),
        # What is not known is not looked into.
        (object(), object()),
    ]
    for one, other in pairs:
        assert fingerprint(one) == fingerprint(other), one


def shift(x, y, by):
    return logistic(x + by, y)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *(
            (PrivateSum.create(**SUM), PrivateSum.create(**{**SUM, name: value}))
            for name, value in (("clip_norm", 1.5), ("noise_multiplier", 3.0), ("num_records", 9))
        ),
        (split(), split(rows=9)),
        (split(), split(scaled(1.0))),
        (split(scaled(1.0)), split(scaled(2.0))),
        (split(shift, 8, ndp.public(np.float32(1))), split(shift, 8, ndp.public(np.float32(2)))),
        (jax.random.key(1), jax.random.key(2)),
        (np.zeros(3), np.zeros(3, np.float32)),
        (1, 1.0),
        (True, 1),
        ((1, (2,)), (1, 2)),
        (lambda x: x + 1, lambda x: x + 2),
        (lambda x, y=1: x, lambda x, y=2: x),
    ],
)
def test_different_things_differ(one, other):
    assert fingerprint(one) != fingerprint(other)


def test_a_value_that_holds_itself_has_an_end():
    @dataclasses.dataclass
    class Ring:
        next: object = None

    ring = Ring()
    ring.next = [ring]
    assert fingerprint(ring) != fingerprint(Ring())
