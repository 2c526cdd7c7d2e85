"""Several posteriors side by side: intervals of each coordinate, one colour a posterior."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from numpyro_dp import _validate
from numpyro_dp.diagnostics.plots import axes_or_new
from numpyro_dp.model.names import labelled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_ROWS = 100
# A prior is shown whole where the axis is no more than so many times as long for it; else so much
# of an axis is left on either side for it to be seen leaving.
_LONGER, _SIDE = 2.5, 0.15
_ROW_HEIGHT, _MARGIN = 0.22, 1.0  # inches


class _Draws(NamedTuple):
    """Draws of one posterior: arrays (draws, ...) by site, and the names of their coordinates."""

    values: Mapping[str, np.ndarray]
    labels: Mapping[str, Sequence[str]]


def plot_forest(
    posteriors: Mapping[str, Any] | Any,
    *,
    var_names: Sequence[str] | str | None = None,
    labels: Mapping[str, Sequence[Any]] | None = None,
    prob: float = 0.9,
    ax: Axes | None = None,
) -> Axes:
    """Draw central intervals of several posteriors beside each other.

    The picture for comparing a private posterior with its prior, with another ε or, on made-up
    records, with NUTS. It looks the same with either interface of ArviZ. One whose name begins with
    "prior" does not squeeze the others: where it is far wider, its intervals end in arrows.

    :param posteriors: by the name in the legend, each an :class:`~numpyro_dp.MCMC` or NumPyro's,
        what :meth:`numpyro_dp.DPSVI.run` or an estimator returned, an ArviZ object with a group
        ``posterior``, or a dictionary of arrays, one a site, of shape (draws, ...). One alone that
        is no dictionary needs no name.
    :param var_names: sites to draw, in this order; by default all that every posterior has.
    :param labels: names of a site's coordinates, row by row; by default those of the first ArviZ
        object that has the site, else numbers.
    :param prob: probability of the thin intervals; the thick ones hold half, the dot is the median.
    :param ax: matplotlib axes to draw into; ``None`` makes new ones of a fitting height.
    :returns: the axes.
    :raises ValueError: for what holds no draws, for sites that a posterior lacks or that have
        another shape in it, for labels of another number, and for more than 100 coordinates.
    :raises ImportError: when matplotlib is not installed.

    **Privacy.** Post-processing of draws: free where they were released. Draws of a sampler that is
    not private stay what they are: a picture with them in it is not for publication.

    **References.** After ``plot_forest`` of ArviZ: Kumar, Carroll, Hartikainen and Martin, *ArviZ,
    a unified library for exploratory analysis of Bayesian models in Python* (2019).

    **Example**::

        >>> import matplotlib; matplotlib.use("Agg")
        >>> import numpy as np, numpyro_dp as ndp
        >>> rng = np.random.default_rng(0)
        >>> wide, narrow = {"w": rng.normal(0, 2, (99, 2))}, {"w": rng.normal(1, 1, (99, 2))}
        >>> ax = ndp.plot_forest({"prior": wide, "private, ε = 1": narrow})
        >>> [tick.get_text() for tick in ax.get_yticklabels()]
        ['w[0]', 'w[1]']
    """
    # ArviZ's objects are mappings, too.
    if not isinstance(posteriors, Mapping) or hasattr(posteriors, "posterior"):
        # Without a number: an ε stands nowhere without its δ, unit and conditions.
        privacy = getattr(posteriors, "privacy", None)
        private = privacy is not None and math.isfinite(privacy.epsilon)
        posteriors = {"private" if private else "posterior": posteriors}
    if not posteriors:
        raise ValueError(
            'give posteriors by name, as in plot_forest({"private": mcmc, "prior": draws})'
        )
    if not 0 < prob < 1:
        raise ValueError(f"prob must lie strictly between 0 and 1, got {_validate.shown(prob)}")
    found = {str(name): _draws(str(name), given) for name, given in posteriors.items()}
    sites = _sites(found, var_names)
    rows = [row for site in sites for row in _rows(site, found, (labels or {}).get(site))]
    if not 0 < len(rows) <= _MOST_ROWS:
        raise ValueError(
            f"{len(rows)} coordinates do not make a picture: name the sites to draw in var_names"
        )
    height = _MARGIN + _ROW_HEIGHT * len(rows) * max(len(found), 1.5)
    ax = axes_or_new(ax, figsize=(7.0, height))
    tails = (1 - prob) / 2
    levels = [tails, 0.25, 0.5, 0.75, 1 - tails]
    places = np.arange(len(rows))
    columns = {
        name: np.concatenate([_flat(draws.values[site]) for site in sites], axis=1)
        for name, draws in found.items()
    }
    found_at = {name: np.quantile(draws, levels, axis=0) for name, draws in columns.items()}
    edges = _edges(found_at)
    for k, (name, (low, left, middle, right, high)) in enumerate(found_at.items()):
        y = places + 0.7 * ((k + 0.5) / len(found) - 0.5)
        ax.hlines(y, low, high, color=f"C{k}", linewidth=1.2)
        ax.hlines(y, left, right, color=f"C{k}", linewidth=3.5)
        ax.plot(middle, y, "o", color=f"C{k}", markerfacecolor="white", markersize=5, label=name)
        if edges is not None:
            for edge, leaves, arrow in zip(
                edges, (low < edges[0], high > edges[1]), "<>", strict=True
            ):
                ax.plot(
                    np.full(np.sum(leaves), edge), y[leaves], arrow, color=f"C{k}", clip_on=False
                )
    for place in places[1::2]:
        ax.axhspan(place - 0.5, place + 0.5, color="0.95", zorder=0)
    ax.set_yticks(places, labels=rows)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    beyond = ""
    if edges is not None:
        ax.set_xlim(edges)
        beyond = "; arrows: beyond the axis"
    ax.set_xlabel(f"median, 50% and {100 * prob:.3g}% intervals{beyond}")
    # Below the name of the axis, so that a title has its place.
    below = -0.5 * ax.figure.dpi / ax.get_window_extent().height
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, below), ncols=3, frameon=False)
    return ax


def _edges(found: Mapping[str, np.ndarray]) -> tuple[float, float] | None:
    """Ends of the axis where a prior would squeeze everything else; ``None`` where none does.

    :param found: by posterior, levels of the coordinates, lowest first, (levels, coordinates).
    """
    others = [levels for name, levels in found.items() if not _is_prior(name)]
    if not others or len(others) == len(found):
        return None
    low, high = (each([each(levels) for levels in others]) for each in (np.min, np.max))
    whole = np.ptp([levels for levels in found.values()])
    if not 0 < _LONGER * (high - low) < whole:
        return None
    side = _SIDE * (high - low)
    return float(low - side), float(high + side)


def _is_prior(name: str) -> bool:
    return re.match(r"prior\b", name.casefold()) is not None


def _draws(name: str, given: Any) -> _Draws:
    # Either ArviZ's object is a mapping too, of its groups.
    if hasattr(given, "posterior"):
        return _of_arviz(given.posterior)
    if isinstance(given, Mapping):
        return _Draws({site: np.asarray(values) for site, values in given.items()}, {})
    if hasattr(given, "get_samples"):
        return _draws(name, given.get_samples())
    raise ValueError(
        f"{name!r} is a {type(given).__name__}, which holds no draws: give an MCMC that has run, a "
        "result, an ArviZ object with a group 'posterior', or a dictionary of draws"
    )


def _of_arviz(posterior: Any) -> _Draws:
    values, labels = {}, {}
    for site, array in posterior.data_vars.items():
        axes = [axis for axis in array.dims if axis not in ("chain", "draw")]
        ordered = array.transpose("chain", "draw", *axes)
        values[str(site)] = ordered.values.reshape(-1, *ordered.shape[2:])
        named = [map(str, posterior[axis].values) for axis in axes]
        labels[str(site)] = [", ".join(parts) for parts in product(*named)]
    return _Draws(values, labels)


def _sites(found: Mapping[str, _Draws], var_names: Sequence[str] | str | None) -> list[str]:
    first, *others = found.values()
    if var_names is None:
        sites = [s for s in first.values if all(s in other.values for other in others)]
        if not sites:
            raise ValueError("the posteriors have no site in common: name what to draw alike")
        return sites
    sites = [var_names] if isinstance(var_names, str) else list(var_names)
    for name, draws in found.items():
        missing = [site for site in sites if site not in draws.values]
        if missing:
            raise ValueError(
                f"{name!r} has no site {', '.join(map(repr, missing))} (its sites: "
                f"{', '.join(map(repr, draws.values))})"
            )
    return sites


def _rows(site: str, found: Mapping[str, _Draws], labels: Sequence[Any] | None) -> list[str]:
    """Names of the coordinates of a site, in the order of its entries."""
    shapes = {draws.values[site].shape[1:] for draws in found.values()}
    if len(shapes) > 1:
        raise ValueError(
            f"site {site!r} has several shapes, {sorted(shapes)}, after the axis of the draws"
        )
    (shape,) = shapes
    if not shape:
        return [site]
    known = next((d.labels[site] for d in found.values() if site in d.labels), None)
    parts = labels if labels is not None else known
    if parts is None:
        parts = [", ".join(map(str, index)) for index in np.ndindex(*shape)]
    return labelled(site, shape, parts)


def _flat(values: np.ndarray) -> np.ndarray:
    return values.reshape(values.shape[0], -1)
