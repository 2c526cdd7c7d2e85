"""Holes that a hostile review of the kernel family found; each test is one of its attacks."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import numpyro_dp as ndp
from numpyro_dp.mcmc.metropolis.privacy_filter import COST_RANGE, allowance, spend
from numpyro_dp.mcmc.metropolis.step import BoundMetropolis, RecordsChange
from numpyro_dp.model.private_model import PrivateModel
from tests.models import logistic

X = np.linspace(-1, 1, 24).reshape(12, 2).astype(np.float32)
Y = np.arange(12) % 2


@jax.custom_batching.custom_vmap
def everyone(v):
    return v


@everyone.def_vmap
def _(size, batched, v):
    return jnp.broadcast_to(v.sum(0), v.shape), True


def printed(v):
    jax.debug.print("{}", v)
    return v


def called(v):
    shape = jax.ShapeDtypeStruct(v.shape, v.dtype)
    return jax.pure_callback(lambda v: v, shape, v, vmap_method="expand_dims")


def closed_over(v):
    return v * jnp.sum(jnp.asarray(X) * jnp.ones_like(v))


@pytest.mark.parametrize("peek", [everyone, printed, called, closed_over, lambda v: v])
@pytest.mark.parametrize("rule", ["vjp", "jvp"])
def test_a_custom_derivative_that_sees_more_than_its_record_is_refused(peek, rule):
    """The likelihood is plain; only its derivative, which clipping rests on, looks around."""

    def product(x, w):
        return x @ w

    if rule == "vjp":
        linear = jax.custom_vjp(product)
        linear.defvjp(
            lambda x, w: (x @ w, (x, w)),
            lambda kept, g: (jnp.outer(g, kept[1]), g @ peek(kept[0])),
        )
    else:
        linear = jax.custom_jvp(product)
        linear.defjvp(lambda at, d: (at[0] @ at[1], peek(at[0]) @ d[1] + d[0] @ at[1]))

    def model(x, y):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=linear(x, w)), obs=y)

    if peek in (everyone, printed, called, closed_over):
        with pytest.raises(ndp.UnsupportedModelError, match=r"many records|single records|closes"):
            PrivateModel(model, (X, Y))
    else:
        assert PrivateModel(model, (X, Y)).num_records == 12


def test_a_model_without_a_derivative_is_still_split():
    def model(y):
        rate = numpyro.sample("rate", dist.Normal(0, 1))
        grown = jax.lax.while_loop(lambda v: v < 10, lambda v: 2 * v, 1 + rate**2)
        with numpyro.plate("people", y.shape[0]):
            numpyro.sample("y", dist.Normal(grown, 1), obs=y)

    assert PrivateModel(model, (X[:, 0],)).latents == ("rate",)


def filtered(rho, record_bound, **arguments):
    return ndp.DPFastMH(logistic, step_size=0.1, record_bound=record_bound, rho=rho, **arguments)


def left_of(state):
    return (int(state.allowance[0]) << 24) + int(state.allowance[1])


def test_what_a_run_leaves_is_not_spent_by_every_run_that_goes_on_from_it():
    """Runs after one warm-up are charged for their own steps: they may spend no more than that."""
    kernel = filtered(0.1, lambda here, there: 0.002)
    mcmc = ndp.MCMC(kernel, num_warmup=200, num_samples=4, progress_bar=False)
    mcmc.warmup(jax.random.key(0), X, Y)
    for _ in range(2):
        mcmc.run(jax.random.key(1), X, Y)
        filter_ = kernel.bind(
            PrivateModel(logistic, (X, Y)),
            num_steps=204,
            relation="zero_out",
            delta=kernel.delta,
        ).plan.charge
        assert 0 < left_of(mcmc.last_state) <= 4 * filter_.per_step
        charged = mcmc._account.charges[-1].event.events[0].rho
        assert left_of(mcmc.last_state) * filter_.rho_unit <= charged


def test_a_cost_past_all_allowances_is_refused_and_does_not_wrap_around():
    """At a tiny total, a wide mini-batch move would cost a 33-bit number of units squared."""
    bound = filtered(1e-8, lambda here, there: 0.4, batch_size=12).bind(
        PrivateModel(logistic, (X, Y)), num_steps=10, relation="zero_out", delta=1e-5
    )
    charge = bound.plan.charge
    here = {"w": jnp.zeros(2)}
    limit, tried, left = charge.admit(charge.start(), [here, here], jnp.asarray(True))
    assert float(charge.cost(jnp.float32(0.4 / charge.unit))) > 46_341 << 12
    assert not bool(tried)
    assert int(limit) == 0
    assert int(left[0]) < COST_RANGE**2 >> 24
    assert not bool(spend(allowance(4 * COST_RANGE**2 - 1), 0, jnp.int32(2 * COST_RANGE))[0])


def test_far_from_the_origin_a_direction_averaged_record_sees_the_move_as_drawn(monkeypatch):
    """Positions near 1e5 are 0.008 apart: their differences are longer than moves of 0.0045.

    On average by 11 %, where the charge leaves room for 0.5 %.
    """
    bound = ndp.DPFastMH(logistic, step_size=0.0045, lipschitz=1.0).bind(
        PrivateModel(logistic, (X, Y)), num_steps=10, relation="zero_out", delta=1e-5
    )
    seen = []

    def overheard(self, position, move):
        seen.append((position, move))
        return RecordsChange(lambda record: jnp.zeros(()), lambda record, here: (here, here))

    monkeypatch.setattr(BoundMetropolis, "_predictor_change", overheard)
    state = bound.start(jax.random.key(0), {"w": jnp.full(2, 1e5, jnp.float32)})
    records = [jnp.asarray(X), jnp.asarray(Y)]
    bound._decide(jax.random.key(1), state, bound.record_cache(state, records), records)
    position, move = seen[-1]
    drawn = bound.walk.draw(jax.random.split(jax.random.key(1), 3)[0], state.i, position, 1)[0]
    np.testing.assert_array_equal(move, drawn)
    assert np.any(np.asarray((position + drawn) - position) != np.asarray(drawn))


@pytest.mark.parametrize(
    ("arguments", "nats"),
    [
        ({}, 0.4),
        ({"acceptance": "penalty", "noise_scale": 1.0}, 0.4),
        ({"acceptance": "noisy_barker", "noise_scale": 1.0}, 0.4),
        ({"num_candidates": 3}, 0.8),
        ({"likelihood_power": 0.1, "batch_size": 2}, 0.04),
    ],
    ids=["barker", "penalty", "noisy", "candidates", "batch"],
)
def test_a_record_is_cut_to_the_bound_that_is_charged(arguments, nats):
    """The integer that a step allows a record, in nats, is the bound in the step's event."""
    fixed = {"step_size": 0.1, "lipschitz": 2.0, "max_move": 0.2, **arguments}
    plan = (
        ndp.DPFastMH(logistic, **fixed)
        .bind(PrivateModel(logistic, (X, Y)), num_steps=10, relation="zero_out", delta=1e-5)
        .plan
    )
    limit, _, _ = plan.charge.admit(plan.charge.start(), [], jnp.asarray(True))
    unit = getattr(plan.log_ratio, "unit", plan.test.grid.unit)
    assert 0.9 * nats < limit * unit <= nats
