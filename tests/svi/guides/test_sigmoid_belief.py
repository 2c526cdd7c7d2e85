"""SigmoidBeliefNetworkGuide: its start, its steps, its bounds, and what it refuses."""

import math
import pickle
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import Predictive
from scipy.special import expit

import numpyro_dp as ndp
from numpyro_dp.svi.guides.sigmoid_belief.statistics import codes

N, J, K = 120, 12, 3
KEY = jax.random.key(0)
OFF = {"noise_multiplier": 0.0, "clip_norm": math.inf}


def network(x):
    rate = numpyro.sample("rate", dist.Gamma(0.7, 2.0).expand([J, K]).to_event(2))
    t = numpyro.sample("t", dist.InverseGamma(0.5, rate).to_event(2))
    w = numpyro.sample("w", dist.Normal(0, jnp.sqrt(t)).to_event(2))
    bias = numpyro.sample("bias", dist.Normal(0, 3).expand([J]).to_event(1))
    base = numpyro.sample("base", dist.Normal(0, 1).expand([K]).to_event(1))
    with numpyro.plate("images", x.shape[0]):
        z = numpyro.sample("z", dist.Bernoulli(logits=base).expand([K]).to_event(1))
        numpyro.sample("x", dist.Bernoulli(logits=z @ w.T + bias).to_event(1), obs=x)


def turned(x):
    w = numpyro.sample("w", dist.Normal(0, 2).expand([K, J]).to_event(2))
    bias = numpyro.sample("bias", dist.Normal(0, 3).expand([J]).to_event(1))
    with numpyro.plate("images", x.shape[0]):
        z = numpyro.sample("z", dist.Bernoulli(0.5).expand([K]).to_event(1))
        numpyro.sample("x", dist.Bernoulli(logits=z @ w + bias).to_event(1), obs=x)


def bent(x):
    w = numpyro.sample("w", dist.Normal(0, 2).expand([K, J]).to_event(2))
    bias = numpyro.sample("bias", dist.Normal(0, 3).expand([J]).to_event(1))
    with numpyro.plate("images", x.shape[0]):
        z = numpyro.sample("z", dist.Bernoulli(0.5).expand([K]).to_event(1))
        numpyro.sample("x", dist.Bernoulli(logits=jnp.tanh(z @ w) + bias).to_event(1), obs=x)


def cut_at_means(x):
    w = numpyro.sample("w", dist.Normal(0, 2).expand([K, J]).to_event(2))
    bias = numpyro.sample("bias", dist.Normal(0, 3).expand([J]).to_event(1))
    with numpyro.plate("images", x.shape[0]):
        z = numpyro.sample("z", dist.Bernoulli(0.5).expand([K]).to_event(1))
        law = dist.Bernoulli(logits=z @ w + bias).to_event(1)
        numpyro.sample("x", law, obs=(x > x.mean(0)).astype(float))


def heavy_tailed(x):
    w = numpyro.sample("w", dist.StudentT(3.0, 0, 2).expand([K, J]).to_event(2))
    bias = numpyro.sample("bias", dist.Normal(0, 3).expand([J]).to_event(1))
    with numpyro.plate("images", x.shape[0]):
        z = numpyro.sample("z", dist.Bernoulli(0.5).expand([K]).to_event(1))
        numpyro.sample("x", dist.Bernoulli(logits=z @ w + bias).to_event(1), obs=x)


def no_hidden(x):
    bias = numpyro.sample("bias", dist.Normal(0, 3).expand([J]).to_event(1))
    with numpyro.plate("images", x.shape[0]):
        numpyro.sample("x", dist.Bernoulli(logits=bias).to_event(1), obs=x)


@pytest.fixture(scope="module")
def x():
    """Three kinds of images with a tenth of the pixels flipped."""
    rng = np.random.default_rng(5)
    kinds = np.kron(np.eye(3), np.ones(4)).astype(int)
    clean = kinds[rng.integers(0, 3, N)] | kinds[rng.integers(0, 3, N)]
    return (clean ^ (rng.random((N, J)) < 0.1)).astype(np.uint8)


def bound(model, x, clip_norm=None, steps=None, **options):
    guide = ndp.guides.SigmoidBeliefNetworkGuide(model, **{"record_norm": 2.5, **options})
    found = guide.outlined(model, (x,), {}, None)
    schedule = guide.scheduled(found, steps, clip_norm=clip_norm)
    return schedule, schedule.records((x,), {})


def statistics(schedule, phase, state, records):
    def one(row):
        return schedule.statistic(phase, state, [row[None]])

    return jax.jit(jax.vmap(one))(*records)


def inferred(layers, x):
    """Hidden units of records."""
    one = jax.jit(jax.vmap(lambda row: codes(layers, row, 12)))
    return np.asarray(one(jnp.asarray(x, jnp.float32)))


@pytest.fixture(scope="module")
def rounds(x):
    """The states after each un-noised round, and the schedule."""
    schedule, records = bound(network, x, clip_norm=math.inf)

    @partial(jax.jit, static_argnums=0)
    def once(phase, state):
        total = statistics(schedule, phase, state, records).sum(0)
        return schedule.advance(phase, state, total, jnp.zeros_like(total), jnp.int32(0))

    states = [jax.jit(schedule.start)(KEY)]
    for phase in (0, 1, 2, 2, 2, 2):
        states.append(once(phase, states[-1]))
    return schedule, records, states


def test_the_start_holds_the_second_moments(rounds, x):
    _, _, states = rounds
    np.testing.assert_allclose(states[1].moments, x.T.astype(float) @ x / N, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(states[1].mean, x.mean(0), rtol=1e-5)


def test_codes_are_a_mean_field_fixed_point(rounds, x):
    _, _, states = rounds
    w, b, c = (np.asarray(part, float) for part in states[3].layers)
    z = np.asarray(codes(states[3].layers, jnp.asarray(x[0], jnp.float32), 200), float)
    expected = expit(c + w.T @ (x[0] - expit(w @ z + b)) - (1 - 2 * z) * (w**2).sum(0) / 8)
    np.testing.assert_allclose(z, expected, atol=1e-4)


def test_a_step_is_newton_s_under_the_shared_bound(rounds):
    _, records, states = rounds
    before, after = states[3], states[4]
    layers = before.layers
    z = inferred(layers, records[0])
    extended = np.column_stack([z, np.ones(N)])
    rest = np.asarray(records[0]) - expit(z @ np.asarray(layers.weights).T + layers.bias)
    now = np.column_stack([layers.weights, layers.bias])
    for pixel in (0, 7):
        precision = np.append(before.shrinkage[pixel], 1 / 9)
        slope = rest[:, pixel] @ extended - precision * now[pixel]
        expected = now[pixel] + np.linalg.solve(before.matrix + np.diag(precision), slope)
        found = np.append(after.layers.weights[pixel], after.layers.bias[pixel])
        np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-4)


def test_the_bound_matrix_is_the_one_of_the_codes(rounds):
    _, records, states = rounds
    layers = states[1].layers
    z = inferred(layers, records[0])
    extended = np.column_stack([z, np.ones(N)])
    expected = extended.T @ extended + np.diag(np.append((z * (1 - z)).sum(0), 0))
    np.testing.assert_allclose(states[2].matrix, expected / 4, rtol=1e-4)
    on = z.sum(0)
    base = np.asarray(states[2].layers.base, float)
    np.testing.assert_allclose(on - N * expit(base) - base, 0, atol=1e-2)


def test_shrinkage_is_a_fixed_point_of_the_hyper_posterior(rounds):
    _, _, states = rounds
    weights, variance = np.asarray(states[-1].layers.weights), states[-1].variance[:, :-1]
    rate, above = (np.asarray(r) for r in states[-1].rates)
    inverse = 1.0 / rate
    np.testing.assert_allclose(states[-1].shrinkage, inverse, rtol=1e-4)
    # A few rounds of the two conditionals, t ~ IG(1, E λ + E w²/2) and λ ~ Gamma(1.2, 2 + E 1/t).
    np.testing.assert_allclose(rate, 1.2 / above + (weights**2 + variance) / 2, rtol=0.05)
    np.testing.assert_allclose(above, 2 + inverse, rtol=1e-4)


def test_rounds_explain_the_images(rounds, x):
    _, _, states = rounds

    def right(state):
        z = inferred(state.layers, x)
        return ((z @ np.asarray(state.layers.weights).T + state.layers.bias > 0) == x).mean()

    mean = ((x.mean(0) > 0.5) == x).mean()
    assert right(states[1]) > mean + 0.05
    assert right(states[-1]) > right(states[1])


def test_a_record_stays_within_its_bounds_and_by_itself(rounds, x):
    schedule, records, states = rounds
    # The start's and the codes' bounds hold without clipping; a score's largest possible norm
    # is more than its default bound, and the exact clip cuts it.
    for phase, state, most in [
        (0, states[0], None),
        (1, states[1], (K + 1) / 4 + 1e-6),
        (2, states[2], math.sqrt(J * (K + 1))),
    ]:
        found = np.asarray(statistics(schedule, phase, state, records))
        norms = np.linalg.norm(found, axis=1)
        if most is None:
            ones = x.sum(1)
            expected = np.sqrt(ones**2.0 + (0.2 * 2.5) ** 2 * ones)
            np.testing.assert_allclose(norms, expected, rtol=1e-5)
        else:
            assert norms.max() <= most
        others = 1 - x
        others[0] = x[0]
        moved = statistics(schedule, phase, state, [jnp.asarray(others)])
        np.testing.assert_array_equal(found[0], np.asarray(moved)[0])


@pytest.mark.slow
def test_a_private_run_serves_draws_codes_and_pickles(x):
    guide = ndp.guides.SigmoidBeliefNetworkGuide(network, record_norm=2.5)
    vips = ndp.VIPS(network, guide, privacy=ndp.Budget(8.0, 1e-5))
    result = vips.run(KEY, 4, x, progress_bar=False)
    assert 7.9 < result.privacy.epsilon <= 8
    assert result.privacy.steps == 4
    draws = result.get_samples(num_samples=3)
    assert {name: value.shape[1:] for name, value in draws.items()} == {
        "w": (J, K), "t": (J, K), "rate": (J, K), "bias": (J,), "base": (K,)
    }  # fmt: skip
    assert guide.codes(result.params, x[:5]).shape == (5, K)
    copy = pickle.loads(pickle.dumps(guide))
    seen = copy.reconstruct(result.params, x[:5])
    np.testing.assert_array_equal(seen, guide.reconstruct(result.params, x[:5]))
    images = Predictive(network, guide=guide, params=result.params, num_samples=2)(
        KEY, jnp.zeros((4, J), jnp.uint8)
    )
    assert images["z"].shape == (2, 4, K)
    assert "w" in ndp.from_numpyro(result).posterior


@pytest.mark.slow
def test_weights_may_be_turned_and_hidden_units_fair(x):
    guide = ndp.guides.SigmoidBeliefNetworkGuide(turned, record_norm=2.5)
    result = ndp.VIPS(turned, guide, **OFF).run(KEY, 8, x, progress_bar=False)
    assert result.params["w_loc"].shape == (K, J)
    right = ((guide.reconstruct(result.params, x) > 0.5) == x).mean()
    assert right > ((x.mean(0) > 0.5) == x).mean() + 0.05


@pytest.mark.slow
def test_a_basis_needs_orthonormal_rows(x):
    rows = np.kron(np.eye(J // 2), np.ones(2)) / math.sqrt(2)
    schedule, records = bound(network, x, basis=rows)
    assert schedule.phases[0].dim == 6 * 7 // 2 + J
    state = schedule.start(KEY)
    total = statistics(schedule, 0, state, records).sum(0)
    state = schedule.advance(0, state, total, jnp.zeros_like(total), jnp.int32(0))
    assert np.linalg.matrix_rank(np.asarray(state.layers.weights), tol=1e-3) == K
    for wrong, words in [(rows[:, :-1], "shape"), (2 * rows, "orthonormal")]:
        with pytest.raises(ValueError, match=words):
            bound(network, x, basis=wrong)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (bent, "logits of site `x` are not `w` times `z`"),
        pytest.param(heavy_tailed, "`w` has a StudentT prior", marks=pytest.mark.slow),
        (no_hidden, "known is one layer"),
        (cut_at_means, "what site `x` observes of a record depends on other records"),
    ],
)
def test_other_models_are_refused_before_any_charge(model, words, x):
    accountant = ndp.Accountant()
    guide = ndp.guides.SigmoidBeliefNetworkGuide(model, record_norm=2.5)
    vips = ndp.VIPS(model, guide, noise_multiplier=1.0, accountant=accountant)
    with pytest.raises(ndp.UnsupportedModelError, match=words):
        vips.run(KEY, None, x, progress_bar=False)
    assert accountant.entries == ()


def test_options_out_of_range_are_refused(x):
    with pytest.raises(ValueError, match="record_norm"):
        ndp.guides.SigmoidBeliefNetworkGuide(network, record_norm=0.0)
    with pytest.raises(ValueError, match="at least 3"):
        bound(network, x, steps=2)
