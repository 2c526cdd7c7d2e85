"""Outcomes drawn from the model, where they cannot be listed, for the model-centred clip."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from jax import random
from numpyro.infer.autoguide import AutoDelta

import numpyro_dp as ndp
from numpyro_dp.svi.dpsvi.fit import Carry
from tests.svi.dpsvi.test_elbo import KEY


def poisson(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[-1]]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(x @ w)), obs=y)


def waiting(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[-1]]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Exponential(jnp.exp(x @ w)), obs=y)


def svi(model=waiting, guide=None, **changes):
    settings = {"clip_norm": 1.0, "noise_multiplier": 1.0, "clip": "centred", **changes}
    return ndp.DPSVI(
        model, AutoDelta(model) if guide is None else guide, optax.sgd(1e-3), **settings
    )


def vectors(made, args):
    """Every record's shifted gradient, as the private sum would see it, given the step's keys."""
    _, fit, _, state = made._prepared(4, args, {})
    params = made.optim.get_params(state.optim_state)
    flat, unravel = jax.flatten_util.ravel_pytree(params)

    @jax.jit
    def shifted(rows, keys):
        return jax.vmap(fit.record_vector(flat, unravel, keys))(rows)

    def of(args, keys):
        records = fit.numbered(fit.target.records(args, {}))
        return np.asarray(shifted([leaf[:, None] for leaf in records], keys))

    return of


@pytest.fixture(scope="module")
def times():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2000, 3)).astype(np.float32) / 2
    x[:, 0] = 1
    return x, rng.exponential(size=2000).astype(np.float32)


@pytest.mark.parametrize("model", [waiting, pytest.param(poisson, marks=pytest.mark.slow)])
def test_a_records_shift_is_its_own_bit_for_bit(times, model):
    x, y = (part[:40].copy() for part in times)
    y = np.round(y) if model is poisson else y
    of, keys = vectors(svi(model), (x, y)), random.split(random.key(3), 1)
    before = of((x, y), keys)
    x[17], y[17] = [3.0, -2.0, 1.0], 9
    after = of((x, y), keys)
    changed = (before != after).any(axis=1)
    assert np.flatnonzero(changed).tolist() == [17]
    assert len(np.unique(before[:, 1])) == 40
    # A vector as long as the clip norm may be the same for other draws; few are.
    other = of((x, y), random.split(random.key(4), 1))
    assert (other != after).any(axis=1).sum() > 30


@pytest.mark.slow
def test_clipped_gradients_have_mean_zero_under_the_model(times):
    """Mean of 2,000 clipped gradients, in standard errors: five of them, 2e-6 for three numbers."""
    x, _ = times
    made = svi(clip_norm=0.2)
    params = made.get_params(made.init(random.key(0), *times))
    rate = np.exp(x @ np.asarray(params["w_auto_loc"]))
    args = x, np.random.default_rng(1).exponential(1 / rate).astype(np.float32)

    def off(clip):
        # `_prepared` starts from key 0, as `init` above.
        of = vectors(svi(clip_norm=0.2, clip=clip), args)
        raw = of(args, random.split(random.key(3), 1))
        clipped = raw * np.minimum(1, 0.2 / np.linalg.norm(raw, axis=1))[:, None]
        return np.abs(clipped.mean(axis=0)) / (clipped.std(axis=0) / np.sqrt(len(raw)))

    assert off("centred").max() < 5
    assert off("plain").max() > 5


@pytest.mark.slow
def test_a_run_charges_what_a_plain_clip_charges(times):
    reports = [
        svi(clip=clip).run(KEY, 2, *times, progress_bar=False).privacy
        for clip in ("centred", "plain")
    ]
    assert reports[0].epsilon == reports[1].epsilon
    assert "model-centred" in reports[0].mechanism


@pytest.mark.slow
@pytest.mark.parametrize("particles", [1, 3])
def test_several_outcomes_and_summed_latents_are_drawn_together(particles):
    def two(x, y):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        with numpyro.plate("people", x.shape[0]):
            kind = numpyro.sample("kind", dist.Bernoulli(0.3))
            numpyro.sample("x", dist.Normal(mu + 2 * kind, 1), obs=x)
            numpyro.sample("y", dist.MultivariateNormal(jnp.stack([mu, -mu]), jnp.eye(2)), obs=y)

    args = np.zeros(30, np.float32), np.zeros((30, 2), np.float32)
    loss = numpyro.infer.Trace_ELBO(num_particles=particles)
    made = ndp.DPSVI(
        two, AutoDelta(two), optax.sgd(1e-3), loss, clip_norm=5.0, noise_multiplier=1.0,
        clip="centred",
    )  # fmt: skip
    found = vectors(made, args)(args, random.split(random.key(3), particles))
    assert found.shape == (30, 1)
    assert len(np.unique(found)) == 30


@jax.custom_jvp
def talkative(loc):
    return loc


@talkative.defjvp
def _(primals, tangents):
    jax.debug.print("{}", primals[0])
    return primals[0], tangents[0]


class Talkative(dist.Normal):
    """Its sampler has a derivative that shows single records."""

    def sample(self, key, sample_shape=()):
        return talkative(self.loc) + random.normal(key, (*sample_shape, *self.batch_shape))


def test_derivatives_of_a_sampler_never_run():
    def model(x):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("x", Talkative(mu, 1), obs=x)

    made = ndp.DPSVI(
        model, AutoDelta(model), optax.sgd(1e-3), clip_norm=0.1, noise_multiplier=1.0,
        clip="centred",
    )  # fmt: skip
    records = (np.zeros(30, np.float32),)
    _, fit, _, state = made._prepared(1, records, {})
    start = Carry(jnp.int32(0), state.optim_state, random.key(1), random.key(2), None)
    assert not jax.make_jaxpr(fit.step)(start, list(records)).effects


def unnormalised(x):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.factor("fit", -((x - mu) ** 2))


def improper(x):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("x", dist.ImproperUniform(dist.constraints.real, (), ()), obs=x + mu)


@pytest.mark.parametrize(
    ("model", "words"), [(unnormalised, "`fit`.*clip='plain'"), (improper, "`x`.*clip='plain'")]
)
def test_what_no_model_draws_is_refused(model, words):
    with pytest.raises(ndp.UnsupportedModelError, match=words):
        svi(model).run(KEY, 2, np.zeros(6, np.float32), progress_bar=False)


def test_row_numbers_of_a_private_number_of_records_are_refused(times):
    made = svi(
        accountant=ndp.Accountant(relation="add_remove"), sampling_rate=0.5, max_records=3000
    )
    with pytest.raises(ndp.UnsupportedModelError, match="add_remove"):
        made.run(KEY, 2, *times, progress_bar=False)
