"""What is proved of single events: profiles and certificates that nobody else accounts for."""

from numpyro_dp._moved import formerly

__getattr__ = formerly("numpyro_dp.accounting.pld.bound")
