"""Rows that share memory with other rows: lags and windows of a series."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpy.lib.stride_tricks import sliding_window_view

import numpyro_dp as ndp
from numpyro_dp.model.private_model import private_model

SERIES = np.random.default_rng(0).normal(size=121).astype(np.float32)
TABLE = np.random.default_rng(1).normal(size=(240, 4)).astype(np.float32)


def regression(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.Normal(w * jnp.reshape(x, (len(y), -1))[:, 0], 1.0), obs=y)


@pytest.mark.parametrize(
    ("x", "y", "named"),
    [
        (SERIES[:-1], SERIES[1:], "`y` share memory with other rows of `x`"),
        (SERIES[1:], SERIES[:-1], "`x` share memory with other rows of `y`"),
        (sliding_window_view(SERIES, 5), np.zeros(117, np.float32), "with other rows of it"),
        (SERIES[::-1][1:], SERIES[::-1][:-1], "share memory"),
    ],
    ids=["lag", "lead", "windows", "backwards"],
)
def test_lags_and_windows_are_refused_before_a_charge(x, y, named):
    accountant = ndp.Accountant(ndp.Budget(2.0, 1e-5))
    kernel = ndp.DPSGLD(
        regression,
        privacy=ndp.Budget(1.0, 1e-5),
        step_size=1e-3,
        clip_norm=1.0,
        accountant=accountant,
    )
    mcmc = ndp.MCMC(kernel, num_warmup=0, num_samples=5, progress_bar=False)
    with pytest.raises(ndp.UnsupportedModelError, match=named) as error:
        mcmc.run(jax.random.key(0), x, y)
    assert ".copy()" in str(error.value)
    assert not accountant.entries
    svi = ndp.DPSVI(
        regression,
        numpyro.infer.autoguide.AutoNormal(regression),
        numpyro.optim.Adam(0.01),
        clip_norm=1.0,
        privacy=ndp.Budget(1.0, 1e-5),
    )
    with pytest.raises(ndp.UnsupportedModelError, match=named):
        svi.run(jax.random.key(0), 5, x, y, progress_bar=False)


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (SERIES[:-1].copy(), SERIES[1:]),
        (jnp.asarray(SERIES[:-1]), jnp.asarray(SERIES[1:])),
        (TABLE[:, 0], TABLE[:, 1]),
        (TABLE[:, :3], TABLE[:, 2]),
        (TABLE[::2, 0], TABLE[1::2, 0]),
        (TABLE[:120, 0], TABLE[120:, 0]),
        (SERIES, SERIES),
        (np.asfortranarray(TABLE)[:, 0], np.asfortranarray(TABLE)[:, 1]),
        (np.broadcast_to(np.float32(1), 121), SERIES),
        (TABLE.reshape(120, 2, 4)[:, 0], TABLE.reshape(120, 2, 4)[:, 1, 0]),
    ],
    ids=[
        "copy",
        "of JAX",
        "columns",
        "overlapping columns",
        "every other",
        "halves",
        "twice",
        "Fortran",
        "constant",
        "visits",
    ],
)
def test_rows_that_lie_apart_or_are_the_same_ones_are_taken(x, y):
    assert private_model(regression, (x, y)).num_records == len(y)


def test_lags_inside_the_model_are_told_of_as_a_series():
    def lags(y):
        w = numpyro.sample("w", dist.Normal(0, 1))
        with numpyro.plate("people", y.shape[0] - 1):
            numpyro.sample("y", dist.Normal(w * y[:-1], 1.0), obs=y[1:])

    with pytest.raises(ndp.UnsupportedModelError, match=r"as of a time series.*one of persons"):
        private_model(lags, (SERIES,))
