"""Claims about a released likelihood, and the broken releases that must fail them."""

from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import lax

import numpyro_dp as ndp
from numpyro_dp.accounting import privacy_curve
from numpyro_dp.accounting.events import GaussianDpEvent
from numpyro_dp.execution import releases
from numpyro_dp.execution.releases import Releases
from numpyro_dp.mechanisms import CHACHA20, PrivateSum, private_sum as mechanism
from numpyro_dp.model.private_model import private_model
from numpyro_dp.scoring import statistic as statistics, turns
from numpyro_dp.scoring.statistic import RecordStatistic, RoundPosition, record_statistic
from tests.models import logistic

DELTA, N, DIM = 1e-5, 12, 3


def normal(x, y):
    w = numpyro.sample("w", dist.Normal(0, 10).expand([2]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(5))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Normal(x[:, :2] @ w, sigma), obs=y)


def bound(epsilon=1.0, relation="zero_out"):
    """A release of few records, whatever it would tell; other numbers share no executable."""
    data = np.ones((N, DIM), np.float32), np.zeros(N, np.int32)
    release = ndp.LikelihoodRelease(logistic, privacy=ndp.Budget(epsilon, DELTA))
    return release.bind(data, {}, relation)


def position(whitening=1.0, limit=0.3):
    u = jnp.array([0.3, -0.5, 0.2])
    return RoundPosition(u, whitening * jnp.eye(DIM), jnp.asarray(limit))


def gaussians(event):
    """Noise multipliers that are charged, each as often as it is."""
    found = [e for part in event.events for e in getattr(part, "events", [])]
    return sorted(e.event.noise_multiplier for e in found if hasattr(e, "count")
                  and isinstance(e.event, GaussianDpEvent) for _ in range(e.count))  # fmt: skip


def check_charges(**changes):
    """Every release that is asked for is charged, at the noise that it has."""
    made = bound(**changes)
    asking, used, rng = turns.rounds_in_turn(made), [], np.random.default_rng(0)
    ask = next(asking)
    try:
        while True:
            each = made.plan.sums[ask.phase]
            used.append(float(each.noise_sd(ask.step)))
            ask = asking.send(rng.normal(size=each.dim))
    except StopIteration:
        pass
    steps = made.plan.num_steps
    charged = gaussians(made.plan.cost(steps, steps))
    assert len(charged) == len(used), "every release is charged"
    np.testing.assert_allclose(charged, sorted(used), rtol=1e-6)


def check_budget(epsilon=1.0, relation="replace_one"):
    """What is charged costs no more than the budget, under the relation of the ledger."""
    made = bound(epsilon, relation)
    steps = made.plan.num_steps
    cost = privacy_curve(made.plan.cost(steps, steps), relation).epsilon(DELTA)
    assert cost <= epsilon, "within the budget"


def check_noise(epsilon=1.0):
    """On records that add nothing each number of each round is noise of the charged size.

    200 releases of every round: a standard deviation is known to 5 %, the bound is at 5.
    """
    made = bound(epsilon)
    joint, rounds = made.plan.sums[1], len(made.shares)
    records = [jnp.zeros((N, 1))]

    def released(key, step):
        return joint.release(key, lambda record: jnp.zeros(joint.dim), records, step)

    keys = jax.random.split(jax.random.key(0, impl=CHACHA20), (rounds, 200))
    each = jax.jit(jax.vmap(jax.vmap(released, (0, None)), (0, 0)))
    drawn = np.asarray(each(keys, jnp.arange(rounds)))
    charged = [float(joint.noise_sd(step)) for step in range(rounds)]
    sizes = drawn.std(1) / np.array(charged)[:, None]
    assert np.abs(sizes - 1).max() < 0.25, "size of the noise"


def check_sensitivity(model, kind, outcomes):
    """No record, however wild, adds more to a part of the vector than that part's share of 1."""
    found = record_statistic(
        private_model(model, (np.zeros((40, DIM), np.float32), np.zeros(40, kind)))
    )
    rng = np.random.default_rng(0)
    x = np.array([*rng.choice([0.0, 1.0, -3.0, 40.0, 1e4], (40, DIM)), np.ones(DIM)], np.float32)

    @jax.jit
    def longest(whitening):
        def ends(added):
            return [DIM, len(added) - 3, len(added) - 1]

        def squares(x, y):
            given = [x[None], y[None], jnp.zeros(1, jnp.int32)][: 2 + found.draws]
            added = found.joint(position(whitening), jax.random.key(0), given) ** 2
            return jnp.stack([part.sum() for part in jnp.split(added, ends(added))])

        return jax.vmap(lambda y: jax.vmap(lambda x: squares(x, y))(jnp.asarray(x)))(outcomes)

    shares = np.array(
        [
            statistics.SCORE_SHARE,
            statistics.INFORMATION_SHARE,
            statistics.SQUARES_SHARE,
            statistics.TAIL_SHARE,
        ]
    )
    assert shares.sum() == pytest.approx(1)
    for whitening in (0.1, 0.3, 1.0, 100.0):
        most = np.nanmax(np.asarray(longest(whitening)), axis=(0, 1))
        assert (most <= shares * (1 + 1e-5)).all(), "sensitivity"


NORMAL = normal, np.float32, np.array([0.0, 0.3, 1.0, -20.0, 1e4], np.float32)


def check_positions(monkeypatch, epsilon=1.0):
    """With the same answers, other records lead to the same places and coordinates."""
    made = bound(epsilon)
    rng = np.random.default_rng(0)
    answers = {each.dim: rng.normal(size=each.dim) for each in made.plan.sums}
    with monkeypatch.context() as patched:
        patched.setattr(PrivateSum, "release", lambda self, *_: jnp.asarray(answers[self.dim]))
        keys = jax.random.key(0, impl=CHACHA20), jax.random.key(1)
        found = [
            turns.released_rounds(made, *keys, [x, jnp.zeros(N, jnp.int32)], lambda _: None)
            for x in (jnp.ones((N, DIM)), -2 * jnp.ones((N, DIM)))
        ]
    for one, other in zip(*found, strict=True):
        for first, second in zip(one.at, other.at, strict=True):
            np.testing.assert_array_equal(first, second, err_msg="places of later rounds")


def check_centring(monkeypatch, seen=lambda own, scores, weights: (own, scores, weights)):
    """Own and drawn outcomes are exchangeable: were each the own one in turn, scores add up to 0.

    :param seen: what a record is shown of its own score, of all and of their weights.
    """
    found = record_statistic(
        private_model(normal, (np.zeros((40, DIM), np.float32), np.zeros(40, np.float32)))
    )
    at, key = position(3.0), jax.random.key(0)
    record = [jnp.array([[1.0, 0.4, 0.0]]), jnp.array([1.3]), jnp.zeros(1, jnp.int32)]
    _, scores, weights = jax.jit(found._scores)(at, key, record)

    def in_turn(scores):
        with monkeypatch.context() as patched:
            given = seen(scores[0], scores, weights)
            patched.setattr(RecordStatistic, "_scores", lambda *_: given)
            return found.joint(at, key, record)[:DIM]

    turned = jnp.stack([jnp.roll(scores, -k, axis=0) for k in range(len(scores))])
    mean = np.asarray(jax.jit(jax.vmap(in_turn))(turned)).mean(0)
    assert np.abs(mean).max() < 1e-5, "mean of the scores"


def test_the_charges_keep_their_claims():
    check_charges()
    check_budget()


@pytest.mark.slow
def test_the_release_keeps_its_claims(monkeypatch):
    check_noise()
    check_positions(monkeypatch)


@pytest.mark.slow
def test_a_records_statistic_keeps_its_claims(monkeypatch):
    check_sensitivity(*NORMAL)
    check_centring(monkeypatch)


def test_an_uncharged_histogram_is_caught(monkeypatch):
    def flattering(self, done, num_steps):
        return ndp.events.ComposedDpEvent([self.sums[1].event(len(self.phases[1].weights))])

    monkeypatch.setattr(Releases, "cost", flattering)
    with pytest.raises(AssertionError, match="every release is charged"):
        check_charges(epsilon=1.0625)


def test_replace_one_charged_as_zero_out_is_caught(monkeypatch):
    honest = releases.least_noise

    def flattering(at, cost, budget, relation, steps):
        return honest(at, cost, budget, "zero_out", steps)

    monkeypatch.setattr(releases, "least_noise", flattering)
    with pytest.raises(AssertionError, match="within the budget"):
        check_budget(epsilon=1.125)


@pytest.mark.slow
def test_information_without_noise_is_caught(monkeypatch):
    honest = mechanism.floor_noise
    monkeypatch.setattr(mechanism, "floor_noise", lambda *a: honest(*a).at[DIM:-3].set(0))
    with pytest.raises(AssertionError, match="size of the noise"):
        check_noise(epsilon=1.0625)


@pytest.mark.slow
def test_one_round_of_halved_noise_is_caught(monkeypatch):
    honest = PrivateSum.release

    def quiet(self, key, vector, records, step=0):
        return honest(self, key, vector, records, step) * jnp.where(step == 3, 0.5, 1.0)

    monkeypatch.setattr(PrivateSum, "release", quiet)
    with pytest.raises(AssertionError, match="size of the noise"):
        check_noise(epsilon=1.125)


@pytest.mark.slow
def test_coordinates_from_information_without_noise_are_caught(monkeypatch):
    honest, settle, exact = turns.asked, turns.next_settings, []

    @partial(jax.jit, static_argnums=(0, 1))
    def added(statistic, phase, at, outcome_key, records):
        vector = turns.record_vector(statistic, phase, at, outcome_key)
        return jax.vmap(vector)([leaf[:, None] for leaf in records]).sum(0)

    def overheard(statistic, private_sum, phase, at, keys, number, records, step):
        outcome_key = jax.random.fold_in(keys[1], number)
        exact.append(np.asarray(added(statistic, phase, at, outcome_key, records), float))
        return honest(statistic, private_sum, phase, at, keys, number, records, step)

    def settled(rounds, *rest):
        last = rounds[-1]
        information = statistics.unpacked(exact[-1][DIM:-3], DIM) * last.at.information_bound
        return settle([*rounds[:-1], last._replace(information=information)], *rest)

    monkeypatch.setattr(turns, "asked", overheard)
    monkeypatch.setattr(turns, "next_settings", settled)
    with pytest.raises(AssertionError, match="places of later rounds"):
        check_positions(monkeypatch, epsilon=1.0625)


@pytest.mark.slow
def test_a_removed_clip_is_caught(monkeypatch):
    unclipped = SimpleNamespace(rsqrt=jnp.ones_like, Precision=lax.Precision)
    monkeypatch.setattr(statistics, "lax", unclipped)
    with pytest.raises(AssertionError, match="sensitivity"):
        check_sensitivity(*NORMAL)


@pytest.mark.slow
def test_a_removed_second_clip_of_the_information_is_caught(monkeypatch):
    honest, calls = statistics._share_within, []

    def first_only(limit, matrix):
        calls.append(matrix)
        return honest(limit, matrix) if len(calls) % 2 else jnp.ones(())

    monkeypatch.setattr(statistics, "_share_within", first_only)
    with pytest.raises(AssertionError, match="sensitivity"):
        check_sensitivity(*NORMAL)


@pytest.mark.slow
def test_an_own_score_left_out_of_its_set_is_caught(monkeypatch):
    monkeypatch.setattr(RecordStatistic, "_expected", lambda self, of_outcomes: of_outcomes)
    with pytest.raises(AssertionError, match="mean of the scores"):
        check_centring(
            monkeypatch, lambda own, scores, weights: (own, scores[1:], weights[1:] * 17 / 16)
        )
