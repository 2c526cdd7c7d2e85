"""Private kernels and the driver that runs them."""

from numpyro_dp.mcmc.clipping import ClippingRate, clipping_rate
from numpyro_dp.mcmc.driver import MCMC
from numpyro_dp.mcmc.metropolis import DPFastMH
from numpyro_dp.mcmc.metropolis_presets import DPBarkerMH, DPPenaltyMH
from numpyro_dp.mcmc.metropolis_step import MetropolisState
from numpyro_dp.mcmc.posterior.bounded import Grid
from numpyro_dp.mcmc.posterior.conditional import UncheckedNUTS
from numpyro_dp.mcmc.posterior.draw import BoundedLikelihood, StronglyLogConcave
from numpyro_dp.mcmc.posterior.langevin import Langevin
from numpyro_dp.mcmc.posterior.rejection import Rejection
from numpyro_dp.mcmc.posterior_sample import OPS, OPSState
from numpyro_dp.mcmc.schedules import PhaseTransitionStepSize, PolynomialStepSize
from numpyro_dp.mcmc.sgfs import DPSGFS, SGFSState
from numpyro_dp.mcmc.sghmc import DPSGHMC, SGHMCState
from numpyro_dp.mcmc.sgld import DPSGLD, SGLDState
from numpyro_dp.mcmc.sgnht import DPSGNHT, SGNHTState

__all__ = [
    "DPSGFS",
    "DPSGHMC",
    "DPSGLD",
    "DPSGNHT",
    "MCMC",
    "OPS",
    "BoundedLikelihood",
    "ClippingRate",
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
    "clipping_rate",
]
