"""Everything that takes ``data_plate=`` costs and computes with ``"auto"`` what a plate gives.

Each way is run twice, on a model without a plate and on the same with it; only the unit differs.
"""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import numpyro_dp as ndp

RNG = np.random.default_rng(2)
X = RNG.uniform(-1, 1, (600, 2)).astype(np.float32)
Y = (RNG.uniform(size=600) < 1 / (1 + np.exp(-2 * X[:, 0]))).astype(np.float32)
KEY = jax.random.key(3)
BUDGET = {"privacy": ndp.Budget(2.0, 1e-5)}
PAID = {**BUDGET, "secure": False}
DRAWS = {"w": np.zeros((20, 2), np.float32) + np.array([2.0, 0.0], np.float32)}


def weights():
    return numpyro.sample("w", dist.Normal(0, 2).expand([2]).to_event(1))


def bare(x, y):
    numpyro.sample("y", dist.Bernoulli(logits=x @ weights()), obs=y)


def written(x, y):
    w = weights()
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def drawn(kernel):
    mcmc = ndp.MCMC(kernel, num_warmup=2, num_samples=3, progress_bar=False, secure=False)
    mcmc.run(KEY, X, Y)
    return mcmc.get_samples()["w"], mcmc.privacy


def sgld(model, **how):
    steps = {"step_size": 1e-3, "batch_size": 30, "clip_norm": 1.0}
    return drawn(ndp.DPSGLD(model, **steps, **BUDGET, **how))


def fast_mh(model, **how):
    steps = {"step_size": 0.1, "lipschitz": 1.5, "max_move": 0.2}
    return drawn(ndp.DPFastMH(model, **steps, **how))


def nuts(model, **how):
    return drawn(ndp.DPNUTS(model, **BUDGET, **how))


def likelihood(model, **how):
    found = ndp.LikelihoodRelease(model, **PAID, **how).run(KEY, X, Y)
    return found.log_likelihood({"w": np.ones(2, np.float32)}), found.privacy


def svi(model, **how):
    guide = numpyro.infer.autoguide.AutoNormal(model)
    loss, optim = numpyro.infer.Trace_ELBO(), numpyro.optim.Adam(0.01)
    steps = {"batch_size": 30, "clip_norm": 1.0}
    fit = ndp.DPSVI(model, guide, optim, loss, **steps, **PAID, **how)
    found = fit.run(KEY, 5, X, Y, progress_bar=False)
    return found.params["w_auto_loc"], found.privacy


def polya_gamma(model, **how):
    guide = ndp.guides.PolyaGammaGuide(model, row_norm=1.5, **how)
    found = ndp.VIPS(model, guide, **PAID).run(KEY, None, X, Y, progress_bar=False)
    return jax.tree.leaves(found.params)[0], found.privacy


def minimiser(model, **how):
    found = ndp.ObjectivePerturbation(model, row_norm=1.5, **PAID, **how).run(KEY, X, Y)
    return jax.tree.leaves(found.params)[0], found.privacy


def accuracy(model, **how):
    found = ndp.private_accuracy(KEY, model, DRAWS, X, Y, **PAID, **how)
    return found.estimate, found.privacy


WAYS = (sgld, fast_mh, nuts, likelihood, svi, polya_gamma, minimiser, accuracy)


# A run of NUTS is a release of the likelihood, which is run by itself; the others take a model in
# the same way as the minimiser does.
SLOW = (nuts, svi, polya_gamma)
MARKED = [pytest.param(w, id=w.__name__, marks=[pytest.mark.slow] * (w in SLOW)) for w in WAYS]


@pytest.mark.parametrize("way", MARKED)
def test_the_same_bits_at_the_same_cost(way):
    values, privacy = way(bare, data_plate="auto")
    as_written, told = way(written)
    np.testing.assert_array_equal(values, as_written)
    assert privacy.epsilon == told.epsilon > 0
    assert privacy.events == told.events
    assert told.unit == "one slice of plate 'records'"
    assert privacy.unit.startswith('one row of the record arguments, which data_plate="auto" took')
    assert privacy.unit in " ".join(str(privacy).split())


@pytest.mark.slow
def test_what_is_asked_of_made_up_data_takes_it_too():
    how = {"step_size": 1e-3, "batch_size": 30, "clip_norm": 1.0, **BUDGET}
    auto, plain = ndp.DPSGLD(bare, data_plate="auto", **how), ndp.DPSGLD(written, **how)
    planned = [ndp.plan(kernel, X, Y, num_steps=20) for kernel in (auto, plain)]
    assert str(planned[0]) == str(planned[1])
    pairs = [ndp.loudest_pair(bare, X, Y, data_plate="auto"), ndp.loudest_pair(written, X, Y)]
    for one, other in zip(*(jax.tree.leaves(pair.data) for pair in pairs), strict=True):
        np.testing.assert_array_equal(one, other)
