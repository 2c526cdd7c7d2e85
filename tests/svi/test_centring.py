"""The model-centred clip and private centring."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings, strategies as st
from numpyro.infer.autoguide import AutoDelta
from scipy.special import digamma

import numpyro_dp as ndp
import numpyro_dp.svi.centre as centre_module
from numpyro_dp.mechanisms.centred import centre, centred_clip
from tests.models import logistic

KEY = jax.random.key(5)
_centre = jax.jit(centre)


def clipped(vectors, norm):
    length = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors * np.minimum(1, norm / np.maximum(length, 1e-30))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 2**32 - 1), st.floats(0.02, 0.98), st.floats(0.1, 3.0))
def test_clipped_scores_have_mean_zero_under_the_model(seed, p, norm):
    x = np.random.default_rng(seed).normal(size=5).astype(np.float32)
    scores = np.stack([-p * x, (1 - p) * x])
    weights = np.array([1 - p, p], np.float32)
    shift = np.asarray(_centre(scores, weights, norm))
    mean = weights @ clipped(scores - shift, norm)
    assert np.linalg.norm(mean) < 0.02 * norm


def test_a_wide_clip_is_not_shifted():
    scores = jnp.array([[-0.3, 0.1], [0.7, -0.7 / 3]])
    np.testing.assert_allclose(centre(scores, jnp.array([0.7, 0.3]), 50.0), 0, atol=1e-6)


def fit(data, steps=60, **changes):
    arguments = {"clip_norm": 0.2, "noise_multiplier": 0.01, "average": 0.5, **changes}
    svi = ndp.DPSVI(logistic, AutoDelta(logistic), optax.sgd(5e-3, momentum=0.9), **arguments)
    return svi.run(KEY, steps, *data, progress_bar=False).params["w_auto_loc"]


@pytest.mark.slow
def test_a_small_centred_clip_keeps_the_mode(records):
    """Almost no noise: what is left is the bias of clipping."""
    data = records["x"], records["y"]
    exact = fit(data, clip_norm=np.inf, noise_multiplier=0.0)
    plain, centred = (np.linalg.norm(fit(data, clip=c) - exact) for c in ("plain", "centred"))
    assert centred < 0.5 * plain, (centred, plain)


def test_centring_is_charged_and_undone_in_the_intercept():
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(0.5, 1.5, (2000, 3)), np.ones((2000, 1))], axis=1)
    accountant = ndp.Accountant(ndp.Budget(1.0, 1e-5))
    found = ndp.PrivateCentre(
        row_norm=3.0, intercept=-1, noise_multiplier=5.0, accountant=accountant
    ).run(KEY, x)
    # Noise of a coordinate: 5·3/2000 = 0.0075; five of those and the sampling error of the mean.
    np.testing.assert_allclose(found.shift[:3], x[:, :3].mean(axis=0), atol=0.04)
    assert found.shift[3] == 0
    w = jnp.array([1.0, -2.0, 0.5, 3.0])
    np.testing.assert_allclose(found.centre(x) @ w, x @ found.restore(w), rtol=1e-4, atol=1e-4)
    assert len(accountant.entries) == 1
    assert found.privacy.epsilon == pytest.approx(accountant.epsilon())


def test_one_row_moves_the_shift_by_at_most_its_bound():
    x = np.random.default_rng(1).normal(size=(50, 2))
    wild = x.copy()
    wild[3] = [1e6, -1e6]
    null = x.copy()
    null[3] = 0
    centre_of = ndp.PrivateCentre(row_norm=2.0, noise_multiplier=1.0, secure=False)
    shifts = [np.asarray(centre_of.run(KEY, rows).shift) for rows in (wild, null)]
    assert 0.03 < np.linalg.norm(shifts[0] - shifts[1]) <= 2.0 / 50 * (1 + 1e-5)


def test_the_shift_has_the_noise_that_was_charged_and_a_refusal_reads_no_row(monkeypatch):
    """Of 1000 coordinates a deviation is within 12 % of its own but for 1 in 10 million seeds."""
    x = np.zeros((50, 1000), np.float32)
    options = {"row_norm": 2.0, "noise_multiplier": 3.0}
    found = ndp.PrivateCentre(secure=False, **options).run(KEY, x)
    assert np.std(found.shift) == pytest.approx(3.0 * 2.0 / 50, rel=0.12)

    def read(*_):
        raise AssertionError("rows were read before the charge")

    monkeypatch.setattr(centre_module, "_compiled", read)
    accountant = ndp.Accountant(ndp.Budget(0.01, 1e-9))
    with pytest.raises(ndp.BudgetExceededError):
        ndp.PrivateCentre(accountant=accountant, **options).run(KEY, x)
    assert accountant.entries == ()


def test_centring_refuses_what_it_cannot_do():
    private = ndp.PrivateCentre(
        row_norm=1.0, noise_multiplier=1.0, accountant=ndp.Accountant(relation="add_remove")
    )
    with pytest.raises(ndp.UnsupportedModelError, match="add_remove"):
        private.run(KEY, np.ones((5, 2)))
    plain = ndp.PrivateCentre(row_norm=1.0, noise_multiplier=1.0)
    for x in (np.ones(5), np.ones((0, 2))):
        with pytest.raises(ValueError, match="table"):
            plain.run(KEY, x)
    found = plain.run(KEY, np.ones((5, 2)))
    with pytest.raises(ValueError, match="intercept="):
        found.restore(jnp.ones(2))
    with pytest.raises(ValueError, match="no column"):
        ndp.PrivateCentre(row_norm=1.0, noise_multiplier=1.0, intercept=7).run(KEY, np.ones((5, 2)))


WORD = "a word that nobody may read"


@pytest.mark.parametrize(
    "x",
    [
        np.array([[1.0, 2.0], [3.0, WORD]], dtype=object),
        np.array([["1", "2"], ["3", WORD]]),
        [[1.0, 2.0], [3.0, WORD]],
        [[1.0, 2.0], [3.0, 4.0]],
        np.array([[1, 10**400], [1, 1]], dtype=object),
        np.ones((2, 2), complex),
        np.ma.masked_greater(np.ones((2, 2)), 3.0),
    ],
    ids=["objects", "texts", "list", "clean list", "large", "complex", "masked"],
)
def test_inputs_that_are_no_array_of_numbers_are_refused_unquoted_before_the_charge(x):
    accountant = ndp.Accountant()
    centre = ndp.PrivateCentre(row_norm=1.0, noise_multiplier=9.0, accountant=accountant)
    with pytest.raises(ValueError, match="array of real numbers") as caught:
        centre.run(jax.random.key(0), x)
    assert WORD not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    assert not accountant.entries


@pytest.mark.parametrize("intercept", [1.5, True, "age"])
def test_an_intercept_is_a_whole_number(intercept):
    with pytest.raises(ValueError, match="number of a column"):
        ndp.PrivateCentre(row_norm=1.0, noise_multiplier=9.0, intercept=intercept)


def _normal(rng, shape):
    z = rng.normal(size=shape)
    return np.stack([z, z**2 - 1], axis=-1)


def _gamma(rng, shape, a=0.5):
    y = rng.gamma(a, size=shape) / a
    return np.stack([a * (y - 1), a * (np.log(a) + 1 + np.log(y) - digamma(a) - y)], axis=-1)


def _poisson(rng, shape):
    x = rng.normal(size=(shape[0], 1))
    rate = 0.3 * np.exp(x)
    left = rng.poisson(rate, size=shape) - rate
    return np.stack([left, left * x], axis=-1)


def _negative_binomial(rng, shape, k=0.5):
    mean = np.exp(0.5 * rng.normal(size=(shape[0], 1)))
    y = rng.poisson(rng.gamma(k, size=shape) / k * mean)
    by_mean = (y - mean) * k / (k + mean)
    by_k = digamma(y + k) - digamma(k) + np.log(k) + 1 - np.log(k + mean) - (y + k) / (k + mean)
    return np.stack([by_mean, k * by_k], axis=-1)


LAWS = {
    "normal": _normal,
    "gamma": _gamma,
    "Poisson": _poisson,
    "negative binomial": _negative_binomial,
}
# One law at each bound, or nearly.
QUICK = {("normal", 0.05), ("Poisson", 0.5)}


@pytest.mark.parametrize(
    ("law", "norm"),
    [
        pytest.param(law, norm, marks=[] if (law, norm) in QUICK else pytest.mark.slow)
        for law in LAWS
        for norm in (0.05, 0.5, 2.0)
    ],
)
def test_clipped_scores_have_mean_zero_where_outcomes_are_drawn(law, norm):
    """Own score and 16 drawn ones: 40,000 records, three standard errors, false alarm 0.5 %.

    Their mean over the set is the expectation itself, without sampling error, so the bias is
    known far more finely: below 0.05 posterior standard deviations of 10,000 records.
    """
    scores = LAWS[law](np.random.default_rng(3), (40_000, 17)).astype(np.float32)
    weights = np.full(17, 1 / 17, np.float32)
    by_record = jax.vmap(
        lambda own, scores: centred_clip(own, scores, weights, norm), in_axes=(0, None)
    )
    psi = np.asarray(jax.jit(jax.vmap(by_record))(scores, scores))
    assert np.linalg.norm(psi, axis=-1).max() <= norm * (1 + 1e-5)
    own = psi[:, 16]
    assert (abs(own.mean(axis=0)) < 3 * own.std(axis=0) / 200).all()
    information = np.einsum("nki,nkj->ij", scores, scores) / scores[..., 0].size
    kept = np.einsum("nki,nkj->ij", psi, scores) / scores[..., 0].size
    posterior = np.sqrt(np.diag(np.linalg.inv(information)) / 10_000)
    moved = np.linalg.solve(kept, psi.mean(axis=(0, 1))) / posterior
    assert (abs(moved) < 0.05).all()


def test_an_own_score_left_out_of_its_set_is_a_bias():
    """What the test above would see: drawn outcomes alone, a skewed score, a clip of its size."""
    scores = _normal(np.random.default_rng(3), (160_000, 17)).astype(np.float32)
    weights = np.full(16, 1 / 16, np.float32)
    clip = jax.jit(jax.vmap(lambda s: centred_clip(s[16], s[:16], weights, 1.0)))
    by_log_scale = np.asarray(clip(scores))[:, 1]
    assert by_log_scale.mean() < -5 * by_log_scale.std() / 400
