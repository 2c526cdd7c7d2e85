"""A forest shows the quantiles of what it was given, and refuses what it cannot show."""

from types import SimpleNamespace

import numpy as np
import pytest
import xarray

import numpyro_dp as ndp

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")
pyplot = pytest.importorskip("matplotlib.pyplot")

RNG = np.random.default_rng(0)
DRAWS = {"scale": RNG.exponential(size=400), "w": RNG.normal(3.0, 1.0, (400, 2, 2))}
OTHER = {"w": RNG.normal(0.0, 2.0, (50, 2, 2)), "scale": np.ones(50)}


class Result:
    """As results of runs are: draws by site."""

    def get_samples(self):
        return DRAWS


@pytest.fixture(autouse=True)
def closed():
    yield
    pyplot.close("all")


def rows(ax):
    return [tick.get_text() for tick in ax.get_yticklabels()]


def test_intervals_are_quantiles_in_the_order_of_the_entries():
    ax = ndp.plot_forest({"one": DRAWS, "other": OTHER}, var_names=["w", "scale"], prob=0.8)
    assert rows(ax) == ["w[0, 0]", "w[0, 1]", "w[1, 0]", "w[1, 1]", "scale"]
    flat = np.concatenate([DRAWS["w"].reshape(400, 4), DRAWS["scale"][:, None]], axis=1)
    thin, thick = ax.collections[:2]
    for drawn, levels in ((thin, (0.1, 0.9)), (thick, (0.25, 0.75))):
        ends = np.array([segment[:, 0] for segment in drawn.get_segments()]).T
        np.testing.assert_allclose(ends, np.quantile(flat, levels, axis=0))
    np.testing.assert_allclose(ax.lines[0].get_xdata(), np.median(flat, axis=0))
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["one", "other"]
    # The first posterior stands above the second, as in the legend.
    assert np.all(ax.lines[0].get_ydata() < ax.lines[1].get_ydata())
    assert ax.get_ylim()[0] > ax.get_ylim()[1]
    assert "80%" in ax.get_xlabel()


def test_results_and_arviz_objects_are_taken_and_name_their_coordinates():
    xarray = pytest.importorskip("xarray")
    axes = ("chain", "draw", "left", "right")
    # Written in another order than ArviZ would: names decide, not places.
    array = xarray.DataArray(
        DRAWS["w"].reshape(4, 100, 2, 2), dims=axes, coords={"left": ["a", "b"], "right": [3, 4]}
    ).transpose("left", "chain", "right", "draw")

    class Tree:
        posterior = xarray.Dataset({"w": array})

    ax = ndp.plot_forest({"tree": Tree(), "result": Result()})
    assert rows(ax) == ["w[a, 3]", "w[a, 4]", "w[b, 3]", "w[b, 4]"]
    np.testing.assert_array_equal(ax.lines[0].get_xdata(), ax.lines[1].get_xdata())
    named = ndp.plot_forest({"result": Result()}, var_names="w", labels={"w": "ABCD"})
    assert rows(named) == ["w[A]", "w[B]", "w[C]", "w[D]"]


def test_given_axes_are_drawn_into_and_new_ones_are_high_enough():
    _, ax = pyplot.subplots()
    assert ndp.plot_forest({"one": DRAWS}, ax=ax) is ax
    few = ndp.plot_forest({"one": DRAWS}, var_names="scale").figure.get_figheight()
    many = ndp.plot_forest({"one": {"w": np.zeros((9, 40))}}).figure.get_figheight()
    assert many > few + 5


WIDE = {"w": RNG.normal(0.0, 40.0, (400, 2, 2)), "scale": 300 + RNG.exponential(size=400)}


def arrows(ax):
    """Where arrows stand, by their direction: pairs of an edge and a row's place."""
    found = {"<": [], ">": []}
    for line in ax.lines:
        if line.get_marker() in found:
            found[line.get_marker()] += [*zip(line.get_xdata(), line.get_ydata(), strict=True)]
    return found


@pytest.mark.parametrize("name", ["prior", "Prior (wide)"])
def test_a_wide_prior_does_not_squeeze_the_posteriors(name):
    ax = ndp.plot_forest({name: WIDE, "private": DRAWS}, var_names=["w", "scale"])
    left, right = ax.get_xlim()
    ends = np.quantile(np.c_[DRAWS["w"].reshape(400, 4), DRAWS["scale"]], [0.05, 0.95], axis=0)
    assert left < ends.min()
    assert right > ends.max()
    assert right - left < 1.5 * np.ptp(ends)
    # Four rows leave on both sides; all of the last lies to the right.
    found = arrows(ax)
    assert [(edge == left, round(y)) for edge, y in found["<"]] == [(True, k) for k in range(4)]
    assert [(edge == right, round(y)) for edge, y in found[">"]] == [(True, k) for k in range(5)]
    assert "arrows: beyond the axis" in ax.get_xlabel()


@pytest.mark.parametrize(
    "posteriors",
    [
        # Not much wider, no prior, and nothing else to look at.
        {"prior": OTHER, "private": DRAWS},
        {"private, ε = .1": WIDE, "NUTS": DRAWS},
        {"prior": WIDE},
    ],
)
def test_what_is_to_be_seen_is_shown_whole(posteriors):
    ax = ndp.plot_forest(posteriors, var_names="w")
    ends = np.concatenate([np.ravel(s) for c in ax.collections for s in c.get_segments()])
    shown = ends.reshape(-1, 2)[:, 0]
    assert ax.get_xlim()[0] < shown.min()
    assert ax.get_xlim()[1] > shown.max()
    assert arrows(ax) == {"<": [], ">": []}
    assert "arrows" not in ax.get_xlabel()


@pytest.mark.parametrize(
    ("posteriors", "options", "message"),
    [
        ({}, {}, "by name"),
        (DRAWS["w"], {}, "holds no draws"),
        ({"one": DRAWS}, {"prob": 1.0}, "prob"),
        ({"one": DRAWS}, {"prob": 90}, "prob"),
        ({"one": object()}, {}, "holds no draws"),
        ({"one": DRAWS, "two": {"v": DRAWS["w"]}}, {}, "in common"),
        ({"one": DRAWS, "two": {"w": DRAWS["w"]}}, {"var_names": "scale"}, "'two' has no site"),
        ({"one": DRAWS, "two": {"w": DRAWS["w"][:, 0]}}, {}, "several shapes"),
        ({"one": DRAWS}, {"labels": {"w": ["a"]}}, "names 1 coordinates"),
        ({"one": {"w": np.zeros((9, 101))}}, {}, "var_names"),
    ],
)
def test_refusals_say_what_to_give(posteriors, options, message):
    with pytest.raises(ValueError, match=message):
        ndp.plot_forest(posteriors, **options)


def test_one_alone_needs_no_name():
    axes = {"chain": [0], "draw": range(400), "input": range(4)}
    values = (tuple(axes), DRAWS["w"].reshape(1, 400, 4))
    tree = xarray.DataTree.from_dict({"posterior": xarray.Dataset({"w": values}, axes)})
    ax = ndp.plot_forest(tree)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["posterior"]


@pytest.mark.parametrize(("epsilon", "name"), [(1.0, "private"), (np.inf, "posterior")])
def test_one_alone_is_called_private_without_a_number(epsilon, name):
    """An ε stands nowhere without its δ, unit and conditions."""
    ran = SimpleNamespace(get_samples=lambda: DRAWS, privacy=SimpleNamespace(epsilon=epsilon))
    ax = ndp.plot_forest(ran, var_names="w")
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [name]
