"""DPSVI: clipped gradients of the ELBO, released with noise."""

from numpyro_dp._moved import formerly

__getattr__ = formerly("numpyro_dp.svi.dpsvi.dpsvi")
