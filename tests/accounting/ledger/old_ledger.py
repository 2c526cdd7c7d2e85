"""Ledgers as earlier versions wrote them: format 1, with a write-ahead log."""

import hashlib
import json
import sqlite3

from numpyro_dp.accounting.events import to_json


def _link(previous, number, body):
    return hashlib.sha256(f"{previous}\n{number}\n{body}".encode()).hexdigest()


def write(path, events, *, budget=(1.0, 1e-5), relation="zero_out", label="old"):
    """Write a ledger of format 1 that holds ``events``; return an open connection to it."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(
        "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID"
    )
    connection.execute(
        "CREATE TABLE entries (id INTEGER PRIMARY KEY, body TEXT NOT NULL, digest TEXT NOT NULL)"
    )
    terms = json.dumps({"budget": budget and list(budget), "relation": relation})
    head = _link("", 0, terms)
    for number, event in enumerate(events, start=1):
        body = json.dumps(["2026-01-01T00:00:00.000+00:00", label, to_json(event), None, "{}"])
        head = _link(head, number, body)
        connection.execute("INSERT INTO entries VALUES (?, ?, ?)", (number, body, head))
    connection.executemany("INSERT INTO meta VALUES (?, ?)", [("terms", terms), ("head", head)])
    connection.execute("PRAGMA application_id = 0x6E644C47")
    connection.execute("PRAGMA user_version = 1")
    connection.execute("COMMIT")
    connection.close()
    return sqlite3.connect(path, isolation_level=None)
