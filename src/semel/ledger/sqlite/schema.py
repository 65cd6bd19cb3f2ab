"""The file of the SQLite ledger: its tables, their version, and how a file of an older version is upgraded.

A file that a newer Semel has written is refused: if it were misread, two workers could win the same key.
"""

from __future__ import annotations

import random
import sqlite3
import time
import uuid
from collections.abc import Callable
from typing import Any, Final, TypeVar
from weakref import WeakSet

from semel.ledger.contract import LedgerError, LedgerUnavailable

Returned = TypeVar("Returned")

VERSION: Final = 3

# Rows are stored in the order of their first claim, and keys in a separate index. Keys come in any order: if rows were
# stored in key order (WITHOUT ROWID), each record would touch another page, which costs a third of the throughput.
_TABLES: Final = """
CREATE TABLE semel_ledger (
    key        TEXT NOT NULL UNIQUE,
    status     TEXT NOT NULL,
    fence      INTEGER NOT NULL,
    attempt    INTEGER NOT NULL,
    claimant   TEXT NOT NULL,
    lease_ends REAL NOT NULL,
    payload    TEXT NOT NULL,
    source     TEXT NOT NULL,
    result     BLOB NOT NULL,
    notes      BLOB,
    first_seen REAL NOT NULL,
    changed    REAL NOT NULL,
    expires    REAL NOT NULL
);
CREATE INDEX semel_ledger_expires ON semel_ledger (expires);

CREATE TABLE semel_outbox (
    number     INTEGER PRIMARY KEY AUTOINCREMENT,
    queue      TEXT NOT NULL,
    body       TEXT NOT NULL,
    key        TEXT NOT NULL,
    delay      INTEGER,
    grp        TEXT,
    attributes TEXT NOT NULL,
    taken_till REAL NOT NULL
);
CREATE INDEX semel_outbox_groups ON semel_outbox (queue, grp, number) WHERE grp IS NOT NULL;
"""
_META: Final = "CREATE TABLE IF NOT EXISTS semel_meta (name TEXT NOT NULL PRIMARY KEY, value) WITHOUT ROWID"
_GET: Final = "SELECT value FROM semel_meta WHERE name = ?"
_SET: Final = (
    "INSERT INTO semel_meta (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
)

# Entry i upgrades a file from version i to i + 1. Statements are separated by semicolons.
_STEPS: Final = (
    _TABLES,
    """
ALTER TABLE semel_outbox ADD COLUMN attempts INTEGER NOT NULL DEFAULT 0;
ALTER TABLE semel_outbox ADD COLUMN error TEXT NOT NULL DEFAULT ''
""",
    # `purge_at`: when a purge looks at the row. It is never later than `expires`, and stays when `expires` moves to a
    # later time. With an index on `expires` itself, every record would have to change the index.
    """
DROP INDEX semel_ledger_expires;
ALTER TABLE semel_ledger ADD COLUMN purge_at REAL NOT NULL DEFAULT 0;
UPDATE semel_ledger SET purge_at = expires;
CREATE INDEX semel_ledger_purge_at ON semel_ledger (purge_at)
""",
)

# Primary result codes of SQLite, as in sqlite3.h.
BUSY: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_ADVICE: Final = {
    sqlite3.SQLITE_BUSY: "another program holds its lock: end that program's transaction, or allow a longer `timeout`",
    sqlite3.SQLITE_LOCKED: "another connection holds its lock: end that transaction, or allow a longer `timeout`",
    sqlite3.SQLITE_FULL: "the disk is full: nothing was changed; free some space, it goes on by itself",
    sqlite3.SQLITE_IOERR: "reading or writing it failed: check the disk, it goes on by itself once that works",
    sqlite3.SQLITE_READONLY: "it cannot be written to: give this user the right to write the file and its folder",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened: check that the folder exists and that this user may write there",
    sqlite3.SQLITE_PERM: "it cannot be opened: give this user the right to read and write the file and its folder",
    sqlite3.SQLITE_CORRUPT: "the file is damaged: restore it from a backup",
    sqlite3.SQLITE_NOTADB: "the file is no SQLite database: choose another path",
}
_PASSES: Final = frozenset({5, 6, 13, 10, 8, 14, 3})  # what may pass by itself, or be fixed while we run


class DamagedRow(sqlite3.DatabaseError):
    """SQLite has read a row with values that no ledger writes."""

    sqlite_errorcode = sqlite3.SQLITE_CORRUPT


# UnicodeDecodeError: the driver cannot decode SQLite's message if that quotes a damaged schema.
TROUBLE: Final = (sqlite3.Error, UnicodeDecodeError)


def code_of(error: Exception) -> int:
    """The primary result code, or 0."""
    if isinstance(error, UnicodeDecodeError):
        return sqlite3.SQLITE_CORRUPT
    return (getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF


def explained(error: Exception, path: str) -> LedgerError:
    """The driver's error as one of ours: what happened, to which file, what to do next."""
    code = code_of(error)
    advice = _ADVICE.get(code, "SQLite refused the ledger's own statement")
    kind = LedgerUnavailable if code in _PASSES else LedgerError
    return kind(f"the ledger {path}: {advice} ({error})")


def patiently(call: Callable[[], Returned], timeout: float) -> Returned:
    """Repeat a call while other processes have locked the file. The pauses are short and random, so that no process
    starves."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            return call()
        except sqlite3.OperationalError as error:
            if code_of(error) not in BUSY or time.monotonic() >= deadline:
                raise
        time.sleep(random.uniform(0.0005, 0.003))


class Connection(sqlite3.Connection):
    """Knows its cursors, to close them: a cursor that was not read to its end would keep the connection at an old state
    of the file."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._cursors: WeakSet[sqlite3.Cursor] = WeakSet()

    def cursor(self, factory: Any = sqlite3.Cursor) -> Any:
        cursor = super().cursor(factory)
        self._cursors.add(cursor)
        return cursor

    def execute(self, *query: Any) -> sqlite3.Cursor:
        cursor: sqlite3.Cursor = self.cursor().execute(*query)
        return cursor

    def executemany(self, *query: Any) -> sqlite3.Cursor:
        cursor: sqlite3.Cursor = self.cursor().executemany(*query)
        return cursor

    def close_cursors(self, *, but: sqlite3.Cursor) -> None:
        for cursor in self._cursors - {but}:
            cursor.close()


def opened(path: str, synchronous: str, timeout: float) -> Connection:
    """Connect to a file, and create or upgrade our tables in it if necessary."""
    try:
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0, factory=Connection)
    except sqlite3.Error as error:
        raise explained(error, path) from error
    try:
        patiently(lambda: connection.execute("PRAGMA journal_mode = WAL").fetchone(), timeout)
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        connection.execute("PRAGMA wal_autocheckpoint = 4000")
        connection.execute("PRAGMA cache_size = -32768")
        connection.execute("PRAGMA temp_store = MEMORY")
        if _version(connection) != VERSION:
            patiently(lambda: connection.execute("BEGIN IMMEDIATE"), timeout)
            _migrate(connection, path)
            connection.execute("COMMIT")
    except TROUBLE as error:
        connection.close()
        raise explained(error, path) from error
    except BaseException:
        connection.close()
        raise
    return connection


def _version(connection: sqlite3.Connection) -> int:
    try:
        row = connection.execute(_GET, ("version",)).fetchone()
    except sqlite3.OperationalError as error:
        if code_of(error) != sqlite3.SQLITE_ERROR:  # anything but "no such table"
            raise
        row = None
    if row and type(row[0]) is not int:
        raise DamagedRow(f"its version is {row[0]!r}")
    return row[0] if row else 0


def _migrate(connection: sqlite3.Connection, path: str) -> None:
    version = _version(connection)  # again, now that nobody else can change it
    if version > VERSION:
        raise LedgerError(
            f"the ledger {path} has schema version {version}, this Semel knows versions up to {VERSION}: "
            "use the newer Semel, or another file"
        )
    connection.execute(_META)
    if not version:
        connection.execute(_SET, ("identity", uuid.uuid4().hex))
        connection.execute(_SET, ("floor", 0))
    for step in _STEPS[version:]:
        for statement in filter(str.strip, step.split(";")):
            connection.execute(statement)
    connection.execute(_SET, ("version", VERSION))


def identity(connection: sqlite3.Connection) -> str:
    """A unique id of this file. The ids of its outgoing messages start with it."""
    row = connection.execute(_GET, ("identity",)).fetchone()
    if row is None:
        raise DamagedRow("it has no identity")
    return str(row[0])
