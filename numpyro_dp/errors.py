"""Errors that a user of numpyro_dp can meet and catch."""


class UnsupportedModelError(ValueError):
    """The model cannot be split into a prior and one independent term per record.

    The message names the site or argument, the cause and the remedy; it never holds a value of
    the data.
    """


class BudgetExceededError(RuntimeError):
    """A charge would take the ledger past its budget; nothing was charged and no data touched.

    The message says what was asked, what is left, the difference, and what would fit.
    """


class LedgerError(RuntimeError):
    """A ledger file is foreign, damaged or fixed to another budget; it was left untouched."""
