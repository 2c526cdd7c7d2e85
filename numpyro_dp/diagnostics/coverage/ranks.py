"""Pictures of coverage: the ranks of the truths among a method's draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BINS = 10
_CENTRAL = np.linspace(0, 1, 101)


class Shown(NamedTuple):
    """A method in a picture.

    - **name**: in the legend.
    - **ranks**: of the truths, numbers in (0, 1).
    - **colour**: matplotlib's.
    """

    name: str
    ranks: Float[np.ndarray, "datasets coordinates"]
    colour: str


def drawn_ranks(ax: Axes, shown: Sequence[Shown]) -> None:
    """A histogram of each method's ranks, the first with what chance allows it."""
    edges = np.linspace(0, 1, _BINS + 1)
    for name, ranks, colour in shown:
        shares = np.stack([np.histogram(row, edges)[0] / len(row) for row in ranks])
        style: dict[str, Any] = {"color": colour, "label": name}
        if colour == "C0":
            # Coordinates of one data set hang together: its whole row varies.
            band = 1.645 * np.sqrt(np.mean(shares.var(0)) / len(shares))
            ax.axhspan(1 / _BINS - band, 1 / _BINS + band, color="0.9", label="by chance")
            ax.bar(edges[:-1], shares.mean(0), width=1 / _BINS, align="edge", alpha=0.6, **style)
        else:
            ax.stairs(shares.mean(0), edges, **style)
    ax.set(xlabel="rank of the truth among the draws", ylabel="share of truths", xlim=(0, 1))


def drawn_levels(ax: Axes, shown: Sequence[Shown]) -> None:
    """How many truths the intervals of every level held."""
    ax.plot([0, 1], [0, 1], "k--", linewidth=1)
    for name, ranks, colour in shown:
        central = np.abs(2 * ranks - 1)
        held = [np.mean(central <= level) for level in _CENTRAL]
        ax.plot(_CENTRAL, held, color=colour, label=name)
    ax.set(xlabel="stated coverage", ylabel="truths held", xlim=(0, 1), ylim=(0, 1))
