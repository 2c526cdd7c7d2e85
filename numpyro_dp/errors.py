"""Errors that a user of numpyro_dp can meet and catch."""

import contextlib
import re
import sys
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any, TypeVar

T = TypeVar("T")
# Sentences of a list of refusals, and characters: nobody reads more. Of a private number of records
# as many sentences would tell it.
_MOST, _LONGEST = 8, 1_500
# But for the type that a remedy names: no number of records follows that word.
_NUMBER = re.compile(r"(?<!float)(\d{1,3}(,\d{3})+(?!\d)|\d{2,})")


class UnsupportedModelError(ValueError):
    """The model cannot be split into a prior and one independent term per record.

    The message names the site or argument, the cause and the remedy; it never holds a value of
    the data.

    **Privacy.** It is raised before any charge, from shapes and names alone; under ``add_remove``
    it does not tell the number of records.

    **References.** Which models are split, and how: *Make your model fit*
    (docs/howto/fit-your-model.md).

    **Example**: see the how-to *Make your model fit*.
    """


class BudgetExceededError(RuntimeError):
    """A charge would take the ledger past its budget; nothing was charged and no data touched.

    The message says what was asked, what is left, the difference, and what would fit.

    **Privacy.** Its numbers come from charged events and the budget, never from records.

    **References**: see :class:`Accountant`.

    **Example**: see the how-to *Read a `BudgetExceededError`*.
    """


class LedgerError(RuntimeError):
    """A ledger file is foreign, damaged or fixed to another budget; it was left untouched.

    **Privacy.** It names the file and what is wrong with it, and nothing of any record.

    **References**: see :class:`Accountant`.

    **Example**: see :class:`Accountant`.
    """


def caller() -> int:
    """``stacklevel`` at which whoever calls it warns of the user's line, not of one in here."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_own()):
        level, frame = level + 1, frame.f_back
    return level


@cache
def _own() -> tuple[str, ...]:
    """Where the code is that a model runs through on its way here."""
    found = map(find_spec, ("numpyro_dp", "numpyro", "jax"))
    places = [place for spec in found if spec for place in spec.submodule_search_locations or ()]
    return (*places, contextlib.__file__)


def refuse(said: Sequence[str], what: str) -> None:
    """Raise one error of all that was said, if anything was.

    Whoever is told of one thing at a time mends, and tries again, once for each.

    :param said: sentences, one for each of ``what``; of many the first are told.
    :param what: that they are of, in the plural.
    :raises UnsupportedModelError: one sentence as it is, several as a list.
    """
    if len(said) == 1:
        raise UnsupportedModelError(said[0])
    if not said:
        return
    shown: list[str] = []
    for each in said:
        if shown and (len(shown) == _MOST or sum(map(len, (*shown, each))) > _LONGEST):
            shown.append("others likewise: mend these, and try again")
            break
        shown.append(each)
    raise UnsupportedModelError("\n- ".join((f"{len(said):,} {what} are refused:", *shown)))


def redacted(private_size: bool, function: Callable[..., T], *args: Any) -> T:
    """Call a function that looks at shapes; where these are private, its error loses all numbers.

    :param private_size: whether the number of records is private.
    :param function: what to call, before anything was charged.
    :param args: its arguments.
    :returns: What the function returns.
    :raises UnsupportedModelError: as the function does, with every number of two digits or more
        left out when ``private_size``.
    :raises ValueError: in the place of every other error of arguments and shapes, likewise.
    """
    if not private_size:
        return function(*args)
    try:
        return function(*args)
    except (BudgetExceededError, LedgerError):
        # These tell of the ledger alone.
        raise
    except Exception as error:
        kind = UnsupportedModelError if isinstance(error, UnsupportedModelError) else ValueError
        message = _NUMBER.sub("…", str(error))
    # Raised out here: a chained cause would tell what the message leaves out.
    raise kind(message)
