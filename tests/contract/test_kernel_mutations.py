"""Broken kernels of every kind, which the contract must catch."""

from collections import namedtuple
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import numpyro_dp as ndp
from numpyro_dp.mcmc import kernel as kernels
from numpyro_dp.model.private_model import PrivateModel
from tests.arviz_groups import group_names
from tests.contract.kernels import NAMES, charged_steps, make, neighbours, repeats, warmup
from tests.contract.surfaces import leaks, surfaces
from tests.models import logistic

pytestmark = pytest.mark.parametrize("name", NAMES)
# Of its own, so that no executable of an honest kernel is found again.
POWER = {"likelihood_power": 0.1875}


def bound_type(name, data):
    kernel = make(name, logistic, **POWER)
    wall = PrivateModel(logistic, data)
    bound = kernel.bind(wall, num_steps=100, relation="zero_out", delta=1e-5)
    state = jax.eval_shape(lambda: bound.start(None, {"w": jnp.ones(3)}))
    return type(bound), type(state)


def check_charges(name, data):
    accountant = ndp.Accountant()
    kernel = make(name, logistic, accountant=accountant)
    mcmc = ndp.MCMC(kernel, num_warmup=0, num_samples=8, num_chains=2, progress_bar=False)
    mcmc.run(jax.random.key(0), *data)
    charged = sum(charged_steps(accountant))
    assert charged == int(np.sum(mcmc.last_state.i)) == 16, "steps of two chains"


def check_resumed_noise(name, data, **changes):
    options = {"num_warmup": 0, "num_samples": 31, "secure": False, "progress_bar": False}
    mcmc = ndp.MCMC(make(name, logistic, **changes), **options)
    moves = []
    for _ in range(3):
        mcmc.run(jax.random.PRNGKey(0), *data)
        moves.append(np.diff(mcmc.get_samples()["w"], axis=0))
        mcmc.post_warmup_state = mcmc.last_state
    # What comes before the first run's first step takes a part of its key.
    assert not repeats(*moves[1:]), "fresh noise"


def test_half_of_the_steps_uncharged_is_caught(name, records, monkeypatch):
    data = neighbours(records)[0]
    kind, _ = bound_type(name, data)
    check_charges(name, data)
    honest = kind.event

    def half(self, num_steps, *, start=0, num_chains=1):
        return honest(self, num_steps // 2, start=start, num_chains=num_chains)

    monkeypatch.setattr(kind, "event", half)
    with pytest.raises(AssertionError, match="steps of two chains"):
        check_charges(name, data)


def test_a_key_reused_on_resume_is_caught(name, records, monkeypatch):
    data = neighbours(records)[0]
    check_resumed_noise(name, data)
    forgetful = SimpleNamespace(split=jax.random.split, fold_in=lambda key, _: key)
    monkeypatch.setattr(kernels, "random", forgetful)
    with pytest.raises(AssertionError, match="fresh noise"):
        check_resumed_noise(name, data, **POWER)


def test_an_unnoised_state_field_is_caught(name, records, monkeypatch):
    # The leak sits where a careless kernel author would put it: a diagnostic beside the draw.
    pair = neighbours(records)
    kind, state_type = bound_type(name, pair[0])
    leaking = _with_field(state_type)
    advance, start = kind.advance_from, kind.start

    def leaking_start(self, rng_key, z):
        return leaking(*start(self, rng_key, z), jnp.zeros(()))

    def leaking_advance(self, key, state, record_cache, rows):
        honest, after = advance(self, key, state_type(*state[:-1]), record_cache, rows)
        return leaking(*honest, sum(jnp.sum(leaf) for leaf in rows).astype(float)), after

    monkeypatch.setattr(kind, "start", leaking_start)
    monkeypatch.setattr(kind, "advance_from", leaking_advance)
    with pytest.raises(ValueError, match="field 'diagnostic' that is no key"):
        surfaces(make(name, logistic, **POWER), pair[0])
    monkeypatch.setattr("numpyro_dp.mcmc.setup.check_fields", lambda *_: None)
    one, other = (surfaces(make(name, logistic, **POWER), data) for data in pair)
    assert any("diagnostic" in place for place in leaks(one, other))


def _with_field(state_type):
    leaking = namedtuple("Leaking", [*state_type._fields, "diagnostic"])
    globals()["Leaking"] = leaking  # where pickle looks for it
    return leaking


def test_plain_arviz_sees_nothing_private_either(name, records):
    import arviz as az

    steps = warmup(name, 2)
    mcmc = ndp.MCMC(make(name, logistic), num_warmup=steps, num_samples=5, progress_bar=False)
    mcmc.run(jax.random.key(0), *neighbours(records)[0], extra_fields=("i",))
    for idata in (az.from_numpyro(mcmc), ndp.from_numpyro(mcmc)):
        assert set(group_names(idata)) == {"posterior", "sample_stats"}
        assert idata.posterior["w"].shape == (1, 5, 3)
