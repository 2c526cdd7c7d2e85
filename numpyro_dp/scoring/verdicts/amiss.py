"""Records that are not as the model has them: how many there are, and what is said of that."""

from __future__ import annotations

from typing import NamedTuple

from numpyro_dp.scoring.verdicts.kinds import DO_NOT_USE, TO_KNOW, WITH_CARE

# Counts above so many sds of their noise: one release in four thousand says so where there is none.
_SURE = 3.5
# So large a share of them decides where the posterior lies, or what it is of.
_MUCH, _HALF = 0.05, 0.5


class Amiss(NamedTuple):
    """Shares of the records, and the noise of each.

    - **silent**: that add nothing, since their likelihood is no number.
    - **outside**: that show what their law cannot have; **astray**: that have an index which no
      group has. Both have the noise **outside_sd**.
    """

    silent: float = 0.0
    silent_sd: float = 0.0
    outside: float = 0.0
    astray: float = 0.0
    outside_sd: float = 0.0

    @property
    def said(self) -> tuple[str, ...]:
        """What that says of a release, in sentences."""
        found = []
        if self.outside > _SURE * self.outside_sd:
            rank = DO_NOT_USE if self.outside > _MUCH else WITH_CARE
            found.append(
                f"{rank}: about {_percent(self.outside)} of the records show an outcome that its "
                "law cannot have, as 1 and 2 in place of 0 and 1, 9 or -1 for no answer, or a "
                "fraction among counts: what they tell may lie far off. Code outcomes as their law "
                "has them (0 and 1, categories from 0), and mask what is missing"
            )
        if self.astray > _SURE * self.outside_sd:
            found.append(
                f"{WITH_CARE}: about {_percent(self.astray)} of the records have an index of no "
                "group: -1, as pandas has for none, or beyond the last, as of groups counted from "
                "1. JAX takes either for the last group, and all that hangs on it is off, but "
                "where -1 is meant for the last. Code groups from 0, and give those without one a "
                "group of their own or mask them"
            )
        if self.silent > _SURE * self.silent_sd:
            rank = WITH_CARE if self.silent > _HALF else TO_KNOW
            found.append(
                f"{rank}: about {_percent(self.silent)} of the records add nothing: their "
                "likelihood is no number, as of a NaN in any of what they show, or a 0 under "
                "LogNormal or Gamma. What follows is of the others. Integrate missing values out "
                "(docs/howto/fit-your-model.md#missing-values), or give zeros a part of their own"
            )
        return tuple(found)


def _percent(share: float) -> str:
    return f"{share:.1%}" if share < 0.01 else f"{min(share, 1.0):.0%}"
