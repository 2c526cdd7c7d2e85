"""Long runs and attacks: DP-Fast MH against closed forms, NUTS, and an attacker's best test."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC, NUTS

import numpyro_dp as ndp
from numpyro_dp.accounting import privacy_curve
from numpyro_dp.accounting.events import BarkerBit, SelfComposedDpEvent
from numpyro_dp.diagnostics.audit.lower_bound import epsilon_from_counts
from numpyro_dp.mechanisms.accept.minibatch import PoissonBatch, weight_bound
from numpyro_dp.mechanisms.accept.rules import Barker, Metropolis, NoisyBarker, Penalty, fine_grid
from tests.models import logistic

pytestmark = pytest.mark.slow

X = np.clip(np.random.default_rng(3).normal(1.0, 1.0, 500), -3, 4).astype(np.float32)


def normal(x):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("x", dist.Normal(mu, 1), obs=x)


def largest_change(here, there):
    """True for |x| ≤ 4: the log ratio of a record is d·(x − middle)."""
    middle = (here["mu"] + there["mu"]) / 2
    return jnp.abs(here["mu"] - there["mu"]) * (4 + jnp.abs(middle))


BOUNDED = {"step_size": 0.06, "lipschitz": 6.0, "max_move": 0.15}
SHORT = {"step_size": 0.04, "lipschitz": 6.0, "max_move": 0.04, "batch_size": 450}


@pytest.mark.parametrize(
    "arguments",
    [
        BOUNDED,
        {**BOUNDED, "acceptance": "penalty", "noise_scale": 1.0},
        {**BOUNDED, "acceptance": "noisy_barker", "noise_scale": 1.0},
        {**BOUNDED, "lipschitz": np.inf, "acceptance": "penalty", "noise_scale": 0.0},
        {**BOUNDED, "num_candidates": 3},
        {"step_size": 0.06, "lipschitz": 6.0, "smoothness": 1.0},
        SHORT,
        {**SHORT, "acceptance": "penalty", "noise_scale": 0.0},
        {**SHORT, "acceptance": "penalty", "noise_scale": 1.0},
        {"step_size": 0.06, "record_bound": largest_change, "rho": 1e4},
        {"step_size": 0.06, "record_bound": largest_change, "rho": 1e4, "num_candidates": 2},
        {
            "step_size": 0.03,
            "record_bound": largest_change,
            "rho": 1e4,
            "batch_size": 450,
            "likelihood_power": 1.0,
        },
    ],
    ids=lambda a: "-".join(f"{k}={getattr(v, '__name__', v)}" for k, v in a.items())[:60],
)
def test_the_stationary_law_of_a_gaussian_posterior_is_exact(arguments):
    # 128 chains of 1,000 steps from the posterior itself, autocorrelation time below 60 steps:
    # 2,000 effective draws. Bounds at five standard errors (.11 sd, .16 in variance): false alarm
    # 1e-6.
    precision, chains = 1 + len(X), 128
    mean, sd = X.sum() / precision, precision**-0.5
    start = mean + sd * np.random.default_rng(0).normal(size=chains)
    kernel = ndp.DPFastMH(normal, **arguments)
    mcmc = ndp.MCMC(
        kernel, num_warmup=0, num_samples=1_000, num_chains=chains, secure=False, progress_bar=False
    )
    mcmc.run(jax.random.key(1), X, init_params={"mu": jnp.asarray(start, jnp.float32)})
    draws = np.asarray(mcmc.get_samples(group_by_chain=True)["mu"])[:, 200:]
    assert np.mean(np.diff(draws, axis=1) != 0) > 0.15
    assert abs(draws.mean() - mean) < 0.11 * sd
    assert abs(draws.var() / sd**2 - 1) < 0.16


def test_a_logistic_posterior_agrees_with_nuts(records):
    # 64 chains of 3,000 steps, autocorrelation time about 100: 1,500 effective draws; NUTS 4,000.
    # Five standard errors of a mean: .15 sd, of a standard deviation: .11; false alarm 4e-6.
    x, y = records["x"], records["y"]
    kernel = ndp.DPFastMH(logistic, step_size=0.12, lipschitz=2.0, max_move=0.5)
    mcmc = ndp.MCMC(
        kernel, num_warmup=600, num_samples=3_000, num_chains=64, secure=False, progress_bar=False
    )
    mcmc.run(jax.random.key(0), x, y)
    exact = MCMC(NUTS(logistic), num_warmup=500, num_samples=4_000, progress_bar=False)
    exact.run(jax.random.key(1), x, y)
    ours, truth = (np.asarray(m.get_samples()["w"]) for m in (mcmc, exact))
    sd = truth.std(0)
    assert np.abs(ours.mean(0) - truth.mean(0)).max() < 0.15 * sd.min()
    assert np.abs(ours.std(0) / sd - 1).max() < 0.11


def accept_counts(decide, bits, runs):
    """How many of ``runs`` runs accepted 0, 1, … of their bits."""

    @jax.jit
    def tally(keys):
        accepted = jax.vmap(lambda key: jnp.sum(jax.vmap(decide)(jax.random.split(key, bits))))
        return jnp.bincount(accepted(keys), length=bits + 1)

    return np.asarray(tally(jax.random.split(jax.random.key(2), runs)))


def attack(decisions, bits, runs=200_000):
    """The best lower bound on ε at δ = 1e-3 over thresholds on the number of accepted bits.

    2·bits thresholds at joint confidence 1 − 1e-5 each: wrong with chance below 2e-4.
    """
    one, other = (accept_counts(decide, bits, runs) for decide in decisions)
    bounds = [
        epsilon_from_counts(
            np.cumsum(a)[:-1], np.cumsum(b)[:-1], runs, runs, delta=1e-3, confidence=1 - 1e-5
        )
        for a, b in ((one, other), (other, one))
    ]
    return float(np.max(bounds))


def decisions(test, at):
    """The same decision on two data sets that one record of the largest term tells apart."""

    def decide(shift):
        units = jnp.int32(round(at / test.grid.unit) + (test.largest if shift else 0))
        total = test.grid.split(units)
        return lambda key: test.decide(key, total, jnp.float32(0))

    return decide(False), decide(True)


@pytest.mark.parametrize(
    ("test", "at"),
    [
        (Barker.create(1.0), -0.5),
        (NoisyBarker.create(1.0, 1.0), -0.5),
        (Penalty.create(1.0, 1.0), 0.0),
    ],
    ids=["barker", "noisy_barker", "penalty"],
)
def test_no_attack_beats_the_charge(test, at):
    bits = 8
    stated = privacy_curve(SelfComposedDpEvent(test.event(1.0), bits)).epsilon(1e-3)
    found = attack(decisions(test, at), bits)
    assert found <= stated
    # An attack that finds nothing would show nothing.
    assert found > 0.3 * stated


def test_the_free_branch_of_the_paper_is_caught():
    """Accepting by min(1, e^l), at no charge or at a Barker bit's, fails the same attack.

    The paper lets a step without noise pass as private: *privacy for free*. With log ratios 0 and
    −Δ the first data set accepts all bits, the second hardly ever does.
    """
    bits, bound = 8, 1.0
    broken = Metropolis(*fine_grid(bound, 1 << 17))
    stated = privacy_curve(SelfComposedDpEvent(BarkerBit(bound), bits)).epsilon(1e-3)
    found = attack(decisions(broken, -bound), bits)
    assert found > stated


def test_no_attack_beats_the_charge_of_a_mini_batch():
    """One record of the largest term against a null one, the rest null: a mini-batch bit."""
    records, bound, mean = 200, 0.4, 190.0
    test = Barker.create(weight_bound(0.5), 1 << 23)
    batch = PoissonBatch.create(records, mean, 1e-12, test.grid, test.largest)
    limit = batch.limit(bound / 1.005)
    step = ndp.events.MinibatchBit(records, bound, 1.0, mean, "barker", 0.0)
    stated = privacy_curve(SelfComposedDpEvent(step, 4)).epsilon(1e-3)

    def decide(term):
        terms = jnp.zeros(records).at[3].set(term)

        def one(key):
            draw, accept = jax.random.split(key)
            total = batch.total(draw, lambda r: r[0][0], [terms], limit)
            return test.decide(accept, total, jnp.float32(0))

        return one

    found = attack((decide(0.0), decide(bound)), 4, runs=60_000)
    assert 0.2 * stated < found <= stated


def mean_model(x):
    mu = numpyro.sample("mu", dist.Normal(0, 1e3))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("x", dist.Normal(mu, 1), obs=x)


def certain(x):
    """A logistic model in which every record says yes."""
    w = numpyro.sample("w", dist.Normal(0, 1e3).expand([1]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=jnp.ones(x.shape[0]))


# Moves so wide that all are shortened to the longest: the record's term is ±1 nat in every step.
WHOLE = {"step_size": 1e3, "lipschitz": 10.0, "max_move": 0.1}
BATCH = {**WHOLE, "lipschitz": 4.0, "batch_size": 4}


def audited(model, arguments, loud, start):
    """One record that always pulls upwards against a null one; what shows is the way travelled.

    Confidence 99.9 % each: eleven honest kernels would fail with a probability of 1 % once, when
    the seed was chosen.
    """
    (site,) = start
    others = tuple(jnp.full_like(part, jnp.nan) for part in loud)
    return ndp.audit(
        ndp.DPFastMH(model, **arguments),
        jax.random.key(5),
        loud,
        others,
        num_samples=8,
        num_chains=60_000,
        init_params=start,
        score=lambda draws: draws[site][-1].sum(),
        delta=1e-3,
        confidence=0.999,
    )


@pytest.mark.parametrize(
    ("arguments", "share"),
    [
        (WHOLE, 0.4),
        ({**WHOLE, "acceptance": "noisy_barker", "noise_scale": 1.0}, 0.4),
        ({**WHOLE, "acceptance": "penalty", "noise_scale": 1.0}, 0.25),
        ({**WHOLE, "num_candidates": 2}, 0.3),
        (BATCH, 0.25),
        ({**BATCH, "acceptance": "noisy_barker", "noise_scale": 2.0}, 0.15),
        ({**BATCH, "acceptance": "penalty", "noise_scale": 2.0}, 0.2),
        (
            {
                "step_size": 1e3,
                "max_move": 0.1,
                "record_bound": lambda here, there: 10.001 * jnp.abs(here["mu"] - there["mu"]),
                "rho": 1.3,
            },
            0.3,
        ),
    ],
    ids=[
        "barker",
        "noisy_barker",
        "penalty",
        "candidates",
        "batch",
        "noisy_barker batch",
        "penalty batch",
        "filter",
    ],
)
def test_the_audit_of_a_whole_kernel_stays_below_its_charge(arguments, share):
    """The bounds reach 0.44, 0.48, 0.31, 0.35, 0.29, 0.18, 0.23 and 0.32 of the reported ε.

    A noisy mini-batch is charged for its noisy log ratio, of which a bit tells less.
    """
    loud = jnp.array([np.nan, 1e6, np.nan, np.nan])
    result = audited(mean_model, arguments, (loud,), {"mu": jnp.zeros(())})
    assert not result.refutes
    # Released are accepted moves alone: less than the proposals and bits that are charged.
    assert result.epsilon_lower > share * result.epsilon_reported


def test_the_audit_of_a_direction_averaged_charge_stays_below_it():
    """Far below zero a logistic loss is as steep as its predictor: a term is all that is charged.

    The record is longer than the rows may be, and projected; no move is shortened. The bound
    reaches 0.37 of the reported ε.
    """
    loud = jnp.array([[np.nan], [1e6], [np.nan], [np.nan]])
    result = audited(
        certain, {"step_size": 1.0, "lipschitz": 1.0}, (loud,), {"w": jnp.full(1, -50.0)}
    )
    assert not result.refutes
    assert result.epsilon_lower > 0.3 * result.epsilon_reported


def test_the_audit_of_a_smooth_record_stays_below_its_charge():
    """The record is steeper than allowed: its clipped gradient and the curvature are all it says.

    No move is shortened. The bound reaches 0.37 of the reported ε.
    """
    loud = jnp.array([np.nan, 1e6, np.nan, np.nan])
    arguments = {"step_size": 0.1, "lipschitz": 8.0, "smoothness": 20.0}
    result = audited(mean_model, arguments, (loud,), {"mu": jnp.zeros(())})
    assert not result.refutes
    assert result.epsilon_lower > 0.3 * result.epsilon_reported
