"""Utility on real records: Adult, 32,561 people, 109 inputs (needs NUMPYRO_DP_DATA)."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import numpyro_dp as ndp


def income(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[-1]]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


# Settings of the prototypes, not tuned on the test set; at ε = 0.1 full batches. Non-private
# logistic regression reaches 0.853. Ten runs gave .8541 (sd .0005) at ε = 1 and .8455 (sd .0024) at
# ε = 0.1, so a single run may miss the second bar; the seed is fixed.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("epsilon", "steps", "settings", "bar"),
    [
        (1.0, 1_000, {"step_size": 3e-4, "batch_size": 2_000, "clip_norm": 1.0}, 0.850),
        pytest.param(
            0.1,
            400,
            {"step_size": 1e-3, "clip_norm": 0.5},
            0.842,
            marks=pytest.mark.slow,
        ),
    ],
)
def test_accuracy(data_folder, epsilon, steps, settings, bar):
    adult = np.load(data_folder / "adult109.npz")
    kernel = ndp.DPSGLD(income, privacy=ndp.Budget(epsilon, 1e-5), **settings)
    half = steps // 2
    mcmc = ndp.MCMC(kernel, num_warmup=half, num_samples=half, progress_bar=False, secure=False)
    mcmc.run(jax.random.key(0), adult["X_train"], adult["y_train"])
    mean = np.asarray(mcmc.get_samples()["w"]).mean(0)
    accuracy = np.mean((adult["X_test"] @ mean > 0) == adult["y_test"])
    assert mcmc.privacy.epsilon <= epsilon
    assert accuracy >= bar
