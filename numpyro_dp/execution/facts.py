"""What reports say of a private sum, in words."""

from __future__ import annotations

from numpyro_dp.mechanisms.private_sum import PrivateSum

_LATTICE = (
    "integer record contributions, exact integer sum, floored Gaussian noise from an exact table "
    "on the same integers"
)
_ROW_BY_ROW = (
    "; records computed one at a time, and taken to be computed alike by the programs for N and "
    "N + 1 records"
)


def sampler(mechanism: PrivateSum, unit: str) -> str:
    """How records come to take part in a release; ``unit`` has a draw of its own."""
    if mechanism.sampling_rate == 1:
        return "every record in every step"
    return f"Poisson sampling, rate {mechanism.sampling_rate:.6g}, a fresh draw for each {unit}"


def arithmetic(mechanism: PrivateSum) -> str:
    """How a release holds in the machine's own arithmetic."""
    if not mechanism.is_private:
        return "floating point"
    return _LATTICE + (_ROW_BY_ROW if mechanism.max_records is not None else "")
