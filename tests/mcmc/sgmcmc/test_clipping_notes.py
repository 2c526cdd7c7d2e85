"""A run's report says how far clipping moves a posterior, and nothing where it does not."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import numpyro_dp as ndp
from numpyro_dp.mcmc.sgmcmc.bias import clipping_notes
from numpyro_dp.mcmc.sgmcmc.relaxation import drawn_notes
from numpyro_dp.model.private_model import PrivateModel

N = 4000
RNG = np.random.default_rng(3)
X = np.c_[np.ones(N), RNG.normal(size=N)].astype(np.float32)
Y = (X @ [0.5, 1.0] + RNG.normal(size=N)).astype(np.float32)
# One-hot columns, the last of 2 % of the records.
GROUPS = np.eye(4, dtype=np.float32)[RNG.choice(4, N, p=[0.5, 0.3, 0.18, 0.02])]


def weights(x):
    return numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))


def linear(x, y):
    w, sigma = weights(x), numpyro.sample("sigma", dist.LogNormal(0, 1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, sigma), obs=y)


def heavy_tailed(x, y):
    w = weights(x)
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.StudentT(3.0, x @ w, 1.0), obs=y)


def logistic(x, y):
    w = weights(x)
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def counts(x, y):
    w = weights(x)
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(x @ w)), obs=y)


def on_a_log_scale(x, y):
    w = weights(x)
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=jnp.log1p(jnp.exp(y)))


def bound(model, x=X, y=Y, relation="zero_out", **options):
    private_size = relation == "add_remove"
    split = PrivateModel(model, (x, y), private_size=private_size)
    given = {"step_size": 1e-5, "noise_multiplier": 5.0, **options}
    if private_size:
        given |= {"sampling_rate": 0.1, "max_records": 2 * N}
    kernel = given.pop("kernel", ndp.DPSGLD)(model, **given)
    return kernel.bind(split, num_steps=100, relation=relation, delta=1e-5)


def notes(kernel, **z):
    """What is said of a chain that ends at ``z``."""
    z = {name: jnp.asarray(value, jnp.float32) for name, value in z.items()}
    key = jax.random.key(0)
    return clipping_notes(kernel, kernel.start(key, z)._replace(i=jnp.int32(100)))


AT = {"w": [0.5, 1.0]}


def test_a_scale_that_a_clip_moves_is_named_and_a_wider_clip_is_not():
    at = {**AT, "sigma": 0.0}
    (note,) = notes(bound(linear, clip_norm=1.0), **at)
    assert note.first
    assert note.text.startswith("Clipping moves 'sigma' downwards by about")
    assert "A larger clip_norm" in note.text
    assert note.sign == "are moved by clipping ('sigma')"
    assert notes(bound(linear, clip_norm=20.0), **at) == ()


@pytest.mark.parametrize(
    ("model", "x", "clip", "site"),
    [
        (counts, X, 0.5, "w"),
        (counts, X, 200.0, None),
        pytest.param(heavy_tailed, X, 1.0, None, marks=pytest.mark.slow),
        pytest.param(logistic, GROUPS, 2.0, None, marks=pytest.mark.slow),
        pytest.param(logistic, 30 * X, 1000.0, None, marks=pytest.mark.slow),
    ],
    ids=["counts", "counts, wide clip", "heavy tails", "one-hot", "unscaled"],
)
def test_what_others_write_is_told_apart(model, x, clip, site):
    w = np.array([0.5, 1.0, 0.0, -1.0])[: x.shape[1]] / np.abs(x).max()
    found = notes(bound(model, x, (Y > 0).astype(np.int32), clip_norm=clip), w=w)
    assert [note.sign for note in found] == ([f"are moved by clipping ({site!r})"] if site else [])


@pytest.mark.parametrize(
    ("of_sigma", "named"), [(1.0, True), pytest.param(20.0, False, marks=pytest.mark.slow)]
)
def test_a_bound_for_each_site_and_a_preconditioner_count(of_sigma, named):
    """The same clip in other words: gradients over their bounds, or times the root of G."""
    by_site = bound(linear, clip_norm={"w": 20.0, "sigma": of_sigma})
    preconditioner = {"w": 20.0**-2, "sigma": of_sigma**-2}
    scaled = bound(linear, clip_norm=1.0, preconditioner=preconditioner)
    fisher = bound(linear, clip_norm={"w": 20.0, "sigma": of_sigma}, kernel=ndp.DPSGFS)
    for kernel in (by_site, scaled, fisher):
        found = notes(kernel, **AT, sigma=0.0)
        assert [note.sign for note in found] == ["are moved by clipping ('sigma')"] * named


def test_chains_and_a_private_number_of_records_are_taken():
    kernel = bound(linear, clip_norm=1.0, relation="add_remove")
    key, z = jax.random.split(jax.random.key(0)), {"w": jnp.tile(jnp.array(AT["w"]), (2, 1))}
    last = kernel.init(key, 0, {**z, "sigma": jnp.zeros(2)})
    (note,) = clipping_notes(kernel, last)
    assert "'sigma'" in note.text
    assert str(N) not in note.text


def test_where_made_up_outcomes_would_not_be_the_model_s_nothing_is_said(monkeypatch):
    assert notes(bound(on_a_log_scale, clip_norm=0.01), **AT) == ()
    assert notes(bound(linear, clip_norm=np.inf, noise_multiplier=0.0), **AT, sigma=0.0) == ()
    kernel = bound(linear, clip_norm=1.0)
    assert notes(kernel, **AT, sigma=0.0)

    def broken(self, clip_norm):
        raise NotImplementedError

    # What fails on the way takes no draws with it.
    monkeypatch.setattr("numpyro_dp.mcmc.sgmcmc.bias.outcomes", broken)
    assert notes(kernel, **AT, sigma=0.0) == ()


@pytest.mark.slow
def test_the_note_is_the_first_of_a_run_and_a_trial_has_none(capsys):
    kernel = ndp.DPSGLD(linear, step_size=2e-5, clip_norm=1.0, noise_multiplier=100.0)
    mcmc = ndp.MCMC(kernel, num_warmup=0, num_samples=100, progress_bar=False)
    start = {"w": jnp.array(AT["w"]), "sigma": jnp.array(0.0)}
    mcmc.run(jax.random.key(0), X, Y, init_params=start)
    assert mcmc.privacy.notes[0].startswith("Clipping moves 'sigma' downwards")
    # It is also the first that the run itself says.
    assert capsys.readouterr().err.startswith("note  Clipping moves 'sigma' downwards")
    states = {"z": {name: rows[:, :99] for name, rows in mcmc.get_samples(True).items()}}
    bound_kernel = kernel.bind(
        PrivateModel(linear, (X, Y)), num_steps=100, relation="zero_out", delta=1e-5
    )
    few = drawn_notes(bound_kernel, states, mcmc.last_state, thinning=1)
    assert not any("Clipping" in note.text for note in few)
