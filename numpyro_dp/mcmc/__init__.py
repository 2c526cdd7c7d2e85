"""Private kernels and the driver that runs them."""

from numpyro_dp.mcmc.driver import MCMC
from numpyro_dp.mcmc.posterior.bounded import Grid
from numpyro_dp.mcmc.posterior.conditional import UncheckedNUTS
from numpyro_dp.mcmc.posterior.draw import BoundedLikelihood, StronglyLogConcave
from numpyro_dp.mcmc.posterior.langevin import Langevin
from numpyro_dp.mcmc.posterior.rejection import Rejection
from numpyro_dp.mcmc.posterior_sample import OPS, OPSState
from numpyro_dp.mcmc.schedules import PolynomialStepSize
from numpyro_dp.mcmc.sgld import DPSGLD, SGLDState

__all__ = [
    "BoundedLikelihood",
    "DPSGLD",
    "Grid",
    "Langevin",
    "MCMC",
    "OPS",
    "OPSState",
    "PolynomialStepSize",
    "Rejection",
    "SGLDState",
    "StronglyLogConcave",
    "UncheckedNUTS",
]
