"""What one record adds: bounded whatever it is, and centred under the model."""

import itertools
import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats

from numpyro_dp.model.private_model import private_model
from numpyro_dp.scoring.statistic import (
    BINS,
    BINS_SHARE,
    FIRST_BIN,
    GROUPS_SHARE,
    INFORMATION_SHARE,
    PARTS_SHARE,
    SCORE_SHARE,
    SQUARES_SHARE,
    TAIL_SHARE,
    RoundPosition,
    packed,
    record_statistic,
    unpacked,
)
from tests.models import logistic

DIM = 3


def poisson(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([DIM]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(x @ w)), obs=y)


def scattered(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([DIM - 1]).to_event(1))
    spread = numpyro.sample("spread", dist.LogNormal(0, 1))
    with numpyro.plate("people", x.shape[0]):
        mean = jnp.exp(x[:, : DIM - 1] @ w)
        numpyro.sample("y", dist.NegativeBinomial2(mean, spread), obs=y)


def normal(x, y):
    w = numpyro.sample("w", dist.Normal(0, 10).expand([DIM - 1]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(5))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Normal(x[:, : DIM - 1] @ w, sigma), obs=y)


def statistic(model, outcome=np.int32):
    shapes = np.zeros((40, DIM), np.float32), np.zeros(40, outcome)
    return record_statistic(private_model(model, shapes))


def at(whitening=1.0, bound=0.3, u=(0.3, -0.5, 0.2)):
    return RoundPosition(jnp.asarray(u), whitening * jnp.eye(DIM), jnp.asarray(bound))


def record(x, y, row=0):
    return [jnp.asarray(x, jnp.float32)[None], jnp.asarray(y)[None], jnp.asarray([row], jnp.int32)]


def parts(vector):
    ends = [DIM, len(vector) - 3, len(vector) - 1]
    score, information, squares, tail = np.split(np.asarray(vector, float), ends)
    information = unpacked(information, DIM) / np.sqrt(INFORMATION_SHARE)
    squares = squares / np.sqrt(SQUARES_SHARE / 2)
    return score / np.sqrt(SCORE_SHARE), information, squares, tail[0] / np.sqrt(TAIL_SHARE)


def joint(found, position, x, y, row=0):
    given = record(x, y, row)
    return found.joint(position, jax.random.key(0), given if found.draws else given[:2])


OUTSIDE = {logistic: [2], poisson: [2.5, -1]}
EXTREMES = [0.0, 1e-20, 1.0, -3.0, 40.0, 1e4, -1e15]


@pytest.mark.parametrize("alike", [(0, 1, 2), (1, 0, 1)])
@pytest.mark.parametrize(
    ("model", "outcomes", "kind"),
    [
        (logistic, [0, 1, 2], np.int32),
        (poisson, [0, 3, 10**8, -1], np.int32),
        (poisson, [0.0, 2.5, 3.0, 1e8, np.nan], np.float32),
        (normal, EXTREMES, np.float32),
    ],
)
def test_no_record_adds_more_than_one(model, outcomes, kind, alike):
    found = replace(statistic(model, kind), alike=alike)
    rng = np.random.default_rng(0)
    inputs = [*rng.choice(EXTREMES, (6, DIM)), np.ones(DIM)]
    pairs = list(itertools.product(inputs, outcomes))
    x, y = np.array([x for x, _ in pairs], np.float32), np.array([y for _, y in pairs], kind)

    @jax.jit
    def added(whitening):
        def one(x, y):
            given = record(x, y)[: 2 + found.draws]
            position = at(whitening)
            vectors = [f(position, jax.random.key(0), given) for f in (found.joint, found.sizes)]
            return jnp.linalg.norm(vectors[0]), vectors[1]

        return jax.vmap(one)(x, y)

    for whitening in (1e-6, 1.0, 1e6):
        norms, marked = map(np.asarray, added(whitening))
        # What is not finite is left out by the sum.
        finite = norms[np.isfinite(norms)]
        assert len(finite) >= 9
        assert finite.max() <= 1 + 1e-5
        assert np.isfinite(marked).all()
        marked, outside = marked[:, :-1], marked[:, -1]
        told = np.linalg.norm(marked, axis=1)
        # Of a record that is of no group, less.
        sizes = [0, 1] if alike == (0, 1, 2) else [0, math.sqrt(1 - GROUPS_SHARE), 1]
        expected = (1 - outside)[:, None] * sizes
        assert np.isclose(told[:, None], expected, atol=1e-5).any(axis=1).all()
        assert (np.count_nonzero(marked[:, :BINS], axis=1) == (told > 0)).all()
        # What adds nothing to rounds, as of NaN, is null here too, or as any other is.
        wrong = np.isin(y, OUTSIDE.get(model, []))
        np.testing.assert_allclose(outside[~wrong], 0)
        assert set(outside[wrong]) == ({0, 1} if wrong.any() else set())
        assert not np.isfinite(norms[wrong]).any()


@pytest.mark.parametrize(("model", "kind"), [(logistic, np.int32), (poisson, np.int32)])
def test_a_record_of_nan_is_null(model, kind):
    """It stands for nobody where records are told apart: a count of such would tell more than one
    record's worth, since others say what they are in its place."""
    found = statistic(model, kind)
    given = record(np.full(DIM, np.nan), -1)[: 2 + found.draws]
    assert not np.any(np.asarray(found.sizes(at(1.0), jax.random.key(0), given)))
    assert not np.isfinite(np.asarray(found.joint(at(1.0), jax.random.key(0), given))[:DIM]).any()


@pytest.mark.parametrize("model", [logistic, poisson, normal])
def test_so_is_one_whose_outcome_alone_is_nan(model):
    """Rounds hear nothing of it, and it would be counted where sizes are told."""
    found = statistic(model, np.float32)
    given = record(np.full(DIM, 0.3), np.float32(np.nan))[: 2 + found.draws]
    assert not np.any(np.asarray(found.sizes(at(1.0), jax.random.key(0), given)))
    assert not np.isfinite(np.asarray(found.joint(at(1.0), jax.random.key(0), given))[:DIM]).any()


@pytest.mark.parametrize("whitening", [0.1, 1.0, 30.0])
def test_listed_scores_have_mean_zero_and_the_models_information(whitening):
    found, x = statistic(logistic), np.array([1.0, 0.4, -0.8])
    position = at(whitening, bound=1e6)
    chance = 1 / (1 + np.exp(-x @ np.asarray(position.u)))
    law = np.array([1 - chance, chance])
    joined = jax.jit(lambda y: joint(found, position, x, y))
    scores, informations, squares, tails = zip(*(parts(joined(y)) for y in (0, 1)), strict=True)
    np.testing.assert_allclose(tails, 0, atol=1e-6)
    np.testing.assert_allclose(law @ np.stack(scores), 0, atol=2e-6)
    # Nothing of the outcome is in what the model expects of it.
    np.testing.assert_allclose(informations[0], informations[1], rtol=1e-5, atol=1e-12)
    np.testing.assert_allclose(squares[0][1], squares[1][1], rtol=1e-5)
    np.testing.assert_allclose(law @ [s[0] for s in squares], squares[0][1], rtol=1e-4)
    if whitening == 0.1:
        exact = chance * (1 - chance) * whitening**2 * np.outer(x, x)
        np.testing.assert_allclose(informations[0] * 1e6, exact, rtol=1e-4, atol=1e-8)


def binomial(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([DIM]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Binomial(2, logits=x @ w), obs=y)


@pytest.mark.parametrize("chance", [0.005, 0.02, 0.05, 0.4])
def test_a_rare_outcome_is_far_out_and_a_commoner_one_counts_less(chance):
    found, x = statistic(binomial), np.array([1.0, 0.4, -0.8])
    position = at(u=(math.log(chance / (1 - chance)), 0, 0))
    law = stats.binom(2, chance).pmf([0, 1, 2])
    sizes = np.abs(np.arange(3) - 2 * chance)
    far = sizes > 3 * law @ sizes
    counted = min(1, 1 / 17 / max(law @ far, 1e-9))
    tails = [parts(joint(found, position, x, y))[3] for y in range(3)]
    np.testing.assert_allclose(tails, counted * (far - law @ far), rtol=1e-5, atol=1e-6)
    # Of two outcomes it says nothing, however rare one is.
    found = statistic(logistic)
    assert [parts(joint(found, position, x, y))[3] for y in (0, 1)] == [0, 0]


@pytest.mark.parametrize(
    ("whitening", "model"),
    [
        pytest.param(0.3, poisson, marks=pytest.mark.slow),
        pytest.param(0.3, normal, marks=pytest.mark.slow),
        pytest.param(3.0, poisson, marks=pytest.mark.slow),
        (3.0, normal),
    ],
)
def test_drawn_scores_have_mean_zero_under_the_model(model, whitening):
    """Own and drawn are exchangeable: 4 standard errors, a false alarm in some 1,000 runs."""
    kind = np.int32 if model is poisson else np.float32
    found, x, position = statistic(model, kind), np.array([1.0, 0.4, -0.8]), at(whitening)
    rng, count = np.random.default_rng(1), 20_000
    eta = x @ np.asarray(position.u)
    if model is poisson:
        y = rng.poisson(np.exp(eta), count).astype(kind)
    else:
        u = np.asarray(position.u, float)
        # Sites in the order of their names: sigma, then w.
        y = rng.normal(x[:2] @ u[1:], np.exp(u[0]), count).astype(kind)
    given = record(x, y[0])[0]
    joined = jax.jit(
        jax.vmap(
            lambda y, row: found.joint(position, jax.random.key(2), [given, y[None], row[None]])
        )
    )
    vectors = np.asarray(joined(jnp.asarray(y), jnp.arange(count, dtype=jnp.int32)), float)
    mean, error = vectors.mean(0), vectors.std(0) / np.sqrt(count)
    assert (np.abs(mean[:DIM]) <= 4 * error[:DIM] + 1e-7).all()
    # Its square is what the model expects of it.
    gap = vectors[:, -3] - vectors[:, -2]
    assert abs(gap.mean()) <= 4 * gap.std() / np.sqrt(count) + 1e-6
    # As many lie far out as are said to, and a record beyond all that were drawn does.
    tails = vectors[:, -1] / np.sqrt(TAIL_SHARE)
    assert abs(tails.mean()) <= 4 * tails.std() / np.sqrt(count)
    assert 0.005 <= np.mean(tails > 0.5) <= 0.05
    # A record far out stays within the bound, and out of the information of the others.
    far = joined(jnp.asarray([y[0], kind(60)]), jnp.zeros(2, jnp.int32))
    assert parts(far[1])[3] == pytest.approx(16 / 17, abs=1e-5)
    information = parts(far[1])[1]
    assert np.linalg.norm(information) <= 1 + 1e-5


def test_a_row_of_a_matrix_has_its_norm():
    matrix = np.random.default_rng(0).normal(size=(4, 4))
    matrix = matrix + matrix.T
    row = np.asarray(packed(jnp.asarray(matrix)))
    np.testing.assert_allclose(np.linalg.norm(row), np.linalg.norm(matrix), rtol=1e-6)
    np.testing.assert_allclose(unpacked(row, 4), matrix, rtol=1e-6)


def test_sizes_are_powers_of_two():
    found, x = statistic(logistic), np.array([1.0, 0.4, -0.8])
    told = jax.jit(lambda y: found.sizes(at(8.0), jax.random.key(0), record(x, y)[:2]))(1)
    chance = 1 / (1 + np.exp(-x @ np.asarray(at().u)))
    size = 8 * np.linalg.norm(x) * np.sqrt(chance * (1 - chance))
    marked, parts, met = np.split(np.asarray(told)[:-1], [BINS, BINS + DIM])
    assert int(np.argmax(marked)) == int(np.floor(np.log2(size))) - FIRST_BIN
    assert marked.sum() == pytest.approx(math.sqrt(BINS_SHARE))
    expected = np.abs(x) / np.linalg.norm(x) * math.sqrt(PARTS_SHARE)
    np.testing.assert_allclose(parts, expected, rtol=1e-5)
    np.testing.assert_allclose(met, math.sqrt(PARTS_SHARE / 3), rtol=1e-5)


def test_parts_of_a_size_are_told_together_of_those_alike():
    found = replace(statistic(logistic), alike=(1, 0, 1))
    x = np.array([1.0, 0.4, -0.8])

    def told(x):
        released = found.sizes(at(8.0), jax.random.key(0), record(x, 1)[:2])
        assert len(released) == found.sizes_told
        # Of how large they are, and of which of those alike the record is.
        of_kinds, of_each = np.split(np.asarray(released)[BINS:-1], [4])
        of_kinds = of_kinds / math.sqrt(PARTS_SHARE * (1 - GROUPS_SHARE))
        return of_kinds, of_each / math.sqrt(GROUPS_SHARE)

    expected = np.r_[np.hypot([0.4, 1.0], [0.0, 0.8]) / np.linalg.norm(x), 0.5**0.5, 0.5**0.5]
    np.testing.assert_allclose(told(x)[0], expected, rtol=1e-5)
    np.testing.assert_allclose(told(x)[1], [0.5**0.5, 0.5**0.5], rtol=1e-5)
    # Of the first kind this record has no part.
    x[1] = 0.0
    np.testing.assert_allclose(told(x)[0], [0, 1, 0, 1], rtol=1e-5)
    # Nor of one of those that are alike.
    x[2] = 0.0
    np.testing.assert_allclose(told(x)[1], [1, 0], rtol=1e-5)


def test_a_record_whose_draws_are_all_alike_has_no_size():
    """Rounding is no size: where most records are so, the clip norm would be fitted to it."""
    found, x = statistic(poisson), np.array([1.0, 0.4, -0.8])
    sizes = jax.jit(lambda u: found.sizes(at(8.0, u=u), jax.random.key(0), record(x, 0)))
    assert not np.any(sizes((-12.0, -0.5, 0.2)))
    assert np.linalg.norm(sizes((0.3, -0.5, 0.2))) == pytest.approx(1, abs=1e-5)


def shapes(jaxpr):
    """Shapes of all that a program computes, at any depth."""
    for equation in jaxpr.eqns:
        yield from (each.aval.shape for each in equation.outvars)
        for value in jax.tree.leaves(
            [*equation.params.values()], is_leaf=lambda each: hasattr(each, "eqns")
        ):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from shapes(inner)


@pytest.mark.parametrize("model", [poisson, scattered])
def test_a_score_of_each_draw_costs_no_more_than_one_alone(model):
    """In a Jacobian each draw's row goes through all draws, and its digamma is computed anew."""
    found = statistic(model)
    given = at(), jax.random.key(0), record([1.0, 0.4, -0.8], 3)
    computed = list(shapes(jax.make_jaxpr(found._scores)(*given).jaxpr))
    assert any(found.num_outcomes in shape for shape in computed)
    assert not [shape for shape in computed if shape.count(found.num_outcomes) > 1]


def test_drawn_scores_are_those_of_the_models_own_density():
    found, x = statistic(scattered), jnp.array([1.0, 0.4, -0.8])
    given = record(x, 3, row=7)
    u = at().u
    own, scores, weights = found._scores(at(), jax.random.key(0), given)
    key = jax.random.fold_in(jax.random.key(0), 7)
    values = jax.tree.leaves(found.private_model.constrain(found.at(u)))
    (drawn,) = found.outcomes.draws([*values, *given[:2], key])

    def density(u, y):
        z = found.at(u)
        mean, spread = jnp.exp(x[: DIM - 1] @ z["w"]), jnp.exp(z["spread"])
        return dist.NegativeBinomial2(mean, spread).log_prob(y)

    expected = [jax.grad(density)(u, y) for y in (3, *drawn.reshape(-1))]
    np.testing.assert_allclose(scores, jnp.stack(expected), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(own, expected[0], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(weights, 1 / (found.num_outcomes + 1))
