"""Attacks on what was claimed: empirical lower bounds on ε."""

from numpyro_dp._moved import formerly

__getattr__ = formerly("numpyro_dp.diagnostics.audit.audit")
