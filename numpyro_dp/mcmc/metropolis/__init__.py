"""Private Metropolis kernels: one engine, its proposals and its charges."""

from numpyro_dp._moved import formerly

__getattr__ = formerly("numpyro_dp.mcmc.metropolis.kernel")
