"""The relaxation law: what privacy noise allows, what a chain holds, and what reports say."""

import pickle
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import numpyro_dp as ndp
from numpyro_dp.mcmc.sgmcmc.integrator import Note
from numpyro_dp.mcmc.sgmcmc.momentum import relaxation_share
from numpyro_dp.mcmc.sgmcmc.relaxation import (
    drawn_notes,
    relaxation_limit,
    relaxation_notes,
    relaxation_times,
)
from numpyro_dp.mcmc.sgmcmc.sgfs import FisherScoring
from numpyro_dp.mcmc.sgmcmc.sghmc import FrictionDynamics
from numpyro_dp.mcmc.sgmcmc.sgld import LangevinDynamics
from numpyro_dp.mcmc.sgmcmc.sgnht import Thermostat
from numpyro_dp.model.private_model import PrivateModel


def skewed(x):
    """A real and a positive latent, by which a variance must be carried back through exp."""
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    scale = numpyro.sample("scale", dist.LogNormal(0, 1))
    mixture = numpyro.sample("mixture", dist.Dirichlet(jnp.ones(3)))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("x", dist.Normal(mu + mixture[0], scale), obs=x)


@pytest.fixture(scope="module")
def wall():
    return PrivateModel(skewed, (jnp.zeros(10),))


def bound(wall, **changes):
    arguments = {"step_size": 1e-2, "noise_multiplier": 2.0, "clip_norm": 3.0, **changes}
    kernel = ndp.DPSGLD(skewed, **arguments)
    return kernel.bind(wall, num_steps=100, relation="zero_out", delta=1e-5)


@pytest.mark.parametrize("power", [1.0, 0.25])
def test_the_law_in_its_own_terms(wall, power):
    # Full batches, the privacy noise exactly the Langevin noise: T steps are GDP μ = √T/nm.
    noise, clip, steps, variance = 2.0, 3.0, 50, 1e-2
    mu = np.sqrt(steps) / noise
    sd = power * noise * clip
    kernel = bound(wall, step_size=4 / sd**2, likelihood_power=power)
    law = 2 * mu**2 / (clip**2 * variance) / power
    # The posterior tempered by τ is 1/τ times as wide.
    tempered = jnp.full(4, variance / power)
    np.testing.assert_allclose(relaxation_limit(steps, sd, variance / power), law, rtol=1e-6)
    held = relaxation_times(kernel, jnp.full(4, 10.0), start=0, stop=steps)
    np.testing.assert_allclose(held, 4 * mu**2 / (power * clip) ** 2 / 20.0, rtol=1e-5)
    np.testing.assert_allclose(
        held, relaxation_limit(steps, kernel.gradient_sd, jnp.full(4, 10.0)), rtol=1e-5
    )
    # A step can forget no more than all.
    assert np.all(relaxation_times(kernel, tempered, start=0, stop=steps) <= steps)


def test_schedules_and_preconditioners_count(wall):
    halving = bound(wall, step_size=lambda i: jnp.where(i < 50, 2e-3, 1e-3))
    times = relaxation_times(halving, jnp.ones(4), start=0, stop=100)
    np.testing.assert_allclose(times, 100 * 1.5e-3 / 2, rtol=1e-4)
    fast = bound(wall, preconditioner={"scale": 4.0}, step_size=1e-3)
    times = np.asarray(relaxation_times(fast, jnp.ones(4), start=0, stop=100))
    np.testing.assert_allclose(times.max() / times.min(), 4.0, rtol=1e-4)


def exact_rate(stride, friction, variance):
    """Slowest decay a step of the linear recursion behind a momentum."""
    k = stride**2 / variance
    matrix = np.array([[1 - stride**2 / variance, 1 - friction], [-k, 1 - friction]])
    return -np.log(np.abs(np.linalg.eigvals(matrix)).max())


@pytest.mark.parametrize("friction", [0.01, 0.2, 0.9])
@pytest.mark.parametrize("variance", [1.0, 1e-2, 1e-3])
def test_momentum_shares_are_within_a_factor_two_of_exact(friction, variance):
    share = float(relaxation_share(1e-2, friction, variance))
    assert 0.45 < share / exact_rate(1e-2, friction, variance) < 2.2


def test_privacy_noise_alone_spans_the_law_whatever_the_kernel():
    # Where the privacy noise is exactly what each kernel asks for, all hold the same time.
    sd, variance = 20.0, 1.0
    law = float(relaxation_limit(1, sd, variance))
    friction = 5.0
    hamiltonian = FrictionDynamics((2 * friction / sd**2) ** 2, 1.0, friction)
    thermostat = Thermostat((2 * friction / sd**2) ** 2, 1.0, friction)
    fisher = FisherScoring(1e6, 1.0, 1.0, 1.0)
    for integrator in (hamiltonian, thermostat, fisher):
        np.testing.assert_allclose(integrator.relaxation(0, sd, variance), law, rtol=0.01)


def state_at(kernel, i):
    z = {"mu": jnp.array(0.1), "scale": jnp.array(0.5), "mixture": jnp.zeros(2)}
    return kernel.start(None, z)._replace(i=jnp.asarray(i))


def collected(kernel, sds, length=400):
    rng = np.random.default_rng(0)
    z = {
        "mu": sds[0] * rng.normal(size=(2, length)),
        "scale": 0.5 + sds[1] * rng.normal(size=(2, length)),
        "mixture": 1e3 * rng.normal(size=(2, length, 2)),
    }
    draws = jax.vmap(jax.vmap(kernel.private_model.constrain))(z)
    return {"z": {**draws, "deterministic": np.zeros((2, length))}}


def notes(kernel, sds, i=400, **changes):
    found = relaxation_notes(
        kernel, collected(kernel, sds, **changes), state_at(kernel, i), thinning=1
    )
    return tuple(note.text for note in found)


def test_reports_name_the_slowest_site_and_the_remedy(wall):
    kernel = bound(wall)  # diffuses for 400·1e-2 = 4: 10 relaxation times at sd .45
    assert notes(kernel, (0.1, 0.1)) == ()
    (slow,) = notes(kernel, (0.1, 0.8))
    assert "'scale'" in slow
    assert "not draws from a posterior" in slow
    assert "A larger step_size (as far as ndp.plan calls it stable), more steps" in slow
    (hopeless,) = notes(bound(wall, noise_multiplier=20.0), (1.0, 0.1))
    assert "'mu'" in hopeless
    assert "by 1/τ" in hopeless
    limit = 2 * 400 / (20.0 * 3.0) ** 2
    assert f"no step size spans more than {limit:.2g}" in hopeless
    assert notes(kernel, (1.0, 1.0), length=9) == ()


class ScaledState(NamedTuple):
    i: jax.Array
    z: dict
    scale: jax.Array
    rng_key: jax.Array


class Adaptive(LangevinDynamics):
    """Langevin dynamics on a scale that its state carries, here that of the noise at the start."""

    def start(self, rng_key, z, position, gradient_sd=0.0):
        scale = 1 / (gradient_sd * jnp.ones_like(position))
        return ScaledState(jnp.zeros((), jnp.int32), z, scale, rng_key)

    def notes(self, gradient_sd, state=None):
        known = (Note("It adapts.", ""),)
        return known if state is None else (*known, Note(f"{np.min(state.scale):.3g}", "cold"))

    def relaxation(self, step, gradient_sd, variance, state=None):
        return super().relaxation(step, gradient_sd, variance) * state.scale


@pytest.mark.slow
def test_an_adaptive_integrator_sees_its_noise_and_its_state(wall):
    kernel = bound(wall, clip_norm={"mu": 3.0, "scale": 6.0, "mixture": 3.0}, step_size=1e-3)
    kernel = replace(kernel, integrator=Adaptive(1e-3, 1.0))
    first = state_at(kernel, 400)
    np.testing.assert_allclose(first.scale, 1 / np.asarray(kernel.gradient_noise(0)), rtol=1e-6)
    # Two chains, of which the second has adapted to half the pace.
    last = jax.tree.map(lambda x: jnp.stack([x, x]), first._replace(rng_key=None))
    last = last._replace(scale=last.scale * jnp.array([[1.0], [0.5]]))
    times = relaxation_times(kernel, jnp.ones(4), start=0, stop=400, state=last)
    np.testing.assert_allclose(times, 400 * 1e-3 / 2 * last.scale, rtol=1e-5)
    assert kernel.facts().notes == ("It adapts.",)

    def said(last):
        return drawn_notes(kernel, collected(kernel, (1.0, 1.0)), last, thinning=1)

    adds, slow = said(last)
    assert adds == Note(f"{np.min(last.scale):.3g}", "cold")
    # The slower chain is what a report tells of, in the site with the louder noise.
    _, faster = said(jax.tree.map(lambda x: x[:1], last))
    spans = [float(note.sign.split()[1]) for note in (slow, faster)]
    np.testing.assert_allclose(spans[0], spans[1] / 2, rtol=0.1)
    assert "'scale'" in slow.text


@pytest.mark.slow
def test_a_driver_reports_on_its_own_draws_and_keeps_it_in_pickles(wall):
    kernel = ndp.DPSGLD(skewed, step_size=1e-4, noise_multiplier=50.0, clip_norm=3.0)
    mcmc = ndp.MCMC(kernel, num_warmup=0, num_samples=40, num_chains=2, progress_bar=False)
    mcmc.run(jax.random.key(0), np.zeros(10, np.float32))
    found = [n for n in mcmc.privacy.notes if "relaxation times" in n]
    assert len(found) == 1
    assert found[0] in pickle.loads(pickle.dumps(mcmc)).privacy.notes
