"""The information matrix: what records may tell of it, what rounds told, what of that is noise."""

from numpyro_dp.scoring.information.entries import (
    Entries,
    Pattern,
    held,
    pattern,
    site_means,
    uncut,
)
from numpyro_dp.scoring.information.estimate import (
    Estimate,
    fitted_information,
    weighted_information,
)
from numpyro_dp.scoring.information.matrices import Matrix, Vector, column, symmetric, traces
from numpyro_dp.scoring.information.shrinking import damped, shrunk

__all__ = [
    "Entries",
    "Estimate",
    "Matrix",
    "Pattern",
    "Vector",
    "column",
    "damped",
    "fitted_information",
    "held",
    "pattern",
    "shrunk",
    "site_means",
    "symmetric",
    "traces",
    "uncut",
    "weighted_information",
]
