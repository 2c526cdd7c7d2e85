"""Released draws in ArviZ: coordinates everywhere, the statement in the attributes."""

import json
import sys

import arviz as az
import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import xarray
from numpyro.handlers import scope
from numpyro.infer import Predictive

import numpyro_dp as ndp
from numpyro_dp.diagnostics.inference_data import _by_leaf
from numpyro_dp.mcmc.adaptation import AdaptState
from tests.models import logistic

INPUTS = np.array([[1.0, 0.5, -0.5], [1.0, 0.0, 1.0]], np.float32)


def scoped(x, y):
    scope(lambda: numpyro.sample("w", dist.Normal(0, 1)), "slope")()
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(0.5), obs=y)


def kernel(model=logistic):
    return ndp.DPSGLD(
        model, step_size=1e-3, batch_size=60, clip_norm=1.0, privacy=ndp.Budget(1.0, 1e-5)
    )


@pytest.fixture(scope="module")
def pair(records):
    """An MCMC object that warmed up and ran, and its warm-up draws."""
    mcmc = ndp.MCMC(kernel(), num_warmup=8, num_samples=20, num_chains=2, progress_bar=False)
    mcmc.warmup(jax.random.key(0), records["x"], records["y"], collect_warmup=True)
    early = mcmc.get_samples(group_by_chain=True)
    mcmc.run(jax.random.key(0), records["x"], records["y"], extra_fields=("i",))
    return mcmc, early


@pytest.fixture(scope="module")
def mcmc(pair):
    return pair[0]


def group_names(idata):
    """Names of the groups, in either generation of ArviZ."""
    return set(idata.children if isinstance(idata, xarray.DataTree) else idata.groups())


def everything(mcmc, early):
    return ndp.from_numpyro(
        mcmc,
        coords={"input": ["one", "a", "b"]},
        dims={"w": ["input"]},
        warmup_posterior=early,
        prior=Predictive(logistic, num_samples=30)(jax.random.key(1), INPUTS),
        predictions=Predictive(logistic, mcmc.get_samples())(jax.random.key(2), INPUTS),
    )


def test_groups_dimensions_and_coordinates(mcmc):
    idata = ndp.from_numpyro(mcmc, coords={"input": ["one", "a", "b"]}, dims={"w": ["input"]})
    assert group_names(idata) == {"posterior", "sample_stats"}
    assert idata.posterior["w"].dims == ("chain", "draw", "input")
    np.testing.assert_array_equal(idata.posterior["w"], mcmc.get_samples(group_by_chain=True)["w"])
    assert list(az.summary(idata, var_names="w").index) == ["w[one]", "w[a]", "w[b]"]


def test_given_groups_hold_what_was_given(pair):
    mcmc, early = pair
    idata = everything(mcmc, early)
    assert group_names(idata) == {
        "posterior",
        "sample_stats",
        "warmup_posterior",
        "prior",
        "prior_predictive",
        "predictions",
    }
    for group in group_names(idata):
        assert set(idata[group].sizes) <= set(idata[group].coords)
    np.testing.assert_array_equal(idata["warmup_posterior"]["w"], early["w"])
    assert idata["prior"]["w"].shape == (1, 30, 3)
    assert idata["prior_predictive"]["y"].shape == (1, 30, 2)
    assert idata["predictions"]["y"].shape == (2, 20, 2)
    # Chain by chain: the deterministic site of the predictions is a function of the draw.
    np.testing.assert_allclose(
        idata["predictions"]["norm"], (idata["posterior"]["w"] ** 2).sum("input"), rtol=1e-5
    )


def test_the_statement_travels_with_the_draws(mcmc):
    attributes = ndp.from_numpyro(mcmc).posterior.attrs
    assert attributes["dp_epsilon"] == mcmc.privacy.epsilon <= 1.0
    assert attributes["dp_delta"] == 1e-5
    assert attributes["dp_relation"] == "zero_out"
    assert "plate 'people'" in attributes["dp_unit"]
    statement = ndp.PrivacyReport.from_dict(json.loads(attributes["dp_statement"]))
    assert statement.epsilon == mcmc.privacy.epsilon
    settings = json.loads(attributes["inference_library_settings"])
    assert (settings["kernel"], settings["clip_norm"], settings["steps"]) == ("DPSGLD", 1.0, 56)


def test_everything_survives_netcdf(pair, tmp_path):
    idata = everything(*pair)
    idata.to_netcdf(tmp_path / "draws.nc")
    for group in group_names(idata):
        kept = idata[group]
        with xarray.open_dataset(tmp_path / "draws.nc", group=group) as read:
            assert set(read.variables) == set(kept.variables)
            np.testing.assert_array_equal(read["draw"], kept["draw"])
            assert {k: v for k, v in read.attrs.items() if k != "sample_dims"} == {
                k: v for k, v in kept.attrs.items() if k != "sample_dims"
            }
            assert list(read.attrs.get("sample_dims", [])) == kept.attrs.get("sample_dims", [])


class ArviZ1:
    """A stand-in for the module ``arviz`` 1.x, of which the conversion reads the version only."""

    __version__ = "1.3.0"


@pytest.mark.skipif(not az.__version__.startswith("0."), reason="ArviZ 1 itself is installed")
def test_under_arviz_1_the_same_groups_come_as_a_tree(pair, monkeypatch):
    # arviz1_corner.py does this with the real ArviZ 1, which needs Python 3.12.
    monkeypatch.setattr("numpyro_dp.diagnostics.inference_data.arviz_module", ArviZ1)
    tree = everything(*pair)
    assert isinstance(tree, xarray.DataTree)
    monkeypatch.undo()
    old = everything(*pair)
    assert set(tree.children) == group_names(old)
    for name, node in tree.children.items():
        xarray.testing.assert_equal(node.to_dataset(), old[name])
        assert node.attrs["creation_library"] == "numpyro_dp"
        assert node.attrs["creation_library_language"] == "Python"
        assert node.attrs["sample_dims"] == ["chain", "draw"]


def test_a_missing_arviz_is_named(mcmc, monkeypatch):
    monkeypatch.setitem(sys.modules, "arviz", None)
    with pytest.raises(ImportError, match="pip install 'arviz"):
        ndp.from_numpyro(mcmc)


def test_wrong_dims_and_wrong_objects_are_refused(mcmc):
    with pytest.raises(ValueError, match="names 2 dimensions"):
        ndp.from_numpyro(mcmc, dims={"w": ["a", "b"]})
    with pytest.raises(ValueError, match=r"coords\['input'\] holds 2 values"):
        ndp.from_numpyro(mcmc, dims={"w": ["input"]}, coords={"input": ["a", "b"]})
    with pytest.raises(ValueError, match=r"numpyro_dp\.MCMC"):
        ndp.from_numpyro({"w": np.zeros(3)})
    fresh = ndp.MCMC(mcmc.sampler, num_warmup=1, num_samples=2)
    with pytest.raises(ValueError, match="nothing has run"):
        ndp.from_numpyro(fresh)


@pytest.mark.parametrize("collect", [False, True])
def test_warm_up_draws_are_not_passed_off_as_a_posterior(records, collect):
    # Without collect_warmup NumPyro's buffer holds zeros, which would look like draws.
    mcmc = ndp.MCMC(kernel(), num_warmup=8, num_samples=20, num_chains=2, progress_bar=False)
    mcmc.warmup(jax.random.key(0), records["x"], records["y"], collect_warmup=collect)
    with pytest.raises(ValueError, match="only the warm-up has run"):
        ndp.from_numpyro(mcmc)


def test_groups_of_another_run_are_refused(mcmc):
    with pytest.raises(ValueError, match=r"warmup_posterior\['\w+'\].*\(2, 8\)"):
        ndp.from_numpyro(mcmc, warmup_posterior=mcmc.get_samples(group_by_chain=True))
    with pytest.raises(ValueError, match=r"predictions\['y'\].*chains · draws = 40"):
        ndp.from_numpyro(mcmc, predictions={"y": np.zeros((20, 2))})


@pytest.mark.parametrize("group", ["prior", "predictions"])
def test_predictions_at_the_records_are_refused(mcmc, records, group):
    predictive = Predictive(logistic, mcmc.get_samples())
    in_sample = predictive(jax.random.key(0), records["x"])
    with pytest.raises(ValueError, match="evaluated at the records") as caught:
        ndp.from_numpyro(mcmc, **{group: in_sample})
    assert "400" not in str(caught.value)


@pytest.mark.slow
def test_scoped_sites_get_names_that_files_can_hold(records, tmp_path):
    mcmc = ndp.MCMC(kernel(scoped), num_warmup=1, num_samples=3, progress_bar=False)
    mcmc.run(jax.random.key(0), records["x"], records["y"])
    assert set(mcmc.get_samples()) == {"slope/w"}
    idata = ndp.from_numpyro(mcmc)
    assert set(idata.posterior.data_vars) == {"slope.w"}
    idata.to_netcdf(tmp_path / "draws.nc")
    with pytest.raises(ValueError, match=r"both be called 'slope\.w'"):
        ndp.from_numpyro(mcmc, predictions=dict.fromkeys(["slope/w", "slope.w"], np.ones(3)))


def test_a_field_of_several_arrays_becomes_several():
    """As ``extra_fields=("adapt_state",)`` of an adapted chain."""
    state = AdaptState(np.zeros((2, 5, 3)), np.zeros((2, 5, 3, 3)))
    found = _by_leaf({"adapt_state": state, "z.w": np.ones((2, 5))})
    assert {name: each.shape for name, each in found.items()} == {
        "adapt_state.mean": (2, 5, 3),
        "adapt_state.mass_matrix_sqrt_inv": (2, 5, 3, 3),
        "z.w": (2, 5),
    }
