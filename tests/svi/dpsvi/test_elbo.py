"""Losses that are paid for: what they estimate, what they cost, what one record does to them."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoDelta

import numpyro_dp as ndp
from numpyro_dp.accounting import privacy_curve
from numpyro_dp.mechanisms import PrivateSum, os_key
from numpyro_dp.svi.dpsvi.fit import Carry
from tests.models import logistic

KEY = jax.random.key(5)
GUIDE, SGD = AutoDelta(logistic), numpyro.optim.SGD(1e-3)
TRACE = ndp.ElboTrace(every=3, lower=-4.0, upper=0.0)


def run(data, elbo=TRACE, steps=7, accountant=None, **changes):
    settings = {
        "clip": "plain",
        "clip_norm": 1.0,
        "noise_multiplier": 2.0,
        "secure": False,
        **changes,
    }
    svi = ndp.DPSVI(logistic, GUIDE, SGD, elbo=elbo, accountant=accountant, **settings)
    return svi.run(KEY, steps, *data, progress_bar=False)


@pytest.fixture
def data(records):
    return records["x"], records["y"]


def test_without_noise_they_are_numpyros_losses(data):
    expected = SVI(logistic, AutoDelta(logistic), SGD, Trace_ELBO()).run(
        KEY, 7, *data, progress_bar=False
    )
    wide = ndp.ElboTrace(every=3, lower=-1e3, upper=1e3)
    losses = run(data, wide, clip_norm=math.inf, noise_multiplier=0.0, average=0).losses
    assert np.flatnonzero(~np.isnan(losses)).tolist() == [2, 5]
    np.testing.assert_allclose(losses[2::3], expected.losses[2::3], rtol=1e-5)


@pytest.mark.slow
def test_they_stand_where_jax_is_asked_to_stop_at_nan(data):
    with jax.debug_nans(True):
        losses = run(data).losses
    assert np.flatnonzero(~np.isnan(losses)).tolist() == [2, 5]


def test_losses_are_calibrated_into_the_budget_and_charged_with_the_run(data):
    accountant = ndp.Accountant(ndp.Budget(1.0, 1e-5))
    half = ndp.ElboTrace(every=3, lower=-4.0, upper=0.0, share=0.5)
    svi = ndp.DPSVI(
        logistic, GUIDE, SGD, elbo=half, clip="plain", clip_norm=1.0, privacy=ndp.Budget(1.0, 1e-5),
        accountant=accountant,
    )  # fmt: skip
    result = svi.run(KEY, 7, *data, progress_bar=False)
    (entry,) = accountant.entries
    steps, losses = (part.events[0] for part in entry.event.events)
    assert (steps.count, losses.count) == (7, 2)
    # In squared privacy loss: 7 steps and 2 losses take one half each.
    assert losses.event.noise_multiplier**2 * 7 == pytest.approx(
        steps.event.noise_multiplier**2 * 2, rel=1e-3
    )
    assert 0.98 < result.privacy.epsilon <= 1.0
    assert privacy_curve(losses, "zero_out").epsilon(1e-5) > 0.5
    assert "a noisy loss after every 3 steps" in " ".join(result.privacy.released)
    assert result.losses.shape == (7,)


@pytest.mark.slow
def test_noise_is_of_the_charged_size_and_a_replaced_record_moves_a_loss_by_the_interval(data):
    """180 losses: their standard deviation is known to 5.3 %; bound at 5 of that, 6e-7."""
    often = ndp.ElboTrace(every=1, lower=-4.0, upper=0.0, share=0.2)
    still = {"noise_multiplier": 20.0, "clip_norm": 1e-3, "average": 0}
    x, y = data
    quiet = run(data, often, steps=180, **still).losses
    mechanism = 20.0 / math.sqrt(0.2 / 0.8)
    assert abs(np.std(np.diff(quiet)) / (mechanism * 2.0 * math.sqrt(2)) - 1) < 0.27
    rows = [x.copy() for _ in range(2)]
    rows[0][3], rows[1][3] = [1e6, -1e6, -1e6], [-1e6, 1e6, 1e6]
    moved = [np.asarray(run((each, y), often, steps=2, **still).losses[0]) for each in rows]
    # From the worst to the best, less what rounding to the lattice keeps back.
    assert 3.6 < np.abs(moved[0] - moved[1]) <= 4.0 * (1 + 1e-5)


def test_a_loss_and_its_step_draw_from_keys_of_their_own(data, monkeypatch):
    keys = []

    def watched(self, key, *_):
        keys.append(jax.random.key_data(key).tolist())
        return jnp.zeros(self.dim)

    made = ndp.DPSVI(
        logistic, GUIDE, SGD, elbo=ndp.ElboTrace(every=1, lower=-4.0, upper=0.0), clip="plain",
        clip_norm=1.0, noise_multiplier=5.0,
    )  # fmt: skip
    _, fit, plan, state = made._prepared(2, data, {})
    start = jax.random.key(1), os_key()
    carry = Carry(jnp.int32(0), state.optim_state, *start, None)
    monkeypatch.setattr(PrivateSum, "release", watched)
    for _ in range(2):
        optim_state, draws, noise, _ = fit.step(carry, list(data))
        fit.loss(plan.elbo, carry, list(data))
        carry = Carry(carry.i + 1, optim_state, draws, noise, None)
    assert len(keys) == 4
    assert len({tuple(key) for key in keys}) == 4


def test_the_sensitivity_is_half_the_interval_or_its_farther_end():
    trace = ndp.ElboTrace(every=1, lower=-4.0, upper=1.0)
    assert (trace.middle(False), trace.sensitivity(False)) == (-1.5, 2.5)
    # Nothing can be added back for an unknown number of records.
    assert (trace.middle(True), trace.sensitivity(True)) == (0.0, 4.0)


def test_bounds_and_shares_out_of_range_are_refused(data):
    for changes in ({"every": 0}, {"lower": 1.0}, {"upper": math.inf}, {"share": 1.0}):
        with pytest.raises(ValueError, match=r"every|lower|upper|share"):
            ndp.ElboTrace(**{"every": 2, "lower": -1.0, "upper": 0.0, **changes})
    with pytest.raises(ValueError, match="lower every="):
        run(data, steps=2)
    with pytest.raises(ValueError, match="ElboTrace"):
        run(data, elbo=3)


@pytest.mark.slow
def test_where_the_number_of_records_is_private_nothing_is_added_back(data):
    rate = {"sampling_rate": 0.5, "max_records": 1000}
    result = run(
        data, accountant=ndp.Accountant(relation="add_remove"), noise_multiplier=0.7, **rate
    )
    assert result.privacy.num_records is None
    # 400 records near log 2 each; noise of 4 times the multiplier over the rate.
    assert 0 < result.losses[2] < 400 * 4
