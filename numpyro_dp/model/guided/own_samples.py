"""Laws whose samples are not of their density: what the model might have shown is not theirs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpyro import distributions as dist

from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.model.plates import peeled

# NumPyro draws from the law before it is censored.
_CENSORED = (
    dist.LeftCensoredDistribution,
    dist.RightCensoredDistribution,
    dist.IntervalCensoredDistribution,
)


def has_own_samples(fn: Any) -> bool:
    """Whether draws of a distribution are of its density."""
    return not isinstance(peeled(fn).fn, _CENSORED)


def require_own_samples(site: Mapping[str, Any], asker: str, instead: str) -> None:
    """Refuse a site whose draws are not of its density.

    :param asker: who draws, as the subject of the sentence.
    :param instead: what may be done instead.
    :raises UnsupportedModelError: it is censored.
    """
    if not has_own_samples(site["fn"]):
        name = type(peeled(site["fn"]).fn).__name__
        raise UnsupportedModelError(
            f"{asker} draws what might have been observed at `{site['name']}`, and NumPyro draws "
            f"from {name} without censoring: the answer would be far off. Where the limit of every "
            "record is known, observe whether a record is beyond it (Bernoulli of the law's cdf "
            "there) and, under handlers.mask, the value of each that is not (of the truncated "
            f"law); {instead}"
        )
