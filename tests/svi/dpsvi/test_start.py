"""Where a private fit starts: nowhere that a record has been."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.distributions import constraints
from numpyro.infer.autoguide import AutoNormal

import numpyro_dp as ndp
from tests.models import OutOfSight

KEY = jax.random.key(0)
X = np.linspace(700.0, 800.0, 50, dtype=np.float32)
# Out of sight: an array that the code names is refused before any trace.
HELD = OutOfSight(x=X)


def model(x, scale=1.0):
    mean = numpyro.sample("mean", dist.Normal(0, 1000))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("x", dist.Normal(mean, scale), obs=x)


def guide(x, scale=1.0):
    loc = numpyro.param("loc", jnp.mean(x) * scale)
    numpyro.sample("mean", dist.Normal(loc, 1.0))


def closing(x, scale=1.0):
    loc = numpyro.param("loc", jnp.mean(jnp.asarray(HELD.x)))
    numpyro.sample("mean", dist.Normal(loc, 1.0))


def svi(guide=guide, **options):
    return ndp.DPSVI(
        model, guide, optax.sgd(1e-6), clip_norm=1e-3, noise_multiplier=1.0, clip="plain", **options
    )


def test_a_parameter_that_starts_at_a_statistic_starts_at_a_synthetic_one():
    made = svi()
    state = made.init(KEY, X)
    assert float(made.get_params(state)["loc"]) == 0.5
    result = made.run(KEY, 2, X, progress_bar=False)
    assert abs(float(result.params["loc"]) - 0.5) < 1e-3


def test_records_are_no_static_arguments():
    with pytest.raises(ValueError, match=r"`x` is an array.*run\(\)"):
        svi(x=X)


def test_static_arguments_reach_model_and_guide():
    factor = ndp.public(np.array([3.0], np.float32))

    def scaled(x, factor):
        numpyro.sample("mean", dist.Normal(numpyro.param("loc", 2.0 * factor[0]), 1.0))

    def with_factor(x, factor):
        model(x)

    made = ndp.DPSVI(
        with_factor, scaled, optax.sgd(1e-6), clip_norm=1.0, noise_multiplier=1.0, factor=factor
    )
    assert float(made.get_params(made.init(KEY, X))["loc"]) == 6.0
    # Whatever is put there later, a start does not read it.
    late = svi()
    late.static_kwargs = {"x": X}
    assert float(late.get_params(late.init(KEY))["loc"]) == 0.5


def test_a_parameter_that_starts_at_a_closure_over_records_is_refused():
    accountant = ndp.Accountant()
    made = svi(closing, accountant=accountant)
    for attempt in (lambda: made.init(KEY, X), lambda: made.run(KEY, 2, X, progress_bar=False)):
        with pytest.raises(ndp.UnsupportedModelError, match="closes over an array"):
            attempt()
    assert accountant.entries == ()


def constant(x):
    numpyro.sample("mean", dist.Normal(numpyro.param("loc", 0.3), 1.0))


def by_number(x):
    numpyro.sample("mean", dist.Normal(numpyro.param("loc", 1.0 * x.shape[0]), 1.0))


def bounded_by_number(x):
    loc = numpyro.param("loc", 0.3, constraint=constraints.interval(0, x.shape[0]))
    numpyro.sample("mean", dist.Normal(loc, 1.0))


def for_so_many(x):
    assert x.shape == (50,)
    numpyro.sample("mean", dist.Normal(numpyro.param("loc", 0.3), 1.0))


def narrower_with_more(x):
    mean = numpyro.sample("mean", dist.Normal(0, 1 / x.shape[0]))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("x", dist.Normal(mean, 1.0), obs=x)


def with_a_parameter(x):
    scale = numpyro.param("scale", 2.0, constraint=constraints.positive)
    model(x, scale)


def with_own_latents(x):
    mean = numpyro.sample("mean", dist.Normal(0, 1000))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("x", dist.Normal(numpyro.sample("own", dist.Normal(mean, 1)), 1), obs=x)


def amortised(x):
    constant(x)
    slope = numpyro.param("slope", 0.7)
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("own", dist.Normal(slope * x, 0.3))


@pytest.mark.parametrize(
    ("model", "guide", "few"),
    [
        (model, AutoNormal(model), True),
        (model, constant, True),
        (with_a_parameter, constant, True),
        (with_own_latents, amortised, True),
        (model, by_number, False),
        (model, bounded_by_number, False),
        (model, for_so_many, False),
        (narrower_with_more, AutoNormal(narrower_with_more), False),
        (with_a_parameter, AutoNormal(with_a_parameter), False),
    ],
    ids=[
        *("auto", "by hand", "parameter", "own latents", "number", "bound", "shape", "prior"),
        "auto with a parameter",
    ],
)
def test_few_made_up_records_serve_where_the_start_is_the_same(monkeypatch, model, guide, few):
    made = ndp.DPSVI(model, guide, optax.sgd(1e-6), clip_norm=1e-3, noise_multiplier=1.0)
    expected = copy.deepcopy(made).init(KEY, X)
    full, rows = jnp.full, []

    def counted(shape, *args, **kwargs):
        array = full(shape, *args, **kwargs)
        if not isinstance(array, jax.core.Tracer):
            rows.extend(shape[:1])
        return array

    monkeypatch.setattr("numpyro_dp.model.guided.model.LARGE", 0)
    monkeypatch.setattr(jnp, "full", counted)
    for _ in range(2):
        state = made.init(KEY, X)
        assert jax.tree.all(jax.tree.map(lambda a, b: jnp.all(a == b), state, expected))
        assert max(rows) == (3 if few else len(X))


def test_the_bar_says_that_a_run_is_prepared_and_is_gone_when_it_begins(capsys):
    """Before the charge a model is traced and compiled, which takes a while."""

    def anew(x):
        model(x)

    broke = ndp.Accountant(ndp.Budget(0.01, 1e-5))
    made = ndp.DPSVI(
        anew, AutoNormal(anew), optax.sgd(1e-6), clip_norm=1.0, noise_multiplier=1.0,
        accountant=broke,
    )  # fmt: skip
    with pytest.raises(ndp.BudgetExceededError):
        made.run(KEY, 5, X)
    said = capsys.readouterr().err
    assert "compiling" in said
    assert said.split("\r")[-1].strip() == ""
    with pytest.raises(ndp.BudgetExceededError):
        made.run(KEY, 5, X, progress_bar=False)
    assert capsys.readouterr().err == ""
