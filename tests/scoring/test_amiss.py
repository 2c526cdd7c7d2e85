"""Records that are not as the model has them: counted with the sizes of scores, and said."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers

import numpyro_dp as ndp
from numpyro_dp.model.guided.indices import within_groups
from numpyro_dp.model.guided.outside import _within
from numpyro_dp.model.private_model import private_model
from numpyro_dp.scoring.statistic import AMISS, RoundPosition, record_statistic
from numpyro_dp.scoring.verdicts.amiss import Amiss
from tests.models import logistic

BUDGET = ndp.Budget(1.0, 1e-5)
RECORDS = 3_000


def of(law, *, keeps=None):
    """A model of one outcome, whose law takes the linear predictor, a scale and the total."""

    def model(x, total, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        s = numpyro.sample("s", dist.LogNormal(0, 0.3))
        with numpyro.plate("people", x.shape[0]):
            fn = law(x @ w, s, total)
            numpyro.sample("y", fn if keeps is None else fn.mask(keeps(y)), obs=y)

    return model


def number(model, values):
    """What each outcome counts for: a row of whether it adds nothing and whether it is outside."""
    values = np.asarray(values)
    x, total = np.full((40, 2), 0.3, np.float32), np.full(40, 5, np.int32)
    y = np.resize(values, 40).astype(np.float32 if values.dtype.kind == "f" else values.dtype)
    found = record_statistic(private_model(model, (x, total, y), {}))
    record = [jnp.asarray(each[: len(values)])[:, None] for each in (x, total, y)]
    rows = jnp.arange(len(values), dtype=jnp.int32)[:, None]

    def one(*record):
        given = record if found.draws else record[:-1]
        at = jnp.zeros(3), jnp.eye(3), jnp.ones(())
        return found.sizes(RoundPosition(*at), jax.random.key(0), list(given))[-AMISS:-1]

    return np.asarray(jax.vmap(one)(*record, rows)) > 0


def poisson(eta, s, total):
    return dist.Poisson(jnp.exp(eta))


def bernoulli(eta, s, total):
    return dist.Bernoulli(logits=eta)


def exponential(eta, s, total):
    return dist.Exponential(jnp.exp(eta))


def log_normal(eta, s, total):
    return dist.LogNormal(eta, s)


def binomial(eta, s, total):
    return dist.Binomial(total, logits=eta)


def ordered(eta, s, total):
    return dist.OrderedLogistic(eta, jnp.array([-1.0, 0.0, 1.0]))


def angles(eta, s, total):
    return dist.VonMises(eta, 1 / s)


def inflated(eta, s, total):
    return dist.ZeroInflatedPoisson(0.2, jnp.exp(eta))


def truncated(eta, s, total):
    return dist.TruncatedNormal(eta, s, low=0.0)


def moving(eta, s, total):
    """Its end hangs on a latent: nobody knows yet what lies beyond."""
    return dist.TruncatedNormal(eta, s, low=-3.0 - s)


NAN = np.nan


@pytest.mark.parametrize(
    ("law", "values", "silent", "outside"),
    [
        (bernoulli, [0, 1, 2, -1, 9], [], [2, 3, 4]),
        (bernoulli, [False, True], [], []),
        (bernoulli, [0.0, 1.0, 0.5, NAN], [3], [2]),
        (poisson, [0, 7, -1], [], [2]),
        (poisson, [0.0, 7.0, 2.5, -1.0, NAN], [4], [2, 3]),
        (binomial, [0, 5, 6, -1], [], [2, 3]),
        (ordered, [0, 3, 4, -1], [], [2, 3]),
        (inflated, [0, 7, -1], [], [2]),
        # A time of 0 is as good as one beside it, and no logarithm.
        (exponential, [0.0, 2.0, -1.0, NAN], [3], [2]),
        (log_normal, [0.0, 2.0, NAN], [0, 2], []),
        (truncated, [0.0, 2.0, -1.0, NAN], [3], [2]),
        # What is a turn on, or beyond an end that is not known, is not judged.
        (angles, [0.1, 3.0, 6.0], [], []),
        (moving, [-2.0, -8.0], [], []),
    ],
)
def test_what_a_law_cannot_have_is_told_from_what_it_can(law, values, silent, outside):
    found = number(of(law), values)
    assert list(np.flatnonzero(found[:, 0])) == silent
    assert list(np.flatnonzero(found[:, 1])) == outside


def test_what_a_law_draws_it_can_have():
    """Of every kind of support that NumPyro has; rounding at an end is no wrong outcome."""
    laws = [
        dist.MixtureSameFamily(
            dist.Categorical(jnp.ones(2) / 2), dist.Normal(jnp.array([0.0, 3.0]), 1.0)
        ),
        dist.AsymmetricLaplace(0.0, 1.0, 1.0),
        dist.Beta(0.1, 0.1),
        dist.BetaBinomial(1.0, 1.0, 10),
        dist.Chi2(1.0),
        dist.DiscreteUniform(0, 5),
        dist.Gamma(0.1),
        dist.GammaPoisson(2.0, 1.0),
        dist.GeometricLogits(0.0),
        dist.HalfCauchy(1.0),
        dist.Pareto(1.0, 2.0),
        dist.Poisson(1e6),
        dist.TruncatedCauchy(0.0, 1.0, low=0.0, high=3.0),
        dist.Uniform(0.0, 2.0),
        dist.Weibull(1.0, 0.2),
        dist.ZeroInflatedNegativeBinomial2(2.0, 1.0, gate=0.2),
        dist.TransformedDistribution(dist.Normal(0, 1), dist.transforms.ExpTransform()),
        dist.Normal(0, 1).expand([3]).to_event(1),
        # Of several numbers, whose sum rounding moves.
        dist.Dirichlet(jnp.ones(30)),
        dist.Multinomial(10, jnp.ones(3) / 3),
    ]
    for law in laws:
        drawn = law.sample(jax.random.key(0), (5_000,))
        for value in (drawn, drawn.astype(jnp.float32)):
            assert _within({"fn": law, "value": value}), law


def test_what_a_mask_leaves_out_may_be_anything():
    masked = of(bernoulli, keeps=lambda y: y >= 0)
    assert not number(masked, [0, 1, -1, -9]).any()
    assert number(masked, [0, 1, 2])[:, 1].tolist() == [False, False, True]


def released(model, *data):
    release = ndp.LikelihoodRelease(model, privacy=BUDGET, secure=False)
    return release.run(jax.random.key(0), *data, progress_bar=False).diagnostics


@pytest.fixture(scope="module")
def answers():
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(RECORDS), rng.normal(size=(RECORDS, 2))]).astype(np.float32)
    y = rng.random(RECORDS) < 1 / (1 + np.exp(-x @ [-1.0, 0.5, -0.3]))
    return x, y.astype(np.int32)


def test_a_yes_or_no_as_one_and_two_is_not_to_be_used(answers):
    """A newcomer's model of thirty columns under 1 and 2 had no note but of width, seven of seven.

    Noise of 26 records beside 800: a false alarm, or none, in fewer than one run in a million.
    """
    x, y = answers
    found = released(logistic, x, y + 1)
    assert found.outside == pytest.approx(y.mean(), abs=6 * found.outside_sd)
    assert found.verdicts[0].startswith("do not use: about 2")
    assert "of the records show an outcome that its law cannot have" in found.verdicts[0]
    assert "1 and 2 in place of 0 and 1" in found.verdicts[0]
    assert not released(logistic, x, y).verdicts


def test_how_many_add_nothing_is_said_and_nothing_is_wrong_with_the_others(answers):
    x, y = answers
    x = x.copy()
    x[:300, 1] = np.nan
    found = released(logistic, x, y)
    assert found.silent == pytest.approx(0.1, abs=6 * found.silent_sd)
    (said,) = found.verdicts
    assert said.startswith("to know: about ")
    assert "add nothing" in said


def of_groups(effects, *, masked=False):
    """A model of what a group's code and another chooses of latents."""

    def model(group, other, y=None):
        choose = effects()
        asked = handlers.mask(mask=(group >= 0) | (not masked))
        with numpyro.plate("people", group.shape[0]), asked:
            numpyro.sample("y", dist.Bernoulli(logits=choose(group, other)), obs=y)

    return model


def normal(*shape):
    return numpyro.sample("a", dist.Normal(0, 1).expand(shape).to_event(len(shape)))


def table():
    a = normal(5, 3)
    return lambda group, other: a[group, other]


def by_code():
    a = normal(5)
    return lambda group, other: a[group]


def from_one():
    a = numpyro.sample("a", dist.ZeroSumNormal(1.0, (5,)))
    return lambda group, other: 2 * a[group - 1]


def with_none():
    """Here -1 is meant: whoever has no group."""
    a = jnp.concatenate([normal(5), jnp.zeros(1)])
    return lambda group, other: a[group]


def put_right():
    a = normal(5)

    def choose(group, other):
        known = (group >= 0) & (group < 5)
        return a[jnp.where(known, group, 0)] * known

    return choose


def public_table():
    b, beds = normal(1), jnp.arange(5.0)
    return lambda group, other: b * beds[group]


@pytest.mark.parametrize(
    ("effects", "astray"),
    [
        (by_code, [2, 3]),
        (table, [2, 3, 4]),
        (from_one, [0, 2]),
        (with_none, []),
        (put_right, []),
        (public_table, []),
    ],
)
@pytest.mark.parametrize("dtype", [np.int32, np.int8])
def test_codes_of_no_group_are_told_from_others(effects, astray, dtype):
    """JAX takes -1, and what is beyond the last, for the last group."""
    group, other = np.array([0, 4, -1, 5, 1], dtype), np.array([0, 2, 1, 0, 3], dtype)
    group, other = (np.resize(each, 40) for each in (group, other))
    split = private_model(of_groups(effects), (group, other, np.resize([0, 1], 40)), {})
    values, structs = jax.tree.leaves(split.programs.constrained), split.layout.structs(1)
    limits = within_groups(split.term, values, structs)
    zeros = [jnp.zeros(each.shape, each.dtype) for each in values]

    def within(k):
        rows = [jnp.asarray(each[k : k + 1]) for each in (group, other, np.zeros(40, int))]
        return all(bool(each([*zeros, *rows])[0]) for each in limits)

    assert [k for k in range(5) if not within(k)] == astray


def test_an_index_of_no_group_is_counted_but_under_a_mask(answers):
    y = answers[1]
    group = np.random.default_rng(1).integers(-1, 5, RECORDS).astype(np.int32)
    other = np.zeros(RECORDS, np.int32)
    found = released(of_groups(by_code), group, other, y)
    assert found.astray == pytest.approx(1 / 6, abs=6 * found.outside_sd)
    assert found.verdicts[0].startswith("with care: about 1")
    assert "of the records have an index of no group: -1" in found.verdicts[0]
    assert abs(found.outside) < 6 * found.outside_sd
    masked = released(of_groups(by_code, masked=True), group, other, y)
    assert masked.astray < 6 * masked.outside_sd


@pytest.mark.parametrize(
    ("share", "outside", "silent"),
    [(0.03, "with care: about 3%", "to know: about 3%"), (0.6, "do not use", "with care")],
)
def test_a_rank_goes_by_how_many_there_are(share, outside, silent):
    assert Amiss(outside=share, outside_sd=0.005).said[0].startswith(outside)
    assert Amiss(silent=share, silent_sd=0.005).said[0].startswith(silent)


def test_noise_alone_says_nothing():
    alone = Amiss(silent=0.01, silent_sd=0.003, outside=0.01, astray=0.01, outside_sd=0.003)
    assert not alone.said
    assert not Amiss().said
