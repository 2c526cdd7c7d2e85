"""Logistic, binomial and negative binomial regression by Pólya-Gamma augmentation."""

from numpyro_dp._moved import formerly

__getattr__ = formerly("numpyro_dp.svi.guides.polya_gamma.guide")
