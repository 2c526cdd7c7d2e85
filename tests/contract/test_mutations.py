"""Claims about a gradient kernel's release, and the broken releases that must fail them."""

import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import numpyro_dp as ndp
from numpyro_dp.mechanisms import PrivateSum, private_sum as mechanism
from numpyro_dp.mechanisms.subsample import PoissonSampler
from numpyro_dp.model.private_model import PrivateModel
from tests.contract.kernels import GRADIENT, make
from tests.models import indifferent, logistic

pytestmark = pytest.mark.parametrize("name", GRADIENT)


def bound(name, model, data, **changes):
    arguments = {"batch_size": None, "sampling_rate": 0.5, **changes}
    kernel = make(name, model, **arguments)
    return kernel.bind(PrivateModel(model, data), num_steps=100, relation="zero_out", delta=1e-5)


def release(kernel, seed, z, records):
    """One release of a bound kernel's private sum, in units of the clipped sum."""
    draw = jax.jit(lambda key, records: kernel.release(key, {"w": z}, records, 0))
    keys = jax.random.split(jax.random.key(seed), 400)
    scale = np.asarray(kernel.private_sum.scale or 1.0)
    return np.asarray(jax.lax.map(lambda k: draw(k, records), keys)) * 0.5 * scale


def check_noise(name, num_records=400):
    """On records without any gradient a release is noise alone, of the charged size.

    1,200 draws: their standard deviation is known to 2 %; bounds at 4.5 standard errors, false
    alarm 7e-6. Of few records a batch is often far from its expected size, which must not show.
    """
    x = jnp.ones((num_records, 3))
    kernel = bound(name, indifferent, (x,), clip_norm=3.0)
    sums = release(kernel, 0, jnp.ones(3), [x])
    charged = kernel.event(1).events[0].event.event.noise_multiplier
    # By coordinate, so that no part of a joint release is quieter than another: 400 draws each,
    # known to 3.5 %, bounds at 5 standard errors.
    assert abs(sums.std() / (charged * 3.0) - 1) < 0.09, "size of the noise"
    assert np.abs(sums.std(axis=0) / (charged * 3.0) - 1).max() < 0.18, "size of the noise"
    assert abs(sums.mean()) < 5 * charged * 3.0 / np.sqrt(sums.size)


def check_sensitivity(name):
    """With the noise fixed, one record, however wild, moves a release by at most the clip norm."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 3)).astype(np.float32)
    y = jnp.asarray(rng.integers(0, 2, 400)).at[5].set(0)
    kernel = bound(name, logistic, (x, y), clip_norm=0.5)
    null = x.copy()
    null[5] = 0.0
    z = jnp.array([0.3, 0.2, 0.1])
    calm = release(kernel, 1, z, [jnp.asarray(null), y])
    for row in ([1e4, 2e4, 3e4], [0.1, 0.0, 0.2], [1.0, 1.0, 5.0]):
        wild = x.copy()
        wild[5] = row
        moved = np.linalg.norm(release(kernel, 1, z, [jnp.asarray(wild), y]) - calm, axis=1)
        assert moved.max() <= 0.5 * (1 + 1e-6), "sensitivity"
        # In half of the batches the record is absent and nothing moves at all.
        assert 0.3 < np.mean(moved == 0) < 0.7


def check_batches(name):
    """A record joins each step by a coin of its own, of the rate that is charged.

    With the noise fixed, a step moves with the record exactly when it is in the batch. 400 steps
    of one chain: frequency and changes are each known to 0.025 at a rate of a half; bounds at 4.5
    standard errors, false alarm 1.4e-5.
    """
    x = np.ones((40, 3), np.float32)
    y = np.zeros(40, np.int32)
    calm = x.copy()
    calm[5] = 0.0
    kernel = bound(name, logistic, (x, y))

    @jax.jit
    def memberships(state):
        def step(state, _):
            pair = [kernel.sample(state, [jnp.asarray(d), jnp.asarray(y)]) for d in (x, calm)]
            same = jax.tree.map(jnp.array_equal, *(s._replace(rng_key=0) for s in pair))
            return pair[1], ~jnp.all(jnp.array(jax.tree.leaves(same)))

        return jax.lax.scan(step, state, length=400)[1]

    present = np.asarray(memberships(kernel.init(jax.random.key(3), 0, {"w": jnp.zeros(3)})))
    charged = kernel.event(1).events[0].event.sampling_probability
    assert abs(present.mean() - charged) < 4.5 * 0.025, "rate of the batches"
    switched = np.mean(present[1:] != present[:-1])
    assert abs(switched - 2 * charged * (1 - charged)) < 4.5 * 0.025, "fresh batches"


def check_one_rounding(name):
    """The integers that are checked are the integers that are added: one rounding in a step."""
    x = jnp.ones((400, 3))
    y = jnp.zeros(400, int)
    kernel = bound(name, logistic, (x, y))
    state = kernel.init(jax.random.key(0), 0, {"w": jnp.zeros(3)})
    step = jax.jit(lambda state, records: kernel.sample(state, records))
    text = step.lower(state, [x, y]).compile().as_text()
    assert len(re.findall(r" (?:round-nearest-even|floor)\(", text)) == 1, "one rounding"


def check_new_budget(name, quiet, loud):
    """One object, one model, one shape: another noise multiplier moves the draws as it says."""
    mcmc = ndp.MCMC(
        make(name, indifferent, noise_multiplier=quiet),
        num_warmup=0,
        num_samples=200,
        progress_bar=False,
    )
    spreads = []
    for noise_multiplier in (quiet, loud):
        mcmc.sampler = make(name, indifferent, noise_multiplier=noise_multiplier)
        mcmc.run(jax.random.key(0), jnp.ones((400, 3)))
        spreads.append(np.diff(mcmc.get_samples()["w"], axis=0).std())
    # Fisher scoring takes shorter steps where there is more noise, all others longer ones.
    ratio = spreads[1] / spreads[0]
    assert max(ratio, 1 / ratio) > 20, "noise of the new budget"


@pytest.mark.slow
def test_the_release_keeps_its_claims(name):
    check_noise(name)
    check_noise(name, num_records=6)
    check_sensitivity(name)
    check_batches(name)
    check_one_rounding(name)
    check_new_budget(name, 1.0, 1000.0)


def test_halved_noise_is_caught(name, monkeypatch):
    honest = mechanism.floor_noise
    monkeypatch.setattr(mechanism, "floor_noise", lambda *a: honest(*a) // 2)
    with pytest.raises(AssertionError, match="size of the noise"):
        check_noise(name)


def test_a_part_without_noise_is_caught(name, monkeypatch):
    # As when the second statistic of a joint release is forgotten; everywhere, the last coordinate.
    honest = mechanism.floor_noise
    part = 3 if name == "DPSGFS" else 2
    monkeypatch.setattr(mechanism, "floor_noise", lambda *a: honest(*a).at[part:].set(0))
    with pytest.raises(AssertionError, match="size of the noise"):
        check_noise(name)


def test_a_removed_clip_is_caught(name, monkeypatch):
    def unclipped(lattice, vectors, rows, mask, *rest):
        integers = jnp.rint(vectors / lattice.scale)
        return jnp.where(mask[:, None], integers, 0).sum(0).astype(jnp.int32)

    monkeypatch.setattr(mechanism, "integer_sum", unclipped)
    with pytest.raises(AssertionError, match="sensitivity"):
        check_sensitivity(name)


def test_a_batch_reused_across_steps_is_caught(name, monkeypatch):
    honest = PoissonSampler.draw

    def stuck(self, first, second):
        return honest(self, jnp.full_like(first, 12_345), jnp.full_like(second, 678_910))

    monkeypatch.setattr(PoissonSampler, "draw", stuck)
    with pytest.raises(AssertionError, match="batches"):
        check_batches(name)


def test_half_the_sampling_rate_in_the_books_is_caught(name, monkeypatch):
    honest = PrivateSum.event

    def flattering(self, *steps, **more):
        return honest(replace(self, sampling_rate=self.sampling_rate / 2), *steps, **more)

    monkeypatch.setattr(PrivateSum, "event", flattering)
    with pytest.raises(AssertionError, match="rate of the batches"):
        check_batches(name)


def test_division_by_the_drawn_batch_size_is_caught(name, monkeypatch):
    honest = PrivateSum.release

    def averaged(self, key, *rest):
        drawn = jnp.sum(self.sampler.draw(*self._words(key)[0])[1])
        scale = self.sampling_rate * self.num_records / jnp.maximum(drawn, 1)
        return honest(self, key, *rest) * scale

    monkeypatch.setattr(PrivateSum, "release", averaged)
    with pytest.raises(AssertionError, match="size of the noise"):
        check_noise(name, num_records=6)


def test_norm_check_and_sum_rounding_apart_are_caught(name, monkeypatch):
    # As it would be written by anyone: the compiler evaluates the rounding once for either use.
    if jax.default_backend() != "cpu":
        pytest.skip("the compiler for the CPU rounds twice; that for GPUs may keep what it rounded")

    def naive(lattice, vectors, rows, mask, *rest):
        norms = jnp.sqrt(jnp.sum(vectors**2, axis=1, keepdims=True))
        integers = jnp.rint(vectors * jnp.minimum(1 / lattice.scale, lattice.cap / norms))
        good = mask & (jnp.sum(integers**2, axis=1) <= lattice.squared_bound)
        return jnp.where(good[:, None], integers, 0).astype(jnp.int32).sum(0)

    monkeypatch.setattr(mechanism, "integer_sum", naive)
    with pytest.raises(AssertionError, match="one rounding"):
        check_one_rounding(name)


def test_a_stale_kernel_after_a_new_budget_is_caught(name, monkeypatch):
    # What a function cache keyed by model and shapes alone would do.
    monkeypatch.setattr(PrivateSum, "__eq__", lambda self, other: isinstance(other, PrivateSum))
    monkeypatch.setattr(PrivateSum, "__hash__", lambda self: 0)
    with pytest.raises(AssertionError, match="noise of the new budget"):
        check_new_budget(name, 1.0625, 1062.5)
