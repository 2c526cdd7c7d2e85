"""Records that the model's code names, without being handed them, are refused."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.autoguide import AutoNormal

import numpyro_dp as ndp
from numpyro_dp.model import PrivateModel

N = 37
ROWS = np.random.default_rng(0).normal(size=(N, 2)).astype(np.float32)
TABLES = {"train": {"x": ROWS}}
KNOTS = np.zeros((5, 2), np.float32)


def observe(x, y, scale=1.0, centre=0.0):
    w = numpyro.sample("w", dist.Normal(0, scale).expand([2]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Normal((x - centre) @ w, 1.0), obs=y)


def centred_by_a_global(x, y):
    observe(x, y, centre=ROWS.mean(0))


def scaled_by_a_table(x, y):
    observe(x, y, scale=float(TABLES["train"]["x"].std()))


def spread():
    return float(ROWS.std())


def scaled_by_a_helper(x, y):
    observe(x, y, scale=spread())


def by_closure(rows):
    def model(x, y):
        observe(x, y, scale=max(float(rows.std()) for _ in range(1)))

    return model


def with_public_knots(x, y):
    observe(x, y, scale=1.0 + float(KNOTS.sum()))


def with_a_name_alike(x, y):
    # An attribute, not the global of that name.
    observe(x, y, scale=jnp.ones(2).T.shape[0] / 2)


T = ROWS


def handed(x, y, told):
    observe(x, y, scale=1.0 + 0.0 * float(np.sum(ROWS)))


def data():
    return ROWS, np.zeros(N, np.float32)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (centred_by_a_global, "ROWS"),
        (scaled_by_a_table, "TABLES"),
        (scaled_by_a_helper, "ROWS"),
        (by_closure(ROWS), "rows"),
        (partial(by_closure(ROWS)), "rows"),
        (numpyro.handlers.scope(by_closure(ROWS), "a", hide_types=["plate"]), "rows"),
    ],
    ids=["global", "table", "helper", "closure", "partial", "handler"],
)
def test_a_named_array_of_records_is_refused(model, name):
    with pytest.raises(ndp.UnsupportedModelError, match=f"`{name}`.*argument"):
        PrivateModel(model, data(), check=False)


@pytest.mark.parametrize("model", [with_public_knots, with_a_name_alike])
def test_other_arrays_and_names_are_taken(model):
    PrivateModel(model, data(), check=False)


def test_a_declared_array_is_taken():
    PrivateModel(handed, (*data(), ndp.public(ROWS)), check=False)


def test_a_guide_is_read_too():
    def guide(x, y):
        loc = numpyro.param("loc", jnp.asarray(ROWS.mean(0)))
        numpyro.sample("w", dist.Normal(loc, 1.0).to_event(1))

    def fit(guide):
        return ndp.DPSVI(
            observe, guide, numpyro.optim.Adam(0.1), clip_norm=1.0, noise_multiplier=9.0
        )

    with pytest.raises(ndp.UnsupportedModelError, match="ROWS"):
        fit(guide).init(jax.random.key(0), *data())
    fit(AutoNormal(observe)).init(jax.random.key(0), *data())
