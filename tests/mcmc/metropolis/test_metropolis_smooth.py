"""Metropolis on any smooth model: a charge averaged over directions without a linear predictor."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import lax, random
from jax.flatten_util import ravel_pytree

import numpyro_dp as ndp
from numpyro_dp.accounting.events import SelfComposedDpEvent, SmoothBarkerBit
from numpyro_dp.model.private_model import PrivateModel
from tests.models import logistic

DIM, LIPSCHITZ, SMOOTHNESS, STEP = 3, 2.0, 4.0, 0.1


def saturating(x, y=None):
    """No generalised linear model: the logit is a curved function of the predictor."""
    w = numpyro.sample("w", dist.Normal(0, 2).expand([DIM]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=2 * jnp.tanh(x @ w)), obs=y)


def cone(x, y=None):
    """A record whose likelihood falls by 1,000 in whatever direction one goes."""
    w = numpyro.sample("w", dist.Normal(0, 2).expand([DIM]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.factor("y", -1000 * jnp.sqrt(jnp.sum((w - x) ** 2, -1)))


def looping(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 2).expand([DIM]).to_event(1))
    total = lax.while_loop(lambda t: t < 5, lambda t: t + 1.0, jnp.sum(w) / 100)
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Normal(total, 1), obs=x[:, 0])


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, DIM))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x.astype(np.float32), (rng.random(300) < 0.5).astype(np.int32)


def kernel(model=saturating, **changes):
    options = {"step_size": STEP, "lipschitz": LIPSCHITZ, "smoothness": SMOOTHNESS, **changes}
    return ndp.DPFastMH(model, **options)


def sample(data, **changes):
    changes = {"accountant": ndp.Accountant(), **changes}
    mcmc = ndp.MCMC(kernel(**changes), num_warmup=0, num_samples=20, progress_bar=False)
    mcmc.run(random.key(0), *data)
    return mcmc, changes["accountant"]


@pytest.mark.parametrize(
    "relation",
    [
        pytest.param("zero_out", marks=pytest.mark.slow),
        pytest.param("replace_one", marks=pytest.mark.slow),
        "add_remove",
    ],
)
def test_a_run_is_charged_by_direction_in_all_dimensions(relation, data):
    _, accountant = sample(data, accountant=ndp.Accountant(relation=relation), likelihood_power=0.5)
    (entry,) = accountant.entries
    steps = entry.event.events[0]
    assert isinstance(steps, SelfComposedDpEvent)
    assert steps.count == 20
    bit = steps.event
    assert isinstance(bit, SmoothBarkerBit)
    assert (bit.step_size, bit.dim) == (STEP, DIM)
    # The margin pays for tables and rounding.
    assert 0.5 * LIPSCHITZ < bit.lipschitz <= 0.5 * LIPSCHITZ * 1.01
    assert 0.5 * SMOOTHNESS < bit.smoothness <= 0.5 * SMOOTHNESS * 1.01


@pytest.mark.slow
def test_the_power_that_a_budget_chooses_fits_it(data):
    budget = ndp.Budget(0.5, 1e-5)
    mcmc, _ = sample(data, privacy=budget, likelihood_power=None)
    assert 0.49 < mcmc.privacy.epsilon <= 0.5
    assert "averaged over the direction" in mcmc.privacy.mechanism


@pytest.mark.parametrize(
    "model", [pytest.param(saturating, marks=pytest.mark.slow), cone, logistic]
)
def test_no_record_exceeds_its_gradient_and_curvature_in_any_move(model, data):
    wall = PrivateModel(model, data)
    bound = kernel(model, likelihood_power=0.5).bind(
        wall, num_steps=10, relation="zero_out", delta=1e-6
    )
    state = bound.start(random.key(0), wall.init(random.key(1)))
    position, unravel = ravel_pytree(state.z)
    # Wild records: rows of length up to a thousand, and what is not a number.
    rows = wall.records(data)
    scale = jnp.asarray([1.0, 1e3, jnp.nan, jnp.inf, 1e30])[:, None, None]

    def both(key, scale):
        move = STEP * random.normal(key, position.shape)
        change = bound.change(state, move)

        def one(x, y):
            record = [x[None] * scale, y[None]]
            gradient = jax.grad(lambda z: wall.record_log_likelihood(unravel(z), record))(position)
            largest = jnp.max(jnp.abs(gradient))
            direction = gradient / largest / jnp.linalg.norm(gradient / largest)
            length = largest * jnp.linalg.norm(gradient / largest)
            along = jnp.matmul(direction, move, precision=lax.Precision.HIGHEST)
            slope = jnp.abs(along) * jnp.minimum(length, LIPSCHITZ)
            slope = jnp.where(largest == 0, 0, slope)
            most = 0.5 * (slope + SMOOTHNESS / 2 * jnp.sum(move**2))
            return change.term(record), most

        return jax.vmap(one)(*rows)

    moves = jax.jit(jax.vmap(both, (0, None)))
    for factor in scale:
        terms, most = map(np.asarray, moves(random.split(random.key(2), 50), factor[0]))
        # What is not a number becomes zero later, as it does in every sum.
        known = np.isfinite(terms)
        assert np.all(np.isfinite(most[known]))
        assert np.all(np.abs(terms[known]) <= most[known] * (1 + 1e-5) + 1e-6)
        if model is cone and factor[0, 0] == 1:
            assert np.mean(np.abs(terms) > 0.99 * most) > 0.9


@pytest.mark.slow
def test_a_true_bound_cuts_nothing(data):
    mcmc, _ = sample(data)
    found = ndp.clipping_rate(random.key(1), mcmc, *data, noise_multiplier=0.05)
    assert found.rate < 5 * found.noise_sd
    lying, _ = sample(data, smoothness=0.0, lipschitz=0.01)
    found = ndp.clipping_rate(random.key(1), lying, *data, noise_multiplier=0.05)
    assert found.rate > 0.9


@pytest.mark.parametrize(
    ("changes", "patterns"),
    [
        ({"max_move": 0.1}, ("smoothness=", "drop max_move=")),
        ({"lipschitz": np.inf}, ("smoothness=", "finite lipschitz=")),
        ({"smoothness": -1.0}, ("smoothness must not be negative",)),
        ({"batch_size": 100.0}, ("max_move= is missing", "all records")),
        ({"acceptance": "penalty", "noise_scale": 1.0}, ("max_move= is missing", "barker")),
        ({"step_size": 3.0}, ("more than 4 nats", "smaller step_size")),
        ({"model": logistic, "smoothness": None, "step_size": 3.0}, ("more than 4 nats",)),
        ({"model": looping}, ("smoothness= needs the gradient", "record_bound=")),
        ({"smoothness": None}, ("generalised linear models", "smoothness=")),
    ],
)
def test_what_the_charge_does_not_cover_is_refused(changes, patterns, data):
    accountant = ndp.Accountant()
    with pytest.raises(ValueError, match=r"(?s)" + ".*".join(patterns)):
        sample(data, accountant=accountant, **changes)
    assert not accountant.entries


def test_more_dimensions_than_rounding_is_accounted_for_are_refused():
    def wide(x):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([1001]).to_event(1))
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("y", dist.Normal(jnp.sum(w), 1), obs=x)

    x = np.zeros(20, np.float32)
    mcmc = ndp.MCMC(kernel(wide), num_warmup=0, num_samples=1, progress_bar=False)
    with pytest.raises(ValueError, match="at most 1000 coordinates"):
        mcmc.run(random.key(0), x)
