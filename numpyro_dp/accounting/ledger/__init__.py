"""Where charges are written down: in memory, or durably in a file."""

from numpyro_dp._moved import formerly

__getattr__ = formerly("numpyro_dp.accounting.ledger.book")
