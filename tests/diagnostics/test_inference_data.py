"""Released draws in ArviZ: coordinates everywhere, the statement in the attributes."""

import json
from dataclasses import replace
from pathlib import Path

import arviz as az
import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import xarray
from matplotlib import pyplot
from numpyro.handlers import scope
from numpyro.infer import Predictive

import numpyro_dp as ndp
from numpyro_dp.diagnostics.inference_data import _by_leaf
from numpyro_dp.mcmc.adaptation import AdaptState
from tests.arviz_groups import group_names
from tests.models import logistic

# Of one interface, the other, or both.
PLOTS = (
    "plot_autocorr",
    "plot_dist_comparison",
    "plot_ess",
    "plot_forest",
    "plot_pair",
    "plot_prior_posterior",
    "plot_rank",
    "plot_trace",
    "plot_trace_dist",
)

DOCS = Path(__file__).parents[2] / "docs"
ABSENT_IN = ("howto/inspect-in-arviz.md", "troubleshooting.md")
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
    assert set(group_names(idata)) == {"posterior", "sample_stats"}
    assert idata.posterior["w"].dims == ("chain", "draw", "input")
    np.testing.assert_array_equal(idata.posterior["w"], mcmc.get_samples(group_by_chain=True)["w"])
    assert list(az.summary(idata, var_names="w").index) == ["w[one]", "w[a]", "w[b]"]


def test_what_arviz_says_of_absent_groups_is_found_in_the_documentation(mcmc):
    """Whoever searches for the message has to find why, and what to do instead."""
    idata = ndp.from_numpyro(mcmc)
    pages = [(DOCS / page).read_text("utf-8") for page in ABSENT_IN]
    # Of one interface, the other, or both.
    calls = {"loo": {}, "waic": {}, "plot_ppc": {}, "plot_ppc_dist": {}, "plot_loo_pit": {"y": "y"}}
    if not az.__version__.startswith("0."):
        calls["plot_loo_pit"] = {}
    said = []
    for name in calls.keys() & set(dir(az)):
        with pytest.raises((TypeError, KeyError, AttributeError)) as caught:
            getattr(az, name)(idata, **calls[name])
        said.append(str(caught.value).strip("'").removeprefix("`data` "))
    assert len(said) >= 3
    for page in pages:
        written = page.replace("'DataTree' …", "'DataTree' object has no attribute 'observed_data'")
        assert [text for text in said if text.removesuffix(" for ppcplot") not in written] == []


def test_given_groups_hold_what_was_given(pair):
    mcmc, early = pair
    idata = everything(mcmc, early)
    assert set(group_names(idata)) == {
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
    assert settings["num_chains"] == mcmc.num_chains


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


def test_what_comes_back_is_what_the_installed_arviz_works_with(mcmc):
    idata = ndp.from_numpyro(mcmc)
    if int(az.__version__.split(".")[0]) == 0:
        assert isinstance(idata, az.InferenceData)
        return
    assert isinstance(idata, xarray.DataTree)
    for node in idata.children.values():
        assert node.attrs["creation_library"] == "numpyro_dp"
        assert node.attrs["creation_library_language"] == "Python"
        assert node.attrs["sample_dims"] == ["chain", "draw"]


# ArviZ 0.23 calls what matplotlib 3.11 is about to drop.
@pytest.mark.filterwarnings("ignore:Passing a dict or None as alias_mapping")
@pytest.mark.parametrize("name", PLOTS)
def test_arviz_draws_it(pair, name, tmp_path):
    plot = getattr(az, name, None)
    if plot is None:
        pytest.skip(f"ArviZ {az.__version__} has no {name}")
    drawn = plot(everything(*pair), var_names=["w"], backend="matplotlib")
    # A collection of plots with ArviZ 1, an array of axes with ArviZ 0.23.
    save = getattr(drawn, "savefig", None) or np.ravel(drawn)[0].figure.savefig
    save(tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 5_000
    pyplot.close("all")


def test_a_forest_takes_what_from_numpyro_made(mcmc):
    idata = ndp.from_numpyro(mcmc, coords={"input": ["one", "a", "b"]}, dims={"w": ["input"]})
    ax = ndp.plot_forest({"ArviZ": idata, "the run": mcmc}, var_names="w")
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["w[one]", "w[a]", "w[b]"]
    np.testing.assert_array_equal(ax.lines[0].get_xdata(), ax.lines[1].get_xdata())
    pyplot.close("all")


def test_a_file_is_read_back_with_its_statement(mcmc, tmp_path):
    idata = ndp.from_numpyro(mcmc)
    idata.to_netcdf(tmp_path / "draws.nc")
    read = az.from_netcdf(tmp_path / "draws.nc")
    assert read["posterior"].attrs["dp_epsilon"] == mcmc.privacy.epsilon
    np.testing.assert_array_equal(read["posterior"]["w"], idata["posterior"]["w"])


def normal(x):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    scale = numpyro.sample("scale", dist.LogNormal(0, 1))
    numpyro.deterministic("twice", 2 * mu)
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("x", dist.Normal(mu, scale), obs=x)


def test_a_released_likelihood_gives_draws_of_its_normal_approximation():
    x = np.random.default_rng(0).normal(1.0, 0.5, 4_000).astype(np.float32)
    release = ndp.LikelihoodRelease(normal, privacy=ndp.Budget(1.0, 1e-5))
    released = release.run(jax.random.key(0), x, progress_bar=False)
    idata = ndp.from_numpyro(released)
    assert group_names(idata) == ["posterior"]
    posterior = idata["posterior"]
    assert posterior["mu"].shape == (1, 1_000)
    np.testing.assert_allclose(posterior["twice"], 2 * posterior["mu"], rtol=1e-6)
    assert (posterior["scale"] > 0).all()
    assert posterior.attrs["dp_epsilon"] == released.privacy.epsilon
    assert "normal approximation" in posterior.attrs["dp_notes"]
    bad = replace(released.privacy, notes=("do not use: nothing arrived. Give more",))
    told = ndp.from_numpyro(replace(released, privacy=bad))["posterior"].attrs["dp_notes"]
    assert "do not use" in told
    assert "normal approximation" in told
    # The guide's own draws, of other keys: means of 1,000 differ by an eighth of an sd or less.
    own = Predictive(released.guide, params={}, num_samples=1_000)(jax.random.key(1))
    for name in ("mu", "scale"):
        gap = abs(float(posterior[name].mean()) - own[name].mean())
        assert gap < 0.2 * own[name].std()
        assert float(posterior[name].std()) == pytest.approx(float(own[name].std()), rel=0.15)
    with pytest.raises(ValueError, match="released likelihood"):
        ndp.from_numpyro(released, prior={"mu": np.zeros(3)})


def test_what_holds_no_draws_says_what_to_give_instead():
    x = np.linspace(1.0, 2.0, 900, dtype=np.float32).reshape(300, 3)
    centred = ndp.PrivateCentre(row_norm=4.0, noise_multiplier=2.0).run(jax.random.key(0), x)
    with pytest.raises(ValueError, match="on the centred inputs"):
        ndp.from_numpyro(centred)

    class Check:
        def to_inference_data(self):
            raise AssertionError("it is for the user to call")

    with pytest.raises(ValueError, match=r"own \.to_inference_data"):
        ndp.from_numpyro(Check())


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
