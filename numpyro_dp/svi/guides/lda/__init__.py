"""Latent Dirichlet allocation."""

from numpyro_dp._moved import formerly

__getattr__ = formerly("numpyro_dp.svi.guides.lda.guide")
