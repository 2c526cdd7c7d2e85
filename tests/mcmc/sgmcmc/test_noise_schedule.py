"""Noise that changes from step to step: what is drawn is what is charged."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import numpyro_dp as ndp
from tests.models import indifferent, logistic

HALF = {"sampling_rate": 0.5, "clip_norm": 2.0}


def loud_then_quiet(step):
    return 8.0 if step < 4 else 2.0


def charged(accountant):
    """Noise multipliers in a ledger, with their counts."""
    counts = Counter()
    for entry in accountant.entries:
        for release in entry.event.events[:-1]:
            counts[release.event.event.noise_multiplier] += release.count
    return dict(counts)


def test_every_step_is_charged_at_its_own_noise():
    accountant = ndp.Accountant()
    kernel = ndp.DPSGLD(
        indifferent, step_size=1.0, noise_multiplier=loud_then_quiet, accountant=accountant, **HALF
    )
    mcmc = ndp.MCMC(kernel, num_warmup=3, num_samples=4, num_chains=2, progress_bar=False)
    x = np.ones((50, 3), np.float32)
    mcmc.warmup(jax.random.key(0), x)
    assert charged(accountant) == {8.0: 8, 2.0: 6}
    mcmc.run(jax.random.key(0), x)
    assert charged(accountant) == {8.0: 8, 2.0: 6}
    mcmc.post_warmup_state = mcmc.last_state
    mcmc.run(jax.random.key(0), x)
    assert charged(accountant) == {8.0: 8, 2.0: 14}
    assert "2 to 8, by a schedule" in " ".join(mcmc.privacy.full().split())


@pytest.mark.slow
def test_the_noise_of_every_step_has_the_charged_size():
    # 256 chains of 3 coordinates: a standard deviation is known to 2.6 %; bounds at 4.5 standard
    # errors over 8 steps, false alarm 5e-5.
    kernel = ndp.DPSGLD(
        indifferent, step_size=2.0, temperature=1e-9, noise_multiplier=loud_then_quiet, **HALF
    )
    mcmc = ndp.MCMC(
        kernel, num_warmup=0, num_samples=8, num_chains=256, secure=False, progress_bar=False
    )
    start = {"w": jnp.zeros((256, 3))}
    mcmc.run(jax.random.key(0), np.ones((50, 3), np.float32), init_params=start)
    draws = np.asarray(mcmc.get_samples(group_by_chain=True)["w"])
    moves = np.diff(np.concatenate([np.zeros((256, 1, 3)), draws], axis=1), axis=1)
    expected = np.array([loud_then_quiet(t) for t in range(8)]) * 2.0 / 0.5
    np.testing.assert_allclose(moves.std(axis=(0, 2)), expected, rtol=0.12)


def test_the_clip_holds_at_every_level_of_a_schedule(records):
    # With noise fixed by the seed, one wild record moves a step's release by at most clip_norm.
    x, y = records["x"].copy(), records["y"].copy()
    calm = x.copy()
    calm[5], x[5], y[5] = 0.0, [1e4, 2e4, 3e4], 0
    start = {"w": jnp.full((3,), 0.3)}
    moved = []
    kernel = ndp.DPSGLD(
        logistic, step_size=2.0, noise_multiplier=lambda t: 4.0 - 3.0 * (t % 2), clip_norm=2.0
    )
    for data in (calm, x):
        steps = []
        for first in (0, 1):
            mcmc = ndp.MCMC(kernel, num_warmup=0, num_samples=2, secure=False, progress_bar=False)
            state = kernel_state(mcmc, start, first, data, y)
            steps.append(state)
        moved.append(np.array(steps))
    distance = np.linalg.norm(moved[0] - moved[1], axis=1)
    assert distance.max() <= 2.0 * (1 + 1e-6)
    assert distance.min() > 1.9


def kernel_state(mcmc, start, first, x, y):
    """Position after one step from ``start`` that is the chain's step number ``first``."""
    mcmc.run(jax.random.key(7), x, y, init_params=start)
    mcmc.post_warmup_state = mcmc.last_state._replace(i=jnp.asarray(first, jnp.int32), z=start)
    mcmc.num_samples = 1
    mcmc.run(jax.random.key(11), x, y)
    return np.asarray(mcmc.last_state.z["w"])


@pytest.mark.slow
def test_many_levels_cost_what_their_steps_cost():
    def decreasing(step):
        return 6.0 * (1 + step / 100) ** -0.3

    kernel = ndp.DPSGLD(logistic, step_size=1e-3, noise_multiplier=decreasing, **HALF)
    x = np.zeros((40, 2), np.float32)
    mcmc = ndp.MCMC(kernel, num_warmup=0, num_samples=20, progress_bar=False)
    mcmc.run(jax.random.key(0), x, np.zeros(40, np.int32))
    steps = [
        ndp.events.PoissonSampledDpEvent(0.5, ndp.events.GaussianDpEvent(decreasing(t)))
        for t in range(20)
    ]
    accountant = ndp.Accountant()
    accountant.charge(ndp.events.ComposedDpEvent(steps), label="by hand")
    assert mcmc.privacy.epsilon == pytest.approx(accountant.epsilon(1e-6), rel=1e-4)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (lambda t: 1.0 - t, "noise_multiplier must be positive"),
        (lambda t: float("nan"), "noise_multiplier must be a finite"),
        (lambda t: 1e4 if t else 1e-2, "too wide for one lattice"),
    ],
)
def test_bad_schedules_are_refused(schedule, message):
    accountant = ndp.Accountant()
    kernel = ndp.DPSGLD(
        logistic, step_size=1e-3, noise_multiplier=schedule, accountant=accountant, **HALF
    )
    mcmc = ndp.MCMC(kernel, num_warmup=0, num_samples=5, progress_bar=False)
    with pytest.raises(ValueError, match=message):
        mcmc.run(jax.random.key(0), np.zeros((40, 2), np.float32), np.zeros(40, np.int32))
    assert accountant.entries == ()


def test_chains_with_different_counters_are_refused():
    kernel = ndp.DPSGLD(logistic, step_size=1e-3, noise_multiplier=loud_then_quiet, **HALF)
    mcmc = ndp.MCMC(kernel, num_warmup=0, num_samples=5, num_chains=2, progress_bar=False)
    data = np.zeros((40, 2), np.float32), np.zeros(40, np.int32)
    mcmc.run(jax.random.key(0), *data)
    mcmc.post_warmup_state = mcmc.last_state._replace(i=jnp.array([5, 0]))
    with pytest.raises(ValueError, match="different step counters"):
        mcmc.run(jax.random.key(0), *data)


def test_the_bar_shows_no_less_than_was_spent_when_chains_take_turns():
    # The quiet (dear) steps come last: after one of two chains more than half is spent.
    kernel = ndp.DPSGLD(logistic, step_size=1e-3, noise_multiplier=loud_then_quiet, **HALF)
    data = np.zeros((40, 2), np.float32), np.zeros(40, np.int32)
    options = {"num_warmup": 0, "num_samples": 8, "num_chains": 2, "chain_method": "sequential"}
    mcmc = ndp.MCMC(kernel, **options)
    mcmc.run(jax.random.key(0), *data)
    table = dict(mcmc._epsilon_table)
    alone = ndp.Accountant()
    alone.charge(mcmc._bound.event(8, num_chains=1), label="one chain")
    assert table[8] >= alone.epsilon(1e-6) * (1 - 1e-9)
    assert table[16] == pytest.approx(mcmc.privacy.epsilon, rel=1e-6)
