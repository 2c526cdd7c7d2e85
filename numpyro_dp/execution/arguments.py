"""Arguments of everything that releases private sums, checked alike."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_dp import _validate
from numpyro_dp._arrays import as_jax
from numpyro_dp._shards import PaddedRecords, Shards
from numpyro_dp._sources import NOT_FETCHED, RecordSource
from numpyro_dp.accounting import Budget


def check_noise(privacy: Budget | None, noise_multiplier: object) -> None:
    """Refuse both or neither of a budget and a noise multiplier."""
    if privacy is not None and not isinstance(privacy, Budget):
        given = _validate.shown(privacy)
        raise ValueError(f"privacy must be a numpyro_dp.Budget(epsilon, delta), got {given}")
    if (privacy is None) == (noise_multiplier is None):
        given = "neither is given" if privacy is None else "both are given"
        raise ValueError(
            "give either privacy=Budget(epsilon, delta), from which the noise is calibrated, "
            f"or noise_multiplier=, and not both: {given}, and the noise rests on one of them"
        )


def checked_noise(privacy: Budget | None, noise_multiplier: float | None) -> float | None:
    """The noise multiplier of one release, which is positive; see :func:`check_noise`."""
    check_noise(privacy, noise_multiplier)
    if noise_multiplier is None:
        return None
    return _validate.positive("noise_multiplier", noise_multiplier)


def given_noise(privacy: Budget | None, noise_multiplier: float | None) -> float | Budget:
    """The one of the two that was given."""
    if privacy is not None:
        return privacy
    if noise_multiplier is not None:
        return noise_multiplier
    raise ValueError("give privacy= or noise_multiplier=")


def check_noise_and_clip(
    noise_multiplier: float | None, clip_norm: float | Mapping[str, float] | None
) -> None:
    """Refuse one of noise and clipping without the other; ``None`` is the guide's own bound."""
    if isinstance(clip_norm, Mapping):
        for name, norm in clip_norm.items():
            _validate.positive(f"clip_norm[{name!r}]", norm)
    elif clip_norm is not None:
        _validate.positive_or_infinite("clip_norm", clip_norm)
    _validate.given(_validate.nonnegative, noise_multiplier=noise_multiplier)
    if noise_multiplier == 0 and clip_norm == math.inf:
        return
    if clip_norm == math.inf or noise_multiplier == 0:
        raise ValueError(
            "clip_norm=inf and noise_multiplier=0 switch privacy off together, for tests: "
            "either one alone has no guarantee and is refused"
        )


def check_batches(
    batch_size: float | None,
    sampling_rate: float | None,
    microbatch_size: int | None,
    max_records: int | None,
) -> None:
    """Refuse sizes that are out of range, and two ways of saying how large a batch is."""
    if batch_size is not None and sampling_rate is not None:
        raise ValueError("give batch_size= (expected size) or sampling_rate=, not both")
    _validate.given(_validate.positive, batch_size=batch_size)
    _validate.given(_validate.rate, sampling_rate=sampling_rate)
    _validate.given(
        _validate.positive_int, microbatch_size=microbatch_size, max_records=max_records
    )


def check_private_size(
    sampling_rate: float | None, max_records: int | None, num_records: int
) -> None:
    """Where the number of records is private, a rate and a public bound must be given."""
    if sampling_rate is None or sampling_rate == 1 or max_records is None:
        raise ValueError(
            "under relation='add_remove' the number of records is private: give "
            "sampling_rate= below 1 (not batch_size) and max_records=, a public upper bound "
            "on the number of records"
        )
    if max_records < num_records:
        raise ValueError("max_records is smaller than the data: give a public upper bound")


def expected_rate(batch_size: float | None, sampling_rate: float | None, num_records: int) -> float:
    """Chance of each record to be in a batch; 1 where neither size nor rate is given."""
    if batch_size is None:
        return 1.0 if sampling_rate is None else float(sampling_rate)
    if batch_size > num_records:
        raise ValueError(
            f"batch_size={batch_size:g} is larger than the {num_records} records: "
            "give at most that many, or neither batch_size nor sampling_rate for full "
            "batches"
        )
    return batch_size / num_records


def require_numbers(name: str, array: Any, shape: str) -> None:
    """Refuse records that are no array of real numbers.

    By kind alone: whether a list or an array of objects converts depends on what single records
    hold.

    :param name: what they are called in the message.
    :param shape: the shape that is asked for, in words.
    :raises ValueError: for anything but a NumPy or JAX array of real numbers.
    """
    if isinstance(array, RecordSource):
        raise ValueError(NOT_FETCHED)
    masked = isinstance(array, np.ma.MaskedArray)  # JAX would drop the mask.
    is_array = isinstance(array, (np.ndarray, jax.Array, PaddedRecords)) and not masked
    kinds = (jnp.floating, jnp.integer, jnp.bool_)
    if not (is_array and any(jnp.issubdtype(array.dtype, kind) for kind in kinds)):
        given = f"dtype {array.dtype}" if is_array else type(array).__name__
        raise ValueError(
            f"{name} must be a NumPy or JAX array of real numbers, of shape {shape}, with NaN for "
            f"what is missing, got {given}"
        )


def single_precision(array: Any, shards: Shards | None = None) -> jax.Array:
    """Records in float32, without a word on a number past it, which would be one on a record.

    :param shards: devices among which they are divided.
    """
    with np.errstate(all="ignore"):
        if shards is not None:
            return shards.place(array, np.dtype(np.float32))
        return as_jax(array, jnp.float32)
