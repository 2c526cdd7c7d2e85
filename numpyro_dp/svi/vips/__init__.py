"""VIPS: natural-gradient variational Bayes on noisy expected statistics."""

from numpyro_dp._moved import formerly

__getattr__ = formerly("numpyro_dp.svi.vips.vips")
