"""The stochastic-gradient family: posteriordb without noise, exact laws of whole kernels."""

import json

import jax
import numpy as np
import pytest

import numpyro_dp as ndp
from tests.models import normal_mean
from tests.statistical.test_kidiq import kidscore

pytestmark = pytest.mark.slow
NOISE_OFF = {"noise_multiplier": 0.0, "clip_norm": np.inf}
METRIC = {"centre": 4.0, "b2": 5.0, "b3": 4e-3, "sigma": 1e-3}
FAMILY = {
    # Small steps in units of the preconditioned posterior variances, about 1 each.
    "DPSGHMC": (ndp.DPSGHMC, {"step_size": 0.02, "friction": 1.0}),
    "DPSGNHT": (ndp.DPSGNHT, {"step_size": 0.01, "diffusion": 1.0}),
    "DPSGFS": (ndp.DPSGFS, {"step_size": 0.1}),
}


@pytest.mark.filterwarnings("ignore:deterministic site")
@pytest.mark.parametrize("name", sorted(FAMILY))
def test_means_and_spreads_match_the_gold_draws(data_folder, name):
    # 8 chains of 20,000 steps, at least 1,000 independent draws in the slowest direction: a mean is
    # known to .03 sd, an sd to 2 %. Bounds .15 sd and 10 %: false alarm < 1e-5.
    constructor, settings = FAMILY[name]
    data = json.loads((data_folder / "pdb_kidiq.json").read_text())
    records = [np.asarray(data[key], np.float32) for key in ("mom_hs", "mom_iq", "kid_score")]
    kernel = constructor(kidscore, preconditioner=METRIC, **settings, **NOISE_OFF)
    mcmc = ndp.MCMC(
        kernel, num_warmup=5_000, num_samples=20_000, num_chains=8, secure=False, progress_bar=False
    )
    start = {"centre": 85.0, "b2": 0.0, "b3": 0.5, "sigma": np.log(18.0)}
    init = {site: np.full(8, value, np.float32) for site, value in start.items()}
    mcmc.run(jax.random.key(0), *records, init_params=init)
    gold = np.load(data_folder / "pdb_kidiq-kidscore_momhsiq_draws.npz")
    draws = mcmc.get_samples()
    ours = {"beta[1]": "b1", "beta[2]": "b2", "beta[3]": "b3", "sigma": "sigma"}
    for theirs, site in ours.items():
        exact, values = gold[theirs].astype(float), np.asarray(draws[site], float)
        assert abs(values.mean() - exact.mean()) < 0.15 * exact.std(), site
        assert abs(values.std() / exact.std() - 1) < 0.1, site


@pytest.mark.parametrize(
    ("constructor", "settings"),
    [
        (ndp.DPSGHMC, {"step_size": 6e-4, "friction": 8.0}),
        (ndp.DPSGNHT, {"step_size": 6e-4, "diffusion": 8.0}),
        # More privacy noise than the diffusion asks for: the thermostat has to answer it.
        (ndp.DPSGNHT, {"step_size": 6e-4, "diffusion": 0.8}),
        (ndp.DPSGFS, {"step_size": 1.0}),
    ],
)
def test_the_privacy_noise_is_counted_into_the_posteriors(constructor, settings):
    # Full batches of 40 records, exact posterior N(Σx/41, 1/41) in 2 coordinates; 64 chains of
    # 1,500 steps, autocorrelation time at most 200 steps (480 draws a coordinate): a mean is
    # known to .05 sd, a variance to 6.5 %. Scoring knows the curvature only from the scatter of
    # 40 records. Bounds at 3.5 standard errors and more, one seed.
    x = np.random.default_rng(3).normal(1.0, 1.0, (40, 2)).astype(np.float32)
    kernel = constructor(normal_mean, clip_norm=8.0, noise_multiplier=1.0, **settings)
    mcmc = ndp.MCMC(
        kernel, num_warmup=500, num_samples=1_500, num_chains=64, secure=False, progress_bar=False
    )
    mcmc.run(jax.random.key(1), x)
    draws = np.asarray(mcmc.get_samples()["mu"], float)
    assert np.abs(draws.mean(0) - x.sum(0) / 41).max() < 0.2 / np.sqrt(41)
    np.testing.assert_allclose(draws.var(0) * 41, 1, atol=0.24)
