"""Private kernels and the driver that runs them."""

from numpyro_dp.mcmc.driver import MCMC
from numpyro_dp.mcmc.schedules import PolynomialStepSize
from numpyro_dp.mcmc.sgld import DPSGLD, SGLDState

__all__ = ["DPSGLD", "MCMC", "PolynomialStepSize", "SGLDState"]
