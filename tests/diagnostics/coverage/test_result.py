"""What is counted, from tables made by hand."""

from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pytest

from numpyro_dp.diagnostics.coverage.posteriors import Posteriors, summarised
from numpyro_dp.diagnostics.coverage.result import CoverageResult
from numpyro_dp.model.names import coordinates_of

DATASETS, SHAPES = 400, {"w": (2,), "scale": ()}


def made(rng, truths, narrow=1.0, verdicts=(), off=1.0):
    """Posteriors of sd 1 whose means are off by as much, and what is said of them."""
    means = truths + off * rng.normal(size=truths.shape)
    # A truth is at the same rank in a posterior as in one about its own mean.
    ranks = (np.argsort(np.argsort((truths - means), axis=0), axis=0) + 0.5) / len(truths)
    said = (*verdicts, *((),) * (len(truths) - len(verdicts)))
    half = 1.96 * narrow
    return Posteriors(means, np.full_like(means, narrow), means - half, means + half, ranks, said)


@pytest.fixture(scope="module")
def found():
    rng = np.random.default_rng(0)
    truths = rng.normal(size=(DATASETS, 3))
    verdicts = [
        ("do not use: not arrived: 3.1 sds",),
        ("do not use: not arrived: 4.0 sds", "2.5 times too wide"),
    ]
    halved, exact = made(rng, truths, 0.5, verdicts), made(rng, truths)
    return CoverageResult("Halved", 0.95, 1_000, SHAPES, truths, halved, "Exact", exact)


def test_short_intervals_are_caught_and_right_ones_are_not(found):
    """.674 is what ±.98 sds hold; the errors are of 400 sets of three independent coordinates."""
    pooled = found.pooled
    assert pooled.coverage == pytest.approx(0.674, abs=4 * pooled.standard_error)
    assert pooled.reference == pytest.approx(0.95, abs=4 * pooled.reference_error)
    assert pooled.standard_error == pytest.approx((0.674 * 0.326 / 1_200) ** 0.5, rel=0.2)
    assert pooled.difference == pytest.approx(pooled.coverage - pooled.reference)
    assert pooled.width == pytest.approx(0.5)
    assert pooled.rmse == pytest.approx(1.0, abs=0.15)
    assert set(found.sites) == {"w", "scale"}


def test_verdicts_are_counted_without_their_numbers(found):
    assert found.verdicts == {"do not use: not arrived": 2, "… times too wide": 1}


def test_the_worst_that_was_said_is_shown_first():
    """Though others were said more often: of five, four are shown."""
    often = tuple(f"wide: of {each}" for each in "abcd")
    at = judged(verdicts=[often, often, ("do not use: the chains have not mixed", "a remark")])
    first, *_, last = at.verdicts
    assert (first, last) == ("do not use: the chains have not mixed", "a remark")
    assert "do not use: the chains have not mixed (1); wide: of a (2)" in str(at)


def test_what_was_said_is_counted_and_the_most_frequent_shown(found):
    each = [tuple(f"wide: of {'abcdefg'[:k]}" for k in range(1, n)) for n in range(8, 1, -1)]
    fitted = found.fitted._replace(verdicts=(*each, *((),) * (DATASETS - len(each))))
    text = str(replace(found, fitted=fitted))
    assert "wide: of a (7); wide: of ab (6); wide: of abc (5); wide: of abcd (4); and 3 oth" in text


@pytest.mark.parametrize(("decided", "said"), [(3, False), (4, True)])
def test_data_sets_that_leave_nothing_to_chance_are_named(found, decided, said):
    """A third of nine or more, each with one outcome for 99 records of a hundred."""
    nine = replace(
        found,
        truths=found.truths[:9],
        fitted=Posteriors(*(each[:9] for each in found.fitted)),
        reference=None,
        alike=(*[0.99] * decided, *[0.98] * (9 - decided)),
    )
    assert ("in 4 of 9 data sets nearly all outcomes are alike" in str(nine).lower()) is said


def test_the_table_says_it(found):
    text = str(found)
    assert text.startswith("Halved: 95% intervals held 0.6")
    assert "(400 data sets of 1000 records)\n  inputs: as given, taken as public" in text
    assert "do not use: not arrived (2); … times too wide (1)" in text
    assert "width: median, as a multiple of Exact's; error: root mean square" in text
    assert "not finite" not in text


def judged(narrow=1.0, verdicts=(), datasets=DATASETS, spread=5.0, off=1.0):
    """Coverage of intervals of so many sds; the truths spread as far as the prior."""
    rng = np.random.default_rng(1)
    truths = spread * rng.normal(size=(datasets, 3))
    return CoverageResult(
        "m", 0.95, 10, SHAPES, truths, made(rng, truths, narrow, verdicts, off=off)
    )


def test_fits_are_counted_by_the_worst_that_was_said_of_them(found):
    assert found.ranks == {"do not use": 2, "no note": 398}
    said = [("wide: a", "do not use: b"), ("wide: a", "with care: c"), ("diverged",), ("wide: a",)]
    few = judged(verdicts=said, datasets=5)
    assert few.ranks == {
        "do not use": 1, "with care": 1, "wide": 1, "other notes": 1, "no note": 1
    }  # fmt: skip
    assert "do not use 1, with care 1, wide 1, other notes 1, no note 1" in str(few)
    assert "by the worst" not in str(judged())


def test_the_truths_that_a_fit_could_not_bear_are_shown():
    found = judged(verdicts=[(), (), ("do not use: b",), ()], datasets=20)
    assert "it said so" not in str(judged())
    found.truths[2] = [0.0, 50.0, -70.0]
    (line,) = [each for each in str(found).splitlines() if "it said so" in each]
    assert line.startswith("  it said so of data set 2 (b), whose truths farthest out are ")
    # The farthest of three first, and not what is like the others.
    names = coordinates_of(SHAPES)
    assert line.index(f"{names[2]} -70 (half of all: ") < line.index(f"{names[1]} 50 (")
    assert f"{names[0]} 0 (" not in line


def test_the_average_without_what_the_method_refused_itself():
    """Half of the fits are of another truth, and say so."""
    good, bad = judged(), judged(off=9.0)
    half = DATASETS // 2
    pairs = zip(bad.fitted[:5], good.fitted[:5], strict=True)
    tables = [np.r_[refused[:half], table[half:]] for refused, table in pairs]
    said = ((("do not use: torn",),) * half) + ((),) * half
    truths = np.r_[bad.truths[:half], good.truths[half:]]
    mixed = CoverageResult("m", 0.95, 10, SHAPES, truths, Posteriors(*tables, said))
    assert mixed.pooled.coverage < 0.7
    assert mixed.usable[0] == pytest.approx(0.95, abs=4 * mixed.usable[1])
    assert f"where it did not say `do not use`, {mixed.usable[0]:.3f}" in str(mixed)
    # What refuses itself is counted, not judged.
    assert f"hold what they say, as far as {half} usable data sets tell" in mixed.judgement
    assert f"{half} of {DATASETS} fits say `do not use`" in mixed.judgement
    assert "if only truths far out in the prior do, narrow it" in mixed.judgement
    # Where no fit is left there is no such average.
    none = judged(verdicts=[("do not use: torn",)] * DATASETS)
    assert np.isnan(none.usable[0])
    assert "did not say" not in str(none)


@pytest.mark.parametrize(
    ("options", "says", "says_not"),
    [
        ({}, "hold what they say, as far as 400 data sets", "wide"),
        ({"narrow": 0.5}, "too rarely", "hold what they say"),
        ({"narrow": 3.0}, "they are too wide", "hold what they say"),
        # Twenty data sets that all hold their truths are no finding.
        ({"datasets": 20, "narrow": 1.4}, "hold what they say, as far as 20", "too wide"),
        ({"spread": 1.0}, "little was learnt", "do not use"),
        ({"verdicts": [("wide: little was told",)]}, "hold what they say", "do not use"),
    ],
)
def test_the_last_sentence_judges(options, says, says_not):
    found = judged(**options)
    assert says in found.judgement
    assert says_not not in found.judgement
    last = " ".join(line.strip() for line in str(found).splitlines())
    assert last.endswith(f"In short: {found.judgement}.")


def test_one_bad_site_among_good_ones_is_named():
    rng = np.random.default_rng(2)
    truths = 5.0 * rng.normal(size=(DATASETS, 21))
    good, bad = made(rng, truths), made(rng, truths, 0.8)
    pairs = zip(good[:5], bad[:5], strict=True)
    tables = [np.c_[table[:, :20], narrow[:, 20:]] for table, narrow in pairs]
    fitted = Posteriors(*tables, good.verdicts)
    found = CoverageResult("m", 0.95, 10, {"w": (20,), "scale": ()}, truths, fitted)
    assert "hold what they say" in found.judgement
    assert "but those of `scale` too rarely" in found.judgement


def test_draws_that_are_not_finite_miss_their_truth():
    draws = {"w": np.full((50, 2), [0.0, np.nan]), "scale": np.linspace(-1, 1, 50)}
    truth = {"w": np.zeros(2), "scale": np.zeros(())}
    *tables, rank = summarised(draws, truth, 0.95)
    one = Posteriors(*(np.stack([t] * 2) for t in (*tables, rank)), ((), ()))
    found = CoverageResult("m", 0.95, 10, SHAPES, np.zeros((2, 3)), one)
    assert found.num_failed == 2
    assert found.pooled.coverage == pytest.approx(2 / 3)
    assert "not finite, counted as missed: 2" in str(found)
    # A truth among equal draws is in their middle.
    np.testing.assert_allclose(rank, [0.5, np.nan, 0.5])


def test_without_a_reference_widths_are_the_parameters_own(found):
    alone = CoverageResult("m", 0.95, 10, SHAPES, found.truths, found.fitted)
    assert alone.pooled.width == pytest.approx(1.96)
    assert np.isnan(alone.pooled.difference)
    assert "on the same" not in str(alone)
    assert "width: median, in its own units" in str(alone)


def test_draws_of_another_shape_are_refused():
    with pytest.raises(ValueError, match="draws of site `w` must have shape"):
        summarised({"w": np.zeros((50, 3))}, {"w": np.zeros(2)}, 0.95)


@pytest.mark.parametrize("kind", ["rank", "level"])
def test_pictures(found, kind):
    axes = found.plot(plt.figure().subplots(), kind=kind)
    assert {text.get_text() for text in axes.get_legend().texts} >= {"Halved", "Exact"}
    plt.close("all")


def test_another_picture_is_refused(found):
    with pytest.raises(ValueError, match="kind is"):
        found.plot(kind="forest")


def test_arviz_gets_truths_and_their_ranks(found):
    data = found.to_inference_data()
    assert data.prior_sbc["w"].shape == (1, DATASETS, 2)
    assert data.prior["scale"].shape == (1, DATASETS)
    assert float(data.prior_sbc["w"].min()) > 0
    assert data.prior.attrs["method"] == "Halved"


def test_data_sets_that_missed_most_are_named_where_intervals_hold_too_rarely():
    rng = np.random.default_rng(1)
    truths = rng.normal(size=(20, 3))
    narrow, right = made(rng, truths, 0.6), made(rng, truths)
    text = str(CoverageResult("Narrow", 0.95, 1_000, SHAPES, truths, narrow))
    assert "hold the truth too rarely" in text
    most = int(np.argmin(narrow.holds(truths).mean(1)))
    assert f"data set {most}, which said nothing, lay " in text
    assert text.count("truths missed most: ") == 3
    assert "missed most" not in str(CoverageResult("Right", 0.95, 1_000, SHAPES, truths, right))
