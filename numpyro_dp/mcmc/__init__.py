"""Private kernels and the driver that runs them."""

from numpyro_dp.mcmc.adaptation import (
    AdaptedForecast as AdaptedForecast,
    AdaptState as AdaptState,
)
from numpyro_dp.mcmc.driver import MCMC as MCMC
from numpyro_dp.mcmc.metropolis.kernel import DPFastMH as DPFastMH
from numpyro_dp.mcmc.metropolis.presets import (
    DPBarkerMH as DPBarkerMH,
    DPPenaltyMH as DPPenaltyMH,
)
from numpyro_dp.mcmc.metropolis.step import MetropolisState as MetropolisState
from numpyro_dp.mcmc.nuts import DPNUTS as DPNUTS
from numpyro_dp.mcmc.posterior.bounded import Grid as Grid
from numpyro_dp.mcmc.posterior.conditional import UncheckedNUTS as UncheckedNUTS
from numpyro_dp.mcmc.posterior.draw import (
    BoundedLikelihood as BoundedLikelihood,
    StronglyLogConcave as StronglyLogConcave,
)
from numpyro_dp.mcmc.posterior.langevin import Langevin as Langevin
from numpyro_dp.mcmc.posterior.ops import OPS as OPS, OPSState as OPSState
from numpyro_dp.mcmc.posterior.rejection import Rejection as Rejection
from numpyro_dp.mcmc.sgmcmc.schedules import (
    PhaseTransitionStepSize as PhaseTransitionStepSize,
    PolynomialStepSize as PolynomialStepSize,
)
from numpyro_dp.mcmc.sgmcmc.sgfs import DPSGFS as DPSGFS, SGFSState as SGFSState
from numpyro_dp.mcmc.sgmcmc.sghmc import DPSGHMC as DPSGHMC, SGHMCState as SGHMCState
from numpyro_dp.mcmc.sgmcmc.sgld import DPSGLD as DPSGLD, SGLDState as SGLDState
from numpyro_dp.mcmc.sgmcmc.sgnht import DPSGNHT as DPSGNHT, SGNHTState as SGNHTState
