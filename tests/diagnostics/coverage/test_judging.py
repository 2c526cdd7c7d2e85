"""What may be said of intervals: alarms and passes at the stated rates, and a newcomer's cases."""

import numpy as np
import pytest
from scipy.stats import norm

from numpyro_dp.diagnostics.coverage.judging import Distances, Share, too_narrow
from numpyro_dp.diagnostics.coverage.posteriors import Posteriors
from numpyro_dp.diagnostics.coverage.result import CoverageResult

SITES = {"mu": (3,), "p": (3,), "s": (3,)}


def judged(z, level=0.95, verdicts=None, shapes=None, reference=None):
    """Coverage of normal posteriors of sd 1 about 0, by how far the truths lie off."""
    z = np.asarray(z, float)
    half = norm.ppf((1 + level) / 2)
    spread = 50.0 * np.random.default_rng(0).normal(size=z.shape)

    def posteriors(off, said):
        mean, ones = spread - off, np.ones_like(off)
        return Posteriors(mean, ones, mean - half, mean + half, norm.cdf(off), said)

    fitted = posteriors(z, verdicts or ((),) * len(z))
    beside = None if reference is None else posteriors(np.asarray(reference), ((),) * len(z))
    shapes = shapes or {"w": z.shape[1:]}
    name = "" if beside is None else "NUTS"
    return CoverageResult("m", level, 10, shapes, spread, fitted, name, beside)


def simulated(rng, datasets, dim, correlation=0.0, runs=()):
    common = rng.normal(size=(*runs, datasets, 1))
    own = rng.normal(size=(*runs, datasets, dim))
    return correlation**0.5 * common + (1 - correlation) ** 0.5 * own


def missing(counts):
    """Data sets of nine truths, of which so many lie 2.5 sds off."""
    return [[2.5] * count + [0.5] * (9 - count) for count in counts]


# How many of nine truths each data set of a mixture missed, in a newcomer's three runs.
TEN = [1, 0, 0, 3, 0, 5, 3, 0, 5, 0]
NEWCOMERS = {
    "0.811 ± 0.074": TEN,
    "0.850 ± 0.060": [9, 0, 1, 0, 0, 0, 0, 0, 0, 0, 3, 1, 2, 1, 0, 1, 2, 7, 0, 0],
    "0.885 ± 0.032": [*TEN, 0, 0, 0, 0, 0, 0, 2, 3, 1, 0, 0, 0, 2, 1, 0, 1, 4, 0, 0, 0],
}


@pytest.mark.parametrize("printed", NEWCOMERS)
def test_data_sets_that_differ_do_not_make_it_kind(printed):
    found = judged(missing(NEWCOMERS[printed]), shapes=SITES)
    assert f"held {printed}" in str(found)
    assert "hold what they say" not in found.judgement
    assert "too rarely" in found.judgement


@pytest.mark.parametrize("level", [0.5, 0.8, 0.95, 0.99])
@pytest.mark.parametrize(("datasets", "dim"), [(10, 9), (20, 1), (20, 9), (60, 3)])
@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_alarms_and_passes_are_as_rare_as_stated(level, datasets, dim, correlation):
    """300 runs, fixed seed: the bars are the stated rates and three standard errors."""
    z = np.abs(simulated(np.random.default_rng(0), datasets, dim, correlation, (300,)))
    half = norm.ppf((1 + level) / 2)
    right = [Share.of(held, level) for held in z < half]
    short = [Share.of(held, level) for held in z < 0.75 * half]
    assert np.mean([share.too_rare(level) for share in right]) < 0.03 + 0.03
    stated = 0.18 if level == 0.99 else 0.13 if datasets < 20 else 0.08
    assert np.mean([share.tells(level) for share in short]) < stated + 0.055


@pytest.mark.parametrize(
    ("dim", "correlation", "least"), [(9, 0.5, 0.8), (30, 0.0, 0.97), (1, 0.0, 0.35)]
)
def test_right_intervals_are_mostly_told_so(dim, correlation, least):
    """200 runs of twenty data sets, by the whole sentence; three standard errors are given."""
    rng = np.random.default_rng(1)
    said = [judged(simulated(rng, 20, dim, correlation)).judgement for _ in range(200)]
    assert np.mean(["hold what they say" in each for each in said]) > least - 0.1
    assert not any("always" in each for each in said)
    assert sum("rarely" in each for each in said) < 200 * (0.03 + 0.01) + 9


def test_the_number_of_data_sets_asked_for_tells():
    rng, told = np.random.default_rng(2), []
    for _ in range(60):
        share = Share.of(np.abs(simulated(rng, 10, 3, 0.5)) < 1.96, 0.95)
        enough = share.enough(0.95)
        assert enough > 10
        told.append(Share.of(np.abs(simulated(rng, enough, 3, 0.5)) < 1.96, 0.95).tells(0.95))
    assert np.mean(told) > 0.7


def test_ten_data_sets_of_one_number_cannot_tell():
    found = judged(np.full((10, 1), 0.5))
    assert "but 10 data sets cannot tell 95% intervals from 86% ones; num" in found.judgement
    half = [("do not use: torn",)] * 5 + [()] * 5
    refused = judged(np.full((10, 1), 0.5), verdicts=half).judgement
    assert "5 usable data sets cannot tell" in refused
    alone = judged(np.full((3, 1), 0.5), verdicts=[("do not use: torn",)] * 2 + [()]).judgement
    assert "1 usable data set is too few to judge by" in alone
    assert "3 data sets are too few to judge by" in judged(np.full((3, 1), 0.5)).judgement
    # Half of them will be refused again.
    ask = [int(text.split("num_datasets=")[1].split()[0]) for text in (found.judgement, refused)]
    assert ask[1] >= 2 * ask[0] - 10
    assert too_narrow(0.95) == pytest.approx(0.8585, abs=1e-3)


GOOD = 0.8 * np.random.default_rng(3).normal(size=(40, 9))


def with_miss(off, said=()):
    z = GOOD.copy()
    z[17, 8] = off
    return judged(z, shapes=SITES, verdicts=((),) * 17 + (said,) + ((),) * 22)


def test_a_gross_miss_is_named_with_what_was_said_of_it():
    found = with_miss(11.4)
    start = "intervals do not always hold: data set 17 lay 11.4 of its own sds off"
    assert found.judgement.startswith(f"{start} and nothing was said of it: give what was missed")
    (line,) = [each for each in str(found).splitlines() if "missed most" in each]
    assert line.startswith("  data set 17, which said nothing, lay 11.4 of its own sds off; ")
    assert f"missed most: s[2] {found.truths[17, 8]:.3g} (found " in line
    careful = with_miss(-19.2, ("with care: the rounds disagree",)).judgement
    said = f"{start.replace('11.4', '19.2')} and said `with care` at worst: give what was missed"
    assert careful.startswith(said)
    # One that refuses itself is counted, and does not speak against the others.
    refused = with_miss(19.2, ("do not use: torn",))
    assert "hold what they say, as far as 39 usable data sets tell; 1 of 40" in refused.judgement
    assert "missed most" not in str(refused)


def test_a_miss_that_may_be_chance_is_named_and_not_judged_by():
    assert "hold what they say" in with_miss(5.5).judgement
    assert "data set 17, which said nothing, lay 5.5" in str(with_miss(5.5))
    assert "missed most" not in str(with_miss(4.5))
    two = GOOD.copy()
    two[[3, 9], [0, 1]] = 5.5, 5.4
    assert "do not always hold: data set 3 lay 5.5" in judged(two).judgement


def test_few_data_sets_still_tell_of_a_gross_miss():
    assert judged(np.zeros((3, 2))).judgement == "3 data sets are too few to judge by"
    none = judged(np.zeros((3, 2)), verdicts=[("do not use: torn",)] * 3)
    assert none.judgement.startswith("no fit is left to judge; 3 of 3 fits say `do not use`")
    found = judged([[0.0, 0.0], [0.0, 9.0], [0.0, 0.0]]).judgement
    assert found.startswith("intervals do not always hold: data set 1 lay 9 of its own sds off")


def test_a_reference_is_held_to_the_same():
    found = judged(GOOD, reference=GOOD)
    assert "no measure" not in found.judgement
    assert "NUTS itself holds too few" in judged(GOOD, reference=3 * GOOD).judgement
    off = GOOD.copy()
    off[17, 8] = 11.4
    assert "off (NUTS: 1" in str(judged(off, reference=np.clip(GOOD, -1.2, 1.2)))


def test_a_site_too_few_of_whose_are_held_is_named_where_the_rest_tells_nothing():
    z = np.full((10, 10), 0.5)
    z[:4, 9] = 2.5
    # Data sets that hang together: few truths' worth.
    z[4, :6] = 2.5
    said = judged(z, shapes={"a": (9,), "b": ()}).judgement
    assert said.startswith("intervals of `b` hold the truth too rarely; of the others 10 data sets")


def test_what_is_the_same_everywhere_is_no_miss_and_no_spread_is_one():
    truths = np.stack([np.ones(6), np.arange(6.0)], axis=1)
    same = Distances.of(truths, truths * np.array([1 + 1e-7, 1.0]), np.zeros((6, 2)))
    assert not same.off.any()
    point = Distances.of(truths, truths + np.array([0.0, 0.1]), np.zeros((6, 2)))
    assert point.worst.min() > 1_000
    # Draws that are not finite are counted as missed, and are no distance.
    unknown = Distances.of(truths, np.full((6, 2), np.nan), np.full((6, 2), np.nan))
    assert unknown.named(range(6)) == []


def test_of_several_gross_misses_the_one_that_warned_least_is_named():
    """Whoever read *with care* was told; a miss that called itself wide is what to know of."""
    z, said = GOOD.copy(), [()] * 40
    z[5, 8], z[17, 8] = 19.2, 11.4
    said[5], said[17] = ("with care: the rounds disagree",), ("wide: little was told of s[2]",)
    judgement = judged(z, shapes=SITES, verdicts=tuple(said)).judgement
    said = "intervals do not always hold: data set 17 lay 11.4 of its own sds off and said `wide`"
    assert judgement.startswith(f"{said} at worst: ")
