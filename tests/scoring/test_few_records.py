"""What few records tell, each of them much: a rare flag, a group of many events."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import numpyro_dp as ndp

BUDGET = ndp.Budget(1.0, 1e-5)
GROUPS, BUSY = 20, 200


def visits(x, y):
    a = numpyro.sample("a", dist.Normal(0, 1))
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(a + x @ w)), obs=y)


def test_a_rare_flag_is_the_one_that_is_named_if_any_is():
    """193 of 6,000: 2.0 times as wide as the records' own, and others were named for it; now 1.5.

    In the middle of five releases; the seeds are fixed.
    """
    rng = np.random.default_rng(4)
    x = rng.normal(size=(6_000, 6)).astype(np.float32)
    x[:, 2] = rng.permutation(6_000) < 193
    rate = np.exp(0.1 + x @ [0.3, -0.2, 0.9, 0.1, 0.4, -0.3])
    every = np.column_stack([np.ones(6_000), x])
    own = np.sqrt(np.diag(np.linalg.inv((every.T * rate) @ every)))[3]
    release = ndp.LikelihoodRelease(visits, privacy=BUDGET, secure=False)
    widths, named = [], []
    for seed in range(5):
        y = rng.poisson(rate).astype(np.int32)
        found = release.run(jax.random.key(seed), x, y, progress_bar=False)
        # Coordinates lie in the order of names.
        widths.append(np.sqrt(found.located.covariance[3, 3]) / own)
        named += [said for said in found.diagnostics.verdicts if "told of" in said]
    assert np.median(widths) < 1.8
    assert all("told of w[2]: such intervals may" in said for said in named)


def rents(x, y):
    b = numpyro.sample("b", dist.Normal(0, 1))
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    with numpyro.plate("flats", x.shape[0]):
        numpyro.sample("y", dist.Normal(b + x @ w, sigma), obs=y)


@pytest.mark.slow
def test_a_level_that_is_not_heard_is_not_taken_for_all_records():
    """A district of 150 of 5,000 flats beside numbers, other districts and a flag less .05.

    In the middle of ten keys 4.2 times as wide as the records' own when it was, now 2.2.
    """
    rng = np.random.default_rng(303)
    numbers = rng.normal(size=(5_000, 3)), rng.random((5_000, 2)) < [0.55, 0.06]
    district = rng.choice(6, 5_000, p=[0.35, 0.25, 0.18, 0.12, 0.07, 0.03])
    x = np.column_stack([numbers[0], numbers[1] - [0.5, 0.05], np.eye(6)[district][:, 1:]])
    y = x @ [0.6, 0.1, -0.2, 0.1, 0.3, 0.2, -0.2, 0.1, 0.4, 0.5] + 0.36 * rng.normal(size=5_000)
    whole = np.c_[np.ones(5_000), x]
    own = 0.36 * np.sqrt(np.diag(np.linalg.inv(whole.T @ whole)))[-1]
    release = ndp.LikelihoodRelease(rents, privacy=BUDGET, secure=False)
    data = x.astype(np.float32), y.astype(np.float32)
    widths = []
    for seed in range(6):
        at = release.run(jax.random.key(seed), *data, progress_bar=False).located
        widths.append(np.sqrt(at.covariance[-1, -1]) / own)
    assert min(widths) > 1
    assert np.median(widths) < 3.2


def events(group, exposure, y):
    mu, tau = numpyro.sample("mu", dist.Normal(0, 2)), numpyro.sample("tau", dist.HalfNormal(1))
    with numpyro.plate("groups", GROUPS):
        a = numpyro.sample("a", dist.Normal(mu, tau))
    with numpyro.plate("people", group.shape[0]):
        numpyro.sample("y", dist.Poisson(exposure * jnp.exp(a[group])), obs=y)


def test_a_group_of_many_events_a_record_is_heard_for_most_of_them():
    """Eight times as many as others have: 2.9 times as wide as the records' own, now 1.8."""
    rng = np.random.default_rng(5)
    others = 1 + rng.choice(GROUPS - 1, 6_800, p=rng.dirichlet(3 * np.ones(GROUPS - 1)))
    group = rng.permutation(np.r_[np.zeros(BUSY, int), others]).astype(np.int32)
    a = np.r_[np.log(3), rng.normal(-1, 0.5, GROUPS - 1)]
    exposure = rng.uniform(0.2, 3, 7_000).astype(np.float32)
    release = ndp.LikelihoodRelease(events, privacy=BUDGET, secure=False)
    widths = []
    for seed in range(5):
        y = rng.poisson(exposure * np.exp(a[group])).astype(np.int32)
        found = release.run(jax.random.key(seed), group, exposure, y, progress_bar=False)
        widths.append(np.sqrt(found.located.covariance[0, 0] * y[group == 0].sum()))
    assert np.median(widths) < 2.5
