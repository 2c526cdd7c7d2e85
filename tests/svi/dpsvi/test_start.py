"""Where a private fit starts: nowhere that a record has been."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest

import numpyro_dp as ndp
from tests.models import OutOfSight

KEY = jax.random.key(0)
X = np.linspace(700.0, 800.0, 50, dtype=np.float32)
# Out of sight: an array that the code names is refused before any trace.
HELD = OutOfSight(x=X)


def model(x, scale=1.0):
    mean = numpyro.sample("mean", dist.Normal(0, 1000))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("x", dist.Normal(mean, scale), obs=x)


def guide(x, scale=1.0):
    loc = numpyro.param("loc", jnp.mean(x) * scale)
    numpyro.sample("mean", dist.Normal(loc, 1.0))


def closing(x, scale=1.0):
    loc = numpyro.param("loc", jnp.mean(jnp.asarray(HELD.x)))
    numpyro.sample("mean", dist.Normal(loc, 1.0))


def svi(guide=guide, **options):
    return ndp.DPSVI(
        model, guide, optax.sgd(1e-6), clip_norm=1e-3, noise_multiplier=1.0, clip="plain", **options
    )


def test_a_parameter_that_starts_at_a_statistic_starts_at_a_synthetic_one():
    made = svi()
    state = made.init(KEY, X)
    assert float(made.get_params(state)["loc"]) == 0.5
    result = made.run(KEY, 2, X, progress_bar=False)
    assert abs(float(result.params["loc"]) - 0.5) < 1e-3


def test_records_are_no_static_arguments():
    with pytest.raises(ValueError, match=r"`x` is an array.*run\(\)"):
        svi(x=X)


def test_static_arguments_reach_model_and_guide():
    factor = ndp.public(np.array([3.0], np.float32))

    def scaled(x, factor):
        numpyro.sample("mean", dist.Normal(numpyro.param("loc", 2.0 * factor[0]), 1.0))

    def with_factor(x, factor):
        model(x)

    made = ndp.DPSVI(
        with_factor, scaled, optax.sgd(1e-6), clip_norm=1.0, noise_multiplier=1.0, factor=factor
    )
    assert float(made.get_params(made.init(KEY, X))["loc"]) == 6.0
    # Whatever is put there later, a start does not read it.
    late = svi()
    late.static_kwargs = {"x": X}
    assert float(late.get_params(late.init(KEY))["loc"]) == 0.5


def test_a_parameter_that_starts_at_a_closure_over_records_is_refused():
    accountant = ndp.Accountant()
    made = svi(closing, accountant=accountant)
    for attempt in (lambda: made.init(KEY, X), lambda: made.run(KEY, 2, X, progress_bar=False)):
        with pytest.raises(ndp.UnsupportedModelError, match="closes over an array"):
            attempt()
    assert accountant.entries == ()
