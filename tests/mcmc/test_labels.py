"""A user's own names for coordinates, in notes and in the table of draws."""

import pickle

import jax
import numpy as np
import pytest

import numpyro_dp as ndp
from numpyro_dp.mcmc.sgmcmc.integrator import Note
from numpyro_dp.scoring.verdicts.kinds import Verdict
from numpyro_dp.scoring.verdicts.labels import in_table, in_text, renamed
from tests.models import logistic

DRAWS = {
    "w": np.zeros((2, 9, 3)),
    "new_w": np.zeros((2, 9, 3)),
    "a/w": np.zeros((2, 9, 3)),
    "cell": np.zeros((2, 9, 2, 2)),
    "b": np.zeros((2, 9)),
}


@pytest.fixture(scope="module")
def ran():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2_000, 3)), rng.integers(2, size=2_000)
    kernel = ndp.DPNUTS(logistic, privacy=ndp.Budget(1.0, 1e-5))
    mcmc = ndp.MCMC(kernel, num_warmup=50, num_samples=50, progress_bar=False)
    mcmc.run(jax.random.key(0), x.astype(np.float32), y.astype(np.int32))
    return mcmc


def test_names_stand_for_numbers_and_for_no_other_sites():
    named = renamed(DRAWS, {"w": ["age", "body mass", "x\n\x1b[2J"], "cell": [1, 2, 3, "last"]})
    text = "wide: little was told of w[0]–w[1], new_w[0], a/w[0], w[2], w[10], cell[1,1], b: do."
    assert in_text(text, named) == (
        "wide: little was told of w[age]–w[body\xa0mass], new_w[0], a/w[0], "
        "w[x\xa0\\x1b[2J], w[10], cell[last], b: do."
    )
    assert in_text(text, {}) == text


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ({"w": ["age"]}, "names 1 coordinates, the site has 3"),
        ({"v": [1]}, "sites: 'w', 'new_w'"),
        ({"w": 3}, "must be a row of names"),
        (["age", "income", "sex"], "names by site"),
    ],
)
def test_names_of_another_number_or_site_are_refused(labels, said):
    with pytest.raises(ValueError, match=said):
        renamed(DRAWS, labels)


def test_a_table_is_as_wide_as_its_names(ran, capsys):
    before = dict(ran.get_samples())
    ran.print_summary()
    plain = capsys.readouterr().out.splitlines()
    names = {"w": ["intercept", "years of marriage, so far", "age"]}
    ran.print_summary(labels=names)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(plain)
    # The same numbers to the letter, the same edge on the right.
    rows = [(a, b) for a, b in zip(plain, lines, strict=True) if "w[" in a]
    assert [b.rsplit(maxsplit=7)[0].strip() for _, b in rows] == [f"w[{n}]" for n in names["w"]]
    assert all(a.split()[-7:] == b.split()[-7:] for a, b in rows)
    header = next(line for line in lines if "n_eff" in line)
    assert {len(b) for _, b in rows} == {len(header)}
    assert dict(ran.get_samples()).keys() == before.keys()


def test_a_table_of_nothing_stays():
    assert in_table(["", "x"], {"w[0]": "w[age]"}) == ["", "x"]


def test_notes_before_a_table_have_them_too(ran, capsys):
    note = Note("with care: of w[1] little is known. Merge it", "w[1] unknown", first=True)
    ran._described = ran._described._replace(drawn=(note,))
    ran.print_summary(labels={"w": ["a", "b", "c"]})
    assert "with care: of w[b] little is known" in capsys.readouterr().out
    # A script acts on a rank, here and where it was kept.
    for found in (ran.verdicts, pickle.loads(pickle.dumps(ran)).verdicts):
        assert found[0].rank == "with care"


def test_what_has_no_rank_says_so():
    assert Verdict("R-hat is 3: too much").rank == ""
