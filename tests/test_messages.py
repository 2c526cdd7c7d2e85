"""Records in the place of an option: the refusal says what it got, and prints none of them."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.infer.autoguide import AutoNormal

import numpyro_dp as ndp

SECRET = 7321.125
RECORDS = np.full((3, 2), SECRET)
BUDGET = ndp.Budget(1.0, 1e-5)
FAST = {"step_size": 0.1, "lipschitz": 1.0, "max_move": 0.2, "privacy": BUDGET}
SGLD = {"step_size": 1e-3, "clip_norm": 1.0}


def model(x):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("x", dist.Normal(mean, 1), obs=x[:, 0])


def _svi_without_steps():
    svi = ndp.DPSVI(model, AutoNormal(model), optax.sgd(0.1), clip_norm=1.0, privacy=BUDGET)
    svi.run(jax.random.key(0), RECORDS)


def _vips_without_steps():
    vips = ndp.VIPS(model, ndp.guides.PolyaGammaGuide(model, row_norm=1.0), privacy=BUDGET)
    vips.run(jax.random.key(0), RECORDS)


@pytest.mark.parametrize(
    "call",
    [
        _svi_without_steps,
        _vips_without_steps,
        lambda: ndp.DPSGLD(RECORDS, **SGLD, privacy=BUDGET),
        lambda: ndp.DPSGLD(model, **SGLD, privacy=RECORDS),
        lambda: ndp.DPSGLD(model, **SGLD, privacy=BUDGET, accountant=RECORDS),
        lambda: ndp.DPSGLD(model, **{**SGLD, "clip_norm": RECORDS.tolist()}, privacy=BUDGET),
        lambda: ndp.OPS(model, guarantee=RECORDS, privacy=BUDGET),
        lambda: ndp.ObjectivePerturbation(RECORDS, row_norm=1.0, privacy=BUDGET),
        lambda: ndp.PrivateCentre(row_norm=RECORDS, privacy=BUDGET),
        lambda: ndp.Accountant(RECORDS),
        lambda: ndp.Accountant(relation=RECORDS.tolist()),
        lambda: ndp.DPFastMH(model, **FAST, acceptance=RECORDS.tolist()),
        lambda: ndp.Accountant().charge(ndp.events.GaussianDpEvent(RECORDS), label="x"),
        lambda: ndp.Accountant().charge(ndp.events.GaussianDpEvent(1.0), label=RECORDS),
    ],
)
def test_a_misplaced_record_is_not_printed(call):
    with pytest.raises(ValueError, match=r"ndarray|list") as caught:
        call()
    assert str(SECRET) not in str(caught.value)
