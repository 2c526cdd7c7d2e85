"""What is said of coordinates that the records were hardly heard on, and what is to be done."""

import pickle

import numpy as np
import numpyro
import pytest
from numpyro import distributions as dist

from numpyro_dp.accounting.report import short
from numpyro_dp.model.data_free import pooled_latents
from numpyro_dp.model.private_model import PrivateModel
from numpyro_dp.scoring.prior import bounded, ordered
from numpyro_dp.scoring.verdicts.kinds import Kind
from numpyro_dp.scoring.verdicts.trust import Located

COLUMNS = 30
NAMES = ["b", *(f"w[{k}]" for k in range(COLUMNS)), "z"]
DIM = len(NAMES)
W = np.arange(1, DIM - 1)
RARE = {"signal": np.where(np.isin(np.arange(DIM), [2, 3, 8]), 4.0, 30.0)}


def released(**fields):
    """A release of which nothing is said, but for what is changed."""
    ones, zeros, eye = np.ones(DIM), np.zeros(DIM), np.eye(DIM)
    fine = Located(
        *(eye, zeros, zeros, eye, ones, ones, ones, zeros),
        *(1.0, 1.0, 0.1, 0.0, 0.01, 1.0, 90, 0.5, False, 30.0 * ones, ones),
    )
    return fine._replace(**fields)


def one(at, kind=None, read=None):
    (said,) = at.verdicts(NAMES, read, kind)
    return said


def test_groups_whose_law_is_learned_are_good_to_know():
    """As small groups of any hierarchy: coverage of such was .94, and each was called wide."""
    learned = Kind(learned=["w"])
    said = one(released(**RARE), learned)
    assert said.startswith("to know: little was told of w[1], w[2], w[7]: the law that is")
    assert "too narrow where small groups are unlike large ones" in said
    assert "hierarchy), which narrows" not in said
    assert "Merge" not in said
    # What no record's term reads hangs on them: it is named.
    unread = [name not in "bz" for name in NAMES]
    assert "the law's own mean and scale (b, z) with it" in one(released(**RARE), learned, unread)
    # A law that stands fixed does not tell of the others, and what was not told at all is said.
    assert one(released(**RARE), Kind(learned=["a"])).startswith("wide: little was told of w[1], ")
    untold = one(released(resolved=np.where(W[4] == np.arange(DIM), 0.1, 1.0)), learned)
    assert untold.startswith("wide: next to nothing was told of w[4]")
    # After all that speaks against the release.
    both = released(**RARE, unresolved=True, misfit=3.0).verdicts(NAMES, kind=learned)
    assert [each.split(":")[0] for each in both] == ["with care", "wide", "to know"]


def test_a_script_has_all_coordinates_that_a_verdict_speaks_of():
    """Also where a note names six and how many more."""
    far = {"signal": np.where(np.isin(np.arange(DIM), W), 4.0, 40.0)}
    (said,) = released(**far, groups=np.isin(np.arange(DIM), W)).verdicts(NAMES)
    assert said.coordinates == tuple(NAMES[k] for k in W)
    assert pickle.loads(pickle.dumps(said)).coordinates == said.coordinates
    assert released(misfit=3.0).verdicts(NAMES)[0].coordinates == ()
    lost = released(resolved=np.where(W[4] == np.arange(DIM), 0.1, 1.0))
    assert [each.coordinates for each in lost.verdicts(NAMES)] == [("w[4]",)]


def test_where_all_are_told_as_little_it_is_not_that_few_records_speak():
    """Thirty columns: dense ones 1.6 times as wide as NUTS's, a rare one beside clear ones 2.4."""
    usual = np.full(DIM, 20.0)
    rare = np.where(W[4] == np.arange(DIM), 14.5, usual)
    assert released(signal=rare).verdicts(NAMES) == ()
    beside = np.where(rare < usual, rare, 1.5 * usual)
    assert one(released(signal=beside)).startswith("wide: little was told of w[4]: such")
    # A dispersion, say, may be off.
    single = released(signal=np.where(np.arange(DIM) == 0, 8.9, 30.0))
    assert one(single).startswith("with care: little was told of b: what was released hardly")
    # Of counts it may be that Poisson will do, or that some are wrong.
    counts = Kind(scales=["b"], counts=True)
    assert "Poisson will do; where a few are wrong codes" in one(single, counts)
    assert "Poisson" not in one(single) + one(single, counts._replace(scales=["z"]))
    # Far out in its prior it is named once.
    far = single._replace(out=np.where(np.arange(DIM) == 0, 4.0, single.out))
    assert "came out far from" in one(far, counts)
    assert "Poisson will do" in one(far, counts)
    assert single._replace(signal=np.where(np.arange(DIM) == 0, 9.1, 30.0)).verdicts(NAMES) == ()
    # A group is nearly as wide as others until far less is told of it.
    groups = np.isin(np.arange(DIM), W)
    at = released(signal=np.where(W[4] == np.arange(DIM), 9.0, 30.0), groups=groups)
    assert at.verdicts(NAMES) == ()
    fainter = at._replace(signal=np.where(W[4] == np.arange(DIM), 8.0, 30.0))
    assert one(fainter).startswith("wide: little was told of w[4]: such")


def test_an_entry_of_an_ordered_latent_that_is_unheard_is_not_wide_alone():
    """Steps of Normal(0, 10): the last at its prior, and the one before it 6.6 own sds off."""
    lost = released(resolved=np.where(W[4] == np.arange(DIM), 0.1, 1.0))
    said = one(lost, Kind(ordered=["w"]))
    assert said.startswith("do not use: next to nothing was told of w[4]: entries of an ordered")
    assert "Normal(0, 1)" in said
    assert one(lost, Kind(ordered=["a"])).startswith("wide: next to nothing was told of w[4]")


def test_which_latents_are_ordered():
    def cutpoints():
        law, steps = dist.Normal(0, 1).expand([4]).to_event(1), dist.transforms.OrderedTransform()
        cuts = numpyro.sample("cuts", dist.TransformedDistribution(law, steps))
        return cuts, numpyro.sample("sigma", dist.HalfNormal(1))

    assert ordered(rows(cutpoints)) == ["cuts"]
    assert ordered(rows(hierarchy)) == []


def rows(law):
    def outcome(group, y):
        effect, sigma = law()
        with numpyro.plate("N", len(y)):
            numpyro.sample("y", dist.Normal(effect[group], sigma), obs=y)

    return PrivateModel(outcome, (np.zeros(40, np.int32), np.zeros(40, np.float32)))


def effects(of_groups):
    with numpyro.plate("groups", 5):
        return numpyro.sample("effect", of_groups)


def hierarchy():
    mu, tau = numpyro.sample("mu", dist.Normal(0, 1)), numpyro.sample("tau", dist.HalfNormal(1))
    return effects(dist.Normal(mu, tau)), 1.0


def about_what_is_heard():
    tau, sigma = (numpyro.sample(name, dist.LogNormal(0, 1)) for name in ("tau", "sigma"))
    return effects(dist.StudentT(4.0, 0.0, tau)), sigma


def in_units_of_errors():
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    return effects(dist.Normal(0, sigma)), sigma


def fixed():
    # A law of its own that is learned does not make that of the effects so.
    numpyro.sample("beside", dist.Normal(numpyro.sample("mu", dist.Normal(0, 1)), 1))
    return effects(dist.Normal(0, 1)), 1.0


@pytest.mark.parametrize(
    ("law", "learned", "scales"),
    [
        (hierarchy, {"effect"}, ["tau"]),
        (about_what_is_heard, {"effect"}, ["sigma", "tau"]),
        (in_units_of_errors, set(), ["sigma"]),
        (fixed, set(), []),
    ],
)
def test_which_laws_are_learned_and_which_numbers_are_scales(law, learned, scales):
    model = rows(law)
    assert pooled_latents(model) == learned
    assert bounded(model) == scales


def test_a_dispersion_is_spoken_of_where_one_is_named():
    at = released(widened=np.where(np.isin(np.arange(DIM), [0, *W[:20]]), 3.0, 1.0))
    assert one(at, Kind(scales=["b"])).count("; b may lie off instead") == 1
    for other in (Kind(), Kind(scales=["z"])):
        assert "may be off" not in one(at, other)
        assert "dispersion" not in one(at, other)


def lost(number, large=()):
    """So many columns of which next to nothing was told; some are far larger than the others."""
    size = np.ones(DIM)
    size[W[list(large)]] = 40.0
    resolved = np.where(np.isin(np.arange(DIM), W[-number:]), 0.1, 1.0)
    return released(resolved=resolved, design=np.diag(size))


def test_most_of_many_columns_are_not_taken_for_rare_levels():
    """Thirty measurements in units of their own: there was nothing to merge."""
    said = one(lost(27))
    assert said.startswith("wide: next to nothing was told of w[3]–w[29]: ")
    last = said.split(". ")[-1]
    assert last.startswith("Centre and scale columns by public numbers (a typical value and a ")
    assert "more privacy budget" in last
    assert "Merge" not in said
    # What was released tells which columns are large, where all are lost or none arrived too.
    assert "far larger" not in said
    assert (
        " (columns of far larger values, it seems: w[0], w[2]; others may hide behind them). Centre"
        in one(lost(27, [0, 2]))
    )
    all_lost, gone = lost(30, [2]), lost(1, [2])._replace(travelled=99.0)
    read = [name != "b" and name != "z" for name in NAMES]
    assert "far larger" not in one(all_lost, read=read)
    all_lost = all_lost._replace(resolved=np.zeros(DIM))
    assert (
        "(columns of far larger values, it seems: w[2]; others may hide behind them), as where"
        in one(all_lost)
    )
    first = gone.verdicts(NAMES)[0]
    assert (
        "(columns of far larger values, it seems: w[2]; others may hide behind them), so the inter"
        in first
    )
    assert ". Centre inputs by public constants and divide them by others, the large ones" in first
    assert ". Give priors on the scale" in lost(1)._replace(travelled=99.0).verdicts(NAMES)[0]


@pytest.mark.parametrize("kind", [Kind(walks="w"), Kind(shares="w"), Kind(learned="w")])
def test_a_few_of_them_may_be_and_groups_are(kind):
    assert ". Merge what can be merged" in one(lost(15))
    # But beside one that is far larger than they are they may be in other units.
    assert ". Centre and scale columns" in one(lost(3, [2]))
    # No more than half of the columns; a walk's entries and groups' effects are no columns.
    assert ". Centre and scale columns" in one(lost(16))
    groups = np.isin(np.arange(DIM), W)
    # Where most of them are untold merging mends nothing.
    for said in (one(lost(27), kind), one(lost(27)._replace(groups=groups))):
        assert ". Give more privacy budget or records, or leave them to the " in said
    assert ". Merge what can be merged" in one(lost(9)._replace(groups=groups))


def test_what_cannot_be_merged_is_not_to_be():
    """An intercept, a scale and two of thirty slopes: the note asked to merge them."""
    at = lost(2)
    resolved = np.where(np.arange(DIM) % (DIM - 1) == 0, 0.1, at.resolved)
    said = one(at._replace(resolved=resolved))
    assert "told of b, w[28], w[29], z: their" in said
    first = "Give priors on the scale of the answer, centre and scale outcomes and columns"
    assert f", as where the truth lies so far out that no round found it. {first} (by" in said
    assert "erge" not in said
    # In short it is what stays.
    shown = short.notes_alone([said], 3, ".verdicts").splitlines()
    assert shown[1].strip() == f"{first} …"
    # What columns show is said of such too, and where rounds go on nothing is to be widened.
    assert "(columns of far larger values, it seems: w[3]; others may hide behind them)" in one(
        lost(2, [3])._replace(resolved=resolved)
    )
    gone = at._replace(resolved=resolved, travelled=99.0).verdicts(NAMES)[1]
    assert gone.endswith("take the remedies of that first")
    # Two of three are most of what a site holds, and too few for columns.
    names = ["v[0]", "v[1]", "v[2]", *NAMES[3:]]
    three = released(resolved=np.where(np.arange(DIM) < 2, 0.1, 1.0))
    assert ". Give priors on the scale" in three.verdicts(names)[0]


def test_the_column_that_others_stand_beside_is_named():
    assert "far larger" not in one(released(**RARE))
    large = lost(1, [5])._replace(resolved=np.ones(DIM))
    said = one(large._replace(**RARE))
    assert (
        ". Beside columns of far larger values (w[5], it seems) they may be hardly wider. D" in said
    )
    assert ". Divide the column of w[5] by a public number, merge levels or groups where" in said
    groups = large._replace(groups=np.isin(np.arange(DIM), W))
    assert "wider than NUTS's (of a small group), at most" in one(groups._replace(**RARE))
    assert "far larger" not in one(groups._replace(**RARE))
    # A level is no larger than an intercept, nor is it where nobody knows of one.
    intercept = np.where(np.arange(DIM), np.diag(large.design), 40.0)
    assert "far larger" not in one(large._replace(**RARE, design=np.diag(intercept)))
    unread = [name.startswith("w") for name in NAMES]
    assert "far larger" not in one(large._replace(**RARE), read=unread)


def test_of_columns_beside_far_larger_ones_the_large_are_listed():
    """A newcomer's thirty in units of their own: 21 of 30 named, most below twice as wide.

    Up to 4.2 times in four releases, and those of the large columns 2.2 to 3.2, which it left out.
    """
    signal = np.where((np.arange(DIM) > 5) & (np.arange(DIM) < DIM - 1), 4.0, 40.0)
    unlike = lost(1, [2, 4])._replace(resolved=np.ones(DIM), signal=signal)
    said = one(unlike)
    first = "wide: little was told of most of w, beside columns of far larger values (w[2], w[4]"
    assert said.startswith(first)
    assert "w[6]" not in said
    # What is of another site is said as ever.
    several = [*NAMES[:20], *(f"v[{k}]" for k in range(DIM - 20))]
    assert len(unlike.verdicts(several)) == 2


def test_records_that_all_hold_a_nan_are_thought_of_where_nobody_was_heard():
    """An empty column: no record adds anything, and noise alone tells of some coordinates."""
    at = lost(2)
    resolved = np.where(np.arange(DIM) % (DIM - 1) == 0, 0.1, at.resolved)
    nan = "; and see that not every record has a NaN in it"
    assert nan not in one(at._replace(resolved=resolved))
    nobody = at._replace(resolved=np.minimum(resolved, 0.5), misfit_sd=1.0)
    (said,) = (s for s in nobody.verdicts(NAMES) if "next to nothing" in s)
    assert said.startswith("do not use: ")
    assert nan in said
    (of_all,) = (
        s for s in nobody._replace(resolved=np.zeros(DIM)).verdicts(NAMES) if "nothing" in s
    )
    assert nan in of_all
