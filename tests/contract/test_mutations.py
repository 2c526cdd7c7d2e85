"""Claims about a kernel's release, and the broken releases that must fail them."""

from collections import namedtuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import numpyro_dp as ndp
from numpyro_dp.mcmc.gradient import BoundGradientKernel
from numpyro_dp.mechanisms import private_sum as mechanism
from numpyro_dp.model import PrivateModel
from tests.contract.kernels import KERNELS, make
from tests.contract.surfaces import leaks, surfaces
from tests.models import indifferent, logistic

pytestmark = pytest.mark.parametrize("name", sorted(KERNELS))


def bound(name, model, data, **changes):
    arguments = {"batch_size": None, "sampling_rate": 0.5, **changes}
    kernel = make(name, model, **arguments)
    return kernel.bind(PrivateModel(model, data), num_steps=100, relation="zero_out", delta=1e-5)


def release(kernel, seed, z, records):
    """One release of a bound kernel's private sum, in units of the clipped sum."""

    def gradient(record):
        return jax.grad(lambda w: kernel.wall.record_log_likelihood({"w": w}, record))(z)

    draw = jax.jit(lambda key, records: kernel.private_sum.release(key, gradient, records))
    keys = jax.random.split(jax.random.key(seed), 400)
    return np.asarray(jax.lax.map(lambda k: draw(k, records), keys)) * 0.5


def check_noise(name):
    """On records without any gradient a release is noise alone, of the charged size.

    1,200 draws: their standard deviation is known to 2 %; bounds at 4.5 standard errors, false
    alarm 7e-6.
    """
    x = jnp.ones((400, 3))
    kernel = bound(name, indifferent, (x,), clip_norm=3.0)
    sums = release(kernel, 0, jnp.ones(3), [x])
    charged = kernel.event(1).events[0].event.event.noise_multiplier
    assert abs(sums.std() / (charged * 3.0) - 1) < 0.09
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
        assert moved.max() <= 0.5 * (1 + 1e-6)
        # In half of the batches the record is absent and nothing moves at all.
        assert 0.3 < np.mean(moved == 0) < 0.7


def check_surfaces(make_kernel, records):
    """Nothing but released draws differs between neighbours when the noise is fixed."""
    other = {k: v.copy() for k, v in records.items()}
    other["x"][7] = [1.0, 0.9, -0.9]
    pair = [surfaces(make_kernel(), (d["x"], d["y"])) for d in (records, other)]
    assert leaks(*pair) == []


def test_the_release_keeps_its_claims(name):
    check_noise(name)
    check_sensitivity(name)


def test_halved_noise_is_caught(name, monkeypatch):
    honest = mechanism.floor_noise
    monkeypatch.setattr(mechanism, "floor_noise", lambda *a: honest(*a) // 2)
    with pytest.raises(AssertionError):
        check_noise(name)


def test_a_removed_clip_is_caught(name, monkeypatch):
    def unclipped(lattice, vectors, rows, mask, *rest):
        integers = jnp.rint(vectors / lattice.scale)
        return jnp.where(mask[:, None], integers, 0).sum(0).astype(jnp.int32)

    monkeypatch.setattr(mechanism, "integer_sum", unclipped)
    with pytest.raises(AssertionError):
        check_sensitivity(name)


def test_an_unnoised_state_field_is_caught(name, records, monkeypatch):
    # The leak sits where a careless kernel author would put it: a diagnostic beside the draw.
    constructor, _ = KERNELS[name]
    honest_start = constructor.integrator(make(name, logistic)).start
    state_type = type(jax.eval_shape(lambda: honest_start(None, {"w": jnp.ones(3)}, jnp.ones(3))))
    leaking = _with_field(state_type)
    advance, start = BoundGradientKernel.advance, BoundGradientKernel.start

    def leaking_start(self, rng_key, z):
        return leaking(*start(self, rng_key, z), jnp.zeros(()))

    def leaking_advance(self, key, state, rows):
        honest = advance(self, key, state_type(*state[:-1]), rows)
        return leaking(*honest, sum(jnp.sum(leaf) for leaf in rows).astype(float))

    monkeypatch.setattr(BoundGradientKernel, "start", leaking_start)
    monkeypatch.setattr(BoundGradientKernel, "advance", leaking_advance)
    # A noise multiplier of its own, so that no executable of the honest kernel is found again.
    with pytest.raises(AssertionError, match="diagnostic"):
        check_surfaces(lambda: make(name, logistic, noise_multiplier=2.125), records)


def _with_field(state_type):
    leaking = namedtuple("Leaking", [*state_type._fields, "diagnostic"])
    globals()["Leaking"] = leaking  # where pickle looks for it
    return leaking


def test_plain_arviz_sees_nothing_private_either(name, records):
    import arviz as az

    mcmc = ndp.MCMC(make(name, logistic), num_warmup=2, num_samples=5, progress_bar=False)
    mcmc.run(jax.random.key(0), records["x"], records["y"], extra_fields=("i",))
    for idata in (az.from_numpyro(mcmc), ndp.from_numpyro(mcmc)):
        assert set(idata.groups()) == {"posterior", "sample_stats"}
        assert idata.posterior["w"].shape == (1, 5, 3)
