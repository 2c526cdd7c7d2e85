"""Arguments that were declared public: alike in plain NumPyro, and never more than was declared."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO, log_likelihood
from numpyro.infer.autoguide import AutoNormal

import numpyro_dp as ndp
from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.model.private_model import PrivateModel
from numpyro_dp.model.records import read_arguments

RNG = np.random.default_rng(0)
GROUPS, N = 6, 90
BEDS = RNG.uniform(-1, 1, GROUPS).astype(np.float32)
GROUP = RNG.integers(0, GROUPS, N)
Y = (BEDS[GROUP] + RNG.normal(size=N)).astype(np.float32)


def hospitals(hospital, group, y=None):
    beds = hospital["beds"]
    gamma = numpyro.sample("gamma", dist.Normal(0, 1))
    with numpyro.plate("hospitals", len(beds)):
        a = numpyro.sample("a", dist.Normal(gamma * beds, 1))
    with numpyro.plate("patients", group.shape[0]):
        numpyro.sample("y", dist.Normal(a[group], 1), obs=y)


def by_patient(beds, group, y=None):
    """The same array is picked from by each record's own group."""
    gamma = numpyro.sample("gamma", dist.Normal(0, 1))
    with numpyro.plate("patients", group.shape[0]):
        numpyro.sample("y", dist.Normal(gamma * beds[group], 1), obs=y)


CASES = [
    (hospitals, {"beds": BEDS}),
    (by_patient, BEDS),
    (by_patient, jnp.asarray(BEDS)),
]


def drawn(model, *args, **options):
    mcmc = MCMC(NUTS(model), num_warmup=10, num_samples=5, progress_bar=False, **options)
    mcmc.run(jax.random.key(0), *args, GROUP, Y)
    return mcmc.get_samples()


@pytest.mark.parametrize(("model", "plain"), CASES)
@pytest.mark.parametrize("jit_model_args", [False, True])
def test_numpyros_own_nuts_takes_the_same_arguments(model, plain, jit_model_args):
    declared = drawn(model, ndp.public(plain), jit_model_args=jit_model_args)
    expected = drawn(model, jax.tree.map(jnp.asarray, plain))
    for name, values in expected.items():
        np.testing.assert_allclose(declared[name], values, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("model", "plain"), CASES)
def test_predictive_log_likelihood_and_svi_take_them(model, plain):
    declared, arrays = ndp.public(plain), jax.tree.map(jnp.asarray, plain)
    samples = drawn(model, arrays)
    of = Predictive(model, samples)(jax.random.key(1), declared, GROUP)
    np.testing.assert_allclose(
        of["y"], Predictive(model, samples)(jax.random.key(1), arrays, GROUP)["y"]
    )
    found = log_likelihood(model, samples, declared, GROUP, Y)["y"]
    np.testing.assert_allclose(found, log_likelihood(model, samples, arrays, GROUP, Y)["y"])
    svi = SVI(model, AutoNormal(model), optax.adam(0.1), Trace_ELBO())
    state = svi.init(jax.random.key(2), declared, GROUP, Y)
    _, loss = jax.jit(svi.update)(state, declared, GROUP, Y)
    assert jnp.isfinite(loss)


@pytest.mark.parametrize(("model", "plain"), CASES)
def test_the_private_model_is_the_one_of_plain_numpyro(model, plain):
    split = PrivateModel(model, (ndp.public(plain), GROUP, Y), {})
    z = split.init(jax.random.key(0))
    arrays = jax.tree.map(jnp.asarray, plain)
    records = split.records((ndp.public(plain), GROUP, Y), {})
    terms = jax.vmap(lambda *rows: split.record_log_likelihood(z, [row[None] for row in rows]))
    one = {name: value[None] for name, value in split.constrain(z).items()}
    expected = log_likelihood(model, one, arrays, GROUP, Y)["y"][0]
    np.testing.assert_allclose(terms(*records), expected, rtol=1e-5)


def test_it_computes_as_what_it_wraps():
    a = np.float32([[1, 2], [3, 4]])
    wrapped, column = ndp.public(a), jnp.ones(2)
    for left, right in ((wrapped, a), (a, wrapped), (wrapped, wrapped), (wrapped, jnp.asarray(a))):
        np.testing.assert_allclose(left * right, a * a)
        np.testing.assert_allclose(left - right, 0 * a)
        np.testing.assert_allclose(left @ right, a @ a)
        assert np.all(left == right)
    for found, expected in (
        (wrapped @ column, a @ np.ones(2)),
        (column @ wrapped, np.ones(2) @ a),
        (2 / wrapped, 2 / a),
        (np.float32(2) ** wrapped, 2**a),
        (-wrapped, -a),
        (np.log(wrapped), np.log(a)),
        (jnp.log(wrapped), np.log(a)),
        (wrapped[:, 0], a[:, 0]),
        (wrapped.sum(0), a.sum(0)),
        (wrapped.T, a.T),
        (jnp.stack([*wrapped]), a),
        (dist.Normal(wrapped, 1).log_prob(a), dist.Normal(a, 1).log_prob(a)),
        (dist.Normal(0, 1).log_prob(wrapped), dist.Normal(0, 1).log_prob(a)),
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert (len(wrapped), wrapped.shape, wrapped.ndim, wrapped.dtype) == (2, (2, 2), 2, a.dtype)


def test_plain_values_and_tables_by_name():
    assert ndp.public("logit") == "logit"
    assert ndp.public(3) + 1 == 4
    assert [*range(ndp.public(3))] == [0, 1, 2]
    assert float(ndp.public(0.5)) == 0.5
    assert int(ndp.public(2)) == 2
    assert not ndp.public(0)
    table = ndp.public({"beds": BEDS, "north": 2})
    assert "beds" in table
    assert [*table] == ["beds", "north"]
    assert table["north"] == 2
    assert dict(table.items())["north"] == 2
    assert ndp.public(abs)(-2) == 2
    with pytest.raises(AttributeError, match="no_such"):
        _ = ndp.public(BEDS).no_such


def test_what_is_computed_from_it_is_not_declared():
    """Else a number of the records, once computed with a public one, would be public."""
    wrapped = ndp.public(BEDS)
    for made in (wrapped * 1, wrapped[:], wrapped.copy(), np.asarray(wrapped), wrapped.value):
        layout, arrays = read_arguments(by_patient, (made, GROUP, Y), {})
        assert not layout.declared
        assert len(arrays) == 3
        with pytest.raises(UnsupportedModelError, match=r"argument `beds` .* has no record axis"):
            PrivateModel(by_patient, (made, GROUP, Y), {})
    layout, _ = read_arguments(by_patient, (wrapped, wrapped[GROUP], Y), {})
    assert layout.public_names == ("beds",)
    scaled = PrivateModel(by_patient, (ndp.public(wrapped * 2), GROUP, Y), {})
    assert scaled.public_inputs == ("beds",)


def test_no_declaration_is_lost_where_arguments_are_mapped_or_traced():
    args = (ndp.public({"beds": BEDS}), GROUP, Y)
    moved = jax.tree.map(jnp.asarray, args)
    unflattened = jax.tree.unflatten(*reversed(jax.tree.flatten(args)))
    for same in (args, moved, unflattened, copy.copy(args), pickle.loads(pickle.dumps(args))):
        layout, arrays = read_arguments(hospitals, same, {})
        assert layout.public_names == ("hospital",)
        assert len(arrays) == 2
    seen = []
    jax.jit(lambda *given: seen.append(read_arguments(hospitals, given, {})[0]))(*args)
    assert seen[0] == read_arguments(hospitals, args, {})[0]


def test_programs_are_kept_for_equal_values_alone():
    traces = []

    @jax.jit
    def total(table):
        traces.append(0)
        return jnp.sum(table * 1)

    assert total(ndp.public(BEDS)) == total(ndp.public(BEDS.copy()))
    assert len(traces) == 1
    assert total(ndp.public(BEDS + 1)) > total(ndp.public(BEDS))
    assert len(traces) == 2


def test_a_declaration_inside_one_is_taken_off():
    assert isinstance(ndp.public([ndp.public(BEDS)]).value[0], np.ndarray)
    assert isinstance(ndp.public(ndp.public(BEDS)).value, np.ndarray)


def test_a_record_is_not_declared_public_inside_a_model():
    def model(x):
        w = numpyro.sample("w", dist.Normal(0, 1))
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("x", dist.Normal(w, 1), obs=ndp.public(x).value)

    with pytest.raises(UnsupportedModelError):
        PrivateModel(model, (Y,), {})
    with pytest.raises(ValueError, match="declare arguments where they are handed over"):
        jax.jit(ndp.public)(Y)


def test_a_second_run_of_other_public_values_is_refused():
    """What was released is of the first arguments; another table must not pass for the same."""
    kernel = ndp.DPNUTS(by_patient, privacy=ndp.Budget(10.0, 1e-5))
    mcmc = ndp.MCMC(kernel, num_warmup=5, num_samples=5, progress_bar=False)
    beds = ndp.public(BEDS)
    mcmc.run(jax.random.key(0), beds, GROUP, Y)
    mcmc.run(jax.random.key(1), beds, GROUP, Y)
    with pytest.raises(ValueError, match="of other arguments"):
        mcmc.run(jax.random.key(1), ndp.public(BEDS + 1), GROUP, Y)


@pytest.mark.parametrize("jit_model_args", [False, True])
def test_a_private_kernel_in_numpyros_mcmc_keeps_the_declaration(jit_model_args, monkeypatch):
    monkeypatch.setattr("numpyro_dp.mcmc.plain.is_on", lambda: False)
    kernel = ndp.DPSGLD(
        by_patient,
        step_size=1e-4,
        clip_norm=1.0,
        privacy=ndp.Budget(5.0, 1e-5),
        accountant=ndp.Accountant(ndp.Budget(5.0, 1e-5)),
        num_steps=6,
    )
    options = {"progress_bar": False, "jit_model_args": jit_model_args}
    mcmc = MCMC(kernel, num_warmup=2, num_samples=4, **options)
    mcmc.run(jax.random.key(0), ndp.public(BEDS), GROUP, Y)
    assert jnp.all(jnp.isfinite(mcmc.get_samples()["gamma"]))
