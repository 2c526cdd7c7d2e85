"""Pairs made up for a user's own model, and audits of them without any knowledge of attacks."""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import numpyro_dp as ndp
from numpyro_dp.diagnostics.audit.accept_bits import bit_score
from numpyro_dp.diagnostics.audit.neighbours import take_apart
from numpyro_dp.mechanisms.accept.rules import Barker
from numpyro_dp.model.private_model import PrivateModel
from tests.models import logistic, normal_mean

BUDGET = ndp.Budget(2.0, 1e-5)
SHAPES = np.ones((30, 3), np.float32), np.zeros(30, np.int32)
WALK = {"step_size": 0.3, "lipschitz": 1.0, "max_move": 0.6}


def counts(x, exposure, y):
    w = numpyro.sample("w", dist.Normal(0, 0.3).expand([3]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Poisson(exposure * jnp.exp(x @ w)), obs=y)


def labels(y):
    p = numpyro.sample("p", dist.Beta(1, 1))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(p), obs=y)


def gradient(model, arguments, row, clip_norm):
    """The first record's clipped gradient where a chain starts."""
    split = PrivateModel(model, arguments)
    record = [leaf[row : row + 1] for leaf in split.records(arguments)]
    found = jax.grad(split.record_log_likelihood)(split.init(jax.random.key(0)), record)
    flat = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(found)])
    norm = np.linalg.norm(flat)
    return flat * min(1, clip_norm / norm)


@pytest.mark.parametrize(
    "relation",
    ["replace_one", *(pytest.param(r, marks=pytest.mark.slow) for r in ("zero_out", "add_remove"))],
)
@pytest.mark.parametrize(
    ("model", "shapes"),
    [
        (logistic, SHAPES),
        pytest.param(counts, (SHAPES[0], SHAPES[0][:, 0], SHAPES[1]), marks=pytest.mark.slow),
    ],
)
def test_one_record_is_at_the_clip_norm_and_all_others_are_null(model, shapes, relation):
    pair = ndp.loudest_pair(model, *shapes, clip_norm=2.0, relation=relation)
    own = gradient(model, pair.data, 0, 2.0)
    assert np.linalg.norm(own) == pytest.approx(2.0, rel=1e-4)
    assert np.all(np.isnan(pair.data[0][1:]))
    take_apart(*[PrivateModel(model, each).records(each) for each in pair], relation)
    if relation == "replace_one":
        other = gradient(model, pair.neighbour, 0, 2.0)
        # As far apart as two clipped vectors can be, nearly.
        assert np.linalg.norm(own - other) > 3.5
    else:
        assert len(pair.neighbour[0]) == 30 - (relation == "add_remove")
        assert np.all(np.isnan(pair.neighbour[0]))


def test_what_cannot_be_told_apart_is_refused():
    with pytest.raises(ndp.UnsupportedModelError, match="no null record"):
        ndp.loudest_pair(labels, SHAPES[1])
    with pytest.raises(ValueError, match="clip_norm must be"):
        ndp.loudest_pair(logistic, *SHAPES, clip_norm=0.0)


@pytest.mark.slow
def test_the_odds_of_a_bit_are_those_of_the_kernel():
    """A thousand steps from one state: the score's chance against how often they moved."""
    kernel = ndp.DPFastMH(logistic, **WALK, privacy=BUDGET, likelihood_power=None)
    pair = ndp.loudest_pair(logistic, *SHAPES)
    model = PrivateModel(logistic, pair.data)
    bound = kernel.bind(model, num_steps=20, relation="zero_out", delta=1e-5)
    apart = take_apart(*[PrivateModel(logistic, each).records(each) for each in pair], "zero_out")
    keys = jax.random.split(jax.random.key(0), 4_000)
    states = jax.vmap(bound.start, (0, None))(keys, {"w": jnp.zeros(3)})
    ratios = []
    for each in pair:
        after = jax.jit(bound.sample)(states, PrivateModel(logistic, each).records(each))
        ratios.append(
            np.asarray(jax.vmap(lambda b, a: bit_score(bound, apart, b, a))(states, after))
        )
    # A likelihood ratio has mean 1 under the second law, its inverse under the first: five
    # standard errors, false alarm 1e-6.
    for log_ratio in (-ratios[0], ratios[1]):
        weights = np.exp(log_ratio)
        assert np.std(log_ratio) > 0.01
        error = np.std(weights) / np.sqrt(len(weights))
        assert np.mean(weights) == pytest.approx(1, abs=5 * error)


@pytest.mark.slow
def test_a_record_that_is_never_as_loud_as_its_clip_is_said():
    with pytest.warns(UserWarning, match=r"reaches .* of clip_norm=1e\+30"):
        ndp.loudest_pair(logistic, *SHAPES, clip_norm=1e30)


def test_a_model_of_ones_own_is_audited_in_three_lines_and_drawn():
    kernel = ndp.DPSGLD(logistic, step_size=1e-3, clip_norm=1.0, privacy=BUDGET)
    pair = ndp.loudest_pair(logistic, *SHAPES, clip_norm=1.0)
    result = ndp.audit(
        kernel, jax.random.key(0), *pair, num_chains=4_000, delta=1e-5, progress_bar=False
    )
    # Short steps drown in a sampler's own noise, on which nothing rests: the sums do not.
    assert 0.2 * result.epsilon_reported < result.epsilon_lower < result.epsilon_reported
    axes = result.plot()
    (bar,) = axes.patches
    assert bar.get_width() == pytest.approx(result.epsilon_lower)
    assert axes.lines[0].get_xdata()[0] == pytest.approx(result.epsilon_reported)
    plt.close("all")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "share"),
    [
        ({**WALK, "likelihood_power": None}, 0.35),
        ({"step_size": 0.3, "lipschitz": 1.0, "smoothness": 0.1, "likelihood_power": None}, 0.25),
        ({**WALK, "acceptance": "penalty"}, 0.05),
        ({**WALK, "acceptance": "noisy_barker"}, 0.05),
    ],
    ids=str,
)
def test_accept_bits_show_part_of_what_is_charged(options, share):
    kernel = ndp.DPFastMH(logistic, privacy=BUDGET, **options)
    pair = ndp.loudest_pair(logistic, *SHAPES, max_move=options.get("max_move"))
    result = ndp.audit(kernel, jax.random.key(0), *pair, num_samples=20, progress_bar=False)
    assert share * result.epsilon_reported < result.epsilon_lower < result.epsilon_reported


@pytest.mark.slow
@pytest.mark.parametrize("loud", [False, True])
def test_bits_that_hear_each_record_four_times_are_refuted(monkeypatch, loud):
    """And honest ones are not: 95 % confidence, with seeds fixed."""

    def decide(self, key, log_ratio, public):
        added = self.grid.public(public), self.threshold(key)
        return self.grid.nonnegative(*[log_ratio] * 4, *added)

    if loud:
        monkeypatch.setattr(Barker, "decide", decide)
        # Else what was compiled before would run.
        jax.clear_caches()
    # A record that no step of the chain silences, as it would one of a logistic model.
    kernel = ndp.DPFastMH(normal_mean, **WALK, privacy=BUDGET, likelihood_power=None)
    pair = ndp.loudest_pair(normal_mean, SHAPES[0][:4, :1], max_move=WALK["max_move"])
    options = {"num_samples": 20, "num_chains": 40_000, "progress_bar": False}
    result = ndp.audit(kernel, jax.random.key(0), *pair, **options)
    if loud:
        jax.clear_caches()
    assert result.refutes == loud
