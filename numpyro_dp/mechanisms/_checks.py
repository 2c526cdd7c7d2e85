"""Checks of what a private sum is made with, and of where it is asked for."""

import math

import jax

from numpyro_dp import _validate

_CLIP_NORMS = 2.0**-40, 2.0**40


def checked_shape(
    num_records: int,
    dim: int,
    sampling_rate: float,
    microbatch_size: int | None,
    max_records: int | None,
    scale: tuple[float, ...] | None,
) -> tuple[int, float, int]:
    """Records, rate, and the public number of records that everything is sized for."""
    num_records = _validate.positive_int("num_records", num_records)
    dim = _validate.positive_int("dim", dim)
    sampling_rate = _validate.rate("sampling_rate", sampling_rate)
    sized_for = num_records
    if microbatch_size is not None:
        _validate.positive_int("microbatch_size", microbatch_size)
    if max_records is not None:
        sized_for = _validate.positive_int("max_records", max_records)
        if sized_for < num_records:
            raise ValueError("max_records is smaller than the data: give a public upper bound")
    if scale is not None:
        if not isinstance(scale, tuple) or len(scale) != dim:
            raise ValueError(f"scale must be a tuple of dim={dim} positive numbers")
        for weight in scale:
            _validate.positive("scale", weight)
    return num_records, sampling_rate, sized_for


def checked_noise(clip_norm: float, noise_multiplier: float) -> bool:
    """Whether the sum is private; refuses one of clip and noise without the other."""
    _validate.nonnegative("noise_multiplier", noise_multiplier)
    if noise_multiplier == 0 and clip_norm == math.inf:
        return False
    if noise_multiplier == 0 or clip_norm == math.inf:
        raise ValueError(
            "noise_multiplier=0 and clip_norm=inf switch privacy off together, for tests: either "
            "one alone has no guarantee; give a positive noise_multiplier and a finite clip_norm"
        )
    low, high = _CLIP_NORMS
    if not low <= _validate.positive("clip_norm", clip_norm) <= high:
        raise ValueError(
            f"clip_norm must lie in [2^-40, 2^40], got {clip_norm!r}: float32 gradients outside "
            "are not clipped usefully; rescale the model"
        )
    return True


def refuse_several_processes(called: str) -> None:
    """Refuse, in one of several processes of ``jax.distributed``, what none but one process can do.

    Each would draw noise of its own and charge for itself, or needs all records on one machine.

    :param called: what was called, for the message.
    :raises RuntimeError: there are several processes.
    """
    processes = jax.process_count()
    if processes > 1:
        raise RuntimeError(
            f"{called} was called in one of {processes} processes of jax.distributed, which it "
            "cannot divide its work among. Nothing was charged. Run it in one process that was "
            "started without jax.distributed.initialize()"
        )
