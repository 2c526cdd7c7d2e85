"""A model is run without its records on few placeholders, where these tell it all the same."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers

from numpyro_dp.model.data_free import enough_rows, run_data_free
from numpyro_dp.model.private_model import private_model

ROWS = 60
X = np.ones((ROWS, 2), np.float32)


def plain(x):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("groups", 3):
        numpyro.sample("group", dist.Gamma(2, 1))
    numpyro.deterministic("twice", 2 * w)
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("x", dist.Normal(w, 1).to_event(1), obs=x)


def by_size(x):
    w = numpyro.sample("w", dist.Normal(0, 1 / x.shape[0]))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("x", dist.Normal(w, 1).expand([2]).to_event(1), obs=x)


def scaled_by_size(x):
    with handlers.scale(scale=1.0 + x.shape[0]):
        w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("x", dist.Normal(w, 1).expand([2]).to_event(1), obs=x)


def by_family(x):
    law = dist.Laplace(0, 1) if x.shape[0] > 10 else dist.Normal(0, 1)
    w = numpyro.sample("w", law)
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("x", dist.Normal(w, 1).expand([2]).to_event(1), obs=x)


@pytest.mark.parametrize(
    ("model", "rows"),
    [
        (plain, 3),
        (by_size, ROWS),
        (scaled_by_size, ROWS),
        (by_family, ROWS),
    ],
)
def test_few_rows_serve_where_the_global_sites_are_the_same(model, rows):
    assert enough_rows(private_model(model, (X,), {})) == rows


def test_all_rows_serve_where_few_cannot_be_run(monkeypatch):
    def failing(model, num_rows):
        raise ValueError(num_rows)

    monkeypatch.setattr("numpyro_dp.model.data_free._run", failing)
    enough_rows.cache_clear()
    assert enough_rows(private_model(plain, (X,), {})) == ROWS
    enough_rows.cache_clear()


def test_it_reads_no_handler_of_whoever_runs_the_model():
    split = private_model(plain, (X,), {})
    enough_rows.cache_clear()
    with handlers.trace() as sites, handlers.seed(rng_seed=1):
        numpyro.sample("outside", dist.Normal())
        run_data_free(split)
    assert [name for name in sites if name != "outside"] == ["w", "groups", "group", "twice"]
    assert sites["w"]["value"].shape == (2,)
    # The same key gives the same draws, whether the rows were counted within or before.
    with handlers.trace() as again, handlers.seed(rng_seed=1):
        numpyro.sample("outside", dist.Normal())
        run_data_free(split)
    np.testing.assert_array_equal(sites["w"]["value"], again["w"]["value"])


def test_no_array_of_all_records_is_made(monkeypatch):
    made = []
    full = jnp.full
    monkeypatch.setattr(
        jnp, "full", lambda shape, *a, **k: made.append(shape) or full(shape, *a, **k)
    )
    split = private_model(plain, (X,), {})
    enough_rows(split)
    made.clear()
    with handlers.seed(rng_seed=jax.random.key(0)):
        run_data_free(split)
    assert made == [(3, 2)]
