"""What reports say of a private sum, and of what is taken as public, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpyro_dp.accounting.report.facts import RunFacts
from numpyro_dp.mechanisms.private_sum import PrivateSum

_LATTICE = (
    "integer record contributions, exact integer sum, floored Gaussian noise from an exact table "
    "on the same integers"
)
_ROW_BY_ROW = (
    "; records computed one at a time, and taken to be computed alike by the programs for N and "
    "N + 1 records"
)


TRUSTED = "whoever stores the records is trusted not to look at which rows are fetched"
_FETCHED = ", fetched from a store"
_SEEN = (
    _FETCHED + " that may tell who is in a batch: charged without amplification by sampling, as if "
    "every record were in every batch"
)


def conditions_of(mechanism: PrivateSum) -> tuple[str, ...]:
    """What the event of a private sum depends on beside the key of its noise."""
    fetched = mechanism.storage is not None and mechanism.amplified
    return (TRUSTED,) if fetched else ()


def sum_facts(mechanism: PrivateSum, summands: str, *, draw: str = "step", **said: Any) -> RunFacts:
    """The facts of a run that releases a private sum.

    :param mechanism: the sum.
    :param summands: what is added up, in words.
    :param draw: what has a batch of its own.
    :param said: further fields of :class:`RunFacts`, or others in place of the sum's.
    """
    rate, private = mechanism.sampling_rate, mechanism.is_private
    batches = f"Poisson sampling, rate {rate:.6g}, a fresh draw for each {draw}"
    if mechanism.storage is not None:
        batches += _FETCHED if mechanism.amplified else _SEEN
    lattice = _LATTICE + (_ROW_BY_ROW if mechanism.max_records is not None else "")
    raw = "gradients" if "gradient" in summands else "statistics"
    unprotected = f"none: un-noised, unclipped {raw}"
    found: dict[str, Any] = {
        "mechanism": f"Gaussian mechanism on {summands}" if private else unprotected,
        "sampler": "every record in every step" if rate == 1 else batches,
        "sampling_rate": rate,
        "clip_norm": mechanism.clip_norm,
        "noise_multiplier": mechanism.noise_multiplier,
        "overflow_delta": mechanism.tv_per_step,
        "arithmetic": lattice if private else "floating point",
        "conditions": conditions_of(mechanism),
    }
    return RunFacts(**(found | said))


def assumed_public(
    num_records: int | None, *options: str, arguments: Sequence[str] = ()
) -> tuple[str, ...]:
    """What a guarantee takes as public.

    :param num_records: number of records, ``None`` where it is private.
    :param options: what of the object, in words.
    :param arguments: names of the model's public arguments.
    """
    size = () if num_records is None else (f"the number of records ({num_records})",)
    return (*size, *options, *(f"argument {name}" for name in arguments))
