"""The database: its tables, its version, and how it is opened.

A *generation* is what a queue holds between two purges. Purging or deleting a queue gives it a new generation (or none)
in O(1); the old one's rows are swept up later, a few at a time. A message's row id is its generation and its number
(`generation << GENERATION_BITS | number`), so a generation is one contiguous range of the table, and no row id is used
twice.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from semel.broker.engine.damage import check_values
from semel.errors import StartError

SCHEMA_VERSION: Final = 3  # version 2 has the same tables, but no starts in its receive log
APPLICATION_ID: Final = 0x53454D4C  # "SEML"
GENERATION_BITS: Final = 40
NUMBER_MASK: Final = (1 << GENERATION_BITS) - 1
DATABASE_NAME: Final = "broker.db"

READY, IN_FLIGHT, DELAYED = 0, 1, 2

# A commit is in the log (WAL) when it returns, and on disk when the server has synced the log, which it does before it
# answers. The size of the cache is an upper bound. The server writes the log into the database between two
# transactions; SQLite's own checkpoints are for a log that grows faster than expected.
_PRAGMAS: Final = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
PRAGMA cache_size = -32768;
PRAGMA wal_autocheckpoint = 4000;
PRAGMA temp_store = MEMORY;
PRAGMA foreign_keys = OFF;
"""

_TABLES: Final = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;

CREATE TABLE queues (
    id         INTEGER PRIMARY KEY,
    region     TEXT NOT NULL,
    account    TEXT NOT NULL,
    name       TEXT NOT NULL,
    generation INTEGER NOT NULL,
    attributes TEXT NOT NULL,           -- JSON: the attributes that were set, as strings
    tags       TEXT NOT NULL,           -- JSON
    group_dedup INTEGER NOT NULL,       -- dedup per group: fixed when the queue was created
    created    INTEGER NOT NULL,
    modified   INTEGER NOT NULL,
    purged     INTEGER NOT NULL,
    UNIQUE (region, account, name)
);
CREATE TABLE deleted_queues (
    region TEXT NOT NULL, account TEXT NOT NULL, name TEXT NOT NULL, at INTEGER NOT NULL,
    PRIMARY KEY (region, account, name)
) WITHOUT ROWID;

-- `live` is 0 once the generation only waits to be swept. Numbers below `numbers_end` may have been given out.
CREATE TABLE generations (
    -- Ids are never used twice: rows and dedup ids of a dead generation may still be there.
    id INTEGER PRIMARY KEY AUTOINCREMENT, live INTEGER NOT NULL, numbers_end INTEGER NOT NULL
);

-- Inserted and deleted, never updated; no index but the row ids.
CREATE TABLE messages (
    id       INTEGER PRIMARY KEY,
    enqueued INTEGER NOT NULL,          -- retention counts from here
    wire     TEXT NOT NULL,             -- MessageId, MD5OfBody and Body as they are sent to a client, see rows.py
    grp      TEXT,                      -- the message group
    extra    TEXT,                      -- JSON: what most messages don't have (attributes, dedup id, trace, …)
    due      INTEGER,                   -- when its delay ends; Standard queues only
    arrived  INTEGER                    -- when it came, if it came with an older date than its neighbours
);

-- The state of messages that were received: each row has the whole state of some messages; the newest row counts.
CREATE TABLE receive_log (
    id INTEGER PRIMARY KEY, generation INTEGER NOT NULL, states BLOB NOT NULL,
    attempt TEXT, attempted INTEGER     -- the ReceiveRequestAttemptId of the receive, and its time
);

-- Dedup ids in the order in which they came, and those that were merged from there; see dedup.py.
CREATE TABLE dedup_log (
    id INTEGER PRIMARY KEY, digest BLOB NOT NULL, message_id TEXT NOT NULL, row INTEGER NOT NULL,
    expires INTEGER NOT NULL
);
CREATE TABLE dedup (
    digest BLOB PRIMARY KEY, message_id TEXT NOT NULL, row INTEGER NOT NULL, expires INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX dedup_expiry ON dedup (expires);

CREATE TABLE move_tasks (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, source TEXT NOT NULL, destination TEXT, rate INTEGER,
    status TEXT NOT NULL, reason TEXT, started INTEGER NOT NULL, moved INTEGER NOT NULL, to_move INTEGER NOT NULL,
    cursor INTEGER NOT NULL, until INTEGER NOT NULL
);
CREATE INDEX move_tasks_by_source ON move_tasks (source, number);
"""


def open_database(folder: Path | None) -> sqlite3.Connection:
    """Opens or creates the database in `folder`, or one in memory. Raises StartError, which says what to do."""
    if folder is None:
        return _prepare(_connect(":memory:"), "memory")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StartError(f"data folder {folder}: {error.strerror}; choose another with --data") from None
    path = folder / DATABASE_NAME
    try:
        connection = _connect(str(path))
        try:
            _prepare(connection, str(path))
            with closing(_connect(":memory:")) as fresh:
                create_tables(fresh)
                check_values(connection, fresh)
        except BaseException:
            connection.close()
            raise
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise StartError(f"data folder {folder}: {path.name}: {error}; {_way_out(error)}") from None
    return connection


def _connect(target: str) -> sqlite3.Connection:
    # The server runs checkpoints on another thread. Meanwhile its own thread leaves the database alone.
    return sqlite3.connect(target, isolation_level=None, check_same_thread=False, cached_statements=256, timeout=0)


def _prepare(connection: sqlite3.Connection, where: str) -> sqlite3.Connection:
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if tables and application != APPLICATION_ID:
        raise StartError(f"{where} is a database of another program; choose another folder with --data")
    if version > SCHEMA_VERSION:
        raise StartError(
            f"{where} was written by a newer Semel (schema {version}, this one knows {SCHEMA_VERSION}); "
            "upgrade Semel, or choose another folder with --data"
        )
    connection.executescript(_PRAGMAS)
    connection.execute("BEGIN EXCLUSIVE")
    if not tables:
        create_tables(connection)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    elif version == 1:
        from semel.broker.engine.upgrade import from_version_1  # few need it

        from_version_1(connection, create_tables)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    connection.execute("COMMIT")
    return connection


def create_tables(connection: sqlite3.Connection) -> None:
    for statement in _statements(_TABLES):
        connection.execute(statement)


def _statements(script: str) -> list[str]:
    lines = (line.split("--")[0] for line in script.splitlines())
    return [statement for statement in "\n".join(lines).split(";") if statement.strip()]


def _way_out(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):  # SQLite's own text, which quotes what it has found
        return "it is damaged; move it away, or choose another folder with --data"
    match error.sqlite_errorname.split("_")[1] if hasattr(error, "sqlite_errorname") else "":
        case "BUSY" | "LOCKED":
            return "another broker is using it; stop that one, or choose another folder with --data"
        case "NOTADB" | "CORRUPT" | "CONSTRAINT":
            return "it is not a Semel database, or it is damaged; move it away, or choose another folder with --data"
        case "FULL":
            return "the disk is full; make room, or choose another folder with --data"
        case _:
            return "check that the folder is writable, or choose another with --data"
