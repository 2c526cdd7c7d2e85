"""The command line: ledgers, and the words of reports. It imports no JAX and writes nothing."""

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence

from numpyro_dp.cli.snapshot import Snapshot
from numpyro_dp.cli.text import export, show, verify
from numpyro_dp.cli.words import ten_words
from numpyro_dp.errors import LedgerError

__all__ = ["main"]

_CODES = """\
exit codes:
  0  done; for verify: nothing is wrong
  1  verify found a problem, such as an overspent budget
  2  the file is missing, foreign or damaged, or the command was not understood
"""
_COMMANDS: dict[str, tuple[str, Callable[[Snapshot], tuple[str, int]]]] = {
    "show": ("print the budget, the totals and every charge", show),
    "verify": ("recompute every charge and compare the total with the budget", verify),
    "export": ("print everything for other programs", export),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``python -m numpyro_dp`` and return its exit code.

    :param arguments: the words of the command line; ``None`` for those of the process.
    :returns: 0 when all is well, 1 when ``verify`` found a problem, 2 when the ledger is missing,
        foreign or damaged.
    :raises SystemExit: with code 2, when the command was not understood.

    **Example**::

        >>> import contextlib, io
        >>> with contextlib.redirect_stderr(io.StringIO()):
        ...     main(["ledger", "show", "/no/such/ledger"])
        2
    """
    chosen = _parser().parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that lacks ε must not turn a report into a traceback.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        text, code = chosen.run(chosen)
    except LedgerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # Whoever read along, as `head` does, has had enough; nor is there anybody to flush to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m numpyro_dp",
        epilog=_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    topics = parser.add_subparsers(required=True, metavar="topic")
    ledger = topics.add_parser(
        "ledger",
        help="read a privacy ledger",
        description="Read a ledger; nothing is changed, and others may write to it meanwhile.",
        epilog=_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    ledger.set_defaults(run=lambda chosen: _COMMANDS[chosen.command][1](Snapshot.read(chosen.path)))
    purpose = "explain the ten words of every report"
    words = topics.add_parser("words", help=purpose, description=purpose)
    words.set_defaults(run=lambda chosen: (ten_words(), 0))
    commands = ledger.add_subparsers(dest="command", required=True, metavar="command")
    for name, (purpose, _) in _COMMANDS.items():
        command = commands.add_parser(name, help=purpose, description=purpose)
        if name == "export":
            command.add_argument("--json", action="store_true", required=True, help="the format")
        command.add_argument("path", help="the ledger's file")
    return parser
