"""What all four checks owe: one bounded vector a record, charged first, and nothing else leaves."""

import contextlib
import dataclasses
import json
import math
import traceback

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.stats import norm

import numpyro_dp as ndp
from numpyro_dp.accounting.events import GaussianDpEvent, TotalVariation
from numpyro_dp.diagnostics.checks import release
from numpyro_dp.mechanisms import PrivateSum
from numpyro_dp.mechanisms.random import os_key
from tests.diagnostics.checks.setting import CHECKS, DRAWS, OPTIONS, X, Y, logistic, probabilities

KEY = jax.random.key(7)
EACH = pytest.mark.parametrize("check", CHECKS)
_SECRET = os_key().dtype


def ask(check, x=X, y=Y, **options):
    paid = {} if "privacy" in options else {"noise_multiplier": 2.0}
    return CHECKS[check](KEY, logistic, DRAWS, x, y, **{**OPTIONS[check], **paid, **options})


def changed(row, x=None, y=None):
    """The records with one of them replaced."""
    inputs, outcomes = X.copy(), Y.copy()
    inputs[row] = X[row] if x is None else x
    outcomes[row] = Y[row] if y is None else y
    return inputs, outcomes


@pytest.fixture
def summed(monkeypatch):
    """The vectors of all records that a release adds up, their bound, in place of the release."""
    seen = []

    def overheard(self, key, record_vector, records, step=0):
        vectors = jax.vmap(record_vector)([leaf[:, None] for leaf in records])
        jax.debug.callback(lambda v: seen.append((np.asarray(v), self.clip_norm)), vectors)
        return jnp.sum(vectors, axis=0)

    monkeypatch.setattr(PrivateSum, "release", overheard)
    return seen


@EACH
def test_a_record_adds_no_more_than_its_bound_and_moves_no_other(check, summed):
    """Whatever it holds: so far from nothing (zero-out), and twice that from any other."""
    strange = [(None, None)]
    strange += [(x, None) for x in (0.0, 1e30, -1e30, np.nan, np.inf)]
    strange += [(None, y) for y in (1.0, 0.0, np.nan, np.inf, 7.0, -3.0)]
    for x, y in strange:
        # A multiplier that no other test has: this program is compiled with the listener in it.
        ask(check, *changed(5, x, y), noise_multiplier=2.718)
        jax.effects_barrier()
        vectors, bound = summed[-1]
        norms = np.linalg.norm(vectors.astype(float), axis=1)
        assert np.all(norms <= bound * (1 + 1e-6))
        assert np.all(np.isfinite(vectors))
        np.testing.assert_array_equal(np.delete(vectors, 5, 0), np.delete(summed[0][0], 5, 0))
    assert len({each[0][5].tobytes() for each in summed}) > 1
    # The bound is reached, up to what other records would add: noise is not wasted on it.
    assert np.max(np.linalg.norm(summed[0][0], axis=1)) > 0.6 * bound


@EACH
def test_the_charge_is_one_gaussian_from_which_epsilon_follows(check):
    """ε from the ledger's event, by the closed form of the Gaussian mechanism."""
    ledger = ndp.Accountant(ndp.Budget(1.0, 1e-5))
    found = ask(check, privacy=ndp.Budget(0.9, 1e-5), accountant=ledger)
    (entry,) = ledger.entries
    one, distance = entry.event.events
    assert one.count == 1
    assert isinstance(one.event, GaussianDpEvent)
    assert isinstance(distance, TotalVariation)
    assert 0 < distance.distance < 1e-9
    nm, epsilon = one.event.noise_multiplier, found.privacy.epsilon
    delta = norm.cdf(0.5 / nm - epsilon * nm) - math.exp(epsilon) * norm.cdf(
        -0.5 / nm - epsilon * nm
    )
    assert delta == pytest.approx(1e-5, rel=1e-3)
    assert 0.89 < epsilon <= 0.9
    assert found.privacy.recompute() == epsilon
    assert found.privacy.noise_multiplier == nm
    assert found.privacy.relation == "zero_out"
    assert "people" in found.privacy.unit


@pytest.fixture
def answer(monkeypatch):
    """The same released vector, whatever the records are."""
    monkeypatch.setattr(release, "_summed", lambda *given: np.linspace(1, 60, given[0].dim))


@EACH
def test_replace_one_doubles_the_shift(check, answer):
    ledger = ndp.Accountant(relation="replace_one")
    replaced = ask(check, noise_multiplier=4.0, accountant=ledger).privacy
    removed = ask(check, noise_multiplier=2.0).privacy
    assert replaced.relation == "replace_one"
    assert replaced.epsilon == pytest.approx(removed.epsilon, rel=1e-3)


def fields(found):
    """Everything that a result holds, but for the time."""
    told = {f.name: getattr(found, f.name) for f in dataclasses.fields(found)}
    told["privacy"] = {**told["privacy"].to_dict(), "created_at": ""}
    return str(told) + str(found)


@EACH
def test_nothing_but_the_released_vector_depends_on_the_records(check, answer):
    told = {fields(ask(check, *changed(5, x, y))) for x, y in ((None, None), (9.0, 1), (np.nan, 0))}
    assert len(told) == 1


@EACH
def test_it_is_charged_before_a_record_is_read(check, monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    ledger = ndp.Accountant(ndp.Budget(5.0, 1e-5))
    monkeypatch.setattr(release, "_summed", interrupted)
    with pytest.raises(KeyboardInterrupt) as ended:
        ask(check, accountant=ledger)
    assert len(ledger.entries) == 1
    frames = [frame for frame, _ in traceback.walk_tb(ended.value.__traceback__)]
    named = {id(value): value for frame in frames for value in frame.f_locals.values()}
    assert not [key for key in named.values() if getattr(key, "dtype", None) == _SECRET]
    with pytest.raises(ndp.BudgetExceededError):
        ask(check, noise_multiplier=0.05, accountant=ledger)
    assert len(ledger.entries) == 1


@EACH
def test_a_record_without_numbers_spoils_nothing(check):
    """The noise is the same: what the record adds is bounded and finite."""
    whole = ask(check, secure=False)
    holed = ask(check, *changed(5, x=np.nan), secure=False)
    for text in (str(whole), str(holed)):
        assert "nan" not in text
    assert whole.privacy.epsilon == holed.privacy.epsilon


def test_with_the_caller_s_key_it_is_reproducible_and_conditional():
    found = [ask("accuracy", secure=False) for _ in range(2)]
    assert found[0].estimate == found[1].estimate
    assert "secret" in found[0].privacy.conditions[0]
    assert "secret" in str(found[0])
    fresh = [ask("accuracy") for _ in range(2)]
    assert fresh[0].estimate != fresh[1].estimate
    assert fresh[0].privacy.conditions == ()


def noise_of_counts():
    """Of 16 charged curves of 50 bins: by how much counts differ, over what the event says."""
    edges, predicted = np.linspace(0, 1, 51), probabilities(X)
    found = [
        ndp.private_calibration_curve(
            jax.random.key(seed), logistic, DRAWS, X, Y, bins=50, noise_multiplier=8.0,
            allow_unresolved=True, secure=False,
        )
        for seed in range(16)
    ]  # fmt: skip
    event = json.dumps(json.loads(found[0].privacy.events[0][1]))
    assert '"noise_multiplier": 8.0' in event
    # A vector of ½ and at most (1 + 1/50)/2; the count is twice its part of the sum.
    stated = 8.0 * math.hypot(0.5, 0.51) * 2
    assert found[0].count_noise_sd == pytest.approx(stated, rel=0.02)
    noise = np.stack([each.count for each in found]) - np.histogram(predicted, edges)[0]
    return np.std(noise) / stated


def test_the_noise_is_that_of_the_event():
    """Of 800 draws: five standard errors of a standard deviation, false alarm 6e-7."""
    assert abs(noise_of_counts() - 1) < 5 / math.sqrt(1600)


def test_half_the_noise_would_be_caught(monkeypatch):
    whole = PrivateSum.release

    def halved(self, key, vector, records, step=0):
        noisy = whole(self, key, vector, records, step)
        exact = jnp.sum(jax.vmap(vector)([leaf[:, None] for leaf in records]), axis=0)
        return (noisy + exact) / 2

    monkeypatch.setattr(PrivateSum, "release", halved)
    # A program of its own: the other one was traced with all of the noise.
    summed = release._summed.__wrapped__
    anew = jax.jit(lambda *given: summed(*given), static_argnums=(0, 1, 2))
    monkeypatch.setattr(release, "_summed", anew)
    off = noise_of_counts() - 1
    assert abs(off) > 5 / math.sqrt(1600)


@pytest.mark.parametrize(
    ("draws", "message"),
    [
        ({}, "no draws of latent site"),
        ({"w": np.full((5, 2), np.nan)}, "not finite"),
        ({"w": np.ones((4, 5, 2))}, "chains not grouped"),
        ({"w": np.ones((0, 2))}, "at least one"),
        ({"w": [[1.0, 2.0]]}, "NumPy or JAX array"),
        (np.ones((5, 2)), "draws by site"),
    ],
)
def test_draws_that_predict_nothing_are_refused(draws, message):
    ledger = ndp.Accountant()
    with pytest.raises(ValueError, match=message):
        ndp.private_accuracy(KEY, logistic, draws, X, Y, noise_multiplier=1.0, accountant=ledger)
    assert not ledger.entries


@pytest.mark.parametrize("check", ["accuracy", "calibration"])
def test_what_would_tell_nothing_is_refused_and_told_what_would_do(check):
    ledger = ndp.Accountant()
    tiny = {"privacy": ndp.Budget(0.02, 1e-5), "accountant": ledger}
    with pytest.raises(ValueError, match=r"records, or ε = .* would do") as refused:
        ask(check, **tiny)
    assert "Nothing was charged" in str(refused.value)
    assert not ledger.entries
    enough = float(str(refused.value).split("ε = ")[1].split()[0])
    # That it would do is no guess.
    ask(check, privacy=ndp.Budget(1.02 * enough, 1e-5))
    ask(check, **tiny, allow_unresolved=True)
    assert len(ledger.entries) == 1


@EACH
def test_a_private_number_of_records_is_refused(check):
    with pytest.raises(ndp.UnsupportedModelError, match="private under add_remove"):
        ask(check, accountant=ndp.Accountant(relation="add_remove"))


@EACH
def test_as_many_records_as_a_check_has_numbers_of_its_own_are_no_captured_array(check):
    """Eight draws are looked at, and seven bins have eight edges."""
    options = {"bins": 7} if check == "calibration" else {}
    found = ask(check, X[:8], Y[:8], noise_multiplier=0.01, allow_unresolved=True, **options)
    assert found.num_records == 8


def test_a_check_inside_a_transformation_is_refused():
    with pytest.raises(ValueError, match="JAX transformation"):
        jax.jit(lambda x: ask("accuracy", x=x).estimate)(X)


def test_an_object_with_draws_is_as_good_as_its_draws():
    class Fitted:
        def get_samples(self):
            return {**DRAWS, "norm": np.ones(20)}

    found = ndp.private_accuracy(KEY, logistic, Fitted(), X, Y, noise_multiplier=2.0, secure=False)
    assert found.estimate == ask("accuracy", secure=False).estimate


@EACH
def test_arviz_gets_the_numbers_and_the_statement(check):
    found = ask(check)
    group = found.to_inference_data()["private_check"]
    assert group.attrs["dp_epsilon"] == found.privacy.epsilon
    assert group.attrs["dp_relation"] == "zero_out"
    assert group.attrs["num_records"] == len(Y)
    errors = np.asarray(group["standard_error"])
    assert errors.shape[:2] == (1, 1)
    assert np.all(errors[np.isfinite(errors)] > 0)


def _spy():
    """An identity whose own rule for batches prints them; nobody uses what it returns."""

    @jax.custom_batching.custom_vmap
    def spy(x):
        return x

    @spy.def_vmap
    def rule(axis_size, in_batched, x):
        jax.debug.print("SPY {}", jnp.max(x))
        return x, in_batched[0]

    return spy


def test_dead_code_that_was_judged_away_does_not_run(capfd):
    """Only the program that was judged runs: neither a statistic nor a model is traced again."""
    spy, calls = _spy(), [0]
    x = np.linspace(-1, 1, 200).astype(np.float32)
    y = x + np.float32(0.5)
    draws = {"s": np.linspace(0.5, 1.5, 20).astype(np.float32)}

    def spying(x, y):
        s = numpyro.sample("s", dist.Normal(0, 1))
        with numpyro.plate("people", y.shape[0]):
            spy(x)
            numpyro.sample("y", dist.Normal(s * x, 1), obs=y)

    def plain(x, y):
        s = numpyro.sample("s", dist.Normal(0, 1))
        with numpyro.plate("people", y.shape[0]):
            numpyro.sample("y", dist.Normal(s * x, 1), obs=y)

    def looking(value, record):
        spy(record["x"])
        return value

    def at_last(value, record):
        calls[0] += 1
        if calls[0] > 4:
            jax.debug.print("SPY {}", record["x"])
        return value

    def ask(model, **options):
        return ndp.private_posterior_predictive_check(
            jax.random.key(0), model, draws, x, y, noise_multiplier=1.0, allow_unresolved=True,
            **options,
        )  # fmt: skip

    ask(spying)
    for function in (looking, at_last):
        # What prints while it is judged is refused.
        for _ in range(2):
            with contextlib.suppress(ndp.UnsupportedModelError):
                ask(plain, statistics={"mine": (function, -2.0, 2.0)})
    jax.effects_barrier()
    seen = capfd.readouterr()
    assert "SPY" not in seen.out + seen.err
