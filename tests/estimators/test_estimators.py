"""The estimators as a user meets them: charged first, right, silent about the records."""

import math
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import Predictive
from numpyro.infer.autoguide import AutoDelta
from scipy.optimize import minimize

import numpyro_dp as ndp
from numpyro_dp.estimators import perturbation
from numpyro_dp.estimators.noise import Gaussian
from numpyro_dp.estimators.release import LatticeOutput
from numpyro_dp.model.private_model import private_model
from tests.arviz_groups import group_names
from tests.estimators.cases import logistic, normal

BUDGET = ndp.Budget(1.0, 1e-5)
KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def people():
    rng = np.random.default_rng(5)
    x = rng.uniform(-0.5, 0.5, (800, 3)).astype(np.float32)
    y = (rng.random(800) < 1 / (1 + np.exp(-x @ [2.0, -3.0, 1.0]))).astype(np.int32)
    return x, y


def exact_map(x, y, precision=1.0):
    def objective(w):
        return np.logaddexp(0, x @ w).sum() - y @ (x @ w) + precision * w @ w / 2

    return minimize(objective, np.zeros(x.shape[1]), tol=1e-10).x


def estimators(**options):
    return [
        each(logistic, row_norm=1.0, **options)
        for each in (ndp.ObjectivePerturbation, ndp.OutputPerturbation)
    ]


@pytest.mark.slow
def test_with_little_noise_the_estimate_is_the_map(people):
    objective, output = estimators(noise_multiplier=0.1, regularisation=4.0)
    found = objective.run(KEY, *people).params["w_auto_loc"]
    np.testing.assert_allclose(found, exact_map(*people, 5.0), atol=0.03)
    # What one record moves is bounded by the prior alone, so its noise is larger.
    found = output.run(KEY, *people).params["w_auto_loc"]
    np.testing.assert_allclose(found, exact_map(*people, 5.0), atol=0.2)


def test_a_tight_prior_far_from_zero_is_not_cut():
    """Its noise is so fine that the numbers of a short lattice end before its middle."""

    def tight(x):
        mu = numpyro.sample("mu", dist.Normal(500.0, 0.01))
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("x", dist.Normal(mu, 1), obs=x)

    settings = {"row_norm": 1.0, "huber": 1.0, "privacy": ndp.Budget(2.0, 1e-5)}
    estimator = ndp.ObjectivePerturbation(tight, **settings)
    result = estimator.run(jax.random.key(0), np.zeros(10, np.float32))
    assert abs(float(result.get_samples()["mu"][0]) - 500.0) < 0.01


def test_a_budget_is_kept_and_the_report_can_be_recomputed(people):
    for estimator in estimators(privacy=BUDGET):
        report = estimator.run(KEY, *people).privacy
        assert 0.98 < report.epsilon <= 1.0
        assert report.recompute() == report.epsilon
        assert "one slice of plate 'people'" in str(report)
        again = estimator.run(KEY, *people).privacy
        assert again.epsilon > 1.2 * report.epsilon


def test_the_result_serves_like_one_of_svi_with_autodelta(people):
    estimator = ndp.ObjectivePerturbation(logistic, row_norm=1.0, noise_multiplier=1.0)
    result = estimator.run(KEY, *people)
    params, state, losses = result
    assert params is result.params
    assert (state, losses) == (None, None)
    public = np.zeros((5, 3), np.float32)
    by_draw = Predictive(logistic, result.get_samples())(KEY, public)
    assert by_draw["y"].shape == (1, 5)
    guided = Predictive(
        logistic,
        guide=AutoDelta(numpyro.handlers.block(logistic, hide=["y"])),
        params=params,
        num_samples=2,
    )
    assert guided(KEY, public)["y"].shape == (2, 5)
    assert result.get_samples(group_by_chain=True)["w"].shape == (1, 1, 3)
    copy = pickle.loads(pickle.dumps(result))
    np.testing.assert_array_equal(copy.params["w_auto_loc"], params["w_auto_loc"])


def test_arviz_gets_one_draw_and_the_statement(people):
    estimator = ndp.OutputPerturbation(logistic, row_norm=1.0, noise_multiplier=4.0)
    result = estimator.run(KEY, *people)
    data = ndp.from_numpyro(result, dims={"w": ["input"]}, coords={"input": ["a", "b", "c"]})
    assert dict(data.posterior["w"].sizes) == {"chain": 1, "draw": 1, "input": 3}
    assert data.posterior.attrs["dp_epsilon"] == result.privacy.epsilon
    assert group_names(data) == ["posterior"]
    with pytest.raises(ValueError, match="are for MCMC"):
        ndp.from_numpyro(result, prior={"w": np.zeros((1, 3))})


def test_nothing_is_touched_when_the_charge_is_refused(people, monkeypatch):
    def touched(*arguments):
        raise AssertionError("the records were touched")

    monkeypatch.setattr(perturbation, "_rows", touched)
    accountant = ndp.Accountant(ndp.Budget(0.5, 1e-5))
    for estimator in estimators(privacy=BUDGET, accountant=accountant):
        with pytest.raises(ndp.BudgetExceededError):
            estimator.run(KEY, *people)
    assert accountant.entries == ()
    affordable = ndp.OutputPerturbation(
        logistic, row_norm=1.0, privacy=ndp.Budget(0.4, 1e-5), accountant=accountant
    )
    with pytest.raises(AssertionError, match="touched"):
        affordable.run(KEY, *people)
    # What failed after its charge stays charged.
    assert [entry.label for entry in accountant.entries] == ["OutputPerturbation"]


def test_noise_is_fresh_unless_the_caller_takes_it_over(people):
    options = {"row_norm": 1.0, "noise_multiplier": 1.0}
    secret = ndp.ObjectivePerturbation(logistic, **options)
    first, second = (secret.run(KEY, *people).params["w_auto_loc"] for _ in range(2))
    assert np.all(first != second)
    given = ndp.ObjectivePerturbation(logistic, secure=False, **options)
    first, second = (given.run(KEY, *people) for _ in range(2))
    np.testing.assert_array_equal(first.params["w_auto_loc"], second.params["w_auto_loc"])
    assert (first.privacy.steps, second.privacy.steps) == (1, 2)
    # The noise in the objective counts as well as that on its minimiser, in every run.
    tilt, output = Gaussian(1.0).bounds(3).tv, LatticeOutput(1.0, 3).tv
    assert first.privacy.overflow_delta == tilt + output
    assert second.privacy.overflow_delta == 2 * first.privacy.overflow_delta
    assert "PROVIDED THAT" in first.privacy.full()
    budgeted = ndp.Accountant(ndp.Budget(9.0, 1e-5))
    refused = ndp.ObjectivePerturbation(logistic, secure=False, accountant=budgeted, **options)
    with pytest.raises(ndp.BudgetExceededError, match="conditional"):
        refused.run(KEY, *people)


def test_a_broken_record_contributes_nothing(people):
    x, y = people
    broken = x.copy()
    broken[7], broken[8, 1], broken[9, 0] = np.nan, np.inf, -np.inf
    without = exact_map(np.delete(x, [7, 8, 9], 0), np.delete(y, [7, 8, 9]))
    estimator = ndp.ObjectivePerturbation(logistic, row_norm=1.0, noise_multiplier=0.1)
    found = estimator.run(KEY, broken, y).params["w_auto_loc"]
    np.testing.assert_allclose(found, without, atol=0.03)


@pytest.mark.slow
def test_relations_cost_what_they_should(people):
    spent = {}
    for relation in ("zero_out", "replace_one", "add_remove"):
        estimator = ndp.OutputPerturbation(
            logistic,
            row_norm=1.0,
            noise_multiplier=4.0,
            accountant=ndp.Accountant(relation=relation),
            max_records=1000,
        )
        report = estimator.run(KEY, *people).privacy
        spent[relation] = report.epsilon
        assert (report.num_records is None) == (relation == "add_remove")
    assert spent["add_remove"] == pytest.approx(spent["zero_out"], rel=1e-3)
    assert 1.9 < spent["replace_one"] / spent["zero_out"] < 2.3
    bounded = ndp.OutputPerturbation(
        logistic,
        row_norm=1.0,
        noise_multiplier=4.0,
        accountant=ndp.Accountant(relation="add_remove"),
        max_records=799,
    )
    with pytest.raises(ValueError, match="max_records"):
        bounded.run(KEY, *people)


def test_a_ridge_is_added_only_where_epsilon_needs_it_and_said(people):
    tight = ndp.ObjectivePerturbation(logistic, row_norm=1.0, privacy=ndp.Budget(0.1, 1e-5))
    report = tight.run(KEY, *people).privacy
    assert report.epsilon <= 0.1
    assert "A ridge of curvature" in report.full()
    wide = ndp.ObjectivePerturbation(logistic, row_norm=1.0, privacy=ndp.Budget(2.0, 1e-5))
    assert "A ridge" not in wide.run(KEY, *people).privacy.full()
    hopeless = ndp.ObjectivePerturbation(
        logistic, row_norm=1.0, privacy=ndp.Budget(0.1, 1e-5), regularisation=0.0
    )
    with pytest.raises(ValueError, match=r"at least 0\.223"):
        hopeless.run(KEY, *people)


def test_output_perturbation_balances_noise_and_ridge_by_public_numbers(people):
    """λ = (2Nβs²L²/tr Σ)^⅓ with N = 800, β = ¼, L = 1, tr Σ = 3; noise sL/λ beside a prior of 1."""
    x, y = people
    estimator = ndp.OutputPerturbation(logistic, row_norm=1.0, noise_multiplier=4.0)
    wanted = (2 * 800 / 4 * 4.0**2 / 3) ** (1 / 3)
    _, plan = estimator.plan(private_model(logistic, (x, y)))
    assert plan.problem.strong_convexity == pytest.approx(wanted)
    assert plan.output.noise_sd == pytest.approx(4.0 / wanted, rel=1e-2)
    report = estimator.run(KEY, x, y).privacy.full()
    assert "A ridge of curvature" in report
    assert "wider than" not in report
    bare = ndp.OutputPerturbation(
        logistic, row_norm=1.0, noise_multiplier=4.0, regularisation=0.0
    ).run(KEY, x, y)
    assert "wider than the model's prior" in " ".join(bare.privacy.notes)
    assert "A ridge" not in bare.privacy.full()


def test_pure_noise_has_a_pure_part(people):
    estimator = ndp.ObjectivePerturbation(
        logistic, row_norm=1.0, noise_multiplier=4.0, noise="gamma"
    )
    report = estimator.run(KEY, *people).privacy
    pure = 1 / 4 + math.log1p(0.25)
    assert report.epsilon <= pure + 0.15
    text = report.events[0][1]
    assert "PureObjectivePerturbationRelease" in text
    assert "GaussianDpEvent" in text


def flat(x, y=None):
    w = numpyro.sample("w", dist.ImproperUniform(dist.constraints.real, (), (3,)))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def student(x, y=None):
    w = numpyro.sample("w", dist.StudentT(3.0).expand([3]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def product(x, y=None):
    w = numpyro.sample("w", dist.Normal().expand([3]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=w[0] * (x @ w)), obs=y)


def hinge_as_factor(x, y=None):
    w = numpyro.sample("w", dist.Normal().expand([3]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.factor("hinge", -jnp.maximum(0.0, 1 - (2 * y - 1) * (x @ w)))


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (hinge_as_factor, {}, "`hinge`.*a hinge loss as numpyro_dp.HuberHinge"),
        pytest.param(flat, {}, "prior is flat|constant curvature", marks=pytest.mark.slow),
        pytest.param(student, {}, "no constant curvature", marks=pytest.mark.slow),
        (product, {}, "not provably linear"),
        pytest.param(normal, {}, "huber=", marks=pytest.mark.slow),
        (logistic, {"row_norm": math.inf}, "row_norm must be finite"),
        (logistic, {"row_norm": -1.0}, "row_norm must be positive"),
        (logistic, {"regularisation": len}, "public number"),
        (logistic, {"gradient_tolerance": len}, "public number"),
        (logistic, {"gradient_tolerance": 1e-14}, "float64 can guarantee"),
        (logistic, {"max_iterations": 10}, "more than max_iterations=10: allow more"),
        (logistic, {"noise_multiplier": None}, "either privacy="),
        (logistic, {"noise_multiplier": None, "privacy": 1.0}, "must be a numpyro_dp.Budget"),
        (logistic, {"accountant": "x"}, "must be a numpyro_dp.Accountant"),
    ],
)
def test_what_cannot_be_guaranteed_is_refused_before_a_charge(people, model, options, message):
    accountant = ndp.Accountant()
    given = {"row_norm": 1.0, "noise_multiplier": 1.0, "accountant": accountant, **options}
    with pytest.raises(ValueError, match=message):
        ndp.OutputPerturbation(model, **given).run(KEY, *people)
    assert accountant.entries == ()


def test_a_run_inside_a_transformation_is_refused(people):
    (estimator, _) = estimators(noise_multiplier=1.0)
    with pytest.raises(ValueError, match="inside a JAX transformation"):
        jax.jit(lambda x: estimator.run(KEY, x, people[1]).params)(jnp.asarray(people[0]))


def test_messages_and_reports_hold_no_value_of_the_data(people):
    x, y = people
    marked = x.copy()
    marked[3] = 0.123456
    for estimator in estimators(noise_multiplier=1.0):
        result = estimator.run(KEY, marked, y)
        assert "0.1234" not in result.privacy.full() + repr(estimator)


def test_where_the_size_is_private_no_refusal_tells_it():
    """237 people: neither a table on its side nor a wrong outcome may say so."""
    x, y = np.ones((237, 3), np.float32), np.zeros(237, np.float32)

    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    estimator = ndp.OutputPerturbation(
        model, row_norm=2.0, noise_multiplier=4.0, max_records=1000,
        accountant=ndp.Accountant(relation="add_remove"),
    )  # fmt: skip
    for bad in ((x.T, y), (x, y[:, None]), (x, y[:200])):
        with pytest.raises(ValueError, match=r"\w") as refused:
            estimator.run(jax.random.key(0), *bad)
        assert "237" not in str(refused.value)
        assert refused.value.__cause__ is None
    assert estimator.accountant is not None
    assert estimator.accountant.entries == ()
