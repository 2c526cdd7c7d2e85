"""A ledger in an SQLite file, safe against crashes, other processes and other threads.

Its journal is rolled back, not written ahead: all that was charged is in the one file, and a copy
of it is complete. Every read and every append looks at the whole schema and follows the chain of
digests in the same transaction.
"""

import hashlib
import json
import os
import secrets
import sqlite3
import threading
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from numpyro_dp.accounting.budget import Budget
from numpyro_dp.accounting.ledger.book import READ, Admit, Book, Chain, Ledger
from numpyro_dp.accounting.relation import Relation, check_relation
from numpyro_dp.errors import LedgerError

_APPLICATION_ID = 0x6E644C47  # "ndLG"
_FORMAT, _OLD_FORMAT = 2, 1
_HEADER = b"SQLite format 3\0"
_BUSY_SECONDS = 300.0
_META = "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID"
_LINES = "(id INTEGER PRIMARY KEY, body TEXT NOT NULL, digest TEXT NOT NULL)"
_ENTRIES, _DRAWS = f"CREATE TABLE entries {_LINES}", f"CREATE TABLE draws {_LINES}"
# Where the last digest of each chain stands.
_HEADS: dict[Chain, str] = {"entries": "head", "draws": "drawn"}
_SCHEMAS = {_OLD_FORMAT: {_META, _ENTRIES}, _FORMAT: {_META, _ENTRIES, _DRAWS}}
# Closing any handle of a file drops all locks that its process holds on it, also those of another
# thread's connection: within a process one thread at a time touches ledgers.
_ONE_AT_A_TIME = threading.RLock()


def _after_fork() -> None:
    """Whoever held the lock in the parent does not run in the child."""
    global _ONE_AT_A_TIME
    _ONE_AT_A_TIME = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class _Read(NamedTuple):
    """The book, the last digests of its two chains, and the format that it is kept in."""

    book: Book
    heads: dict[Chain, str]
    form: int


def _link(previous: str, number: int, body: str) -> str:
    """Return the digest of a line: it covers everything before, so no byte can change alone."""
    return hashlib.sha256(f"{previous}\n{number}\n{body}".encode()).hexdigest()


def _terms(budget: Budget | None, relation: Relation) -> str:
    pair = None if budget is None else [budget.epsilon, budget.delta]
    return json.dumps({"budget": pair, "relation": relation})


def _first_draw(opening: int, terms: str) -> str:
    """Return the digest that the chain of draws begins with."""
    return _link("draws", opening, terms)


class FileLedger(Ledger):
    """A ledger in an SQLite file, safe against crashes and against other processes.

    :param path: the file; created when it does not exist.
    :param budget: the budget of a new ledger; for an existing one None adopts what the file says.
    :param relation: the relation of a new ledger; adopted from the file together with the budget.
    :raises LedgerError: when the file is no ledger, is damaged, or is fixed to another budget or
        relation. The file is left as it was.

    A file of format 1 is read as it is. The first charge turns it into format 2, in the same
    transaction; what it held until then counts as one list that was fixed in advance.
    """

    def __init__(self, path: str | os.PathLike[str], budget: Budget | None, relation: Relation):
        self._path = Path(path).expanduser().absolute()
        with _ONE_AT_A_TIME:
            if not self.path.exists():
                self._create(budget, relation)
            with self._reading() as connection:
                if connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
                    raise self._damaged()
                self.budget, self.relation = self._read_terms(connection)
                self._read(connection)
        adopts = budget is None and relation in (self.relation, "zero_out")
        if not adopts and (budget, relation) != (self.budget, self.relation):
            raise LedgerError(
                f"{self.path} was created with {self.budget} under {self.relation!r} and keeps "
                f"them: it cannot be opened with {budget} under {relation!r}. Open it without a "
                "budget, or choose another path"
            )

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    def read(self) -> Book:
        """Return everything, read afresh from the file."""
        with _ONE_AT_A_TIME, self._reading() as connection:
            return self._read(connection).book

    def _write(self, chain: Chain, body: str, admit: Admit) -> bool:
        """Append a line in one transaction that excludes every other writer, durably."""
        with _ONE_AT_A_TIME:
            self._check_header()
            with self._connection("rw") as connection:
                self._roll_back_journals(connection)
                # The journal's end is the commit: its folder is synced too.
                connection.execute("PRAGMA synchronous = EXTRA")
                connection.execute("PRAGMA fullfsync = ON")
                connection.execute("BEGIN IMMEDIATE")
                try:
                    found = self._read(connection)
                    admitted = admit(found.book)
                    if admitted:
                        self._insert(connection, chain, body, found)
                except BaseException:
                    connection.execute("ROLLBACK")
                    raise
                connection.execute("COMMIT" if admitted else "ROLLBACK")
        return admitted

    def _insert(
        self, connection: sqlite3.Connection, chain: Chain, body: str, found: _Read
    ) -> None:
        head = self._as_new_format(connection, found).heads[chain]
        number = len(getattr(found.book, chain)) + 1
        digest = _link(head, number, body)
        connection.execute(f"INSERT INTO {chain} VALUES (?, ?, ?)", (number, body, digest))
        connection.execute("UPDATE meta SET value = ? WHERE key = ?", (digest, _HEADS[chain]))

    @staticmethod
    def _roll_back_journals(connection: sqlite3.Connection) -> None:
        """Leave the write-ahead log of older versions, from which a copied file lacks charges."""
        (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
        if mode == "wal":
            # While another process has the file open its log stays: as safe, but two files.
            with suppress(sqlite3.OperationalError):
                connection.execute("PRAGMA journal_mode = DELETE")

    def _as_new_format(self, connection: sqlite3.Connection, found: _Read) -> _Read:
        if found.form == _FORMAT:
            return found
        (terms,) = connection.execute("SELECT value FROM meta WHERE key = 'terms'").fetchone()
        opening = len(found.book.entries)
        drawn = _first_draw(opening, terms)
        connection.execute(_DRAWS)
        rows = [("opening", str(opening)), ("drawn", drawn)]
        connection.executemany("INSERT INTO meta VALUES (?, ?)", rows)
        connection.execute(f"PRAGMA user_version = {_FORMAT}")
        return found._replace(heads={**found.heads, "draws": drawn}, form=_FORMAT)

    def _create(self, budget: Budget | None, relation: Relation) -> None:
        """Make a complete ledger aside and link it into place, so that no half of one is seen."""
        if not self.path.parent.is_dir():
            raise LedgerError(f"the folder of {self.path} does not exist: create it first")
        aside = self.path.with_name(f"{self.path.name}.new-{os.getpid()}-{secrets.token_hex(4)}")
        try:
            with self._connection("rwc", aside) as connection:
                connection.execute("PRAGMA journal_mode = DELETE")
                connection.execute("PRAGMA synchronous = EXTRA")
                connection.execute("BEGIN IMMEDIATE")
                for statement in (_META, _ENTRIES, _DRAWS):
                    connection.execute(statement)
                terms = _terms(budget, relation)
                rows = [
                    ("terms", terms),
                    ("head", _link("", 0, terms)),
                    ("opening", "0"),
                    ("drawn", _first_draw(0, terms)),
                ]
                connection.executemany("INSERT INTO meta VALUES (?, ?)", rows)
                connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {_FORMAT}")
                connection.execute("COMMIT")
            try:
                os.link(aside, self.path)
            except FileExistsError:
                return
            except OSError as error:
                raise LedgerError(
                    f"{self.path} could not be created: its file system has no hard links "
                    f"({error}); put the ledger on a local disk"
                ) from error
            _sync_folder(self.path.parent)
        finally:
            aside.unlink(missing_ok=True)

    def _check_header(self) -> bool:
        """Look at the raw bytes first, as SQLite may write to what it opens.

        :returns: Whether the file has a write-ahead log, as older versions made it.
        """
        try:
            with self.path.open("rb") as file:
                header = file.read(100)
        except OSError as error:
            raise LedgerError(f"the ledger {self.path} cannot be read: {error}") from error
        found = int.from_bytes(header[68:72], "big")
        if header[:16] != _HEADER or len(header) < 100 or found != _APPLICATION_ID:
            raise LedgerError(
                f"{self.path} is not a numpyro_dp ledger, or is damaged; it was left untouched. "
                "Choose another path, or restore the file from a backup"
            )
        self._check_format(int.from_bytes(header[60:64], "big"))
        return header[18] == 2

    def _check_format(self, form: int) -> None:
        if form not in _SCHEMAS:
            raise LedgerError(
                f"{self.path} was written in another ledger format than {_FORMAT}: open it with "
                "the version of numpyro_dp that wrote it"
            )

    @contextmanager
    def _reading(self) -> Generator[sqlite3.Connection]:
        """A connection in a transaction, also where nothing may be written beside the file."""
        log = self.path.with_name(f"{self.path.name}-wal")
        journal = self.path.with_name(f"{self.path.name}-journal")
        effective = os.access in os.supports_effective_ids
        writable = os.access(self.path.parent, os.W_OK, effective_ids=effective)
        if not self._check_header() or writable or log.exists():
            # What a killed writer left half done is undone by whoever comes next and may.
            with self._connection("rw" if journal.exists() else "ro") as connection:
                connection.execute("BEGIN")
                yield connection
            return
        # SQLite would make its shared index there. Without a writer's log all is in the file.
        before = self.path.stat()
        with self._connection("ro&immutable=1") as connection:
            connection.execute("BEGIN")
            yield connection
        after = self.path.stat()
        if log.exists() or (before.st_mtime_ns, before.st_size) != (
            after.st_mtime_ns,
            after.st_size,
        ):
            raise LedgerError(f"{self.path} was written to while it was read: read it again")

    @contextmanager
    def _connection(self, mode: str, path: Path | None = None) -> Generator[sqlite3.Connection]:
        target = path or self.path
        try:
            place = f"{target.as_uri()}?mode={mode}"
            connect = partial(sqlite3.connect, place, timeout=_BUSY_SECONDS, uri=True)
            # Twice, lest an interrupt of the first leave it open, and locked for others.
            with closing(connect(isolation_level=None)) as connection, closing(connection):
                yield connection
        except sqlite3.Error as error:
            raise LedgerError(
                f"the ledger {target} could not be used ({error}); release nothing. Where others "
                "write to it, its folder must be writable; if the file is damaged, restore it from "
                "a backup"
            ) from error

    def _check_schema(self, connection: sqlite3.Connection) -> int:
        """Return the format; refuse anything besides its tables, such as a trigger."""
        (form,) = connection.execute("PRAGMA user_version").fetchone()
        self._check_format(form)
        made = connection.execute("SELECT type, sql FROM sqlite_master").fetchall()
        if sorted(made, key=repr) != sorted((("table", s) for s in _SCHEMAS[form]), key=repr):
            raise self._damaged("it holds tables or triggers that no ledger has")
        return form

    def _read_terms(self, connection: sqlite3.Connection) -> tuple[Budget | None, Relation]:
        self._check_schema(connection)
        meta = dict(connection.execute("SELECT key, value FROM meta"))
        try:
            terms = json.loads(meta["terms"])
            budget = None if terms["budget"] is None else Budget(*terms["budget"])
            return budget, check_relation(terms["relation"])
        except (KeyError, TypeError, ValueError) as error:
            raise self._damaged() from error

    def _read(self, connection: sqlite3.Connection) -> _Read:
        """Return everything, after following both chains of digests; within a transaction."""
        form = self._check_schema(connection)
        meta = dict(connection.execute("SELECT key, value FROM meta"))
        terms = meta.get("terms", "")
        entries, charged = self._chain(connection, "entries", _link("", 0, terms), meta)
        if form == _OLD_FORMAT:
            if any(entry.planned for entry in entries):
                # It knew no plans: what was drawn from this one has been taken away.
                raise self._damaged("it holds a plan that its format does not know")
            return _Read(Book(entries, (), len(entries)), {"entries": charged}, form)
        try:
            opening = int(meta["opening"])
        except (KeyError, ValueError) as error:
            raise self._damaged() from error
        draws, drawn = self._chain(connection, "draws", _first_draw(opening, terms), meta)
        return _Read(Book(entries, draws, opening), {"entries": charged, "draws": drawn}, form)

    def _chain(
        self, connection: sqlite3.Connection, chain: Chain, head: str, meta: dict[str, str]
    ) -> tuple[tuple[Any, ...], str]:
        """Return the lines of ``chain`` and its last digest, the one that ``meta`` holds."""
        lines = []
        rows = connection.execute(f"SELECT id, body, digest FROM {chain} ORDER BY id")
        for number, (found, body, digest) in enumerate(rows, start=1):
            head = _link(head, number, body)
            if found != number or digest != head:
                raise self._damaged()
            try:
                lines.append(READ[chain](number, body))
            except (TypeError, ValueError) as error:
                raise LedgerError(
                    f"line {number} of {self.path} is of a kind this version cannot read "
                    f"({error}); open the ledger with the version that wrote it"
                ) from error
        if head != meta.get(_HEADS[chain]):
            raise self._damaged()
        return tuple(lines), head

    def _damaged(self, why: str = "its entries do not match their digests") -> LedgerError:
        return LedgerError(
            f"the ledger {self.path} is damaged: {why}. Nothing was charged; restore it from a "
            "backup"
        )


def _sync_folder(folder: Path) -> None:
    """Make a new name durable."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
