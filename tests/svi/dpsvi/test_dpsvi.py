"""DPSVI: charges, releases, what leaves, and agreement with NumPyro where privacy is off."""

import math
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from jax.flatten_util import ravel_pytree
from numpyro.infer import SVI, Trace_ELBO, TraceMeanField_ELBO
from numpyro.infer.autoguide import (
    AutoBNAFNormal,
    AutoDelta,
    AutoIAFNormal,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
)

import numpyro_dp as ndp
from numpyro_dp.accounting import privacy_curve
from numpyro_dp.mechanisms import private_sum as mechanism
from numpyro_dp.model.guided.outcomes import Listed
from numpyro_dp.svi.dpsvi.plan import planned
from numpyro_dp.svi.dpsvi.report import resolution_notes
from tests.arviz_groups import group_names
from tests.contract.surfaces import flatten
from tests.models import indifferent, logistic

KEY = jax.random.key(5)
OFF = {"clip_norm": math.inf, "noise_multiplier": 0.0}
ON = {"clip_norm": 1.0, "noise_multiplier": 2.0}
# One guide and one optimiser for most tests, so that one executable serves them.
GUIDE, SGD = AutoNormal(logistic), numpyro.optim.SGD(1e-3)


@pytest.fixture
def data(records):
    return records["x"], records["y"]


def svi(model=logistic, guide=GUIDE, optim=SGD, loss=None, **changes):
    arguments = {"scale": "gradient", "clip": "plain", **ON, **changes}
    made = guide(model) if isinstance(guide, type) else guide
    return ndp.DPSVI(model, made, optim, loss, **arguments)


def soft(x):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.factor("x", -((x - mu) ** 2))


def run(made, data, steps=6, **options):
    return made.run(KEY, steps, *data, **{"progress_bar": False, **options})


@pytest.mark.parametrize(
    ("guide", "particles"),
    [
        (AutoDelta, 1),
        pytest.param(AutoNormal, 2, marks=pytest.mark.slow),
        pytest.param(AutoMultivariateNormal, 3, marks=pytest.mark.slow),
        pytest.param(AutoLowRankMultivariateNormal, 1, marks=pytest.mark.slow),
    ],
)
def test_without_noise_it_is_numpyros_svi_step_for_step(data, guide, particles):
    loss = Trace_ELBO(num_particles=particles)
    expected = SVI(logistic, guide(logistic), optax.adam(0.01), loss).run(
        KEY, 20, *data, progress_bar=False
    )
    ours = run(
        svi(guide=guide, optim=optax.adam(0.01), loss=loss, average=0, **OFF),
        data,
        steps=20,
    )
    params, state, losses = ours
    assert losses is None
    assert state.optim_state[0] == 20
    for name, value in expected.params.items():
        np.testing.assert_allclose(params[name], value, rtol=1e-5, atol=1e-5)


def test_every_step_is_charged_before_it_runs_and_runs_compile_once(data, caplog):
    accountant = ndp.Accountant(ndp.Budget(3.0, 1e-5))
    budget = ndp.Budget(1.0, 1e-5)
    made = svi(privacy=budget, noise_multiplier=None, accountant=accountant)
    result = run(made, data)
    (entry,) = accountant.entries
    assert entry.event.events[0].count == 6
    assert 0.98 < result.privacy.epsilon <= 1.0
    assert result.privacy.recompute() == result.privacy.epsilon
    with jax.log_compiles(), caplog.at_level("WARNING", logger="jax"):
        again = run(made, data)
    assert not [r for r in caplog.records if "Finished XLA compilation of jit(_chunk)" in r.message]
    assert again.privacy.steps == 12
    assert 1.2 < again.privacy.epsilon <= 2.0
    moved = np.abs(again.params["w_auto_loc"] - result.params["w_auto_loc"])
    assert moved.min() > 0, "secure runs repeat"
    before = made._last_state
    with pytest.raises(ndp.BudgetExceededError, match="What would fit"):
        run(svi(noise_multiplier=0.5, accountant=accountant), data, steps=50)
    assert len(accountant.entries) == 2
    assert made._last_state is before


def test_mistakes_cost_nothing(data):
    accountant = ndp.Accountant()
    for made, steps, words in [
        (svi(clip="centred", model=soft, guide=AutoDelta, accountant=accountant), 5, "centred"),
        (svi(guide=AutoDelta, scale="curvature", accountant=accountant), 5, "AutoDelta"),
        (svi(accountant=accountant), 0, "num_steps"),
    ]:
        with pytest.raises(ValueError, match=words):
            run(made, (jnp.ones(6),) if made.model is soft else data, steps)
    blind = svi(accountant=accountant, optim=optax.chain(
        optax.sgd(0.1), optax.contrib.reduce_on_plateau(patience=1)))  # fmt: skip
    with pytest.raises(ValueError, match="looks at the loss"):
        run(blind, data)
    assert accountant.entries == ()


@pytest.mark.parametrize("name", ["update", "stable_update", "evaluate"])
def test_methods_that_touch_records_name_run(name, data):
    with pytest.raises(NotImplementedError, match=r"DPSVI\.run"):
        getattr(svi(), name)(None, *data)


@pytest.mark.parametrize(
    "changes",
    [
        {"noise_multiplier": None},
        {"privacy": ndp.Budget(1.0, 1e-5)},
        {"batch_size": 10, "sampling_rate": 0.5},
        {"clip_norm": math.inf},
        {"clip_norm": -1.0},
        {"clip": "adaptive"},
        {"scale": "hessian"},
        {"average": 1.5},
        {"loss": TraceMeanField_ELBO()},
        {"optim": numpyro.optim.Minimize()},
        {"accountant": 3},
        {"guide": None},
        {"curvature_clip": 0.0},
    ],
)
def test_arguments_out_of_range_are_refused(changes):
    with pytest.raises(ValueError, match=r"\w"):
        svi(**changes)


def test_a_run_inside_a_transformation_and_stable_updates_are_refused(data):
    made = svi()
    with pytest.raises(ValueError, match="inside a JAX transformation"):
        jax.jit(lambda key: made.run(key, 3, *data).params)(KEY)
    with pytest.raises(ValueError, match="stable_update"):
        run(made, data, stable_update=True)
    with made._account.opened("DPSVI.run"), pytest.raises(RuntimeError, match="another thread"):
        run(made, data)


def test_only_released_values_leave_and_conditions_are_stated(data):
    x, y = data
    other = x.copy(), y.copy()
    other[0][7], other[1][7] = [1.0, 0.9, -0.9], 1 - y[7]
    surfaces = []
    for rows in (data, other):
        made = svi(secure=False, sampling_rate=0.9)
        result = run(made, rows)
        draws = {k: np.asarray(v) for k, v in result.get_samples(num_samples=3).items()}
        report = result.privacy.to_dict()
        volatile = [report.pop(name) for name in ("created_at", "versions")]
        assert all(volatile)
        found = flatten(".params", result.params) | flatten(".draws", draws)
        found |= flatten(".state", result.state._asdict())
        found |= flatten(".svi", vars(made)) | flatten(".guide", vars(made.guide))
        surfaces.append(found | {f".privacy.{k}": repr(v).encode() for k, v in report.items()})
        assert x[:3].tobytes() not in pickle.dumps(result)
        assert not np.asarray(jax.random.key_data(result.state.rng_key)).any()
    one, two = surfaces
    released = (".params", ".draws", ".state['optim_state']", ".svi['_last_state'].optim_state")
    differing = {place for place in {*one, *two} if one.get(place) != two.get(place)}
    assert {place for place in differing if not place.startswith(released)} == set()
    assert any(place.startswith(".params") for place in differing), "nothing differs"
    assert "is secret, random and used once" in " ".join(result.privacy.full().split())
    with pytest.raises(ndp.BudgetExceededError, match="allow_conditional"):
        run(svi(secure=False, accountant=ndp.Accountant(ndp.Budget(50.0, 1e-5))), data)


def test_resumed_runs_go_on_with_fresh_noise(data):
    made = svi(secure=False, average=0)
    first = run(made, data)
    second = run(made, data, init_state=first.state)
    assert second.state.optim_state[0] == 12
    assert second.privacy.steps == 12
    assert "init_state" not in second.privacy.full()
    start = made.get_params(made.init(KEY, *data))
    moves = [
        np.asarray(b["w_auto_loc"] - a["w_auto_loc"])
        for a, b in [(start, first.params), (first.params, second.params)]
    ]
    assert np.abs(moves[0] - moves[1]).min() > 1e-5
    foreign = run(svi(secure=False, average=0), data, init_state=first.state)
    assert "init_state" in " ".join(foreign.privacy.full().split())
    with pytest.raises(ValueError, match="does not fit"):
        run(svi(optim=optax.adam(0.1)), data, init_state=first.state)


def check_noise(**changes):
    """A step of gradient descent on records without gradients is noise alone.

    600 numbers: their standard deviation is known to 2.9 %; bound at 5 of that, 6e-7.
    """
    x = jnp.ones((60, 600))
    settings = {"clip_norm": 3.0, "average": 0, "sampling_rate": 0.5, **changes}
    made = svi(indifferent, AutoDelta, optax.sgd(1.0), **settings)
    start = made.get_params(made.init(KEY, x))["w_auto_loc"]
    noise = run(made, (x,), steps=1).params["w_auto_loc"] - start
    event = made._account.charges[0].event.events[0].event
    charged = 3.0 * event.event.noise_multiplier / event.sampling_probability
    assert abs(np.asarray(noise).std() / charged - 1) < 0.145, "size of the noise"


def test_the_noise_is_of_the_charged_size_and_half_of_it_is_caught(monkeypatch):
    check_noise()
    honest = mechanism.floor_noise
    monkeypatch.setattr(mechanism, "floor_noise", lambda *a: honest(*a) // 2)
    with pytest.raises(AssertionError, match="size of the noise"):
        check_noise(noise_multiplier=2.125)  # no executable of the honest release is found again


def test_one_record_moves_a_step_by_at_most_the_clip_norm(data):
    x, y = data
    null = x.copy()
    null[5] = 0.0
    made = svi(optim=optax.sgd(1.0), average=0, secure=False, clip_norm=0.5)
    calm = run(made, (null, y), steps=1).state.optim_state[1][0]
    for row in ([1e4, 2e4, 3e4], [0.1, 0.0, 0.2], [np.nan, 1.0, 1.0]):
        wild = x.copy()
        wild[5] = row
        moved = jax.tree.map(
            jnp.subtract, run(made, (wild, y), steps=1).state.optim_state[1][0], calm
        )
        assert np.linalg.norm(ravel_pytree(moved)[0]) <= 0.5 * (1 + 1e-5)
    assert np.linalg.norm(ravel_pytree(moved)[0]) == 0, "a broken record contributed"


def test_scales_come_from_the_curvature(data):
    x, _ = data
    made = svi(scale=None, optim=optax.adam(0.02), **OFF)
    result = run(made, data, steps=100)
    w = result.params["w_auto_loc"]
    p = 1 / (1 + np.exp(-x @ w))
    exact = 1 / np.sqrt(1 + (x**2 * (p * (1 - p))[:, None]).sum(axis=0))
    np.testing.assert_allclose(result.params["w_auto_scale"], exact, rtol=1e-4)
    private = svi(scale=None, privacy=ndp.Budget(4.0, 1e-5), noise_multiplier=None)
    report = run(private, data, steps=5).privacy
    assert 3.9 < report.epsilon <= 4.0
    assert any("curvature" in words for words in report.released)
    total = privacy_curve(private._account.charges[0].event.events[1], "zero_out").epsilon(1e-5)
    assert 0.5 < total < 1.5, "a tenth of the squared loss"


def test_the_bar_shows_epsilon_and_defaults_average_the_tail(data, capsys):
    result = run(svi(), data, progress_bar=True)
    assert "charged" in capsys.readouterr().err
    assert any("average of the last 70%" in note for note in result.privacy.notes)


def test_matrices_that_noise_drowns_are_said_to_be():
    def notes(noise_multiplier):
        plan = planned(
            noise=noise_multiplier, num_steps=2, delta=1e-5, relation="zero_out",
            curvature_dim=0, curvature_clip=1.0, curvature_share=0.1, num_records=400, dim=9,
            sampling_rate=1.0, clip_norm=1.0, microbatch_size=None, max_records=None,
        )  # fmt: skip
        return resolution_notes(AutoMultivariateNormal(logistic), (), plan, 2, 0.7, centred=True)

    # Two steps: noise of the average is the multiplier over √2.
    assert any("not resolved" in note for note in notes(1.5))
    assert not any("not resolved" in note for note in notes(1.3))


@pytest.mark.parametrize(("clip", "said"), [("plain", True), ("centred", False), (None, False)])
def test_what_a_plain_clip_may_do_is_said(data, clip, said):
    """Of yes and no the clip is centred unless told otherwise."""
    result = run(svi(clip=clip), data)
    assert any("clipped as they are" in note for note in result.privacy.notes) == said


@pytest.mark.slow
def test_matrices_that_noise_drowns_are_warned_of_before_the_charge(data):
    broke = ndp.Accountant(ndp.Budget(0.01, 1e-5))
    made = svi(guide=AutoMultivariateNormal, noise_multiplier=3.0, accountant=broke)
    words = "AutoMultivariateNormal .* noise of 2.12 .* not resolved"
    with pytest.warns(UserWarning, match=words) as caught, pytest.raises(ndp.BudgetExceededError):
        made.run(KEY, 2, *data, progress_bar=False)
    assert [each.filename for each in caught] == [__file__]


@pytest.mark.slow
def test_private_sizes_need_a_rate_and_a_bound(data):
    def accountant():
        return ndp.Accountant(relation="add_remove")

    with pytest.raises(ValueError, match="max_records"):
        run(svi(accountant=accountant()), data)
    rate = {"sampling_rate": 0.5, "max_records": 1000}
    result = run(svi(accountant=accountant(), scale=None, **rate), data, steps=2)
    assert result.privacy.num_records is None
    assert "400" not in result.privacy.full()


def test_the_clip_is_centred_where_outcomes_can_be_listed(data):
    def outcomes(model=logistic, args=data, **changes):
        made = svi(model, AutoDelta, clip=None, **changes)
        return made._prepared(2, args, {})[1].outcomes

    assert isinstance(outcomes(), Listed)
    assert outcomes(**OFF) is None
    assert outcomes(model=indifferent, args=(jnp.ones((6, 3)),)) is None


@pytest.mark.slow
@pytest.mark.parametrize("guide", [AutoIAFNormal, AutoBNAFNormal])
def test_flows_run_and_are_said_to_be_drowned(data, guide):
    with pytest.warns(UserWarning, match="not resolved"):
        result = run(svi(guide=guide, noise_multiplier=50.0), data, steps=2)
    assert result.get_samples(num_samples=3)["w"].shape == (3, 3)
    assert any("not resolved" in note for note in result.privacy.notes)


@pytest.mark.slow
def test_an_amortised_guide_runs_and_one_record_moves_a_step_by_the_clip_norm():
    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        with numpyro.plate("people", y.shape[0]):
            own = numpyro.sample("own", dist.Normal(mu, 1))
            numpyro.sample("y", dist.Normal(own, 0.5), obs=y)

    def guide(y):
        numpyro.sample("mu", dist.Normal(numpyro.param("m", 0.1), 0.2))
        slope = numpyro.param("slope", 0.7)
        with numpyro.plate("people", y.shape[0]):
            numpyro.sample("own", dist.Normal(slope * y, 0.3))

    y = np.linspace(-1, 1, 40).astype(np.float32)
    wild = y.copy()
    wild[3] = 1e4
    ends = [
        run(svi(model, guide, optax.sgd(1.0), secure=False, average=0), (rows,), steps=1).params
        for rows in (y, wild)
    ]
    moved = ravel_pytree(jax.tree.map(jnp.subtract, *ends))[0]
    assert 0 < np.linalg.norm(moved) <= 2 * (1 + 1e-3)


@pytest.mark.slow
def test_a_mixture_with_discrete_latents_runs(records):
    def mixture(y):
        loc = numpyro.sample("loc", dist.Normal(0, 1).expand([2]).to_event(1))
        with numpyro.plate("people", y.shape[0]):
            kind = numpyro.sample("kind", dist.Categorical(jnp.array([0.3, 0.7])))
            numpyro.sample("y", dist.Normal(loc[kind], 1), obs=y)

    y = jnp.asarray(records["x"][:60, 1])
    result = run(svi(mixture, AutoNormal, scale=None), (y,), steps=2)
    assert result.params["loc_auto_scale"].shape == (2,)


def test_draws_go_to_arviz_with_their_statement(data):
    result = run(svi(), data)
    idata = ndp.from_numpyro(result)
    assert set(group_names(idata)) == {"posterior"}
    assert idata.posterior["w"].shape == (1, 1000, 3)
    assert idata.posterior.attrs["dp_epsilon"] == result.privacy.epsilon
    with pytest.raises(ValueError, match="leave them out"):
        ndp.from_numpyro(result, predictions={"y": np.zeros((1000, 2))})
