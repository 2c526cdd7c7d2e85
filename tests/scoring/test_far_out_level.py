"""A rare flag whose truth lies far out in its prior: rounds end on the way, and a note says so."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist

import numpyro_dp as ndp

RECORDS, RARE = 4_500, 36


def finish(x, minutes=None):
    """Minutes of a race; the effect of the flag is expected within ten of them, and is -55."""
    a = numpyro.sample("a", dist.Normal(240, 60))
    b = numpyro.sample("b", dist.Normal(0, 10).expand([x.shape[1]]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(50))
    with numpyro.plate("runners", x.shape[0]):
        numpyro.sample("minutes", dist.Normal(a + x @ b, sigma), obs=minutes)


def test_a_truth_that_is_not_reached_is_named_with_its_remedy():
    """Fixed seeds; of fresh ones six releases in ten say so, and all name the flag."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(RECORDS, 5)).astype(np.float32)
    x[:, 4] = rng.permutation(RECORDS) < RARE
    y = (260 + x @ [11, -10, 9, 18, -55] + 28 * rng.normal(size=RECORDS)).astype(np.float32)
    release = ndp.LikelihoodRelease(finish, privacy=ndp.Budget(0.7, 1e-5), secure=False)
    warned = 0
    for seed in range(5):
        verdicts = release.run(jax.random.key(seed), x, y).diagnostics.verdicts
        assert any("b[4]" in said for said in verdicts)
        warned += any("been reached" in s or "contradict each other on b[4]" in s for s in verdicts)
    assert warned
