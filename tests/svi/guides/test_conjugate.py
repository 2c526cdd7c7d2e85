"""ConjugateGuide: the posterior without noise, and bounds with it."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.infer import Predictive
from scipy.special import digamma, softmax
from scipy.stats import beta

import numpyro_dp as ndp
from numpyro_dp.model.guided.model import outline
from numpyro_dp.svi.guides.conjugate.counts import _on_simplex
from tests.svi.guides.conjugate import (
    TWO,
    N,
    X,
    Y,
    bound,
    coins,
    dice,
    free_prior,
    known_noise,
    same_family,
    scaled_prior,
    two_normals,
    visits,
    votes,
)

RNG = np.random.default_rng(8)


def statistics(schedule, state, records):
    def one(*row):
        return schedule.statistic(0, state, [leaf[None] for leaf in row])

    return jax.vmap(one)(*records)


def posterior(model, data, rounds=1, **options):
    """Parameters from exact sums."""
    schedule, records = bound(model, data, **options)

    @jax.jit
    def fit(state, records):
        def once(state, step):
            total = statistics(schedule, state, records).sum(0)
            return schedule.advance(0, state, total, jnp.zeros_like(total), step), None

        return jax.lax.scan(once, state, jnp.arange(rounds))[0]

    state = fit(schedule.start(jax.random.key(0)), records)
    return {name: np.asarray(value) for name, value in schedule.params(state).items()}


def close(found, expected, rtol=1e-5):
    assert sorted(found) == sorted(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=rtol, atol=1e-5)


def test_coins_have_their_beta_posterior():
    y = (RNG.random((N, 3)) < 0.3).astype(int)
    heads = np.array([y[:, 0].sum() + y[:, 2].sum(), y[:, 1].sum()])
    tails = np.array([2 * N, N]) - heads
    close(
        posterior(coins, (y,)),
        {"p_concentration1": 2 + heads, "p_concentration0": np.array([1, 4]) + tails},
    )


@pytest.mark.slow
def test_other_counts_have_their_posterior():
    y = RNG.integers(0, 6, N)
    expected = {"p_concentration1": 1 + y.sum(), "p_concentration0": 1 + 5 * N - y.sum()}
    close(posterior(votes, (5, y)), expected)
    y = RNG.integers(0, 3, N)
    close(posterior(dice, (y,)), {"p_concentration": np.arange(1, 4) + np.bincount(y, minlength=3)})
    y = RNG.poisson(2, (N, 2))
    for most in (None, 40.0):
        expected = {"rate_concentration": 3 + y.sum(0), "rate_rate": np.full(2, 2 + N)}
        close(posterior(visits, (y,), max_count=most), expected)


def rows():
    return np.column_stack([np.ones(N), X]).astype(float)


@pytest.mark.slow
def test_a_regression_with_known_noise_has_its_normal_posterior():
    found = posterior(known_noise, (X, Y))
    prior = np.diag([1 / 4, 1 / 9, 1 / 9])
    precision = rows().T @ rows() / 0.25 + prior
    mean = np.linalg.solve(precision, rows().T @ Y / 0.25 + prior @ [0.5, 0, 0])
    np.testing.assert_allclose(found["coefficients_loc"], mean, rtol=1e-5)
    tril = found["coefficients_scale_tril"].astype(float)
    np.testing.assert_allclose(tril @ tril.T, np.linalg.inv(precision), rtol=1e-4, atol=1e-7)


@pytest.mark.slow
def test_a_regression_with_a_scaled_prior_has_its_normal_inverse_gamma_posterior():
    found = posterior(scaled_prior, (X, Y))
    y = Y - 0.1 * X[:, 0].astype(float)
    prior, loc = np.diag([1 / 4, 1 / 9, 1 / 9]), np.array([0.5, 0, 0])
    precision = rows().T @ rows() + prior
    mean = np.linalg.solve(precision, rows().T @ y + prior @ loc)
    rate = 3 + (y @ y + loc @ prior @ loc - mean @ precision @ mean) / 2
    np.testing.assert_allclose(found["coefficients_loc"], mean, rtol=1e-5)
    np.testing.assert_allclose(found["precision_concentration"], 2 + N / 2)
    np.testing.assert_allclose(found["precision_rate"], rate, rtol=1e-4)
    tril = found["coefficients_scale_tril"].astype(float)
    np.testing.assert_allclose(tril @ tril.T, np.linalg.inv(precision), rtol=1e-4, atol=1e-7)


@pytest.mark.slow
def test_a_regression_with_a_free_prior_is_at_its_coordinate_ascent_fixed_point():
    found = posterior(free_prior, (X, Y))
    x, y, rate = X.astype(float), Y.astype(float), 1.0
    for _ in range(500):
        precision = x.T @ x * (2 + N / 2) / rate + np.eye(2) / 9
        mean = np.linalg.solve(precision, x.T @ y * (2 + N / 2) / rate)
        spread = np.trace(np.linalg.solve(precision, x.T @ x))
        rate = 3 + (((y - x @ mean) ** 2).sum() + spread) / 2
    np.testing.assert_allclose(found["v_rate"], rate, rtol=1e-4)
    np.testing.assert_allclose(found["coefficients_loc"], mean, rtol=1e-4)


def ascended(x, loc, coupled):
    """Coordinate-ascent variational Bayes of the two mixtures above, by the book."""
    x, loc = x.astype(float), loc.astype(float)
    alpha, a, b = np.ones(2), np.full((2, 2), 2.0), np.ones((2, 2))
    precision = np.full((2, 2), 1 / 4 if coupled else 1 / 9)
    for _ in range(400):
        tau = a / b
        spread = 1 / precision if coupled else tau / precision
        square = (x[:, None] - loc) ** 2 * tau + spread
        score = digamma(alpha) + (digamma(a) - np.log(b) - square).sum(2) / 2
        r = softmax(score, axis=1)
        n, first, second = r.sum(0), r.T @ x, r.T @ x**2
        alpha = 1 + n
        if coupled:
            precision = np.repeat(1 / 4 + n[:, None], 2, 1)
            loc = first / precision
            a = 2 + np.repeat(n[:, None], 2, 1) / 2
            b = 1 + (second - precision * loc**2) / 2
        else:
            precision = 1 / 9 + n[:, None] * tau
            loc = tau * first / precision
            rest = second - 2 * loc * first + n[:, None] * (loc**2 + 1 / precision)
            # One variance for both dimensions of a component.
            a = np.repeat(2 + n[:, None], 2, 1)
            b = np.repeat(1 + rest.sum(1, keepdims=True) / 2, 2, 1)
    return alpha, loc, precision**-0.5, a, b


@pytest.mark.parametrize(
    ("model", "coupled"),
    [(two_normals, False), pytest.param(same_family, True, marks=pytest.mark.slow)],
)
def test_mixtures_reach_the_fixed_point_of_coordinate_ascent(model, coupled):
    start = np.array([[1.0, 1.0], [-1.0, 0.0]])
    found = posterior(model, (TWO,), rounds=200, init_loc=start)
    alpha, loc, scale, a, b = ascended(TWO, start, coupled)
    if not coupled:
        a, b = a[:, 0], b[:, 0]
    names = ("weights_concentration", "loc_loc", "loc_scale", "v_concentration", "v_rate")
    close(found, dict(zip(names, (alpha, loc, scale, a, b), strict=True)), rtol=1e-4)


def test_a_records_statistic_is_its_own_and_within_the_bound():
    wild = TWO * np.array([[1.0], [50.0], [1e-3]] * (N // 3), np.float32)
    schedule, records = bound(two_normals, (wild,), clip_norm=None, row_norm=3.0)
    (phase,) = schedule.phases
    state = schedule.start(jax.random.key(1))
    found = np.asarray(jax.jit(lambda r: statistics(schedule, state, r))(records))
    norms = np.linalg.norm(found * np.asarray(phase.scale), axis=1)
    assert norms.max() <= phase.clip_norm * (1 + 1e-6)
    assert norms.max() > 0.6 * phase.clip_norm, "the bound is idle"
    others = wild.copy()
    others[1:] = np.nan
    again = schedule.records((others,), {})
    moved = np.asarray(jax.jit(lambda r: statistics(schedule, state, r))(again))
    np.testing.assert_array_equal(found[0], moved[0])


@pytest.mark.slow
def test_statistics_of_regressions_and_counts_are_within_the_bound():
    y = np.array([-5, 3, 500] * (N // 3))
    pairs = [
        (scaled_prior, (10 * X, 10 * Y), {"row_norm": 2.0, "outcome_bound": 3.0}),
        (visits, (np.column_stack([y, y]),), {"max_count": 20}),
        (dice, (y % 3,), {}),
        (coins, (np.column_stack([y, y, y]),), {}),
    ]
    for model, data, options in pairs:
        schedule, records = bound(model, data, clip_norm=None, **options)
        (phase,) = schedule.phases
        scale = 1.0 if phase.scale is None else np.asarray(phase.scale)
        norms = np.linalg.norm(statistics(schedule, {}, records) * scale, axis=1)
        assert 0.5 * phase.clip_norm < norms.max() <= phase.clip_norm * (1 + 1e-6)


@pytest.fixture(scope="module")
def fitted():
    """A private regression by the engine, guide and data included."""
    guide = ndp.guides.ConjugateGuide(scaled_prior, row_norm=4.0, outcome_bound=8.0)
    vips = ndp.VIPS(scaled_prior, guide, privacy=ndp.Budget(8.0, 1e-5), secure=False)
    return guide, vips.run(jax.random.key(3), None, X, Y, progress_bar=False)


@pytest.mark.slow
def test_a_run_serves_samples_predictive_and_arviz(fitted):
    guide, result = fitted
    assert result.losses is None
    assert 7.9 < result.privacy.epsilon <= 8
    assert "do not widen" in " ".join(result.privacy.full().split())
    draws = result.get_samples(num_samples=500)
    assert {name: value.shape for name, value in draws.items()} == {
        "b": (500,), "w": (500, 2), "precision": (500,)
    }  # fmt: skip
    # So few records at ε = 8: the noise moves a coefficient by .5; the seed is fixed.
    np.testing.assert_allclose(draws["w"].mean(0), [0.9, -2.0], atol=0.8)
    predict = Predictive(scaled_prior, guide=guide, params=result.params, num_samples=20)
    assert predict(jax.random.key(0), jnp.zeros((3, 2)))["y"].shape == (20, 3)
    assert sorted(ndp.from_numpyro(result).posterior.data_vars) == ["b", "precision", "w"]


@pytest.mark.slow
def test_a_guide_that_was_pickled_still_draws(fitted):
    guide, result = fitted
    copy = pickle.loads(pickle.dumps(guide))
    predict = Predictive(copy, params=result.params, num_samples=4)
    assert predict(jax.random.key(0))["w"].shape == (4, 2)


def test_noise_awareness_widens_by_the_noise():
    y = (np.arange(N)[:, None] % np.array([2, 3, 4]) == 0).astype(int)
    schedule, records = bound(coins, (y,), noise_aware=True)
    total = statistics(schedule, {}, records).sum(0)

    def spread(sd):
        state = schedule.start(jax.random.key(0))
        state = schedule.advance(0, state, total, jnp.full(2, sd), jnp.int32(0))
        a, b = (schedule.params(state)[f"p_concentration{k}"] for k in (1, 0))
        return np.asarray(a * b / (a + b) ** 2 / (a + b + 1))

    exact, noisy, blind = spread(0.0), spread(6.0), spread(1e6)
    # A sum of n trials seen with noise s is worth n v / (n v + s²) of them: v about 1/4.
    trials = np.array([2 * N, N])
    assert np.all(noisy > exact * (1 + 0.7 * 36 / (trials / 4 + 36)))
    np.testing.assert_allclose(blind, [2 / 36, 8 / 252], rtol=1e-3)


@pytest.mark.slow
def test_noise_aware_intervals_cover():
    """Coverage of 90 % intervals over 200 data sets from the prior; the binomial error is .021,
    so that .80 and .97 are more than four of its standard deviations away."""
    guide = ndp.guides.ConjugateGuide(votes, noise_aware=True)
    blind = ndp.guides.ConjugateGuide(votes)
    rng = np.random.default_rng(3)
    truth = rng.random(200)
    covered = {True: 0, False: 0}
    for own in (guide, blind):
        found = outline(votes, (1, np.zeros(N, int)), {}, data_plate=None, private_size=False)
        schedule = own.scheduled(found, None, clip_norm=None)
        sd = 6.0
        for p in truth:
            y = rng.random(N) < p
            total = jnp.asarray([(y - 0.5).sum() + sd * rng.normal()])
            state = schedule.advance(
                0, schedule.start(jax.random.key(0)), total, jnp.full(1, sd), jnp.int32(0)
            )
            a, b = (float(schedule.params(state)[f"p_concentration{k}"]) for k in (1, 0))
            low, high = beta(a, b).ppf([0.05, 0.95])
            covered[own is guide] += low <= p <= high
    assert 160 <= covered[True] <= 194
    assert covered[False] < 140, "the noise is too small to matter"


def test_counts_are_projected_to_the_nearest_possible_ones():
    found = _on_simplex(jnp.array([[5.0, -3.0, 8.0]]), np.array([[10.0]]))
    np.testing.assert_allclose(found, [[3.5, 0.0, 6.5]])
    kept = jnp.array([[1.0, 2.0, 7.0]])
    np.testing.assert_allclose(_on_simplex(kept, np.array([[10.0]])), kept)
