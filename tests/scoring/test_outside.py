"""Outcomes that their law cannot have: counted with the sizes of scores, and said."""

from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers

import numpyro_dp as ndp
from numpyro_dp.model.guided.outside import _within
from numpyro_dp.model.private_model import private_model
from numpyro_dp.scoring.statistic import RoundPosition, record_statistic
from numpyro_dp.scoring.verdicts.outside import Outside
from tests.models import logistic

BUDGET = ndp.Budget(1.0, 1e-5)
RECORDS = 3_000


def of(law, *, leave_out=None):
    """A model of one outcome, whose law takes the linear predictor, a scale and the total.

    :param leave_out: by what those whose total is 0 are.
    """

    def model(x, total, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        s = numpyro.sample("s", dist.LogNormal(0, 0.3))
        asked = nullcontext() if leave_out is None else leave_out(None, total > 0)
        with numpyro.plate("people", x.shape[0]), asked:
            numpyro.sample("y", law(x @ w, s, total), obs=y)

    return model


def told(model, values, total=5):
    """Whether each outcome is said to be outside of its law."""
    values = np.asarray(values)
    x, total = np.full((40, 2), 0.3, np.float32), np.resize(total, 40).astype(np.int32)
    y = np.resize(values, (40, *values.shape[1:]))
    y = y.astype(np.float32 if values.dtype.kind == "f" else values.dtype)
    found = record_statistic(private_model(model, (x, total, y), {}))
    record = [jnp.asarray(each[: len(values)])[:, None] for each in (x, total, y)]
    rows = jnp.arange(len(values), dtype=jnp.int32)[:, None]

    def one(*record):
        given = record if found.draws else record[:-1]
        at = jnp.zeros(3), jnp.eye(3), jnp.ones(())
        return found.sizes(RoundPosition(*at), jax.random.key(0), list(given))[-1]

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


def pareto(eta, s, total):
    return dist.Pareto(1_000.0, jnp.exp(eta))


def shares(eta, s, total):
    return dist.Dirichlet(1 + jnp.exp(jnp.stack([eta, 0 * eta, 0 * eta], -1)))


def pairs(eta, s, total):
    return dist.Exponential(jnp.exp(jnp.stack([eta, -eta], -1))).to_event(1)


def beta(eta, s, total):
    return dist.Beta(jnp.exp(eta) + 1, 2.0)


def steep(eta, s, total):
    """Its density is infinite at its ends."""
    return dist.Beta(0.5 * jnp.exp(eta), 0.5)


class Unasked(dist.Exponential):
    """Its density is a formula that does not look at the support."""

    def log_prob(self, value):
        return jnp.log(self.rate) - self.rate * value


def unasked(eta, s, total):
    return Unasked(jnp.exp(eta))


def unjudged(eta, s, total):
    return dist.Bernoulli(logits=eta, validate_args=False)


def moving(eta, s, total):
    """Its end hangs on a latent: nobody knows yet what lies beyond."""
    return dist.TruncatedNormal(eta, s, low=-3.0 - s)


NAN = np.nan


@pytest.mark.parametrize(
    ("law", "values", "outside"),
    [
        (bernoulli, [0, 1, 2, -1, 9], [2, 3, 4]),
        (bernoulli, [False, True], []),
        # NumPyro gives a fraction no probability; what is missing adds nothing here either.
        (bernoulli, [0.0, 1.0, 0.5, 1.5, NAN], [2, 3]),
        (poisson, [0, 7, -1], [2]),
        (poisson, [0.0, 7.0, 2.5, -1.0, NAN], [2, 3]),
        (binomial, [0, 5, 6, -1], [2, 3]),
        (ordered, [0, 3, 4, -1], [2, 3]),
        (inflated, [0, 7, -1], [2]),
        # Nor a time of 0, an angle a turn on, an end of shares, and shares that do not add up.
        (exponential, [0.0, 2.0, -1.0, NAN], [0, 2]),
        (exponential, [0, 2, -1], [0, 2]),
        (log_normal, [0.0, 2.0, -1.0, NAN], [0, 2]),
        (pareto, [1_000.5, 2_000.0, 900.0], [2]),
        (truncated, [0.0, 2.0, -1.0, NAN], [2]),
        (beta, [0.0, 0.5, 1.0, 1.5, NAN], [0, 2, 3]),
        (steep, [0.0, 0.5, 1.0], [0, 2]),
        (angles, [0.1, 3.0, 6.0], [2]),
        (shares, [[0.2, 0.3, 0.5], [0.2, 0.3, 0.499], [0.5, 0.5, 0.0], [0.2, 0.3, NAN]], [1, 2]),
        # Numbers of one record that are independent: one of them is enough.
        (pairs, [[1.0, 2.0], [0.0, 2.0], [2.0, -1.0], [NAN, 1.0]], [1, 2]),
        # A formula that takes it all the same tells of it.
        (unasked, [0.0, 2.0, -1.0, NAN], []),
        (unjudged, [0, 1, 2], []),
        # What is beyond an end that is not known is not judged.
        (moving, [-2.0, -8.0], []),
    ],
)
def test_what_a_law_cannot_have_is_told_from_what_it_can(law, values, outside):
    assert list(np.flatnonzero(told(of(law), values))) == outside


def test_what_a_law_draws_it_can_have():
    """Of every kind of support that NumPyro has; rounding at an end is no wrong outcome.

    What NumPyro itself takes for one, as a draw that is rounded to an end, tells nothing there.
    """
    rounded = {(law, 0.0) for law in (dist.Beta, dist.Gamma, dist.Chi2, dist.Weibull)}
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
        dist.Binomial(20_000_001, 1.0),
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
            within = jax.vmap(lambda v, law=law: _within({"fn": law, "value": v}))(value)
            outside = ~within & jnp.isneginf(jax.jit(law.log_prob)(value))
            assert not outside.any() or (type(law), float(drawn.min())) in rounded, law


def test_a_gap_hides_nothing_beside_it():
    """Of a record's numbers, one of which is not known."""

    def visits(x, total, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        numpyro.sample("s", dist.LogNormal(0, 0.3))
        known = ~jnp.isnan(y)
        with numpyro.plate("people", x.shape[0]):
            law = dist.Exponential(jnp.exp(x @ w)[:, None]).expand([x.shape[0], 2])
            shown = jnp.where(known, y, 1.0)
            numpyro.sample("y", law.mask(known).to_event(1), obs=shown)

    values = [[1.0, 2.0], [0.0, NAN], [NAN, -1.0], [NAN, 1.0], [NAN, NAN]]
    assert list(np.flatnonzero(told(visits, values))) == [1, 2]


@pytest.mark.parametrize("leave_out", [handlers.mask, handlers.scale])
def test_what_is_left_out_may_be_anything(leave_out):
    left = of(bernoulli, leave_out=leave_out)
    assert list(np.flatnonzero(told(left, [0, 1, 2, -1, -9], [5, 5, 5, 0, 0]))) == [2]


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

    Noise of 19 records beside 800: a false alarm, or none, in fewer than one run in a million.
    """
    x, y = answers
    found = released(logistic, x, y + 1)
    assert found.outside == pytest.approx(y.mean(), abs=6 * found.outside_sd)
    assert found.verdicts[0].startswith("do not use: about 2")
    assert "of the records show an outcome that its law cannot have" in found.verdicts[0]
    assert "1 and 2 in place of 0 and 1" in found.verdicts[0]
    assert not released(logistic, x, y).verdicts


def test_what_has_no_likelihood_is_left_out_of_rounds():
    """As its score is nought, it would say that it fits: intervals were .46 to .62 as wide.

    The others' mean tells the mode and its sd. Of five keys widths were .95 to 1.16 of that.
    """

    def waiting(times):
        rate = numpyro.sample("log_mean", dist.Normal(0, 3))
        with numpyro.plate("people", times.shape[0]):
            numpyro.sample("times", dist.Exponential(jnp.exp(-rate)), obs=times)

    rng = np.random.default_rng(0)
    times = rng.exponential(3.0, 2 * RECORDS).astype(np.float32)
    times[RECORDS:] = 0.0
    release = ndp.LikelihoodRelease(waiting, privacy=ndp.Budget(8.0, 1e-5), secure=False)
    found = release.run(jax.random.key(0), times, progress_bar=False)
    sd, own = 1 / np.sqrt(RECORDS), np.sqrt(found.located.covariance[0, 0])
    assert 0.8 * sd < own < 1.6 * sd
    assert abs(found.located.mean[0] - np.log(times[:RECORDS].mean())) < 4 * own
    assert found.diagnostics.verdicts[0].startswith("do not use: about 50% of the records show")


@pytest.mark.parametrize(("share", "rank"), [(0.03, "with care: about 3%"), (0.6, "do not use")])
def test_a_rank_goes_by_how_many_there_are(share, rank):
    assert Outside(share, 0.005).said[0].startswith(rank)


def test_noise_alone_says_nothing():
    assert not Outside(0.01, 0.003).said
    assert not Outside().said
