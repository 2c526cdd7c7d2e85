"""What a method found on all data sets: moments, intervals, ranks, and what it said of itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from numpyro_dp.scoring.verdicts.kinds import DO_NOT_USE, RANKS

# Draws that a rank is taken among: spread over the chain, so that they are nearly independent.
_RANKED = 99
# Of a data set: something without a rank was said, or nothing at all.
OTHER, NOTHING = "other notes", "no note"

Table = Float[np.ndarray, "datasets coordinates"]


class Posteriors(NamedTuple):
    """The posteriors of one method on all data sets; NaN where its draws were not finite.

    - **mean**, **sd**: shape (datasets, coordinates).
    - **lower**, **upper**: ends of the central intervals, likewise.
    - **rank**: of the truth among 99 draws, as a number in (0, 1), likewise; uniform where the
      method is calibrated.
    - **verdicts**: of each data set, what the method said against itself.

    **Privacy.** Of simulated records only.
    """

    mean: Table
    sd: Table
    lower: Table
    upper: Table
    rank: Table
    verdicts: tuple[tuple[str, ...], ...]

    def holds(self, truths: Table) -> Bool[np.ndarray, "datasets coordinates"]:
        """Whether each interval holds its truth; one that is not finite does not."""
        return (self.lower <= truths) & (truths <= self.upper)

    @property
    def notes(self) -> list[str]:
        """Of each data set, the rank of the worst that was said; "other notes", or "no note"."""
        ranks = [{each.partition(":")[0] for each in said} for said in self.verdicts]
        return [
            next((rank for rank in RANKS if rank in found), OTHER if found else NOTHING)
            for found in ranks
        ]

    @property
    def usable(self) -> list[int]:
        """Data sets of which the method did not say ``do not use``."""
        return [k for k, note in enumerate(self.notes) if note != DO_NOT_USE]

    def columns(self, which: slice) -> Posteriors:
        """The same of some coordinates."""
        *tables, verdicts = self
        return Posteriors(*(np.asarray(table)[:, which] for table in tables), verdicts)


def summarised(
    draws: Mapping[str, Any], truth: Mapping[str, np.ndarray], level: float
) -> tuple[np.ndarray, ...]:
    """Mean, sd, interval and rank of one data set, of all sites' coordinates in a row.

    :raises ValueError: where draws lack a site, or have other shapes than the truth.
    """
    for name, value in truth.items():
        if name not in draws or np.shape(draws[name])[1:] != value.shape:
            found = np.shape(draws[name]) if name in draws else "none"
            raise ValueError(
                f"the method's draws of site `{name}` must have shape (draws, "
                f"{', '.join(map(str, value.shape))}), got {found}"
            )
    flat = [np.asarray(draws[name], float).reshape(len(draws[name]), -1) for name in truth]
    rows = np.concatenate(flat, axis=1)
    true = np.concatenate([np.ravel(value) for value in truth.values()])
    rows = np.where(np.isfinite(rows).all(0), rows, np.nan)
    tails = (1 - level) / 2
    ends = np.quantile(rows, [tails, 1 - tails], axis=0)
    chosen = rows[np.linspace(0, len(rows) - 1, min(_RANKED, len(rows))).round().astype(int)]
    below = np.sum(chosen < true, axis=0) + np.sum(chosen == true, axis=0) / 2
    rank = np.where(np.isnan(rows[0]), np.nan, (below + 0.5) / (len(chosen) + 1))
    return rows.mean(0), rows.std(0), ends[0], ends[1], rank
