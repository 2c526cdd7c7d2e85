"""Ledgers: the list of what was charged, in memory or in a file that processes share.

A ledger decides nothing about privacy. It appends an entry when a caller's test of all earlier
entries says so, and makes test and append one atomic, durable act.
"""

import hashlib
import json
import os
import secrets
import sqlite3
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from numpyro_dp.accounting.budget import Budget
from numpyro_dp.accounting.events import DpEvent, from_json, to_json
from numpyro_dp.accounting.relation import Relation, check_relation
from numpyro_dp.accounting.versions import versions
from numpyro_dp.errors import LedgerError

__all__ = ["Entry", "FileLedger", "Ledger", "MemoryLedger"]

_APPLICATION_ID = 0x6E644C47  # "ndLG"
_FORMAT = 1
_HEADER = b"SQLite format 3\0"
_BUSY_SECONDS = 300.0
_SCHEMA = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE entries (id INTEGER PRIMARY KEY, body TEXT NOT NULL, digest TEXT NOT NULL)",
)


@dataclass(frozen=True)
class Entry:
    """One charge.

    Args:
        id: position in the ledger, from 1.
        time: when it was charged, UTC, ISO 8601.
        label: who charged it.
        event: what was released.
        condition: what the privacy of the entry depends on, None when nothing.
        versions: installed packages, as JSON.
    """

    id: int
    time: str
    label: str
    event: DpEvent
    condition: str | None
    versions: str


Admit = Callable[[tuple[Entry, ...]], bool]


class Ledger(Protocol):
    """A list of entries with a budget and a relation fixed when it was created."""

    @property
    def budget(self) -> Budget | None:
        """The budget, None when there is none."""
        ...

    @property
    def relation(self) -> Relation:
        """The neighbouring relation."""
        ...

    @property
    def path(self) -> Path | None:
        """The file, None for a ledger in memory."""
        ...

    def entries(self) -> tuple[Entry, ...]:
        """Return all entries, read afresh."""
        ...

    def append(self, label: str, event: DpEvent, condition: str | None, admit: Admit) -> bool:
        """Append one entry if ``admit`` of all earlier ones holds; return whether it did."""
        ...


def _body(label: str, event: DpEvent, condition: str | None) -> str:
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    body = [now, label, to_json(event), condition, json.dumps(versions())]
    return json.dumps(body, ensure_ascii=False)


def _entry(number: int, body: str) -> Entry:
    time, label, event, condition, installed = json.loads(body)
    return Entry(number, time, label, from_json(event), condition, installed)


class MemoryLedger:
    """A ledger that lives and dies with the process."""

    def __init__(self, budget: Budget | None, relation: Relation) -> None:
        self.budget = budget
        self.relation: Relation = relation
        self.path: Path | None = None
        self._entries: tuple[Entry, ...] = ()
        self._process = os.getpid()
        self._lock = threading.Lock()

    def entries(self) -> tuple[Entry, ...]:
        """Return all entries."""
        return self._entries

    def append(self, label: str, event: DpEvent, condition: str | None, admit: Admit) -> bool:
        """Append one entry if ``admit`` of all earlier ones holds; return whether it did."""
        if self.budget is not None and os.getpid() != self._process:
            raise LedgerError(
                "a budget in memory was carried into another process by a fork, where it would be "
                "spent a second time: give the accountant a file with path="
            )
        body = _body(label, event, condition)
        with self._lock:
            if not admit(self._entries):
                return False
            self._entries = (*self._entries, _entry(len(self._entries) + 1, body))
        return True


def _link(previous: str, number: int, body: str) -> str:
    """Return the digest of an entry: it covers everything before, so no byte can change alone."""
    return hashlib.sha256(f"{previous}\n{number}\n{body}".encode()).hexdigest()


def _terms(budget: Budget | None, relation: Relation) -> str:
    pair = None if budget is None else [budget.epsilon, budget.delta]
    return json.dumps({"budget": pair, "relation": relation})


class FileLedger:
    """A ledger in an SQLite file, safe against crashes and against other processes.

    Args:
        path: the file; created when it does not exist.
        budget: the budget of a new ledger; for an existing one None adopts what the file says.
        relation: the relation of a new ledger; adopted from the file together with the budget.

    Raises:
        LedgerError: when the file is no ledger, is damaged, or is fixed to another budget or
            relation. The file is left as it was.
    """

    def __init__(self, path: str | os.PathLike[str], budget: Budget | None, relation: Relation):
        self.path = Path(path).expanduser().absolute()
        if not self.path.exists():
            self._create(budget, relation)
        self._check_header()
        with self._reading() as connection:
            self._check_schema(connection)
            self.budget, self.relation = self._read_terms(connection)
            self._read(connection)
        adopts = budget is None and relation in (self.relation, "zero_out")
        if not adopts and (budget, relation) != (self.budget, self.relation):
            raise LedgerError(
                f"{self.path} was created with {self.budget} under {self.relation!r} and keeps "
                f"them: it cannot be opened with {budget} under {relation!r}. Open it without a "
                "budget, or choose another path"
            )

    def entries(self) -> tuple[Entry, ...]:
        """Return all entries, read afresh from the file."""
        self._check_header()
        with self._reading() as connection:
            return self._read(connection)[0]

    def append(self, label: str, event: DpEvent, condition: str | None, admit: Admit) -> bool:
        """Append one entry if ``admit`` of all earlier ones holds; return whether it did.

        The entry is on disk when this returns True. Test and insertion are one transaction that
        excludes every other writer.
        """
        body = _body(label, event, condition)
        self._check_header()
        with self._connection("rw") as connection:
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA fullfsync = ON")
            connection.execute("BEGIN IMMEDIATE")
            try:
                entries, head = self._read(connection)
                admitted = admit(entries)
                if admitted:
                    number = len(entries) + 1
                    digest = _link(head, number, body)
                    row = (number, body, digest)
                    connection.execute("INSERT INTO entries VALUES (?, ?, ?)", row)
                    connection.execute("UPDATE meta SET value = ? WHERE key = 'head'", (digest,))
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT" if admitted else "ROLLBACK")
        return admitted

    def _create(self, budget: Budget | None, relation: Relation) -> None:
        """Make a complete ledger aside and link it into place, so that no half of one is seen."""
        if not self.path.parent.is_dir():
            raise LedgerError(f"the folder of {self.path} does not exist: create it first")
        aside = self.path.with_name(f"{self.path.name}.new-{os.getpid()}-{secrets.token_hex(4)}")
        try:
            with self._connection("rwc", aside) as connection:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = FULL")
                connection.execute("BEGIN IMMEDIATE")
                for statement in _SCHEMA:
                    connection.execute(statement)
                terms = _terms(budget, relation)
                rows = [("terms", terms), ("head", _link("", 0, terms))]
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

    def _check_header(self) -> None:
        """Look at the raw bytes first: SQLite may write to what it opens."""
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
        if int.from_bytes(header[60:64], "big") != _FORMAT:
            raise LedgerError(
                f"{self.path} was written in another ledger format than {_FORMAT}: open it with "
                "the version of numpyro_dp that wrote it"
            )

    @contextmanager
    def _reading(self) -> Generator[sqlite3.Connection]:
        """A connection that reads, also where nothing may be written beside the file."""
        folder, log = self.path.parent, self.path.with_name(f"{self.path.name}-wal")
        effective = os.access in os.supports_effective_ids
        if os.access(folder, os.W_OK, effective_ids=effective) or log.exists():
            with self._connection("ro") as connection:
                yield connection
            return
        # SQLite would make its shared index there. Without a writer's log all is in the file.
        before = self.path.stat()
        with self._connection("ro&immutable=1") as connection:
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
            connection = sqlite3.connect(
                f"{target.as_uri()}?mode={mode}",
                uri=True,
                timeout=_BUSY_SECONDS,
                isolation_level=None,
            )
            try:
                yield connection
            finally:
                connection.close()
        except sqlite3.Error as error:
            raise LedgerError(
                f"the ledger {target} could not be used ({error}); release nothing. Where others "
                "write to it, its folder must be writable; if the file is damaged, restore it from "
                "a backup"
            ) from error

    def _check_schema(self, connection: sqlite3.Connection) -> None:
        (health,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        statements = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")
        if health != "ok" or {sql for (sql,) in statements} != set(_SCHEMA):
            raise self._damaged()

    def _read_terms(self, connection: sqlite3.Connection) -> tuple[Budget | None, Relation]:
        meta = dict(connection.execute("SELECT key, value FROM meta"))
        try:
            terms = json.loads(meta["terms"])
            budget = None if terms["budget"] is None else Budget(*terms["budget"])
            return budget, check_relation(terms["relation"])
        except (KeyError, TypeError, ValueError) as error:
            raise self._damaged() from error

    def _read(self, connection: sqlite3.Connection) -> tuple[tuple[Entry, ...], str]:
        """Return all entries and the last digest, after following the chain of digests."""
        # One statement sees one state of the file, so a writer cannot come in between.
        rows = connection.execute(
            "SELECT key, value, NULL FROM meta UNION ALL SELECT id, body, digest FROM entries"
        ).fetchall()
        meta = {key: value for key, value, _ in rows if isinstance(key, str)}
        charged = [row for row in rows if isinstance(row[0], int)]
        head, entries = _link("", 0, meta.get("terms", "")), []
        for number, (found, body, digest) in enumerate(sorted(charged), start=1):
            head = _link(head, number, body)
            if found != number or digest != head:
                raise self._damaged()
            try:
                entries.append(_entry(number, body))
            except (TypeError, ValueError) as error:
                raise LedgerError(
                    f"entry {number} of {self.path} is of a kind this version cannot read "
                    f"({error}); open the ledger with the version that wrote it"
                ) from error
        if head != meta.get("head"):
            raise self._damaged()
        return tuple(entries), head

    def _damaged(self) -> LedgerError:
        return LedgerError(
            f"the ledger {self.path} is damaged: its entries do not match their digests. Nothing "
            "was charged; restore it from a backup"
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
