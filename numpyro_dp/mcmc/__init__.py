"""Private kernels and the driver that runs them."""

from numpyro_dp.mcmc.driver import MCMC
from numpyro_dp.mcmc.metropolis.kernel import DPBarkerMH, DPFastMH, DPPenaltyMH
from numpyro_dp.mcmc.metropolis.step import MetropolisState
from numpyro_dp.mcmc.posterior.bounded import Grid
from numpyro_dp.mcmc.posterior.conditional import UncheckedNUTS
from numpyro_dp.mcmc.posterior.draw import BoundedLikelihood, StronglyLogConcave
from numpyro_dp.mcmc.posterior.langevin import Langevin
from numpyro_dp.mcmc.posterior.ops import OPS, OPSState
from numpyro_dp.mcmc.posterior.rejection import Rejection
from numpyro_dp.mcmc.sgmcmc.schedules import PhaseTransitionStepSize, PolynomialStepSize
from numpyro_dp.mcmc.sgmcmc.sgfs import DPSGFS, SGFSState
from numpyro_dp.mcmc.sgmcmc.sghmc import DPSGHMC, SGHMCState
from numpyro_dp.mcmc.sgmcmc.sgld import DPSGLD, SGLDState
from numpyro_dp.mcmc.sgmcmc.sgnht import DPSGNHT, SGNHTState

__all__ = [
    "DPSGFS",
    "DPSGHMC",
    "DPSGLD",
    "DPSGNHT",
    "MCMC",
    "OPS",
    "BoundedLikelihood",
    "DPBarkerMH",
    "DPFastMH",
    "DPPenaltyMH",
    "Grid",
    "Langevin",
    "MetropolisState",
    "OPSState",
    "PhaseTransitionStepSize",
    "PolynomialStepSize",
    "Rejection",
    "SGFSState",
    "SGHMCState",
    "SGLDState",
    "SGNHTState",
    "StronglyLogConcave",
    "UncheckedNUTS",
]
