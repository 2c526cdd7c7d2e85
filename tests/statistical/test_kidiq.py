"""DP-SGLD without noise against posteriordb's gold-standard draws (needs NUMPYRO_DP_DATA)."""

import json

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import numpyro_dp as ndp


def kidscore(mom_hs, mom_iq, kid_score):
    """posteriordb's kidscore_momhsiq with the IQ counted from 100, which only moves ``b1``."""
    flat = dist.ImproperUniform(dist.constraints.real, (), ())
    centre = numpyro.sample("centre", flat)
    b2 = numpyro.sample("b2", flat)
    b3 = numpyro.sample("b3", flat)
    sigma = numpyro.sample("sigma", dist.HalfCauchy(2.5))
    numpyro.deterministic("b1", centre - 100 * b3)
    with numpyro.plate("children", mom_hs.shape[0]):
        mean = centre + b2 * mom_hs + b3 * (mom_iq - 100)
        numpyro.sample("kid_score", dist.Normal(mean, sigma), obs=kid_score)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:deterministic site")
def test_means_match_the_gold_draws(data_folder):
    # 8 chains of 20,000 small steps, some 1,000 independent draws in the slowest direction: a mean
    # is known to .03 sd, an sd to 2 %. Bounds .15 sd and 10 %: false alarm < 1e-6.
    data = json.loads((data_folder / "pdb_kidiq.json").read_text())
    records = [np.asarray(data[name], np.float32) for name in ("mom_hs", "mom_iq", "kid_score")]
    kernel = ndp.DPSGLD(
        kidscore,
        step_size=0.05,
        clip_norm=np.inf,
        noise_multiplier=0.0,
        # Orders of magnitude of the unconstrained posterior variances; any positive numbers would
        # leave the target as it is.
        preconditioner={"centre": 4.0, "b2": 5.0, "b3": 4e-3, "sigma": 1e-3},
    )
    mcmc = ndp.MCMC(
        kernel, num_warmup=5_000, num_samples=20_000, num_chains=8, secure=False, progress_bar=False
    )
    start = {"centre": 85.0, "b2": 0.0, "b3": 0.5, "sigma": np.log(18.0)}
    init = {name: np.full(8, value, np.float32) for name, value in start.items()}
    mcmc.run(jax.random.key(0), *records, init_params=init)
    gold = np.load(data_folder / "pdb_kidiq-kidscore_momhsiq_draws.npz")
    draws = mcmc.get_samples()
    ours = {"beta[1]": "b1", "beta[2]": "b2", "beta[3]": "b3", "sigma": "sigma"}
    for theirs, name in ours.items():
        exact = gold[theirs].astype(float)
        values = np.asarray(draws[name], float)
        assert abs(values.mean() - exact.mean()) < 0.15 * exact.std(), name
        assert abs(values.std() / exact.std() - 1) < 0.1, name
