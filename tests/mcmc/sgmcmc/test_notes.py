"""What there is to act on comes first, and no table of draws is shown without its sign."""

import copy
import json

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import numpyro_dp as ndp
from numpyro_dp.accounting.events import GaussianDpEvent
from numpyro_dp.mcmc.sgmcmc.integrator import in_one_line
from numpyro_dp.mcmc.sgmcmc.relaxation import drawn_notes
from numpyro_dp.model.private_model import PrivateModel


def scaled(x):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    sigma = numpyro.sample("sigma", dist.LogNormal(0, 1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("x", dist.Normal(mu, sigma), obs=x)


X = np.linspace(-1, 1, 40, dtype=np.float32)


def kernel(**changes):
    given = {"step_size": 1e-3, "clip_norm": 2.0, "noise_multiplier": 200.0, **changes}
    return ndp.DPSGLD(scaled, **given)


@pytest.fixture(scope="module")
def hot():
    """Steps at which the noise is a hundred times what is asked for, of a tempered likelihood."""
    mcmc = ndp.MCMC(
        kernel(likelihood_power=0.5, step_size=1e-2), num_warmup=0, num_samples=20,
        progress_bar=False,
    )  # fmt: skip
    mcmc.run(jax.random.key(0), X)
    return mcmc


def test_notes_come_first_and_the_most_harmful_before_the_others(hot):
    notes = hot.privacy.notes
    assert [words in note for words, note in zip(
        ("temperature", "relaxation times", "tempered posterior"), notes, strict=True
    )] == [True] * 3  # fmt: skip
    for wrapped in (hot.privacy.full(), hot.privacy.to_markdown()):
        text = " ".join(wrapped.split())
        assert text.index("The privacy noise exceeds") < text.index("membership advantage")
        assert text.index("differential privacy") < text.index("The privacy noise exceeds")
    for text in (str(hot.privacy), hot.privacy._repr_html_()):
        assert text.index("The privacy noise exceeds") < text.index("relaxation times")
        assert text.index("tempered posterior") < text.index("ε = ")


def test_a_table_of_draws_has_its_sign(hot, capsys):
    hot.print_summary()
    shown = capsys.readouterr().out
    line = shown.splitlines()[0]
    # The end of the run has shown them whole.
    assert line.startswith("3 notes: see .privacy (these draws are 10 times too wide (temperature")
    assert "too few to show a posterior)" in line
    assert shown.index("3 notes") < shown.index("mean")
    assert shown.strip().splitlines()[-1].startswith("ε=")
    # Where nobody has seen them, the table has them before it.
    unseen = copy.copy(hot)
    unseen._described = hot._described._replace(shown=False)
    unseen.print_summary()
    shown = capsys.readouterr().out
    assert shown.startswith("note  The privacy noise exceeds")
    assert shown.index("relaxation times") < shown.index("mean")
    assert "see .privacy" not in shown


def test_the_end_of_a_run_says_that_there_are_notes(capsys):
    mcmc = ndp.MCMC(kernel(), num_warmup=0, num_samples=20, progress_bar=False)
    mcmc.run(jax.random.key(0), X)
    told = capsys.readouterr()
    notes, lines = mcmc.privacy.notes, told.err.strip().splitlines()
    assert told.out == ""
    assert [line[:6] for line in lines if line[0] != " "] == ["note  "] * len(notes)
    # They take a part of the screen, and are whole where they are no more than two.
    for note in notes:
        assert f"note  {note[:40]}" in told.err
    assert len(lines) <= 12
    assert max(map(len, lines)) <= 100
    assert "print(mcmc.privacy" not in told.err
    # Nothing to act on, nothing said: long enough and cool.
    calm = kernel(noise_multiplier=0.5, step_size=0.5)
    quiet = ndp.MCMC(calm, num_warmup=0, num_samples=5, progress_bar=False)
    quiet.run(jax.random.key(0), X)
    assert quiet.privacy.notes == ()
    quiet.print_summary()
    shown = capsys.readouterr()
    assert "note" not in shown.out + shown.err


def test_arviz_carries_the_sign(hot):
    attributes = ndp.from_numpyro(hot).posterior.attrs
    assert attributes["dp_notes"].startswith("3 notes: see dp_statement (these draws are 10 times")
    assert json.loads(attributes["dp_statement"])["notes"] == list(hot.privacy.notes)


@pytest.mark.parametrize("noise", [200.0, 201.0, 207.0, 213.0])
@pytest.mark.parametrize(
    "family",
    [
        (ndp.DPSGLD, {}),
        (ndp.DPSGHMC, {"friction": 10.0}),
        (ndp.DPSGNHT, {"diffusion": 10.0}),
    ],
    ids=lambda given: given[0].__name__,
)
def test_a_temperature_is_mended_by_the_step_size_it_names(family, noise):
    """The remedy's own number, to its last digit, is free of the note."""
    wall, made = PrivateModel(scaled, (X,)), family[0]
    given = {"num_steps": 10, "relation": "zero_out", "delta": 1e-5}

    def bound(step_size):
        options = {"clip_norm": 2.0, "noise_multiplier": noise, **family[1]}
        return made(scaled, step_size=step_size, **options).bind(wall, **given)

    hot = bound(1e-3)
    (note,) = hot.integrator.notes(hot.gradient_sd)
    if made is ndp.DPSGLD:
        width = np.sqrt(1e-3 * (2 * noise) ** 2 / 4)
        assert note.sign == f"are {width:.3g} times too wide (temperature {width**2:.3g})"
    free = float(note.text.split("A step_size of at most ")[1].split()[0])
    cool = bound(free)
    found = cool.integrator.notes(cool.gradient_sd)
    assert not any("too wide" in note.sign for note in found)


def state_at(bound, mu, log_sigma, i=400):
    z = {"mu": jnp.float32(mu), "sigma": jnp.float32(log_sigma)}
    return bound.start(None, z)._replace(i=jnp.asarray(i))


def drawn(bound, mu, log_sigma, width=0.1):
    rng = np.random.default_rng(0)
    z = {"mu": mu + width * rng.normal(size=(1, 400)),
         "sigma": log_sigma + 0.1 * rng.normal(size=(1, 400))}  # fmt: skip
    states = {"z": jax.vmap(jax.vmap(bound.private_model.constrain))(z)}
    return drawn_notes(bound, states, state_at(bound, mu, log_sigma), thinning=1)


@pytest.mark.parametrize("site", ["sigma", "mu"])
def test_a_chain_that_ran_away_says_so(site):
    bound = kernel(step_size=0.1).bind(
        PrivateModel(scaled, (X,)), num_steps=10, relation="zero_out", delta=1e-5
    )
    (gone,) = drawn(bound, 0.0, -300.0) if site == "sigma" else drawn(bound, np.nan, 0.0)
    assert f"{site!r} has left for infinity, or for the edge" in gone.text
    assert "ndp.plan names a step_size" in gone.text
    assert gone.sign == f"have run away in {site!r}"
    assert drawn(bound, 0.0, 0.0) == ()


def test_draws_far_wider_than_their_prior_have_a_sign():
    """-960 ± 750 under a standard normal prior, with only its ε beside it."""
    bound = kernel().bind(PrivateModel(scaled, (X,)), num_steps=10, relation="zero_out", delta=1e-5)
    (slow,) = drawn(bound, -960.0, 0.0, width=750.0)[-1:]
    assert "too few to show a posterior" in slow.sign
    assert "a smaller clip_norm too, but at the price of a bias" in slow.text
    assert slow.text.index("More records") < slow.text.index("clip_norm")


@pytest.mark.slow
def test_a_schedule_is_judged_by_its_end():
    hot = kernel(step_size=lambda i: 1e-2 + 0 * i)
    mcmc = ndp.MCMC(hot, num_warmup=0, num_samples=20, progress_bar=False)
    mcmc.run(jax.random.key(0), X)
    assert "A schedule that ends at a step_size of at most 0.0000" not in mcmc.privacy.notes[0]
    assert "A schedule that ends at a step_size of at most 2.5e-05" in mcmc.privacy.notes[0]


def test_one_line():
    assert in_one_line((), ()) == ""
    assert in_one_line(("a",), ()) == "1 note: see .privacy"
    assert in_one_line(("a", "b"), ("x", "y")) == "2 notes: see .privacy (these draws x; y)"
    ranked = ("wide: little was told: at most 3%", "b")
    assert in_one_line(ranked, ()) == "2 notes: see .privacy (wide: little was told)"
    both = "2 notes: see .privacy (these draws x; wide: little was told)"
    assert in_one_line(ranked, ("x",)) == both


def test_an_unbounded_ledger_is_quoted_at_the_delta_of_the_run():
    accountant = ndp.Accountant()
    accountant.charge(GaussianDpEvent(10.0), label="earlier")
    mcmc = ndp.MCMC(
        ndp.DPSGLD(scaled, step_size=1e-3, clip_norm=2.0, privacy=ndp.Budget(1.0, 1e-5),
                   accountant=accountant),
        num_warmup=0, num_samples=5, progress_bar=False,
    )  # fmt: skip
    mcmc.run(jax.random.key(0), X)
    report = mcmc.privacy
    assert report.ledger_delta == report.delta == 1e-5
    assert report.ledger_epsilon == accountant.epsilon(1e-5) > report.epsilon
    assert "at δ = 1e-06" not in report.full().split("whole ledger")[1]
    # A budget's own δ is its promise, and stays.
    bounded = ndp.Accountant(ndp.Budget(3.0, 1e-6))
    other = ndp.MCMC(
        ndp.DPSGLD(scaled, step_size=1e-3, clip_norm=2.0, privacy=ndp.Budget(1.0, 1e-5),
                   accountant=bounded),
        num_warmup=0, num_samples=5, progress_bar=False,
    )  # fmt: skip
    other.run(jax.random.key(0), X)
    assert other.privacy.ledger_delta == 1e-6
    assert " left at δ=1e-06" in other._account.in_short(other.privacy)
