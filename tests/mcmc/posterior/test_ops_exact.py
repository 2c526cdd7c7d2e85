"""Exact draws under a bounded likelihood, against enumeration."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.special import logsumexp
from scipy.stats import chisquare, kstest, norm

import numpyro_dp as ndp
from numpyro_dp.mcmc.posterior.bounded import STEPS, BoundedTarget, GridDraw
from numpyro_dp.model.private_model import private_model

POINTS = np.array([-1.5, -0.5, 0.0, 0.7, 2.0])
BOUNDED = ndp.BoundedLikelihood(-2.0, 0.0)
X = np.array([0.4, 1.2, -0.3, 5.0, 0.9, np.nan], np.float32)


def location(x):
    mu = numpyro.sample("mu", dist.Normal(0.3, 1.2))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("x", dist.Normal(mu, 1.0), obs=x)


def clipped(points, power):
    """τ Σ clip(log p), in float64, the record that is not a number left out."""
    log_p = norm.logpdf(X[:5, None].astype(float), points[None], 1.0)
    return power * np.clip(log_p, -2.0, 0.0).sum(0)


def draws(kernel, number, data=(X,)):
    mcmc = ndp.MCMC(
        kernel, num_warmup=0, num_samples=1, num_chains=number, progress_bar=False, secure=False
    )
    mcmc.run(jax.random.key(5), *data)
    return np.asarray(mcmc.get_samples()["mu"]), mcmc


def grid_kernel(power=0.7, **changes):
    return ndp.OPS(
        location, guarantee=BOUNDED, sampler=ndp.Grid({"mu": POINTS}), likelihood_power=power,
        **changes,
    )  # fmt: skip


def bound(kernel, data=(X,), **options):
    wall = private_model(location, data, check=False)
    return kernel.bind(wall, num_steps=1, **{"relation": "zero_out", "delta": 1e-5, **options})


def check_grid(kernel=None):
    found, _ = draws(kernel or grid_kernel(), 4_000)
    log_weight = norm.logpdf(POINTS, 0.3, 1.2) + clipped(POINTS, 0.7)
    law = np.exp(log_weight - logsumexp(log_weight))
    counts = [np.sum(found == np.float32(point)) for point in POINTS]
    assert sum(counts) == 4_000
    assert chisquare(counts, 4_000 * law).pvalue > 1e-4


@pytest.mark.slow
def test_grid_draws_have_the_enumerated_law():
    """Chi-square at 1e-4: that is the false-alarm rate, once, the seed being fixed."""
    check_grid()


@pytest.mark.slow
def test_rejection_draws_have_the_law_found_by_quadrature():
    """Kolmogorov-Smirnov at 1e-4, 1,000 draws."""
    kernel = ndp.OPS(
        location, guarantee=BOUNDED, sampler=ndp.Rejection(max_tries=64), likelihood_power=0.3
    )
    found, mcmc = draws(kernel, 1_000)
    axis = np.linspace(-6, 7, 20_001)
    density = np.exp(norm.logpdf(axis, 0.3, 1.2) + clipped(axis, 0.3))
    cdf = np.cumsum(density) / density.sum()
    assert kstest(found, lambda at: np.interp(at, axis, cdf)).pvalue > 1e-4
    event = mcmc.privacy.events
    assert '"log_likelihood_range": 0.6' in event[0][1]


def test_the_law_of_neighbours_stays_within_the_range_that_is_charged():
    """Computed from the kernel's own whole-numbered totals, for the most hostile records."""
    method = bound(grid_kernel()).method
    points = jnp.asarray(POINTS, jnp.float32)

    def log_law(data):
        totals = np.array(
            [int(method.target.total({"mu": p}, [jnp.asarray(data)])) for p in points]
        )
        weights = norm.logpdf(POINTS, 0.3, 1.2) + method.target.step * totals
        return weights - logsumexp(weights)

    null = log_law(X)
    largest = 0.0
    for value in (-1e30, -2.5, 0.0, 1.3, 9.0, np.inf):
        changed = X.copy()
        changed[5] = value
        largest = max(largest, np.abs(log_law(changed) - null).max())
    eta = method.event.log_likelihood_range
    assert eta == pytest.approx(0.7 * 2.0)
    assert 0.3 * eta < largest <= eta


def test_one_record_counts_for_whole_steps_and_a_broken_one_for_none():
    target = bound(grid_kernel()).method.target
    record = lambda v: int(target.total({"mu": 0.0}, [jnp.array([v], jnp.float32)]))  # noqa: E731
    assert record(0.0) == round((norm.logpdf(0) + 2) / 2 * STEPS)
    assert [record(v) for v in (1e20, np.nan, np.inf)] == [0, 0, 0]


def test_more_records_than_32_bits_can_count_do_not_wrap():
    wall = private_model(location, (np.zeros(8_192, np.float32),), check=False)
    target = BoundedTarget(wall, ndp.BoundedLikelihood(-3.0, -0.95), 1.0, 8_192)
    # Each of the records is cut to the upper bound: N·2^20 = 2^33.
    assert int(target.total({"mu": 0.0}, [jnp.zeros(8_192)])) == 1 << 33


def test_what_arithmetic_and_capped_tries_add_is_charged():
    assert 0 < bound(grid_kernel()).method.tv < 1e-9
    few = ndp.OPS(
        location, guarantee=BOUNDED, sampler=ndp.Rejection(max_tries=3), likelihood_power=0.05
    )
    method = bound(few).method
    least = math.exp(-0.05 * 2 * 6)
    assert method.tv == pytest.approx((1 - least) ** 3, rel=1e-6)
    chosen = ndp.OPS(location, guarantee=BOUNDED, sampler=ndp.Rejection(), likelihood_power=0.05)
    assert bound(chosen).method.tv < 2e-9
    assert bound(chosen).event(4).events[1].distance == pytest.approx(4 * bound(chosen).method.tv)


def test_ranges_away_from_zero_cost_no_more():
    shifted = ndp.OPS(
        location, guarantee=ndp.BoundedLikelihood(-5.0, -3.0), sampler=ndp.Grid({"mu": POINTS})
    )
    assert bound(shifted).method.event.log_likelihood_range == pytest.approx(2.0)


def flat(x):
    mu = numpyro.sample("mu", dist.ImproperUniform(dist.constraints.real, (), ()))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("x", dist.Normal(mu, 1.0), obs=x)


def with_factor(x):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    numpyro.factor("soft", -jnp.abs(mu))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("x", dist.Normal(mu, 1.0), obs=x)


@pytest.mark.parametrize(("model", "message"), [(flat, "improper"), (with_factor, "`soft`")])
def test_priors_that_cannot_be_drawn_from_are_refused(model, message):
    kernel = ndp.OPS(model, guarantee=BOUNDED, sampler=ndp.Rejection(), likelihood_power=0.01)
    wall = private_model(model, (X,), check=False)
    with pytest.raises(ndp.UnsupportedModelError, match=message):
        kernel.bind(wall, num_steps=1, relation="zero_out", delta=1e-5)


def test_hopeless_rejection_and_wrong_grids_are_refused():
    for sampler, message in (
        (ndp.Rejection(), "for few records"),
        (ndp.Grid({"mu": [[0.0, 1.0]]}), "points must give"),
        (ndp.Grid({"nu": [0.0, 1.0]}), "points must give"),
        (ndp.Grid({"mu": [0.0, np.inf]}), "finite prior"),
    ):
        kernel = ndp.OPS(location, guarantee=BOUNDED, sampler=sampler, likelihood_power=3.0)
        with pytest.raises(ValueError, match=message):
            bound(kernel)


@pytest.mark.slow
def test_a_dropped_power_is_caught(monkeypatch):
    honest = GridDraw._chosen
    monkeypatch.setattr(
        GridDraw,
        "_chosen",
        lambda self, *a: honest(replace(self, target=replace(self.target, power=1.0)), *a),
    )
    with pytest.raises(AssertionError):
        check_grid(grid_kernel(data_plate="people"))


LOUD, OPPOSITE, NULL = (np.array([v, np.nan], np.float32) for v in (1.0, -1.0, np.nan))


def steep(x):
    """A record pushes as hard as its bound allows, at every position within reach."""
    w = numpyro.sample("w", dist.Normal(0, 1.0))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("x", dist.Normal(w, 1.0), obs=1e5 * x)


@pytest.mark.slow
@pytest.mark.parametrize("relation", ["zero_out", "replace_one"])
def test_an_attack_on_the_last_iterate_proves_no_more_than_is_charged(relation):
    """95 % bounds; the pair is the worst there is, so the attack comes within a third."""
    kernel = ndp.OPS(
        steep, guarantee=ndp.StronglyLogConcave(row_norm=1.0, huber=1.0),
        sampler=ndp.Langevin(iterations=40),
    )  # fmt: skip
    other = NULL if relation == "zero_out" else OPPOSITE
    result = ndp.audit(
        kernel, jax.random.key(1), (LOUD,), (other,), relation=relation, delta=1e-2,
        init_params={"w": jnp.zeros(())}, score=lambda sample: sample["w"][0],
    )  # fmt: skip
    assert not result.refutes
    assert result.epsilon_lower > 0.6 * result.epsilon_reported


@pytest.mark.slow
def test_an_attack_on_the_grid_proves_no_more_than_is_charged():
    kernel = ndp.OPS(
        location, guarantee=ndp.BoundedLikelihood(-4.0, 0.0),
        sampler=ndp.Grid({"mu": np.array([-3.0, 3.0])}), likelihood_power=0.5,
    )  # fmt: skip
    data, null = np.array([3.0, np.nan], np.float32), np.array([np.nan, np.nan], np.float32)
    result = ndp.audit(
        kernel, jax.random.key(1), (data,), (null,), delta=1e-3,
        init_params={"mu": jnp.zeros(())}, score=lambda sample: sample["mu"][0],
    )  # fmt: skip
    assert not result.refutes
    assert result.epsilon_lower > 0.3
