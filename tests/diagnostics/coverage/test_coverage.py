"""Simulated, fitted and counted: methods of which it is known whether they are calibrated."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.infer.autoguide import AutoNormal
from numpyro.infer.reparam import LocScaleReparam
from scipy.stats import kstest

import numpyro_dp as ndp
from numpyro_dp.diagnostics.coverage.methods import Settings, _of_chain, fit_of

BUDGET = ndp.Budget(1.0, 1e-5)
OUTCOME = jax.ShapeDtypeStruct((1_000,), jnp.int32)


def average(y, *, spread):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    numpyro.deterministic("twice", 2 * mean)
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, spread), obs=y)


def conjugate(narrow):
    """The exact posterior of ``average``, or one of other widths."""

    def method(model):
        def draws(rng_key, y, *, spread):
            precision = 1 + y.shape[0] / spread**2
            rng = np.random.default_rng(np.asarray(jax.random.key_data(rng_key)))
            noise = narrow * rng.normal(size=500) / precision**0.5
            mean = np.sum(y) / spread**2 / precision + noise
            return {"mean": mean, "twice": 2 * mean}

        return draws

    return method


def test_an_exact_posterior_covers_and_one_of_half_its_width_does_not():
    """Fixed seed; fresh ones fail about one time in 1,000, by the bars of four errors."""
    found = ndp.coverage(
        conjugate(1.0),
        average,
        jax.ShapeDtypeStruct((20,), jnp.float32),
        spread=2.0,
        num_datasets=200,
        reference=conjugate(0.5),
        progress_bar=False,
    )
    pooled = found.pooled
    assert set(found.sites) == {"mean", "twice"}
    assert pooled.coverage == pytest.approx(0.95, abs=4 * pooled.standard_error)
    assert pooled.reference == pytest.approx(0.673, abs=4 * pooled.reference_error)
    assert pooled.width == pytest.approx(2, rel=0.05)
    ranks = found.fitted.rank[:, 0], found.reference.rank[:, 0]
    assert kstest(ranks[0], "uniform").pvalue > 1e-3
    assert kstest(ranks[1], "uniform").pvalue < 1e-3


def regression(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def inputs(n=1_000):
    x = np.random.default_rng(0).normal(size=(n, 3))
    return x.astype(np.float32)


def dpsvi(model):
    guide, optimiser = AutoNormal(model), optax.sgd(2e-3, momentum=0.9)
    return ndp.DPSVI(model, guide, optimiser, clip_norm=1.0, privacy=BUDGET)


def vips(model):
    guide = ndp.guides.PolyaGammaGuide(model, row_norm=6.0)
    return ndp.VIPS(model, guide, privacy=BUDGET)


METHODS = {
    "DPNUTS": functools.partial(ndp.DPNUTS, privacy=BUDGET),
    "LikelihoodRelease": functools.partial(ndp.LikelihoodRelease, privacy=BUDGET),
    "DPSGLD": functools.partial(ndp.DPSGLD, step_size=2e-3, clip_norm=1.0, privacy=BUDGET),
    "DPSVI": dpsvi,
    "VIPS": vips,
    "NUTS": numpyro.infer.NUTS,
}


# That which the README names is tried in each run of the tests.
@pytest.mark.parametrize(
    "name", ["DPNUTS", *(pytest.param(n, marks=pytest.mark.slow) for n in METHODS if n != "DPNUTS")]
)
def test_every_kind_of_method_runs_and_repeats(name):
    run = functools.partial(
        ndp.coverage,
        METHODS[name],
        regression,
        inputs(),
        OUTCOME,
        num_datasets=3,
        num_warmup=50,
        num_samples=100,
        num_steps=None if name == "VIPS" else 20,
        progress_bar=False,
    )
    first, again = run(), run()
    assert first.method == name
    assert np.isfinite(first.fitted.mean).all()
    np.testing.assert_array_equal(first.truths, again.truths)
    np.testing.assert_array_equal(first.fitted.mean, again.fitted.mean)


def test_dpnuts_is_judged_by_the_chains_that_its_users_have():
    """Start and metric are of what was released: of a slope on dollars others stand still."""
    rng, kernel = np.random.default_rng(1), METHODS["DPNUTS"](regression)
    data = inputs(), rng.integers(0, 2, 1_000).astype(np.int32)
    found = fit_of(kernel, Settings(50, 100, None))(jax.random.key(0), data, {})
    settings = {"num_warmup": 50, "num_samples": 100, "progress_bar": False, "secure": False}
    mcmc = ndp.MCMC(kernel, **settings)
    mcmc.run(jax.random.key(0), *data)
    np.testing.assert_array_equal(found.draws["w"], mcmc.get_samples()["w"])
    assert set(mcmc.released.diagnostics.verdicts) <= set(found.verdicts)


@pytest.mark.slow
@pytest.mark.parametrize("method", [ndp.DPNUTS, ndp.LikelihoodRelease])
def test_no_ledger_is_charged(method):
    accountant = ndp.Accountant(ndp.Budget(1.5, 1e-5), relation="replace_one")
    ndp.coverage(
        functools.partial(method, privacy=BUDGET, accountant=accountant),
        regression,
        inputs(4_000),
        jax.ShapeDtypeStruct((4_000,), jnp.int32),
        num_datasets=3,
        num_warmup=50,
        num_samples=100,
        progress_bar=False,
    )
    assert accountant.entries == ()


def groups(x, g, y):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    with numpyro.plate("groups", 4):
        a = numpyro.sample("a", dist.Normal(mu, 0.5))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Normal(a[g] + x[:, 0], 1), obs=y)


@pytest.mark.slow
def test_a_reparametrised_model_is_simulated_as_it_is_written():
    wrapped = numpyro.handlers.reparam(groups, config={"a": LocScaleReparam(0)})
    found = ndp.coverage(
        METHODS["DPNUTS"],
        wrapped,
        inputs(2_000),
        np.arange(2_000, dtype=np.int32) % 4,
        jax.ShapeDtypeStruct((2_000,), jnp.float32),
        num_datasets=3,
        reference=numpyro.infer.NUTS,
        progress_bar=False,
    )
    assert set(found.sites) == {"mu", "a"}
    assert found.pooled.coverage > 0.5


@pytest.mark.slow
@pytest.mark.parametrize(("family", "width"), [("logistic", 1.45), ("poisson", 1.55)])
def test_dpnuts_covers_where_nuts_does(family, width):
    """The bars of issue 18 at ε = 1 on 20 data sets, fixed seed; two standard errors are given."""
    scale = 1.0 if family == "logistic" else 0.4

    def model(x, y):
        w = numpyro.sample("w", dist.Normal(0, scale).expand([5]).to_event(1))
        law = dist.Bernoulli(logits=x @ w) if family == "logistic" else dist.Poisson(jnp.exp(x @ w))
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("y", law, obs=y)

    x = np.random.default_rng(0).uniform(-(3**0.5), 3**0.5, (1_000, 5)).astype(np.float32)
    x[:, 0] = 1
    pooled = ndp.coverage(
        METHODS["DPNUTS"],
        model,
        x,
        OUTCOME,
        num_datasets=20,
        reference=numpyro.infer.NUTS,
        progress_bar=False,
    ).pooled
    assert pooled.difference > -0.03 - 2 * pooled.difference_error
    assert pooled.width < width


def computed(y):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 1), obs=y / 2)


def weighted(y):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    with numpyro.plate("people", y.shape[0]):
        numpyro.factor("y", -0.5 * (y - mean) ** 2)


def flat(y):
    mean = numpyro.sample("mean", dist.ImproperUniform(dist.constraints.real, (), ()))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 1), obs=y)


def tilted(y):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    numpyro.factor("more", -(mean**2))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 1), obs=y)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "message"),
    [
        (computed, "what `y` observes is computed"),
        (weighted, "is a factor"),
        (flat, "flat prior of `mean`"),
        (tilted, "`more`"),
    ],
)
def test_what_cannot_be_simulated_is_refused_before_anything_runs(model, message):
    with pytest.raises(ndp.UnsupportedModelError, match=message):
        ndp.coverage(lambda _: pytest.fail("ran"), model, jnp.zeros(10))


@pytest.mark.slow
def test_inputs_need_values():
    shape = jax.ShapeDtypeStruct((1_000, 3), jnp.float32)
    with pytest.raises(ValueError, match="argument `x` is a shape"):
        ndp.coverage(numpyro.infer.NUTS, regression, shape, OUTCOME)


def test_records_are_refused_before_anything_is_drawn_at_them():
    """Whoever gives outcomes beside inputs gives records, and no ε covers what coverage shows."""
    y = np.full(1_000, 7, np.int32)
    with pytest.raises(ValueError, match=r"`y` are observed: .* Never give it records") as refusal:
        ndp.coverage(lambda _: pytest.fail("ran"), regression, inputs(), y)
    assert "jax.ShapeDtypeStruct((num_records,), jnp.int32)" in str(refusal.value)
    # Without inputs nothing of the arguments is used.
    found = ndp.coverage(
        conjugate(1.0), average, jnp.zeros(20), spread=2.0, num_datasets=2, progress_bar=False
    )
    assert found.num_records == 20


@pytest.mark.slow
def test_public_arguments_are_kept():
    def model(y, knots):
        mean = numpyro.sample("mean", dist.Normal(knots[0], 1))
        with numpyro.plate("people", y.shape[0]):
            numpyro.sample("y", dist.Normal(mean, 1), obs=y)

    knots = ndp.public(np.array([5.0, 6.0]))
    for method in (numpyro.infer.NUTS, METHODS["DPNUTS"]):
        found = ndp.coverage(method, model, jnp.zeros(500), knots, num_datasets=2)
        assert found.truths.mean() > 2


@pytest.mark.slow
def test_a_later_outcome_may_depend_on_an_earlier_one():
    def model(y, z):
        slope = numpyro.sample("slope", dist.Normal(0, 1))
        with numpyro.plate("people", y.shape[0]):
            numpyro.sample("y", dist.Normal(0, 1), obs=y)
            numpyro.sample("z", dist.Normal(slope * y, 0.1), obs=z)

    def least_squares(model):
        return lambda key, y, z: {"slope": jnp.full(10, (y * z).sum() / (y * y).sum())}

    found = ndp.coverage(
        least_squares, model, jnp.zeros(500), jax.ShapeDtypeStruct((500,), jnp.float32)
    )
    assert found.pooled.rmse < 0.02


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_datasets": 0}, "num_datasets"),
        ({"level": 1.0}, "level"),
        ({"method": 3}, "method must be callable"),
    ],
)
def test_bad_numbers(given, message):
    given = {"method": numpyro.infer.NUTS, **given}
    with pytest.raises(ValueError, match=message):
        ndp.coverage(model=regression, **given)


@pytest.mark.slow
def test_a_dpsvi_wants_steps_and_a_number_is_no_method():
    with pytest.raises(ValueError, match="num_steps"):
        ndp.coverage(dpsvi, regression, inputs(), OUTCOME)
    with pytest.raises(ValueError, match="must return a kernel"):
        ndp.coverage(lambda model: 3, regression, inputs(), OUTCOME)


def test_a_chain_that_stands_still_refuses_itself():
    """As in the neck of a centred hierarchy: one of sixty lay thousands of its own sds off."""
    good = {"a": np.random.default_rng(0).normal(size=500)}
    most = np.arange(500) < 450
    assert _of_chain(good, np.zeros(500, bool)) == ()
    (diverged,) = _of_chain(good, most)
    assert diverged.startswith("with care: NUTS diverged (450 of 500 draws, 90.0%), ")
    for still in (np.zeros(500), 1 + np.linspace(0, 1e-4, 500)):
        (said,) = _of_chain({"a": still}, most)
        assert said.startswith("do not use: the chains have not mixed")


def test_inputs_in_their_own_units_are_said_to_leave_nothing_to_chance():
    """Ages and blood pressures under priors of one, which take outcomes to one side."""
    rng = np.random.default_rng(0)
    raw = rng.normal([45, 130, 25], [12, 15, 4], (500, 3)).astype(np.float32)

    def guess(model):
        def draws(rng_key, x, y):
            return {"w": np.random.default_rng(0).normal(size=(50, 3))}

        return draws

    outcome = jax.ShapeDtypeStruct((500,), jnp.int32)
    raw_alike, centred = (
        ndp.coverage(guess, regression, x, outcome, num_datasets=12, progress_bar=False)
        for x in (raw, (raw - [45, 130, 25]) / [12, 15, 4])
    )
    assert "data sets nearly all outcomes are alike" in str(raw_alike)
    assert max(centred.alike) < 0.99
    assert "are alike" not in str(centred)
