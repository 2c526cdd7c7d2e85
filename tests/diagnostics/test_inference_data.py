"""Released draws in ArviZ: coordinates everywhere, the statement in the attributes."""

import json

import arviz as az
import jax
import numpy as np
import pytest

import numpyro_dp as ndp
from tests.models import logistic


@pytest.fixture(scope="module")
def mcmc(records):
    kernel = ndp.DPSGLD(
        logistic, step_size=1e-3, batch_size=60, clip_norm=1.0, privacy=ndp.Budget(1.0, 1e-5)
    )
    mcmc = ndp.MCMC(kernel, num_warmup=2, num_samples=20, num_chains=2, progress_bar=False)
    mcmc.run(jax.random.key(0), records["x"], records["y"], extra_fields=("i",))
    return mcmc


def test_groups_dimensions_and_coordinates(mcmc):
    idata = ndp.from_numpyro(mcmc, coords={"input": ["one", "a", "b"]}, dims={"w": ["input"]})
    assert set(idata.groups()) == {"posterior", "sample_stats"}
    posterior = idata.posterior
    assert posterior["w"].dims == ("chain", "draw", "input")
    for dimension in posterior.sizes:
        assert dimension in posterior.coords
    np.testing.assert_array_equal(posterior["w"], mcmc.get_samples(group_by_chain=True)["w"])
    assert list(az.summary(idata, var_names="w").index) == ["w[one]", "w[a]", "w[b]"]


def test_the_statement_travels_with_the_draws(mcmc, tmp_path):
    idata = ndp.from_numpyro(mcmc)
    attributes = idata.posterior.attrs
    assert attributes["dp_epsilon"] == mcmc.privacy.epsilon <= 1.0
    assert attributes["dp_delta"] == 1e-5
    assert attributes["dp_relation"] == "zero_out"
    assert "plate 'people'" in attributes["dp_unit"]
    statement = ndp.PrivacyReport.from_dict(json.loads(attributes["dp_statement"]))
    assert statement.epsilon == mcmc.privacy.epsilon


def test_wrong_dims_and_wrong_objects_are_refused(mcmc):
    with pytest.raises(ValueError, match="names 2 dimensions"):
        ndp.from_numpyro(mcmc, dims={"w": ["a", "b"]})
    with pytest.raises(ValueError, match=r"numpyro_dp\.MCMC"):
        ndp.from_numpyro({"w": np.zeros(3)})
    fresh = ndp.MCMC(mcmc.sampler, num_warmup=1, num_samples=2)
    with pytest.raises(ValueError, match="nothing has run"):
        ndp.from_numpyro(fresh)
