"""Lower bounds on ε: exact confidence, neighbours only, and a bar for the honest kernel."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax_privacy import auditing
from numpyro.infer.mcmc import MCMCKernel
from scipy.stats import norm

import numpyro_dp as ndp
from numpyro_dp.accounting import privacy_curve
from numpyro_dp.accounting.events import GaussianDpEvent
from numpyro_dp.diagnostics.audit import chains
from numpyro_dp.diagnostics.audit.lower_bound import best_verdict, epsilon_from_counts
from numpyro_dp.mechanisms import private_sum as mechanism

DELTA = 1e-5
LOUD = jnp.array([np.nan, 1e6, np.nan, np.nan])
OPPOSITE = LOUD.at[1].set(-1e6)
NULL = jnp.full(4, np.nan)
START = {"mu": jnp.zeros(())}


def mean_model(x):
    mu = numpyro.sample("mu", dist.Normal(0, 1e3))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("x", dist.Normal(mu, 1), obs=x)


def kernel(**changes):
    # At this step size the privacy noise leaves no Langevin noise to add.
    arguments = {"step_size": 4.0, "clip_norm": 1.0, "noise_multiplier": 2.0, **changes}
    return ndp.DPSGLD(mean_model, **arguments)


def attack(subject, data=(LOUD,), neighbour=(NULL,), **options):
    options = {"num_chains": 400, "init_params": START, "delta": DELTA, **options}
    return ndp.audit(subject, jax.random.key(7), data, neighbour, **options)


# --- the bar: the worst case, one record at the clip norm against a null record -----------------

# (sampling rate, steps, ε). The lower bounds hold with 95 % each; seeds are fixed, so an honest
# kernel would fail `not refutes` with a probability below 5 % once, when the seed was chosen.
FAST = [(0.5, 5, 4.0)]
SLOW = [
    (1.0, 1, 2.0),
    (0.2, 10, 2.0),
    (1.0, 20, 1.0),
    (0.2, 20, 1.0),
    (0.05, 20, 2.0),
    (0.5, 20, 3.0),
    (1.0, 5, 4.0),
]


def check_bar(rate, steps, epsilon, **options):
    subject = kernel(sampling_rate=rate, privacy=ndp.Budget(epsilon, DELTA), noise_multiplier=None)
    result = attack(subject, num_samples=steps, **options)
    assert 0.98 * epsilon < result.epsilon_reported <= epsilon
    assert not result.refutes
    assert result.epsilon_lower >= 0.3 * result.epsilon_reported
    return result


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "steps", "epsilon"), FAST)
def test_the_bound_nears_the_reported_epsilon_and_stays_below(rate, steps, epsilon):
    check_bar(rate, steps, epsilon, num_chains=20_000)


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "steps", "epsilon"), SLOW)
def test_the_bound_with_many_chains_at_high_confidence(rate, steps, epsilon):
    check_bar(rate, steps, epsilon, num_chains=100_000, confidence=0.99)


@pytest.mark.slow
def test_under_replace_one_the_pair_is_further_apart():
    pair = (LOUD,), (OPPOSITE,)
    result = attack(kernel(), *pair, relation="replace_one", num_chains=4000)
    assert 0.3 * result.epsilon_reported < result.epsilon_lower <= result.epsilon_reported
    alone = attack(kernel(), num_chains=4000)
    assert result.epsilon_reported > 2 * alone.epsilon_reported


@pytest.mark.slow
def test_under_add_remove_one_data_set_lacks_the_record():
    absent = kernel(sampling_rate=0.5, max_records=6, noise_multiplier=1.0)
    result = attack(absent, (LOUD,), (NULL[1:],), relation="add_remove", num_chains=16_000)
    assert 0.2 * result.epsilon_reported < result.epsilon_lower <= result.epsilon_reported


@pytest.mark.slow
def test_every_private_step_counts_between_the_draws_too():
    result = attack(kernel(steps_per_sample=4), num_samples=2)
    assert result.num_steps == 8
    event = GaussianDpEvent(2.0 / np.sqrt(8))
    expected = privacy_curve(event, "zero_out").epsilon(DELTA)
    assert result.epsilon_reported == pytest.approx(expected, rel=1e-3)


@pytest.mark.slow
def test_steps_are_weighed_by_the_noise_of_their_schedule():
    # Only the third step tells much; weighing all alike would drown it in the others' noise.
    scheduled = kernel(noise_multiplier=lambda step: 1.5 if step == 2 else 24.0)
    result = attack(scheduled, num_samples=12, num_chains=20_000)
    assert 0.3 * result.epsilon_reported < result.epsilon_lower <= result.epsilon_reported


@pytest.mark.slow
def test_a_score_of_the_callers_own():
    def last(draws):
        assert draws["mu"].shape == (3,)
        return draws["mu"][-1]

    result = attack(kernel(), num_samples=3, score=last, num_chains=4000)
    # The record pulls upwards, and the sum of the moves is sufficient here.
    assert result.positives == "data"
    assert 0.3 * result.epsilon_reported < result.epsilon_lower <= result.epsilon_reported
    with pytest.raises(ValueError, match="finite number"):
        attack(kernel(), score=lambda draws: draws["mu"][0] / 0)
    with pytest.raises(ValueError, match="finite number"):
        attack(kernel(), score=lambda draws: draws["mu"])


def test_a_kernel_without_clip_is_refuted(monkeypatch):
    def unclipped(lattice, vectors, rows, mask, *rest):
        integers = jnp.where(mask[:, None] & jnp.isfinite(vectors), vectors / lattice.scale, 0)
        return jnp.rint(integers).sum(0).astype(jnp.int32)

    monkeypatch.setattr(mechanism, "integer_sum", unclipped)
    # A clip norm of its own, so that no executable of the honest kernel is found again.
    result = attack(kernel(clip_norm=1.0625), (LOUD / 1e4,), num_chains=2000)
    assert result.refutes
    assert "REFUTED" in str(result)


@pytest.mark.slow
def test_halved_noise_is_refuted(monkeypatch):
    honest = mechanism.floor_noise
    monkeypatch.setattr(mechanism, "floor_noise", lambda *a: honest(*a) // 2)
    result = attack(kernel(clip_norm=1.125), num_chains=200_000, num_samples=10)
    assert result.refutes


@pytest.mark.slow
def test_audits_repeat_and_chunks_do_not_share_noise(monkeypatch):
    assert attack(kernel()) == attack(kernel())
    monkeypatch.setattr(chains, "_CHAINS_AT_ONCE", 150)
    # The function of the same name hides the module.
    module = sys.modules["numpyro_dp.diagnostics.audit.audit"]
    scores = []
    honest = module.best_verdict
    monkeypatch.setattr(
        module, "best_verdict", lambda *pair, **more: scores.extend(pair) or honest(*pair, **more)
    )
    attack(kernel())
    pieces = [piece for each in scores for piece in (each[:100], each[150:250], each[300:])]
    # Noise is an integer, so a few ties are chance; shared noise would tie them all.
    for k, one in enumerate(pieces):
        assert one.shape == (100,)
        assert all(np.mean(one == other) < 0.2 for other in pieces[:k])


def test_the_report_in_words():
    result = attack(kernel())
    assert result.judged == 200
    assert 3 < result.ceiling < np.log(200)
    words = " ".join(str(result).split())
    assert "no guarantee" in words
    assert f"ε = {result.epsilon_reported:.4g}" in words
    with pytest.raises(AttributeError):
        result.epsilon_lower = 0.0


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "neighbour", "options", "message"),
    [
        (LOUD, LOUD, {}, "exactly one record"),
        (LOUD, NULL.at[0].set(1.0), {}, "exactly one record"),
        (LOUD, NULL[1:], {}, "that are equal"),
        (LOUD, OPPOSITE, {}, "must be null"),
        (LOUD, NULL, {"relation": "add_remove"}, "differ by one"),
        (LOUD, jnp.zeros(3), {"relation": "add_remove"}, "exactly one record"),
        (LOUD, NULL, {"relation": "swap"}, "relation must be one of"),
        (LOUD, NULL, {"num_chains": 99}, "at least 100"),
        (LOUD, NULL, {"num_samples": 0}, "num_samples"),
        (LOUD, NULL, {"confidence": 0.5}, "confidence"),
    ],
)
def test_what_is_no_audit_is_refused(data, neighbour, options, message):
    subject = kernel(sampling_rate=0.5, max_records=6)
    with pytest.raises(ValueError, match=message):
        attack(subject, (data,), (neighbour,), **options)


def test_a_kernel_with_a_ledger_is_refused_and_nothing_charged():
    for budget in (None, ndp.Budget(10.0, DELTA)):
        accountant = ndp.Accountant(budget)
        with pytest.raises(ValueError, match="without accountant="):
            attack(kernel(accountant=accountant))
        assert accountant.entries == ()


def test_what_has_no_score_or_no_tuple_is_refused():
    off = kernel(noise_multiplier=0.0, clip_norm=np.inf)
    with pytest.raises(ValueError, match="give score="):
        attack(off)
    with pytest.raises(ValueError, match="tuples"):
        attack(kernel(), [LOUD])
    with pytest.raises(ValueError, match="each by itself"):
        attack(kernel(init_kernel=kernel()))
    with pytest.raises(ValueError, match="give it both step_size and clip_norm"):
        attack(ndp.DPSGLD(mean_model, privacy=ndp.Budget(1.0, DELTA)))
    with pytest.raises(ValueError, match="audit takes what releases"):
        attack(MCMCKernel)
    with pytest.raises(ValueError, match="transformation"):
        jax.jit(lambda key: ndp.audit(kernel(), key, (LOUD,), (NULL,)))(jax.random.key(0))


# --- the statistics ------------------------------------------------------------------------------


@pytest.mark.parametrize("delta", [0.0, 1e-5, 0.02])
@pytest.mark.parametrize("threshold", [-2.0, 0.0, 1.0, 2.5, 9.0])
def test_counts_give_the_bound_of_jax_privacy(delta, threshold):
    rng = np.random.default_rng(3)
    own, other = rng.normal(1, 1, 1000), rng.normal(0, 1, 700)
    oracle = auditing.CanaryScoreAuditor(own, other).epsilon_clopper_pearson(
        0.1, delta, one_sided=False, threshold_strategy=auditing.Explicit(threshold)
    )
    counts = np.sum(own > threshold), np.sum(other > threshold)
    found = epsilon_from_counts(*counts, 1000, 700, delta=delta, confidence=0.9)
    assert found == pytest.approx(oracle, abs=1e-9)


def test_the_bound_exceeds_the_truth_no_oftener_than_it_says():
    # 400 audits of a Gaussian mechanism at the δ at which ε = 0: any positive bound is an error.
    # At 80 % confidence their number is at most Binomial(400, 0.2): above 120 with p < 1e-6.
    rng = np.random.default_rng(0)
    mu = 0.1
    delta = 2 * norm.cdf(mu / 2) - 1
    errors = 0
    for _ in range(400):
        own, other = rng.normal(mu, 1, 1000), rng.normal(0, 1, 1000)
        errors += best_verdict(own, other, delta=delta, confidence=0.8).epsilon > 0
    assert errors <= 120


@pytest.mark.parametrize("flip", [1, -1])
@pytest.mark.parametrize("swap", [False, True])
def test_neither_order_nor_sign_of_the_score_matters(flip, swap):
    rng = np.random.default_rng(1)
    scores = [flip * rng.normal(2, 1, 4000), flip * rng.normal(0, 1, 4000)]
    if swap:
        scores = scores[::-1]
    verdict = best_verdict(*scores, delta=DELTA, confidence=0.95)
    truth = privacy_curve(GaussianDpEvent(0.5), "zero_out").epsilon(DELTA)
    assert 0.3 * truth < verdict.epsilon < truth


def test_the_judges_have_no_part_in_the_choice():
    # Only the first halves differ: a bound learnt and judged on the same runs would be large.
    rng = np.random.default_rng(2)
    own = np.concatenate([rng.normal(9, 1, 500), rng.normal(0, 1, 500)])
    other = rng.normal(0, 1, 1000)
    verdict = best_verdict(own, other, delta=0.0, confidence=0.95)
    assert verdict.runs == 500
    assert verdict.epsilon < 0.5


def test_equal_scores_show_nothing():
    verdict = best_verdict(np.zeros(200), np.zeros(200), delta=0.0, confidence=0.95)
    assert verdict.epsilon == 0
