"""What the released numbers say of a release, and how that is printed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from numpyro_dp.accounting.report import short
from numpyro_dp.scoring.verdicts.kinds import listed, speaks_against
from numpyro_dp.scoring.verdicts.told import DROWNED, TOLD, faint_below
from numpyro_dp.scoring.verdicts.trust import TRAVEL

# Lines of verdicts, which end with what to do, and of what there is of the prior by site.
_VERDICTS, _SITES = 24, 4
_NAME, _VALUE = 14, 14
_NOTHING, _ABOVE = "No note speaks against this release", "; what is to know of it stands above"
_UNSEEN = "What notes cannot see: docs/howto/is-it-worth-having.md"


class Diagnostics(NamedTuple):
    """What the released numbers say of the release; ``print`` it.

    A verdict begins with its rank, the most harmful first, and ends with what to do: ``do not use``
    where the draws are of no posterior, ``with care`` where intervals may not hold what they state,
    ``wide`` where they hold it and tell little, ``to know`` where nothing speaks against them if
    the model is right. docs/howto/is-it-worth-having.md has all of them.

    - **information**: of the whitened coordinates' directions, ascending, shape (dim,); about 1
      where the posterior is all the records', about 0 of latents that no record's term reads.
    - **noise_sd**: privacy noise in them, shape (dim,).
    - **resolved**: share of each coordinate's prior variance that the release takes away, by site;
      below .2 an interval is the prior's. It goes by independent moments of the prior, so it is
      about 0 for a latent that no record's term reads, such as the scale of groups, whatever the
      records tell of that through other latents; no verdict is made of those.
    - **widened**: how many times as wide noise makes each coordinate's interval as the released
      information alone would, by site; above 1.5 a verdict says so. It says too little of a rare
      group or column, where the clip takes off the information itself.
    - **signal**: information on each coordinate, the others being known, in sds of its own noise,
      by site; below 9 (three times the root of fewer than nine coordinates) few records speak of
      it, and a verdict says so.
    - **dispersion**: how much more the records' scores vary than the information says; counted in
      the intervals.
    - **misfit**: how much more than the model expects; above 1.5, and by twice its noise, the model
      does not fit. **misfit_sd**: its noise; above .5 beside a coordinate that is not resolved,
      the truth may lie far out in the prior.
    - **tail**: share of the records that are three times as far out as the model's outcomes are on
      average, by the size of their scores, less the share that it expects; about 0 where the model
      fits, and above .006 and 2.5 times **tail_sd** it does not: a wrong family, or a few far
      outcomes, as typing errors are. **tail_sd**: its noise, and that of drawing records.
    - **disagreement**: χ² of the rounds over its degrees of freedom; about 1, too much above 1.5
      and what chance allows, and above 2.2 beyond repair.
    - **travelled**: posterior sds between the last round and the posterior's mean; beyond three
      times the root of the number of coordinates the release has not arrived.
    - **outside**: share of the records that show what their law cannot have, as a 2 for a yes or
      no, where that hangs on no latent; above 3.5 times **outside_sd**, its noise, a verdict says
      so.
    - **unread**: sites that no record's term reads.
    - **verdicts**: what that means, in sentences; empty where nothing is wrong. They are of the
      release: those on chains that sampled it stand beside them in ``mcmc.verdicts``.

    **Privacy.** A function of what was released: free to publish.
    """

    information: np.ndarray
    noise_sd: np.ndarray
    resolved: dict[str, np.ndarray]
    widened: dict[str, np.ndarray]
    signal: dict[str, np.ndarray]
    dispersion: float
    misfit: float
    misfit_sd: float
    tail: float
    tail_sd: float
    disagreement: float
    travelled: float
    verdicts: tuple[str, ...]
    unread: tuple[str, ...] = ()
    outside: float = 0.0
    outside_sd: float = 0.0

    def __str__(self) -> str:
        """Verdicts, to their end where they are few, then what they are made of, in words."""
        size = len(self.information)
        numbers = [
            (
                "misfit",
                f"{self.misfit:.2f} ± {self.misfit_sd:.2f}",
                "about 1 where the model fits; where clips cut, less",
            ),
            (
                "tail",
                f"{self.tail:.3f} ± {self.tail_sd:.3f}",
                "of records too many far out; about 0",
            ),
            (
                "outside",
                f"{self.outside:.3f} ± {self.outside_sd:.3f}",
                "of records show what their law cannot have; about 0",
            ),
            ("disagreement", f"{self.disagreement:.2f}", "of the rounds; about 1 by chance"),
            (
                "travelled",
                f"{self.travelled:.2f}",
                f"posterior sds in the last step; above {TRAVEL * size**0.5:.1f} not arrived",
            ),
            ("dispersion", f"{self.dispersion:.2f}", "how records vary; intervals allow for it"),
            (
                "information",
                _range(self.information),
                f"of {size} direction{'s' * (size > 1)}; 1 where the records decide, 0 where the "
                "prior does",
            ),
            ("noise_sd", _range(self.noise_sd), "privacy noise in these; good below 1"),
            (
                "widened",
                _range(self._of_read(self.widened)),
                f"times by noise, of intervals; clips add to it; above {DROWNED} wide",
            ),
            (
                "signal",
                _range(self._of_read(self.signal)),
                f"information on a coordinate over noise; below {faint_below(size):.2g} little",
            ),
        ]
        said = short.notes_alone(self.verdicts, _VERDICTS, ".verdicts").splitlines()
        said += nothing_against(self.verdicts)
        lines = [
            *said,
            *(f"{name:{_NAME}}{value:{_VALUE}} {words}" for name, value, words in numbers),
            f"resolved: share of the prior's variance taken away; below {TOLD} an interval is the "
            "prior's",
        ]
        sites = [name for name in self.resolved if name not in self.unread]
        shown = sites if len(sites) <= _SITES else sites[: _SITES - 1]
        lines += [_row(name, self.resolved[name]) for name in shown]
        if len(shown) < len(sites):
            lines.append(f"  … and {len(sites) - len(shown)} more: .resolved")
        if self.unread:
            lines.append(f"  told of by others, not by itself: {listed(self.unread)}")
        return "\n".join(lines)

    def _of_read(self, by_site: Mapping[str, np.ndarray]) -> np.ndarray:
        read = [np.ravel(each) for name, each in by_site.items() if name not in self.unread]
        return np.concatenate(read or [np.ravel(each) for each in by_site.values()])

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """In a notebook the same, in place of arrays."""
        printer.text(str(self))


def nothing_against(verdicts: Sequence[str]) -> list[str]:
    """What is printed below verdicts none of which speaks against a release; else nothing."""
    if any(map(speaks_against, verdicts)):
        return []
    return [f"{_NOTHING}{_ABOVE}.", _UNSEEN] if verdicts else [f"{_NOTHING}. {_UNSEEN}"]


def _row(name: str, resolved: np.ndarray) -> str:
    number = np.size(resolved)
    several = f"in {number} coordinates" if number > 1 else ""
    return f"  {name:{_NAME - 2}} {_range(resolved):{_VALUE}}{several}".rstrip()


def _range(values: np.ndarray) -> str:
    """The least and the greatest, or one number where these look alike."""
    ends = [f"{end:.2f}" for end in (np.min(values), np.max(values))]
    return " to ".join(dict.fromkeys(ends))
