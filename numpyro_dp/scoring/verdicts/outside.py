"""Records that show what their law cannot have: how many there are, and what is said of that."""

from __future__ import annotations

from typing import NamedTuple

from numpyro_dp.scoring.verdicts.kinds import DO_NOT_USE, WITH_CARE

# A count above so many sds of its noise: one release in four thousand says so where there is none.
_SURE = 3.5
# So large a share of the records decides where the posterior lies.
_MUCH = 0.05


class Outside(NamedTuple):
    """**share** of the records whose outcome their law cannot have, and its **noise_sd**."""

    share: float = 0.0
    noise_sd: float = 0.0

    @property
    def said(self) -> tuple[str, ...]:
        """What that says of a release, in a sentence; empty where noise may be all of it."""
        if self.share <= _SURE * self.noise_sd:
            return ()
        rank = DO_NOT_USE if self.share > _MUCH else WITH_CARE
        return (
            f"{rank}: about {_percent(self.share)} of the records show an outcome that its law "
            "cannot have, as 1 and 2 in place of 0 and 1, 9 or -1 for no answer, a fraction in "
            "place of a count, a time or cost of 0 (Exponential, Gamma, LogNormal) or a share of 0 "
            "or 1 (Beta): its log density is not finite, so that such a record tells nothing and "
            "the answer is that of the others. Code outcomes as their law has them (0 and 1, "
            "categories from 0, half a unit in place of a time of 0), give costs of 0 a part of "
            "their own (docs/howto/fit-your-model.md), and mask what is missing",
        )


def _percent(share: float) -> str:
    return f"{share:.1%}" if share < 0.01 else f"{min(share, 1.0):.0%}"
