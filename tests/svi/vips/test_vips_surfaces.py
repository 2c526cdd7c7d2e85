"""Whatever the guide: neighbouring data differ in what is released, and nowhere else."""

import contextlib
import io
import pickle
import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import SVI, Predictive, Trace_ELBO

import numpyro_dp as ndp
from tests.arviz_groups import group_names
from tests.contract.surfaces import dataset_bytes, flatten
from tests.models import OutOfSight

KEY, N = jax.random.key(3), 40
RNG = np.random.default_rng(0)
# Out of sight: an array that the code names is refused before any trace.
HELD = OutOfSight(others=jnp.asarray(RNG.normal(size=(N, 2)), jnp.float32))


def coins(y):
    p = numpyro.sample("p", dist.Beta(1, 1))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(p), obs=y)


def topics(counts):
    table = numpyro.sample("topics", dist.Dirichlet(jnp.full((2, 5), 0.3)).to_event(1))
    with numpyro.plate("documents", len(counts)):
        theta = numpyro.sample("theta", dist.Dirichlet(jnp.full(2, 0.2)))
        numpyro.sample("words", dist.Multinomial(counts.sum(-1), theta @ table), obs=counts)


def logistic(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def network(scale=lambda: 1.0, logit=lambda: 0.0):
    def model(x):
        w = numpyro.sample("w", dist.Normal(0, scale()).expand([4, 2]).to_event(2))
        b = numpyro.sample("b", dist.Normal(0, 3).expand([4]).to_event(1))
        with numpyro.plate("images", x.shape[0]):
            z = numpyro.sample("z", dist.Bernoulli(logits=jnp.zeros(2) + logit()).to_event(1))
            numpyro.sample("x", dist.Bernoulli(logits=z @ w.T + b).to_event(1), obs=x)

    return model


def plain_network(x):
    return network()(x)


# A guide, arguments of its model (the last one real), and options with which a fresh guide is made.
CASES = {
    "conjugate": (
        ndp.guides.ConjugateGuide(coins, noise_aware=True),
        (RNG.integers(0, 2, N).astype(np.float32),),
        {"noise_aware": True},
    ),
    "topics": (
        ndp.guides.LDAGuide(topics, document_length=6, inner_steps=2),
        (RNG.poisson(2.0, (N, 5)).astype(np.float32),),
        {"document_length": 6, "inner_steps": 2},
    ),
    "logistic": (
        ndp.guides.PolyaGammaGuide(logistic, row_norm=2.0, design="diagonal"),
        (np.asarray(HELD.others), RNG.integers(0, 2, N).astype(np.float32)),
        {"row_norm": 2.0, "design": "full"},
    ),
    "network": (
        ndp.guides.SigmoidBeliefNetworkGuide(plain_network, record_norm=2.0, inner_steps=2),
        (RNG.integers(0, 2, (N, 4)).astype(np.float32),),
        {"record_norm": 2.0, "inner_steps": 2},
    ),
}
CHEAP = ("conjugate",)
# The network's guide draws no hidden units, which plain SVI would miss.
TRAINED = [name for name in CASES if name != "network"]


def case(name, *values):
    return pytest.param(name, *values, marks=() if name in CHEAP else pytest.mark.slow)


def surfaces(guide, arrays, steps=4):
    """All that a caller sees of a run, noise fixed by its seed, as a dict from place to bytes."""
    out, err = io.StringIO(), io.StringIO()
    made = ndp.VIPS(guide.model, guide, noise_multiplier=4.0, secure=False)
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(out):
        warnings.simplefilter("always")
        with contextlib.redirect_stderr(err):
            result = made.run(KEY, steps, *arrays)
        print(made.forecast(steps, *arrays))
        idata = ndp.from_numpyro(result)
    report = {
        k: v
        for k, v in result.privacy.to_dict().items()
        if k not in ("created_at", "ledger", "versions")
    }
    bar = sorted(set(re.findall(r"ε=\S+ of \S+ charged", err.getvalue())))
    found = {
        ".printed": out.getvalue().encode(),
        ".warnings": repr([str(each.message) for each in caught]).encode(),
        ".bar": repr(bar).encode(),
    }
    found |= {f".privacy.{name}": repr(value).encode() for name, value in report.items()}
    found |= flatten(".vips", made) | flatten(".guide", vars(guide))
    found |= flatten(".result", result) | flatten(".target", result.target)
    found |= flatten(".pickled", pickle.loads(pickle.dumps((made, result))))
    for group in group_names(idata):
        found |= dataset_bytes(f".idata.{group}", idata[group])
    return found


RELEASED = (
    ".result.params",
    ".result.state",
    ".pickled[1].params",
    ".pickled[1].state",
    ".idata.posterior",
)


@pytest.mark.parametrize("name", [case(name) for name in CASES])
def test_neighbouring_data_differ_in_what_is_released_alone(name):
    guide, arrays, _ = CASES[name]
    other = [array.copy() for array in arrays]
    other[-1][7] = np.nan
    # The first run compiles, and tells the guide its sites.
    surfaces(guide, arrays)
    one, two = surfaces(guide, arrays), surfaces(guide, other)
    differing = [p for p in sorted(set(one) | set(two)) if one.get(p) != two.get(p)]
    assert any(place.startswith(".result.state") for place in differing), "the record is ignored"
    assert [place for place in differing if not place.startswith(RELEASED)] == []


@pytest.mark.parametrize("name", [case(name) for name in CASES])
def test_pickles_hold_no_record(name):
    guide, arrays, _ = CASES[name]
    made = ndp.VIPS(guide.model, guide, noise_multiplier=4.0)
    held = pickle.dumps((made, guide, made.run(KEY, 4, *arrays, progress_bar=False)))
    for array in arrays:
        assert np.ascontiguousarray(array[3:9]).tobytes() not in held


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_double_precision_releases_the_same_integers(name):
    guide, arrays, options = CASES[name]
    guide = type(guide)(guide.model, **options)
    with jax.enable_x64(True):
        result = ndp.VIPS(guide.model, guide, privacy=ndp.Budget(1.0, 1e-5)).run(
            KEY, None, *(array.astype(np.float64) for array in arrays), progress_bar=False
        )
    assert result.privacy.epsilon <= 1.0
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(result.params))


@pytest.mark.parametrize("name", [case(name) for name in CASES])
def test_a_guide_that_no_run_has_seen_serves_predictive(name):
    guide, arrays, options = CASES[name]
    fresh = type(guide)(guide.model, **options)
    drawn = Predictive(guide.model, guide=fresh, params={}, num_samples=2)(KEY, *arrays)
    assert drawn
    assert all(np.all(np.isfinite(value)) for value in drawn.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
def test_plain_svi_trains_a_guide_that_no_run_has_seen(name):
    guide, arrays, options = CASES[name]
    fresh = type(guide)(guide.model, **options)
    svi = SVI(guide.model, fresh, numpyro.optim.Adam(0.05), Trace_ELBO())
    start = svi.get_params(svi.init(KEY, *arrays))
    params = svi.run(KEY, 3, *arrays, progress_bar=False).params
    for site, value in params.items():
        assert np.all(np.isfinite(value)), site
        assert np.any(value != start[site]), site


@pytest.mark.parametrize(
    "model",
    [
        network(scale=lambda: 1 + jnp.sum(HELD.others) ** 2),
        network(logit=lambda: jnp.sum(HELD.others)),
    ],
    ids=["prior", "hidden logits"],
)
def test_a_network_that_closes_over_records_is_refused(model):
    guide = ndp.guides.SigmoidBeliefNetworkGuide(model, record_norm=2.0)
    accountant = ndp.Accountant()
    vips = ndp.VIPS(model, guide, noise_multiplier=4.0, accountant=accountant)
    with pytest.raises(ndp.UnsupportedModelError, match="closes over an array"):
        vips.run(KEY, None, *CASES["network"][1], progress_bar=False)
    assert accountant.entries == ()
