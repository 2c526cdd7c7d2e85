"""Exponential-family models whose conjugate updates are read off the model."""

from numpyro_dp._moved import formerly

__getattr__ = formerly("numpyro_dp.svi.guides.conjugate.guide")
