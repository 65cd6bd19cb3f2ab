"""The database: its tables, its version, and how it is opened.

A *lane* is one life of a queue's contents. Purging or deleting a queue gives it a new lane (or none) in O(1); the old
lane's rows are swept up later, a few at a time. A message's row id is `lane << LANE_BITS | n`, so one lane is one
contiguous range of the table, and a row number is never used twice.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

from semel.errors import StartError

SCHEMA_VERSION: Final = 1
APPLICATION_ID: Final = 0x53454D4C  # "SEML"
LANE_BITS: Final = 40
DATABASE_NAME: Final = "broker.db"

READY, IN_FLIGHT, DELAYED = 0, 1, 2

# WAL with full sync: a commit is on disk before it is answered. The cache is a bound on memory, not a goal.
_PRAGMAS: Final = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
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
    lane       INTEGER NOT NULL,
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

-- Counts are kept, not counted; `live` is 0 once the lane only waits to be swept.
CREATE TABLE lanes (
    -- Never a number twice: rows, dedup ids and receive attempts of a dead lane are still about.
    id INTEGER PRIMARY KEY AUTOINCREMENT, live INTEGER NOT NULL, next_n INTEGER NOT NULL,
    ready INTEGER NOT NULL, in_flight INTEGER NOT NULL, delayed INTEGER NOT NULL, busy_groups INTEGER NOT NULL
);

CREATE TABLE messages (
    id         INTEGER PRIMARY KEY,
    lane       INTEGER NOT NULL,
    state      INTEGER NOT NULL,        -- 0 ready, 1 in flight, 2 delayed
    due        INTEGER NOT NULL,        -- when it becomes ready, for states 1 and 2
    pos        INTEGER NOT NULL,        -- place in the queue; the row id unless it was sent to the back
    grp        INTEGER,                 -- groups.id
    receives   INTEGER NOT NULL,        -- in this queue: also the number of the newest receipt handle
    prior      INTEGER NOT NULL,        -- receives in the queues it was in before
    first      INTEGER NOT NULL,        -- first receive, 0 if none
    received   INTEGER NOT NULL,        -- newest receive: the twelve hours count from here
    enqueued   INTEGER NOT NULL,        -- retention counts from here
    sent       INTEGER NOT NULL,        -- SentTimestamp
    late       INTEGER NOT NULL,        -- 0, or when it came here with an older `enqueued` than its neighbours'
    message_id TEXT NOT NULL,
    body       TEXT NOT NULL,
    md5        TEXT NOT NULL,
    sender     TEXT NOT NULL,
    extra      BLOB                     -- JSON: what most messages don't have (attributes, group, dedup id, …)
);
CREATE INDEX ready ON messages (pos) WHERE state = 0 AND grp IS NULL;
CREATE INDEX hidden ON messages (lane, due) WHERE state > 0;
CREATE INDEX grouped ON messages (grp, state, pos) WHERE grp IS NOT NULL;
CREATE INDEX latecomers ON messages (lane, enqueued) WHERE late > 0;

-- `head` is the place of the first message that may be handed out now, null if there is none.
CREATE TABLE groups (
    id INTEGER PRIMARY KEY, lane INTEGER NOT NULL, name TEXT NOT NULL, head INTEGER, in_flight INTEGER NOT NULL,
    sent INTEGER NOT NULL, busy REAL NOT NULL, busy_at INTEGER NOT NULL
);
CREATE UNIQUE INDEX group_names ON groups (lane, name);
CREATE INDEX group_heads ON groups (lane, head) WHERE head IS NOT NULL;

-- Dedup ids in the order in which they came, and those that were merged from there; see dedup.py.
CREATE TABLE dedup_log (
    id INTEGER PRIMARY KEY, digest BLOB NOT NULL, message_id TEXT NOT NULL, row INTEGER NOT NULL,
    expires INTEGER NOT NULL
);
CREATE TABLE dedup (
    digest BLOB PRIMARY KEY, message_id TEXT NOT NULL, row INTEGER NOT NULL, expires INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX dedup_expiry ON dedup (expires);

CREATE TABLE attempts (
    lane INTEGER NOT NULL, attempt TEXT NOT NULL, expires INTEGER NOT NULL, messages TEXT NOT NULL,
    PRIMARY KEY (lane, attempt)
) WITHOUT ROWID;
CREATE INDEX attempt_expiry ON attempts (expires);

CREATE TABLE move_tasks (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, source TEXT NOT NULL, destination TEXT, rate INTEGER,
    status TEXT NOT NULL, reason TEXT, started INTEGER NOT NULL, moved INTEGER NOT NULL, to_move INTEGER NOT NULL,
    cursor INTEGER NOT NULL, until INTEGER NOT NULL
);
CREATE INDEX move_tasks_by_source ON move_tasks (source, number);
"""


def open_database(folder: Path | None) -> sqlite3.Connection:
    """The database in `folder`, made if it is missing; in memory without one. Raises StartError with the way out."""
    if folder is None:
        return _prepare(_connect(":memory:"), "memory")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StartError(f"data folder {folder}: {error.strerror}; choose another with --data") from None
    path = folder / DATABASE_NAME
    try:
        return _prepare(_connect(str(path)), str(path))
    except sqlite3.Error as error:
        raise StartError(f"data folder {folder}: {path.name}: {error}; {_way_out(error)}") from None


def _connect(target: str) -> sqlite3.Connection:
    # The server commits from a helper thread while its own thread waits: one at a time, never both.
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
        for statement in _statements(_TABLES):
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    connection.execute("COMMIT")
    return connection


def _statements(script: str) -> list[str]:
    lines = (line.split("--")[0] for line in script.splitlines())
    return [statement for statement in "\n".join(lines).split(";") if statement.strip()]


def _way_out(error: sqlite3.Error) -> str:
    match error.sqlite_errorname.split("_")[1] if hasattr(error, "sqlite_errorname") else "":
        case "BUSY" | "LOCKED":
            return "another broker is using it; stop that one, or choose another folder with --data"
        case "NOTADB" | "CORRUPT":
            return "it is not a Semel database, or it is damaged; move it away, or choose another folder with --data"
        case "FULL":
            return "the disk is full; make room, or choose another folder with --data"
        case _:
            return "check that the folder is writable, or choose another with --data"
