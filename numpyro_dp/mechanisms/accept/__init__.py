"""Private acceptance tests: exact log ratios and the bits that are released of them."""

from numpyro_dp._moved import formerly

__getattr__ = formerly("numpyro_dp.mechanisms.accept.rules")
